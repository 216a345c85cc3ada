"""The whole family under one seed: gateways, brokers and controllers, their real code, in one
process on virtual time; clients whose history is checked; and everything that may go wrong.

    simulate(seed)    AssertionError with the last lines of the trace, if something does not hold

What may happen, at random, is in `faults`.

With `Plan.has_transactions` there are transactional clients and read_committed readers as well;
with `Plan.has_guests` network workers lend connections to I/O workers; with `Plan.has_sessions`
clients read in fetch sessions; with `Plan.reads_ahead` some read on in one way, and are told what
follows; with `Plan.has_deletes` records are deleted; with `Plan.has_tier` there is a remote store,
and with `Plan.has_shifts` what topics have there expires, and is switched off and on; with
`Plan.has_moves` partitions are moved onto brokers that have nothing of them, often, and copies are
lost over and over.

Then nothing fails any more, and within a minute everybody has caught up, or it is an error too.

A trace has a line for each thing that happened:

    1003.014211  io-worker-2#1.1       is killed
    time         process, start of the family, start of this process; or client; or fault
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random
from typing import NamedTuple

from shmbroker.errors import Fault
from shmbroker.groups.transactions import transaction
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.metadata.topic_names import TRANSACTION_TOPIC
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    HEADER_SIZE,
    LOG_OVERHEAD,
)
from tests.simulation.family import tiered
from tests.simulation.family.clients import (
    Admin,
    AheadReader,
    Careless,
    Mover,
    Producer,
    Reader,
    check_retried,
)
from tests.simulation.family.deletes import Deleter
from tests.simulation.family.family import Family, Size
from tests.simulation.family.faults import HARMLESS, QUICK, Faults, kinds_of
from tests.simulation.family.history import Place, Seen
from tests.simulation.family.lookups import TimeReader
from tests.simulation.family.members import MODERN_SESSION_MS, Consumer, Modern
from tests.simulation.family.network import Disconnected, Network, Script, Wait
from tests.simulation.family.scheduler import Scheduler
from tests.simulation.family.sessions import FullReader, SessionReader, Watch
from tests.simulation.family.shifts import Shifter
from tests.simulation.family.system import System
from tests.simulation.family.tiered import StoreFaults
from tests.simulation.family.transaction_history import TransactionsSeen
from tests.simulation.family.transactional import CommittedClient, CommittedReader, Instance

LENGTH_S = 6.0
"""How long faults happen."""
HEAL_S = 60.0
REST_S = 15.0
"""After the last fault, until everything that was in doubt has been decided."""
MIN_IN_SYNC = 2
"""Where there are three replicas."""
TRACE_LINES = 200
MEMORY = Path("/dev/shm")
OFFSETS_TOPIC = "__consumer_offsets"
STATE_PARTITIONS = 2
"""Of __transaction_state: several brokers coordinate."""
WATCH_S = 0.01


class Plan(NamedTuple):
    """What a history is, where that is not left to its seed."""

    is_whole: bool | None = None
    """Three brokers and controllers; else one of each."""
    is_durable: bool | None = None
    """Acks wait for the disk, so the power may go."""
    fault_s: float | None = None
    """Between two faults, on average; 0.0: there are none."""
    faults: tuple[str, ...] = ()
    """Their kinds; none named: all."""
    has_transactions: bool = False
    """Clients write in transactions, too."""
    has_deletes: bool = False
    """A client deletes records."""
    has_guests: bool = False
    """I/O workers serve the quiet ones among the connections."""
    has_sessions: bool = False
    """Clients read in fetch sessions, too, which brokers keep however small they are, and in ones
    that they don't know of."""

    reads_ahead: bool = False
    """Clients read on in one way, too, and gateways answer them from what brokers told before."""

    has_tier: bool = False
    """Topics have copies in a remote store, and often nothing else of their old records."""

    has_shifts: bool = False
    """… and these expire, topics with copies are deleted, and their settings change."""

    has_moves: bool = False
    """Replicas begin empty, often: partitions are moved, and copies are lost. With a store or
    without, with transactions or without, as the seed says."""


ANY = Plan()
AHEAD = Plan(reads_ahead=True)
DELETE_FAULTS = (
    "kill",
    "kill",
    "kill_amid",
    "hang",
    "slow",
    "jump",
    "leave",
    "end",
    "freeze",
    "lose",
)
"""Not a power cut, nor a disk that refuses: a log start is durable a second after the answer."""
DELETES = Plan(faults=DELETE_FAULTS, has_deletes=True)
GUESTS = Plan(has_guests=True)
TIER = Plan(has_tier=True)
MOVES = Plan(is_whole=True, has_moves=True)
TIER_SHIFTS = Plan(has_tier=True, has_shifts=True)
TIER_TRANSACTIONS = Plan(has_tier=True, has_transactions=True)
SESSIONS = Plan(has_sessions=True)
TRANSACTIONS = Plan(has_transactions=True)
KINDS = {
    ANY: "family",
    TRANSACTIONS: "transactions",
    GUESTS: "guests",
    SESSIONS: "sessions",
    AHEAD: "ahead",
    DELETES: "deletes",
    TIER: "tier",
    TIER_SHIFTS: "tier-shifts",
    TIER_TRANSACTIONS: "tier-transactions",
    MOVES: "moves",
}
"""As `scripts/simulate` names them."""


def make_root(place: Path) -> str:
    """A directory with this process's id in its name, always as long; what processes that were
    killed have left there is removed."""
    for path in place.glob("family-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", str(int(pid))).exists():
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"family-{os.getpid():07}-", dir=place)


class Simulation:
    """One seed."""

    def __init__(self, seed: int, plan: Plan = ANY) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.kind = KINDS.get(plan)
        self.plan = plan = _drawn(plan, random)
        self.root = make_root(MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir()))
        self.scheduler = Scheduler(random)
        self.system = System(self.scheduler, self.root)
        self.system.has_kernel = seed % 2 == 0
        self.disk = self.system.disk
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self.line_count = 0
        self.sessions = Watch()
        drawn = Plan(
            random.random() < 0.6, random.random() < 0.4, random.choice((0.0, 0.3, 1.0, 2.0))
        )
        self.is_whole = bool(drawn.is_whole if plan.is_whole is None else plan.is_whole)
        self.is_durable = bool(drawn.is_durable if plan.is_durable is None else plan.is_durable)
        self.fault_s = (drawn.fault_s if plan.fault_s is None else plan.fault_s) or 0.0
        self.kinds = plan.faults
        self.transactions = TransactionsSeen()
        self.transaction_version = 0
        if plan.has_transactions:
            self._draw_transactions()
        if plan.has_sessions:
            self.system.kept_min = 1
        self.system.reads_ahead = plan.reads_ahead
        self.has_deletes = plan.has_deletes
        self.topic_configs: dict[str, str] = {}
        """Of topics that are created, beside min.insync.replicas."""
        self.size = self._size()
        if plan.has_tier:
            self._draw_tier()
        self.family = Family(self.system, self.size, self.trace)
        self.seen = Seen(
            lambda: int((self.scheduler.now + self.scheduler.wall_ahead_s) * 1000),
            self.check_copies,
        )
        self.seen.shrinks = plan.has_shifts
        if plan.has_moves:
            self.kinds = (*(self.kinds or kinds_of(self.is_whole, self.is_durable)), *["lose"] * 5)

    def _draw_transactions(self) -> None:
        random = self.random
        self.transaction_version = random.choice((1, 2, 2))
        self.system.producer_epoch_last = random.choice((transaction.EPOCH_LAST, 6))
        if not self.kinds and random.random() < 0.15:
            self.kinds = HARMLESS

    def _draw_tier(self) -> None:
        random = self.random
        self.size.settings.update(tiered.settings(self.root, random))
        self.topic_configs = tiered.topic_configs(random)
        self.disk.are_reads_calls = True
        self.has_deletes = not self.is_durable and not self.plan.has_transactions
        if self.plan != TIER and not self.plan.faults:
            self.system.piece_bytes = random.choice((500, 2000, 8 << 20))
            self.system.cache_bytes = random.choice((1, 3000, 1 << 20))
            self.topic_configs["index.interval.bytes"] = random.choice(("0", "100", "4096"))
        if self.plan.has_shifts:
            self.topic_configs |= tiered.expiry_configs(random)
        if not self.kinds:
            is_cut = self.is_durable and not self.plan.has_shifts
            mostly = kinds_of(self.is_whole, True) if is_cut else DELETE_FAULTS
            self.kinds = (*mostly, *StoreFaults.KINDS)

    def _size(self) -> Size:
        random = self.random
        settings = {
            "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
            # Batches that were made before the wall clock jumped back are taken all the same.
            "log.message.timestamp.after.max.ms": str((1 << 63) - 1),
            "broker.session.timeout.ms": "1500",
            "group.initial.rebalance.delay.ms": "50",
            "group.consumer.session.timeout.ms": str(MODERN_SESSION_MS),
            "group.consumer.min.session.timeout.ms": str(MODERN_SESSION_MS),
            "group.consumer.heartbeat.interval.ms": "100",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "replica.lag.time.max.ms": str(random.choice((500, 2000))),
            "log.segment.bytes": str(random.choice((1 << 20, 1 << 30))),
            "shmbroker.lend.connections": str(self.plan.has_guests).lower(),
        }
        if self.is_durable:
            settings["shmbroker.ack.durability"] = "fsync"
        if not self.is_whole:
            return Size(random.choice((1, 2)), 1, 1, settings)
        settings["shmbroker.replicas"] = "3"
        return Size(random.choice((1, 2)), 3, random.choice((1, 3)), settings)

    # ── the trace ───────────────────────────────────────────────────────────────────────────────

    def trace(self, who: str, text: str) -> None:
        self.line_count += 1
        text = text.replace(self.root, "DATA")
        self.lines.append(f"{self.scheduler.now:.6f}  {who:24}  {text}")

    # ── the whole of it ─────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """AssertionError if something does not hold."""
        logger = logging.getLogger("shmbroker")
        handler = _Lines(self)
        before = logger.handlers, logger.propagate, logger.level
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        try:
            with self.system.running():
                self.network = Network(self.scheduler, self.family)
                make = StoreFaults if self.plan.has_tier else Faults
                self.faults = make(
                    self.family,
                    self.network,
                    self.random,
                    self.kinds or kinds_of(self.is_whole, self.is_durable),
                    self._on_jump,
                )
                self.faults.loses_often = self.plan.has_moves
                self.scheduler.look = self._look
                try:
                    self._run()
                finally:
                    self.network.close()
                    self.family.end_all()
        except (AssertionError, Fault) as fault:
            # A fault is a client's, who can't read what it is given.
            trace = "\n".join(self.lines)
            again = f"scripts/simulate --of {self.kind} --from {self.seed} --seeds 1"
            if self.kind is None:
                again = f"simulate({self.seed}, {self.plan})"
            raise AssertionError(f"seed {self.seed}: {fault}; again: {again}\n{trace}") from fault
        finally:
            logger.handlers, logger.propagate = before[:2]
            logger.setLevel(before[2])
            shutil.rmtree(self.root, ignore_errors=True)

    def _run(self) -> None:
        scheduler = self.scheduler
        self.trace("seed", f"{self.seed}: {self.size}, a fault each {self.fault_s} s")
        self.family.boot()
        self._start_clients()
        self.network.are_lates_bad = bool(self.kinds) and QUICK.issuperset(self.kinds)
        if self.fault_s:
            self.faults.go_on_each(self.fault_s)
        if not self.can_fail:
            self.network.well_since = scheduler.now
            self._end_slowness()
        if self.transaction_version:
            self._watch()
        if self.plan.has_sessions:
            self._watch_sessions()
        self._go_on(lambda: scheduler.now > 1000 + LENGTH_S, 2 * LENGTH_S)
        self._heal()
        self.network.tell_to_end()
        end = Ending(self.network, "ending", self.seen, self)
        self._go_on(lambda: end.is_over, HEAL_S)

    @property
    def can_fail(self) -> bool:
        """Whether anything happens that the processes of the family have to suffer from."""
        return bool(self.fault_s) and not (self.kinds and set(HARMLESS).issuperset(self.kinds))

    def _watch(self) -> None:
        """Look at the leaders' partitions, over and over."""
        found = []
        for partition in self.family.led():
            stable, high = partition.last_stable_offset, partition.high_watermark
            end = partition.log.log_end_offset
            place = partition.topic, partition.partition
            assert stable <= high <= end, f"{place}: {stable}, {high}, {end} are not in order"
            told = self.transactions.stable(place)
            is_known = not partition.is_high_watermark_behind
            assert stable >= told or not is_known, f"{place}: stable to {told}, then to {stable}"
            found += [(place, *each) for each in partition.producers.open.items()]
        self.transactions.on_open(found, self.scheduler.now, self.network.well_since)
        self.scheduler.after(WATCH_S, self._watch)

    def _watch_sessions(self) -> None:
        """Look at the sessions that brokers keep, over and over."""
        self.sessions.look(self.family.brokers())
        self.scheduler.after(WATCH_S, self._watch_sessions)

    def _go_on(self, is_over: Callable[[], bool], seconds: float) -> None:
        until = self.scheduler.now + seconds
        while not is_over():
            self.scheduler.step()
            if self.family.crashes:
                crash = self.family.crashes[0]
                raise AssertionError(f"a process crashed: {crash!r}") from crash
            assert self.scheduler.now < until, "no rest"

    def _look(self) -> None:
        self.family.look()
        self.network.look()

    def _start_clients(self) -> None:
        random, network, seen = self.random, self.network, self.seen
        Starting(network, "starting", seen, self)
        admin = Admin(network, "admin", seen, self.size.brokers)
        if self.plan.has_tier and self.plan != TIER and not self.plan.faults:
            admin.configs = self.topic_configs
            TimeReader(network, "time-reader", seen)
        if self.plan.has_shifts:
            Shifter(network, "shifter", seen)
        if self.plan.has_moves:
            Mover(network, "mover", seen, self.size.brokers)
        for number in range(random.randrange(1, 3)):
            Reader(network, f"reader-{number}", seen)
        if self.plan.has_sessions:
            for number in range(2):
                SessionReader(network, f"session-reader-{number}", seen)
            FullReader(network, "full-reader", seen)
        if self.has_deletes:
            Deleter(network, "deleter", seen)
        if self.plan.reads_ahead:
            for number in range(2):
                AheadReader(network, f"ahead-reader-{number}", seen)
        if self.transaction_version:
            admin.internal = [(OFFSETS_TOPIC, 0)]
            admin.internal += [(TRANSACTION_TOPIC, at) for at in range(STATE_PARTITIONS)]
            for number in range(2):
                CommittedReader(network, f"committed-{number}", seen, self.transactions)

    def start_more(self, topics: list[str]) -> None:
        """Those who need the topics that were created first."""
        random, network, seen = self.random, self.network, self.seen
        for number, place in enumerate(list(seen.places)):
            producer = Producer(
                network, f"producer-{number}", seen, place, random.randrange(5, 120)
            )
            if self.plan.has_moves and self.plan.has_tier:
                producer.at_once_max = 1
        Careless(network, "careless", seen, random.choice(seen.places))
        for number in range(random.randrange(1, 4)):
            Consumer(network, f"consumer-{number}", seen, "group", topics)
        for number in range(random.randrange(3)):
            Modern(network, f"modern-{number}", seen, "modern", topics)
        if self.transaction_version:
            for number in range(random.randrange(2, 5)):
                session = f"session-{number}"
                version = random.choice((1, self.transaction_version))
                Instance(network, 1, seen, self.transactions, session, version, self.can_fail)

    def _heal(self) -> None:
        self.trace("heal", "nothing fails any more")
        self._end_slowness()
        self.network.well_since = min(self.network.well_since, self.scheduler.now + REST_S)
        self.faults.heal()

    def _on_jump(self) -> None:
        if self.can_fail or self.is_whole:
            self.transactions.on_jump()

    def _end_slowness(self) -> None:
        self.scheduler.slow_wakes = self.system.slow_flushes = 0.0

    def check_copies(self, place: Place, end_offset: int) -> None:
        """What was acknowledged is in two logs of three, where that is asked for and can be seen:
        nothing was lost yet, there are three replicas all the time, and every broker lives and has
        its logs open."""
        if self.size.brokers < 3 or self.faults.has_lost or self.plan.has_moves:
            return
        ends = self.family.log_ends(place)
        if len(ends) == self.size.brokers:
            count = sum(end >= end_offset for end in ends)
            assert count >= MIN_IN_SYNC, f"{place} to {end_offset} is in {count} logs"

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def check_aborted(self) -> None:
        """All replicas have the same aborted transactions in their indexes, and none open."""
        found: dict[Place, list[AbortedTransaction]] = {}
        for partition in self.family.partitions():
            partition.log.aborted.check()
            place = partition.topic, partition.partition
            own = partition.log.aborted.find(self._starts_everywhere(place), 1 << 62)
            assert found.setdefault(place, own) == own, f"{place}: {found[place]}, and {own}"
            assert not partition.producers.open, f"{place}: a transaction is open"

    def content(self, number: int, place: Place) -> bytes:
        """What a node's log holds of a partition."""
        directory = Path(self.root) / f"node-{number}" / f"{place[0]}-{place[1]}"
        start = self._starts_everywhere(place)
        parts = [_batches(path.read_bytes(), start) for path in sorted(directory.glob("*.log"))]
        return b"".join(parts)

    def _starts_everywhere(self, place: Place) -> int:
        """Where the replica begins that begins last. What lies before is deleted, or in a store:
        the others may have it or not."""
        starts = [
            partition.log.local_start_offset
            for partition in self.family.partitions()
            if (partition.topic, partition.partition) == place
        ]
        return max(starts, default=0)


def _batches(content: bytes, start: int) -> bytes:
    """What a segment's file has from the batch with an offset on, up to what is not written."""
    first = at = 0
    while at + HEADER_SIZE <= len(content):
        header = BATCH_HEADER.unpack_from(content, at)
        if not header[H_LENGTH]:
            break
        at += LOG_OVERHEAD + header[H_LENGTH]
        if header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] < start:
            first = at
    return content[first:at]


def _drawn(plan: Plan, random: Random) -> Plan:
    """What a plan leaves to the seed before all else."""
    if not plan.has_moves:
        return plan
    has_tier = random.random() < 0.7
    return plan._replace(has_tier=has_tier, has_transactions=random.random() < 0.5)


class Starting(Admin):
    """Creates the topics that everybody begins with."""

    def __init__(self, network: Network, name: str, seen: Seen, simulation: Simulation) -> None:
        self.simulation = simulation
        super().__init__(network, name, seen, simulation.size.brokers)

    def script(self) -> Script:
        topics = [f"topic-{number}" for number in range(self.random.randrange(1, 3))]
        for topic in topics:
            least = str(MIN_IN_SYNC) if self.replicas == 3 else "1"
            configs = self.simulation.topic_configs | {"min.insync.replicas": least}
            yield from self.create(topic, self.random.randrange(1, 3), configs)
        if self.simulation.transaction_version == 1:
            yield from self._lower()
        self.simulation.start_more(topics)

    def _lower(self) -> Script:
        """transaction.version 1, where 2 is the default."""
        update = {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2}
        body = {"feature_updates": [update], "timeout_ms": 3000}
        while True:
            try:
                answer = yield from self.ask(self.any_port(), "UpdateFeatures", 1, body)
            except Disconnected:
                yield 0.1
                continue
            error = answer["error_code"] or answer["results"][0]["error_code"]
            if not error:
                return
            check_retried(error, "UpdateFeatures")
            yield 0.2


class Ending(CommittedClient):
    """Waits until all is well, and reads everything once more."""

    def __init__(self, network: Network, name: str, seen: Seen, simulation: Simulation) -> None:
        self.simulation = simulation
        self._replicas: dict[Place, list[int]] = {}
        super().__init__(network, name, seen, simulation.transactions)

    def script(self) -> Script:
        while not all(one.is_over or one is self for one in self.network.clients):
            yield 0.1
        while not (yield from self._is_well()):
            yield 0.2
        for place in self.seen.places:
            yield from self._read_whole(place)
            self.seen.check_end(place)
        for place in [*self.seen.places, (OFFSETS_TOPIC, 0)]:
            numbers = self._replicas.get(place, ())
            while len({self.simulation.content(number, place) for number in numbers}) > 1:
                yield 0.1
        if self.simulation.transaction_version:
            yield from self._check_transactions()
        if self.simulation.plan.has_tier:
            said = ""
            while wrong := tiered.wrong_with(self.simulation.family, self.seen.now_ms()):
                if wrong != said:
                    self.say(said := wrong)
                yield 0.1

    def _check_transactions(self) -> Script:
        """All are ended; readers of committed records and replicas agree on how."""
        while any(partition.producers.open for partition in self.simulation.family.led()):
            yield 0.1
        for place in self.seen.places:
            end, count = -1, -1
            while count < 0 or self.transactions.view_end(place) < end:
                end = yield from self.watermark(place)
                count = yield from self.read_committed(place, 0)
                yield 0.01
        offsets = {}
        for name in self.transactions.sessions:
            offsets[name] = yield from self._offset(name)
        self.transactions.check_end(offsets)
        self.simulation.check_aborted()

    def _offset(self, group: str) -> Generator[Wait, None, int]:
        topic, partition = self.seen.places[0]
        rows = [{"name": topic, "partition_indexes": [partition]}]
        body = {"group_id": group, "topics": rows, "require_stable": True}
        while True:
            try:
                answer = yield from self.ask(self.any_port(), "OffsetFetch", 7, body)
            except Disconnected:
                yield 0.1
                continue
            if not answer["error_code"]:
                row = answer["topics"][0]["partitions"][0]
                found: int = row["committed_offset"]
                if not row["error_code"]:
                    return found
            yield 0.01

    def _is_well(self) -> Generator[Wait, None, bool]:
        """Every topic that was created has all replicas of its partitions in sync."""
        body = {"topics": None, "allow_auto_topic_creation": False}
        try:
            answer = yield from self.ask(self.any_port(), "Metadata", 9, body)
        except Disconnected:
            return False
        found = {}
        for topic in answer["topics"]:
            rows = topic["partitions"]
            found[topic["name"]] = len(rows)
            for row in rows:
                if row["leader_id"] < 0 or set(row["replica_nodes"]) != set(row["isr_nodes"]):
                    return False
                self._replicas[topic["name"], row["partition_index"]] = row["replica_nodes"]
        return all(found.get(topic) == count for topic, count in self.seen.topics.items())  # J

    def _read_whole(self, place: Place) -> Generator[Wait, None, None]:
        end, offset = -1, 0
        while end < 0 or offset < end:
            end = yield from self.watermark(place)
            offset = yield from self.read(place, 0)
            yield 0.01


class _Lines(logging.Handler):
    """Log lines of the processes go into the trace."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        current = self.simulation.scheduler.current
        fault = record.exc_info[1] if record.exc_info else None
        if fault is not None and not isinstance(fault, Fault):
            self.simulation.family.crashes.append(fault)
        self.simulation.trace(current.title if current else "-", record.getMessage())


def simulate_transactions(seed: int) -> Simulation:
    """One history with transactional clients."""
    return simulate(seed, TRANSACTIONS)


def simulate_sessions(seed: int) -> Simulation:
    """One history with fetch sessions."""
    return simulate(seed, SESSIONS)


def simulate_ahead(seed: int) -> Simulation:
    """One history whose readers are told what follows."""
    return simulate(seed, AHEAD)


def simulate_deletes(seed: int) -> Simulation:
    """One history in which records are deleted."""
    return simulate(seed, DELETES)


def simulate_tier(seed: int) -> Simulation:
    """One history with a remote store."""
    return simulate(seed, TIER)


def simulate_tier_shifts(seed: int) -> Simulation:
    """One history with a remote store whose contents come and go."""
    return simulate(seed, TIER_SHIFTS)


def simulate_tier_transactions(seed: int) -> Simulation:
    """One history with transactions, of which much is in a remote store alone."""
    return simulate(seed, TIER_TRANSACTIONS)


def simulate_moves(seed: int) -> Simulation:
    """One history whose replicas begin empty, over and over."""
    return simulate(seed, MOVES)


def simulate_guests(seed: int) -> Simulation:
    """One history whose connections are lent."""
    return simulate(seed, GUESTS)


def simulate(seed: int, plan: Plan = ANY) -> Simulation:
    """One history; AssertionError if something does not hold."""
    simulation = Simulation(seed, plan)
    simulation.run()
    return simulation
