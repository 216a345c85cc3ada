"""Three brokers of a partition: real logs, sessions and fetchers, rings made of lists."""

import itertools
import os
from collections import deque
from types import SimpleNamespace

from shmbroker.broker.delayed_produce import DelayedProduces
from shmbroker.broker.replication.follower_reads import FollowerReads
from shmbroker.broker.replication.in_sync import InSyncChanges
from shmbroker.broker.replication.replica_fetcher import ReplicaFetcher
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    NEED_FILE,
    READ,
    READ_DONE,
    TOKEN,
)
from shmbroker.ipc.passed_files import OpenFile
from shmbroker.log.config import LogConfig
from shmbroker.log.flushing import flush_targets
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import raise_start
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition, Partitions
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
        self.outbox = {}

    def send(self, operation, payload):
        self.entries.append((operation, payload))
        self.outbox[self] = None

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
            lambda *question: self.find_state(*question),
            self.number,
        )
        self.in_sync = InSyncChanges(self.reads.may_join, self.ask, self.partitions, self.moved)

    def pass_file(self, peer, segment):
        passed = self.others[peer.number].files[self.number].passed
        passed[segment.file_id] = OpenFile(os.dup(segment.fd))

    def find_state(self, _partition, _offset, on_state):
        """There is no remote store."""
        on_state(None)

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
