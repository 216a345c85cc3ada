"""Whom a leader asks for as in sync, and what becomes of it: real logs, sessions and fetchers."""

from types import SimpleNamespace

import pytest
from three_brokers import TOPIC, settle

from shmbroker.wire import error_codes


def test_a_follower_joins_when_it_has_caught_up(nodes):
    for node in nodes:
        node.lead(1, 0, (1, 2))
    for _ in range(5):
        nodes[0].append(b"x" * 100)
    settle(nodes)
    leader = nodes[0]
    brokers = {
        number: SimpleNamespace(is_active=True, broker_epoch=number * 10) for number in (1, 2, 3)
    }
    image = SimpleNamespace(brokers=brokers)
    leader.in_sync.expand(image)
    (request,) = leader.asked
    (row,) = request["topics"][0]["partitions"]
    assert [one["broker_id"] for one in row["new_isr_with_epochs"]] == [1, 2, 3]
    assert leader.partition.pending_in_sync == (1, 2, 3)
    # It counts from now on, though nothing is decided.
    nodes[2].partition.is_leader = True  # a follower that takes nothing any more
    leader.append(b"y")
    settle(nodes)
    assert leader.partition.high_watermark == 5
    leader.in_sync.on_answer({"error_code": error_codes.STALE_BROKER_EPOCH})
    assert leader.partition.high_watermark == 6, "at once: nothing else may ever come"
    assert leader.moved == {leader.partition}
    leader.append(b"z")
    settle(nodes)
    assert leader.partition.high_watermark == 7


def brokers_in_image(**states):
    """The three brokers, all at work but where `states` says it otherwise (b3=False, or None)."""
    brokers = {
        number: SimpleNamespace(is_active=states.get(f"b{number}", True), broker_epoch=number * 10)
        for number in (1, 2, 3)
        if states.get(f"b{number}", True) is not None
    }
    return SimpleNamespace(brokers=brokers)


@pytest.fixture
def caught_up(nodes):
    """The leader; the third broker has all that it has, and is not in sync yet."""
    for node in nodes:
        node.lead(1, 0, (1, 2))
    nodes[0].append(b"x")
    settle(nodes)
    return nodes[0]


@pytest.mark.parametrize("state", [False, None])
def test_who_is_fenced_or_gone_is_not_asked_for(caught_up, state):
    """The controller would refuse (KIP-841)."""
    caught_up.in_sync.expand(brokers_in_image(b3=state))
    assert caught_up.asked == []
    assert caught_up.partition.pending_in_sync is None
    # Nothing new is read, so it is found by the next look.
    caught_up.in_sync.expand(brokers_in_image())
    assert caught_up.asked == []
    caught_up.in_sync.look_at_all([caught_up.partition], brokers_in_image(), caught_up.now, 1000)
    assert len(caught_up.asked) == 1


def test_a_change_is_asked_for_once_and_as_the_image_has_it(caught_up):
    partition = caught_up.partition
    for _ in range(2):
        caught_up.in_sync.expand(brokers_in_image())
        caught_up.in_sync.look_at_all([partition], brokers_in_image(), caught_up.now, 1000)
    (request,) = caught_up.asked
    (topic,) = request["topics"]
    assert topic["topic_id"] == TOPIC
    (row,) = topic["partitions"]
    assert row == {
        "partition_index": 0,
        "leader_epoch": partition.leader_epoch,
        "new_isr_with_epochs": [
            {"broker_id": number, "broker_epoch": number * 10} for number in (1, 2, 3)
        ],
        "leader_recovery_state": 0,
        "partition_epoch": partition.partition_epoch,
    }
    # While the answer says nothing against it, the image will tell: it is not asked for again.
    caught_up.in_sync.on_answer({"error_code": 0, "topics": []})
    caught_up.reads.may_join.add(partition)
    caught_up.in_sync.expand(brokers_in_image())
    caught_up.append(b"and now the second broker lags")
    caught_up.in_sync.look_at_all([partition], brokers_in_image(), caught_up.now + 5000, 1000)
    assert len(caught_up.asked) == 1


def test_who_leads_no_more_asks_for_nobody(caught_up):
    caught_up.lead(2, 1, (1, 2))
    caught_up.in_sync.expand(brokers_in_image())
    caught_up.in_sync.look_at_all(
        [caught_up.partition], brokers_in_image(), caught_up.now + 5000, 1000
    )
    assert caught_up.asked == []


def test_who_leads_no_more_does_not_ask_again_what_nobody_knows(caught_up):
    caught_up.in_sync.expand(brokers_in_image())
    answer = {"error_code": error_codes.NOT_CONTROLLER}
    caught_up.in_sync.on_answer(answer)
    caught_up.lead(2, 1, (1, 2))
    caught_up.in_sync.look_at_all([caught_up.partition], brokers_in_image(), caught_up.now, 1000)
    caught_up.lead(1, 2, (1, 2, 3))
    caught_up.in_sync.look_at_all([caught_up.partition], brokers_in_image(), caught_up.now, 1000)
    assert len(caught_up.asked) == 1


def test_a_refusal_of_a_partition_that_was_made_anew_is_not_of_this_one(caught_up):
    caught_up.in_sync.expand(brokers_in_image())
    for key in list(caught_up.partitions):
        caught_up.partitions[key] = object()
    caught_up.in_sync.on_answer({"error_code": error_codes.INELIGIBLE_REPLICA})
    assert caught_up.partition.pending_in_sync == (1, 2, 3)
    assert caught_up.moved == set()


def test_what_became_of_a_change_that_nobody_knows_is_asked_again(nodes):
    for node in nodes:
        node.lead(1, 0, (1, 2))
    nodes[0].append(b"x")
    settle(nodes)
    leader = nodes[0]
    brokers = {number: SimpleNamespace(is_active=True, broker_epoch=0) for number in (1, 2, 3)}
    image = SimpleNamespace(brokers=brokers)
    leader.in_sync.expand(image)
    leader.in_sync.on_answer({"error_code": error_codes.NOT_CONTROLLER})
    assert leader.partition.pending_in_sync == (1, 2, 3)
    leader.reads.drop_peer(3)  # it dies, and must not hold the high watermark for ever
    leader.in_sync.look_at_all([leader.partition], image, leader.now, 1000)
    assert len(leader.asked) == 2

    def answer(error):
        row = {"partition_index": 0, "error_code": error}
        topics = [{"topic_id": TOPIC, "partitions": [row]}]
        leader.in_sync.on_answer({"error_code": 0, "topics": topics})

    # It may have been done, and the metadata will tell: it counts on.
    for error in (error_codes.INVALID_UPDATE_VERSION, error_codes.STALE_BROKER_EPOCH):
        answer(error)
        assert leader.partition.pending_in_sync == (1, 2, 3)
        leader.in_sync.look_at_all([leader.partition], image, leader.now, 1000)
    assert len(leader.asked) == 4
    answer(error_codes.INELIGIBLE_REPLICA)
    assert leader.partition.pending_in_sync is None
    leader.append(b"y")
    settle(nodes[:2])
    assert leader.partition.high_watermark == 2


@pytest.mark.parametrize("before", [None, (1, 2, 3)])
def test_a_change_that_could_not_be_asked_for_does_not_count(nodes, before):
    for node in nodes:
        node.lead(1, 0, (1, 2))
    nodes[0].append(b"x")
    settle(nodes)
    leader = nodes[0]
    brokers = {number: SimpleNamespace(is_active=True, broker_epoch=0) for number in (1, 2, 3)}
    image = SimpleNamespace(brokers=brokers)
    if before is not None:  # nobody knows what became of the same, asked for before
        leader.in_sync.expand(image)
        leader.in_sync.on_answer({"error_code": error_codes.NOT_CONTROLLER})
    asked = len(leader.asked)
    leader.can_ask = False
    leader.in_sync.look_at_all([leader.partition], image, leader.now, 1000)
    assert leader.partition.pending_in_sync == before
    leader.can_ask = True
    leader.in_sync.look_at_all([leader.partition], image, leader.now, 1000)
    assert leader.partition.pending_in_sync == (1, 2, 3)
    assert len(leader.asked) == asked + 1


def test_a_follower_that_lags_is_taken_out(nodes):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    leader = nodes[0]
    leader.append(b"x")
    settle(nodes[:2])
    brokers = {number: SimpleNamespace(is_active=True, broker_epoch=0) for number in (1, 2, 3)}
    image = SimpleNamespace(brokers=brokers)
    leader.in_sync.look_at_all([leader.partition], image, leader.now + 900, 1000)
    assert not leader.asked
    leader.in_sync.look_at_all([leader.partition], image, leader.now + 1100, 1000)
    (row,) = leader.asked[0]["topics"][0]["partitions"]
    assert [one["broker_id"] for one in row["new_isr_with_epochs"]] == [1, 2]
