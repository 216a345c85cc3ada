"""Logs that a broker makes, is asked for too early, or frees, turn by turn."""

import gc
from pathlib import Path
from typing import Any

import pytest

from shmbroker.apis.controller.tell_log_ends import LACKS
from shmbroker.broker.intake import TAKE_S
from shmbroker.broker.placement import APPLY_S
from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import RECOVERY_POINT, Offsets, write_offsets
from shmbroker.log.partition_log import PartitionLog
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.shm.counters import METADATA_APPLIED
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.support.broker_family import BROKER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC, TOPIC_ID, topic
from tests.unit.broker.broker_turns import BATCH, KEY, TAKES_S, family, slow, topic_of

__all__ = ["family"]


def test_a_topic_of_thousands_of_partitions_is_deleted_in_steps(family: BrokerFamily) -> None:
    many = 100
    family.boot(*topic_of(many))
    broker = family.broker
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    broker.store.delete = slow(family, broker.store.delete)  # type: ignore[method-assign]
    opened = broker.store.open
    order: list[int] = []

    def noting(*arguments: Any) -> Any:
        order.append(len(broker.partitions))
        return opened(*arguments)

    broker.store.open = noting  # type: ignore[method-assign]
    named, (kind, version, partition) = topic()
    again = {"topic_id": b"new" + bytes(13)}
    family.link.commit(
        ("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}),
        (named[0], named[1], named[2] | again),
        (kind, version, partition | again),
    )
    turns = 0
    while broker.placement.has_work or not turns:
        begin = family.clock.now
        is_gone = not broker.placement.to_drop
        assert family.words[applied] < broker.link.follower.image.offset or is_gone or not turns
        family.append(turns, partition_key(b"new" + bytes(13), 0), BATCH)
        broker.turn()
        assert family.clock.now - begin < 3 * APPLY_S
        turns += 1
    assert turns > many * TAKES_S / APPLY_S / 3
    assert order == [0]  # the new one of that name, when the old one's directories had gone
    assert list(broker.partitions) == [partition_key(b"new" + bytes(13), 0)]
    assert family.words[applied] == broker.image.offset


def test_much_metadata_is_read_a_step_in_each_turn(family: BrokerFamily) -> None:
    family.boot(*topic())
    broker, link = family.broker, family.link
    link.steps_left = 3
    link.commit(("TopicRecord", 0, {"name": "new", "topic_id": b"n" * 16}))
    for steps_left in (2, 1, 0):
        family.append(steps_left, KEY, BATCH)  # it looks at the metadata before and after
        broker.turn()
        assert link.steps_left == steps_left and broker.has_news()
        assert [token for token, *_ in family.appended()] == [steps_left]
        assert "new" not in broker.image.topics_by_name
    broker.turn()
    assert "new" in broker.image.topics_by_name and not broker.has_news()


@pytest.mark.parametrize(
    "had, checkpoint, is_lost",
    [
        (None, {}, False),
        (None, {("other", 0): 7}, False),
        (None, {(TOPIC, 0): 0}, True),
        ([], {}, False),
        ([KEY], {}, True),
    ],
)
def test_a_log_that_was_not_here_before_is_not_lost(
    tmp_path: Path, had: list[bytes] | None, checkpoint: Offsets, is_lost: bool
) -> None:
    """The process before tells, or a checkpoint from before the end of the whole family."""
    named, (kind, version, partition) = topic()
    row = partition | {"replicas": [1, 2], "directories": [b"d" * 16] * 2, "leader_epoch": 1}
    write_offsets(str(tmp_path / RECOVERY_POINT), checkpoint)
    with broker_family(tmp_path, had=had) as family:
        family.boot(named, (kind, version, row))
        partition = family.broker.partitions[KEY]
        assert partition.lost_below == (0 if is_lost else -1)
        # Found before the controller let it serve, and told all the same: else it would lead.
        waiting = family.broker.replication.log_ends.waiting
        assert waiting == ({partition: LACKS} if is_lost else {})


def test_a_deleted_partition_is_freed_without_the_garbage_collector(
    family: BrokerFamily,
) -> None:
    """Which looks at what has lived for long once in millions of objects."""
    family.boot(*topic())
    family.append(1, KEY, BATCH)
    family.broker.turn()
    family.gateway.taken()
    directory = family.broker.partitions[KEY].log.directory
    gc.collect()
    gc.disable()
    try:
        family.link.commit(("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}))
        family.broker.turn()
        family.broker.turn()
        assert not family.broker.partitions
        logs = [each for each in gc.get_objects() if isinstance(each, PartitionLog)]
        assert not [log for log in logs if log.directory == directory]
    finally:
        gc.enable()


def test_a_log_that_is_due_is_made_when_a_client_asks_for_it(family: BrokerFamily) -> None:
    """A large topic is there for its creator before all of its logs are."""
    family.boot()
    broker = family.broker
    many = 400
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    family.link.commit(*topic_of(many))
    broker.turn()
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    assert family.words[applied] == broker.image.offset
    assert len(broker.partitions) < many / 2
    last = partition_key(TOPIC_ID, many - 1)
    family.append(1, last, BATCH)
    family.append(2, partition_key(TOPIC_ID, many), BATCH)
    broker.intake.take(TAKE_S)
    broker.publish()
    assert family.appended() == [(1, 0, 0), (2, NOT_LEADER_OR_FOLLOWER, -1)]
    assert last in broker.partitions and len(broker.partitions) < many / 2
    while broker.placement.has_work:
        broker.turn()
    assert len(broker.partitions) == many and not broker.placement.due
    assert broker.partitions[last].log.log_end_offset == 1


def test_a_topic_that_is_deleted_before_its_logs_were_made_is_never_made(
    family: BrokerFamily,
) -> None:
    family.boot()
    broker = family.broker
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    family.link.commit(*topic_of(400))
    broker.turn()
    family.link.commit(("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}))
    broker.turn()
    family.append(1, partition_key(TOPIC_ID, 399), BATCH)
    while broker.placement.has_work:
        broker.turn()
    assert not broker.partitions and not broker.placement.due


@pytest.mark.parametrize(("name", "may_wait"), [(TOPIC, True), (OFFSETS_TOPIC, False)])
def test_groups_are_here_before_their_topic_is(
    family: BrokerFamily, name: str, may_wait: bool
) -> None:
    """Nobody asks for the log of a coordinator by its name: it would stay due until its turn."""
    family.boot()
    broker = family.broker
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    (kind, version, row), *partitions = topic_of(100)
    family.link.commit((kind, version, row | {"name": name}), *partitions)
    broker.turn()
    assert broker.placement.has_work
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    assert (family.words[applied] == broker.image.offset) is may_wait
    while broker.placement.has_work:
        broker.turn()
    assert family.words[applied] == broker.image.offset
