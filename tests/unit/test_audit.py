"""The audit log's lines: who, what, how it went; and how many."""

import logging
from typing import Any

import pytest

from shmbroker import logs
from shmbroker.audit import KINDS_MAX, Audit, Who
from shmbroker.security.acls import CLUSTER, CREATE, GROUP, READ, TOPIC, WRITE
from shmbroker.security.changes import CHANGES, operation_of, shown
from shmbroker.wire import api_keys as keys
from shmbroker.wire import codec
from shmbroker.wire.error_codes import NONE, TOPIC_ALREADY_EXISTS
from tests.support.audited_changes import CASES

ALICE = Who("User:alice", "listener TLS", "10.0.0.7:51234")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "shmbroker.audit")
    return caplog


def test_denial_says_who_and_what(lines: pytest.LogCaptureFixture) -> None:
    Audit().denied(ALICE, "Produce", [(WRITE, TOPIC, "orders"), (WRITE, TOPIC, "orders")])
    [record] = lines.records
    assert record.getMessage() == (
        "denied: User:alice from 10.0.0.7:51234 by listener TLS, Produce: WRITE on topic orders"
    )
    assert getattr(record, logs._FIELDS) == {
        "kind": "denied to User:alice",
        "principal": "User:alice",
        "listener": "listener TLS",
        "client": "10.0.0.7:51234",
        "api": "Produce",
        "operation": "WRITE",
        "resource": "topic orders",
        "outcome": "denied",
    }


def test_denials_are_limited_for_each_principal_and_counted(
    lines: pytest.LogCaptureFixture,
) -> None:
    now = [1.0]
    seldom = logs.Seldom(lambda: now[0])
    lines.handler.addFilter(seldom)
    audit = Audit()
    for _ in range(25):
        audit.denied(ALICE, "Fetch", [(READ, TOPIC, "t")])
    audit.denied(ALICE._replace(principal="User:bob"), "Fetch", [(READ, GROUP, "g")])
    assert len(lines.records) == 11
    now[0] = 100.0
    seldom.flush()
    lines.handler.removeFilter(seldom)
    assert lines.records[-1].getMessage() == "15 more like this: denied to User:alice"


def test_as_many_principals_as_there_are_take_no_memory(lines: pytest.LogCaptureFixture) -> None:
    seldom = logs.Seldom(lambda: 1.0)
    lines.handler.addFilter(seldom)
    audit = Audit()
    for number in range(KINDS_MAX + 50):
        who = ALICE._replace(principal=f"User:{number}")
        audit.denied(who, "CreateTopics", [(CREATE, CLUSTER, "kafka-cluster")])
    lines.handler.removeFilter(seldom)
    assert len(lines.records) == KINDS_MAX + 10
    assert len(audit._kinds) == KINDS_MAX


def test_change_has_a_line_for_each_outcome(lines: pytest.LogCaptureFixture) -> None:
    rows = [("topic a", NONE), ("topic b", TOPIC_ALREADY_EXISTS), ("topic c", NONE)]
    Audit().changed(ALICE, "CreateTopics", keys.CREATE_TOPICS, rows)
    assert [record.getMessage() for record in lines.records] == [
        "User:alice from 10.0.0.7:51234 by listener TLS, CreateTopics: topic a, topic c: done",
        "User:alice from 10.0.0.7:51234 by listener TLS, CreateTopics: topic b: "
        "TOPIC_ALREADY_EXISTS",
    ]
    assert getattr(lines.records[0], logs._FIELDS)["operation"] == "create"


@pytest.mark.parametrize("name", CASES)
def test_what_a_request_changes(name: str) -> None:
    version, request, answer, expected = CASES[name]
    asked = round_trip(f"{name}Request", version, request)
    said = round_trip(f"{name}Response", version, answer)
    key = {row.replace("_", "").lower(): row for row in vars(keys)}[name.lower()]
    rows = list(CHANGES[getattr(keys, key)](asked, said))
    assert rows == expected
    assert not any("secret" in what for what, _ in rows)


def round_trip(name: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
    return codec.decode_all(name, version, codec.encode(name, version, body))


def test_every_change_is_tried() -> None:
    tried = {name.lower() for name in CASES}
    names = {number: name.replace("_", "").lower() for name, number in vars(keys).items()
             if name.isupper() and isinstance(number, int)}  # fmt: skip
    assert {names[key] for key in CHANGES} == tried
    assert {operation_of(key) for key in CHANGES} == {"create", "alter", "delete"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders.v1-x_y", "orders.v1-x_y"),
        ("CN=Alice,O=x", '"CN=Alice,O=x"'),
        ("a: done", '"a: done"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("", '""'),
    ],
)
def test_names_of_clients_can_not_pretend(name: str, expected: str) -> None:
    assert shown(name) == expected


def test_unknown_error_is_a_number(lines: pytest.LogCaptureFixture) -> None:
    Audit().changed(ALICE, "DeleteTopics", keys.DELETE_TOPICS, [("topic a", 999)])
    assert lines.records[0].getMessage().endswith("topic a: 999")
