"""The largest decision about one topic is prepared in steps, and others are taken between them."""

from collections.abc import Generator
from typing import Any

import pytest
from controller_at_work import NOW_MS, create, topic

from shmbroker.controller import active_controller
from shmbroker.controller.active_controller import STEP_RECORDS, ActiveController
from shmbroker.controller.decisions.placement import PARTITIONS_MAX, place_partitions
from shmbroker.controller.raft import metadata_log
from shmbroker.metadata import log_reader
from shmbroker.wire.error_codes import (
    INVALID_PARTITIONS,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    TOPIC_ALREADY_EXISTS,
)
from tests.support.steps import finish_counted

pytestmark = pytest.mark.thorough

MANY = PARTITIONS_MAX
Steps = Generator[None, None, dict[str, Any]]


def creating(controller: ActiveController) -> Steps:
    request = {"topics": [topic("large", MANY)], "validate_only": False}
    return controller.handle_in_steps("CreateTopics", 7, request, NOW_MS)


def enlarging(controller: ActiveController) -> Steps:
    rows = [{"name": "large", "count": MANY, "assignments": None}]
    request = {"topics": rows, "validate_only": False}
    return controller.handle_in_steps("CreatePartitions", 3, request, NOW_MS)


def ended(steps: Steps) -> tuple[int, int]:
    """(steps that were left, error code)"""
    answer, rests = finish_counted(steps)
    (results,) = (rows for rows in answer.values() if isinstance(rows, list))
    return rests + 1, results[0]["error_code"]


def size_of(controller: ActiveController, name: str = "large") -> int:
    return len(controller.image.topics_by_name[name].partitions)


@pytest.mark.parametrize("is_new", [True, False])
def test_no_step_encodes_more_than_some_records(
    three: ActiveController, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    if not is_new:
        create(three, topic("large", 1))
    encode, begin = topics_encoded(monkeypatch), three.committed_offset
    steps = creating(three) if is_new else enlarging(three)
    count = 0
    for _ in steps:
        count += 1
        assert sum(encode) <= STEP_RECORDS
        encode.clear()
        assert (
            three.log.voter.log_end_offset == begin
        )  # nothing of it is in the log before its batch
    assert count >= MANY // STEP_RECORDS and not sum(encode)
    assert size_of(three) == MANY and three.committed_offset >= begin + MANY - 1


def topics_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were encoded, call by call."""
    counts: list[int] = []
    encode = metadata_log.encode_records

    def counting(records: list[Any], first: int = 0) -> list[bytes]:
        counts.append(len(records))
        return encode(records, first)

    for module in (active_controller, metadata_log):
        monkeypatch.setattr(module, "encode_records", counting)
    return counts


def test_what_it_decided_itself_is_not_read_back(
    controller: ActiveController, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(log_reader, "decode_metadata_record")
        assert ended(creating(controller))[1] == NONE
        assert size_of(controller) == MANY


def test_others_are_decided_between_two_steps(three: ActiveController) -> None:
    create(three, topic("other", 1))
    steps = creating(three)
    next(steps)
    # Who leads, who is in sync and what is set for other topics doesn't matter.
    partition = three.image.topics_by_name["other"].partitions[0]
    change = {
        "topic_id": three.image.topics_by_name["other"].topic_id,
        "partition_id": 0,
        "leader": partition.in_sync_replicas[1],
    }
    three.log.commit([("PartitionChangeRecord", 2, change)], NOW_MS)
    next(steps)
    create(three, topic("another", 1))
    next(steps)
    count, error = ended(steps)
    assert (error, size_of(three)) == (NONE, MANY)
    assert count < 2 * MANY // STEP_RECORDS  # it was not decided again
    assert three.image.topics_by_name["other"].partitions[0].leader_epoch == 1


def test_a_topic_that_came_between_two_steps_stays(three: ActiveController) -> None:
    steps = creating(three)
    next(steps)
    create(three, topic("large", 5))
    assert ended(steps)[1] == TOPIC_ALREADY_EXISTS
    assert size_of(three) == 5


def test_a_name_that_collides_with_one_that_came_between_two_steps_is_refused(
    three: ActiveController,
) -> None:
    request = {"topics": [topic("lar.ge", MANY)], "validate_only": False}
    steps = three.handle_in_steps("CreateTopics", 7, request, NOW_MS)
    next(steps)
    create(three, topic("lar_ge", 1))
    assert ended(steps)[1] == INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("count", [MANY, MANY + 1])
def test_partitions_that_came_between_two_steps_count(three: ActiveController, count: int) -> None:
    create(three, topic("large", 1))
    steps = enlarging(three)
    next(steps)
    request = {"topics": [{"name": "large", "count": count, "assignments": None}]}
    three.handle("CreatePartitions", 3, request | {"validate_only": False}, NOW_MS)
    assert ended(steps)[1] == INVALID_PARTITIONS
    assert size_of(three) == count


def test_a_topic_that_was_made_again_between_two_steps_is_enlarged(three: ActiveController) -> None:
    create(three, topic("large", 1))
    steps = enlarging(three)
    next(steps)
    request = {"topics": [{"name": "large", "topic_id": bytes(16)}]}
    three.handle("DeleteTopics", 6, request, NOW_MS)
    create(three, topic("large", 1))
    assert ended(steps)[1] == NONE
    assert size_of(three) == MANY


def test_a_broker_that_was_fenced_between_two_steps_leads_nothing(three: ActiveController) -> None:
    steps = creating(three)
    next(steps)
    three.membership.fence_broker(2, NOW_MS)
    assert ended(steps)[1] == NONE
    partitions = three.image.topics_by_name["large"].partitions
    assert len(partitions) == MANY
    assert all(2 not in partition.in_sync_replicas for partition in partitions)


def test_many_partitions_lie_as_if_each_were_placed_alone() -> None:
    for brokers, fenced in (([1], []), ([1, 2, 3], []), ([1, 2, 4, 7], [3, 5, 6])):
        for begin in (0, 5):
            placed = place_partitions(500, 3, brokers, begin, fenced)
            alone = [place_partitions(1, 3, brokers, begin + at, fenced)[0] for at in range(500)]
            assert placed == alone
