"""What the metadata may hold: full is told with Kafka's error, and nothing of the request is done;
what changes or removes an entry is always done."""

from collections.abc import Callable
from typing import Any

import pytest
from controller_at_work import NOW_MS, Start, create, join, topic

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.bounds import complaint
from shmbroker.security.identity import Identity
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire.error_codes import NONE, POLICY_VIOLATION

Request = Callable[[str], dict[str, Any]]
ALICE = Identity("User:alice", "127.0.0.1", "SASL_PLAINTEXT")
SET, DELETE = 0, 1
GROUP, CLIENT_METRICS, BROKER, TOPIC = 32, 16, 4, 2


def acl(name: str) -> dict[str, Any]:
    row = {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return {"creations": [row]}


def quota(name: str, value: float | None = 1.0) -> dict[str, Any]:
    op = {"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}
    entity = [{"entity_type": "user", "entity_name": name}]
    return {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}


def user(name: str) -> dict[str, Any]:
    row = {
        "name": name,
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": bytes(32),
    }
    return {"deletions": [], "upsertions": [row]}


def settings(name: str, type_: int = GROUP, operation: int = SET) -> dict[str, Any]:
    key, value = {
        GROUP: ("consumer.session.timeout.ms", "46000"),
        CLIENT_METRICS: ("interval.ms", "1000"),
        BROKER: ("log.retention.ms", "1"),
        TOPIC: ("retention.ms", "1"),
    }[type_]
    row = {"name": key, "config_operation": operation, "value": value}
    resource = {"resource_type": type_, "resource_name": name, "configs": [row]}
    return {"resources": [resource], "validate_only": False}


def token(_name: str) -> dict[str, Any]:
    return {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    }


def ask(controller: ActiveController, api: str, version: int, request: dict[str, Any]) -> int:
    """The error of the only thing that is asked for."""
    answer = controller.handle(api, version, request, NOW_MS, ALICE)
    rows = [each for each in answer.values() if isinstance(each, list)]
    error = (rows[0][0] if rows and rows[0] else answer)["error_code"]
    if error == POLICY_VIOLATION and "hmac" in answer:
        assert not answer["hmac"]
    return int(error)


KINDS: dict[str, tuple[str, int, Request]] = {
    "acls": ("CreateAcls", 3, acl),
    "quotas": ("AlterClientQuotas", 1, quota),
    "users": ("AlterUserScramCredentials", 0, user),
    "tokens": ("CreateDelegationToken", 3, token),
    "groups": ("IncrementalAlterConfigs", 1, settings),
    "subscriptions": (
        "IncrementalAlterConfigs",
        1,
        lambda name: settings(name, CLIENT_METRICS),
    ),
}


@pytest.fixture
def controller(start: Start) -> ActiveController:
    made = start(
        shmbroker_metadata_entries="2",
        shmbroker_metadata_partitions="5",
        delegation_token_secret_key="key",
    )
    join(made, 1)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_may_be_is_refused(controller: ActiveController, kind: str) -> None:
    api, version, request = KINDS[kind]
    errors = [ask(controller, api, version, request(name)) for name in ("a", "b", "c")]
    assert errors == [NONE, NONE, POLICY_VIOLATION]
    before = controller.image.offset
    assert ask(controller, api, version, request("d")) == POLICY_VIOLATION
    assert controller.image.offset == before, "nothing is done"
    if kind != "tokens":
        assert ask(controller, api, version, request("a")) == NONE, "it is there already"


def test_what_is_removed_makes_room(controller: ActiveController) -> None:
    for name in ("a", "b"):
        assert ask(controller, "AlterClientQuotas", 1, quota(name)) == NONE
    assert ask(controller, "AlterClientQuotas", 1, quota("b", 2.0)) == NONE
    assert ask(controller, "AlterClientQuotas", 1, quota("a", None)) == NONE
    assert ask(controller, "AlterClientQuotas", 1, quota("c")) == NONE
    for name in ("a", "b"):
        assert ask(controller, "IncrementalAlterConfigs", 1, settings(name)) == NONE
    change = settings("a", operation=DELETE)
    assert ask(controller, "IncrementalAlterConfigs", 1, change) == NONE
    assert ask(controller, "IncrementalAlterConfigs", 1, settings("c")) == NONE


def test_partitions_of_all_topics_are_bounded(controller: ActiveController) -> None:
    create(controller, topic("three", 3))
    rows = [{"name": "three", "count": 5, "assignments": None}]
    more = {"topics": rows, "validate_only": False}
    assert ask(controller, "CreatePartitions", 3, more) == NONE
    [(error, message)] = controller.create_topics_auto(["another"], NOW_MS)
    assert error == POLICY_VIOLATION
    assert message == (
        "There would be more than 5 partitions: shmbroker.metadata.partitions says so."
    )
    gone = {"topics": [{"name": "three", "topic_id": bytes(16)}]}
    assert ask(controller, "DeleteTopics", 6, gone) == NONE
    assert controller.create_topics_auto(["another"], NOW_MS) == [(NONE, None)]


def test_settings_of_topics_need_no_room(controller: ActiveController) -> None:
    names = ("a", "b", "c")
    for name in names:
        create(controller, topic(name, 1))
        assert ask(controller, "IncrementalAlterConfigs", 1, settings(name, TOPIC)) == NONE
    for type_, wanted in ((TOPIC, NONE), (GROUP, POLICY_VIOLATION)):
        resources = [row for name in names for row in settings(name, type_)["resources"]]
        for resource in resources:
            resource["configs"][0]["value"] = "45001"
        together = {"resources": resources, "validate_only": False}
        assert ask(controller, "IncrementalAlterConfigs", 1, together) == wanted


def test_what_takes_a_setting_away_needs_no_room(controller: ActiveController) -> None:
    """A broker has a record of it, though it has no such setting."""
    for name in ("a", "b"):
        assert ask(controller, "IncrementalAlterConfigs", 1, settings(name)) == NONE
    change = settings("1", BROKER, DELETE)
    assert ask(controller, "IncrementalAlterConfigs", 1, change) == NONE
    assert ask(controller, "IncrementalAlterConfigs", 1, settings("1", BROKER)) == POLICY_VIOLATION


def test_what_is_there_already_needs_no_room(controller: ActiveController) -> None:
    for name in ("a", "b"):
        assert ask(controller, "AlterUserScramCredentials", 0, user(name)) == NONE
    rows = [user(name)["upsertions"][0] for name in ("a", "b")]
    both = {"deletions": [], "upsertions": rows}
    assert ask(controller, "AlterUserScramCredentials", 0, both) == NONE
    both["upsertions"] = [rows[0], user("c")["upsertions"][0]]
    assert ask(controller, "AlterUserScramCredentials", 0, both) == POLICY_VIOLATION
    # The bound may have been larger once.
    now = BrokerConfig({"shmbroker.metadata.entries": "1"})
    records = [("UserScramCredentialRecord", 0, {"name": "a", "mechanism": 1})]
    assert complaint(records, controller.image, now) is None
    records += [("UserScramCredentialRecord", 0, {"name": "c", "mechanism": 1})]
    assert complaint(records, controller.image, now) is not None
