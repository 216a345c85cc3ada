"""`shmbroker.arrow.read` and `scan` beside what confluent-kafka reads of the same topic."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker.arrow import COLUMNS, read, scan, write
from shmbroker.client.faults import ClusterFault, DataLossFault
from shmbroker.errors import ConfigFault

PARTITIONS = 3
TIME_MS = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""partition, offset, timestamp in ms, key, value, headers"""


@pytest.fixture(scope="module")
def topic(address: str) -> str:
    """A topic that a client has filled: every compression, nulls, headers, some large values."""
    name = f"arrow-reader-{random.randrange(10**9)}"
    admin = AdminClient({"bootstrap.servers": address})
    config = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)])[name].result(30)
    rng = random.Random(5)
    number = 0
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 20}
        )
        for _ in range(300):
            key = rng.choice([None, b"", b"key-%d" % (number % 17)])
            value = rng.choice([None, b"", rng.randbytes(rng.randrange(300)), b"x" * 5000])
            headers = [(f"h{i}", rng.choice([None, b"", b"abc"])) for i in range(number % 3)]
            producer.produce(
                name,
                key=key,
                value=value,
                partition=number % PARTITIONS,
                timestamp=TIME_MS + number,
                headers=headers,
            )
            number += 1
        assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def rows(address: str, topic: str) -> list[Row]:
    """What confluent-kafka reads, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "x", "check.crcs": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[Row] = []
    while len(found) < 300 * len(CODECS):
        for message in consumer.consume(500, 5):
            assert message.error() is None, message.error()
            headers = message.headers() or []
            where = (message.partition(), message.offset(), message.timestamp()[1])
            found.append((*where, message.key(), message.value(), headers))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def rows_of(table: pa.Table) -> list[Row]:
    table.validate(full=True)
    ms = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
    columns = [table["partition"], table["offset"], ms, table["key"], table["value"]]
    headers = [[(h["key"], h["value"]) for h in row or []] for row in table["headers"].to_pylist()]
    return list(zip(*(column.to_pylist() for column in columns), headers, strict=True))


@pytest.mark.parametrize("way", ["files", "fetch"])
@pytest.mark.parametrize("views", [False, True])
def test_a_topic_is_read_as_a_client_reads_it(
    address: str, topic: str, rows: list[Row], way: str, views: bool
) -> None:
    table = read(topic, bootstrap_servers=address, columns=COLUMNS, way=way, views=views)
    assert rows_of(table) == rows
    assert set(table["topic"].to_pylist()) == {topic}
    assert table.schema.field("value").type == (pa.binary_view() if views else pa.binary())


def test_ranges_are_those_asked_for(address: str, topic: str, rows: list[Row]) -> None:
    def offsets(**asked: Any) -> list[tuple[int, int]]:
        columns = ["partition", "offset"]
        table = read(topic, bootstrap_servers=address, columns=columns, **asked)
        return list(zip(*(table[name].to_pylist() for name in columns), strict=True))

    all_offsets = [row[:2] for row in rows]
    assert offsets() == all_offsets
    assert offsets(partitions=[2, 0]) == [at for at in all_offsets if at[0] != 1]
    assert offsets(start=7, end=20) == [at for at in all_offsets if 7 <= at[1] < 20]
    assert offsets(start={1: 490}, end={0: 10, 2: "earliest"}) == [
        at for at in all_offsets if (at[0] == 0 and at[1] < 10) or (at[0] == 1 and at[1] >= 490)
    ]
    assert offsets(start="latest") == []
    from_ms, to_ms = TIME_MS + 450, TIME_MS + 901
    start = datetime.fromtimestamp(from_ms / 1000, UTC)
    end = {p: datetime.fromtimestamp(to_ms / 1000, UTC) for p in range(PARTITIONS)}
    assert offsets(start=start, end=end) == [row[:2] for row in rows if from_ms <= row[2] < to_ms]
    late = datetime.fromtimestamp((TIME_MS + 10**9) / 1000, UTC)
    assert offsets(start=late) == []
    assert offsets(end=late) == all_offsets


def test_scan_gives_batch_by_batch(address: str, topic: str, rows: list[Row]) -> None:
    with scan(topic, bootstrap_servers=address) as reader:
        assert reader.schema.names == [name for name in COLUMNS if name != "headers"]
        first = reader.read_next_batch()
        assert 0 < first.num_rows <= 32_768
        assert first.num_rows + sum(batch.num_rows for batch in reader) == len(rows)


def test_bad_arguments_are_told_in_a_sentence(address: str, topic: str) -> None:
    for bad, words in (
        ({"columns": ["valeu"]}, "value"),
        ({"columns": []}, "one at least"),
        ({"columns": ["key", "key"]}, "once"),
        ({"partitions": [7]}, "no partition 7"),
        ({"start": {9: 0}}, "no partition 9"),
        ({"start": "first"}, "earliest"),
        ({"start": -7}, "earliest"),
        ({"start": 10, "end": 5}, "greater"),
        ({"start": 1 << 63}, "at most"),
        ({"start": {"0": 0}}, "no partition '0'"),
        ({"partitions": ["0"]}, "numbers"),
        ({"columns": "value"}, "list of names"),
        ({"timeout_s": -1}, "above 0"),
        ({"way": "telepathy"}, "^way is one of auto, files"),
        ({"isolation_level": "none"}, "^isolation_level is .*read_committed"),
    ):
        with pytest.raises(ConfigFault, match=words):
            read(topic, bootstrap_servers=address, **bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigFault, match="no topic"):
        read("nobody-made-this", bootstrap_servers=address)
    with pytest.raises(ConfigFault, match="topic is text"):
        read(5, bootstrap_servers=address)  # type: ignore[arg-type]
    with pytest.raises(ConfigFault, match="bootstrap_servers is not given"):
        read(topic)
    with pytest.raises(ConfigFault, match=r"^bootstrap_servers names no broker"):
        read(topic, bootstrap_servers="")
    with pytest.raises(ConfigFault, match=r"^bootstrap_servers: 'nowhere' is not HOST:PORT"):
        read(topic, bootstrap_servers="nowhere")
    # a time within a millisecond: the record of this one is older
    within = datetime.fromtimestamp(TIME_MS / 1000, UTC) + timedelta(microseconds=1)
    found = read(topic, bootstrap_servers=address, partitions=[0], start=within, columns=["offset"])
    assert found["offset"][0].as_py() == 1
    with pytest.raises(DataLossFault, match=r"900 to 999 .*fails_on_data_loss=False"):
        read(topic, bootstrap_servers=address, partitions=[0], start=900, end=1000)
    with pytest.raises(ClusterFault, match="No broker at"):
        read(topic, bootstrap_servers="127.0.0.1:1", timeout_s=0.1)


def test_other_libraries_take_it(address: str, topic: str, rows: list[Row]) -> None:
    sizes = sum(len(row[4] or b"") for row in rows)
    for views in (False, True):
        frame = polars.from_arrow(read(topic, bootstrap_servers=address, views=views))
        assert frame["offset"].len() == len(rows)
        assert frame["value"].bin.size().sum() == sizes
        found = scan(topic, bootstrap_servers=address, views=views)
        query = "select count(*), sum(octet_length(value)) from found"
        with duckdb.connect() as connection:
            assert connection.execute(query).fetchone() == (len(rows), sizes)
        assert found.schema.names
    frame = read(topic, bootstrap_servers=address).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["value"].str.len().sum() == sizes


def test_frames_of_other_libraries_are_written(address: str) -> None:
    columns = {"key": ["a", "b"], "value": ['{"n": 1}', '{"n": 2}']}
    query = "select 'a' as key, 'first' as value union all select 'b', 'second'"
    given = {
        "polars": polars.DataFrame(columns),
        "pandas": pandas.DataFrame(columns),
        "duckdb": duckdb.sql(query),  # a relation
    }
    for library, frame in given.items():
        name = f"arrow-of-{library}-{random.randrange(10**9)}"
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        assert write(frame, name, bootstrap_servers=address).records == 2
        found = read(name, bootstrap_servers=address, columns=["key", "value"]).to_pylist()
        assert sorted(row["key"] for row in found) == [b"a", b"b"], library
        assert len({row["value"] for row in found}) == 2
