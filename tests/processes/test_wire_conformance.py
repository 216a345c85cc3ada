"""Every API that is served, in every version, good input and bad: answered as Apache Kafka does.

The expectations are in wire_expectations.txt, the reasons for what differs in docs/apis.toml. With
KAFKA_ORACLE=host:port a Kafka 4.2.1 of one broker, id 1, is asked the same.
"""

import json
import os
from collections.abc import Iterator

import pytest

from shmbroker.testing.broker import Broker
from tests.processes.wire_cases import SCENARIOS
from tests.processes.wire_expectations import FLAGS, Answers, Key, agrees, load, reason, run
from tests.processes.wire_side import Side

KAFKA, HERE = load()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        children = broker.children()
        yield broker
        assert broker.children() == children, "a process has died"


def complaints(expected: dict[Key, Answers], got: dict[Key, Answers]) -> list[str]:
    """What is not as expected, for people."""
    found = [f"{key} is {'new' if key in got else 'gone'}" for key in expected.keys() ^ got.keys()]
    for key in expected.keys() & got.keys():
        for version in expected[key].keys() | got[key].keys():
            wanted, answer = expected[key].get(version), got[key].get(version)
            if not agrees(wanted, answer):
                found.append(
                    f"{key[0]} / {key[1]} v{version}\n  wanted {json.dumps(wanted)}\n  got    "
                    f"{json.dumps(answer)}"
                )
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_case_gets_its_answer(broker: Broker, scenario: str) -> None:
    expected = {
        key: answers | HERE.get(key, {}) for key, answers in KAFKA.items() if key[0] == scenario
    }
    found = complaints(expected, run(Side(broker.address), scenario))
    assert not found, "\n".join(found[:20])


@pytest.mark.oracle
@pytest.mark.skipif("KAFKA_ORACLE" not in os.environ, reason="no Apache Kafka to ask")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kafka_answers_what_was_recorded(scenario: str) -> None:
    expected = {key: answers for key, answers in KAFKA.items() if key[0] == scenario}
    found = complaints(expected, run(Side(os.environ["KAFKA_ORACLE"]), scenario))
    assert not found, "\n".join(found[:20])


def test_what_differs_has_a_reason() -> None:
    assert [key for key in HERE if reason(key) is None] == []
