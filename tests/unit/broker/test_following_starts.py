"""Where the logs of followers begin: behind deletions, gaps and what their leader has."""

from three_brokers import later, settle

from shmbroker.broker.replication.followed import STORAGE_RETRY_MS
from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.raised_start import find_raised
from shmbroker.log.retention import delete_records
from shmbroker.log.retiring import delete_local_before, delete_segments_before
from shmbroker.log.truncation import StateAt
from shmbroker.replica.follower import may_join


def test_what_is_behind_the_leaders_start_begins_anew(nodes):
    leader = nodes[0]
    leader.lead(1, 0, (1,))
    for _ in range(4):
        leader.append(b"x")
    leader.partition.log.roll()
    leader.append(b"y")
    delete_segments_before(leader.partition.log, 4)
    assert leader.partition.log.log_start_offset == 4
    nodes[1].lead(1, 0, (1,))
    settle(nodes)
    log = nodes[1].partition.log
    assert (log.log_start_offset, log.log_end_offset) == (4, 5)


def test_who_begins_amid_a_batch_copies_it_whole(nodes):
    leader, follower, _ = nodes
    leader.lead(1, 0, (1,))
    leader.append(b"a")
    leader.append(b"b", b"c", b"d")
    leader.append(b"e")
    delete_records(leader.partition.log, 3, leader.partition.high_watermark)
    follower.lead(1, 0, (1,))
    settle(nodes)
    log = follower.partition.log
    assert (log.segments[0].base_offset, log.log_start_offset, log.log_end_offset) == (1, 3, 5)
    assert follower.partition.high_watermark == 5
    assert follower.content() == leader.content()
    assert low_watermark(leader, [2]) == 3


def delete(leader, offset):
    """What DeleteRecords does there."""
    delete_records(leader.partition.log, offset, leader.partition.high_watermark)
    leader.reads.on_log_start(leader.partition)


def low_watermark(leader, live=(1, 2, 3)):
    return leader.partition.low_watermark(live)


def test_deleted_records_are_gone_everywhere_at_once(nodes):
    """Without time going by; a follower that is killed then knows it, too."""
    leader = nodes[0]
    for node in nodes:
        node.lead(1, 0)
    leader.append(b"a", b"b", b"c")
    settle(nodes)
    assert low_watermark(leader) == 0
    leader.starts_told.clear()
    delete(leader, 2)
    assert low_watermark(leader) == 0
    assert low_watermark(leader, [1]) == 2
    settle(nodes)
    assert low_watermark(leader) == 2
    assert leader.starts_told == [leader.partition] * 2
    assert [node.partition.log.log_start_offset for node in nodes] == [2, 2, 2]
    assert [find_raised(node.partition.log) for node in nodes] == [2, 2, 2]


def test_a_follower_that_reads_meanwhile_is_told_with_what_it_reads(nodes):
    leader = nodes[0]
    for node in nodes:
        node.lead(1, 0)
    leader.append(b"a")
    settle(nodes)
    leader.append(b"b")  # on its way to them
    for node in nodes[1:]:
        node.turn()
    delete(leader, 1)
    settle(nodes)
    assert low_watermark(leader) == 1
    assert leader.partition.high_watermark == 2


def test_the_leader_is_woken_to_hear_where_a_follower_begins(nodes, monkeypatch):
    leader, follower, _ = nodes
    for node in nodes:
        node.lead(1, 0)
    leader.append(b"a")
    settle(nodes)
    monkeypatch.setattr(follower.fetcher, "_is_worth_a_ring", lambda _partition: False)
    to_leader = follower.peers[1]
    for is_woken in (True, False):
        to_leader.outbox.clear()
        if is_woken:
            delete(leader, 1)
        else:
            leader.append(b"b")
        leader.turn()
        follower.turn()
        assert (to_leader in to_leader.outbox) == is_woken
        settle(nodes)


def test_who_begins_earlier_than_the_leader_does_not_join(nodes):
    leader, follower, _ = nodes
    for node in nodes:
        node.lead(1, 0, in_sync=(1, 3))
    leader.append(b"a")
    settle(nodes)
    leader.reads.may_join.clear()
    delete(leader, 1)
    leader.reads.drop_peer(2)
    assert low_watermark(leader) == -1
    follower.fetcher.on_peer_lost(follower.peers[1])
    follower.turn()
    leader.turn()
    assert low_watermark(leader) == 0
    assert not leader.reads.may_join
    settle(nodes)
    assert low_watermark(leader) == 1
    assert leader.reads.may_join == {leader.partition}


def test_who_has_let_its_log_begin_later_by_itself_says_so_when_it_is_told(nodes):
    """Its retention was sooner than its leader's, and nothing is written any more."""
    leader, follower, _ = nodes
    for node in nodes:
        node.lead(1, 0, in_sync=(1, 3))
    leader.append(b"a")
    settle(nodes)
    leader.reads.may_join.clear()
    follower.raise_log_start(follower.partition, 1)
    settle(nodes)
    delete(leader, 1)
    settle(nodes)
    assert low_watermark(leader) == 1
    assert may_join(leader.partition, leader.partition.followers[2])


def test_who_goes_on_behind_what_is_copied_forgets_its_own_epochs(nodes, monkeypatch):
    """Where the store does not say: else the leader says where the last one ended, and the log is
    cut back to there, again and again."""
    leader, follower, _ = nodes
    for node in (leader, follower):
        node.partition.log.config = LogConfig({"remote.storage.enable": "true"})
        node.lead(1, 0, (1,))
    leader.append(b"a")
    settle(nodes)
    for epoch in (1, 2):
        leader.lead(1, epoch, (1,))
        leader.append(b"b")
        leader.partition.log.roll()
    delete_local_before(leader.partition.log, 2)
    unknown = StateAt(2, [], None)
    monkeypatch.setattr(follower, "find_state", lambda _log, _at, on_state: on_state(unknown))
    follower.lead(1, 2, (1,))
    settle(nodes)
    log = follower.partition.log
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 2, 3)
    assert log.leader_epochs.latest == 2


def test_gaps_of_compaction_are_taken_over(nodes):
    leader = nodes[0]
    leader.lead(1, 0, (1,))
    leader.append(b"a")
    leader.partition.log.skip_to(10)
    leader.append(b"b")
    nodes[1].lead(1, 0, (1,))
    settle(nodes)
    assert nodes[1].partition.log.log_end_offset == 11
    assert nodes[1].gaps == [nodes[1].partition]
    assert nodes[1].content() == leader.content()


def test_a_gap_is_named_though_the_disk_is_full_behind_it(nodes, monkeypatch):
    """Read again, what follows has none: it would never be named."""
    leader, follower, _ = nodes
    leader.lead(1, 0, (1,))
    leader.append(b"a")
    leader.partition.log.skip_to(10)
    leader.append(b"b")
    leader.append(b"c")
    log = follower.partition.log
    append, is_refused = PartitionLog.append, iter((False, False, True))

    def maybe_append(*arguments):
        if next(is_refused, False):
            raise StorageFault("no space")
        append(*arguments)

    monkeypatch.setattr(PartitionLog, "append", maybe_append)
    follower.is_full = True
    follower.lead(1, 0, (1,))
    settle(nodes)
    assert (log.log_end_offset, follower.gaps) == (11, [follower.partition])
    later(nodes, STORAGE_RETRY_MS)
    assert log.log_end_offset == 12
    assert follower.content() == leader.content()
