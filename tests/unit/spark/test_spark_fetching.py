"""What tasks ask brokers for where they can't read files: which records, and what goes wrong."""

import struct
import threading

import pytest

pytest.importorskip("pyspark")
from fake_family import FakeFamily

from shmbroker.client.faults import ClusterFault, DataLossFault
from shmbroker.client.reader import planning
from shmbroker.errors import CorruptFault
from tests.unit.spark.spark_readers import (
    COLUMNS,
    FETCH,
    FILES,
    IMPATIENT,
    batch_rows,
    family,
    rows,
    source,
)

__all__ = ["family"]


# --- fetching ------------------------------------------------------------------------------------


def test_a_forced_fetch_gives_the_same_rows(family: FakeFamily) -> None:
    made = family.create("t", 2)
    made[0].fill(7, 30)
    made[0].fill(7, 5, roll=True)
    made[1].fill(9, 3)
    start = {"startingOffsets": '{"t": {"0": 33, "1": 0}}'}
    end = {"endingOffsets": '{"t": {"0": 222, "1": 20}}'}
    expected = batch_rows(family, **start, **end)
    assert len(expected) == 222 - 33 + 20
    family.asked.clear()
    small = {"kafka.max.partition.fetch.bytes": "700"}
    assert batch_rows(family, **start, **end, **FETCH, **small) == expected
    assert "ListSegments" not in family.asked
    assert family.asked.count("Fetch") > 5
    made[0].tail = 100  # of a batch that no longer fits
    assert batch_rows(family, **start, **end, **FETCH, **small) == expected


def test_what_only_remote_storage_has_is_fetched(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    partition.fill(10, roll=True)
    partition.fill(10, 2)
    expected = [("t", 0, i) for i in range(5, 40)]
    start = {"startingOffsets": '{"t": {"0": 5}}'}
    partition.remote.append(partition.segments.pop(0))
    reader = source(family, **start).reader(COLUMNS)
    tasks = reader.partitions()
    pieces = [piece for task in tasks for piece in task.pieces]
    assert [(bool(p.path), p.start_offset, p.end_offset) for p in pieces] == [
        (False, 5, 10),
        (True, 10, 40),
    ]
    assert rows(reader, tasks) == expected
    with pytest.raises(ClusterFault, match=r"offsets 5 to 9 of t-0 are in no file.*read=auto"):
        batch_rows(family, **start, **FILES)


def test_offsets_of_which_compaction_left_nothing_are_not_fetched(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    for _ in range(3):
        partition.fill(10, roll=True)
    partition.segments.pop(0)
    partition.local_start_offset = 0
    expected = [("t", 0, i) for i in range(10, 30)]
    assert batch_rows(family, **FILES) == expected
    assert batch_rows(family, minPartitions="5", **FILES) == expected
    partition.segments.clear()
    assert batch_rows(family, **FILES) == []
    assert "Fetch" not in family.asked


def test_what_has_to_be_fetched_counts_against_the_bytes_of_a_trigger(family: FakeFamily) -> None:
    """By the size of the records that are at hand."""
    partition = family.create("t")[0]
    partition.fill(10, 10)
    partition.fill(10, roll=True)
    partition.fill(10, 9)
    partition.remote.append(partition.segments.pop(0))
    reader = source(family, startingOffsets="earliest", maxBytesPerTrigger="100").streamReader(
        COLUMNS
    )
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert 0 < end["t"]["0"] < 100
    reader.stop()


def test_what_has_to_be_fetched_is_split_by_its_size(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = family.create("t")[0]
    partition.fill(10, 10)
    partition.fill(10, roll=True)
    partition.fill(10, 9)
    partition.remote.append(partition.segments.pop(0))
    monkeypatch.setattr(planning, "PIECE_BYTES_MAX", partition.segments[0]["valid_bytes"] // 4)
    tasks = source(family).reader(COLUMNS).partitions()
    assert len([piece for task in tasks for piece in task.pieces if not piece.path]) == 4


def test_a_fetch_is_split_as_asked(family: FakeFamily) -> None:
    family.create("t")[0].fill(100)
    reader = source(family, minPartitions="4", **FETCH).reader(COLUMNS)
    tasks = reader.partitions()
    assert [len(rows(reader, [task])) for task in tasks] == [25] * 4
    assert rows(reader, tasks) == [("t", 0, i) for i in range(100)]


@pytest.mark.parametrize("way", ["auto", "fetch"])
def test_what_retention_deletes_before_the_task_is_named(family: FakeFamily, way: str) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    partition.fill(10, roll=True)
    read = {"shmbroker.read": way, "startingOffsets": '{"t": {"0": 4}}'}
    reader = source(family, **read).reader(COLUMNS)
    tasks = reader.partitions()
    (partition.directory / partition.segments.pop(0)["file_name"]).unlink()
    partition.log_start_offset = 10
    with pytest.raises(DataLossFault, match="offsets 4 to 9 of t-0 are lost: deleted by retention"):
        rows(reader, tasks)
    lenient = source(family, failOnDataLoss="false", **read).reader(COLUMNS)
    assert rows(lenient, tasks) == [("t", 0, i) for i in range(10, 20)]


def test_what_is_told_as_lost_is_not_read_of_the_batch_that_has_more(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    lenient = source(family, failOnDataLoss="false", **FETCH).reader(COLUMNS)
    tasks = lenient.partitions()
    partition.log_start_offset = 6
    assert rows(lenient, tasks) == [("t", 0, i) for i in range(6, 10)]


def test_a_topic_made_again_is_not_fetched(family: FakeFamily) -> None:
    family.create("t")[0].fill(10)
    reader = source(family, **FETCH).reader(COLUMNS)
    tasks = reader.partitions()
    family.create("t")[0].fill(10, text="new")
    with pytest.raises(DataLossFault, match=r"offsets 0 to 9 of t-0 are lost: .*made again"):
        rows(reader, tasks)
    del family.topics["t"]
    with pytest.raises(DataLossFault, match=r"offsets 0 to 9 of t-0 are lost: .*deleted"):
        rows(reader, tasks)
    lenient = source(family, failOnDataLoss="false", **FETCH).reader(COLUMNS)
    assert rows(lenient, tasks) == []


def test_a_fetch_outlives_its_connection_and_its_leader(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5, 20)
    small = {"kafka.max.partition.fetch.bytes": "200"}
    reader = source(family, **FETCH, **small).reader(COLUMNS)
    tasks = reader.partitions()

    def trouble(name: str) -> None:
        fetches = family.asked.count("Fetch")
        if name == "Fetch" and fetches == 3:
            family.drop_connections()
        partition.error = 6 if name == "Fetch" and fetches == 6 else 0

    family.on_ask = trouble
    assert rows(reader, tasks) == [("t", 0, i) for i in range(100)]


@pytest.mark.parametrize("lost", ["Metadata", "ListOffsets", "Fetch", "ListSegments"])
def test_one_answer_that_never_comes_is_asked_for_again(family: FakeFamily, lost: str) -> None:
    family.create("t")[0].fill(5)
    over = threading.Event()
    missed = []

    def lose(name: str) -> None:
        if name == lost and not missed:
            missed.append(name)
            over.wait()

    family.on_ask = lose
    way = FILES if lost == "ListSegments" else FETCH
    try:
        found = batch_rows(family, **way, **{"kafka.request.timeout.ms": "200"})
    finally:
        over.set()
    assert missed == [lost]
    assert found == [("t", 0, i) for i in range(5)]


def test_a_fetch_that_never_comes_is_told(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5)
    reader = source(family, **FETCH, **IMPATIENT).reader(COLUMNS)
    tasks = reader.partitions()
    partition.error = 6
    with pytest.raises(ClusterFault, match=r"offsets 0 to 4 of t-0 did not come.*NOT_LEADER"):
        rows(reader, tasks)
    partition.error = 0
    partition.segments.clear()
    with pytest.raises(ClusterFault, match="has nothing from offset 0 on"):
        rows(reader, tasks)


def test_fetched_bytes_are_checked(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5)
    reader = source(family, **FETCH).reader(COLUMNS)
    tasks = reader.partitions()
    with (partition.directory / partition.segments[0]["file_name"]).open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptFault, match=r"t-0 from 0: .*CRC"):
        rows(reader, tasks)


# --- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_aborted_transactions_are_left_out_of_what_is_committed(
    family: FakeFamily, way: str
) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    partition.fill(10, producer_id=7, attributes=0x10)  # 10 to 19, aborted
    partition.fill(10, producer_id=8, attributes=0x10)  # 20 to 29, committed
    partition.fill(10)  # 30 to 39
    partition.append([(0, 0, b"\0\0\0\0", b"\0" * 6, [])], producer_id=7, attributes=0x30)
    partition.append([(0, 0, b"\0\0\0\1", b"\0" * 6, [])], producer_id=8, attributes=0x30)
    partition.fill(10, producer_id=7, attributes=0x10)  # 42 to 51, committed
    partition.aborted = [(7, 10, 40)]
    entry = struct.pack(">hqqqq", 0, 7, 10, 40, 42)
    path = partition.directory / partition.segments[0]["file_name"]
    path.with_suffix(".txnindex").write_bytes(entry)
    read = {"shmbroker.read": way}
    everything = [*range(40), *range(42, 52)]
    assert [offset for *_, offset in batch_rows(family, **read)] == everything
    read["kafka.isolation.level"] = "read_committed"
    committed = [offset for offset in everything if not 10 <= offset < 20]
    assert [offset for *_, offset in batch_rows(family, **read)] == committed
    small = {"kafka.max.partition.fetch.bytes": "300"}
    assert [offset for *_, offset in batch_rows(family, **read, **small)] == committed
