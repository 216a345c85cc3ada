"""`shmbroker consume` of a topic with transactions."""

import subprocess
import sys

import pytest
from confluent_kafka import Producer

from tests.clients.test_transactions import topic

__all__ = ["topic"]
PATIENCE_S = 30.0


def consume(address: str, *words: str) -> list[str]:
    command = [sys.executable, "-m", "shmbroker", "consume", "--bootstrap-server", address, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.split()


@pytest.fixture
def written(address: str, topic: str) -> str:
    """A topic with what is committed, aborted and open, and a record behind all of it."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for value, how in ((b"committed", "commit"), (b"aborted", "abort"), (b"open", None)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if how is not None:
            getattr(producer, f"{how}_transaction")(PATIENCE_S)
    plain = Producer({"bootstrap.servers": address})
    plain.produce(topic, b"plain", partition=0)
    assert plain.flush(PATIENCE_S) == 0
    return topic


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-e"], ["committed"]),
        (["-e", "--isolation", "read_committed"], ["committed"]),
        (["-e", "--isolation", "read_uncommitted"], ["committed", "aborted", "open", "plain"]),
        (["-e", "-o", "-1", "--isolation", "read_uncommitted"], ["plain"]),
    ],
)
def test_consume_ends_where_its_isolation_level_does(written, address, words, values):
    assert consume(address, written, "-p", "0", *words) == values
