"""What goes from a coordinator and what stays: groups and offsets, deleted or unused for long."""

from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import removal
from shmbroker.groups.removal import REMOVALS_PER_STEP
from shmbroker.log.partition_log import PartitionLog
from shmbroker.wire import error_codes
from tests.unit.groups.coordinator_at_work import (
    MINUTE_MS,
    NOT_COORDINATOR,
    RETENTION_MS,
    Broker,
    broker,
)
from tests.unit.groups.groups_at_work import Call

__all__ = ["broker"]


def test_group_with_members_and_no_offsets_outlives_each_look_for_what_is_unused(
    broker: Broker,
) -> None:
    member = broker.stable(session_timeout_ms=30 * MINUTE_MS)
    broker.wait(25 * MINUTE_MS)
    assert broker.heartbeat(member) == 0
    assert broker.names() == {"g"}


def test_groups_of_a_partition_that_goes_take_no_memory(broker: Broker) -> None:
    broker.stable()
    assert broker.groups.memory.held_bytes > 0
    broker.groups.on_partition_gone(0)
    assert broker.groups.memory.held_bytes == 0 and not broker.groups.groups


def test_id_that_was_given_out_is_good_until_its_session_ends(broker: Broker) -> None:
    call = Call()
    call.api_version = 4  # type: ignore[attr-defined]
    body = {
        "group_id": "g",
        "member_id": "",
        "group_instance_id": None,
        "session_timeout_ms": 30 * MINUTE_MS,
        "rebalance_timeout_ms": 1000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    broker.groups.classics.join(call, body, "client", "/host")
    assert call.answer is not None
    broker.wait(25 * MINUTE_MS)
    again = broker.join(member=call.answer["member_id"])
    broker.wait(0)
    assert again.answer is not None and again.answer["error_code"] == 0


def test_offset_whose_end_is_not_stored_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StorageFault("full")

    broker.commit(1)
    with monkeypatch.context() as context:
        context.setattr(PartitionLog, "append", fail)
        assert broker.groups.offsets.delete_offsets("g", [("t", 0)]) == (NOT_COORDINATOR, [])
        broker.wait(RETENTION_MS + 20 * MINUTE_MS)
        assert broker.committed() == {("t", 0): 1}
    broker.wait(20 * MINUTE_MS)
    assert broker.names() == set()


def test_offsets_of_a_deleted_topic_go_in_as_many_steps_as_it_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_PER_STEP", 1)
    for partition in range(3):
        broker.commit(1, partition=partition)
    broker.groups.on_topics_deleted({"t"})
    broker.wait(0)
    broker.restart()
    assert broker.names() == set()


@pytest.mark.parametrize("is_led_anew", [False, True])
def test_commits_outlive_the_end_of_an_earlier_topic_of_that_name(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_led_anew: bool
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_PER_STEP", 1)
    partitions = range(9)
    for partition in partitions:
        broker.commit(1, partition=partition)
    broker.groups.on_topics_deleted({"t"})
    if is_led_anew:
        broker.groups.on_partition_gone(0)
        broker.groups.on_partition(broker.partitions[0], 1)
        while broker.groups.loading:
            broker.groups.run_due()
    for partition in partitions:
        assert broker.commit(7, partition=partition) == 0
    broker.wait(0)
    broker.restart()
    assert broker.committed() == {("t", partition): 7 for partition in partitions}


def test_offsets_of_a_simple_group_expire_by_their_age(broker: Broker) -> None:
    broker.commit(1)
    broker.wait(RETENTION_MS // 2)
    broker.commit(2, partition=1)
    broker.wait(RETENTION_MS // 2 + 2 * MINUTE_MS * 10)
    assert broker.committed() == {("t", 1): 2}
    broker.wait(RETENTION_MS)
    assert broker.names() == set()
    broker.restart()
    assert broker.names() == set()


def test_offsets_of_a_live_group_stay(broker: Broker) -> None:
    member = broker.stable(session_timeout_ms=1_800_000)
    broker.commit(1, member=member, generation=1)
    broker.commit(2, topic="unread", member=member, generation=1)
    for _ in range(RETENTION_MS // 1_700_000 + 10):
        broker.wait(1_700_000)
        assert broker.heartbeat(member) == 0
    assert broker.committed() == {("t", 0): 1}
    broker.groups.classics.leave("g", [(member, None)])
    broker.wait(RETENTION_MS - 1)
    assert broker.committed() == {("t", 0): 1}, "counted from when it became empty"
    broker.wait(20 * MINUTE_MS)
    assert broker.names() == set()


def test_a_commit_may_bring_its_own_time(broker: Broker) -> None:
    broker.commit(1, retention_ms=5 * MINUTE_MS, version=2)
    broker.restart()
    broker.wait(10 * MINUTE_MS)
    assert broker.names() == set()


def test_only_empty_groups_are_deleted(broker: Broker) -> None:
    member = broker.stable()
    assert broker.groups.removal.delete("g") == error_codes.NON_EMPTY_GROUP
    broker.groups.classics.leave("g", [(member, None)])
    assert broker.groups.removal.delete("g") == 0
    assert broker.groups.removal.delete("g") == error_codes.GROUP_ID_NOT_FOUND


def test_offsets_that_are_in_use_are_not_deleted(broker: Broker) -> None:
    member = broker.stable()
    broker.commit(1, member=member, generation=1)
    broker.commit(2, topic="u", member=member, generation=1)
    refused = error_codes.GROUP_SUBSCRIBED_TO_TOPIC
    assert broker.groups.offsets.delete_offsets("g", [("t", 0), ("u", 0)]) == (0, [refused, 0])
    assert broker.committed() == {("t", 0): 1}
    assert broker.groups.offsets.delete_offsets("x", [])[0] == error_codes.GROUP_ID_NOT_FOUND
    broker.stable("connect", protocol_type="connect")
    assert broker.groups.offsets.delete_offsets("connect", [])[0] == error_codes.NON_EMPTY_GROUP


def test_offsets_of_a_deleted_topic_go_with_it(broker: Broker) -> None:
    broker.commit(1)
    broker.commit(2, topic="u")
    broker.commit(3, group="h")
    broker.groups.on_topics_deleted({"t"})
    for _ in range(2):
        assert broker.committed() == {("u", 0): 2}
        assert broker.committed("h") == {}
        broker.restart()


def test_tombstones_of_many_offsets_of_a_deleted_topic_come_in_steps(broker: Broker) -> None:
    many = 4 * REMOVALS_PER_STEP
    for at in range(many):
        broker.commit(at, "gh"[at % 2], partition=at // 2)
    broker.commit(7, topic="u")
    log = broker.partitions[0].log
    begin = before = log.log_end_offset
    broker.groups.on_topics_deleted({"t"})
    assert broker.committed() == {("u", 0): 7} and broker.committed("h") == {}
    steps = 0
    while broker.groups.wake_ms == 0:
        if not steps:
            broker.commit(8)  # there is a topic of that name again, and this offset is of it
        before = log.log_end_offset
        broker.groups.run_due()
        assert log.log_end_offset - before <= REMOVALS_PER_STEP
        steps += 1
    assert steps == many // REMOVALS_PER_STEP - 1  # the first is taken at once
    assert log.log_end_offset - begin == many  # a tombstone for all but one, and its commit
    for _ in range(2):
        assert broker.committed() == {("t", 0): 8, ("u", 0): 7}
        assert broker.committed("h") == {}
        broker.restart()
