"""Members of a group as its coordinator describes them."""

from collections.abc import Mapping
from typing import Any

import pytest

from shmbroker.client.faults import RefusedFault
from shmbroker.console.group_details import MEMBERS_MAX, PARTITIONS_MAX, members
from shmbroker.groups.classic.embedded_protocol import encode_assignment
from shmbroker.observe.snapshot import Group
from shmbroker.wire.api_keys import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS
from tests.unit.console.test_history import image, partition

CLUSTER = image(t=partition(1, 1))
CLUSTER.topics_by_id = {topic.topic_id: topic for topic in CLUSTER.topics_by_name.values()}
TOPIC_ID = CLUSTER.topics_by_name["t"].topic_id


class Coordinator:
    """Broker 1, which describes a group so."""

    def __init__(self, *rows: Mapping[str, Any], error: int = 0) -> None:
        self.rows = rows
        self.error = error
        self.asked: list[tuple[int, int, Mapping[str, Any]]] = []

    def __call__(self, broker: int, api_key: int, body: Mapping[str, Any]) -> Any:
        self.asked.append((broker, api_key, body))
        return {"groups": [{"error_code": self.error, "members": list(self.rows)}]}


def group(kind: str) -> Group:
    return Group("g", kind, "stable", 1, 1, [])


def classic(assignment: bytes) -> dict[str, Any]:
    return {
        "member_id": "m",
        "client_id": "c",
        "client_host": "/h",
        "member_assignment": assignment,
    }


@pytest.mark.parametrize(
    ("assignment", "shown"),
    [
        (encode_assignment(1, {TOPIC_ID: frozenset({2, 0})}, CLUSTER.topics_by_id), ["t-0", "t-2"]),
        (b"", []),
        (b"\xff\xff\x00", []),
        (b"\x00\x01\x7f\xff\xff\xff", []),
    ],
)
def test_classic_member_has_what_its_assignment_says(assignment: bytes, shown: list[str]) -> None:
    coordinator = Coordinator(classic(assignment))
    (row,) = members(coordinator, group("classic"), CLUSTER)
    assert (row["member"], row["client"], row["host"]) == ("m", "c", "/h")
    assert row["assigned"] == shown
    assert coordinator.asked[0][:2] == (1, DESCRIBE_GROUPS)


def test_member_of_the_consumer_protocol_names_its_topics_and_is_bounded() -> None:
    numbers = list(range(PARTITIONS_MAX + 7))
    row = {
        "member_id": "m",
        "client_id": "c",
        "client_host": "/h",
        "assignment": {"topic_partitions": [{"topic_name": "t", "partitions": numbers}]},
    }
    coordinator = Coordinator(*[row] * (MEMBERS_MAX + 1))
    found = members(coordinator, group("consumer"), CLUSTER)
    assert len(found) == MEMBERS_MAX
    assert found[0]["assigned"] == [f"t-{number}" for number in range(PARTITIONS_MAX)]
    assert found[0]["assigned_count"] == len(numbers)
    assert coordinator.asked[0][1] == CONSUMER_GROUP_DESCRIBE


def test_coordinator_that_refuses_is_told() -> None:
    with pytest.raises(RefusedFault, match="group g"):
        members(Coordinator(error=16), group("classic"), CLUSTER)
