"""Readers as Spark calls them, without Spark: offsets, ranges, and what is said of lost records."""

import json
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from fake_family import FakeFamily
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from shmbroker.client.faults import ClusterFault, DataLossFault
from shmbroker.client.reader import broker_client, planning, segment_files
from shmbroker.client.reader.segment_files import GoneFault
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.spark.offsets import to_json
from shmbroker.spark.options import QUERY_ID, TASK_BEGINS, TOPIC_IDS
from shmbroker.spark.stream_reader import WAY
from shmbroker.spark.task_side import Task

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)


FILES = {"shmbroker.read": "files"}
FETCH = {"shmbroker.read": "fetch"}
IMPATIENT = {"kafka.default.api.timeout.ms": "800"}
"""Where it is waited for in vain; elsewhere a busy machine may take its time."""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[FakeFamily]:
    with FakeFamily(tmp_path / ("long" * 30)) as made:
        yield made


def source(family: FakeFamily, **options: str) -> ShmbrokerDataSource:
    if not {"subscribe", "assign", "subscribePattern"} & set(options):
        options["subscribe"] = "t"
    given = {"kafka.bootstrap.servers": family.address, "fetchOffset.retryIntervalMs": "1"}
    return ShmbrokerDataSource({**given, **options})


def rows(reader, tasks) -> list[tuple]:
    """(topic, partition, offset) of all tasks; every value tells its offset."""
    found = []
    for task in tasks:
        assert isinstance(task, Task)
        for batch in reader.read(task):
            for row in batch.to_pylist():
                assert row["value"].endswith(str(row["offset"]).encode())
                found.append((row["topic"], row["partition"], row["offset"]))
    return found


def batch_rows(family: FakeFamily, **options: str) -> list[tuple]:
    reader = source(family, **options).reader(COLUMNS)
    return rows(reader, reader.partitions())


def stream_rows(reader, start: dict, end: dict) -> list[tuple]:
    return rows(reader, reader.partitions(over_json(start), over_json(end)))


def over_json(offsets: dict) -> dict:
    return json.loads(json.dumps(offsets))


# --- batch ---------------------------------------------------------------------------------------


def test_a_batch_reads_all_partitions(family: FakeFamily) -> None:
    made = family.create("t", 3)
    made[0].fill(10, 3)
    made[2].fill(7, 2)
    expected = [("t", 0, i) for i in range(30)] + [("t", 2, i) for i in range(14)]
    assert batch_rows(family) == expected


def test_an_empty_topic_has_no_tasks(family: FakeFamily) -> None:
    family.create("t", 2)
    assert source(family).reader(COLUMNS).partitions() == []


def test_a_batch_reads_a_range_over_segments(family: FakeFamily) -> None:
    made = family.create("t")
    for _ in range(4):
        made[0].fill(10, roll=True)
        made[0].fill(10, 4)
    found = batch_rows(
        family, startingOffsets='{"t": {"0": 63}}', endingOffsets='{"t": {"0": 157}}'
    )
    assert found == [("t", 0, i) for i in range(63, 157)]


def test_a_batch_by_timestamp(family: FakeFamily) -> None:
    family.create("t", 2)[0].fill(10, 5)
    family.topics["t"][1][1].fill(10, 1)
    found = batch_rows(
        family, startingOffsetsByTimestamp='{"t": {"0": 1033, "1": 0}}', endingTimestamp="1040"
    )
    assert found == [("t", 0, i) for i in range(33, 40)] + [("t", 1, i) for i in range(10)]


def test_a_starting_timestamp_after_the_last_record_needs_a_strategy(family: FakeFamily) -> None:
    family.create("t")[0].fill(10)
    with pytest.raises(ConfigFault, match="startingOffsetsByTimestampStrategy"):
        batch_rows(family, startingTimestamp="9999")
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert batch_rows(family, startingTimestamp="9999", **strategy) == []


def test_a_pattern_reads_the_topics_it_matches(family: FakeFamily) -> None:
    for name in ("a1", "a2", "b1"):
        family.create(name)[0].fill(2)
    found = batch_rows(family, subscribePattern="a.")
    assert found == [("a1", 0, 0), ("a1", 0, 1), ("a2", 0, 0), ("a2", 0, 1)]


def test_assigned_partitions_only(family: FakeFamily) -> None:
    made = family.create("t", 3)
    for partition in made.values():
        partition.fill(2)
    assert batch_rows(family, assign='{"t": [1]}') == [("t", 1, 0), ("t", 1, 1)]
    with pytest.raises(ConfigFault, match="no partition 5"):
        batch_rows(family, assign='{"t": [1, 5]}')


def test_offsets_must_name_every_partition(family: FakeFamily) -> None:
    family.create("t", 3)
    with pytest.raises(ConfigFault, match="missing: t-1, t-2; not read: u-0"):
        batch_rows(family, startingOffsets='{"t": {"0": 0}, "u": {"0": 0}}')
    with pytest.raises(ConfigFault, match="match what are assigned: name all of them; missing"):
        batch_rows(family, startingOffsetsByTimestamp='{"t": {"0": 0}}')


def test_an_unknown_topic_is_named(family: FakeFamily) -> None:
    with pytest.raises(ConfigFault, match="no topic t"):
        batch_rows(family)


def test_a_start_behind_the_end_is_refused(family: FakeFamily) -> None:
    family.create("t")[0].fill(10)
    with pytest.raises(ConfigFault, match="start offset 7 is greater than the end offset 3"):
        batch_rows(family, startingOffsets='{"t": {"0": 7}}', endingOffsets='{"t": {"0": 3}}')


def test_nothing_beyond_the_high_watermark_is_read(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    path = partition.directory / partition.segments[0]["file_name"]
    valid = partition.segments[0]["valid_bytes"]
    partition.fill(10, text="uncommitted")
    partition.high_watermark = 10
    partition.segments[0] |= {"valid_bytes": valid, "end_offset": 10}
    assert batch_rows(family) == [("t", 0, i) for i in range(10)]
    assert path.stat().st_size > valid


# --- lost records --------------------------------------------------------------------------------


def test_records_deleted_by_retention_are_named(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    partition.fill(10, roll=True)
    partition.log_start_offset = 10
    partition.segments.pop(0)
    start = {"startingOffsets": '{"t": {"0": 4}}'}
    with pytest.raises(DataLossFault, match="offsets 4 to 9 of t-0 were deleted"):
        batch_rows(family, **start)
    assert batch_rows(family, failOnDataLoss="false", **start) == [
        ("t", 0, i) for i in range(10, 20)
    ]
    assert batch_rows(family) == [("t", 0, i) for i in range(10, 20)]


def test_a_range_beyond_the_end_is_named(family: FakeFamily) -> None:
    family.create("t")[0].fill(10)
    ends = {"endingOffsets": '{"t": {"0": 15}}'}
    with pytest.raises(DataLossFault, match="offsets 10 to 14 of t-0 are not there"):
        batch_rows(family, **ends)
    assert len(batch_rows(family, failOnDataLoss="false", **ends)) == 10


def test_a_segment_that_vanishes_while_planning_is_listed_again(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    partition.fill(10, roll=True)

    def delete(_name: str) -> None:
        if family.asked.count("ListSegments") == 2 and partition.log_start_offset == 0:
            partition.log_start_offset = 10
            partition.segments.pop(0)

    (partition.directory / partition.segments[0]["file_name"]).unlink()
    family.on_ask = delete
    assert batch_rows(family) == [("t", 0, i) for i in range(10, 20)]
    assert family.asked.count("ListSegments") == 2


def test_a_segment_that_stays_away_is_a_fault(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    (partition.directory / partition.segments[0]["file_name"]).unlink()
    with pytest.raises(GoneFault):
        batch_rows(family, **FILES)


def test_files_that_the_tasks_cannot_open_are_fetched(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    family.create("t")[0].fill(5, 3)
    reader = source(family).reader(COLUMNS)
    tasks = reader.partitions()
    assert tasks[0].pieces[0].path

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(segment_files.os, "open", refuse)
    assert rows(reader, tasks) == [("t", 0, i) for i in range(15)]
    assert "fetched from the broker instead of its files: user" in caplog.text
    strict = source(family, **FILES).reader(COLUMNS)
    with pytest.raises(ClusterFault, match="run Spark as the broker's user"):
        rows(strict, tasks)


def test_files_that_the_driver_cannot_see_are_fetched(family: FakeFamily, tmp_path: Path) -> None:
    """As under another mount: the control socket is there, the logs are not."""
    family.create("t")[0].fill(5, 3)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "control.sock").symlink_to(family.data / "control.sock")
    where = {"shmbroker.data": str(hidden)}
    assert len(batch_rows(family, **where)) == 15
    with pytest.raises(GoneFault):
        batch_rows(family, **where, **FILES)
    limited = {"maxBytesPerTrigger": "100", "startingOffsets": "earliest", **where}
    reader = source(family, **limited).streamReader(COLUMNS)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert 0 < end["t"]["0"] < 15
    # Spark asks for it before it plans the first micro-batch
    reader = source(family, startingOffsets="earliest", **where).streamReader(COLUMNS)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.reportLatestOffset()[WAY] == "fetch"


def test_another_file_than_the_planned_one_is_a_fault(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    reader = source(family).reader(COLUMNS)
    tasks = reader.partitions()
    path = partition.directory / partition.segments[0]["file_name"]
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    assert len(rows(reader, tasks)) == 10  # fetched
    reader = source(family, **FILES).reader(COLUMNS)
    with pytest.raises(DataLossFault, match=r"offsets 0 to 9 of t-0 are lost: .*another file"):
        rows(reader, tasks)


def test_a_topic_made_again_before_the_task_is_a_fault(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    reader = source(family).reader(COLUMNS)
    tasks = reader.partitions()
    family.create("t")[0].fill(10)
    with pytest.raises(DataLossFault, match="made again"):
        rows(reader, tasks)


@pytest.mark.parametrize("change", ["flip", "shorten", "other offset"])
def test_a_file_that_is_not_as_planned_is_a_fault(family: FakeFamily, change: str) -> None:
    partition = family.create("t")[0]
    partition.fill(10)
    reader = source(family).reader(COLUMNS)
    tasks = reader.partitions()
    path = partition.directory / partition.segments[0]["file_name"]
    with path.open("r+b") as file:
        if change == "flip":
            file.seek(100)
            file.write(b"\xff")
        elif change == "shorten":
            file.truncate(50)
        else:
            file.write((77).to_bytes(8, "big"))
    with pytest.raises(CorruptFault, match=path.name):
        rows(reader, tasks)


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


# --- stream --------------------------------------------------------------------------------------


def test_a_stream_reads_what_is_new(family: FakeFamily) -> None:
    made = family.create("t", 2)
    made[0].fill(5)
    reader = source(family, startingOffsets="earliest").streamReader(COLUMNS)
    start = reader.initialOffset()
    topic_id = start[TOPIC_IDS]["t"]
    own = {TOPIC_IDS: {"t": topic_id}, QUERY_ID: start[QUERY_ID]}
    assert start == {"t": {"0": 0, "1": 0}} | own
    first = reader.latestOffset(start, ReadAllAvailable())
    assert first == {"t": {"0": 5, "1": 0}} | own | {TASK_BEGINS: []}
    # Spark asks for this before it plans the first micro-batch
    assert reader.reportLatestOffset()[WAY] == "files"
    made[0].fill(5)
    made[1].fill(3)
    second = reader.latestOffset(over_json(first), ReadAllAvailable())
    assert stream_rows(reader, start, first) == [("t", 0, i) for i in range(5)]
    assert stream_rows(reader, first, second) == [
        *[("t", 0, i) for i in range(5, 10)],
        *[("t", 1, i) for i in range(3)],
    ]
    known = {"t": {"0": 10, "1": 3}, TOPIC_IDS: {"t": topic_id}}
    assert reader.reportLatestOffset() == known | {WAY: "files"}
    reader.stop()


def test_a_range_yields_the_same_after_a_restart(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5, 20)
    reader = source(family, startingOffsets="earliest").streamReader(COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(33))
    before = stream_rows(reader, start, end)
    reader.stop()
    made[0].fill(5, 20, roll=True)
    again = source(family, startingOffsets="earliest").streamReader(COLUMNS)
    assert stream_rows(again, start, end) == before == [("t", 0, i) for i in range(33)]


def test_the_checkpoint_of_sparks_kafka_source_is_gone_on_from(family: FakeFamily) -> None:
    family.create("t", 2)[0].fill(10)
    reader = source(family).streamReader(COLUMNS)
    start = {"t": {"0": 4, "1": 0}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, reader.partitions(start, end)) == [("t", 0, n) for n in range(4, 10)]


def test_the_same_offsets_have_the_same_text(family: FakeFamily) -> None:
    """Spark compares texts to see whether there is anything new."""
    for name in ("t", "a"):
        for partition in family.create(name, 12).values():
            partition.fill(1)
    reader = source(family, subscribe="t,a", startingOffsets="earliest").streamReader(COLUMNS)
    text = json.dumps(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert json.dumps(reader.latestOffset(json.loads(text), ReadAllAvailable())) == text
    assert list(json.loads(text)["t"]) == [str(i) for i in range(12)]


def test_a_stream_starts_at_the_end_by_default(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = source(family).streamReader(COLUMNS)
    assert reader.initialOffset()["t"] == {"0": 5}


def test_available_now_ends_where_it_began(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(10)
    reader = source(family, startingOffsets="earliest", maxOffsetsPerTrigger="4").streamReader(
        COLUMNS
    )
    reader.prepareForTriggerAvailableNow()
    made[0].fill(10)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    offsets = [reader.initialOffset()]
    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
    assert [o["t"]["0"] for o in offsets] == [0, 4, 8, 10, 10]


def test_new_partitions_are_read_from_their_first_record(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = source(family).streamReader(COLUMNS)
    start = reader.initialOffset()
    topic_id, made = family.topics["t"]
    more = family.create("more")
    more[0].fill(3)
    os.rename(more[0].directory, family.data / "node-1" / "t-1")
    more[0].directory = family.data / "node-1" / "t-1"
    more[0].topic_id = topic_id
    text = (made[0].directory / "partition.metadata").read_text()
    (more[0].directory / "partition.metadata").write_text(text)
    made[1] = more[0]
    end = reader.latestOffset(start, ReadAllAvailable())
    assert stream_rows(reader, start, end) == [("t", 1, i) for i in range(3)]


def test_a_topic_made_again_is_noticed(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    start = source(family).streamReader(COLUMNS).initialOffset()
    family.create("t")[0].fill(9, text="new")
    reader = source(family).streamReader(COLUMNS)
    with pytest.raises(DataLossFault, match="deleted and made again"):
        reader.latestOffset(start, ReadAllAvailable())
    lenient = source(family, failOnDataLoss="false").streamReader(COLUMNS)
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert stream_rows(lenient, start, end) == [("t", 0, i) for i in range(9)]
    old = {"t": {"0": 0}, TOPIC_IDS: start[TOPIC_IDS]}
    with pytest.raises(DataLossFault, match="deleted and made again"):
        reader.partitions(old, start)
    assert stream_rows(lenient, old, start) == []


def test_a_deleted_topic_is_noticed(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = source(family, startingOffsets="earliest").streamReader(COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    del family.topics["t"]
    with pytest.raises(DataLossFault, match="t-0"):
        reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossFault, match="topic t was deleted"):
        reader.partitions(start, end)


def test_an_end_that_went_back_is_noticed(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5, 2)
    reader = source(family).streamReader(COLUMNS)
    start = reader.initialOffset()
    made[0].high_watermark = 5
    with pytest.raises(DataLossFault, match="t-0 ends at 5, but it was read up to 10"):
        reader.latestOffset(start, ReadAllAvailable())
    lenient = source(family, failOnDataLoss="false").streamReader(COLUMNS)
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end["t"] == {"0": 5}
    assert lenient.partitions(start, end) == []


def test_offsets_document_is_in_order() -> None:
    offsets = {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}
    document = to_json(offsets, {"a": bytes(16), "b": bytes(16)})
    assert list(document) == ["a", "b", TOPIC_IDS]
    assert list(document["a"]) == ["9", "10"]


# --- schema --------------------------------------------------------------------------------------


def test_schema_has_the_columns_of_sparks_kafka_source(family: FakeFamily) -> None:
    plain = source(family).schema()
    assert [column.split()[:2] for column in plain.split(", ")] == [
        ["key", "binary"],
        ["value", "binary"],
        ["topic", "string"],
        ["partition", "int"],
        ["offset", "bigint"],
        ["timestamp", "timestamp"],
        ["timestampType", "int"],
    ]
    with_headers = source(family, includeHeaders="true").schema()
    assert with_headers == f"{plain}, headers array<struct<key string, value binary>>"


def test_only_keys_and_values_may_be_null(family: FakeFamily) -> None:
    columns = source(family).schema().split(", ")
    nullable = [column.split()[0] for column in columns if not column.endswith(" not null")]
    assert nullable == ["key", "value"]


def test_bad_options_are_told_with_the_schema(family: FakeFamily) -> None:
    with pytest.raises(ConfigFault, match="failOnDataLoss is true or false"):
        source(family, failOnDataLoss="maybe").schema()


def test_bad_options_of_a_stream_are_told_when_it_is_asked(family: FakeFamily) -> None:
    reader = source(family, endingOffsets="latest").streamReader(COLUMNS)
    for ask in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(ConfigFault, match="ending offset not valid in streaming queries"):
            ask()
    reader.stop()


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("value", StringType()), "value is of type binary"),
        (StructField("values", StringType()), "values is none of"),
        (StructField("key", BinaryType(), False), "key may have nulls"),
    ],
)
def test_a_schema_of_other_columns_is_refused(
    family: FakeFamily, field: StructField, words: str
) -> None:
    with pytest.raises(ConfigFault, match=words):
        source(family).reader(StructType([field]))
    with pytest.raises(ConfigFault, match="without columns"):
        source(family).reader(StructType([]))


# --- the broker ----------------------------------------------------------------------------------


def test_a_lost_connection_is_made_again(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = source(family).streamReader(COLUMNS)
    start = reader.initialOffset()
    family.drop_connections()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    family.drop_connections()
    assert reader.partitions(start, start) == []
    reader.stop()


def test_a_leader_that_moves_is_asked_again(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5)
    made[0].error = 6

    def heal(name: str) -> None:
        if family.asked.count("ListSegments") == 2:
            made[0].error = 0

    family.on_ask = heal
    assert len(batch_rows(family)) == 5


def test_an_error_that_stays_is_told(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5)
    made[0].error = 6
    with pytest.raises(ClusterFault, match="NOT_LEADER_OR_FOLLOWER"):
        batch_rows(family, **IMPATIENT)
    made[0].error = 29
    with pytest.raises(ClusterFault, match="TOPIC_AUTHORIZATION_FAILED"):
        batch_rows(family)


def test_nobody_there_is_told() -> None:
    with pytest.raises(ClusterFault, match=r"No broker at 127\.0\.0\.1:1 answered"):
        ShmbrokerDataSource(
            {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **IMPATIENT}
        ).reader(COLUMNS).partitions()


def test_a_broker_elsewhere_is_told(family: FakeFamily, tmp_path: Path) -> None:
    family.create("t")[0].fill(5)
    family.log_dir = str(tmp_path / "not-here" / "node-1")
    with pytest.raises(ClusterFault, match=r"not a running shmbroker on this host.*shmbroker.data"):
        batch_rows(family, **FILES)
    assert len(batch_rows(family)) == 5  # fetched
    assert len(batch_rows(family, **FILES, **{"shmbroker.data": str(family.data)})) == 5


def test_a_directory_with_another_name_than_the_broker_s_id_is_found(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5)
    moved = family.data / "node-7" / "t-0"
    moved.parent.mkdir()
    os.rename(partition.directory, moved)
    partition.directory = moved
    assert len(batch_rows(family, **FILES, **{"shmbroker.data": str(family.data)})) == 5


def test_a_control_socket_of_somebody_else_is_told(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.create("t")[0].fill(5)

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(broker_client.os, "open", refuse)
    with pytest.raises(ClusterFault, match="run Spark as the broker's user"):
        batch_rows(family, **FILES)
    assert len(batch_rows(family)) == 5  # fetched


@pytest.mark.parametrize("servers", ["h", "h:x", ":1", ","])
def test_a_bad_address_is_refused(servers: str) -> None:
    with pytest.raises(ConfigFault):
        ShmbrokerDataSource({"kafka.bootstrap.servers": servers, "subscribe": "t"}).reader(
            COLUMNS
        ).partitions()
