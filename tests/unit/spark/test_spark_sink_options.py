"""Options and columns of a write, and a task's identity; no Spark session."""

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from shmbroker.client.faults import ClusterFault
from shmbroker.client.security import OPEN
from shmbroker.errors import ConfigFault
from shmbroker.spark import sink
from shmbroker.spark.producer_options import parse
from shmbroker.spark.sink import VERSIONS, _columns, identity_of

SERVERS = {"kafka.bootstrap.servers": "h:9092"}


def test_options_become_the_producers_arguments() -> None:
    sink = parse(
        {
            **SERVERS,
            "Topic": " t ",
            "checkpointLocation": "/x",
            "kafka.compression.type": "ZSTD",
            "kafka.batch.size": "1000",
            "kafka.linger.ms": "0",
            "kafka.delivery.timeout.ms": "7000",
            "kafka.retries": "3",
        },
        is_stream=True,
    )
    assert sink.topic == "t"
    assert sink.is_exactly_once
    assert sink.producer == {
        "acks": "all",
        "compression": "zstd",
        "idempotence": True,
        "client_id": "shmbroker-spark",
        "batch_size": 1000,
        "linger_ms": 0,
        "delivery_timeout_ms": 7000,
        "security": OPEN,
    }


def test_transactions_are_asked_for_by_exactly_once() -> None:
    found = parse({**SERVERS, "exactlyOnce": " Transactions "}, is_stream=True)
    assert (found.is_exactly_once, found.is_transactional) == (True, True)
    assert (found.transaction_ms, found.driver_host) == (900_000, None)
    more = {"kafka.transaction.timeout.ms": "5000", "driverHost": " h "}
    found = parse({**SERVERS, "exactlyOnce": "transactions", **more}, is_stream=True)
    assert (found.transaction_ms, found.driver_host) == (5000, "h")
    assert not parse(SERVERS, is_stream=True).is_transactional


def test_other_acks_are_not_exactly_once() -> None:
    sink = parse({**SERVERS, "kafka.acks": "1"}, is_stream=False)
    assert not sink.is_exactly_once
    assert not sink.producer["idempotence"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "'kafka.bootstrap.servers' must be specified"),
        (SERVERS | {"tpoic": "x"}, "option tpoic is not known here: did you mean topic?"),
        (SERVERS | {"zzz": "x"}, r"known are kafka\.\*, topic, exactlyOnce"),
        (SERVERS | {"kafka.lingerms": "1"}, r"did you mean kafka\.linger\.ms\?"),
        (SERVERS | {"kafka.value.serializer": "x"}, "'value.serializer' is not supported"),
        (
            SERVERS | {"kafka.transactional.id": "x"},
            "give exactlyOnce=transactions, which names it",
        ),
        (SERVERS | {"exactlyOnce": "yes"}, "exactlyOnce is true, false or transactions, not 'yes'"),
        (SERVERS | {"exactlyOnce": "transactions", "kafka.acks": "1"}, "needs acks=all"),
        (SERVERS | {"kafka.transaction.timeout.ms": "9"}, "needs exactlyOnce=transactions"),
        (SERVERS | {"driverHost": "h"}, "option driverHost needs exactlyOnce=transactions"),
        (
            SERVERS | {"exactlyOnce": "transactions", "kafka.transaction.timeout.ms": "0"},
            "kafka.transaction.timeout.ms must be positive",
        ),
        (SERVERS | {"kafka.ssl.key": "x"}, "did you mean kafka.ssl.key.password"),
        (SERVERS | {"kafka.security.protocol": "TLS"}, "is one of PLAINTEXT, SSL"),
        ({"profile": "no-such", "topic": "t"}, "there is no profile no-such"),
        (SERVERS | {"kafka.acks": "1", "exactlyOnce": "true"}, "exactlyOnce needs acks=all"),
        (SERVERS | {"txnAppId": "a"}, "go together"),
        (SERVERS | {"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be a whole number"),
        (SERVERS | {"kafka.batch.size": "0"}, "must be positive"),
        (SERVERS | {"kafka.compression.type": "br"}, "is one of none, gzip"),
        (SERVERS | {"kafka.acks": "2"}, "kafka.acks is one of all, -1, 1, 0, not '2'"),
        (SERVERS | {"topic": " "}, "option topic is empty: name one"),
    ],
)
def test_a_bad_option_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigFault, match=text):
        parse(options, is_stream=False)


def test_a_stream_has_its_own_series() -> None:
    with pytest.raises(ConfigFault, match="for batch writes"):
        parse(SERVERS | {"txnAppId": "a", "txnVersion": "1"}, is_stream=True)


HEADERS = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", BinaryType())])
)


def columns(words: str, topic: str | None) -> Any:
    """Of a schema written as "name type, name type"."""
    schema = StructType()
    for field in words.split(", "):
        name, kind = field.split()
        found: str | DataType = HEADERS if kind == "pairs" else kind
        schema.add(name, found)
    return _columns(schema, topic)


def test_columns_are_found_by_name_and_the_topic_option_wins() -> None:
    words = "a integer, value binary, topic integer, headers pairs"
    assert columns(words, "t") == {"value": 1, "headers": 3}
    assert columns("topic string, value string, partition integer", None) == {
        "topic": 0,
        "value": 1,
        "partition": 2,
    }


@pytest.mark.parametrize(
    ("words", "topic", "text"),
    [
        ("value string", None, "topic option required when no 'topic' attribute is present. Use"),
        (
            "value string, topic integer",
            None,
            "topic attribute unsupported type int. topic must be",
        ),
        ("key string", "t", "Required attribute 'value' not found"),
        ("value integer", "t", r"unsupported type int. value must be a\(n\) string or binary"),
        ("value string, key double", "t", r"double. key must be a\(n\) string or binary"),
        ("value string, partition long", "t", r"bigint. partition must be a\(n\) int"),
        (
            "value string, headers string",
            "t",
            r"headers must be a\(n\) array<struct<key:string,value:binary>>",
        ),
        ("value string, timestamp string", "t", r"timestamp must be a\(n\) double or timestamp"),
    ],
)
def test_columns_that_spark_would_refuse_are_refused(
    words: str, topic: str | None, text: str
) -> None:
    with pytest.raises(ConfigFault, match=text):
        columns(words, topic)


def test_identities_differ_by_series_and_task_and_epochs_follow_versions() -> None:
    first = identity_of("query:a", 0, 0)
    assert first.producer_id >= 1 << 62
    assert first.epoch == 0
    assert identity_of("query:a", VERSIONS - 1, 0) == first._replace(epoch=VERSIONS - 1)
    later = identity_of("query:a", VERSIONS, 0)
    assert later.epoch == 0
    ids = {identity_of(f"query:{q}", 0, t).producer_id for q in "ab" for t in range(100)}
    assert len(ids | {later.producer_id}) == 201
    assert max(ids) < 1 << 63


def test_a_task_waits_for_its_topic_as_long_as_max_block_ms_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Task:
        def partitionId(self) -> int:
            return 0

    monkeypatch.setattr(sink.TaskContext, "get", Task)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.max.block.ms": "300"}
    writing = sink.Writing(parse(given, is_stream=True), {"value": 0}, "query:a", 0)
    rows = pa.record_batch({"value": ["x"]})
    with pytest.raises(ClusterFault, match=r"No broker at 127\.0\.0\.1:1 answered within 0\.3 s"):
        sink.write_rows(iter([rows]), writing)
