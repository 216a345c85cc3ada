"""How fast throttled replicas copy (KIP-73): real logs, sessions and fetchers."""

import itertools

import pytest
from three_brokers import later, settle

from shmbroker.broker.replication.follower_reads import HIGH_WATERMARK_DELAY_MS
from shmbroker.log.config import LogConfig


def seconds_to_copy(nodes, side, in_sync, replicas="0:1,0:2,0:3", rate=500_000):
    """What follower 3 has after each second, of 4 MB that are there before it begins."""
    name = f"{side}.replication.throttled.replicas"
    for node in nodes:
        node.partition.on_config(LogConfig({name: replicas}))
        throttle = node.reads.throttle if side == "leader" else node.fetcher.throttle
        throttle.set_rate(rate)
    for node in nodes:
        node.lead(1, 0, in_sync)
    for _ in range(40):
        end = nodes[0].append(b"x" * 100_000)
    settle(nodes)
    ends = []
    while nodes[2].partition.log.log_end_offset < end:
        ends.append(nodes[2].partition.log.log_end_offset)
        later(nodes, 1000)
        assert nodes[1].partition.log.log_end_offset == end
    return ends


@pytest.mark.parametrize(("side", "most"), [("leader", 5), ("follower", 10)])
def test_a_throttled_replica_copies_at_its_rate(nodes, side, most):
    # Replica 2 is in sync: it takes no part of the room, but counts until 10 seconds are owed.
    copied = seconds_to_copy(nodes, side, (1, 2))
    steps = [after - before for before, after in itertools.pairwise(copied)]
    assert max(steps) <= most
    # 40 batches of 100 kB at 500 kB/s, the first second's worth, or slice, at once.
    assert 6 <= len(copied) <= 20


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize(
    ("in_sync", "replicas", "rate"),
    [
        ((1, 2, 3), "*", 1000),  # in sync
        ((1, 2), "", 1000),  # not named
        ((1, 2), "1:1,1:3", 1000),  # another partition's
        ((1, 2), "0:2", 1000),  # another broker's
        ((1, 2), "*", 2**63 - 1),
    ],
)
def test_others_copy_without_a_limit(nodes, side, in_sync, replicas, rate):
    assert seconds_to_copy(nodes, side, in_sync, replicas, rate) == []


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_that_is_taken_away_is_felt_at_once(nodes, side):
    name = f"{side}.replication.throttled.replicas"
    for node in nodes:
        node.partition.on_config(LogConfig({name: "*"}))
        node.reads.throttle.set_rate(1)
        node.fetcher.throttle.set_rate(1)
        node.lead(1, 0, (1, 2))
    for _ in range(40):
        end = nodes[0].append(b"x" * 100_000)
    settle(nodes)
    later(nodes, 1000)
    assert nodes[2].partition.log.log_end_offset < end
    for node in nodes:
        node.partition.on_config(LogConfig())
    later(nodes, 1000)
    assert nodes[2].partition.log.log_end_offset == end


def held_back(nodes):
    """The leader, which holds back what follower 3 has asked for; it has room in two seconds."""
    leader = nodes[0]
    for node in nodes:
        node.partition.on_config(LogConfig({"leader.replication.throttled.replicas": "*"}))
        node.lead(1, 0, (1, 2))
    leader.reads.throttle.set_rate(100_000)
    leader.reads.throttle.take(300_000, leader.now)
    leader.append(b"x")
    settle(nodes)
    assert len(leader.reads.held) == 1 and nodes[2].partition.log.log_end_offset == 0
    return leader


def test_what_is_held_back_goes_when_there_is_room(nodes):
    leader = held_back(nodes)
    later(nodes, HIGH_WATERMARK_DELAY_MS)
    assert leader.reads.next_ms == leader.reads.held_until_ms
    while leader.reads.held:
        assert nodes[2].partition.log.log_end_offset == 0
        later(nodes, leader.reads.held_until_ms - leader.now)
    assert nodes[2].partition.log.log_end_offset == 1
    assert leader.now >= 3000


def test_who_is_in_sync_meanwhile_is_held_back_no_more(nodes):
    leader = held_back(nodes)
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    assert not leader.reads.held and nodes[2].partition.log.log_end_offset == 1
