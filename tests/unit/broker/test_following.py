"""Leader and follower against each other: real logs, sessions and fetchers, rings made of lists."""

import copy
import errno
import os

import pytest
from three_brokers import KEY, TOPIC, Ring, later, settle

from shmbroker.apis.controller.tell_log_ends import LACKS
from shmbroker.broker.replication import cutting, log_ends
from shmbroker.broker.replication.cutting import AHEAD_RETRY_MS, ASIDE_BYTES_MAX
from shmbroker.broker.replication.followed import STORAGE_RETRY_MS
from shmbroker.broker.replication.follower_reads import HIGH_WATERMARK_DELAY_MS
from shmbroker.broker.replication.log_ends import LogEnds
from shmbroker.ipc.operation_layout import (
    READ,
    READ_FLAG_FOLLOWER,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
)
from shmbroker.log import checkpoints
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import LOG, file_name
from shmbroker.log.meta_properties import MetaProperties, write_meta_properties
from shmbroker.log.quarantine import quarantine_of
from shmbroker.log.truncation import truncate_fully, truncate_to
from shmbroker.wire import error_codes


def test_followers_copy_and_move_the_high_watermark(nodes):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    leader = nodes[0]
    leader.append(b"a", b"b")
    leader.append(b"c")
    assert leader.partition.high_watermark == 0
    settle(nodes)
    assert leader.partition.high_watermark == 3
    assert nodes[1].content() == nodes[2].content() == leader.content()
    later(nodes, HIGH_WATERMARK_DELAY_MS)
    assert [node.partition.high_watermark for node in nodes] == [3, 3, 3]


def test_a_follower_whose_disk_was_full_when_it_was_to_flush_goes_on(nodes):
    leader, follower, _ = nodes
    follower.partition.is_fsync = True
    for node in nodes:
        node.lead(1, 0, in_sync=(1, 2), replicas=(1, 2))
    settle(nodes)
    follower.is_full = True
    leader.append(b"a")
    settle(nodes)
    assert follower.faults and leader.partition.high_watermark == 0
    follower.is_full = False
    settle(nodes)
    later(nodes, STORAGE_RETRY_MS)
    settle(nodes)
    assert leader.partition.high_watermark == 1


def test_a_follower_that_is_told_of_nothing_new_waits_for_the_next(nodes):
    """As when a group's record is refused, for want of replicas."""
    for node in nodes:
        node.lead(1, 0)
    leader = nodes[0]
    leader.append(b"a")
    settle(nodes)
    leader.reads.on_appended(leader.partition)
    settle(nodes)
    leader.append(b"b")
    settle(nodes)
    assert leader.partition.high_watermark == 2


def test_slices_of_files_are_read_by_descriptor(nodes):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    values = [os.urandom(300_000) for _ in range(20)]
    for value in values:
        nodes[0].append(value)
    settle(nodes)
    assert nodes[0].partition.high_watermark == 20
    assert nodes[1].content() == nodes[0].content()


def test_a_leaders_log_that_can_not_be_read_is_tried_again(nodes, monkeypatch):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)

    def refuse(*_):
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as bad:
        bad.setattr(os, "preadv", refuse)
        nodes[0].append(os.urandom(300_000))
        settle(nodes)
        assert nodes[0].partition.high_watermark == 0
    later(nodes, STORAGE_RETRY_MS)
    assert nodes[0].partition.high_watermark == 1


def test_a_log_whose_file_can_not_be_passed_is_tried_again(nodes, monkeypatch):
    leader = nodes[0]
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    leader.is_full = True  # faults are noted

    real = os.open

    def refuse(path, *arguments, **options):
        if path == leader.partition.log.active.path:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **options)

    leader.append(os.urandom(300_000))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        settle(nodes)
    assert leader.faults
    assert [node.partition.log.log_end_offset for node in nodes] == [1, 0, 0]
    later(nodes, 10_000)
    assert [node.content() for node in nodes[1:]] == [leader.content()] * 2


def test_acks_wait_for_the_in_sync_replicas(nodes):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    leader, client = nodes[0], Ring(9)
    end = leader.append(b"x")
    leader.delayed.add((client, 77, leader.partition, 0, -1, end, 5000))
    nodes[1].turn()
    leader.turn()
    assert not client.entries
    settle(nodes)
    assert [int.from_bytes(payload[:8], "little") for _, payload in client.entries] == [77]
    assert not leader.delayed.partitions


@pytest.mark.parametrize(
    ("leader_id", "in_sync", "error"),
    [
        (2, (2, 3), error_codes.NOT_LEADER_OR_FOLLOWER),
        (1, (1,), error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    ],
)
def test_acks_that_can_not_come_are_refused(nodes, leader_id, in_sync, error):
    leader, client = nodes[0], Ring(9)
    leader.partition.min_in_sync_replicas = 2
    leader.lead(1, 0)
    end = leader.append(b"x")
    leader.delayed.add((client, 5, leader.partition, 0, -1, end, 5000))
    leader.lead(leader_id, 1, in_sync)
    ((_, payload),) = client.entries
    assert int.from_bytes(payload[8:10], "little") == error


def test_an_ack_whose_time_is_over(nodes):
    leader, client = nodes[0], Ring(9)
    leader.lead(1, 0)
    for token, deadline in ((1, 3000), (2, 2000)):
        end = leader.append(b"x")
        leader.delayed.add((client, token, leader.partition, 0, -1, end, deadline))
    leader.delayed.expire(2500)
    ((_, payload),) = client.entries
    assert payload[:10] == (2).to_bytes(8, "little") + error_codes.REQUEST_TIMED_OUT.to_bytes(
        2, "little"
    )
    leader.delayed.expire(4000)
    assert len(client.entries) == 2 and not leader.delayed.partitions


def test_the_log_of_a_deposed_leader_is_cut_where_it_diverges(nodes):
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    nodes[0].append(b"kept")
    settle(nodes)
    nodes[0].append(b"lost", b"lost too")  # nobody reads it any more
    for node in nodes[1:]:
        node.lead(2, 1, (2, 3))
    nodes[1].append(b"instead")
    settle(nodes[1:])
    nodes[0].lead(2, 1, (2, 3))
    settle(nodes)
    assert nodes[0].partition.log.log_end_offset == 2
    assert nodes[0].content() == nodes[1].content() == nodes[2].content()
    assert b"lost" not in nodes[0].content()


def lead_with_nothing(nodes, in_sync=(1, 2, 3), recovery=0):
    """All have 2 records that were committed; then 1 leads again and has none of them."""
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    nodes[0].append(b"kept", b"kept too")
    settle(nodes)
    later(nodes, HIGH_WATERMARK_DELAY_MS)
    assert all(node.partition.high_watermark == 2 for node in nodes)
    truncate_to(nodes[0].partition.log, 0)
    nodes[0].partition.on_truncated()
    for node in nodes[1:]:  # as of a process that has started anew
        node.peers[1].entries.clear()
        nodes[0].peers[node.number].entries.clear()
        nodes[0].reads.drop_peer(node.number)
        node.fetcher.on_peer_lost(node.peers[1])
    for node in nodes:
        node.lead(1, 1, in_sync, recovery=recovery)


def test_a_cut_that_the_disk_refuses_is_tried_again(nodes, monkeypatch):
    first, second, third = nodes
    for node in nodes:
        node.lead(1, 0)
    settle(nodes)
    first.append(b"a")
    settle(nodes)
    first.append(b"b")
    end = second.partition.log.log_end_offset

    def refuse(_):
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as bad:
        bad.setattr(checkpoints, "sync_directory", refuse)
        bad.setattr(first, "is_full", True)  # it is to note its faults
        for node in nodes:
            node.lead(2, 1)
        settle(nodes)
        assert first.faults
    later(nodes, STORAGE_RETRY_MS)
    assert first.partition.log.log_end_offset == end == third.partition.log.log_end_offset


def test_nothing_is_cut_below_the_high_watermark(nodes, caplog):
    lead_with_nothing(nodes)
    nodes[0].append(b"new", b"new", b"new")
    settle(nodes)
    later(nodes, AHEAD_RETRY_MS)
    for node in nodes[1:]:
        assert node.partition.log.log_end_offset == node.partition.high_watermark == 2
        assert b"kept too" in node.content()
        assert node.ahead == [node.partition], "told once"
    lines = [row.getMessage() for row in caplog.records if row.levelname == "ERROR"]
    assert len(lines) == 2, "said once by each"
    assert "t-0: broker 1 leads it" in lines[0] and "offset 2" in lines[0]
    assert nodes[0].partition.high_watermark == 0, "who doesn't follow moves nothing"
    # One of those that have it leads, and the others follow.
    for node in nodes:
        node.lead(2, 2, (2, 3))
    settle(nodes)
    assert nodes[0].content() == nodes[1].content() == nodes[2].content()
    assert b"kept too" in nodes[0].content() and b"new" not in nodes[0].content()


@pytest.mark.parametrize("bytes_max", [ASIDE_BYTES_MAX, 10], ids=["put aside", "too much"])
@pytest.mark.parametrize("allowed", ["elected uncleanly", "by the topic"])
def test_where_an_operator_allows_it_what_is_cut_is_put_aside(
    nodes, caplog, monkeypatch, allowed, bytes_max
):
    monkeypatch.setattr(cutting, "ASIDE_BYTES_MAX", bytes_max)
    for node in nodes:
        write_meta_properties(
            os.path.join(os.path.dirname(node.directory), "meta.properties"),
            MetaProperties(node.number, "c", bytes(range(16))),
        )
        if allowed == "by the topic":
            node.partition.log.set_config(LogConfig({"unclean.leader.election.enable": "true"}))
    lead_with_nothing(nodes, (1,), recovery=1 if allowed == "elected uncleanly" else 0)
    settle(nodes)
    for node in nodes[1:]:
        assert node.partition.log.log_end_offset == node.partition.high_watermark == 0
        assert not node.ahead
        aside = os.path.join(quarantine_of(node.directory), file_name(0, LOG))
        if bytes_max == ASIDE_BYTES_MAX:
            with open(aside, "rb") as file:
                assert b"kept too" in file.read()
        else:
            assert not os.path.exists(aside)
    (line, _) = [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]
    assert "cut from offset 2 to 0, below its high watermark 2" in line
    assert ("quarantine/" in line) == (bytes_max == ASIDE_BYTES_MAX)


@pytest.mark.parametrize(("in_sync", "is_kept"), [((1, 2, 3), True), ((1,), False)])
def test_a_log_start_behind_all_in_sync_replicas_is_not_believed(nodes, in_sync, is_kept):
    lead_with_nothing(nodes, in_sync)
    for node in nodes:
        node.partition.log.leader_epochs.truncate_from_end(0)
    truncate_fully(nodes[0].partition.log, 9000)
    settle(nodes)
    for node in nodes[1:]:
        assert node.partition.log.log_end_offset == (2 if is_kept else 9000)
        assert node.ahead == ([node.partition] if is_kept else [])


def test_one_that_lacks_something_leads_when_the_controller_knows(nodes):
    node = nodes[0]
    told, decided = [], []
    ends = LogEnds(1, lambda body, _: told.append(body) or True, decided.append)
    ends.tell(node.partition, LACKS)
    node.lead(1, 3)
    assert not node.partition.is_leader
    ends.run()
    ends.run()
    (body,) = told
    ((row,),) = [topic["partitions"] for topic in body["topics"]]
    assert (row["state"], row["leader_epoch"], row["end_offset"]) == (LACKS, 3, 0)
    ends.on_answer(None)
    ends.run()
    assert len(told) == 1, "not at once"
    ends.look_again()
    ends.run()
    assert told[1] == body

    def answer(leader_id, leader_epoch):
        row = {"partition_index": 0, "leader_id": leader_id, "leader_epoch": leader_epoch}
        ends.on_answer({"error_code": 0, "topics": [{"topic_id": TOPIC, "partitions": [row]}]})

    answer(-1, 4)
    assert decided == [node.partition]
    node.lead(1, 4)
    assert not node.partition.is_leader, "of an epoch that others have decided"
    node.lead(-1, 4)
    ends.look_again()
    ends.run()
    assert len(told) == 3, "told again while nobody leads"
    answer(1, 5)
    node.lead(1, 5)
    assert node.partition.is_leader
    ends.look_again()
    ends.run()
    assert len(told) == 3


def test_what_was_found_since_a_question_is_told_where_that_was_lost(nodes):
    partition = nodes[0].partition
    told = []
    ends = LogEnds(1, lambda body, _: told.append(body) or True, None)
    ends.tell_all([partition], set())
    ends.run()
    ends.tell(partition, LACKS)
    ends.on_answer(None)
    assert ends.waiting == {partition: LACKS}


def test_all_ends_are_told_in_pieces(nodes, monkeypatch):
    monkeypatch.setattr(log_ends, "PARTITIONS_MAX", 2)
    told = []
    ends = LogEnds(1, lambda body, _: told.append(body) or True, None)
    for node in nodes:
        node.partition.key = bytes([node.number]) * 20
        node.partition.log.leader_epochs.assign(4, 0)
    nodes[0].partition.leader_epoch = 4
    nodes[0].append(b"one")
    ends.tell_all([node.partition for node in nodes], {nodes[1].partition.key})
    for _ in range(2):
        ends.run()
        assert not ends.is_told
        ends.on_answer({"error_code": 0, "topics": []})
    assert ends.is_told
    ends.run()
    assert [body["is_last"] for body in told] == [False, True]
    rows = [row for body in told for topic in body["topics"] for row in topic["partitions"]]
    assert [(row["last_epoch"], row["end_offset"]) for row in rows] == [(4, 1), (-1, 0), (-1, 0)]
    assert [bool(row["epochs"]) for row in rows] == [True, False, True]
    # One that has no replica beside another says so: it is waited for.
    ends.tell_all([], set())
    ends.run()
    assert told[-1] == {"is_last": True, "topics": []}


def test_epochs_without_a_batch_are_no_obstacle(nodes):
    for epoch, leader in enumerate((1, 2, 3, 1, 3, 2)):
        for node in nodes:
            node.lead(leader, epoch)
        if epoch % 2:
            continue
        nodes[leader - 1].append(b"%d" % epoch)
        settle(nodes)
    nodes[1].append(b"end")
    settle(nodes)
    assert nodes[0].content() == nodes[1].content() == nodes[2].content()
    assert nodes[1].partition.high_watermark == nodes[1].partition.log.log_end_offset == 4


def test_who_follows_another_leader_tells_the_first(nodes):
    for node in nodes:
        node.lead(1, 0)
    nodes[0].append(b"x")
    settle(nodes)
    follower = nodes[1]
    first, second = follower.fetcher.links[1], follower.fetcher.links[3]
    (row,) = first.rows.values()
    follower.fetcher.retries.again(row, 1000)
    follower.lead(3, 1)
    assert first.rows == {} and first.gone == [row.which]
    assert follower.fetcher.retries.next_ms is None
    (another,) = second.rows.values()
    assert follower.fetcher.rows == {KEY: another}
    assert another.leader_epoch == 1 and another in second.changed


def reads_of(node, leader):
    """The READs that wait at a leader: (flags, rows)."""
    found = []
    for operation, payload in node.peers[leader].entries:
        assert operation == READ
        *_, flags, count, _ = READ_HEAD.unpack_from(payload)
        rows = list(READ_PARTITION.iter_unpack(payload[READ_HEAD.size :]))
        assert len(rows) == count
        found.append((flags, rows))
    node.peers[leader].entries.clear()
    return found


def test_a_read_names_what_is_followed_once_and_what_is_no_more(nodes):
    for node in nodes:
        node.lead(1, 0)
    follower = nodes[1]
    follower.fetcher.send_all()
    named = (KEY, 0, 0, -1, 0, 0, 0)
    assert reads_of(follower, 1) == [(READ_FLAG_FOLLOWER | READ_FLAG_NEW, [named])]
    follower.fetcher.send_all()
    assert reads_of(follower, 1) == [], "one is under way, and nothing is new"
    follower.fetcher.unfollow(KEY)
    follower.fetcher.send_all()
    gone = (bytes(20), 0, -1, -1, -1, -1, -1)
    assert reads_of(follower, 1) == [(READ_FLAG_FOLLOWER, [gone])]
    follower.fetcher.links[1].token = 0  # answered
    follower.fetcher.send_all()
    assert reads_of(follower, 1) == [], "nothing is followed there"


def test_a_leader_that_is_down_is_asked_nothing(nodes):
    for node in nodes:
        node.lead(1, 0)
    follower = nodes[1]
    follower.peers[1].incarnation = 0
    follower.fetcher.send_all()
    assert reads_of(follower, 1) == []
    follower.peers[1].incarnation = 2
    follower.fetcher.on_peer_lost(Ring(1))  # another that had its number
    follower.fetcher.send_all()
    assert len(reads_of(follower, 1)) == 1
    follower.fetcher.on_peer_lost(Ring(1))
    follower.fetcher.on_peer_lost(Ring(9))
    follower.fetcher.send_all()
    assert reads_of(follower, 1) == [], "the one that is asked lives"
    follower.fetcher.on_peer_lost(follower.peers[1])
    follower.fetcher.send_all()
    ((flags, rows),) = reads_of(follower, 1)
    assert flags & READ_FLAG_NEW and [row[0] for row in rows] == [KEY]


def test_in_a_new_epoch_the_log_is_compared_again(nodes):
    for node in nodes:
        node.lead(1, 0)
    nodes[0].append(b"x")
    settle(nodes)
    link = nodes[1].fetcher.links[1]
    (row,) = link.rows.values()
    assert row.is_compared and row.leader_epoch == 0
    nodes[1].fetcher.follow(nodes[1].partition)
    assert row.is_compared and row not in link.changed, "it goes on"
    nodes[1].lead(1, 1)
    assert list(link.rows.values()) == [row] and link.gone == []
    assert not row.is_compared and row.leader_epoch == 1
    assert row in link.changed


def test_what_is_made_anew_is_another_row(nodes):
    for node in nodes:
        node.lead(1, 0)
    follower = nodes[1]
    link = follower.fetcher.links[1]
    (row,) = link.rows.values()
    follower.partition = copy.copy(follower.partition)
    follower.fetcher.follow(follower.partition)
    (another,) = link.rows.values()
    assert another is not row and another.partition is follower.partition
    assert link.gone == [row.which]


def test_a_dead_follower_starts_over(nodes):
    for node in nodes:
        node.lead(1, 0)
    nodes[0].append(b"a")
    settle(nodes)
    leader = nodes[0]
    leader.reads.drop_peer(3)
    nodes[2].fetcher.on_peer_lost(nodes[2].peers[1])
    leader.append(b"b")
    settle(nodes[:2])
    assert leader.partition.high_watermark == 1
    settle(nodes)
    assert leader.partition.high_watermark == 2


def test_too_few_in_sync_replicas_hold_the_high_watermark(nodes):
    leader = nodes[0]
    leader.partition.min_in_sync_replicas = 2
    leader.lead(1, 0, (1,))
    leader.append(b"a")
    assert leader.partition.high_watermark == 0
    leader.partition.in_sync_replicas = (1, 2)
    leader.lead(1, 0, (1, 2))
    for node in nodes[1:]:
        node.lead(1, 0, (1, 2))
    settle(nodes)
    assert leader.partition.high_watermark == 1
