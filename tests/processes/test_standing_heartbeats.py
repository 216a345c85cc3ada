"""Heartbeats that the network worker answers for the coordinator, and what still comes through."""

import os
import signal
from collections.abc import Iterator

import pytest

from shmbroker import clock
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

SESSION_MS = 1000
FLAGS = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=100")
HEARTBEATS = 20


@pytest.fixture
def group_broker() -> Iterator[Broker]:
    with Broker(*FLAGS, "--network-workers", "1") as broker:
        with RawClient(broker.address) as client:
            wait_until(lambda: coordinator_error(client) == 0, "a coordinator")
        yield broker


def coordinator_error(client: RawClient) -> int:
    return client.ask("FindCoordinator", 3, {"key": "g", "key_type": 0})["error_code"]


class Member:
    """One member of group g with a connection of its own."""

    def __init__(self, broker: Broker) -> None:
        self.client = RawClient(broker.address)
        self.member_id = ""
        self.generation = -1

    def ask_to_join(self) -> None:
        body = {
            "group_id": "g",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 60_000,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        }
        self.client.send("JoinGroup", 3, body)

    def join(self) -> None:
        self.ask_to_join()
        self.finish_join()

    def finish_join(self) -> None:
        answer = self.client.receive("JoinGroup", 3)
        assert answer["error_code"] == 0
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        is_leader = answer["leader"] == self.member_id
        rows = [{"member_id": row["member_id"], "assignment": b"a"} for row in answer["members"]]
        body = {
            "group_id": "g",
            "generation_id": self.generation,
            "member_id": self.member_id,
            "assignments": rows if is_leader else [],
        }
        self.client.send("SyncGroup", 2, body)

    def finish_sync(self) -> None:
        assert self.client.receive("SyncGroup", 2)["error_code"] == 0

    def heartbeat(self) -> int:
        body = {"group_id": "g", "generation_id": self.generation, "member_id": self.member_id}
        return self.client.ask("Heartbeat", 3, body)["error_code"]


def joined(broker: Broker) -> Member:
    member = Member(broker)
    member.join()
    member.finish_sync()
    return member


def test_member_lives_on_heartbeats_answered_elsewhere_and_dies_without(
    group_broker: Broker,
) -> None:
    member = joined(group_broker)
    end = clock.monotonic() + 3 * SESSION_MS / 1000
    while clock.monotonic() < end:
        assert member.heartbeat() == 0
    with RawClient(group_broker.address) as other:
        body = {"groups": ["g"]}
        described = other.ask("DescribeGroups", 4, body)["groups"][0]
        assert [row["member_id"] for row in described["members"]] == [member.member_id]
        wait_until(
            lambda: other.ask("DescribeGroups", 4, body)["groups"][0]["group_state"] == "Empty",
            "the end of the session",
        )
    assert member.heartbeat() == error_codes.UNKNOWN_MEMBER_ID


def test_member_learns_of_a_rebalance_at_its_next_heartbeat(group_broker: Broker) -> None:
    first = joined(group_broker)
    for _ in range(HEARTBEATS):
        assert first.heartbeat() == 0
    second = Member(group_broker)
    second.ask_to_join()
    wait_until(lambda: first.heartbeat() == error_codes.REBALANCE_IN_PROGRESS, "the news")
    old = first.generation
    first.ask_to_join()
    for member in (first, second):
        member.finish_join()
    for member in (first, second):
        member.finish_sync()
    assert first.generation == second.generation > old
    for _ in range(HEARTBEATS):
        assert first.heartbeat() == second.heartbeat() == 0
    first.generation = old
    assert first.heartbeat() == error_codes.ILLEGAL_GENERATION


def test_heartbeats_are_answered_through_the_death_of_the_coordinator(
    group_broker: Broker,
) -> None:
    member = joined(group_broker)
    for _ in range(HEARTBEATS):
        assert member.heartbeat() == 0
    pid = group_broker.children()["io-worker-1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert member.heartbeat() == 0
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: group_broker.children().get("io-worker-1", pid) != pid, "a successor")
    wait_until(lambda: asked_again(group_broker, member), "the group in the successor")


def asked_again(broker: Broker, member: Member) -> bool:
    """The successor has the group again, and the member is in it."""
    try:
        if member.heartbeat():
            return False
        with RawClient(broker.address) as client:
            described = client.ask("DescribeGroups", 4, {"groups": ["g"]})["groups"][0]
        return [row["member_id"] for row in described["members"]] == [member.member_id]
    except ConnectionError:
        member.client.close()
        member.client = RawClient(broker.address)
        return False
