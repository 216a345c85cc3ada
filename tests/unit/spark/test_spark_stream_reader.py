"""A stream's reader beyond its offsets: when it waits, what it commits, what it reports; and the
plan as rows."""

import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from fake_family import FakeFamily
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from shmbroker.client.faults import DataLossFault
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.spark import read_ranges, stream_reader, task_side, worker
from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.spark.ingest.checkpoint import position
from shmbroker.spark.lag import LagListener, add_lag
from shmbroker.spark.offsets import from_json
from shmbroker.spark.options import QUERY_ID, TASK_BEGINS, TOPIC_IDS

COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


@pytest.fixture
def family(tmp_path: Path) -> Iterator[FakeFamily]:
    with FakeFamily(tmp_path) as made:
        yield made


def source(family: FakeFamily, **options: str) -> ShmbrokerDataSource:
    given = {"kafka.bootstrap.servers": family.address, "subscribe": "t"}
    return ShmbrokerDataSource({**given, "fetchOffset.retryIntervalMs": "1", **options})


def stream(family: FakeFamily, **options: str) -> Any:
    return source(family, startingOffsets="earliest", **options).streamReader(COLUMNS)


def end_of(reader: Any, start: dict, limit: Any = None) -> int:
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return sum(end["t"].values())


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (None, "they must be an object with names, not None"),
        ([1], r"they must be an object with names, not \[1\]"),
        ({"t": 5}, "topic t must be an object with names, not 5"),
        ({"t": {"x": 5}}, "topic t has 'x': 5"),
        ({"t": {"-1": 5}}, "topic t has '-1': 5"),
        ({"t": {"0": "5"}}, "topic t has '0': '5'"),
        ({"t": {"0": None}}, "topic t has '0': None"),
        ({"t": {"0": True}}, "topic t has '0': True"),
        ({"t": {"0": -2}}, "topic t has '0': -2"),
        ({"t": {"0": 1 << 63}}, "topic t has '0': 9223372036854775808"),
        ({"t": {"0": 1}, TOPIC_IDS: "x"}, f"{TOPIC_IDS} must be an object with names, not 'x'"),
        ({"t": {"0": 1}, TOPIC_IDS: {"t": "short"}}, f"{TOPIC_IDS} has 't': 'short'"),
        ({"t": {"0": 1}, TOPIC_IDS: {"t": 7}}, f"{TOPIC_IDS} has 't': 7"),
    ],
)
def test_offsets_that_somebody_has_changed_are_told(
    family: FakeFamily, written: Any, told: str
) -> None:
    family.create("t")[0].fill(5)
    reader = stream(family)
    told = f"the query's offsets can't be used: {told}. If somebody has changed"
    for ask in (
        lambda: reader.latestOffset(written, ReadAllAvailable()),
        lambda: reader.partitions(written, {"t": {"0": 5}}),
        lambda: reader.partitions({"t": {"0": 0}}, written),
        lambda: reader.commit(written),
    ):
        with pytest.raises(ConfigFault, match=told):
            ask()
    with pytest.raises(ConfigFault):
        from_json(written)
    assert position(f"v1\n{json.dumps(written)}") is None


@pytest.mark.parametrize(
    "begins", [5, [5], [["t", 0]], [["t", "0", 3]], [[0, 0, 3]], [["t", 0, 4], ["t", 0, 2]]]
)
def test_tasks_that_somebody_has_changed_are_told(family: FakeFamily, begins: Any) -> None:
    """In another order, a task would read what an earlier one has read."""
    family.create("t")[0].fill(5)
    end = {"t": {"0": 5}, TASK_BEGINS: begins}
    with pytest.raises(ConfigFault, match=f"can't be used: {TASK_BEGINS} is "):
        stream(family).partitions({"t": {"0": 0}}, end)


# --- limits --------------------------------------------------------------------------------------


def test_a_stream_waits_for_enough_records_or_for_its_time(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(stream_reader.clock, "monotonic", lambda: now[0])
    partition = family.create("t")[0]
    partition.fill(5)
    reader = stream(family, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert reader.getDefaultReadLimit() == ReadMinRows(10)
    start = reader.initialOffset()
    assert end_of(reader, start) == 5  # the first one does not wait
    first = reader.latestOffset(start, ReadAllAvailable())
    partition.fill(9)
    assert end_of(reader, first) == 5
    now[0] += 29
    assert end_of(reader, first) == 5
    now[0] += 2
    assert end_of(reader, first) == 14
    second = reader.latestOffset(first, ReadAllAvailable())
    partition.fill(10)
    assert end_of(reader, second) == 24
    assert end_of(reader, second, ReadAllAvailable()) == 24


def test_a_least_number_of_records_holds_up_no_available_now_query(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = stream(family, minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    reader._last_trigger_s = stream_reader.clock.monotonic()
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    assert end_of(reader, reader.initialOffset()) == 5


def test_bytes_of_a_trigger_are_limited_exactly_by_the_index(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5, 20)
    sizes = partition.segments[0]["valid_bytes"]
    partition.fill(5, 20, roll=True)
    reader = stream(family, maxBytesPerTrigger=str(sizes + 1))
    assert reader.getDefaultReadLimit() == ReadMaxBytes(sizes + 1)
    assert end_of(reader, reader.initialOffset()) == 100
    exactly = partition.segments[0]["valid_bytes"] // 20 * 3
    few = stream(family, maxBytesPerTrigger=str(exactly + 100))
    assert end_of(few, few.initialOffset()) == 15
    one = stream(family, maxBytesPerTrigger="1")
    assert end_of(one, one.initialOffset()) == 5
    both = stream(family, maxBytesPerTrigger=str(exactly + 100), maxOffsetsPerTrigger="7")
    assert end_of(both, both.initialOffset()) == 7
    # without files the log's average is all that is known
    fetched = {"shmbroker.read": "fetch"}
    guessed = stream(family, maxBytesPerTrigger=str(exactly), **fetched)
    assert 5 < end_of(guessed, guessed.initialOffset()) < 30


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_enough_records_are_waited_for_and_then_limited_by_bytes(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    now = [1000.0]
    monkeypatch.setattr(stream_reader.clock, "monotonic", lambda: now[0])
    made = family.create("t", 2)
    made[0].fill(5)
    size = made[0].segments[0]["valid_bytes"]  # of a batch of five; later ones are a bit longer
    limits = {"maxBytesPerTrigger": str(3 * size + size // 2), "minOffsetsPerTrigger": "20"}
    reader = stream(family, maxTriggerDelay="30s", **limits, **{"shmbroker.read": way})
    assert reader.getDefaultReadLimit() == ReadMaxBytes(3 * size + size // 2)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert sum(first["t"].values()) == 5  # the first one does not wait
    made[0].fill(5, 2)
    made[1].fill(5, 1)
    assert end_of(reader, first) == 5  # 15 of 20 wait, though they have more bytes than allowed
    made[1].fill(5, 5)
    ends, at = [], first
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        ends.append(sum(end["t"].values()))
        at = end
    # 40 wait: as many whole batches as fit, until fewer than 20 are left
    steps = [after - before for before, after in zip([5, *ends], ends, strict=False)]
    assert len(steps) >= 2
    if way == "files":
        assert set(steps) <= {10, 15}
    assert max(steps) <= 20
    assert 25 < ends[-1] < 45
    now[0] += 31
    assert end_of(reader, at) > ends[-1]  # what is left has waited long enough
    rest = stream(family, **limits, **{"shmbroker.read": way})
    rest.prepareForTriggerAvailableNow()
    at, turns = first, 0
    while sum(at["t"].values()) < 45:  # an available-now query does not wait
        at = rest.latestOffset(at, rest.getDefaultReadLimit())
        turns += 1
        assert turns < 20
    assert turns >= 3


@pytest.mark.parametrize("way", ["files", "fetch"])
@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_limits_count_from_what_retention_has_left(
    family: FakeFamily, limit: str, way: str
) -> None:
    partition = family.create("t")[0]
    partition.fill(10, 10)
    partition.fill(10, 3, roll=True)
    asked = {limit: "7", "shmbroker.read": way}
    start = stream(family, **asked).initialOffset()
    partition.segments.pop(0)
    partition.log_start_offset = 100
    reader = stream(family, **asked)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert 100 < end["t"]["0"] <= 110
    with pytest.raises(DataLossFault, match="offsets 0 to 99 of t-0 were deleted by retention"):
        reader.partitions(start, end)
    lenient = stream(family, failOnDataLoss="false", **asked)
    found = [
        row["offset"]
        for task in lenient.partitions(start, end)
        for batch in lenient.read(task)
        for row in batch.to_pylist()
    ]
    assert found == list(range(100, end["t"]["0"]))


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_no_task_has_more_records_than_asked(family: FakeFamily, way: str) -> None:
    made = family.create("t", 2)
    made[0].fill(10, 10)
    made[0].fill(10, 3, roll=True)
    made[1].fill(5)
    reader = source(family, maxRecordsPerPartition="20", **{"shmbroker.read": way}).reader(COLUMNS)
    counts = [sum(batch.num_rows for batch in reader.read(task)) for task in reader.partitions()]
    assert sum(counts) == 135
    assert max(counts) <= 20
    assert len(counts) == 8  # 130 in seven parts, and five


def test_few_records_make_as_many_tasks_as_asked(family: FakeFamily) -> None:
    family.create("t")[0].fill(100)  # one batch
    reader = source(family, minPartitions="6").reader(COLUMNS)
    tasks = reader.partitions()
    assert len(tasks) == 6
    found = [row["offset"] for task in tasks for b in reader.read(task) for row in b.to_pylist()]
    assert found == list(range(100))


# --- committed offsets ---------------------------------------------------------------------------


def test_a_micro_batch_has_the_same_tasks_when_it_is_repeated(family: FakeFamily) -> None:
    made = family.create("t", 3)
    for partition, text in ((0, "v"), (1, "a larger value "), (2, "v")):
        made[partition].fill(7, 30, text=text)
        made[partition].fill(7, 10, text=text, roll=True)

    def begun(**options: str) -> Any:
        return stream(family, minPartitions="5", **options)

    first = begun()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    asked = family.asked.count("ListSegments")
    tasks = [offsets_of(task) for task in first.partitions(start, end)]
    assert len(tasks) > 5
    assert family.asked.count("ListSegments") == asked  # planned with the end
    kept = json.loads(json.dumps(end))  # as the checkpoint has it
    made[0].fill(50, 9, text="a much larger value that comes later ")
    made[2].fill(50, 9, roll=True)
    made[1].segments.pop(0)  # of which only the end is to be had as a file
    for again in (begun(), begun(**{"shmbroker.read": "fetch"})):
        assert [offsets_of(task) for task in again.partitions(start, kept)] == tasks
    more = first.latestOffset(end, ReadAllAvailable())
    assert sum(more["t"].values()) > sum(end["t"].values())
    assert first.partitions(end, more)


def offsets_of(task: Any) -> list[tuple[int, int, int]]:
    """Where each partition's part of a task begins and ends."""
    spans: list[tuple[int, int, int]] = []
    for piece in task.pieces:
        if spans and spans[-1][0] == piece.partition and spans[-1][2] == piece.start_offset:
            spans[-1] = (*spans[-1][:2], piece.end_offset)
        else:
            spans.append((piece.partition, piece.start_offset, piece.end_offset))
    return spans


def test_what_is_written_is_committed_for_the_querys_own_group(family: FakeFamily) -> None:
    made = family.create("t", 2)
    made[0].fill(5)
    reader = stream(family)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    group = f"spark-shmbroker-source-{start[QUERY_ID]}"
    assert family.commits == [(group, "t", 0, 0), (group, "t", 1, 0)]
    made[1].fill(3)
    family.commits.clear()
    reader.latestOffset(first, ReadAllAvailable())
    assert family.commits == [(group, "t", 0, 5)]  # only what has changed
    reader.commit(first)
    assert len(family.commits) == 1
    again = stream(family)  # restarted: same checkpoint, same group
    family.commits.clear()
    second = again.latestOffset(first, ReadAllAvailable())
    assert second[QUERY_ID] == start[QUERY_ID]
    assert family.commits == [(group, "t", 0, 5), (group, "t", 1, 0)]
    assert stream(family).initialOffset()[QUERY_ID] != start[QUERY_ID]


def test_the_group_is_named_as_asked(family: FakeFamily) -> None:
    family.create("t")
    reader = stream(family, groupIdPrefix="mine")
    start = reader.initialOffset()
    reader.commit(start)
    assert family.commits == [(f"mine-{start[QUERY_ID]}", "t", 0, 0)]
    family.commits.clear()
    stream(family, **{"kafka.group.id": "exactly"}).commit(start)
    assert family.commits == [("exactly", "t", 0, 0)]
    family.commits.clear()
    stream(family, commitOffsets="false").commit(start)
    assert family.commits == []


def test_offsets_that_cannot_be_committed_are_a_warning(
    family: FakeFamily, caplog: pytest.LogCaptureFixture
) -> None:
    family.create("t")[0].fill(5)
    reader = stream(family)
    start = reader.initialOffset()
    family.commit_error = 25
    for _ in range(2):
        reader.latestOffset(start, ReadAllAvailable())
    assert caplog.text.count("UNKNOWN_MEMBER_ID") == 1
    family.commit_error = 0
    reader.latestOffset(start, ReadAllAvailable())
    assert len(family.commits) == 1


def test_a_commit_while_nobody_answers_is_a_warning(
    family: FakeFamily, caplog: pytest.LogCaptureFixture
) -> None:
    """The micro-batch is written by then: what the query needs of the broker it asks for next."""
    family.create("t")[0].fill(5)
    reader = stream(family)
    start = reader.initialOffset()
    reader.stop()
    family.__exit__()
    stream(family, **{"kafka.default.api.timeout.ms": "100"}).commit(start)
    assert "offsets can't be committed: No broker at" in caplog.text


def test_ignored_options_are_told(family: FakeFamily, caplog: pytest.LogCaptureFixture) -> None:
    source(family, maxOffsetsPerTrigger="5").reader(COLUMNS)
    assert "maxOffsetsPerTrigger option ignored in this batch query" in caplog.text


def test_lag_is_added_to_progress() -> None:
    ids = ':topic_ids": {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}'
    source_progress = {
        "endOffset": f'{{"t": {{"0": 5}}, "{ids}}}',
        "latestOffset": f'{{"t": {{"0": 9}}, "{ids}, ":read": "fetch"}}',
        "metrics": {},
    }
    other = {"endOffset": '{"t": {"0": 5}}', "latestOffset": "null"}
    progress = {"name": "q", "id": 1, "sources": [source_progress, other]}
    found = add_lag(progress)["sources"]
    assert found[0]["metrics"]["maxOffsetsBehindLatest"] == "4"
    assert "metrics" not in found[1]

    class Event:
        id = 1

    Event.progress = progress
    progress["sources"].pop()
    told = []
    listener = LagListener(lambda *lag: told.append(lag))
    listener.onQueryProgress(Event)
    assert told == [("q", found[0]["metrics"])]
    assert listener.latest == {"q": found[0]["metrics"]}
    listener.onQueryTerminated(Event)
    assert listener.latest == {}


# --- the plan as rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_ranges_are_rows_that_can_be_read(family: FakeFamily, way: str) -> None:
    made = family.create("t", 2)
    made[0].fill(10, 3)
    made[1].fill(10)
    asked = source(family, emit="ranges", minPartitions="2", **{"shmbroker.read": way})
    names = [column.split()[0] for column in asked.schema().split(", ")]
    schema = StructType([StructField(name, StringType()) for name in names])
    reader = asked.reader(schema)
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pa.Table.from_batches(rows)
    assert table.column_names == names
    assert set(table.column("way").to_pylist()) == {way}
    assert min(table.column("bytes").to_pylist()) > 0
    records = pa.Table.from_batches(read_ranges(rows, ("topic", "partition", "offset")))
    found = [tuple(row.values()) for row in records.to_pylist()]
    assert found == [("t", 0, i) for i in range(30)] + [("t", 1, i) for i in range(10)]
    with pytest.raises(ConfigFault, match="column plan"):
        list(read_ranges([rows[0].select(["topic"])]))
    with pytest.raises(CorruptFault):
        list(read_ranges([pa.RecordBatch.from_pydict({"plan": ["{}"]})]))


def test_a_task_tells_a_fault_of_ours_without_a_traceback(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DataLossFault("gone")

    family.create("t")[0].fill(5)
    reader = source(family).reader(COLUMNS)
    tasks = reader.partitions()
    monkeypatch.delenv(worker._HIDE, raising=False)
    monkeypatch.setitem(sys.modules, worker._WORKER, types.ModuleType("worker_util"))
    monkeypatch.setattr(task_side, "read", fail)
    with pytest.raises(DataLossFault):
        list(reader.read(tasks[0]))
    assert os.environ.pop(worker._HIDE) == "1"
