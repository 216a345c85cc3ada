"""Refusals: for every API that is served, in every version, the error is in each place for one."""

from typing import Any

import pytest

from shmbroker.apis.table import advertised
from shmbroker.testing.refusals import ERRORS, move_ports, names_addresses, refusal_of
from shmbroker.wire import codec, schema
from shmbroker.wire.api_keys import API_VERSIONS, FETCH, FIND_COORDINATOR, METADATA, name_of
from shmbroker.wire.schema import Field

ERROR = 41
SERVED = [
    (row["api_key"], version)
    for row in advertised()
    for version in range(row["min_version"], row["max_version"] + 1)
    if version >= schema.message(f"{name_of(row['api_key'])}Request").versions[0]
]
WITHOUT_A_PLACE = {(34, 1), (34, 2), (35, 1), (35, 2)}
"""Those about log directories say nothing of what could not be asked."""
SAMPLES = {"string": "a", "bytes": b"", "uuid": bytes(range(16)), "records": None, "bool": False}


def sample(fields: list[Field], version: int) -> dict[str, Any]:
    """A message with one element in each array."""
    found = {}
    for field in fields:
        if not schema.is_within(version, field.versions):
            continue
        value: Any = (
            sample(field.fields, version) if field.type == "{}" else SAMPLES.get(field.type, 3)
        )
        found[field.name] = [value] if field.is_array else value
    return found


def errors_in(message: Any) -> list[int]:
    if isinstance(message, list):
        return [error for each in message for error in errors_in(each)]
    if not isinstance(message, dict):
        return []
    inner = [error for each in message.values() for error in errors_in(each)]
    return [message[name] for name in ERRORS if name in message] + inner


@pytest.mark.parametrize("api_key, version", SERVED)
def test_error_is_in_the_answer_of_each_api(api_key: int, version: int) -> None:
    name = name_of(api_key)
    request = sample(schema.message(f"{name}Request").fields, version)
    refusal = refusal_of(api_key, version, request, ERROR)
    assert (refusal is None) == ((api_key, version) in WITHOUT_A_PLACE)
    if refusal is None:
        return
    content = codec.encode(f"{name}Response", version, refusal)
    errors = errors_in(codec.decode_all(f"{name}Response", version, content))
    assert ERROR in errors


def test_only_what_was_asked_for_is_in_the_answer() -> None:
    request = {
        "session_id": 7,
        "topics": [
            {"topic": "a", "partitions": [{"partition": 0}, {"partition": 2}]},
            {"topic": "b", "partitions": []},
        ],
        "forgotten_topics_data": [{"topic": "c", "partitions": [1]}],
    }
    refusal = refusal_of(FETCH, 11, request, ERROR)
    assert refusal is not None
    assert (refusal["error_code"], refusal["session_id"]) == (ERROR, 7)
    found = {
        row["topic"]: [
            (each["partition_index"], each["error_code"], each["high_watermark"])
            for each in row["partitions"]
        ]
        for row in refusal["responses"]
    }
    assert found == {"a": [(0, ERROR, -1), (2, ERROR, -1)], "b": []}


def test_question_about_all_topics_has_no_place_for_an_error() -> None:
    assert refusal_of(METADATA, 12, {"topics": None}, ERROR) is None
    assert refusal_of(METADATA, 13, {"topics": None}, ERROR) == {"error_code": ERROR, "topics": []}


def test_ports_of_brokers_are_moved_and_no_others() -> None:
    answer = {
        "brokers": [{"node_id": 1, "port": 9092}, {"node_id": 2, "port": 9093}],
        "topics": [{"name": "port", "partitions": [9092]}],
    }
    assert move_ports(answer, {9092: 1, 9093: 2})
    assert [row["port"] for row in answer["brokers"]] == [1, 2]
    assert answer["topics"] == [{"name": "port", "partitions": [9092]}]
    assert not move_ports(answer, {9092: 1, 9093: 2})


def test_answers_with_addresses_are_known() -> None:
    assert all(map(names_addresses, (METADATA, FETCH, FIND_COORDINATOR)))
    assert not names_addresses(API_VERSIONS)


def test_partitions_that_a_transaction_wanted_are_refused_one_by_one() -> None:
    topics = [{"name": "a", "partitions": [1, 2]}]
    transaction = {"transactional_id": "x", "topics": topics}
    partitions = [{"partition_index": number, "partition_error_code": ERROR} for number in (1, 2)]
    results = [{"name": "a", "results_by_partition": partitions}]
    assert refusal_of(24, 3, {"v3_and_below_topics": topics}, ERROR) == {
        "results_by_topic_v3_and_below": results
    }
    assert refusal_of(24, 4, {"transactions": [transaction]}, ERROR) == {
        "error_code": ERROR,
        "results_by_transaction": [{"transactional_id": "x", "topic_results": results}],
    }
