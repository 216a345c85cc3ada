"""Batches as Spark reads them, without Spark: which records, and what is said of lost ones."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from fake_family import FakeFamily
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shmbroker.client.faults import ClusterFault, DataLossFault
from shmbroker.client.reader import segment_files
from shmbroker.client.reader.segment_files import GoneFault
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.spark.stream_reader import WAY
from tests.unit.spark.spark_readers import COLUMNS, FILES, batch_rows, family, rows, source

__all__ = ["family"]


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
