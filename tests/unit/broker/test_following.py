"""Leader and follower against each other: real logs, sessions and fetchers, rings made of lists."""

import copy
import errno
import itertools
import os
from collections import deque
from types import SimpleNamespace

import pytest

from shmbroker.apis.controller.tell_log_ends import LACKS
from shmbroker.broker.delayed_produce import DelayedProduces
from shmbroker.broker.replication import cutting, log_ends
from shmbroker.broker.replication.cutting import AHEAD_RETRY_MS, ASIDE_BYTES_MAX
from shmbroker.broker.replication.followed import STORAGE_RETRY_MS
from shmbroker.broker.replication.follower_reads import HIGH_WATERMARK_DELAY_MS, FollowerReads
from shmbroker.broker.replication.in_sync import InSyncChanges
from shmbroker.broker.replication.log_ends import LogEnds
from shmbroker.broker.replication.replica_fetcher import ReplicaFetcher
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    NEED_FILE,
    READ,
    READ_DONE,
    READ_FLAG_FOLLOWER,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
    TOKEN,
)
from shmbroker.ipc.passed_files import OpenFile
from shmbroker.log import checkpoints
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import LOG, file_name
from shmbroker.log.flushing import flush_targets
from shmbroker.log.meta_properties import MetaProperties, write_meta_properties
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.quarantine import quarantine_of
from shmbroker.log.raised_start import find_raised
from shmbroker.log.retention import delete_records, raise_start
from shmbroker.log.retiring import delete_segments_before
from shmbroker.log.truncation import truncate_fully, truncate_to
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.wire import error_codes
from tests.support.leadership import leadership

TOPIC = bytes(15) + b"\x07"
KEY = TOPIC + bytes(4)
file_ids = itertools.count(1)


class Ring:
    """A peer whose entries wait in a list; `payload_bytes_max` as of a ring of 2 MiB."""

    def __init__(self, number):
        self.number = self.slot = number
        self.incarnation = 1
        self.entries = deque()
        self.writer = SimpleNamespace(payload_bytes_max=512 << 10, publish=lambda: None)
        self.unpublished = False

    def send(self, operation, payload):
        self.entries.append((operation, payload))

    def try_send(self, operation, payload):
        self.send(operation, payload)
        return True


class Files:
    """Descriptors that a leader has passed."""

    def __init__(self):
        self.passed = {}

    def find(self, file_id):
        return self.passed.get(file_id)

    def clear(self):
        self.passed.clear()


class Node:
    """One broker's side of replication, with one partition."""

    def __init__(self, number, directory):
        self.number = number
        self.directory = str(directory / f"{number}" / "t-0")
        os.makedirs(self.directory)
        self.now = 1000
        log = PartitionLog.open(self.directory, LogConfig(), file_ids=file_ids)
        self.partition = Partition(KEY, "t", TOPIC, 0, log)
        self.partitions = Partitions({KEY: self.partition})
        self.peers = {}
        self.files = {}
        self.moved, self.appended, self.gaps = set(), set(), []
        self.ahead = []
        self.starts_told = []
        self.asked = []
        self.tokens = itertools.count(1)
        self.delayed = DelayedProduces()
        self.faults = []
        self.is_full = False
        self.can_ask = True

    def connect(self, others):
        self.peers = {other.number: Ring(other.number) for other in others}
        self.files = {other.number: Files() for other in others}
        self.others = {other.number: other for other in others}
        self.reads = FollowerReads(
            self.partitions,
            lambda: self.now,
            self.pass_file,
            self.moved,
            self.on_fault,
            self.starts_told.append,
            self.number,
        )
        self.fetcher = ReplicaFetcher(
            {number: (self.peers[number], self.files[number]) for number in self.peers},
            lambda: next(self.tokens),
            lambda: self.now,
            lambda: self.now,
            self.appended.add,
            self.on_fault,
            self.gaps.append,
            self.ahead.append,
            lambda partition: True,
            self.raise_log_start,
            self.flush,
            self.number,
        )
        self.in_sync = InSyncChanges(self.reads.may_join, self.ask, self.partitions, self.moved)

    def pass_file(self, peer, segment):
        passed = self.others[peer.number].files[self.number].passed
        passed[segment.file_id] = OpenFile(os.dup(segment.fd))

    def on_fault(self, partition, fault):
        if not self.is_full:
            raise fault
        self.faults.append(fault)

    def flush(self, logs, on_done):
        if self.is_full:
            raise StorageFault("no space")
        for log in logs:
            flush = flush_targets(log)
            for descriptor in flush.begin():
                os.close(descriptor)
            flush.end()
        on_done(None)

    def raise_log_start(self, partition, offset):
        raise_start(partition.log, offset)

    def ask(self, body, _on_answer):
        if self.can_ask:
            self.asked.append(body)
        return self.can_ask

    def lead(self, leader, epoch, in_sync=(1, 2, 3), replicas=(1, 2, 3), recovery=0):
        image = leadership(epoch, leader, replicas, in_sync, recovery)
        self.partition.on_leadership(self.number, image)
        if leader == self.number:
            self.fetcher.unfollow(KEY)
        else:
            self.fetcher.follow(self.partition)
        self.reads.on_leadership(self.partition)
        self.delayed.look_at(self.partition)

    def append(self, *values):
        batch = encode_batch([(1, None, value, ()) for value in values])
        log = self.partition.log
        log.append(memoryview(batch), len(values) - 1, 1, self.partition.leader_epoch, 1)
        self.partition.advance_high_watermark()
        self.reads.on_appended(self.partition)
        return log.log_end_offset

    def turn(self):
        """Take what has come; True if there was anything."""
        work = False
        for other in self.others.values():
            inbox = other.peers[self.number].entries
            while inbox:
                work = True
                operation, payload = inbox.popleft()
                view = memoryview(payload)
                peer = self.peers[other.number]
                if operation == READ:
                    self.reads.on_read(peer, view, 0)
                elif operation == READ_DONE:
                    self.fetcher.on_read_done(peer, view, 0)
                else:
                    assert operation == NEED_FILE
                    file_id = TOKEN.unpack(payload)[0]
                    segment = next(
                        one for one in self.partition.log.segments if one.file_id == file_id
                    )
                    self.pass_file(peer, segment)
        for partition in self.moved:
            self.delayed.complete(partition)
            self.reads.on_high_watermark(partition)
        self.moved.clear()
        self.reads.answer_all()
        self.fetcher.send_all()
        return work

    def content(self):
        log = self.partition.log
        found = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            segment, position, length = log.read(offset, 1 << 20, log.log_end_offset)
            with open(segment.path, "rb") as file:
                file.seek(position)
                found.append(file.read(length))
            offset = segment.end_offset if segment is not log.active else log.log_end_offset
        return b"".join(found)


@pytest.fixture
def nodes(tmp_path):
    made = [Node(number, tmp_path) for number in (1, 2, 3)]
    for node in made:
        node.connect([other for other in made if other is not node])
    return made


def settle(nodes, rounds=200):
    """Let them work until nothing moves any more."""
    quiet = 0
    for _ in range(rounds):
        busy = [node.turn() for node in nodes]
        quiet = 0 if any(busy) else quiet + 1
        if quiet == 2:
            return
    raise AssertionError("they never come to rest")


def later(nodes, ms):
    for node in nodes:
        node.now += ms
    settle(nodes)


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
        to_leader.unpublished = False
        if is_woken:
            delete(leader, 1)
        else:
            leader.append(b"b")
        leader.turn()
        follower.turn()
        assert to_leader.unpublished == is_woken
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
