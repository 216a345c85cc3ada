"""Partitions: states out of the image, offsets out of the position tables, sizes out of files."""

import itertools
from pathlib import Path

import pytest

from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import LOG_START_OFFSET, write_offsets
from shmbroker.metadata.changes import MetadataChange, PartitionChanged, TopicCreated
from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from shmbroker.metrics import partitions as module
from shmbroker.metrics.partitions import Changes, Directories, Partitions
from shmbroker.metrics.samples import Samples
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
        self.partitions = Partitions(
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

    def gathered(self) -> Samples:
        samples = Samples()
        self.partitions.gather(samples, self.image)
        return samples


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
    found = family.gathered()
    expected = {
        "leadercount": (2, 0, 1),
        "partitioncount": (3, 4, 4),
        "underreplicatedpartitions": (1, 0, 1),
        "underminisrpartitioncount": (0, 0, 1),
        "atminisrpartitioncount": (1, 0, 0),
    }
    for name, values in expected.items():
        series = f"kafka_server_replicamanager_{name}"
        assert tuple(found.value(series, broker) for broker in (1, 2, 3)) == values, name
    controller = "kafka_controller_kafkacontroller_"
    assert found.value(f"{controller}offlinepartitionscount") == 1
    assert found.value(f"{controller}preferredreplicaimbalancecount") == 2
    assert found.value(f"{controller}globalpartitioncount") == 4


def test_sizes_offsets_and_lag_are_those_of_the_logs(family: Fixture) -> None:
    family.topic(((1, 2), (1, 2), 1))
    family.log(1, 0, base=50, size=300, end=90)
    family.log(2, 0, base=50, size=200, end=70)
    found = family.gathered()
    assert found.value("kafka_log_log_size", "t", 0) == 1300
    assert found.value("kafka_log_log_logendoffset", "t", 0) == 90
    assert found.value("kafka_log_log_logstartoffset", "t", 0) == 0
    assert found.value("kafka_log_log_numlogsegments", "t", 0) == 2
    assert found.value("shmbroker_topic_bytes", "t") == 2500
    assert found.value("kafka_server_brokertopicmetrics_messagesin_total", "t") == 90
    assert found.value("kafka_server_replicafetchermanager_maxlag", 2) == 20
    assert found.value("kafka_server_replicafetchermanager_maxlag", 1) == 0
    assert found.value("shmbroker_replica_lag_records", 2, "t") == 20


def test_new_segments_and_deleted_records_are_seen(family: Fixture) -> None:
    family.topic(((1,), (1,), 1))
    family.log(1, 0, base=50, size=300, end=90)
    family.gathered()
    family.log(1, 0, base=90, size=10, end=95)
    write_offsets(str(family.roots[1] / LOG_START_OFFSET), {("t", 0): 33})
    found = family.gathered()
    assert found.value("kafka_log_log_numlogsegments", "t", 0) == 3
    assert found.value("kafka_log_log_size", "t", 0) == 1000 + 4096 + 10
    assert found.value("kafka_log_log_logstartoffset", "t", 0) == 33


def test_of_too_many_partitions_topics_alone_are_shown(
    family: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 1)
    family.topic(((1,), (1,), 1), ((1,), (1,), 1))
    family.log(1, 0, base=50, size=300, end=90)
    found = family.gathered()
    assert found.value("shmbroker_partitions_left_out") == 2
    assert found.value("shmbroker_topic_bytes", "t") == 1300
    assert "kafka_log_log_size" not in found.names


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
    counted = Changes()
    counted.see(changes)
    assert (counted.shrinks, counted.expands, counted.leaders) == (2, 1, 2)
