"""What somebody may try who has few rights, or had more a moment ago.

KAFKA_ORACLE_ACLS=PORT names an Apache Kafka as `acl_expectations` describes it, with nothing on it:
it is tried on that as well.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.wire import codec
from shmbroker.wire.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    MEMBER_ID_REQUIRED,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
)
from shmbroker.wire.frame import request_frame
from tests.processes.acl_expectations import our_side
from tests.processes.acl_side import ADMIN, HERE, TOPICS, AclSide
from tests.support.raw_client import RawClient, batch_of, fetch_body, key_of

ALLOWED, DENIED = 3, 2
LITERAL = 3
TOPIC, GROUP = 2, 3
READ, WRITE = 3, 4


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        pytest.param(
            "kafka",
            marks=[
                pytest.mark.oracle,
                pytest.mark.skipif("KAFKA_ORACLE_ACLS" not in os.environ, reason="no Apache Kafka"),
            ],
        ),
    ],
)
def side(request: pytest.FixtureRequest) -> Iterator[AclSide]:
    if request.param == "ours":
        with our_side() as ours:
            ours.set_up()
            yield ours
    else:
        port = int(os.environ["KAFKA_ORACLE_ACLS"])
        kafka = AclSide(f"{HERE}:{port}", f"{HERE}:{port + 1}")
        kafka.set_up()
        yield kafka
        kafka.close()


class Right:
    """One ACL of dave's that is given and taken back; each waits until it is seen."""

    def __init__(self, side: AclSide, kind: int, name: str, operation: int) -> None:
        self.side = side
        self.row = {
            "principal": "User:dave",
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": LITERAL,
            "operation": operation,
            "permission_type": ALLOWED,
            "host": "*",
        }
        self.filter = {
            "principal_filter": "User:dave",
            "resource_type_filter": kind,
            "resource_name_filter": name,
            "pattern_type_filter": LITERAL,
            "operation": operation,
            "permission_type": ALLOWED,
            "host_filter": None,
        }

    def give(self) -> None:
        self.side.admin("CreateAcls", 3, {"creations": [self.row]})
        self.side.until(self._is_there, "the right is there")

    def take(self) -> None:
        self.side.admin("DeleteAcls", 3, {"filters": [self.filter]})
        self.side.until(lambda: not self._is_there(), "the right is gone")

    def _is_there(self) -> bool:
        return bool(self.side.admin("DescribeAcls", 3, self.filter)["resources"])


def in_session(client: RawClient, session_id: int, epoch: int) -> dict[str, Any]:
    """A Fetch that names nothing: what the session has."""
    body = fetch_body("", 0)
    return client.ask("Fetch", 12, body | {
        "session_id": session_id, "session_epoch": epoch, "topics": [],
    })  # fmt: skip


def test_a_fetch_session_gives_nothing_when_the_right_is_taken_back(side: AclSide) -> None:
    right = Right(side, TOPIC, "t-none", READ)
    right.give()
    client = side.client("dave")
    body = fetch_body("t-none", 0) | {"session_epoch": 0}
    first = client.ask("Fetch", 12, body)
    (row,) = first["responses"][0]["partitions"]
    assert row["error_code"] == NONE and row["records"]
    session_id = first["session_id"]
    assert session_id
    again = in_session(client, session_id, 1)
    assert again["responses"][0]["partitions"][0]["records"], "the offset has not moved"
    right.take()
    answer = in_session(client, session_id, 2)
    (row,) = answer["responses"][0]["partitions"]
    assert (row["error_code"], row["records"] or b"") == (TOPIC_AUTHORIZATION_FAILED, b"")


def test_requests_that_repeat_their_bytes_are_refused_when_the_right_is_taken_back(
    side: AclSide,
) -> None:
    rights = [Right(side, TOPIC, "t-none", READ), Right(side, TOPIC, "t-none", WRITE)]
    for right in rights:
        right.give()
    client = side.client("dave")
    for _ in range(3):  # the same bytes: the broker knows them the second time
        assert client.produce("t-none", batch_of(b"again"))["error_code"] == NONE
        assert client.fetch("t-none", 0)["error_code"] == NONE
    for right in rights:
        right.take()
    produced = client.produce("t-none", batch_of(b"again"))
    assert produced["error_code"] == TOPIC_AUTHORIZATION_FAILED
    assert client.fetch("t-none", 0)["error_code"] == TOPIC_AUTHORIZATION_FAILED


def test_who_may_fetch_by_the_same_bytes_says_nothing_of_who_may_not(side: AclSide) -> None:
    body = fetch_body("t-read", 0)
    for who, error in ((ADMIN, NONE), ("nobody", TOPIC_AUTHORIZATION_FAILED), (ADMIN, NONE)):
        for _ in range(2):
            answer = side.client(who).ask("Fetch", 12, body)
            assert answer["responses"][0]["partitions"][0]["error_code"] == error


def test_a_member_is_heard_no_more_when_its_group_is_closed_to_it(side: AclSide) -> None:
    right = Right(side, GROUP, "g-closed", READ)
    right.give()
    client = side.client("dave")
    joining: dict[str, Any] = {
        "group_id": "g-closed",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
    }

    def is_told_its_id() -> bool:
        return client.ask("JoinGroup", 7, joining)["error_code"] == MEMBER_ID_REQUIRED

    side.until(is_told_its_id, "the coordinator answers")
    joining["member_id"] = client.ask("JoinGroup", 7, joining)["member_id"]
    joined = client.ask("JoinGroup", 7, joining)
    assert joined["error_code"] == NONE, joined
    member = {
        "group_id": "g-closed",
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
    }
    shares = [{"member_id": joined["member_id"], "assignment": b"all"}]
    synced = client.ask("SyncGroup", 3, member | {"assignments": shares})
    assert synced["error_code"] == NONE
    for _ in range(3):
        assert client.ask("Heartbeat", 3, member)["error_code"] == NONE
    for who in ("nobody", "carol"):  # the member's own words, by somebody else
        error = side.client(who).ask("Heartbeat", 3, member)["error_code"]
        assert error == (NONE if who == "carol" else GROUP_AUTHORIZATION_FAILED)
        if who == "nobody":
            leaving = {"group_id": "g-closed", "members": [{"member_id": joined["member_id"]}]}
            left = side.client(who).ask("LeaveGroup", 3, leaving)
            assert left["error_code"] == GROUP_AUTHORIZATION_FAILED
    right.take()
    assert client.ask("Heartbeat", 3, member)["error_code"] == GROUP_AUTHORIZATION_FAILED
    refused = client.ask("SyncGroup", 3, member | {"assignments": []})
    assert (refused["error_code"], refused["assignment"]) == (GROUP_AUTHORIZATION_FAILED, b"")


def beat(client: RawClient, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    body = {"group_id": "g-read", "member_id": member, "member_epoch": epoch}
    return client.ask("ConsumerGroupHeartbeat", 1, body | more)


def test_an_expression_finds_no_topic_that_its_member_may_not_describe(side: AclSide) -> None:
    client = side.client("dave")
    joining = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    expression = {"subscribed_topic_regex": "t-.*|public"}
    answer = beat(client, "of-dave", 0, **joining, **expression)
    names = {topic_id: name for name, topic_id in side.topics.items()}
    told: list[str] = []

    def is_told() -> bool:
        nonlocal answer
        answer = beat(client, "of-dave", answer["member_epoch"], topic_partitions=[])
        rows = (answer["assignment"] or {}).get("topic_partitions", ())
        told.extend(names[row["topic_id"]] for row in rows)
        return bool(told)

    side.until(is_told, "topics are assigned")
    assert sorted(told) == sorted({*TOPICS} - {"t-none", "t-create", "t-dconf", "t-aconf"})
    beat(client, "of-dave", -1)


def test_nobody_speaks_for_a_consumer_of_somebody_else(side: AclSide) -> None:
    client = side.client("dave")
    more = {"rebalance_timeout_ms": 60_000, "topic_partitions": [],
            "subscribed_topic_names": ["t-read"]}  # fmt: skip
    joined = beat(client, "mine", 0, **more)
    assert joined["error_code"] == NONE
    for who in ("nobody", "carol"):
        for epoch in (joined["member_epoch"], -1):
            error = beat(side.client(who), "mine", epoch)["error_code"]
            assert error == GROUP_AUTHORIZATION_FAILED
    assert beat(client, "mine", joined["member_epoch"])["error_code"] == NONE
    assert beat(client, "mine", -1)["error_code"] == NONE
    assert beat(client, "mine", joined["member_epoch"])["error_code"] == UNKNOWN_MEMBER_ID


def test_a_forwarded_request_that_names_another_is_not_taken_from_a_client(side: AclSide) -> None:
    topic = {"name": "by-an-envelope", "num_partitions": 1, "replication_factor": 1}
    inner = codec.encode("CreateTopicsRequest", 7, {"topics": [topic], "timeout_ms": 10_000})
    frame = request_frame(key_of("CreateTopics"), 7, 1, "admin", inner)
    body = {
        "request_data": frame[4:],
        "request_principal": b"\x00\x00\x05User\x06admin\x00\x00",
        "client_host_address": bytes((127, 0, 0, 1)),
    }
    with side.connect("dave") as client:
        client.send("Envelope", 0, body)
        assert client.is_closed_by_broker()
    asked = {"topics": [{"name": "by-an-envelope"}], "allow_auto_topic_creation": False}
    (row,) = side.admin("Metadata", 12, asked)["topics"]
    assert row["error_code"]


def test_ids_of_topics_open_nothing_that_their_names_do_not(side: AclSide) -> None:
    """The matrix asks each API by id; here one that is made anew under the same name."""
    client = side.client("dave")
    side.make_topics("d-none")
    old = side.topics["d-none"]
    side.admin("DeleteTopics", 6, {
        "topics": [{"name": "d-none", "topic_id": bytes(16)}], "timeout_ms": 10_000,
    })  # fmt: skip
    side.make_topics("d-none")
    for topic_id in (old, side.topics["d-none"]):
        rows = [{"name": None, "topic_id": topic_id}]
        (row,) = client.ask("Metadata", 12, {"topics": rows})["topics"]
        assert row["name"] is None and row["error_code"], "its name is not told"
        deleted = {"topics": [{"name": None, "topic_id": topic_id}], "timeout_ms": 10_000}
        (row,) = client.ask("DeleteTopics", 6, deleted)["responses"]
        assert row["name"] is None and row["error_code"]
