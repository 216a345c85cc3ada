"""What groups, offsets and topics answer to input that is wrong: one test for each case.

With KAFKA_ORACLE=host:port a Kafka with group.initial.rebalance.delay.ms=0 is asked the same; it
must answer the same, but for what only a broker with small limits of its own can show.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.groups.group_partition import group_partition
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from shmbroker.wire.primitives import uvarint
from tests.processes.test_kill_under_load import kill, wait_for_successors
from tests.support.raw_client import RawClient, batch_of
from tests.support.waiting import wait_until

IS_OURS = "KAFKA_ORACLE" not in os.environ
ours_only = pytest.mark.skipif(not IS_OURS, reason="needs a broker with settings of its own")
FLAGS = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "group.max.size=3",
    "--set", "offsets.topic.num.partitions=5",
)  # fmt: skip
RUN = f"bad{os.getpid()}"
TOPIC = f"{RUN}-topic"
NO_TOPIC_ID = b"?" * 16
GROUPS = 10_000
GROUPS_KIB_MAX = 200 * 1024
"""Memory that 10,000 groups may cost all processes together: 20 KiB each."""

Body = dict[str, Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | None]:
    if not IS_OURS:
        yield None
        return
    with Broker(*FLAGS) as started:
        yield started
        assert "Traceback" not in started.log, started.log


@pytest.fixture(scope="module")
def address(broker: Broker | None) -> str:
    found = broker.address if broker else os.environ["KAFKA_ORACLE"]
    with RawClient(found) as client:
        client.create_topic(TOPIC, 2)
        keys = {"key_type": 0, "coordinator_keys": ["any"]}
        wait_until(
            lambda: not client.ask("FindCoordinator", 6, keys)["coordinators"][0]["error_code"],
            "a coordinator",
        )
    return found


@pytest.fixture
def client(address: str) -> Iterator[RawClient]:
    with RawClient(address, 60) as made:
        yield made


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"{RUN}-{request.node.name}"


# ── requests ────────────────────────────────────────────────────────────────────────────────────


def name_of(answer: Body) -> str:
    return error_codes.name_of(answer["error_code"])


def join_body(group: str, **more: Any) -> Body:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    } | more


def join(client: RawClient, group: str, **more: Any) -> Body:
    """Join with the id that is given."""
    answer = client.ask("JoinGroup", 9, join_body(group, **more))
    if answer["error_code"] == error_codes.MEMBER_ID_REQUIRED:
        more["member_id"] = answer["member_id"]
        answer = client.ask("JoinGroup", 9, join_body(group, **more))
    return answer


def sync(client: RawClient, group: str, member: str, generation: int = 1, **more: Any) -> Body:
    body = {
        "group_id": group,
        "member_id": member,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    return client.ask("SyncGroup", 5, body | more)


def heartbeat(client: RawClient, group: str, member: str, generation: int, **more: Any) -> str:
    body = {"group_id": group, "member_id": member, "generation_id": generation}
    return name_of(client.ask("Heartbeat", 4, body | more))


def commit(
    client: RawClient, group: str, member: str = "", generation: int = -1, version: int = 9,
    **more: Any,
) -> str:  # fmt: skip
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topic = {"name": TOPIC} | {key: more.pop(key) for key in ("name", "topic_id") if key in more}
    body = {
        "group_id": group,
        "member_id": member,
        "generation_id_or_member_epoch": generation,
        "group_instance_id": more.pop("instance", None),
        "topics": [topic | {"partitions": [row | more]}],
    }
    answer = client.ask("OffsetCommit", version, body)
    return name_of(answer["topics"][0]["partitions"][0])


def fetched(client: RawClient, group: str) -> list[Body]:
    topics = [{"name": TOPIC, "partition_indexes": [0, 1]}]
    body = {"groups": [{"group_id": group, "topics": topics}]}
    (answer,) = client.ask("OffsetFetch", 8, body)["groups"]
    assert answer["error_code"] == 0
    return answer["topics"][0]["partitions"]


def member_of(client: RawClient, group: str, **more: Any) -> str:
    """The one member of a stable group."""
    member = join(client, group, **more)["member_id"]
    assert name_of(
        sync(client, group, member, group_instance_id=more.get("group_instance_id"))
    ) == ("NONE")
    return member


# ── members ─────────────────────────────────────────────────────────────────────────────────────


def test_empty_group_id(client: RawClient) -> None:
    wanted = "INVALID_GROUP_ID"
    assert name_of(client.ask("JoinGroup", 9, join_body(""))) == wanted
    assert name_of(sync(client, "", "m")) == wanted
    assert heartbeat(client, "", "m", 1) == wanted
    leave = {"group_id": "", "members": [{"member_id": "m"}]}
    assert name_of(client.ask("LeaveGroup", 5, leave)) == wanted


@pytest.mark.parametrize("timeout", [-1, 0, 5999, 1_800_001, 2**31 - 1])
def test_session_timeout_outside_limits(client: RawClient, group: str, timeout: int) -> None:
    body = join_body(group, session_timeout_ms=timeout)
    assert name_of(client.ask("JoinGroup", 9, body)) == "INVALID_SESSION_TIMEOUT"


@pytest.mark.parametrize("version", range(10))
def test_first_join_without_member_id(client: RawClient, group: str, version: int) -> None:
    answer = client.ask("JoinGroup", version, join_body(group))
    assert answer["member_id"]
    assert name_of(answer) == ("MEMBER_ID_REQUIRED" if version >= 4 else "NONE")
    assert answer["generation_id"] == (-1 if version >= 4 else 1)


def test_unknown_member_of_a_group(client: RawClient, group: str) -> None:
    member_of(client, group)
    unknown = "UNKNOWN_MEMBER_ID"
    assert name_of(client.ask("JoinGroup", 9, join_body(group, member_id="ghost"))) == unknown
    assert name_of(sync(client, group, "ghost")) == unknown
    assert heartbeat(client, group, "ghost", 1) == unknown
    assert commit(client, group, "ghost", 1) == unknown
    leave = {"group_id": group, "members": [{"member_id": "ghost"}]}
    answer = client.ask("LeaveGroup", 5, leave)
    assert (name_of(answer), name_of(answer["members"][0])) == ("NONE", unknown)


def test_ghosts_of_no_group(client: RawClient, group: str) -> None:
    unknown = "UNKNOWN_MEMBER_ID"
    assert name_of(client.ask("JoinGroup", 9, join_body(group, member_id="ghost"))) == unknown
    assert name_of(sync(client, group, "ghost")) == unknown
    for generation in (-1, 0, 1, 2**31 - 1):
        assert heartbeat(client, group, "ghost", generation) == unknown
    assert heartbeat(client, group, "", 1) == unknown
    assert heartbeat(client, group, "ghost", 1, group_instance_id="i") == unknown
    (described,) = client.ask("DescribeGroups", 6, {"groups": [group]})["groups"]
    assert described["group_state"] == "Dead", "a ghost has made a group"


@pytest.mark.parametrize("generation", [-1, 0, 2, 2**31 - 1])
def test_wrong_generation(client: RawClient, group: str, generation: int) -> None:
    member = member_of(client, group)
    assert name_of(sync(client, group, member, generation)) == "ILLEGAL_GENERATION"
    assert heartbeat(client, group, member, generation) == "ILLEGAL_GENERATION"
    assert commit(client, group, member, generation) == "ILLEGAL_GENERATION"
    assert heartbeat(client, group, member, 1) == "NONE"


def test_protocol_mismatch(client: RawClient, group: str) -> None:
    member = member_of(client, group)
    for more in (
        {"protocols": [{"name": "other", "metadata": b"m"}]},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": []},
    ):
        answer = client.ask("JoinGroup", 9, join_body(group, **more))
        assert name_of(answer) == "INCONSISTENT_GROUP_PROTOCOL", more
    for more in ({"protocol_type": "connect"}, {"protocol_name": "other"}):
        assert name_of(sync(client, group, member, **more)) == "INCONSISTENT_GROUP_PROTOCOL", more
    assert heartbeat(client, group, member, 1) == "NONE"


def test_static_member_replaced(client: RawClient, group: str) -> None:
    static = {"group_instance_id": "i"}
    old = member_of(client, group, **static)
    new = join(client, group, **static)["member_id"]
    fenced = "FENCED_INSTANCE_ID"
    assert heartbeat(client, group, old, 1, **static) == fenced
    assert name_of(sync(client, group, old, **static)) == fenced
    assert commit(client, group, old, 1, instance="i") == fenced
    assert name_of(join(client, group, member_id=old, **static)) == fenced
    leave = {"group_id": group, "members": [{"member_id": old} | static]}
    (row,) = client.ask("LeaveGroup", 5, leave)["members"]
    assert name_of(row) == fenced
    # Without its instance it is nobody.
    assert heartbeat(client, group, old, 1) == "UNKNOWN_MEMBER_ID"
    assert commit(client, group, old, 1) == "UNKNOWN_MEMBER_ID"
    assert heartbeat(client, group, new, 1, **static) == "NONE"
    assert fetched(client, group)[0]["committed_offset"] == -1


@ours_only
def test_group_full(client: RawClient, group: str, address: str) -> None:
    first = client.ask("JoinGroup", 3, join_body(group))["member_id"]
    clients = [RawClient(address) for _ in range(3)]
    for each in clients[:2]:
        each.send("JoinGroup", 3, join_body(group))

    def members() -> int:
        (row,) = client.ask("DescribeGroups", 5, {"groups": [group]})["groups"]
        return len(row["members"])

    wait_until(lambda: members() == 3, "three members")
    clients[2].send("JoinGroup", 3, join_body(group, member_id=first))
    for each in clients:
        assert each.receive("JoinGroup", 3)["error_code"] == 0
    for version in (3, 9):
        answer = client.ask("JoinGroup", version, join_body(group))
        assert (name_of(answer), answer["member_id"]) == ("GROUP_MAX_SIZE_REACHED", "")
    for each in clients:
        each.close()


def test_rebalancing(client: RawClient, address: str, group: str) -> None:
    first = join(client, group)["member_id"]
    # It awaits its assignment.
    assert commit(client, group, first, 1) == "REBALANCE_IN_PROGRESS"
    assert heartbeat(client, group, first, 1) == "NONE"
    sync(client, group, first)
    assert commit(client, group, first, 1) == "NONE"
    with RawClient(address) as other:
        other.send("JoinGroup", 3, join_body(group))
        wait_until(
            lambda: heartbeat(client, group, first, 1) == "REBALANCE_IN_PROGRESS", "a rebalance"
        )
        # Until it joins again it still may commit, as a consumer that gives up partitions does.
        assert commit(client, group, first, 1) == "NONE"
        assert name_of(sync(client, group, first)) == "REBALANCE_IN_PROGRESS"


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_to_unknown_group_with_generation(
    client: RawClient, group: str, version: int
) -> None:
    wanted = "GROUP_ID_NOT_FOUND" if version >= 9 else "ILLEGAL_GENERATION"
    topic_id = topic_id_of(client)
    assert commit(client, group, "m", 1, version, topic_id=topic_id) == wanted


def topic_id_of(client: RawClient) -> bytes:
    return client.ask("Metadata", 12, {"topics": [{"name": TOPIC}]})["topics"][0]["topic_id"]


def test_commit_of_non_member_of_live_group(client: RawClient, group: str) -> None:
    member = member_of(client, group)
    assert commit(client, group) == "UNKNOWN_MEMBER_ID"
    assert commit(client, group, "", 1) == "UNKNOWN_MEMBER_ID"
    assert commit(client, group, member, 1) == "NONE"


def test_commit_of_member_that_has_left(client: RawClient, group: str) -> None:
    member = member_of(client, group)
    leave = {"group_id": group, "members": [{"member_id": member}]}
    assert name_of(client.ask("LeaveGroup", 5, leave)["members"][0]) == "NONE"
    assert commit(client, group, member, 1) == "UNKNOWN_MEMBER_ID"
    assert commit(client, group) == "NONE", "nobody is in it"


def test_commit_to_unknown_topic(client: RawClient, group: str) -> None:
    wanted = "UNKNOWN_TOPIC_OR_PARTITION"
    assert commit(client, group, name=f"{RUN}-nowhere") == wanted
    assert commit(client, group, partition_index=2) == wanted
    assert commit(client, group, partition_index=-1) == wanted
    assert commit(client, group, version=10, topic_id=NO_TOPIC_ID) == "UNKNOWN_TOPIC_ID"
    assert commit(client, group, version=10, topic_id=bytes(16)) == "UNKNOWN_TOPIC_ID"


@pytest.mark.parametrize("size", [4096, 4097, 5 * 1024, 32767])
def test_metadata_too_long(client: RawClient, group: str, size: int) -> None:
    wanted = "NONE" if size <= 4096 else "OFFSET_METADATA_TOO_LARGE"
    assert commit(client, group, committed_metadata="ü" * size if size <= 4096 else "x" * size) == (
        wanted
    )
    found = fetched(client, group)[0]
    if wanted == "NONE":
        assert (found["committed_offset"], found["metadata"]) == (1, "ü" * size)
    else:
        assert (found["committed_offset"], found["metadata"]) == (-1, "")


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_committed_offset_is_not_judged(client: RawClient, group: str, offset: int) -> None:
    assert commit(client, group, committed_offset=offset) == "NONE"
    assert fetched(client, group)[0]["committed_offset"] == offset


def test_fetch_without_commit(client: RawClient, group: str) -> None:
    for row in fetched(client, group):
        assert (row["committed_offset"], row["error_code"], row["metadata"]) == (-1, 0, "")
    body = {"groups": [{"group_id": group, "topics": None}]}
    assert client.ask("OffsetFetch", 8, body)["groups"][0]["topics"] == []
    (described,) = client.ask("DescribeGroups", 6, {"groups": [group]})["groups"]
    assert name_of(described) == "GROUP_ID_NOT_FOUND"


def test_delete_of_groups_that_are_not_there_or_not_empty(client: RawClient, group: str) -> None:
    member_of(client, group)
    asked = [group, group + "-none", ""]
    rows = client.ask("DeleteGroups", 2, {"groups_names": asked})["results"]
    assert {row["group_id"]: name_of(row) for row in rows} == {
        group: "NON_EMPTY_GROUP",
        group + "-none": "GROUP_ID_NOT_FOUND",
        "": "GROUP_ID_NOT_FOUND",
    }


def test_consumer_group_describe_of_no_consumer_group(client: RawClient, group: str) -> None:
    """Tools print the message."""
    assert commit(client, group) == "NONE"
    asked = [group, group + "-none"]
    rows = client.ask("ConsumerGroupDescribe", 1, {"group_ids": asked})["groups"]
    assert [(name_of(row), row["error_message"]) for row in rows] == [
        ("GROUP_ID_NOT_FOUND", f"Group {group} is not a consumer group."),
        ("GROUP_ID_NOT_FOUND", f"Group {group}-none not found."),
    ]


# ── names ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [249, 32 * 1024 - 1])
def test_group_id_of_32_kib(client: RawClient, size: int) -> None:
    """32767 bytes are what a string may have."""
    name = f"{RUN}-{size}-".ljust(size, "g")
    assert commit(client, name) == "NONE"
    assert fetched(client, name)[0]["committed_offset"] == 1
    (row,) = client.ask("DescribeGroups", 5, {"groups": [name]})["groups"]
    assert (row["group_id"], row["group_state"]) == (name, "Empty")
    assert name_of(join(client, name, protocols=[{"name": name, "metadata": b""}])) == "NONE"
    (row,) = client.ask("DeleteGroups", 2, {"groups_names": [name]})["results"]
    assert name_of(row) == "NON_EMPTY_GROUP"


@pytest.mark.parametrize("size", [32 * 1024, 60_000])
def test_group_id_over_32_kib(client: RawClient, size: int) -> None:
    """Only a compact string can be longer: Kafka closes the connection."""
    frame = bytearray(b"\0\x0c\0\4\0\0\0\1\0\3raw\0")
    frame += uvarint(size + 1) + b"g" * size
    frame += b"\0\0\0\1" + b"\2m" + b"\0\0"
    client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
    assert client.is_closed_by_broker()


@pytest.mark.parametrize("name", ["a b", "ü", "\0", "..", "/etc/passwd", "💥", "\n"])
def test_group_ids_are_any_text(client: RawClient, name: str) -> None:
    assert commit(client, RUN + name) == "NONE"
    assert fetched(client, RUN + name)[0]["committed_offset"] == 1
    listed = {row["group_id"] for row in client.ask("ListGroups", 5, {})["groups"]}
    assert RUN + name in listed
    (row,) = client.ask("DeleteGroups", 2, {"groups_names": [RUN + name]})["results"]
    assert name_of(row) == "NONE"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a" * 250, "a b", "a/b", "ü", "a\0b", "a:b", "a\n"],
    ids=lambda name: repr(name[:4]),
)
def test_invalid_topic_name(client: RawClient, name: str) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    answer = client.ask("CreateTopics", 7, {"topics": [topic], "timeout_ms": 10_000})
    assert name_of(answer["topics"][0]) == "INVALID_TOPIC_EXCEPTION"


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b")])
def test_colliding_topic_name(client: RawClient, first: str, second: str) -> None:
    prefix = f"{RUN}-{first.encode().hex()}-"
    client.create_topic(prefix + first)
    topic = {"name": prefix + second, "num_partitions": 1, "replication_factor": 1}
    answer = client.ask("CreateTopics", 7, {"topics": [topic], "timeout_ms": 10_000})
    assert name_of(answer["topics"][0]) == "INVALID_TOPIC_EXCEPTION"
    if IS_OURS:  # Kafka looks at those that there are, not at the request's own
        both = [topic | {"name": prefix + "x.y"}, topic | {"name": prefix + "x_y"}]
        answer = client.ask("CreateTopics", 7, {"topics": both, "timeout_ms": 10_000})
        assert sorted(map(name_of, answer["topics"])) == ["INVALID_TOPIC_EXCEPTION", "NONE"]


# ── DeleteRecords ───────────────────────────────────────────────────────────────────────────────


def delete_records(client: RawClient, topic: str, offset: int, partition: int = 0) -> Body:
    rows = [{"partition_index": partition, "offset": offset}]
    body = {"topics": [{"name": topic, "partitions": rows}], "timeout_ms": 10_000}
    return client.ask("DeleteRecords", 2, body)["topics"][0]["partitions"][0]


def test_delete_records_out_of_range_compacted_or_internal(client: RawClient) -> None:
    plain, compacted = f"{RUN}-plain", f"{RUN}-compacted"
    client.create_topic(plain)
    client.create_topic(compacted, **{"cleanup.policy": "compact"})
    batch = batch_of(b"1", b"2", b"3", timestamp=clock.now_ms())
    wait_until(lambda: client.produce(plain, batch)["error_code"] == 0, "a leader")
    for offset in (4, 2**63 - 1, -2):
        row = delete_records(client, plain, offset)
        assert (name_of(row), row["low_watermark"]) == ("OFFSET_OUT_OF_RANGE", -1)
    for offset, low in ((2, 2), (1, 2), (-1, 3)):
        row = delete_records(client, plain, offset)
        assert (name_of(row), row["low_watermark"]) == ("NONE", low)
    assert name_of(delete_records(client, compacted, 0)) == "POLICY_VIOLATION"
    assert name_of(delete_records(client, "__consumer_offsets", 0)) == "INVALID_TOPIC_EXCEPTION"
    nowhere = "UNKNOWN_TOPIC_OR_PARTITION"
    assert name_of(delete_records(client, f"{RUN}-nowhere", 0)) == nowhere
    assert name_of(delete_records(client, plain, 0, 7)) == nowhere


# ── FindCoordinator ─────────────────────────────────────────────────────────────────────────────


def test_find_coordinator_of_an_unknown_type(client: RawClient) -> None:
    body = {"key_type": 5, "coordinator_keys": ["x"]}
    answer = client.ask("FindCoordinator", 6, body)
    assert {name_of(row) for row in answer["coordinators"]} <= {"INVALID_REQUEST"}
    body = {"key_type": 2, "coordinator_keys": ["g:AAAAAAAAAAAAAAAAAAAAAA:0"]}
    answer = client.ask("FindCoordinator", 5, body)
    assert {name_of(row) for row in answer["coordinators"]} <= {"INVALID_REQUEST"}


# ── many ────────────────────────────────────────────────────────────────────────────────────────


@ours_only
@pytest.mark.timeout(180)
def test_10_000_groups(broker: Broker, client: RawClient) -> None:
    """Made by commits, listed, described, loaded by a successor, deleted."""
    names = [f"{RUN}-many-{number}" for number in range(GROUPS)]
    kib = resident_kib(broker)
    for at in range(0, GROUPS, 100):
        for name in names[at : at + 100]:
            row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            topics = [{"name": TOPIC, "partitions": [row]}]
            client.send("OffsetCommit", 9, {"group_id": name, "topics": topics})
        for _ in names[at : at + 100]:
            answer = client.receive("OffsetCommit", 9)
            assert answer["topics"][0]["partitions"][0]["error_code"] == 0

    def listed() -> set[str] | None:
        answer = client.ask("ListGroups", 5, {"states_filter": ["Empty"]})
        if answer["error_code"]:
            assert name_of(answer) in ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")
            return None
        return {row["group_id"] for row in answer["groups"]}.intersection(names)

    assert listed() == set(names)
    some = names[::97]
    rows = client.ask("DescribeGroups", 5, {"groups": some})["groups"]
    assert {row["group_state"] for row in rows} == {"Empty"}
    assert resident_kib(broker) - kib < GROUPS_KIB_MAX
    before = broker.children()
    kill(broker, "io-worker-1")
    wait_for_successors(broker, before, "io-worker-1")
    wait_until(lambda: listed() == set(names), "all groups at the successor")
    assert fetched(client, names[-1])[0]["committed_offset"] == 1
    # Spread by Java's hash of the id.
    assert {group_partition(name, 5) for name in names} == set(range(5))
    for at in range(0, GROUPS, 1000):
        body = {"groups_names": names[at : at + 1000]}
        rows = client.ask("DeleteGroups", 2, body)["results"]
        assert {row["error_code"] for row in rows} == {0}
    assert listed() == set()


def resident_kib(broker: Broker) -> int:
    """Memory of all its processes that is not shared."""
    total = 0
    for pid in broker.children().values():
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))
    return total
