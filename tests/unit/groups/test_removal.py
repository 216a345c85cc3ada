"""What goes from a coordinator and what stays: groups and offsets, deleted or unused for long."""

from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import removal
from shmbroker.log.partition_log import PartitionLog
from tests.unit.groups.groups_at_work import Call
from tests.unit.groups.test_group_coordinator import (
    MINUTE_MS,
    NOT_COORDINATOR,
    RETENTION_MS,
    Broker,
    broker,
)

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
