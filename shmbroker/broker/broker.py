"""A broker: one broker id, its log directory, its partitions and groups. An I/O worker runs one.

A turn:
  1  take operations from the rings (`broker.intake`); first follow the metadata log as far as it is
     committed (`broker.live_metadata`)
  2  append, read, execute; results go to the rings of those who asked
  3  publish, if no READ waits: acks then go out before anything else is done
  4  wake the delayed reads and acks of partitions that got new batches, or whose replicas did; let
     followers read, and follow; publish
  5  populate ahead of the appends, expire what waited long enough; once a second look at what is
     not urgent (`broker.housekeeping`)

Before its first turn is its `boot`, behind the last one its `leaving`. `peer_changes` is told whose
process has died.

Rules of this file:
* The only writer of its logs. One thread does all of it; a second one only runs fdatasync.
* Clock, rings, shared tables, disk and sockets are arguments: who runs a broker builds them, and
  sleeps. What waits (`boot`, `leaving`) yields for how long nothing is due.
* Results are published together, as a doorbell costs more than a small append: when the rings are
  read, and in between after each 64 KiB of batches (`broker.intake`). Where a READ waits, results
  are published behind its answer, at the end of the turn.
"""

from __future__ import annotations

from shmbroker.broker.append import Appender
from shmbroker.broker.append_runs import AppendRuns
from shmbroker.broker.applied_settings import AppliedSettings
from shmbroker.broker.asks import Asks
from shmbroker.broker.compaction import Compaction
from shmbroker.broker.coordinators import Coordinators
from shmbroker.broker.damage import DamageMender
from shmbroker.broker.disk_reserve import DiskReserve
from shmbroker.broker.disk_watch import DiskWatch
from shmbroker.broker.end_markers import EndMarkers
from shmbroker.broker.file_passing import FilePassing
from shmbroker.broker.housekeeping import Housekeeping
from shmbroker.broker.intake import Intake
from shmbroker.broker.live_metadata import LiveMetadata
from shmbroker.broker.live_settings import LiveSettings
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.peer_changes import PeerChanges
from shmbroker.broker.placement import Placement
from shmbroker.broker.producer_ids import ProducerIds
from shmbroker.broker.read import Reader
from shmbroker.broker.read_ahead import ReadAhead
from shmbroker.broker.read_lookup import Lookup
from shmbroker.broker.read_sessions import ReadSessions
from shmbroker.broker.registration import Registration
from shmbroker.broker.replicated import LIVE_BROKERS, ReplicationWaits
from shmbroker.broker.replication.replication import Replication
from shmbroker.broker.served_apis import serve_apis
from shmbroker.broker.shown import BrokerShown
from shmbroker.broker.storage_faults import StorageFaults
from shmbroker.broker.tier_port import NoTier, Tier
from shmbroker.broker.tiering.tiering import Tiering
from shmbroker.broker.transaction_exchange import TransactionExchange
from shmbroker.broker.upkeep import Upkeep
from shmbroker.clock import Clock
from shmbroker.ipc.asking import Asking
from shmbroker.ipc.awake import AFTER_S, AMONG_REPLICAS_S, Awake
from shmbroker.ipc.core import Core
from shmbroker.ipc.member import BACKLOG_RETRY_S, FamilyMember
from shmbroker.ipc.operation_adapter import Executor
from shmbroker.purgatory import Purgatory
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import AHEAD_ENDS, ANNOUNCEMENTS_WORD
from shmbroker.shm.latencies import STAGE_PURGATORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shmbroker.apis.contexts import MetadataLink
    from shmbroker.broker.ports import Disk, Peers, Tables
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.replica.partition import Partition

HOUSEKEEPING_INTERVAL_S = 1.0
SLEEP_S_MIN = 0.001


class Broker:
    """The turns of an I/O worker, and what the API modules ask of it."""

    def __init__(
        self,
        clock: Clock,
        member: FamilyMember,
        config: BrokerConfig,
        broker_id: int,
        endpoint: tuple[str, int],
        link: MetadataLink,
        peers: Peers,
        disk: Disk,
        tables: Tables,
    ) -> None:
        """endpoint: the address that the controller is told."""
        self.clock = clock
        self.member = member
        self.words = member.words
        self.publish = member.publish
        self.outbox = member.outbox
        self.has_entries = member.has_entries
        self.config = config
        self.broker_id = broker_id
        self.link = link
        self.log_directory = disk.log_directory
        self.peers = peers
        self.look_at_clocks()
        self.flusher = disk.flusher
        self.purgatory = Purgatory()
        self._follower = link.follower
        waits = ReplicationWaits(self.purgatory, self.steady_ms, link.follower)
        self.when_replicated, self.when_deleted = waits.wait, waits.wait_deleted
        self.settings = LiveSettings(config, broker_id, link.follower)
        self._build_asking(endpoint)
        self._build_storage(disk, tables)
        self._build_reading(tables)
        self.coordinators = Coordinators(
            config, self.appender, self.exchange, self.producer_ids, tables.standing, link.follower
        )
        self.groups = self.coordinators.groups
        self.transactions = self.coordinators.transactions
        self._build_replication(tables)
        self._build_following()
        serve_apis(self)
        self.applied_settings.apply_to_broker()
        self.shown = BrokerShown(clock, member, tables.latencies)
        self.peer_changes = PeerChanges(self, peers)
        self.intake = Intake(self)
        self.housekeeping = Housekeeping(self)
        self.turns = 0
        """How many it has taken."""
        self._next_housekeeping = 0.0

    def _build_asking(self, endpoint: tuple[str, int]) -> None:
        """Build what asks controllers, siblings and helpers."""
        member, peers = self.member, self.peers
        self.asking = Asking(member.incarnation << 48)
        self.registration = Registration(
            self.broker_id, endpoint, self.log_directory, self.link, self.asking
        )
        self.executor = Executor()
        self.asks = Asks(
            self.broker_id, self.asking, self.registration, peers, member, self.executor
        )
        self.producer_ids = ProducerIds(self.asks.for_producer_ids)
        self.next_producer_id = self.producer_ids.take
        self.wait_for_producer_ids = self.producer_ids.wait
        self.exchange = TransactionExchange(
            self.config, self.link.follower, self.asks.broker, self.steady_ms
        )
        self.verify_transaction = self.exchange.verify

    def _build_storage(self, disk: Disk, tables: Tables) -> None:
        """Build what keeps logs and appends to them."""
        member, config = self.member, self.config
        self.store = PartitionStore(
            disk.log_directory,
            tables.positions,
            member.incarnation << 40,
            member.incarnation > 1,
            disk.flusher.submit,
            self.steady_ms,
            member.tally.add,
            self._on_readable,
        )
        self.partitions = self.store.partitions
        self.upkeep = Upkeep(self.store, config["log.retention.check.interval.ms"])
        self.compaction = Compaction(
            self.store, config, self.asks.cleaner, self.now_ms, member.tally.add
        )
        self.damage = DamageMender(self.store, self.compaction.is_on)
        self._faults = StorageFaults(
            self.clock, member.tally.add, self.damage, self.now_ms, self.partitions
        )
        self.on_storage_fault = self._faults.on_fault
        self.appender = Appender(
            self.partitions,
            self.now_ms,
            self.on_storage_fault,
            self.store.flush,
            self.steady_ms,
            self.exchange.verify,
        )
        self.acks = self.appender.acks
        self.append_runs = AppendRuns(self.appender)
        self.append_marker = EndMarkers(self.appender).append
        self.disk_watch = DiskWatch(
            DiskReserve(disk.log_directory.path, config["shmbroker.disk.reserve.bytes"]),
            disk.space,
            member,
            self.store,
            self.appender,
            self._faults,
        )
        self.tiering: Tier = NoTier()
        if config.is_tier_enabled:
            self.tiering = Tiering(
                self.store,
                config,
                self.asks.tier,
                self.purgatory.check,
                self.now_ms,
                self.steady_ms,
                disk.tier_cache,
                member.incarnation,
                self._on_decided,
            )
            self.store.retain_tiered = self.tiering.retain
            self.store.log_directory.has_remote_store = True

    def _build_reading(self, tables: Tables) -> None:
        """Build what reads logs, and passes the descriptors of their files."""
        member, peers = self.member, self.peers
        self.passing = FilePassing(
            {peer.slot: peer for peer in (*peers.gateways, *peers.siblings.values())},
            peers.passing,
            self._faults.on_file_fault,
        )
        self.reader = Reader(
            Lookup(self.partitions, self.steady_ms, self.tiering, self.on_storage_fault),
            self.purgatory,
            self.steady_ms,
            self.passing.pass_file,
            self.config["remote.fetch.max.wait.ms"],
            waits=tables.latencies.of(STAGE_PURGATORY),
        )
        self.read_sessions = ReadSessions(self.reader)
        index = member.counters.at(member.index, AHEAD_ENDS)
        self.read_ahead = ReadAhead(self.reader, self.words, index)

    def _build_replication(self, tables: Tables) -> None:
        """Build the part in what other brokers have, too, and what says which logs are here."""
        peers = self.peers
        self.replication = Replication(
            self.broker_id,
            self.appender,
            {number: (peer, peers.files[number]) for number, peer in peers.siblings.items()},
            tables.sibling_positions,
            self.config["replica.lag.time.max.ms"],
            awake=Awake(
                Core(self.clock.monotonic, self.member.rings),
                AMONG_REPLICAS_S if peers.siblings else AFTER_S,
            ),
            new_token=self.asking.new_token,
            pass_file=self.passing.pass_file,
            note_gap=self.store.note_gap,
            raise_log_start=self.store.raise_log_start,
            flush=self.store.flush,
            find_state=self.tiering.find_state,
            ask=self.asks.for_in_sync,
            tell=self.asks.tell_log_ends,
            on_decided=self._on_decided,
            on_high_watermark=self._on_high_watermark,
            on_log_start=self._on_log_start,
        )
        self.placement = Placement(
            self.clock,
            self.member,
            self.broker_id,
            self.store,
            self.replication,
            self.groups,
            self.transactions,
            now_ms=self.now_ms,
            of_topic=self.settings.of_topic,
            on_placed=self.tiering.on_partition,
            on_dropped=self._on_dropped,
        )

    def _build_following(self) -> None:
        """Build what follows the metadata log: the settings as they hold here, and the image."""
        self.applied_settings = AppliedSettings(
            self.settings,
            self.member,
            self.store,
            self.appender,
            self.reader,
            self.exchange,
            self.replication,
            self.compaction,
            self.tiering,
        )
        self.metadata = LiveMetadata(
            self.member,
            self.link,
            self.registration,
            self.placement,
            self.groups,
            on_configured=self.applied_settings.apply,
            on_applied=self._on_applied,
        )

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last committed record that was followed."""
        return self._follower.image

    def now_ms(self) -> int:
        """The time of this turn, as the wall clock shows it: it may jump."""
        return self._now_ms

    def steady_ms(self) -> int:
        """The time of this turn, for what waits: milliseconds that never go back."""
        return self._steady_ms

    def look_at_clocks(self) -> None:
        """Read the time that this turn, or what comes between two, goes by."""
        self._now_ms = self.clock.now_ms()
        self._steady_ms = int(self.clock.monotonic() * 1000)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def may_wait(self) -> bool:
        """Whether nobody is kept waiting by a turn that comes a little later: no sibling has sent
        something, and nobody follows, or waits for, what was appended."""
        watched, appended = self.purgatory.watched, self.acks.appended
        if watched and any(each.key in watched for each in appended):
            return False
        return self.replication.is_alone or not (
            any(each.followed_rows for each in appended) or self.has_entries()
        )

    def turn(self) -> float:
        """One pass, and a look for what comes next: for how long nothing is due after it, 0 where
        there is more to do."""
        if self.run_once() or self.replication.look_before_sleep(self.has_entries, self.was_asked):
            return 0.0
        return self.rest()

    def run_once(self) -> bool:
        """One pass: whether there is more to do at once."""
        self.turns += 1
        self.look_at_clocks()
        had_work = self.intake.take()
        outbox = self.outbox
        if outbox and had_work and not self.purgatory.waiting:
            self._tell()  # acks are not to wait for the rest; what consumers wait for goes first
        if self.executor.unfinished:
            self.executor.advance()
        if self.reader.cold:
            self.reader.retry_cold()
        if self.flusher.is_busy:
            self.finish_flushes()
        had_work |= self.coordinators.run_due(self._steady_ms)
        commit = self.acks.group_commit
        if commit.waiting or commit.wanted:
            commit.start()  # behind all that may append
        appended = self.acks.appended
        told: tuple[Partition, ...] = ()
        if appended:
            told = tuple(appended)
            appended.clear()
            self.disk_watch.is_written = True
            self._wake_readers(told)
        if self.acks.moved:
            had_work = True
            self.replication.tell_moved()
        if not self.replication.is_alone:
            self.replication.run(self._follower.image)
        has_more = self.placement.has_work
        if has_more:
            self.metadata.apply_some()
        has_more |= bool(self.executor.unfinished)
        if self.passing.waiting:
            self.passing.pass_waiting()
        if outbox or self.shown.sampled_at:
            self._tell()
        if self.read_ahead.noted:
            self.read_ahead.run()
            self.publish()
        exchange = self.exchange
        if exchange.has_work or exchange.next_ms <= self._steady_ms:
            exchange.run()  # behind the answers: who ends a transaction waits for no marker
            self.publish()
        for partition in told:
            active = partition.log.active
            if 0 < active.ready_bytes - active.size < active.extent_bytes >> 1:
                self.appender.populate(partition)
        now = self.clock.monotonic()
        self.member.sign(now)
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + HOUSEKEEPING_INTERVAL_S
            self._now_ms = self.clock.now_ms()
            self.housekeeping.run()
        if self.purgatory.waiting:
            self._expire()
        # What came meanwhile is told in the next turn. One that would find nothing is left out: it
        # takes 25 us, for which an ack waits where a core is shared with those that it needs.
        has_more |= exchange.has_work or bool(self.read_ahead.noted or appended or self.acks.moved)
        self.was_asked = bool(told) or self.intake.has_executed
        return has_more or (had_work and self.has_entries())

    def _wake_readers(self, appended: tuple[Partition, ...]) -> None:
        """Followers and consumers that wait at the ends of these partitions."""
        for partition in appended:
            if partition.followed_rows:
                self.replication.reads.on_appended(partition)
        if self.purgatory.watched:
            self.purgatory.check_together([partition.key for partition in appended])

    def _expire(self) -> None:
        """Answer what has waited long enough."""
        deadline = self.purgatory.next_deadline()
        if deadline is not None and deadline <= self._steady_ms:
            for _ in self.purgatory.expire(self._steady_ms):
                pass
            self.publish()

    def _tell(self) -> None:
        """Publish what this turn has answered so far."""
        if self.shown.sampled_at:
            self.shown.end_sample()
        self.publish()

    def rest(self) -> float:
        """Seconds until something is due."""
        if self.passing.waiting or self.reader.cold or self.member.has_backlog():
            return BACKLOG_RETRY_S
        now = self.clock.monotonic()
        steady_ms = now * 1000
        timeout = self._next_housekeeping - now
        replication = self.replication
        if not replication.is_alone and (due_ms := replication.next_ms()) is not None:
            timeout = min(timeout, (due_ms - steady_ms) / 1000)
        if self.purgatory.waiting and (due_ms := self.purgatory.next_deadline()) is not None:
            timeout = min(timeout, (due_ms - steady_ms) / 1000)
        timeout = min(timeout, (self.coordinators.wake_ms - steady_ms) / 1000)
        return max(SLEEP_S_MIN, timeout)

    def has_news(self) -> bool:
        """Whether something came for which nobody rings, as this was awake: to be asked after
        `Doorbell.say_sleeping`."""
        return (
            self.has_entries()
            or self.words[ANNOUNCEMENTS_WORD] != self.member.announcements
            or (self.registration.epoch >= 0 and self.link.has_news())
        )

    def _on_high_watermark(self, partition: Partition) -> None:
        """Wake those who wait for a high watermark, which has moved without an append."""
        self.purgatory.check(partition.key)
        if partition.is_internal:
            self.coordinators.on_high_watermark(partition)

    def _on_log_start(self, partition: Partition) -> None:
        """A follower's log begins later: a DeleteRecords may have waited for that."""
        self.purgatory.check(partition.key)

    def _on_decided(self, partition: Partition) -> None:
        """The controller, or the remote store, has said what a partition lacks: it may lead now."""
        self.placement.apply_again(partition, self.image)

    def finish_flushes(self) -> None:
        """Recovery points and acks of what is on the disk now."""
        for on_done in self.flusher.finished():
            on_done()

    # ── metadata ────────────────────────────────────────────────────────────────────────────────

    def on_settings(self) -> None:
        """The settings that this was started with have other values."""
        self.applied_settings.apply({""})

    def attach_gateway(
        self,
        on_followed: Callable[[Sequence[MetadataChange]], None],
        on_gateway_lost: Callable[[int], None],
    ) -> None:
        """A gateway beside this broker is told what has changed in the metadata, and the slots of
        network workers that have died."""
        self.metadata.on_followed = on_followed
        self.peer_changes.on_gateway_lost = on_gateway_lost

    def drop_passed_files(self) -> None:
        """Descriptors of files that are gone are closed everywhere."""
        self.passing.drop(self.store.dropped_file_ids)

    def _on_applied(self) -> None:
        self.purgatory.check(LIVE_BROKERS)
        self.read_ahead.ends()
        self.drop_passed_files()

    def _on_readable(self, key: bytes) -> None:
        """Reads of a partition are answered in another way from now on."""
        self.read_ahead.ends()
        partition = self.partitions.get(key)
        if partition is not None and partition.followed_rows:
            self.replication.reads.on_log_start(partition)
        self.purgatory.check(key)

    def _on_dropped(self, partition: Partition) -> None:
        self.upkeep.forget(partition.key)
        self.tiering.on_deleted(partition.key)
        self.purgatory.check(partition.key)
