"""Requests about very many topics are decided in parts that nobody can tell from the whole."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from controller_at_work import open_controller

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.parts import WEIGHT_MAX, Joined, parts_of
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire import codec, error_codes

VERSION = {
    "CreateTopics": 4,
    "CreatePartitions": 3,
    "AlterConfigs": 2,
    "IncrementalAlterConfigs": 1,
}


@pytest.fixture
def active(tmp_path: Path) -> ActiveController:
    made = open_controller(str(tmp_path), "x" * 22, BrokerConfig({}), 1)
    made.membership.register_broker(1, "host", 1, bytes(16), [bytes(15) + b"1"], 1)
    made.membership.unfence_broker(1, 1)
    decide(made, "CreateTopics", topics=[topic(f"known-{number}") for number in range(900)])
    return made


def topic(name: str, partitions: int = 1, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }


def resource(name: str, value: str) -> dict[str, Any]:
    config = {"name": "retention.ms", "config_operation": 0, "value": value}
    return {"resource_type": 2, "resource_name": name, "configs": [config]}


def split(active: ActiveController, api: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    return parts_of(api, request, active.image, active.config) or [request]


def decide(
    active: ActiveController, api: str, **request: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the parts, the answer)"""
    request |= {"validate_only": False}
    parts = split(active, api, request)
    answers = [active.handle(api, VERSION[api], part, 1) for part in parts]
    return parts, joined(api, request, answers) if len(parts) > 1 else answers[0]


def joined(api: str, request: dict[str, Any], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer of the whole, as the client decodes it."""
    whole = Joined(api, VERSION[api], request)
    for answer in answers:
        whole.add(answer)
    return codec.decode_all(f"{api}Response", VERSION[api], whole.encoded())


REQUESTS = [
    ("CreateTopics", {"topics": [topic(f"new-{number}") for number in range(2500)]}),
    (
        "CreatePartitions",
        {
            "topics": [
                {"name": f"known-{number}", "count": 6, "assignments": None}
                for number in range(900)
            ]
        },
    ),
    (
        "AlterConfigs",
        {"resources": [resource(f"known-{number}", "1000") for number in range(1200)]},
    ),
    (
        "IncrementalAlterConfigs",
        {"resources": [resource(f"known-{number}", "1000") for number in range(1200)]},
    ),
]


@pytest.mark.parametrize(("api", "request_"), REQUESTS)
def test_no_decision_is_about_more_than_some_rows(
    active: ActiveController, api: str, request_: dict[str, Any]
) -> None:
    ((key, rows),) = request_.items()
    ends = [active.committed_offset]
    parts = split(active, api, request_)
    assert [row for part in parts for row in part[key]] == rows
    for part in parts:
        active.handle(api, VERSION[api], part | {"validate_only": False}, 1)
        ends.append(active.committed_offset)
    # Twice: a topic is a record, too, beside its partitions.
    steps = [after - before for before, after in pairwise(ends)]
    assert len(parts) > 1 and max(steps) <= 2 * WEIGHT_MAX


@pytest.mark.parametrize(("api", "request_"), REQUESTS)
def test_parts_have_the_answer_of_the_whole(
    active: ActiveController, tmp_path: Path, api: str, request_: dict[str, Any]
) -> None:
    ((key, rows),) = request_.items()
    bad = dict(rows[0])
    if api.startswith("Create"):
        bad["name"] = "bad name"
    else:
        bad["resource_name"] = "unknown"
    # Something wrong in the middle, and something twice, far apart.
    asked = {key: [*rows[:100], bad, *rows[100:], rows[7]], "validate_only": True}
    whole = active.handle(api, VERSION[api], asked, 1)
    answers = [active.handle(api, VERSION[api], part, 1) for part in split(active, api, asked)]
    found = joined(api, asked, answers)
    (results,) = (name for name in whole if isinstance(whole[name], list))

    def told(answer: dict[str, Any]) -> list[Any]:
        named = (
            (row.get("name"), row.get("resource_name"), row["error_code"], row["error_message"])
            for row in answer[results]
        )
        return sorted(named, key=str)

    assert len(answers) > 1
    assert told(found) == told(whole)
    refused = [row for row in found[results] if row["error_code"]]
    assert error_codes.INVALID_REQUEST in {row["error_code"] for row in refused}


def test_small_requests_and_those_that_are_refused_as_a_whole_are_not_cut(
    active: ActiveController,
) -> None:
    few = {"topics": [topic(f"few-{number}") for number in range(100)]}
    assert split(active, "CreateTopics", few) == [few]
    too_many = {"topics": [topic(f"many-{number}", 6) for number in range(2000)]}
    assert split(active, "CreateTopics", too_many) == [too_many]
    count = {"assignments": None, "count": 20}
    too_many = {"topics": [{"name": f"known-{number}"} | count for number in range(900)]}
    assert split(active, "CreatePartitions", too_many) == [too_many]
    one = {"topics": [topic("one", 9000)]}
    assert split(active, "CreateTopics", one) == [one]
    rows = [resource(f"known-{number}", "5") for number in range(900)]
    assert split(active, "IncrementalAlterConfigs", {"resources": rows})[1:]
    rows[899]["configs"][0]["config_operation"] = 4
    not_understood = {"resources": rows}
    assert split(active, "IncrementalAlterConfigs", not_understood) == [not_understood]
