"""The group APIs in all their versions, as bytes on a socket, answered as Apache Kafka 4.2.1 does.

With KAFKA_ORACLE=host:port a Kafka with group.initial.rebalance.delay.ms=0 is asked the same.
"""

import os
from collections.abc import Iterator

import pytest

from shmbroker import clock
from shmbroker.testing.broker import Broker
from shmbroker.wire import api_keys, error_codes
from tests.clients.test_group_confluent import FLAGS
from tests.support.raw_client import RawClient, key_of

SUBSCRIPTION = b"\0\0\0\0\0\1\0\6wire-t\xff\xff\xff\xff"
TOPIC = f"wire-t{os.getpid()}"
NOWHERE = error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if "KAFKA_ORACLE" in os.environ:
        yield os.environ["KAFKA_ORACLE"]
        return
    with Broker(*FLAGS) as broker:
        yield broker.address


@pytest.fixture(scope="module")
def topic_id(address: str) -> bytes:
    with RawClient(address) as client:
        found = client.create_topic(TOPIC, 2)
        deadline = clock.monotonic() + 30
        body = {"key_type": 0, "coordinator_keys": ["g"]}
        while client.ask("FindCoordinator", 6, body)["coordinators"][0]["error_code"]:
            assert clock.monotonic() < deadline
    return found


@pytest.fixture
def client(address: str, topic_id: bytes) -> Iterator[RawClient]:
    with RawClient(address) as made:
        yield made


def capped(name: str, version: int) -> int:
    """The version, or the highest that this API has."""
    return min(version, api_keys.TABLE[key_of(name)][2])


def join_body(group: str, **more: object) -> dict[str, object]:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    } | more


def join(client: RawClient, group: str, version: int = 9, **more: object) -> dict[str, object]:
    """Join with whatever id is asked for."""
    answer = client.ask("JoinGroup", version, join_body(group, **more))
    if answer["error_code"] == error_codes.MEMBER_ID_REQUIRED:
        more["member_id"] = answer["member_id"]
        answer = client.ask("JoinGroup", version, join_body(group, **more))
    return answer


def commit_body(group: str, topic_id: bytes, **more: object) -> dict[str, object]:
    rows = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}]
    topics = [{"name": TOPIC, "topic_id": topic_id, "partitions": rows}]
    return {"group_id": group, "topics": topics} | more


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_in_every_version(client: RawClient, topic_id: bytes, version: int) -> None:
    group = f"life-{os.getpid()}-{version}"
    answer = join(client, group, version)
    member = answer["member_id"]
    assert (answer["error_code"], answer["generation_id"], answer["leader"]) == (0, 1, member)
    assert answer["protocol_name"] == "range"
    assert answer["protocol_type"] == ("consumer" if version >= 7 else None)
    assert [(row["member_id"], row["metadata"]) for row in answer["members"]] == [
        (member, SUBSCRIPTION)
    ]
    identity = {"group_id": group, "member_id": member, "generation_id": 1}
    sync = {
        "assignments": [{"member_id": member, "assignment": b"all of it"}],
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    answer = client.ask("SyncGroup", capped("SyncGroup", version), identity | sync)
    assert (answer["error_code"], answer["assignment"]) == (0, b"all of it")
    answer = client.ask("Heartbeat", capped("Heartbeat", version), identity)
    assert answer["error_code"] == 0
    described = client.ask(
        "DescribeGroups", capped("DescribeGroups", version), {"groups": [group]}
    )["groups"][0]
    assert described["error_code"] == 0
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    (row,) = described["members"]
    assert (row["client_id"], row["client_host"]) == ("raw", "/127.0.0.1")
    assert (row["member_metadata"], row["member_assignment"]) == (SUBSCRIPTION, b"all of it")
    listed = client.ask("ListGroups", capped("ListGroups", version), {})["groups"]
    (row,) = [row for row in listed if row["group_id"] == group]
    assert row["protocol_type"] == "consumer"
    assert row["group_state"] == ("Stable" if version >= 4 else "")
    deletion = {"groups_names": [group]}
    delete_version = capped("DeleteGroups", version)
    (row,) = client.ask("DeleteGroups", delete_version, deletion)["results"]
    assert row["error_code"] == error_codes.NON_EMPTY_GROUP
    leave = {"group_id": group} | (
        {"members": [{"member_id": member}]} if version >= 3 else {"member_id": member}
    )
    answer = client.ask("LeaveGroup", capped("LeaveGroup", version), leave)
    assert answer["error_code"] == 0
    assert [row["error_code"] for row in answer["members"]] == ([0] if version >= 3 else [])
    (row,) = client.ask("DeleteGroups", delete_version, deletion)["results"]
    assert row["error_code"] == 0


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_are_kept_in_every_version(
    client: RawClient, topic_id: bytes, version: int
) -> None:
    group = f"offsets-{os.getpid()}-{version}"
    body = commit_body(group, topic_id)
    rows = body["topics"][0]["partitions"]
    rows.append({"partition_index": 1, "committed_offset": 1, "committed_metadata": "x" * 4097})
    rows.append({"partition_index": 2, "committed_offset": 1})
    answer = client.ask("OffsetCommit", version, body)
    codes = {row["partition_index"]: row["error_code"] for row in answer["topics"][0]["partitions"]}
    assert codes == {0: 0, 1: error_codes.OFFSET_METADATA_TOO_LARGE, 2: NOWHERE}
    for fetch_version in range(1, 11):
        row = fetched(client, group, fetch_version, topic_id)
        assert row == {0: (7, "m", 0), 1: (-1, "", 0)}
    client.ask("DeleteGroups", 2, {"groups_names": [group]})


def fetched(
    client: RawClient, group: str, version: int, topic_id: bytes
) -> dict[int, tuple[int, str, int]]:
    """Partition to (offset, metadata, error code)."""
    topic = {"name": TOPIC, "topic_id": topic_id, "partition_indexes": [0, 1]}
    if version < 8:
        answer = client.ask("OffsetFetch", version, {"group_id": group, "topics": [topic]})
    else:
        asked = {"groups": [{"group_id": group, "topics": [topic]}]}
        (answer,) = client.ask("OffsetFetch", version, asked)["groups"]
    assert answer["error_code"] == 0
    (found,) = answer["topics"]
    return {
        row["partition_index"]: (row["committed_offset"], row["metadata"], row["error_code"])
        for row in found["partitions"]
    }


def test_a_static_member_replaces_itself_and_fences_the_other(
    address: str, client: RawClient, topic_id: bytes
) -> None:
    group = f"static-{os.getpid()}"
    old = join(client, group, group_instance_id="i")["member_id"]
    identity = {"group_id": group, "generation_id": 1, "group_instance_id": "i"}
    sync = {"protocol_type": "consumer", "protocol_name": "range"}
    client.ask("SyncGroup", 5, identity | sync | {"member_id": old})
    answer = join(client, group, group_instance_id="i")
    assert (answer["error_code"], answer["generation_id"]) == (0, 1)
    assert answer["skip_assignment"] is True
    new = answer["member_id"]
    assert new != old
    fenced = error_codes.FENCED_INSTANCE_ID
    assert client.ask("Heartbeat", 4, identity | {"member_id": old})["error_code"] == fenced
    assert client.ask("Heartbeat", 4, identity | {"member_id": new})["error_code"] == 0
    leave = {"group_id": group, "members": [{"member_id": "", "group_instance_id": "i"}]}
    (row,) = client.ask("LeaveGroup", 5, leave)["members"]
    assert (row["member_id"], row["group_instance_id"], row["error_code"]) == ("", "i", 0)
    client.ask("DeleteGroups", 2, {"groups_names": [group]})


def test_a_second_member_waits_for_the_first(
    address: str, client: RawClient, topic_id: bytes
) -> None:
    group = f"two-{os.getpid()}"
    one = join(client, group)["member_id"]
    identity = {"group_id": group, "member_id": one}
    sync = {"protocol_type": "consumer", "protocol_name": "range"}
    client.ask("SyncGroup", 5, identity | sync | {"generation_id": 1})
    with RawClient(address) as other:
        body = join_body(group)
        two = other.ask("JoinGroup", 9, body)["member_id"]
        other.send("JoinGroup", 9, body | {"member_id": two})
        deadline = clock.monotonic() + 30
        beat = identity | {"generation_id": 1}
        while client.ask("Heartbeat", 4, beat)["error_code"] == 0:
            assert clock.monotonic() < deadline
        assert client.ask("Heartbeat", 4, beat)["error_code"] == error_codes.REBALANCE_IN_PROGRESS
        first = join(client, group, member_id=one)
        second = other.receive("JoinGroup", 9)
        assert first["generation_id"] == second["generation_id"] == 2
        assert sorted(len(answer["members"]) for answer in (first, second)) == [0, 2]
        leave = {"group_id": group, "members": [{"member_id": one}, {"member_id": two}]}
        rows = client.ask("LeaveGroup", 5, leave)["members"]
        assert [row["error_code"] for row in rows] == [0, 0]
    client.ask("DeleteGroups", 2, {"groups_names": [group]})


def test_refusals_are_kafkas(client: RawClient, topic_id: bytes) -> None:
    none = f"none-{os.getpid()}"
    who = {"group_id": none, "member_id": "ghost", "generation_id": 1}
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
    named = {"protocol_type": None, "protocol_name": None}
    for name, version, body, code in (
        ("JoinGroup", 9, join_body(none, session_timeout_ms=5999), "INVALID_SESSION_TIMEOUT"),
        ("JoinGroup", 9, join_body(""), "INVALID_GROUP_ID"),
        ("JoinGroup", 9, join_body(none, member_id="ghost"), "UNKNOWN_MEMBER_ID"),
        # Of another group, as Kafka keeps one that nobody could join.
        ("JoinGroup", 9, join_body(none + "-1", protocols=[]), "INCONSISTENT_GROUP_PROTOCOL"),
        ("SyncGroup", 5, who | protocol, "UNKNOWN_MEMBER_ID"),
        ("SyncGroup", 5, who | named, "INCONSISTENT_GROUP_PROTOCOL"),
        ("SyncGroup", 5, who | protocol | {"group_id": ""}, "INVALID_GROUP_ID"),
        ("Heartbeat", 4, who, "UNKNOWN_MEMBER_ID"),
        ("Heartbeat", 4, who | {"group_id": ""}, "INVALID_GROUP_ID"),
        ("LeaveGroup", 2, who, "UNKNOWN_MEMBER_ID"),
        ("LeaveGroup", 5, {"group_id": "", "members": []}, "INVALID_GROUP_ID"),
        ("LeaveGroup", 1, {"group_id": none, "member_id": "ghost"}, "UNKNOWN_MEMBER_ID"),
        ("OffsetDelete", 0, {"group_id": none, "topics": topics}, "GROUP_ID_NOT_FOUND"),
        ("OffsetDelete", 0, {"group_id": "", "topics": topics}, "INVALID_GROUP_ID"),
        ("OffsetDelete", 0, {"group_id": "", "topics": []}, "INVALID_GROUP_ID"),
    ):
        answer = client.ask(name, version, body)
        assert error_codes.name_of(answer["error_code"]) == code, (name, body)
    for version, code in ((8, "ILLEGAL_GENERATION"), (9, "GROUP_ID_NOT_FOUND")):
        body = commit_body(none, topic_id, generation_id_or_member_epoch=1, member_id="x")
        answer = client.ask("OffsetCommit", version, body)
        (row,) = answer["topics"][0]["partitions"]
        assert error_codes.name_of(row["error_code"]) == code
    body = commit_body(none, b"?" * 16)
    (row,) = client.ask("OffsetCommit", 10, body)["topics"][0]["partitions"]
    assert row["error_code"] == error_codes.UNKNOWN_TOPIC_ID
    for version, code, state in ((5, "NONE", "Dead"), (6, "GROUP_ID_NOT_FOUND", "Dead")):
        (row,) = client.ask("DescribeGroups", version, {"groups": [none]})["groups"]
        assert (error_codes.name_of(row["error_code"]), row["group_state"]) == (code, state)


def test_offsets_of_what_is_read_are_not_deleted(client: RawClient, topic_id: bytes) -> None:
    group = f"reading-{os.getpid()}"
    name = TOPIC.encode()
    metadata = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    member = join(client, group, protocols=[{"name": "range", "metadata": metadata}])["member_id"]
    identity = {"group_id": group, "member_id": member, "generation_id": 1}
    sync = {"protocol_type": "consumer", "protocol_name": "range"}
    waits = error_codes.REBALANCE_IN_PROGRESS
    body = commit_body(group, topic_id, member_id=member, generation_id_or_member_epoch=1)
    assert code_of(client.ask("OffsetCommit", 9, body)) == waits
    client.ask("SyncGroup", 5, identity | sync)
    assert code_of(client.ask("OffsetCommit", 9, body)) == 0
    stranger = commit_body(group, topic_id)
    unknown = error_codes.UNKNOWN_MEMBER_ID
    assert code_of(client.ask("OffsetCommit", 9, stranger)) == unknown
    deletion = {
        "group_id": group,
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}],
    }
    in_use = error_codes.GROUP_SUBSCRIBED_TO_TOPIC
    assert deleted(client, deletion) == {0: in_use, 9: NOWHERE}
    client.ask("LeaveGroup", 5, {"group_id": group, "members": [{"member_id": member}]})
    assert deleted(client, deletion) == {0: 0, 9: NOWHERE}
    assert fetched(client, group, 9, topic_id)[0] == (-1, "", 0)
    client.ask("DeleteGroups", 2, {"groups_names": [group]})


def code_of(answer: dict[str, object]) -> int:
    return answer["topics"][0]["partitions"][0]["error_code"]


def deleted(client: RawClient, body: dict[str, object]) -> dict[int, int]:
    answer = client.ask("OffsetDelete", 0, body)
    assert answer["error_code"] == 0
    return {row["partition_index"]: row["error_code"] for row in answer["topics"][0]["partitions"]}
