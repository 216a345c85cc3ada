"""One face for the consumers of three libraries, for tests that put the same case to each.

`read` waits a moment for records; `Reset` is what is raised where there is no offset to begin at.
"""

import asyncio
from typing import Any

from tests.clients.group_member import KAFKA_PYTHON_TURN_S

TURN_S = 0.1
METADATA_AGE_MS = 1000


class Reset(Exception):
    """No committed offset, and `auto.offset.reset` says that this is an error."""


class Confluent:
    """librdkafka by confluent-kafka."""

    def __init__(
        self,
        address: str,
        group: str,
        *,
        reset: str = "earliest",
        instance: str | None = None,
        session_ms: int = 6000,
        poll_interval_ms: int = 300_000,
        auto_commit: bool = False,
    ) -> None:
        from confluent_kafka import Consumer

        more = {} if instance is None else {"group.instance.id": instance}
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "error" if reset == "none" else reset,
                "enable.auto.commit": auto_commit,
                "auto.commit.interval.ms": 100,
                "session.timeout.ms": session_ms,
                "max.poll.interval.ms": poll_interval_ms,
                "heartbeat.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
                "log_level": 0,
            }
            | more
        )

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe([pattern])

    def read(self) -> list[tuple[str, int, int]]:
        from confluent_kafka import KafkaError

        found = []
        for message in self.consumer.consume(100, TURN_S):
            if message.error() is None:
                found.append((message.topic(), message.partition(), message.offset()))
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise Reset
        return found

    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        from confluent_kafka import TopicPartition

        each = TopicPartition(topic, partition, offset, metadata)
        self.consumer.commit(offsets=[each], asynchronous=False)

    def commit_later(self, topic: str, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=True)

    def committed(self, topic: str, partition: int) -> tuple[int, str] | None:
        from confluent_kafka import TopicPartition

        (found,) = self.consumer.committed([TopicPartition(topic, partition)], 10)
        return None if found.offset < 0 else (found.offset, found.metadata or "")

    def seek(self, topic: str, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.seek(TopicPartition(topic, partition, offset))

    def pause(self, topic: str, partition: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.pause([TopicPartition(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.resume([TopicPartition(topic, partition)])

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(
        self,
        address: str,
        group: str,
        *,
        reset: str = "earliest",
        instance: str | None = None,
        session_ms: int = 6000,
        poll_interval_ms: int = 300_000,
        auto_commit: bool = False,
    ) -> None:
        from kafka import KafkaConsumer

        self.consumer = KafkaConsumer(
            bootstrap_servers=address,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset=reset,
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=100,
            session_timeout_ms=session_ms,
            max_poll_interval_ms=poll_interval_ms,
            heartbeat_interval_ms=100,
            metadata_max_age_ms=METADATA_AGE_MS,
        )

    def subscribe(self, topic: str) -> None:
        # Its leader does not look again at a topic that it did not know when it assigned.
        self.consumer.partitions_for_topic(topic)
        self.consumer.subscribe([topic])

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe(pattern=pattern)

    def read(self) -> list[tuple[str, int, int]]:
        from kafka.errors import NoOffsetForPartitionError

        try:
            found = self.consumer.poll(timeout_ms=int(KAFKA_PYTHON_TURN_S * 1000))
        except NoOffsetForPartitionError:
            raise Reset from None
        return [(each.topic, each.partition, each.offset) for row in found.values() for each in row]

    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def _offsets(self, topic: str, partition: int, offset: int, metadata: str) -> dict[Any, Any]:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        return {TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata, -1)}

    def commit(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        self.consumer.commit(self._offsets(topic, partition, offset, metadata))

    def commit_later(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.commit_async(self._offsets(topic, partition, offset, ""))

    def committed(self, topic: str, partition: int) -> tuple[int, str] | None:
        from kafka import TopicPartition

        found = self.consumer.committed(TopicPartition(topic, partition), metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        from kafka import TopicPartition

        self.consumer.seek(TopicPartition(topic, partition), offset)

    def pause(self, topic: str, partition: int) -> None:
        from kafka import TopicPartition

        self.consumer.pause(TopicPartition(topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        from kafka import TopicPartition

        self.consumer.resume(TopicPartition(topic, partition))

    def close(self) -> None:
        self.consumer.close()


class Aiokafka:
    """aiokafka; its loop runs only while a method of this does."""

    def __init__(
        self,
        address: str,
        group: str,
        *,
        reset: str = "earliest",
        instance: str | None = None,
        session_ms: int = 6000,
        poll_interval_ms: int = 300_000,
        auto_commit: bool = False,
    ) -> None:
        from aiokafka import AIOKafkaConsumer

        self.loop = asyncio.new_event_loop()
        self._reading: asyncio.Task[Any] | None = None

        async def start() -> Any:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=address,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset=reset,
                enable_auto_commit=auto_commit,
                auto_commit_interval_ms=100,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=session_ms,
                max_poll_interval_ms=poll_interval_ms,
                heartbeat_interval_ms=100,
                metadata_max_age_ms=METADATA_AGE_MS,
            )
            await consumer.start()
            return consumer

        self.consumer = self.loop.run_until_complete(start())

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe(pattern=pattern)

    def read(self) -> list[tuple[str, int, int]]:
        from aiokafka.errors import NoOffsetForPartitionError

        # A read that meets a rebalance ends with it, which may wait for another consumer's turn.
        if self._reading is None:
            waiting = self.consumer.getmany(timeout_ms=int(TURN_S * 1000))
            self._reading = self.loop.create_task(waiting)
        self.loop.run_until_complete(asyncio.wait({self._reading}, timeout=2 * TURN_S))
        if not self._reading.done():
            return []
        ended, self._reading = self._reading, None
        try:
            found = ended.result()
        except NoOffsetForPartitionError:
            raise Reset from None
        return [(each.topic, each.partition, each.offset) for row in found.values() for each in row]

    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        from aiokafka import TopicPartition

        offsets = {TopicPartition(topic, partition): (offset, metadata)}
        self.loop.run_until_complete(self.consumer.commit(offsets))

    def commit_later(self, topic: str, partition: int, offset: int) -> None:
        from aiokafka import TopicPartition

        offsets = {TopicPartition(topic, partition): offset}
        self._later = self.loop.create_task(self.consumer.commit(offsets))

    def committed(self, topic: str, partition: int) -> tuple[int, str] | None:
        """It does not tell the metadata."""
        from aiokafka import TopicPartition

        asked = self.consumer.committed(TopicPartition(topic, partition))
        found = self.loop.run_until_complete(asked)
        return None if found is None else (found, "")

    def seek(self, topic: str, partition: int, offset: int) -> None:
        from aiokafka import TopicPartition

        self.consumer.seek(TopicPartition(topic, partition), offset)

    def pause(self, topic: str, partition: int) -> None:
        from aiokafka import TopicPartition

        async def pause() -> None:  # it makes a future, for which the loop must run
            self.consumer.pause(TopicPartition(topic, partition))

        self.loop.run_until_complete(pause())

    def resume(self, topic: str, partition: int) -> None:
        from aiokafka import TopicPartition

        async def resume() -> None:
            self.consumer.resume(TopicPartition(topic, partition))

        self.loop.run_until_complete(resume())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.loop.run_until_complete(self.consumer.stop())
        self.loop.close()


LIBRARIES = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}
