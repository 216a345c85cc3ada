"""An I/O worker: one broker id, its log directory, its partitions.

A turn:
  1  take operations from the rings; first follow the metadata log as far as it is committed
  2  append, read, execute; results go to the rings of those who asked
  3  wake the delayed reads and acks of partitions that got new batches, or whose replicas did; let
     followers read, and follow; publish
  4  between turns: populate ahead of the appends, expire what waited long enough, roll, checkpoint

Rules of this file:
* The only writer of its logs. One thread does all of it; a second one only runs fdatasync.
* Results of large batches are published one by one, those of small ones together at the end of the
  turn: a doorbell costs more than a small append.
"""

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shmbroker import clock, signs
from shmbroker.apis import table
from shmbroker.apis.broker import init_producer_id
from shmbroker.apis.contexts import BrokerApi
from shmbroker.broker.append import Appender
from shmbroker.broker.compaction import Compaction
from shmbroker.broker.damage import DamageMender
from shmbroker.broker.disk_reserve import DiskReserve, Space
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.read import Reader
from shmbroker.broker.replication.log_ends import LACKS
from shmbroker.broker.replication.replication import Replication
from shmbroker.broker.tiering import Tiering
from shmbroker.config import (
    BrokerConfig,
    broker_layers,
    effective_broker_config,
    effective_topic_configs,
)
from shmbroker.errors import StorageFault
from shmbroker.groups.coordinator import GroupCoordinator
from shmbroker.groups.group_partition import GROUP_TOPIC
from shmbroker.ids import partition_key, random_uuid, uuid_dashed
from shmbroker.ipc.member import BACKLOG_RETRY_S, SIGN_INTERVAL_S
from shmbroker.ipc.operation_adapter import Call, Executor, Handler, Steps
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_PART,
    CANCEL,
    DROP_FILE,
    EXECUTE,
    EXECUTE_PART,
    EXECUTED,
    EXECUTED_FLAG_CLOSE,
    EXECUTED_FLAG_NOT_EXECUTED,
    EXECUTED_PART,
    NEED_FILE,
    READ,
    READ_DONE,
    READ_FLAG_FOLLOWER,
    READ_HEAD,
    TOKEN,
)
from shmbroker.ipc.operation_proxy import PartialResults, try_execute
from shmbroker.ipc.passed_files import FileTable, pass_file
from shmbroker.ipc.peer import Peer
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.meta_properties import require_meta_properties
from shmbroker.log.segment import Segment
from shmbroker.metadata import image as image_module
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.topic_names import INTERNAL_TOPICS
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.shared_resources import (
    CLEANER,
    CONTROLLER,
    IO_WORKER,
    NETWORK_WORKER,
    TIER,
    SharedResources,
    Slot,
)
from shmbroker.purgatory import Purgatory
from shmbroker.records import validation
from shmbroker.replica.partition import Partition
from shmbroker.shm.counters import (
    CLEANER_RATE,
    CLEANER_WANTED,
    CONTROL_GENERATION_WORD,
    DISK,
    DISK_HAS_FAILED,
    DISK_HAS_ROOM,
    DISK_IS_FULL,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
)
from shmbroker.shm.standing import StandingAnswers
from shmbroker.wire import codec, error_codes
from shmbroker.wire.api_keys import CLEAN_LOG, TELL_LOG_ENDS

logger = logging.getLogger("shmbroker")

PUBLISH_BYTES = 64 << 10
"""Results are published early once this much was appended since the last time."""

APPLY_S = 0.005
"""How long one turn may open logs."""

MEMBER_NAME_MAX = 1024
"""Characters of a client's name in a member id, which must fit into a string again."""

ENTRIES_BETWEEN_LOOKS = 32
TAKE_S = 0.01
"""How long one turn takes operations of one peer, and after how many it looks at the clock: 4,000
appends to new logs, which one request may bring, take a second, and others want to be served."""

STOP_TAKE_S = 5.0

LOAD_S = 0.2
"""How long clients wait for the groups to be loaded before they are told to wait."""

HOUSEKEEPING_INTERVAL_S = 1.0
FAULT_LINE_INTERVAL_S = 10.0
OPEN_S = 0.3
"""How long a successor opens logs (0.6 ms each) before it serves those that are open."""
ALTER_PARTITION = 56
ASK_ANOTHER = (error_codes.NOT_CONTROLLER, error_codes.NETWORK_EXCEPTION)
"""The controller has changed: what was asked was perhaps done, or surely not."""
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
ALLOCATE_PRODUCER_IDS = 67
HAND_OVER_S = 5.0
"""How long a broker that is to stop alone waits for others to lead what it leads."""
PRODUCER_IDS_AHEAD = 200
"""Ids left of the current block when the next one is asked for."""


OnAnswer = Callable[[dict[str, Any]], None]
OnFlushed = Callable[[OSError | None], None]
Job = tuple[list[int], OnFlushed]
"""Descriptors to be synced, and who is told."""


class IoWorker(SleepingChild):
    """The main loop, and what the API modules ask of it."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
        ports: dict[int, tuple[str, int]],
    ) -> None:
        super().__init__(shared, slot)
        self.config = config
        self.broker_id = slot.number
        self.endpoint = ports[self.broker_id]
        directory = config.nodes[self.broker_id]
        require_meta_properties(directory, self.broker_id, cluster_id)
        self.log_directory = LogDirectory.open(directory, self.broker_id, cluster_id)
        self.flusher = Flusher(self.doorbell.eventfd)
        self.store = PartitionStore(
            self.log_directory,
            shared.positions_of(slot.index),
            self.incarnation << 40,
            self.incarnation > 1,
            self.flusher.submit,
            config["log.retention.check.interval.ms"],
        )
        self.store.count = self._count
        self.damage = DamageMender(self.store, lambda key: self.compaction.is_on(key))
        self.partitions = self.store.partitions
        self.disk_reserve = DiskReserve(
            self.log_directory.path, config["shmbroker.disk.reserve.bytes"]
        )
        self.link = ActiveLink(
            self.counters,
            self.peers,
            config,
            cluster_id,
        )
        self.follower = self.link.follower
        self.is_registering = False
        self.is_in_doubt = True
        """Until the controller lets it serve: it leads and follows nothing that others have."""
        self.image = self.follower.image
        self.purgatory = Purgatory()
        self.appender = Appender(
            self.partitions, self.now_ms, self.on_storage_fault, self.store.flush
        )
        self.tiering: Tiering | None = None
        if config.is_tier_enabled:
            self.tiering = Tiering(
                self.store,
                config,
                self.ask_tier,
                self.purgatory.check,
                self.now_ms,
                str(data_directory / "tier-cache"),
                self.incarnation,
            )
            self.store.retain_tiered = self.tiering.retain
        self.reader = Reader(
            self.partitions,
            self.purgatory,
            self.now_ms,
            self.pass_file,
            self.tiering,
            config["remote.fetch.max.wait.ms"],
            self.on_storage_fault,
        )
        self.groups = GroupCoordinator(
            config,
            self.now_ms,
            make_member_id,
            self.appender.appended.add,
            StandingAnswers(shared.standing_of(slot.index), self.incarnation),
        )
        handlers = {
            module.API_KEY: (module.NAME, self._handler(module))
            for module in table.IN_IO_WORKER + table.ON_CONTROL_SOCKET
        }
        self.executor = Executor(handlers)
        self.results = PartialResults()
        self.asked: dict[int, tuple[Peer, str, int, OnAnswer]] = {}
        """Token to whom was asked, what in which version, and who is told the answer."""
        self.to_drop: deque[bytes] = deque()
        """Keys of partitions whose topics were deleted."""
        self.to_apply: deque[tuple[TopicImage, PartitionImage]] = deque()
        self.new_configs: dict[str, LogConfig] = {}
        """By topic, those of logs opened since the image changed: one takes half as long as a log
        does to open."""
        self.token = self.incarnation << 48
        self.broker_epoch = -1
        self.producer_ids = range(0)
        self.next_producer_ids: range | None = None
        self.is_asking_for_ids = False
        self.waiting_for_ids: list[tuple[Call, dict[str, Any]]] = []
        self.cleaner: Peer | None = None
        self.tier: Peer | None = None
        self.passed: dict[int, set[int]] = {}
        self.segments_passed: dict[int, Segment] = {}
        self.to_pass: dict[tuple[int, int], Peer] = {}
        self.passing = {}
        links: dict[int, tuple[Peer, FileTable]] = {}
        for peer in self.peers:
            if peer.role in (NETWORK_WORKER, IO_WORKER):
                self.passed[peer.slot] = set()
                self.passing[peer.slot] = shared.passing[slot.index, peer.slot][0]
                if peer.role == IO_WORKER:
                    files = FileTable(shared.passing[peer.slot, slot.index][1])
                    links[peer.number] = (peer, files)
            elif peer.role == CLEANER:
                self.cleaner = peer
            elif peer.role == TIER:
                self.tier = peer
        self.compaction = Compaction(self.store, config, self.ask_cleaner, self._count)
        self.replication = Replication(
            self.broker_id,
            self.appender,
            links,
            {number: shared.sibling_positions_of(peer.slot) for number, (peer, _) in links.items()},
            config["replica.lag.time.max.ms"],
            new_token=self.new_token,
            pass_file=self.pass_file,
            note_gap=self.store.note_gap,
            flush=self.store.flush,
            ask=self.ask_for_in_sync,
            tell=self.tell_log_ends,
            on_decided=self._apply_again,
            on_high_watermark=self.on_high_watermark,
        )
        self.unopened: dict[bytes, tuple[TopicImage, PartitionImage]] = {}
        """Topic and partition of each log that the disk had no room for: tried again."""
        self._now_ms = clock.now_ms()
        self._apply_broker_settings()
        self._next_housekeeping = 0.0
        self._next_fault_line: dict[bytes, float] = {}

    def _handler(self, module: BrokerApi) -> Handler:
        if module.API_KEY not in table.GROUP_KEYS or len(self.shared.of_role(IO_WORKER)) == 1:
            return lambda call, body: module.answer(self, call, body)

        def handle(call: Call, body: dict[str, Any]) -> dict[str, Any] | Steps | None:
            call.hold = partial(self.groups.hold, table.group_ids_of(body))
            return module.answer(self, call, body)

        return handle

    def now_ms(self) -> int:
        """The time of this turn."""
        return self._now_ms

    # ── boot ────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Open what the metadata log says is here, then serve until asked to stop."""
        self._wait_for(lambda: self.broker_epoch >= 0)
        if self.must_stop:
            return
        self.follow_metadata()
        deadline = clock.monotonic() + OPEN_S
        while (self.to_apply or self.to_drop) and not self.must_stop:
            signs.at_work(signs.OPENING, len(self.to_apply))
            self.apply_some()
            now = clock.monotonic()
            if self.incarnation > 1 and now > deadline and not self.is_in_doubt:
                break  # clients wait for what is open already; the rest follows between turns
        if self.is_in_doubt and not self._tell_all_log_ends():
            return
        self.store.take_stock(self.image.topics_by_id, self._now_ms)
        deadline = clock.monotonic() + LOAD_S
        while self.groups.loading and clock.monotonic() < deadline:
            self.groups.run_due()
        signs.at_work(signs.NOTHING)
        self.say_running()
        self._ask_for_ids()
        self.serve()
        self.hand_over()
        self.stop()

    def serve(self) -> None:
        """Turns, until this process is asked to stop."""
        while not self.must_stop:
            self.turn()

    def hand_over(self) -> None:
        """Serve until others lead what they can, unless clients are gone, too: the family stops."""
        words, at = self.words, self.counters.at
        has_clients = any(
            words[at(slot.index, STATE)] == STATE_RUNNING
            for slot in self.shared.of_role(NETWORK_WORKER)
        )
        controller = self.link.peer()
        if self.replication.is_alone or not has_clients or controller is None:
            return
        answers: list[dict[str, Any]] = []
        body = {
            "broker_id": self.broker_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self.image.offset,
            "want_fence": False,
            "want_shut_down": True,
        }
        deadline = clock.monotonic() + HAND_OVER_S
        self.must_stop = not self.ask(
            controller, BROKER_HEARTBEAT, "BrokerHeartbeat", 1, body, answers.append
        )
        signs.at_work(signs.HANDING_OVER)
        while not (answers or self.must_stop or clock.monotonic() > deadline):
            self.turn()
        self.must_stop = True

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not self.must_stop:
            self.check_control()
            if (
                self.broker_epoch < 0
                and not self.is_registering
                and (controller := self.link.peer()) is not None
            ):
                self.register(controller)
            self.take_operations()
            self.publish()
            if condition():
                return
            self.sleep(0.05)
            self.sign(clock.monotonic())

    def register(self, controller: Peer) -> None:
        """Tell the controller that this broker is here, with its address."""
        host, port = self.endpoint
        self.is_registering = self.ask(
            controller,
            BROKER_REGISTRATION,
            "BrokerRegistration",
            4,
            {
                "broker_id": self.broker_id,
                "cluster_id": self.log_directory.cluster_id,
                "incarnation_id": random_uuid(),
                "listeners": [
                    {"name": "PLAINTEXT", "host": host, "port": port, "security_protocol": 0}
                ],
                "log_dirs": [self.log_directory.directory_id],
                "previous_broker_epoch": self.log_directory.clean_broker_epoch
                if self.log_directory.is_clean
                else -1,
            },
            self._on_registered,
        )

    def _on_registered(self, body: dict[str, Any]) -> None:
        self.is_registering = False
        if body["error_code"] in ASK_ANOTHER:
            return
        if body["error_code"]:
            raise StorageFault(f"the controller refused broker {self.broker_id}")
        self.broker_epoch = body["broker_epoch"]

    def _tell_all_log_ends(self) -> bool:
        """Say where the logs end, to each controller that is active meanwhile, until it is decided
        who leads (`controller.decisions.doubts`); False if this process is asked to stop before."""
        log_ends = self.replication.log_ends
        told = -1

        def is_decided() -> bool:
            nonlocal told
            while (self.to_apply or self.to_drop) and not self.must_stop:
                self.apply_some()
                self.sign(clock.monotonic())
            epoch = self.counters.metadata_leader()[0]
            if self.is_in_doubt and epoch != told and self.link.peer() is not None:
                told = epoch
                log_ends.tell_all(*self._copies())
            log_ends.look_again()
            log_ends.run()
            return not (self.is_in_doubt or self.to_apply or self.to_drop)

        self._wait_for(is_decided)
        return not self.must_stop

    def _copies(self) -> tuple[list[Partition], set[bytes]]:
        """The partitions here that have other replicas; keys of those that are in sync here."""
        found = []
        in_sync = set()
        for topic in self.image.topics_by_id.values():
            for image in topic.partitions:
                if len(image.replicas) == 1:
                    continue
                key = partition_key(topic.topic_id, image.partition)
                partition = self.partitions.get(key)
                if partition is not None:
                    found.append(partition)
                    if self.broker_id in image.in_sync_replicas:
                        in_sync.add(key)
        return found, in_sync

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """One pass; sleeps at its end if there was nothing to do."""
        had_work = self.take_operations()
        if self.executor.unfinished:
            self.executor.advance()
        if self.reader.cold:
            self.reader.retry_cold()
        if self.flusher.is_busy:
            self.finish_flushes()
        self.appender.group_commit.start()
        groups = self.groups
        if groups.wake_ms <= self._now_ms:
            groups.run_due()
            had_work = True
        appended = self.appender.appended
        told: tuple[Partition, ...] = ()
        if appended:
            told = tuple(appended)
            appended.clear()
            check = self.purgatory.check
            for partition in told:
                if partition.followed_rows:
                    self.replication.reads.on_appended(partition)
                check(partition.key)
        if self.appender.moved:
            had_work = True
            self.replication.tell_moved()
        if not self.replication.is_alone:
            self.replication.run(self.image)
        has_more = bool(self.to_apply or self.to_drop)
        if has_more:
            self.apply_some()
        has_more |= bool(self.executor.unfinished)
        if self.to_pass:
            self._pass_waiting()
        self.publish()
        for partition in told:
            active = partition.log.active
            if active.ready_bytes - active.size < active.extent_bytes >> 1:
                partition.log.populate_step(self._now_ms)
        now = clock.monotonic()
        if now >= self._next_sign:
            self.sign(now)
        if now >= self._next_housekeeping:
            self.housekeeping(now)
        deadline = self.purgatory.next_deadline()
        if deadline is not None and deadline <= self._now_ms:
            for _ in self.purgatory.expire(self._now_ms):
                pass
            self.publish()
            deadline = self.purgatory.next_deadline()
        # What came meanwhile is told in the next turn. One that would find nothing is left out: it
        # takes 25 us, for which an ack waits where a core is shared with those that it needs.
        if appended or has_more or self.appender.moved or (had_work and self.has_entries()):
            self._now_ms = clock.now_ms()
            return
        if self.replication.look_before_sleep(self.has_entries, bool(told)):
            self._now_ms = clock.now_ms()
            return
        timeout = self._next_housekeeping - now
        due_ms = self.replication.next_ms()
        if due_ms is not None:
            timeout = min(timeout, (due_ms - clock.now_ms()) / 1000)
        if deadline is not None:
            timeout = min(timeout, (deadline - clock.now_ms()) / 1000)
        if groups.wake_ms - self._now_ms < timeout * 1000:
            timeout = (groups.wake_ms - clock.now_ms()) / 1000
        if self.to_pass or self.reader.cold or self.has_backlog():
            timeout = BACKLOG_RETRY_S
        self.sleep(max(0.001, timeout))
        self._now_ms = clock.now_ms()

    def has_news(self) -> bool:
        return super().has_news() or (self.broker_epoch >= 0 and self.link.has_news())

    def on_high_watermark(self, partition: Partition) -> None:
        """It has moved without an append: whoever waited for it."""
        self.purgatory.check(partition.key)
        if partition.is_internal:
            self.groups.on_high_watermark(partition)

    def take_operations(self, seconds: float = TAKE_S) -> bool:
        """What the rings hold now, of each for so long; True if there was anything."""
        words = self.words
        if words[CONTROL_GENERATION_WORD] != self.generation:
            self.check_control()
        had_work = False
        on_append = self.appender.on_append
        appender = self.appender
        published_at = appender.bytes_in
        for peer in self.peers:
            reader = peer.reader
            if not reader.poll():
                continue
            had_work = True
            if words[METADATA_END_OFFSET_WORD] != self.image.offset and self.broker_epoch >= 0:
                self.follow_metadata()
            data = reader.data
            left, deadline = ENTRIES_BETWEEN_LOOKS, 0.0
            while (entry := reader.next()) is not None:
                operation, index, length = entry
                left -= 1
                if operation == APPEND:
                    on_append(peer, data, index, length)
                    if appender.bytes_in - published_at > PUBLISH_BYTES:
                        published_at = appender.bytes_in
                        reader.release()
                        peer.publish()
                else:
                    self._take_other(peer, operation, data, index, length)
                if not left:
                    left, now = ENTRIES_BETWEEN_LOOKS, clock.monotonic()
                    deadline = deadline or now + seconds
                    if now > deadline:
                        break
            reader.release()
        if words[METADATA_END_OFFSET_WORD] != self.image.offset and self.broker_epoch >= 0:
            self.follow_metadata()
        return had_work

    def _take_other(
        self, peer: Peer, operation: int, data: memoryview, index: int, length: int
    ) -> None:
        if operation == READ:
            if READ_HEAD.unpack_from(data, index)[5] & READ_FLAG_FOLLOWER:
                self.replication.reads.on_read(peer, data, index, length)
            else:
                self.reader.on_read(peer, data, index, length)
        elif operation == READ_DONE:
            self.replication.fetcher.on_read_done(peer, data, index, length)
        elif operation == APPEND_PART:
            self.appender.on_part(peer, data, index, length)
        elif operation == EXECUTE_PART:
            self.executor.on_part(peer, data, index, length)
        elif operation == EXECUTE:
            self.executor.on_execute(peer, data, index, length)
        elif operation == CANCEL:
            self.reader.on_cancel(peer, TOKEN.unpack_from(data, index)[0])
        elif operation == NEED_FILE:
            self._pass(peer, TOKEN.unpack_from(data, index)[0])
        elif operation == DROP_FILE:
            self.replication.fetcher.drop_file(peer, TOKEN.unpack_from(data, index)[0])
        elif operation == EXECUTED_PART:
            self.results.add(data, index, length)
        elif operation == EXECUTED:
            token, flags, body = self.results.finish(data, index, length)
            row = self.asked.pop(token, None)
            if row is None:
                return
            _, name, version, on_answer = row
            if flags & EXECUTED_FLAG_NOT_EXECUTED:
                on_answer({"error_code": error_codes.NETWORK_EXCEPTION})
                return
            if flags & EXECUTED_FLAG_CLOSE:
                on_answer({"error_code": error_codes.UNKNOWN_SERVER_ERROR})
                return
            on_answer(codec.decode(name + "Response", version, body)[0])

    def housekeeping(self, now: float) -> None:
        """Once a second: rolls, retention, checkpoints, finished flushes."""
        self._next_housekeeping = now + HOUSEKEEPING_INTERVAL_S
        self._now_ms = clock.now_ms()
        for key, what in list(self.unopened.items()):
            self._apply_partition(*what)
            if key in self.unopened:
                break  # the disk is still full
        self.look_at_disk()
        if not self.replication.is_alone:
            self.replication.look_at_all(self.image)
        self.store.upkeep(self._now_ms)
        self.compaction.run(self._now_ms)
        self.damage.run(self._now_ms)
        if self.tiering is not None:
            self.tiering.run(self._now_ms)
        self.drop_files()
        self.publish()

    def look_at_disk(self) -> None:
        """Refuse Produce while the disk is nearly full, and let the controller see it."""
        try:
            found = os.statvfs(self.log_directory.path)
        except OSError as fault:
            logger.error("can't look at the disk of %s: %s", self.log_directory.path, fault)
            return
        space = Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
        if self.disk_reserve.look(space):
            self.appender.is_disk_low = self.disk_reserve.is_used
            if self.disk_reserve.is_used:
                self.store.release_held()
        disk = DISK_HAS_ROOM
        if self.store.is_fenced:
            disk = DISK_HAS_FAILED
        elif self.disk_reserve.is_used or not space.available:
            disk = DISK_IS_FULL
        self.words[self.counters.at(self.slot.index, DISK)] = disk

    def finish_flushes(self) -> None:
        """Recovery points and acks of what is on the disk now."""
        for on_done in self.flusher.finished():
            on_done()

    def drop_files(self) -> None:
        """Have the network workers close what was deleted or parked, so its space is free."""
        dropped = self.store.dropped_file_ids
        while dropped:
            file_id = dropped.pop()
            self.segments_passed.pop(file_id, None)
            for peer in self.peers:
                passed = self.passed.get(peer.slot)
                if passed is not None and file_id in passed:
                    passed.discard(file_id)
                    if peer.incarnation:
                        peer.send(DROP_FILE, TOKEN.pack(file_id))

    def stop(self) -> None:
        """Answer what is on the rings, then close the logs cleanly."""
        self.say_stopping()
        self.take_operations(STOP_TAKE_S)
        while self.executor.unfinished:
            self.executor.advance()
        signs.at_work(signs.FLUSHING)
        self.groups.close()
        self.appender.group_commit.start(at_once=True)
        self.publish()
        self.flusher.stop()
        self.finish_flushes()
        self.publish()
        self.store.close(self.broker_epoch)

    # ── peers ───────────────────────────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget what it waited for; its successor knows none of our files."""
        self.appender.drop_parts(peer.slot)
        self.appender.group_commit.drop_peer(peer)
        self.appender.delayed.drop_peer(peer)
        self.executor.drop_parts(peer.slot)
        self.reader.drop_peer(peer.slot)
        if peer.slot in self.passed:
            self.passed[peer.slot].clear()
            self.to_pass = {key: to for key, to in self.to_pass.items() if to is not peer}
        self._fail_asked(peer)
        if peer.role == IO_WORKER:
            self.replication.on_sibling_lost(peer)
        if peer is self.cleaner:
            self.compaction.on_cleaner_lost()
        if self.tiering is not None and peer is self.tier:
            self.tiering.on_tier_lost()

    def on_peer_running(self, peer: Peer) -> None:
        if self.tiering is not None and peer is self.tier:
            self.tiering.on_tier_running()

    def _fail_asked(self, peer: Peer) -> None:
        """Nobody waits for its answers any more; what was asked may have been done."""
        for token, (asked, _, _, on_answer) in list(self.asked.items()):
            if asked is peer:
                del self.asked[token]
                if peer.role == CONTROLLER:
                    on_answer({"error_code": error_codes.NOT_CONTROLLER})

    def pass_file(self, peer: Peer, segment: Segment) -> None:
        """Before a slice of it is named for the first time."""
        file_id = segment.file_id
        if file_id not in self.passed[peer.slot]:
            self.segments_passed[file_id] = segment
            self._pass(peer, file_id)

    def _pass(self, peer: Peer, file_id: int) -> None:
        """Pass a descriptor, later if the socket pair is full."""
        segment = self.segments_passed.get(file_id)
        if segment is None:
            peer.send(DROP_FILE, TOKEN.pack(file_id))  # deleted since
            return
        if pass_file(self.passing[peer.slot], file_id, segment.fd):
            self.passed[peer.slot].add(file_id)
        else:
            self.to_pass[peer.slot, file_id] = peer

    def _pass_waiting(self) -> None:
        """Descriptors for which the socket pairs had no room."""
        waiting, self.to_pass = self.to_pass, {}
        for (_, file_id), peer in waiting.items():
            self._pass(peer, file_id)
            peer.doorbell.ring_if_sleeping()

    def new_token(self) -> int:
        """A token that this process has not used."""
        self.token += 1
        return self.token

    def ask(
        self,
        peer: Peer,
        api_key: int,
        name: str,
        version: int,
        body: dict[str, Any],
        on_answer: OnAnswer,
    ) -> bool:
        """Have the controller or the cleaner answer a request; False while its ring has no room."""
        token = self.new_token()
        encoded = codec.encode(name + "Request", version, body)
        if not try_execute(peer, token, api_key, version, b"", encoded):
            return False
        self.asked[token] = (peer, name, version, on_answer)
        return True

    def ask_for_in_sync(self, body: dict[str, Any]) -> bool:
        """Have the controller change in-sync replicas; False while it can't be asked."""
        controller = self.link.peer()
        if controller is None:
            return False
        return self.ask(
            controller,
            ALTER_PARTITION,
            "AlterPartition",
            3,
            body | {"broker_id": self.broker_id, "broker_epoch": self.broker_epoch},
            self._on_in_sync,
        )

    def _on_in_sync(self, answer: dict[str, Any]) -> None:
        is_sure = answer["error_code"] != error_codes.NOT_CONTROLLER
        self.replication.in_sync.on_answer(answer if is_sure else None, self.partitions)

    def tell_log_ends(self, body: dict[str, Any]) -> bool:
        """Tell the controller where logs end; False while it can't be told."""
        controller = self.link.peer()
        if controller is None:
            return False
        return self.ask(
            controller,
            TELL_LOG_ENDS,
            "TellLogEnds",
            0,
            body | {"broker_id": self.broker_id, "broker_epoch": self.broker_epoch},
            lambda answer: self.replication.log_ends.on_answer(answer),
        )

    def _apply_again(self, partition: Partition) -> None:
        """The metadata says of this partition what it said, and it may lead now."""
        topic = self.image.topics_by_id.get(partition.topic_id)
        if topic is not None and self.partitions.get(partition.key) is partition:
            self.to_apply.append((topic, topic.partitions[partition.partition]))

    def ask_cleaner(self, body: dict[str, Any]) -> bool:
        """Have the cleaner compact a log; False, and it is woken, while none runs."""
        if self.cleaner is None or not self.cleaner.incarnation:
            self.words[self.counters.at(self.slot.index, CLEANER_WANTED)] = 1
            self.shared.doorbells[0].ring()
            return False
        return self.ask(
            self.cleaner,
            CLEAN_LOG,
            "CleanLog",
            0,
            body,
            lambda answer: self.compaction.on_answer(answer, self._now_ms),
        )

    def ask_tier(self, api_key: int, name: str, body: dict[str, Any], on_answer: OnAnswer) -> bool:
        """Have the tier process do something; False while there is none, or no room to ask it."""
        if self.tier is None or not self.tier.incarnation:
            return False
        return self.ask(self.tier, api_key, name, 0, body, on_answer)

    def _count(self, name: str) -> None:
        self.words[self.counters.counter(self.slot.index, name)] += 1

    # ── metadata ────────────────────────────────────────────────────────────────────────────────

    def follow_metadata(self) -> None:
        """Create, open and delete logs as the committed metadata says, and say how far we are."""
        if not self.link.is_behind():
            return
        epoch = self.link.epoch
        self.new_configs.clear()
        changes = self.link.catch_up()
        self.image = self.follower.image
        if self.link.epoch != epoch:
            for peer in self.link.others():
                self._fail_asked(peer)
        self.groups.consumers.on_image(self.image, changes)
        configured: set[str] = set()
        deleted = [what[0] for kind, *what in changes if kind == image_module.TOPIC_DELETED]
        if deleted:
            self._delete_topics(deleted)
        for kind, *what in changes:
            if kind == image_module.TOPIC_CREATED:
                self.to_apply += [(what[0], partition) for partition in what[0].partitions]
            elif kind == image_module.PARTITION_CHANGED:
                self.to_apply.append((what[0], what[2]))
            elif kind == image_module.CONFIG_CHANGED and what[0] in (
                TOPIC_RESOURCE,
                BROKER_RESOURCE,
            ):
                configured.add(what[1] if what[0] == TOPIC_RESOURCE else "")
        if configured:
            self._apply_configs(configured)
        if self.is_in_doubt:
            self._look_for_decision()
        self.groups.is_opening = any(topic.name == GROUP_TOPIC for topic, _ in self.to_apply)
        self.apply_some()

    def _look_for_decision(self) -> None:
        """Whether the controller lets this broker serve; then it takes its part in what is open."""
        own = self.image.brokers.get(self.broker_id)
        if own is None or own.is_fenced or own.broker_epoch != self.broker_epoch:
            return
        self.is_in_doubt = False
        for partition in self._copies()[0]:
            self._apply_again(partition)

    def apply_some(self) -> None:
        """Delete and open logs for some milliseconds; say how far we are when that is done.

        A topic of 2,000 partitions takes seconds to create, and others want to append meanwhile.
        """
        to_drop, to_apply = self.to_drop, self.to_apply
        deadline = clock.monotonic() + APPLY_S
        self.replication.may_look_for_places()
        # Deletions first: a topic may come again under the name of one that goes.
        while to_drop or to_apply:
            if to_drop:
                partition = self.partitions.get(to_drop.popleft())
                if partition is not None:
                    self._drop_partition(partition)
            else:
                self._apply_partition(*to_apply.popleft())
            if clock.monotonic() > deadline:
                break
        self.drop_files()
        if not to_drop and not to_apply:
            self.groups.is_opening = False
            if self.is_in_doubt:
                return  # a controller counts it as one that has not come
            self.words[self.counters.at(self.slot.index, METADATA_APPLIED)] = self.image.offset
            if (controller := self.link.peer()) is not None:
                controller.doorbell.ring()

    def _apply_partition(self, topic: TopicImage, image: PartitionImage) -> None:
        """Open the log of a partition that is placed here, and take over who leads it."""
        key = partition_key(topic.topic_id, image.partition)
        partition = self.partitions.get(key)
        if self.broker_id not in image.replicas:
            if partition is not None:
                self._drop_partition(partition)  # it was moved elsewhere
                self.drop_files()
            return
        if partition is None:
            config = self.new_configs.get(topic.name)
            if config is None:
                config = self.new_configs[topic.name] = self._log_config(topic.name)
            try:
                partition = self.store.open(topic, image.partition, config, self._now_ms)
            except StorageFault as fault:
                if key not in self.unopened:
                    logger.error("%s-%d: %s", topic.name, image.partition, fault)
                self.unopened[key] = topic, image
                return
            self.unopened.pop(key, None)
            if len(image.replicas) > 1:
                self._look_whether_lost(partition, image)
        if self.is_in_doubt and len(image.replicas) > 1:
            return
        self.replication.on_leadership(partition, image)
        if self.tiering is not None:
            self.tiering.on_partition(partition)
        if topic.name == GROUP_TOPIC:
            self.groups.on_partition(partition, len(topic.partitions))

    def _look_whether_lost(self, partition: Partition, image: PartitionImage) -> None:
        """Tell the controller of a log that is not what it was; while it asks for all, it is told
        anyway. Before it serves, this broker has the directory of what it is in sync with."""
        if (
            partition.lost_below < 0
            and not self.has_served
            and partition.key in self.store.made
            and self.broker_id in image.in_sync_replicas
            and (self.is_in_doubt or image.leader_epoch > 0)  # not made a moment ago
        ):
            partition.lost_below = 0
            logger.error(
                "%s is gone, and this broker was in sync: it begins anew, empty",
                partition.log.directory,
            )
        if partition.lost_below >= 0 and not self.is_in_doubt:
            self.replication.log_ends.tell(partition, LACKS)

    def _drop_partition(self, partition: Partition) -> None:
        """Its log goes: deleted, or moved to other brokers."""
        key = partition.key
        self.replication.on_deleted(partition)
        if self.tiering is not None:
            self.tiering.on_deleted(key)
        self.store.delete(partition, self._now_ms)
        self.purgatory.check(key)
        if partition.topic == GROUP_TOPIC:
            self.groups.on_partition_gone(partition.partition)

    def _delete_topics(self, topics: list[TopicImage]) -> None:
        ids = {topic.topic_id for topic in topics}
        self.to_apply = deque(each for each in self.to_apply if each[0].topic_id not in ids)
        for topic in topics:
            for index in range(len(topic.partitions)):
                key = partition_key(topic.topic_id, index)
                self.unopened.pop(key, None)
                self.to_drop.append(key)
        self.groups.on_topics_deleted({topic.name for topic in topics})

    def _layers(self) -> Any:
        """Where this broker's settings are looked for."""
        image = self.image
        return broker_layers(
            self.config,
            image.config(BROKER_RESOURCE, str(self.broker_id)),
            image.config(BROKER_RESOURCE, ""),
        )

    def _set_tier_waits(self) -> None:
        """Take how long reads and lookups wait for the remote store."""
        if self.tiering is not None:
            layers = self._layers()
            self.reader.tier_wait_ms = effective_broker_config(
                "remote.fetch.max.wait.ms", self.config, layers
            )
            self.tiering.find_timeout_ms = effective_broker_config(
                "remote.list.offsets.request.timeout.ms", self.config, layers
            )

    def _log_config(self, topic: str) -> LogConfig:
        overrides = self.image.config(TOPIC_RESOURCE, topic)
        values = effective_topic_configs(overrides, self._layers())
        if self.tiering is None or topic in INTERNAL_TOPICS:
            values["remote.storage.enable"] = "false"
        config = LogConfig(values)
        if config.is_validated:
            validation.prepare()
        return config

    def _apply_configs(self, topics: set[str]) -> None:
        """Settings of these topics have changed; "" stands for the broker's own, so all topics."""
        if "" in topics:
            self._apply_broker_settings()
            self._set_tier_waits()
        made: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        for partition in self.partitions.values():
            if partition.topic in topics or "" in topics:
                # One takes a quarter of a millisecond, and most topics set the same: nothing.
                overrides = tuple(self.image.config(TOPIC_RESOURCE, partition.topic).items())
                config = made.get(overrides)
                if config is None:
                    config = made[overrides] = self._log_config(partition.topic)
                partition.log.set_config(config)
                partition.on_config(config)
                if partition.advance_high_watermark():  # min.insync.replicas may hold it no more
                    self.appender.moved.add(partition)
                if self.tiering is not None:
                    self.tiering.on_partition(partition)

    def _apply_broker_settings(self) -> None:
        """Take over what the settings that may change while it runs say now."""
        layers = self._layers()

        def value(name: str) -> Any:
            return effective_broker_config(name, self.config, layers)

        rate = value("log.cleaner.io.max.bytes.per.second")
        self.words[self.counters.at(self.slot.index, CLEANER_RATE)] = int(min(max(rate, 1), 1e18))
        self.compaction.on_config(
            value("log.cleaner.backoff.ms"), value("log.cleaner.dedupe.buffer.size"), self._now_ms
        )
        self.replication.set_rates(
            value("leader.replication.throttled.rate"), value("follower.replication.throttled.rate")
        )

    # ── what the API modules ask ────────────────────────────────────────────────────────────────

    def wait_for_producer_ids(self, call: Call, body: dict[str, Any]) -> bool:
        """Answer a call when producer ids have come; False if there is nothing to wait for."""
        if self.producer_ids or self.next_producer_ids is not None:
            return False
        self._ask_for_ids()
        if self.is_asking_for_ids:
            self.waiting_for_ids.append((call, body))
        return self.is_asking_for_ids

    def next_producer_id(self) -> int | None:
        """A producer id that nobody has; None until the controller has given a block."""
        ids = self.producer_ids
        if not ids and self.next_producer_ids is not None:
            ids, self.next_producer_ids = self.next_producer_ids, None
        if len(ids) < PRODUCER_IDS_AHEAD and self.next_producer_ids is None:
            self._ask_for_ids()
        if not ids:
            return None
        self.producer_ids = ids[1:]
        return ids[0]

    def _ask_for_ids(self) -> None:
        controller = self.link.peer()
        if self.is_asking_for_ids or controller is None:
            return
        self.is_asking_for_ids = self.ask(
            controller,
            ALLOCATE_PRODUCER_IDS,
            "AllocateProducerIds",
            0,
            {"broker_id": self.broker_id, "broker_epoch": self.broker_epoch},
            self._on_producer_ids,
        )

    def _on_producer_ids(self, body: dict[str, Any]) -> None:
        self.is_asking_for_ids = False
        if body["error_code"] == 0:
            start = body["producer_id_start"]
            self.next_producer_ids = range(start, start + body["producer_id_len"])
        waiting, self.waiting_for_ids = self.waiting_for_ids, []
        for call, request in waiting:
            call.reply(init_producer_id.answer_now(self, request))

    def on_storage_fault(self, partition: Partition, fault: StorageFault) -> None:
        """The disk refused an append or a read, or gave something damaged.

        Logged every ten seconds for each partition.
        """
        now = clock.monotonic()
        if now >= self._next_fault_line.get(partition.key, 0.0):
            self._next_fault_line[partition.key] = now + FAULT_LINE_INTERVAL_S
            logger.error("%s-%d: %s", partition.topic, partition.partition, fault)
        self.damage.on_fault(partition, fault, self._now_ms)


def make_member_id(prefix: str) -> str:
    """A member id that no member of any group ever had: the client's name, then a uuid."""
    return f"{prefix[:MEMBER_NAME_MAX]}-{uuid_dashed(random_uuid())}"


class Flusher:
    """A thread that runs fdatasync, as the call holds up whoever makes it.

    It touches no ring and no log: descriptors go in, callbacks come out through `finished`, and the
    doorbell's eventfd wakes the main loop for them.
    """

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[OnFlushed, OSError | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._submitted = 0

    @property
    def is_busy(self) -> bool:
        """Whether `finished` has something to give, now or later."""
        return self._submitted > 0

    def submit(self, fds: list[int], on_done: Callable[[OSError | None], None]) -> None:
        """fdatasync descriptors (owned by the job, closed after); then `on_done(fault or None)`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            self._thread.start()
        self._submitted += 1
        self._jobs.put((fds, on_done))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            fds, on_done = job
            fault = None
            for fd in fds:
                try:
                    os.fdatasync(fd)
                except OSError as error:
                    fault = error
                os.close(fd)
            self._done.put((on_done, fault))
            os.eventfd_write(self._eventfd, 1)

    def finished(self) -> list[Callable[[], None]]:
        """What is done since the last call, to be called back in the main thread."""
        found: list[Callable[[], None]] = []
        while True:
            try:
                on_done, fault = self._done.get_nowait()
            except queue.Empty:
                return found
            self._submitted -= 1
            found.append(partial(on_done, fault))

    def stop(self) -> None:
        """Let the thread finish what it has."""
        if self._thread is not None:
            self._jobs.put(None)
            while self._thread.is_alive():
                self._thread.join(SIGN_INTERVAL_S)
                signs.sign()
