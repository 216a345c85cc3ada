"""A READ waits for min_bytes where there are not so many, and not where no answer of whole batches
has them: there Kafka's answer ends with part of a batch.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.read import Reader
from shmbroker.broker.read_lookup import MISSES_MAX, Lookup
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_COMMITTED,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.log import residency
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.purgatory import Purgatory
from shmbroker.replica.partition import Partitions
from tests.support.acknowledged_load import batch_now

COUNT = MISSES_MAX + 2
KEYS = [partition_key(bytes(16), index) for index in range(COUNT)]
BATCHES = 10
BATCH_BYTES = len(batch_now(bytes(3000)))
ROOM = 10_000
"""Three batches, and part of the fourth."""


class Side:
    """Partitions of BATCHES batches, a record each, and a network worker that reads them."""

    def __init__(self, directory: Path) -> None:
        self.partitions = [self._make(directory, index) for index in range(COUNT)]
        self.slot = 3
        self.now_ms = 0
        self.writer = SimpleNamespace(payload_bytes_max=1 << 20)
        self.answers: list[list[int]] = []
        self.reader = Reader(
            Lookup(Partitions(zip(KEYS, self.partitions, strict=True)), lambda: 0),
            Purgatory(),
            lambda: self.now_ms,
            lambda peer, segment: None,
        )

    @staticmethod
    def _make(directory: Path, index: int) -> Any:
        config = LogConfig({"segment.bytes": str(100_000)})
        log = PartitionLog.open(
            str(directory / f"t-{index}"), config, file_ids=itertools.count(1), now_ms=1
        )
        for _ in range(BATCHES):
            log.append(batch_now(bytes(3000)), 0, 1, 0, 1)
        return SimpleNamespace(
            key=KEYS[index],
            is_leader=True,
            leader_epoch=0,
            high_watermark=BATCHES,
            last_stable_offset=BATCHES,
            log=log,
        )

    def append(self, partition: Any, is_readable: bool = True) -> None:
        partition.log.append(batch_now(bytes(3000)), 0, 1, 0, 1)
        if is_readable:
            partition.high_watermark = partition.last_stable_offset = partition.log.log_end_offset
        self.reader.purgatory.check(partition.key)

    def send(self, _operation: int, payload: bytes) -> None:
        count = READ_DONE_HEAD.unpack_from(payload)[1]
        slices = payload[READ_DONE_HEAD.size :][: count * READ_SLICE.size]
        self.answers.append([found[2] // BATCH_BYTES for found in READ_SLICE.iter_unpack(slices)])

    def read(
        self,
        min_bytes: int,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = ROOM,
        offset: int = 0,
        count: int = 1,
        isolation: int = 0,
    ) -> list[int] | None:
        """How many batches of each partition are answered at once; None: it waits."""
        head = READ_HEAD.pack(7, 500, min_bytes, max_bytes, isolation, 0, count, 0)
        rows = [
            READ_PARTITION.pack(key, partition_max_bytes, -1, -1, offset, -1, -1)
            for key in KEYS[:count]
        ]
        data = memoryview(head + b"".join(rows))
        self.reader.on_read(self, data, 0)  # type: ignore[arg-type]
        return self.answers.pop() if self.answers else None


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    made = Side(tmp_path)
    yield made
    for partition in made.partitions:
        partition.log.close(clean=True)


@pytest.mark.parametrize(
    ("limits", "answered"),
    [
        ({"min_bytes": ROOM}, [3]),
        ({"min_bytes": ROOM + 1}, None),
        ({"min_bytes": 2 * ROOM, "count": 2}, [3, 3]),
        ({"min_bytes": 2 * ROOM + 1, "count": 2}, None),
        ({"min_bytes": ROOM, "max_bytes": ROOM, "partition_max_bytes": 1 << 20}, [3]),
        ({"min_bytes": ROOM, "max_bytes": ROOM, "count": COUNT}, [3] + [0] * (COUNT - 1)),
        ({"min_bytes": ROOM, "offset": BATCHES - 3}, None),
        ({"min_bytes": 3 * BATCH_BYTES, "offset": BATCHES - 3}, [3]),
        ({"min_bytes": ROOM, "partition_max_bytes": 1}, None),
    ],
)
def test_so_many_bytes_as_an_answer_has_with_part_of_a_batch(
    side: Side, limits: dict[str, int], answered: list[int] | None
) -> None:
    assert side.read(**limits) == answered


def test_what_goes_on_in_another_segment_is_not_waited_for(side: Side) -> None:
    partition = side.partitions[0]
    while len(partition.log.segments) == 1:
        side.append(partition)
    in_first = partition.log.active.base_offset
    limits = {"min_bytes": 1 << 19, "partition_max_bytes": 1 << 20}
    assert side.read(**limits, offset=in_first - 2) == [2]
    assert side.read(**limits, offset=in_first) is None
    partition.high_watermark = in_first - 1  # what follows can't be read yet
    assert side.read(**limits, offset=in_first - 2) is None


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_what_may_not_be_read_yet_does_not_count(side: Side, isolation: int) -> None:
    partition = side.partitions[0]
    side.append(partition, is_readable=False)
    partition.last_stable_offset -= 1
    readable = 3 - isolation
    limits = {"offset": BATCHES - 3, "isolation": isolation, "partition_max_bytes": 1 << 20}
    assert side.read(min_bytes=readable * BATCH_BYTES + 1, **limits) is None
    assert side.read(min_bytes=readable * BATCH_BYTES, **limits) == [readable]


def test_an_append_that_fills_the_room_ends_the_wait(side: Side) -> None:
    assert side.read(min_bytes=ROOM, offset=BATCHES - 3) is None
    side.append(side.partitions[0])
    assert side.answers == [[3]]


def test_where_the_end_is_on_the_disk_alone_it_is_looked_at_again(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.partitions[0].last_stable_offset = BATCHES - 1

    def end_in(*_: Any) -> int:
        raise residency.ColdBytes

    with monkeypatch.context() as patch:
        patch.setattr("shmbroker.broker.read_lookup.end_in", end_in)
        assert side.read(min_bytes=ROOM, isolation=READ_COMMITTED) is None
    assert len(side.reader.cold) == 1
    side.now_ms += 1
    side.reader.retry_cold()
    assert side.answers == [[3]]
