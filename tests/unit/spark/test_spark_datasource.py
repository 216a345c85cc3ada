"""Streams and schemas as Spark asks for them, without Spark."""

import json
import os

import pytest

pytest.importorskip("pyspark")
from fake_family import FakeFamily
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from shmbroker.client.faults import DataLossFault
from shmbroker.errors import ConfigFault
from shmbroker.spark.offsets import to_json
from shmbroker.spark.options import QUERY_ID, TASK_BEGINS, TOPIC_IDS
from shmbroker.spark.stream_reader import WAY
from tests.unit.spark.spark_readers import COLUMNS, family, over_json, rows, source, stream_rows

__all__ = ["family"]


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
