"""A partition store over a directory, started and ended as a test says."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.ids import random_uuid
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.shm.positions import PositionTable, table_bytes
from tests.support.family_memory import VirtualClock
from tests.support.leadership import leadership

NOW_MS = 1_000_000
SIZE = len(encode_batch([(NOW_MS, None, b"v" * 100, ())]))


class Topic:
    is_internal = False
    partitions = (SimpleNamespace(replicas=(1,)),)

    def __init__(self, name: str = "t") -> None:
        self.name = name
        self.topic_id = random_uuid()


class Node:
    """A store over a directory, started and ended as the test says; fdatasync is done at once, or
    when `sync` is called."""

    def __init__(self, root: Path) -> None:
        self.path = root / "node-1"
        self.jobs: list[Any] = []
        self.counted: list[str] = []
        self.steady_ms = 0
        self.positions = self._new_positions()
        self.store: PartitionStore
        self.start()

    @staticmethod
    def _new_positions() -> PositionTable:
        return PositionTable(memoryview(bytearray(table_bytes(16))), 16)

    def start(self, *, is_successor: bool = False) -> None:
        if not is_successor:
            self.positions = self._new_positions()
        directory = LogDirectory.open(str(self.path), 1, "cluster")
        self.store = PartitionStore(
            directory,
            self.positions,
            0,
            is_successor,
            lambda fds, on_done: self.jobs.append((fds, on_done)),
            lambda: self.steady_ms,
            self.counted.append,
        )
        self.upkeep = Upkeep(self.store, 300_000)

    def kill(self) -> None:
        for partition in self.store.partitions.values():
            partition.log.close(clean=False)
        self.store.log_directory.close()

    def stop(self) -> None:
        self.store.close(1, VirtualClock().monotonic)

    def sync(self) -> None:
        while self.jobs:
            fds, on_done = self.jobs.pop(0)
            for fd in fds:
                os.fdatasync(fd)
                os.close(fd)
            on_done(None)

    def open(self, topic: Topic, **configs: str) -> Partition:
        texts = {"segment.bytes": str(1 << 20)}
        sizes = {"segment.bytes": str(10 * SIZE)}
        config = LogConfig(effective_topic_configs(texts, ()) | sizes | configs)
        partition = self.store.open(topic, 0, config, NOW_MS)
        partition.on_leadership(1, leadership())
        return partition

    def fill(self, topic: Topic, count: int) -> Partition:
        partition = self.open(topic)
        for _ in range(count):
            batch = encode_batch([(NOW_MS, None, b"v" * 100, ())])
            partition.log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
        partition.advance_high_watermark()
        return partition

    def directory(self, topic: Topic) -> Path:
        return self.path / f"{topic.name}-0"

    def strays(self) -> list[str]:
        return [name for name in os.listdir(self.path) if name.endswith("-stray")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.sync()
    node.kill()
