"""A member of a group as a process of its own: `python -m tests.clients.group_member …`.

    group_member LIBRARY ADDRESS TOPIC GROUP    LIBRARY is one of LIBRARIES

Reads, says what it has seen, then commits it, until SIGTERM, on which it leaves the group. Each
line of its output is a word and numbers:

    owned P …          these partitions are its own now, all of them
    took P …           a cooperative rebalance has added these
    gave P …           they were taken away
    seen P FIRST LAST  records, in a row
    committed P OFFSET acknowledged by the broker
"""

import asyncio
import signal
import sys
from collections.abc import Iterable
from typing import Any

SESSION_MS = 3000
HEARTBEAT_MS = 200
TURN_S = 0.05
# A join that ends between two polls of kafka-python 3.0 is not noticed: the next one joins again.
KAFKA_PYTHON_TURN_S = 0.5

is_over = False


def stop(*_: object) -> None:
    global is_over
    is_over = True


def say(word: str, *numbers: int) -> None:
    print(word, *numbers, flush=True)


class Seen:
    """What was read since the last commit that was acknowledged."""

    def __init__(self) -> None:
        self.ranges: dict[int, tuple[int, int]] = {}
        self.due: dict[int, int] = {}

    def add(self, partition: int, offset: int) -> None:
        first, last = self.ranges.get(partition, (offset, offset - 1))
        if offset != last + 1:
            say("seen", partition, first, last)
            first = offset
        self.ranges[partition] = (first, offset)

    def take(self) -> dict[int, int]:
        """Say it all; partition to the offset to commit, until `done` or `give`."""
        for partition, (first, last) in self.ranges.items():
            say("seen", partition, first, last)
        self.due |= {partition: last + 1 for partition, (_, last) in self.ranges.items()}
        self.ranges = {}
        return dict(self.due)

    def done(self, partition: int, offset: int) -> None:
        """It is committed."""
        say("committed", partition, offset)
        if self.due.get(partition) == offset:
            del self.due[partition]

    def give(self, partitions: Iterable[Any]) -> None:
        """They were taken away; who has them now reads again what was not committed."""
        self.take()
        numbers = [each.partition for each in partitions]
        for number in numbers:
            self.due.pop(number, None)
        say("gave", *numbers)


def live_with_confluent(address: str, topic: str, group: str, strategy: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    seen = Seen()
    is_cooperative = strategy in ("cooperative-sticky", NEW_PROTOCOL)
    of_the_protocol: dict[str, Any] = {"group.protocol": "consumer"}
    if strategy != NEW_PROTOCOL:
        of_the_protocol = {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }

    def commit() -> None:
        offsets = [TopicPartition(topic, each, offset) for each, offset in seen.take().items()]
        if not offsets:
            return
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return
        for each in done:
            if each.error is None:
                seen.done(each.partition, each.offset)

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("took" if is_cooperative else "owned", *(each.partition for each in partitions))

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        commit()
        seen.give(partitions)

    def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        seen.give(partitions)

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        | of_the_protocol
    )
    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
    while not is_over:
        # One by one: a batch may hold records from before a rebalance that it served itself.
        for _ in range(500):
            message = consumer.poll(TURN_S)
            if message is None:
                break
            if message.error() is None:
                seen.add(message.partition(), message.offset())
        commit()
    consumer.close()


def live_with_kafka_python(address: str, topic: str, group: str, strategy: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    seen = Seen()
    is_cooperative = strategy == "cooperative-sticky"
    assignor = CooperativeStickyAssignor if is_cooperative else RangePartitionAssignor

    def commit() -> None:
        offsets = {
            TopicPartition(topic, each): OffsetAndMetadata(offset, "", -1)
            for each, offset in seen.take().items()
        }
        if not offsets:
            return
        try:
            consumer.commit(offsets)
        except KafkaError:
            return
        for each, offset in offsets.items():
            seen.done(each.partition, offset.offset)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("took" if is_cooperative else "owned", *(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            seen.give(revoked)

    consumer = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=(assignor,),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        reconnect_backoff_max_ms=200,
    )
    consumer.subscribe([topic], listener=Listener())
    while not is_over:
        for records in consumer.poll(timeout_ms=int(KAFKA_PYTHON_TURN_S * 1000)).values():
            for record in records:
                seen.add(record.partition, record.offset)
        commit()
    consumer.close()


def live_with_aiokafka(address: str, topic: str, group: str, strategy: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.errors import CommitFailedError, KafkaError

    async def live() -> None:
        seen = Seen()
        lock = asyncio.Lock()

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Any) -> None:
                say("owned", *(each.partition for each in assigned))

            async def on_partitions_revoked(self, revoked: Any) -> None:
                async with lock:
                    seen.give(revoked)

        async def commit() -> None:
            offsets = {TopicPartition(topic, each): offset for each, offset in seen.take().items()}
            if not offsets:
                return
            try:
                await consumer.commit(offsets)
            except CommitFailedError:  # it is no member any more: others may have gone on
                seen.due.clear()
                return
            except KafkaError:
                return
            for each, offset in offsets.items():
                seen.done(each.partition, offset)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await consumer.start()
        consumer.subscribe([topic], listener=Listener())
        while not is_over:
            found = await consumer.getmany(timeout_ms=int(TURN_S * 1000))
            async with lock:  # no rebalance between reading and committing
                owned = consumer.assignment()
                for partition, records in found.items():
                    for record in records if partition in owned else ():
                        seen.add(record.partition, record.offset)
                await commit()
        await consumer.stop()

    asyncio.run(live())


NEW_PROTOCOL = "KIP-848"
"""Assigned by the broker, which says how often heartbeats come."""

LIBRARIES = {
    "confluent-range": (live_with_confluent, "range"),
    "confluent-cooperative": (live_with_confluent, "cooperative-sticky"),
    "confluent-848-cooperative": (live_with_confluent, NEW_PROTOCOL),
    "kafka-python-range": (live_with_kafka_python, "range"),
    "kafka-python-cooperative": (live_with_kafka_python, "cooperative-sticky"),
    "aiokafka": (live_with_aiokafka, "roundrobin"),
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    live, strategy = LIBRARIES[sys.argv[1]]
    live(*sys.argv[2:5], strategy)
