"""ConsumerGroupHeartbeat: which epoch is believed, and what the answer says."""

from typing import Any

from shmbroker.groups.consumer.targets import assignor_of
from shmbroker.wire import error_codes
from tests.unit.groups.consumers_at_work import REBALANCE_MS, Room

FENCED = error_codes.FENCED_MEMBER_EPOCH


def rows(topic_id: bytes, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": list(partitions)}]


def test_member_one_epoch_behind_is_believed_if_all_that_it_has_is_its_own() -> None:
    room = Room(t=2)
    topic_id = room.cluster.id_of("t")
    room.join("m", "t")
    room.cluster.put("t", 3)
    assert room.beat("m", 1)["member_epoch"] == 2

    def error(epoch: int, owned: list[dict[str, Any]] | None) -> int:
        code: int = room.beat("m", epoch, topic_partitions=owned).get("error_code", 0)
        return code

    assert error(1, rows(topic_id, 0, 1)) == 0
    assert error(1, []) == 0
    assert error(1, rows(topic_id, 0, 7)) == FENCED
    assert error(1, rows(b"another".ljust(16))) == FENCED
    assert error(1, None) == FENCED
    assert error(3, []) == FENCED
    room.cluster.put("t", 4)
    assert room.beat("m", 2)["member_epoch"] == 3
    assert error(1, rows(topic_id, 0, 1)) == FENCED, "two behind"


def test_group_whose_targets_are_behind_is_assigning() -> None:
    room = Room(t=2)
    room.join("one", "t")
    room.join("two", "t")
    room.beat("two", -1)
    assert room.group.state == "Assigning"
    room.beat("one", room.group.members["one"].epoch)
    assert room.group.state != "Assigning"


def test_assignment_is_told_again_to_who_tells_all_of_itself() -> None:
    room = Room(t=1)
    topic_id = room.cluster.id_of("t")
    room.join("m", "t")
    whole = {
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": ["t"],
        "topic_partitions": rows(topic_id, 0),
    }
    assert room.beat("m", 1, **whole)["assignment"] == {"topic_partitions": rows(topic_id, 0)}
    for name in whole:
        rest = {key: value for key, value in whole.items() if key != name}
        assert "assignment" not in room.beat("m", 1, **rest), name


def test_assignor_that_a_member_asked_for_is_its_own_until_it_asks_for_another() -> None:
    room = Room(t=1)
    room.join("m", "t", server_assignor="range")
    room.beat("m", 1, rebalance_timeout_ms=REBALANCE_MS + 1)
    assert assignor_of(room.group) == "range"
    room.beat("m", 1, server_assignor="uniform")
    assert assignor_of(room.group) == "uniform"
