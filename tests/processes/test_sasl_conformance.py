"""Conversations of clients that want to authenticate are answered as Apache Kafka does."""

import os
from collections.abc import Iterator

import pytest

from shmbroker.testing.broker import Broker
from tests.processes import sasl_cases
from tests.processes.sasl_cases import CASES, DIFFERENT, FLAGS, run

RECORDED = sasl_cases.load()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(*FLAGS) as broker:
        found = f"127.0.0.1:{broker.port_of_listener(1)}"
        sasl_cases.make_users(broker.address)
        sasl_cases.wait_for_users(found)
        yield found


@pytest.mark.parametrize("name", CASES)
def test_each_conversation_has_its_answers(address: str, name: str) -> None:
    theirs, ours = RECORDED[name]
    assert run(address, name) == (theirs if ours is None else ours)


def test_what_differs_has_a_reason() -> None:
    assert {name for name, (_, ours) in RECORDED.items() if ours is not None} == set(DIFFERENT)
    assert RECORDED.keys() == CASES.keys()


@pytest.mark.oracle
@pytest.mark.skipif("KAFKA_ORACLE_SASL" not in os.environ, reason="no Apache Kafka to ask")
@pytest.mark.parametrize("name", CASES)
def test_kafka_answers_what_was_recorded(name: str) -> None:
    assert run(os.environ["KAFKA_ORACLE_SASL"], name) == RECORDED[name][0]
