"""Transactions over several brokers, one behind the other without a pause."""

import pytest

from shmbroker.testing.broker import Broker
from tests.clients.test_transactions import committed, read_committed
from tests.support.raw_client import RawClient
from tests.support.transactional_producer import TransactionalProducer

TOPIC = "over"
PARTITIONS = 6
TRANSACTIONS = 100


@pytest.mark.parametrize("flags", [("--io-workers", "3"), ("--replicas", "3")])
def test_a_next_transaction_may_begin_before_the_markers_of_the_last(
    flags: tuple[str, ...],
) -> None:
    """Its first batches may come to a leader before the marker does, and wait for it there."""
    with Broker(*flags) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS)
        producer = TransactionalProducer(broker.address, "one", TOPIC)
        expected = []
        for number in range(TRANSACTIONS):
            values = [b"%04d/%d" % (number, partition) for partition in range(PARTITIONS)]
            for partition, value in enumerate(values):
                producer.send(partition, value)
            producer.commit_offset("group", number)
            is_commit = number % 3 != 2
            producer.end(is_commit)
            if is_commit:
                expected += values
        producer.close()
        TransactionalProducer(broker.address, "one", TOPIC).close()  # waits for the last end
        assert read_committed(broker.address, TOPIC, PARTITIONS) == sorted(expected)
        assert committed(broker.address, "group", TOPIC) == TRANSACTIONS - 1
        assert "Traceback" not in broker.log, broker.log
