"""Consume, transform, produce, exactly once, by confluent-kafka: one instance, for ever.

    python -m tests.exactly_once.confluent_pipeline ADDRESS NAME

Records of IN go to the same partition of OUT with the same key, and as they are to LATEST, which is
compacted; each transaction adds a record to AUDIT, and the offsets of its group. A value of OUT is
"VALUE TRANSACTION INDEX COUNT": the value of IN, the transaction's name, and which of how many
records it is that this transaction writes to the partition. AUDIT has "TRANSACTION TOTAL". One
transaction in eight is aborted on purpose.

Prints a line for each end that it was told: `C TRANSACTION` committed, `A TRANSACTION` aborted.
"""

import os
import signal
import sys
from collections import Counter
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.exactly_once.topics import AUDIT, GROUP, IN, LATEST, OUT, PARTITIONS
from tests.support.acknowledged_load import IMPATIENT

PATIENCE_S = 60.0
RECORDS_MAX = 60
WAIT_S = 0.1
STEADY = {"metadata.recovery.strategy": "none"}
"""Else librdkafka 2.16 forgets its brokers when all connections are lost at once, as with a network
worker, and TxnOffsetCommit may wait for ever for one of those that it has forgotten."""


class Pipeline:
    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.life = f"{name}.{os.getpid()}.{os.urandom(2).hex()}"
        self.random = Random(self.life)
        self.is_over = False
        self.metadata: Any = None
        impatient = {key: value for key, value in IMPATIENT.items() if key != "linger.ms"}
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": name,
                "transaction.timeout.ms": 20_000,
                **STEADY,
                **IMPATIENT,
            }
        )
        self.producer.init_transactions(PATIENCE_S)
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                **STEADY,
                **impatient,
            }
        )
        self.consumer.subscribe([IN], on_assign=self.on_assign)

    def on_assign(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """What fences it is the generation in which it got its partitions.

        Not what `consumer_group_metadata` says later: a member that was thrown out meanwhile has no
        id there, and then Kafka asks for none either.
        """
        self.metadata = consumer.consumer_group_metadata()

    def run(self) -> None:
        number = 0
        while not self.is_over:
            records = [one for one in self.consumer.consume(RECORDS_MAX, WAIT_S) if not one.error()]
            if records:
                self.transact(f"{self.life}.{number}", records)
                number += 1
        self.consumer.close()

    def transact(self, transaction: str, records: list[Any]) -> None:
        try:
            self.producer.begin_transaction()
            self.write(transaction, records)
            if self.random.random() < 0.125:
                self.producer.flush(PATIENCE_S)
                self.abort(transaction)
                return
            positions = {one.partition(): one.offset() + 1 for one in records}
            offsets = [TopicPartition(IN, one, at) for one, at in positions.items()]
            self.producer.send_offsets_to_transaction(offsets, self.metadata, PATIENCE_S)
            self.commit()
            print("C", transaction, flush=True)
        except KafkaException as fault:
            print("#", transaction, fault, flush=True)
            if not fault.args[0].txn_requires_abort():
                raise
            self.abort(transaction)

    def commit(self) -> None:
        while True:
            try:
                self.producer.commit_transaction(PATIENCE_S)
                return
            except KafkaException as fault:
                if not fault.args[0].retriable():
                    raise

    def write(self, transaction: str, records: list[Any]) -> None:
        counts = Counter(one.partition() for one in records)
        seen: Counter[int] = Counter()
        for one in records:
            at = one.partition()
            value = f"{one.value().decode()} {transaction} {seen[at]} {counts[at]}"
            self.producer.produce(OUT, value, one.key(), partition=at)
            self.producer.produce(LATEST, one.value(), one.key(), partition=at)
            seen[at] += 1
        audit = self.random.randrange(PARTITIONS)
        self.producer.produce(AUDIT, f"{transaction} {len(records)}", partition=audit)

    def abort(self, transaction: str) -> None:
        """And go back to where the group is."""
        self.producer.abort_transaction(PATIENCE_S)
        print("A", transaction, flush=True)
        mine = self.consumer.assignment()
        for place in self.consumer.committed(mine, PATIENCE_S) if mine else ():
            place.offset = max(place.offset, 0)
            self.consumer.seek(place)


def main() -> None:
    pipeline = Pipeline(*sys.argv[1:])

    def stop(*_: object) -> None:
        pipeline.is_over = True

    signal.signal(signal.SIGTERM, stop)
    pipeline.run()


if __name__ == "__main__":
    main()
