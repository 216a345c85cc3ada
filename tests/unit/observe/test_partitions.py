"""Partitions: states out of the image, offsets out of the position tables, sizes out of files."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import LOG_START_OFFSET, write_offsets
from shmbroker.metadata.changes import MetadataChange, PartitionChanged, TopicCreated
from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from shmbroker.observe.partitions import ChangeCounts, Directories, ObservedPartitions, brokers
from shmbroker.observe.snapshot import Broker, Changes, Partition
from shmbroker.shm.positions import PositionTable, SiblingPositions, table_bytes

TOPIC_ID = b"t" * 16
ENTRIES = 8
Row = tuple[tuple[int, ...], tuple[int, ...], int]
"""Replicas, ISR, leader."""


def partition(number: int, row: Row) -> PartitionImage:
    replicas, in_sync, leader = row
    return PartitionImage(number, replicas, in_sync, leader, 1, 1, ())


class Fixture:
    """Three brokers with a directory and a position table each."""

    def __init__(self, root: Path) -> None:
        self.roots = {number: root / f"node-{number}" for number in (1, 2, 3)}
        self.tables = {}
        positions = {}
        for number, path in self.roots.items():
            path.mkdir()
            view = memoryview(bytearray(table_bytes(ENTRIES)))
            self.tables[number] = PositionTable(view, ENTRIES)
            positions[number] = SiblingPositions(view)
        self.partitions = ObservedPartitions(
            positions,
            Directories({number: str(path) for number, path in self.roots.items()}),
            lambda _image, _topic: 2,
        )
        self.image = MetadataImage("c")

    def topic(self, *rows: Row) -> None:
        parts = tuple(partition(number, row) for number, row in enumerate(rows))
        self.image.topics_by_name["t"] = TopicImage("t", TOPIC_ID, parts)

    def log(self, broker: int, number: int, base: int, size: int, end: int) -> None:
        """A log whose active segment begins at `base`, with one before it of 1000 bytes."""
        path = self.roots[broker] / f"t-{number}"
        path.mkdir(exist_ok=True)
        (path / f"{0:020d}.log").write_bytes(bytes(1000))
        (path / f"{base:020d}.log").write_bytes(bytes(4096))  # as it was allocated
        table, key = self.tables[broker], partition_key(TOPIC_ID, number)
        slot = table.find(key)
        table.store(table.allocate(key) if slot is None else slot, base, size, end)  # type: ignore[arg-type]

    def look(self) -> tuple[Sequence[Partition], list[Broker]]:
        topics = self.partitions.look(self.image)
        roots = {number: str(path) for number, path in self.roots.items()}
        return topics[0].partitions, brokers(self.image, topics, roots, {})


@pytest.fixture
def family(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_states_are_counted_at_the_leader(family: Fixture) -> None:
    family.topic(
        ((1, 2, 3), (1, 2, 3), 1),
        ((2, 1, 3), (1, 3), 1),
        ((3, 1, 2), (3,), 3),
        ((2, 3), (), -1),
    )
    rows, found = family.look()
    assert [row.is_under_replicated for row in rows] == [False, True, True, False]
    expected = {
        "replicas": [3, 4, 4],
        "leaders": [2, 0, 1],
        "under_replicated": [1, 0, 1],
        "under_min_in_sync": [0, 0, 1],
        "at_min_in_sync": [1, 0, 0],
    }
    for name, values in expected.items():
        assert [getattr(broker, name) for broker in found] == values, name
    assert not any(broker.is_registered for broker in found)


def test_sizes_offsets_and_lag_are_those_of_the_logs(family: Fixture) -> None:
    family.topic(((1, 2), (1, 2), 1))
    family.log(1, 0, base=50, size=300, end=90)
    family.log(2, 0, base=50, size=200, end=70)
    (row,), found = family.look()
    assert (row.start_offset, row.end_offset, row.size_bytes, row.segments) == (0, 90, 1300, 2)
    assert [replica.size_bytes for replica in row.replicas] == [1300, 1200]
    assert [replica.end_offset for replica in row.replicas] == [90, 70]
    assert [replica.lag for replica in row.replicas] == [0, 20]
    assert [broker.max_lag for broker in found] == [0, 20, 0]


def test_bytes_of_clients_are_those_of_all_who_led(family: Fixture) -> None:
    family.topic(((1, 2), (1, 2), 1))
    family.log(1, 0, base=50, size=300, end=90)
    family.log(2, 0, base=50, size=300, end=90)
    key = partition_key(TOPIC_ID, 0)
    for number, count in ((1, 400), (2, 11), (1, 30)):
        family.tables[number].add_read_bytes(key, count)
    family.tables[3].add_read_bytes(key, 5)  # which has no such partition
    ((row,), _) = family.look()
    assert row.read_bytes == 441


def test_what_is_not_there_is_not_known(family: Fixture) -> None:
    family.topic(((1, 9), (1,), 1))
    (row,), _ = family.look()
    assert (row.start_offset, row.end_offset, row.size_bytes, row.read_bytes) == (None,) * 4
    assert row.replicas[1].lag is None


def test_what_comes_within_a_tick_of_the_clock_is_seen(family: Fixture) -> None:
    family.topic(((1,), (1,), 1))
    path = family.roots[1] / "t-0"
    path.mkdir()
    changed_ns = path.stat().st_mtime_ns
    ((row,), _) = family.look()
    assert row.size_bytes is None
    family.log(1, 0, base=50, size=300, end=90)
    os.utime(path, ns=(changed_ns, changed_ns))
    ((row,), _) = family.look()
    assert row.size_bytes == 1300


def test_directory_that_has_not_changed_for_long_is_looked_at_once(
    family: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.topic(((1,), (1,), 1))
    family.log(1, 0, base=50, size=300, end=90)
    os.utime(family.roots[1] / "t-0", ns=(1, 1))
    family.look()
    monkeypatch.setattr(os, "scandir", None)
    ((row,), _) = family.look()
    assert row.size_bytes == 1300


def test_new_segments_and_deleted_records_are_seen(family: Fixture) -> None:
    family.topic(((1,), (1,), 1))
    family.log(1, 0, base=50, size=300, end=90)
    family.look()
    family.log(1, 0, base=90, size=10, end=95)
    write_offsets(str(family.roots[1] / LOG_START_OFFSET), {("t", 0): 33})
    (row,), _ = family.look()
    assert row.segments == 3
    assert row.size_bytes == 1000 + 4096 + 10
    assert row.start_offset == 33


def test_changes_of_partitions_are_counted() -> None:
    topic = TopicImage("t", TOPIC_ID, ())
    rows = [
        partition(0, row)
        for row in (
            ((1, 2, 3), (1, 2, 3), 1),
            ((1, 2, 3), (2, 3), 2),
            ((1, 2, 3), (1, 2, 3), 2),
            ((1, 2, 3), (1, 2), 1),
        )
    ]
    changes: list[MetadataChange] = [TopicCreated(topic), PartitionChanged(topic, None, rows[0])]
    pairs = itertools.pairwise(rows)
    changes += [PartitionChanged(topic, *pair) for pair in pairs]
    counted = ChangeCounts()
    counted.see(changes)
    assert counted.taken() == Changes(2, 1, 2)
