"""Replicas under one seeded scheduler: the real partition, sessions, fetcher, acks, logs and
controller decisions, with virtual time; rings, processes, page cache and metadata log are models.

What may happen, at random: a process takes a turn or is slow, clients append (acks 1 and all,
idempotent, retried) and read, a broker is killed (its page cache and shared memory live on), hangs
and comes back, all of them are killed or lose power, one gets an empty disk or has lost its
partition's directory, controllers change, leaders are moved.

Where something is lost that nobody could keep (unflushed records of all replicas in a power cut
without fsync'ed acks, the only copy of a record) no fault of that kind is made, or what is promised
is what is left.

What must hold, at every step:

* what a client was told of the high watermark never goes back;
* below it every replica that holds it holds the same bytes, for ever;
* in-sync replicas, as the controller knows them, have all that is below it;
and at the end, when everything works again: what was acknowledged with acks=all is there, once and
in order, and all replicas are equal.
"""

import itertools
import os
import shutil
import struct
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from shmbroker.broker.append import Appender
from shmbroker.broker.replication.log_ends import LACKS
from shmbroker.broker.replication.replication import Replication
from shmbroker.controller.active_controller import ActiveController
from shmbroker.ids import partition_key
from shmbroker.ipc.core import Core
from shmbroker.ipc.operation_layout import (
    APPEND_CONSTANT,
    APPENDED_HEAD,
    NEED_FILE,
    READ,
    READ_DONE,
    TOKEN,
)
from shmbroker.ipc.passed_files import OpenFile
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.metadata.image import MetadataImage
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import CONTROL_BIT, H_ATTRIBUTES
from shmbroker.replica.partition import Partition
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire import error_codes
from shmbroker.wire.metadata_records import decode_metadata_record, encode_metadata_record

NODES = (1, 2, 3)
TOPIC = "t"
SESSION_MS = 50
LAG_MAX_MS = 40
PRODUCER_ID = 7
RETRIED = (
    error_codes.NOT_LEADER_OR_FOLLOWER,
    error_codes.NOT_ENOUGH_REPLICAS,
    error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    error_codes.REQUEST_TIMED_OUT,
    error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


class Ring:
    """A peer: what is sent there waits in a list until the other takes it."""

    role = "io-worker"

    def __init__(self, number: int) -> None:
        self.number = self.slot = number
        self.incarnation = 1
        self.entries: deque[tuple[int, bytes]] = deque()
        self.backlog = ()
        self.unpublished = False
        self.doorbell = SimpleNamespace(ring_if_sleeping=lambda: None)
        self.writer = SimpleNamespace(
            payload_bytes_max=64 << 10, publish=lambda: None, claim=lambda operation, length: -1
        )

    def send(self, operation: int, payload: bytes) -> None:
        self.entries.append((operation, payload))

    def try_send(self, operation: int, payload: bytes) -> bool:
        if len(self.entries) > 20:
            return False
        self.send(operation, payload)
        return True


class MemoryLog:
    """The metadata log: whatever is appended is committed."""

    node_id = 1

    epoch = 1

    def __init__(self) -> None:
        self.records: list[Any] = []

    def append(self, records: list[Any], _now_ms: int, _encoded: object = None) -> int:
        # There and back, as what is left out gets its default on the way.
        self.records += [decode_metadata_record(encode_metadata_record(*row)) for row in records]
        return len(self.records)

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    committed_offset = log_end_offset


class MemoryFollower:
    """An image that follows a MemoryLog."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.image = MetadataImage("c")
        self.reader = SimpleNamespace(is_in_transaction=False)

    def catch_up(self, end_offset: int) -> list[Any]:
        start = self.image.offset
        rows = [
            (start + at, 1, *row)
            for at, row in enumerate(self.log.records[start:end_offset])
            if row[0] not in ("BeginTransactionRecord", "EndTransactionRecord")
        ]
        self.image, changes = self.image.apply(rows, end_offset, 1)
        return changes

    def apply_own(
        self, records: Iterable[Any], end_offset: int, epoch: int, _timestamp_ms: int
    ) -> None:
        self.image, _ = self.image.apply(records, end_offset, epoch)


class Told:
    """A sibling's entry of the position table; it survives its process."""

    def __init__(self) -> None:
        self.end = 0
        self.high = 0
        self.trusted: tuple[int, int, int] | None = None

    def store(self, base: int, position: int, end: int) -> None:
        self.trusted = (base, position, end)
        self.end = end

    def store_high_watermark(self, high_watermark: int) -> None:
        self.high = high_watermark

    def end_offset(self, _key: bytes) -> int:
        return self.end

    def high_watermark(self, _key: bytes) -> int:
        return self.high

    def may_look_again(self) -> None:
        pass


class Node:
    """A broker: what `IoWorker` does with replicas, in the same order."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.told = Told()
        self.checkpointed = 0
        self.directory = world.root / f"node-{number}" / f"{TOPIC}-0"
        self.directory.mkdir(parents=True)
        self.incarnation = 0
        self.is_up = False
        self.hangs_until = 0
        self.flushed: dict[str, int] = {}
        self.disk = number
        self.has_lost = False
        """And the controller doesn't know yet."""
        self.is_in_doubt = False
        self.told_to: Any = None

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def boot(self, is_clean_memory: bool) -> None:
        """Start: with the positions that the process before stored, or after a power cut. It has
        registered before."""
        self.told_end = self.told.end
        self.incarnation += 1
        self.is_up = True
        self.is_in_doubt = True
        self.told_to = None
        self.flushes: deque[tuple[Any, Any]] = deque()
        log = PartitionLog.open(
            str(self.directory),
            LogConfig(self.world.topic_config),
            file_ids=self.world.file_ids,
            position_slot=self.told,
            trusted=self.told.trusted if is_clean_memory else None,
            clean=False,
            decided_below=max(self.told.high, self.checkpointed),
        )
        log.store_position()
        if self.world.is_durable:
            self.flush([log])
            self.end_flush(log)
        key = self.world.key
        self.partition = partition = Partition(key, TOPIC, self.world.topic_id, 0, log)
        partition.known_high_watermark = max(self.told.high, self.checkpointed)
        known = max(partition.known_high_watermark, (self.told_end if is_clean_memory else 0))
        if log.log_end_offset < known:
            partition.lost_below = known
        partition.store_high_watermark = self.told.store_high_watermark
        self.partitions = {key: partition}
        self.follower = MemoryFollower(self.world.metadata)
        self.peers = {number: Ring(number) for number in NODES if number != self.number}
        self.files: dict[int, dict[int, Any]] = {number: {} for number in self.peers}
        self.client = Ring(0)
        self.appender = Appender(self.partitions, self.now, self.on_fault, self.flush, self.now)
        self.appender.unverified.ask = self.world.verify
        tables = {
            number: SimpleNamespace(
                find=self.files[number].get,
                clear=self.files[number].clear,
                drop=lambda file_id, files=self.files[number]: files.pop(file_id, None),
            )
            for number in self.peers
        }
        tokens = itertools.count(self.incarnation << 32)
        self.replication = Replication(
            self.number,
            self.appender,
            {number: (self.peers[number], tables[number]) for number in self.peers},
            {number: self.world.nodes[number].told for number in self.peers},
            LAG_MAX_MS,
            core=Core(lambda: self.now() / 1000),
            new_token=lambda: next(tokens),
            pass_file=self.pass_file,
            note_gap=self.on_gap,
            flush=self.flush,
            ask=self.ask,
            tell=self.tell,
            on_decided=self.apply,
            on_high_watermark=lambda partition: None,
        )

    def die(self) -> None:
        self.is_up = False
        log = self.partition.log
        for segment in log.segments:
            segment.close()
        for other in self.world.nodes.values():
            if other is not self and other.is_up:
                peer = other.peers[self.number]
                peer.entries.clear()
                other.replication.on_sibling_lost(peer)

    def lose_unflushed(self, random: Random) -> None:
        """Power: what was not flushed is there in part, in whole, or not at all."""
        for path in self.directory.glob("*.log"):
            safe = self.flushed.get(path.name, 0)
            content = bytearray(path.read_bytes())
            if len(content) > safe:
                at = random.randrange(safe, len(content) + 1)
                content[at:] = bytes(len(content) - at)
                path.write_bytes(content)
        for path in self.directory.glob("*index"):
            path.unlink()
        self.forget_memory()

    def forget_memory(self) -> None:
        """What the family shares is gone."""
        self.told.trusted, self.told.end, self.told.high = None, 0, 0

    def lose_directory(self) -> None:
        """The partition's directory is gone; checkpoints and identity are there."""
        self.has_lost = True
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        self.flushed.clear()

    def lose_disk(self) -> None:
        """An empty disk is in the place of its own."""
        self.lose_directory()
        self.checkpointed = 0
        self.disk += 16

    def now(self) -> int:
        return self.world.now

    def on_fault(self, _partition: Partition, fault: Exception) -> None:
        raise fault

    def on_gap(self, _partition: Partition) -> None:
        raise AssertionError("nothing was compacted")

    def flush(self, logs: list[PartitionLog], on_done: Any = None) -> None:
        descriptors, end = logs[0].flush_targets()
        sizes = {Path(one.path).name: one.size for one in logs[0].segments}
        self.flushes.append(((descriptors, sizes, end), on_done))

    def pass_file(self, peer: Any, segment: Any) -> None:
        other = self.world.nodes[peer.number]
        if other.is_up:
            fd = os.open(segment.path, os.O_RDONLY)
            other.files[self.number].setdefault(segment.file_id, OpenFile(fd))

    def ask(self, body: dict[str, Any]) -> bool:
        broker = self.follower.image.brokers[self.number]
        who = {"broker_id": self.number, "broker_epoch": broker.broker_epoch}
        self.world.requests.append((self.number, self.incarnation, body | who))
        return True

    def tell(self, body: dict[str, Any]) -> bool:
        broker = self.follower.image.brokers[self.number]
        who = {"broker_id": self.number, "broker_epoch": broker.broker_epoch}
        self.world.requests.append((self.number, self.incarnation, body | who))
        return True

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def follow_metadata(self) -> None:
        if self.follower.image.offset != len(self.world.metadata.records):
            self.follower.catch_up(len(self.world.metadata.records))
            if self.is_in_doubt and not self.follower.image.brokers[self.number].is_fenced:
                self.is_in_doubt = False
                self.world.pending.discard(self.number)
                if self.partition.lost_below >= 0 and self.told_to is None:
                    self.replication.log_ends.tell(self.partition, LACKS)
            image = self.follower.image.topics_by_name[TOPIC].partitions[0]
            if not self.is_in_doubt and (image.leader_epoch, image.partition_epoch) != (
                self.partition.leader_epoch,
                self.partition.partition_epoch,
            ):
                self.apply(self.partition)
        if self.is_in_doubt and self.told_to is not self.world.controller:
            self.told_to = self.world.controller
            image = self.follower.image.topics_by_name[TOPIC].partitions[0]
            in_sync = {self.world.key} if self.number in image.in_sync_replicas else set()
            self.replication.log_ends.tell_all([self.partition], in_sync)

    def apply(self, partition: Partition) -> None:
        """Take over what the metadata says of it."""
        image = self.follower.image.topics_by_name[TOPIC].partitions[0]
        self.replication.on_leadership(partition, image)

    def turn(self, random: Random) -> bool:
        """One pass; True if something was there to do."""
        work = False
        self.follow_metadata()
        if self.is_in_doubt:
            self.replication.log_ends.look_again()
            self.replication.log_ends.run()
            return True
        for number in self.peers:
            other = self.world.nodes[number]
            if not other.is_up:
                continue
            inbox = other.peers[self.number].entries
            for _ in range(random.randrange(len(inbox) + 1)):
                work = True
                self.take(self.peers[number], *inbox.popleft())
        while self.flushes and random.random() < 0.5:
            work = True
            self.end_flush()
        self.appender.group_commit.start()
        for partition in self.appender.appended:
            self.replication.reads.on_appended(partition)
        work |= bool(self.appender.appended)
        self.appender.appended.clear()
        if self.appender.moved:
            self.replication.tell_moved()
        self.replication.run(self.follower.image)
        if random.random() < 0.05:
            self.replication.look_at_all(self.follower.image)
        if random.random() < 0.02:
            self.checkpointed = self.partition.high_watermark
        if random.random() < 0.03 and self.partition.log.active.size:
            self.partition.log.roll(1)
        self.answer_clients()
        return work or bool(self.flushes)

    def end_flush(self, log: PartitionLog | None = None) -> None:
        (descriptors, sizes, end), on_done = self.flushes.popleft()
        for descriptor in descriptors:
            os.close(descriptor)
        for name, size in sizes.items():
            self.flushed[name] = max(size, self.flushed.get(name, 0))
        (log or self.partition.log).on_flushed(end)
        if on_done is not None:
            on_done(None)

    def take(self, peer: Ring, operation: int, payload: bytes) -> None:
        view = memoryview(payload)
        if operation == READ:
            self.replication.reads.on_read(peer, view, 0, len(view))
        elif operation == READ_DONE:
            self.replication.fetcher.on_read_done(peer, view, 0, len(view))
        else:
            assert operation == NEED_FILE
            file_id = TOKEN.unpack(payload)[0]
            for segment in self.partition.log.segments:
                if segment.file_id == file_id:
                    self.pass_file(peer, segment)

    def answer_clients(self) -> None:
        while self.client.entries:
            _, payload = self.client.entries.popleft()
            token, error, _, _, base_offset, _, _ = APPENDED_HEAD.unpack_from(payload)
            self.world.on_answer(token, error, base_offset)

    def content(self, end_offset: int) -> bytes:
        """The bytes of all batches before an offset."""
        log = self.partition.log
        found = []
        for segment in log.segments:
            if not segment.size or segment.base_offset >= end_offset:
                continue
            with open(segment.path, "rb") as file:
                data = file.read(segment.size)
            for position, header in iterate_batches(data):
                if header[0] >= end_offset:
                    break
                found.append(data[position : position + 12 + header[1]])
        return b"".join(found)


class World:
    """Everything, and what clients know."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random = Random(seed)
        self.root = root
        self.now = 1_000_000
        self.is_durable = random.random() < 0.3
        """Acks wait for the disk; only then may the power go."""
        self.topic_config = {
            "min.insync.replicas": "2",
            "segment.bytes": "4096",
            "shmbroker.ack.durability": "fsync" if self.is_durable else "page-cache",
        }
        self.file_ids = itertools.count(1)
        self.metadata = MemoryLog()
        config = BrokerConfig({"shmbroker.io.workers": "3", "min.insync.replicas": "2"})
        topic_id = bytes(15) + b"\x09"
        self.topic_id = topic_id
        self.key = partition_key(topic_id, 0)
        self.config = config
        self.controller = self.new_controller()
        self.requests: deque[tuple[int, int, dict[str, Any]]] = deque()
        self.seen_hung: dict[int, int] = {}
        self.to_fence: dict[int, int] = {}
        self.to_boot: dict[int, tuple[int, bool]] = {}
        self.pending: set[int] = set()
        """Brokers that have not registered since all ended."""
        self.nodes: dict[int, Node] = {}
        for number in NODES:
            self.nodes[number] = Node(self, number)
        for number in NODES:
            self.register(number)
        request = {
            "topics": [
                {
                    "name": TOPIC,
                    "num_partitions": 1,
                    "replication_factor": 3,
                    "assignments": [],
                    "configs": [],
                }
            ],
            "validate_only": False,
        }
        found = self.controller.handle("CreateTopics", 7, request, self.now)["topics"]
        assert found[0]["error_code"] == 0, found
        for node in self.nodes.values():
            node.boot(True)
        self.tokens = itertools.count(1)
        self.sequence = 0
        self.unsafe = 0
        self.sent: dict[int, int] = {}
        """token: number of the batch; in order"""
        self.sent_to = (0, 0, 0)
        self.answers: dict[int, tuple[int, int]] = {}
        self.unanswered: deque[tuple[int, bytes]] = deque()
        """number and batch of the appends that have no good answer yet, in order"""
        self.acked: list[tuple[int, int]] = []
        self.told_watermark = 0
        self.safe = b""
        """The bytes below it."""

    def new_controller(self) -> ActiveController:
        """One that takes over knows what is in the log, and nothing else."""
        return ActiveController.activate(
            self.metadata, MemoryFollower(self.metadata), self.config, self.now,
            new_topic_id=lambda: self.topic_id,
        )  # fmt: skip

    def register(self, number: int, is_clean: bool = True) -> None:
        disk = bytes([self.nodes[number].disk]) * 16
        self.controller.register_broker(
            number, "h", 9000 + number, bytes(16), [disk], 0, is_clean, self.pending
        )
        if is_clean:
            self.controller.unfence_broker(number, 0, self.pending)
        self.controller.settle(0, self.pending)

    @property
    def image(self) -> Any:
        return self.controller.image.topics_by_name[TOPIC].partitions[0]

    def leader(self) -> Node | None:
        """Who leads, if it can be reached."""
        leader = self.nodes.get(self.image.leader_id)
        if leader is None or not leader.is_up or self.now < leader.hangs_until:
            return None
        leader.follow_metadata()
        return leader

    def verify(self, *question: Any) -> None:
        """What a leader asks the coordinator of a transaction: here is none."""
        question[-1](error_codes.INVALID_TXN_STATE)

    # ── clients ─────────────────────────────────────────────────────────────────────────────────

    def produce(self) -> None:
        """One more batch, or all that are unanswered again, to whom the leader is thought to be."""
        random = self.random
        leader = self.leader()
        if leader is None:
            return
        if random.random() < 0.2:
            # acks=1, by somebody who doesn't ask again: it may be lost.
            self.unsafe -= 1
            batch = encode_batch([(1, None, struct.pack(">q", self.unsafe), ())])
            self.append(leader, next(self.tokens), batch, 1)
            return
        place = (leader.number, leader.incarnation, self.image.leader_epoch)
        if self.sent and self.sent_to != place:
            return  # what is under way elsewhere comes first
        self.sent_to = place
        if not self.sent and self.unanswered:
            again = list(self.unanswered)
        elif len(self.unanswered) < 5:
            count = random.randrange(1, 4)
            batch = encode_batch(
                [(1, None, struct.pack(">q", self.sequence + at), ()) for at in range(count)],
                producer_id=PRODUCER_ID,
                producer_epoch=0,
                base_sequence=self.sequence,
            )
            self.unanswered.append((self.sequence, batch))
            self.sequence += count
            again = [self.unanswered[-1]]
        else:
            return
        for number, batch in again:
            token = next(self.tokens)
            self.sent[token] = number
            self.append(leader, token, batch, -1)

    is_settled = True
    """Nothing is under way but what `unanswered` has."""

    def settle(self) -> None:
        """Go on with what is not done, and begin nothing."""
        if self.unanswered:
            self.produce()

    def append(self, leader: Node, token: int, batch: bytes, acks: int) -> None:
        head = APPEND_CONSTANT.pack(acks, 0, 200, self.key, len(batch))
        entry = memoryview(token.to_bytes(8, "little") + head + batch)
        leader.appender.on_append(leader.client, entry, 0, len(entry))

    def on_answer(self, token: int, error: int, base_offset: int) -> None:
        """An answer to the network worker; the client sees them in the order of its requests."""
        if token in self.sent:
            self.answers[token] = (error, base_offset)
        while self.sent and (token := next(iter(self.sent))) in self.answers:
            number = self.sent.pop(token)
            error, base_offset = self.answers.pop(token)
            if error in (0, error_codes.DUPLICATE_SEQUENCE_NUMBER):
                assert self.unanswered.popleft()[0] == number
                self.acked.append((number, base_offset))
                continue
            assert error in RETRIED, error_codes.name_of(error)
            self.forget_sent()  # it begins again with the first that is not answered well

    def forget_sent(self) -> None:
        self.sent.clear()
        self.answers.clear()

    def fetch(self) -> None:
        """A consumer asks the leader how far it may read, and reads."""
        leader = self.leader()
        if leader is None or not leader.partition.is_leader:
            return
        watermark = leader.partition.high_watermark
        if watermark < leader.partition.epoch_start_offset:
            return  # not known yet (KIP-207): clients are told to ask again
        assert watermark >= self.told_watermark, (
            f"the high watermark went back from {self.told_watermark} to {watermark}"
        )
        content = leader.content(watermark)
        assert content.startswith(self.safe), "what was read has changed"
        self.told_watermark, self.safe = watermark, content

    # ── faults ──────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.is_up:
            node.die()
            self.forget_sent()
            self.to_fence[node.number] = self.now + self.random.randrange(5)
            self.to_boot[node.number] = (self.now + self.random.randrange(6, 100), True)

    def hang(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.is_up and self.now >= node.hangs_until:
            node.hangs_until = self.now + self.random.randrange(200)

    def end_all(self) -> None:
        """All are killed, or lose power, and one of them perhaps its disk or its directory."""
        has_power = not self.is_durable or self.random.random() < 0.5
        loser = self.nodes[self.random.choice(NODES)]
        may_lose = self.others_hold(loser.number)
        for node in self.nodes.values():
            if node.is_up:
                node.die()
            if has_power:
                node.forget_memory()
            else:
                node.lose_unflushed(self.random)
            self.to_fence.pop(node.number, None)
            self.to_boot[node.number] = (self.now + self.random.randrange(50), False)
        if may_lose and self.random.random() < 0.7:
            self.random.choice((loser.lose_disk, loser.lose_directory))()
        self.forget_sent()
        # What only was in the page cache may be gone, and nobody was told that it is safe.
        self.requests.clear()
        self.pending = set(NODES)
        self.controller = self.new_controller()

    def others_hold(self, number: int) -> bool:
        """Whether somebody else is in sync or eligible: else what is lost with it is lost."""
        image = self.image
        holders = {*image.in_sync_replicas, *image.eligible_leader_replicas}
        return any(not self.nodes[other].has_lost for other in holders - {number})

    def lose(self) -> None:
        """One is killed, and comes back without what it had."""
        node = self.random.choice(list(self.nodes.values()))
        if node.is_up and not node.is_in_doubt and self.others_hold(node.number):
            node.die()
            self.random.choice((node.lose_disk, node.lose_directory))()
            self.forget_sent()
            self.to_fence[node.number] = self.now + self.random.randrange(5)
            self.to_boot[node.number] = (self.now + self.random.randrange(6, 100), True)

    def change_controller(self) -> None:
        """Another one is active; what was asked and not answered is not done."""
        self.requests.clear()
        self.controller = self.new_controller()
        for node in self.nodes.values():
            if node.is_up:
                node.replication.in_sync.on_answer(None, node.partitions)
                node.replication.log_ends.on_answer(None)

    def move_leader(self) -> None:
        request = {
            "election_type": 0,
            "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
            "timeout_ms": 0,
        }
        self.controller.handle("ElectLeaders", 2, request, self.now)

    def control(self) -> None:
        """The controller sees who is dead or hangs, and serves requests."""
        for number, due in list(self.to_fence.items()):
            if due <= self.now:
                del self.to_fence[number]
                self.controller.fence_broker(number, self.now)
        for number, (due, is_clean_memory) in list(self.to_boot.items()):
            if due <= self.now and number not in self.to_fence:
                del self.to_boot[number]
                # Who is killed before it has served is no better off than it was.
                is_clean_memory &= not self.nodes[number].is_in_doubt
                self.register(number, is_clean_memory)
                self.nodes[number].boot(is_clean_memory)
        for node in self.nodes.values():
            is_late = self.now < node.hangs_until and node.is_up
            since = self.seen_hung.setdefault(node.number, self.now) if is_late else None
            if not is_late:
                self.seen_hung.pop(node.number, None)
                is_fenced = self.controller.image.brokers[node.number].is_fenced
                if node.is_up and is_fenced and not node.is_in_doubt:
                    self.controller.unfence_broker(node.number, self.now)
            elif self.now - since > SESSION_MS and not node.is_in_doubt:
                self.controller.fence_broker(node.number, self.now)
        self.controller.settle(self.now, self.pending)
        while self.requests and self.random.random() < 0.7:
            number, incarnation, body = self.requests.popleft()
            answer = None  # the controller dies, before it has done it or after
            is_lost = self.random.random() < 0.1
            is_told = "is_last" in body
            if not is_lost or self.random.random() < 0.5:
                if is_told:
                    answer = self.controller.log_ends(body, self.now)
                    self.controller.settle(self.now, self.pending)
                else:
                    answer = self.controller.handle("AlterPartition", 3, body, self.now)
            if is_lost:
                answer = None
            node = self.nodes[number]
            if node.is_up and node.incarnation == incarnation:
                if is_told:
                    node.replication.log_ends.on_answer(answer)
                else:
                    node.replication.in_sync.on_answer(answer, node.partitions)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        image = self.image
        holders = (*image.in_sync_replicas, *image.eligible_leader_replicas)
        for node in self.nodes.values():
            node.has_lost &= node.number in holders
        if self.pending:
            return  # who is in sync counts when all have told what they have
        for number in self.image.in_sync_replicas:
            node = self.nodes[number]
            end_offset = node.partition.log.log_end_offset
            if node.is_up and not node.has_lost and end_offset < self.told_watermark:
                raise AssertionError(f"in-sync broker {number} lacks what was told")

    def check_end(self) -> None:
        leader = self.nodes[self.image.leader_id]
        self.fetch()
        ends = {node.partition.log.log_end_offset for node in self.nodes.values()}
        assert len(ends) == 1, f"ends differ: {ends}"
        whole = leader.content(1 << 62)
        for node in self.nodes.values():
            assert node.content(1 << 62) == whole, f"broker {node.number} differs"
        numbers = []
        for position, header in iterate_batches(whole):
            if header[H_ATTRIBUTES] & CONTROL_BIT:
                continue
            numbers += [
                (struct.unpack(">q", value)[0], offset)
                for offset, _, _, value, _ in iterate_records(whole, position)
            ]
        places = dict(numbers)
        assert len(places) == len(numbers), "duplicates"
        kept = [number for number, _ in numbers if number >= 0]
        assert kept == sorted(kept), "out of order"
        for number, offset in self.acked:
            assert number in places, f"{number} was acknowledged and is lost"
            assert offset in (-1, places[number]), f"{number} is not where it was acknowledged"


def simulate(seed: int, steps: int = 1500, make: type[World] = World) -> World:
    """One history; AssertionError if something does not hold."""
    root = Path(tempfile.mkdtemp(prefix="replicas-"))
    world = make(seed, root)
    try:
        random = world.random
        faults = random.choice((0.0, 0.002, 0.006, 0.015))
        for _ in range(steps):
            world.now += random.choice((0, 0, 1, 3))
            node = random.choice(list(world.nodes.values()))
            if node.is_up and world.now >= node.hangs_until:
                node.turn(random)
            draw = random.random()
            if draw < 0.25:
                world.produce()
            elif draw < 0.35:
                world.fetch()
            world.control()
            if random.random() < faults:
                kinds = [world.kill, world.kill, world.hang, world.move_leader]
                kinds += [world.end_all, world.lose, world.change_controller]
                random.choice(kinds)()
            world.check()
        heal(world)
        world.check_end()
        return world
    finally:
        for node in world.nodes.values():
            if node.is_up:
                node.die()
        shutil.rmtree(root, ignore_errors=True)


def heal(world: World) -> None:
    """Nothing fails any more; until everything has come to rest."""
    world.to_boot = {number: (0, how) for number, (_, how) in world.to_boot.items()}
    for node in world.nodes.values():
        node.hangs_until = 0
    for _ in range(4000):
        world.now += 5
        world.control()
        for node in world.nodes.values():
            if node.is_up:
                node.turn(world.random)
        world.settle()
        if (
            not world.unanswered
            and all(node.is_up for node in world.nodes.values())
            and len(world.image.in_sync_replicas) == 3
            and len({node.partition.log.log_end_offset for node in world.nodes.values()}) == 1
            and (leader := world.leader()) is not None
            and leader.partition.is_leader
            and not world.requests
            and world.is_settled
        ):
            return
    raise AssertionError(
        f"no rest: {len(world.unanswered)} pending, in sync {world.image.in_sync_replicas}, leader "
        f"{world.image.leader_id}, ends "
        f"{[node.is_up and node.partition.log.log_end_offset for node in world.nodes.values()]}"
    )
