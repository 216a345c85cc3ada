"""A consumer that uses fetch sessions, while partitions come, go, pause, seek and are deleted."""

from typing import Any

import pytest

from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

PARTITIONS = 40


def read_until(consumer: Any, expected: dict[Any, list[int]]) -> None:
    """Offsets by partition; nothing else, nothing twice, in order."""
    read: dict[Any, list[int]] = {}

    def is_all_read() -> bool:
        for partition, records in consumer.poll(timeout_ms=200).items():
            read.setdefault(partition, []).extend(record.offset for record in records)
        return read == expected

    wait_until(is_all_read, lambda: f"{expected}, read {read}")


def test_kafka_python_keeps_its_session(address: str, caplog: pytest.LogCaptureFixture) -> None:
    from kafka import KafkaConsumer, TopicPartition

    with RawClient(address) as client:
        client.create_topic("in-session", PARTITIONS)
        client.create_topic("out-of-session", 2)

        def write(topic: str, *indexes: int) -> None:
            for index in indexes:
                assert client.produce(topic, batch_now(b"v"), index)["error_code"] == 0

        consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        try:
            mine = [TopicPartition("in-session", index) for index in range(PARTITIONS)]
            other = [TopicPartition("out-of-session", index) for index in range(2)]
            consumer.assign(mine)
            write("in-session", *range(PARTITIONS))
            read_until(consumer, {partition: [0] for partition in mine})
            (handler,) = consumer._fetcher._session_handlers.values()
            session = handler.next_metadata.session_id
            assert session > 0
            for index in (0, 17, PARTITIONS - 1):
                write("in-session", index)
                read_until(consumer, {mine[index]: [1]})
            consumer.pause(mine[0], mine[1])
            write("in-session", 0, 1, 2)
            read_until(consumer, {mine[2]: [1]})
            consumer.resume(mine[0], mine[1])
            read_until(consumer, {mine[0]: [2], mine[1]: [1]})
            consumer.seek(mine[5], 0)
            read_until(consumer, {mine[5]: [0]})
            consumer.assign(mine[10:20] + other)
            write("out-of-session", 0, 1)
            write("in-session", *range(10, 20))
            news = {partition: [1] for partition in mine[10:20]} | {mine[17]: [2]}
            read_until(consumer, news | {partition: [0] for partition in other})
            assert handler.next_metadata.session_id == session
            assert handler.next_metadata.epoch > 8
            body = {"timeout_ms": 5000, "topics": [{"name": "out-of-session"}]}
            client.ask("DeleteTopics", 6, body)
            write("in-session", 12)
            read_until(consumer, {mine[12]: [2]})
            assert not [line for line in caplog.text.splitlines() if "invalid" in line.lower()]
        finally:
            consumer.close()
