"""`shmbroker.arrow.Producer` in transactions, with a partitioner, and record by record.

Readers and the other producers are confluent-kafka's.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as Confluent

from shmbroker.arrow import DeliveryFault, FencedFault, Producer, TransactionFault, read
from shmbroker.client.producer.transactions import GroupMember, member_of
from shmbroker.errors import ConfigFault
from tests.clients.test_arrow_producer import made
from tests.clients.test_transactions import committed, read_committed

PATIENCE_S = 30.0


@pytest.fixture
def topic(servers: str, request: Any) -> str:
    return made(servers, f"{request.node.originalname}-{random.randrange(10**9)}", 2)


def rows(*values: str) -> pa.RecordBatch:
    """One after another in both partitions."""
    places = pa.array([index % 2 for index in range(len(values))])
    return pa.RecordBatch.from_pydict({"value": pa.array(values), "partition": places})


def everything(servers: str, topic: str) -> list[bytes]:
    table = read(topic, bootstrap_servers=servers, columns=["value"], way="fetch")
    return sorted(table["value"].to_pylist())


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(servers: str, topic: str) -> None:
    with Producer(servers, topic=topic, transactional_id=topic, linger_ms=0) as producer:
        with producer.transaction():
            producer.send(rows("a", "b", "c"))
            producer.flush()
            assert read_committed(servers, topic) == []
            assert everything(servers, topic) == [b"a", b"b", b"c"]
        assert read_committed(servers, topic) == [b"a", b"b", b"c"]
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(rows("x", "y"))
            producer.flush()
            raise ZeroDivisionError
        # Not delivered at all: dropped before it leaves.
        producer.begin_transaction()
        producer.send(rows("z"))
        producer.abort_transaction()
        for _ in range(3):  # the sequences go on in the epoch after an abort
            with producer.transaction():
                producer.send(rows("d", "e"))
        with producer.transaction():
            pass
        assert producer.written().records == 9
    assert read_committed(servers, topic) == sorted([b"a", b"b", b"c"] + 3 * [b"d", b"e"])
    assert {b"x", b"y"} < set(everything(servers, topic))


def test_a_producer_that_ends_leaves_nothing_open(servers: str, topic: str) -> None:
    producer = Producer(servers, topic=topic, transactional_id=topic)
    producer.begin_transaction()
    producer.send(rows("lost"))
    producer.flush()
    producer.close()
    with Producer(servers, topic=topic) as other:
        other.send(rows("behind"))
    assert read_committed(servers, topic) == [b"behind"]


def test_the_next_of_a_name_fences_the_one_before(servers: str, topic: str) -> None:
    with Producer(servers, topic=topic, transactional_id=topic) as old:
        old.begin_transaction()
        old.send(rows("lost", "too"))
        old.flush()
        new = Confluent({"bootstrap.servers": servers, "transactional.id": topic})
        new.init_transactions(PATIENCE_S)
        with pytest.raises(FencedFault, match="another producer has taken it"):
            old.commit_transaction()
        for call in (old.begin_transaction, old.abort_transaction, lambda: old.send(rows("x"))):
            with pytest.raises(FencedFault):
                call()
        new.begin_transaction()
        new.produce(topic, "kept", partition=0)
        new.commit_transaction(PATIENCE_S)
        assert read_committed(servers, topic) == [b"kept"]

        with Producer(servers, topic=topic, transactional_id=topic) as newest:
            newest.init_transactions()
            new.begin_transaction()
            new.produce(topic, "lost", partition=0)
            with pytest.raises(KafkaException):
                new.commit_transaction(PATIENCE_S)
            new.purge()
            with newest.transaction():
                newest.send(rows("newest"))
    assert read_committed(servers, topic) == [b"kept", b"newest"]


def test_a_fenced_producer_is_told_when_it_sends_to_a_known_partition(
    servers: str, topic: str
) -> None:
    with Producer(servers, topic=topic, transactional_id=topic) as old:
        old.begin_transaction()
        old.send(rows("a", "b"))
        old.flush()
        new = Producer(servers, topic=topic, transactional_id=topic)
        new.init_transactions()
        with pytest.raises(FencedFault):  # by `send`, if the answer is there before it ends
            old.send(rows("c", "d"))
            old.flush()
        new.close()
    assert read_committed(servers, topic) == []


def test_offsets_are_committed_with_the_records(servers: str, topic: str) -> None:
    group = f"group-of-{topic}"
    with Producer(servers, topic=topic, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(rows("a"))
            producer.send_offsets({(topic, 0): 17}, group)
            producer.send_offsets({(topic, 0): 18, (topic, 1): 3}, group)
        assert committed(servers, group, topic) == 18
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send_offsets({(topic, 0): 99}, group)
            raise ZeroDivisionError
        assert committed(servers, group, topic) == 18


def test_offsets_of_a_member_that_is_gone_are_refused(servers: str, topic: str) -> None:
    group = f"group-of-{topic}"
    # What it has fetched meanwhile is not to be committed when it is closed.
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    metadata: Any = consumer.consumer_group_metadata()
    with Producer(servers, topic=topic, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(rows("a"))
            producer.send_offsets({(topic, 0): 1}, metadata)
        assert committed(servers, group, topic) == 1
        consumer.close()
        producer.begin_transaction()
        producer.send(rows("b"))
        with pytest.raises(TransactionFault, match="abort the transaction"):
            producer.send_offsets({(topic, 0): 2}, metadata)
        for call in (producer.commit_transaction, lambda: producer.send(rows("c"))):
            with pytest.raises(TransactionFault, match="abort it"):
                call()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(rows("d"))
    assert committed(servers, group, topic) == 1
    assert read_committed(servers, topic) == [b"a", b"d"]


def test_records_that_are_refused_are_told_and_the_next_transaction_goes_on(
    servers: str,
) -> None:
    small = made(servers, f"small-{random.randrange(10**9)}", 2, max_message_bytes="1000")
    with Producer(servers, topic=small, transactional_id=small) as producer:
        with pytest.raises(DeliveryFault, match=r"abort the transaction$"), producer.transaction():
            producer.send(rows("a"))
            producer.send(value="x" * 5000)
        with producer.transaction():
            producer.send(rows("b"))
    assert read_committed(servers, small) == [b"b"]


def test_a_call_at_the_wrong_time_is_refused(servers: str, topic: str) -> None:
    with Producer(servers, topic=topic) as plain, pytest.raises(ConfigFault, match="give it one"):
        plain.begin_transaction()
    with pytest.raises(ConfigFault, match="goes with idempotence"):
        Producer(servers, transactional_id="x", idempotence=False)
    with Producer(servers, topic=topic, transactional_id=topic) as producer:
        for call in (
            lambda: producer.send(rows("a")),
            producer.commit_transaction,
            lambda: producer.send_offsets({(topic, 0): 1}, "group"),
        ):
            with pytest.raises(ConfigFault, match="begin one first"):
                call()
        with pytest.raises(ConfigFault, match="no transaction to abort"):
            producer.abort_transaction()
        producer.begin_transaction()
        with pytest.raises(ConfigFault, match="under way"):
            producer.begin_transaction()
        with pytest.raises(ConfigFault, match="under way"):
            producer.init_transactions()
        with pytest.raises(ConfigFault, match="names no group"):
            producer.send_offsets({(topic, 0): 1}, b"nonsense")


def test_group_metadata_of_libraries_are_understood() -> None:
    assert member_of("g") == GroupMember("g")
    consumer = Consumer({"group.id": "g", "group.instance.id": "i"})
    metadata: Any = consumer.consumer_group_metadata()
    assert member_of(metadata) == GroupMember("g", -1, "", "i")
    plain: Any = Consumer({"group.id": "h"}).consumer_group_metadata()
    assert member_of(plain) == GroupMember("h")
    assert member_of(GroupMember("g", 3, "m")) == GroupMember("g", 3, "m")


# --- partitioner, and plain values ---------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen",
    [
        lambda numbers: numbers % 2,
        lambda numbers: pa.array(numbers % 2),
        lambda numbers: [int(number) % 2 for number in numbers],
    ],
    ids=["numpy", "arrow", "list"],
)
def test_a_partitioner_places_by_the_columns(
    servers: str, topic: str, chosen: Callable[[Any], object]
) -> None:
    seen = []

    def by_number(columns: pa.RecordBatch, partitions: int) -> object:
        seen.append((columns.schema.names, partitions))
        return chosen(columns.column("value").cast(pa.int64()).to_numpy())

    data = pa.table({"value": [str(number) for number in range(100)]})
    with Producer(servers, topic=topic, partitioner=by_number) as producer:
        producer.send(data)
    assert seen == [(["value"], 2)]
    table = read(topic, bootstrap_servers=servers, columns=["value", "partition"], way="fetch")
    for value, partition in zip(*table.to_pydict().values(), strict=True):
        assert partition == int(value) % 2


def test_rows_that_a_partitioner_leaves_go_by_the_default(servers: str, topic: str) -> None:
    keys = [f"key-{number}" for number in range(50)]
    by_default = pa.table({"key": keys, "value": ["default"] * 50})
    with Producer(servers, topic=topic) as producer:
        producer.send(by_default)
    own = [0, None] * 25
    mixed = pa.table({"key": keys, "value": ["mixed"] * 50, "partition": own})

    def none(columns: pa.RecordBatch, partitions: int) -> object:
        return np.full(columns.num_rows, -1)

    with Producer(servers, topic=topic, partitioner=none) as producer:
        producer.send(mixed)
    table = read(topic, bootstrap_servers=servers, way="fetch").to_pylist()
    places = {row["key"]: row["partition"] for row in table if row["value"] == b"default"}
    for row in table:
        if row["value"] == b"mixed":
            number = keys.index(row["key"].decode())
            assert row["partition"] == (0 if number % 2 == 0 else places[row["key"]])


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (lambda: [0], "1 numbers for 3 rows"),
        (lambda: [0, 1, 2], "has no partition 2: it has 2"),
        (lambda: [0, 1, -2], "holds a number below 0"),
        (lambda: ["a", "b", "c"], "is string, not a whole number"),
        (lambda: 7, "partitioner: "),
    ],
)
def test_a_partitioner_that_is_wrong_is_told(
    servers: str, topic: str, chosen: Callable[[], object], told: str
) -> None:
    with (
        Producer(servers, topic=topic, partitioner=lambda *_: chosen()) as producer,
        pytest.raises(ConfigFault, match=told),
    ):
        producer.send(pa.table({"value": ["a", "b", "c"]}))


def test_plain_values_are_records(servers: str, topic: str) -> None:
    with Producer(servers, topic=topic) as producer:
        assert producer.send(key="k", value=b"\xff", partition=1, timestamp=1000) == 1
        producer.send(key=b"gone", partition=1, headers={"h": b"1", "n": None})
        producer.send(value="text", topic=topic, partition=1)
        for wrong in ({"value": 7}, {"value": "a", "headers": {"h": 1}}, {}):
            with pytest.raises(ConfigFault):
                producer.send(**wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigFault, match="its own columns"):
            producer.send(rows("a"), value="b")  # type: ignore[call-overload]
    columns = ["key", "value", "partition", "timestamp", "headers"]
    table = read(topic, bootstrap_servers=servers, columns=columns, way="fetch").to_pylist()
    assert [row["partition"] for row in table] == [1, 1, 1]
    assert [(row["key"], row["value"]) for row in table] == [
        (b"k", b"\xff"),
        (b"gone", None),
        (None, b"text"),
    ]
    assert table[0]["timestamp"].timestamp() == 1
    assert table[1]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]


def test_a_consumer_reads_what_its_position_says(servers: str, topic: str) -> None:
    """Consume, transform, produce: offsets and results go together."""
    source = made(servers, f"source-{random.randrange(10**9)}", 1)
    with Producer(servers, topic=source) as producer:
        producer.send(pa.table({"value": [str(number) for number in range(20)]}))
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": source,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    done = 0
    with Producer(servers, topic=topic, transactional_id=source) as producer:
        while done < 20:
            messages = consumer.consume(min(7, 20 - done), PATIENCE_S)
            with producer.transaction():
                for message in messages:
                    producer.send(value=b"%b!" % message.value())
                (place,) = consumer.position([TopicPartition(source, 0)])
                metadata: Any = consumer.consumer_group_metadata()
                producer.send_offsets({(source, 0): place.offset}, metadata)
            done += len(messages)
    consumer.close()
    assert committed(servers, source, source) == 20
    assert read_committed(servers, topic) == sorted(b"%d!" % number for number in range(20))
