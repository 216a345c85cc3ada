"""Transactional clients of a simulated family.

    Instance          one life of a transactional id: begins, writes, commits offsets, ends, again;
                      hangs, and goes on as a zombie when its successor has begun; takes too long
    CommittedReader   reads partitions with read_committed, as a consumer does

An instance goes by transaction.version 2, where Produce and TxnOffsetCommit add their partitions by
themselves and every end gives the next epoch, or by version 1, where partitions are added first
and an epoch is for many transactions. Where it does not know what became of a batch it asks for the
next epoch before it goes on (KIP-360).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker
from shmbroker.wire import error_codes
from tests.simulation.family.clients import (
    RETRIED,
    VALUE,
    FamilyClient,
    check_retried,
    fetch_body,
    produce_body,
)
from tests.simulation.family.history import Place, Seen, Value
from tests.simulation.family.network import (
    Body,
    Connection,
    Disconnected,
    Network,
    Pending,
    Script,
    Wait,
)
from tests.simulation.family.transaction_history import Transaction, TransactionsSeen

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
TIMEOUTS_S = (0.4, 1.5, 5.0)
READ_COMMITTED = 1
FENCED = frozenset(
    (
        error_codes.PRODUCER_FENCED,
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
    )
)
ABORTED = frozenset(
    (
        error_codes.INVALID_TXN_STATE,
        error_codes.TRANSACTION_ABORTABLE,
        error_codes.UNKNOWN_PRODUCER_ID,
    )
)
AGAIN = RETRIED | {error_codes.CONCURRENT_TRANSACTIONS, error_codes.UNSTABLE_OFFSET_COMMIT}
HANGS = 0.06
"""How many transactions hang in the middle, until a successor has come,"""
OVERTIMES = 0.05
"""or until their time is over."""
EMPTY = 0.05
ABORTS = 0.25

Doing = Generator[Wait, None, None]


class Fenced(Exception):
    """This instance is over."""


class Aborted(Exception):
    """The transaction can only be aborted."""


class CommittedClient(FamilyClient):
    """One that reads with read_committed, too."""

    def __init__(
        self, network: Network, name: str, seen: Seen, transactions: TransactionsSeen
    ) -> None:
        self.transactions = transactions
        super().__init__(network, name, seen)

    def read_committed(self, place: Place, offset: int) -> Generator[Wait, None, int]:
        """From an offset to the last stable one of now; how many committed records there are up to
        it. -1: it came to nothing."""
        transactions = self.transactions
        nothing = 0
        while nothing < 100:
            port = yield from self.leader(place)
            body = fetch_body(place, offset, self.random.choice((0, 50)))
            body["isolation_level"] = READ_COMMITTED
            try:
                answer = yield from self.ask(port, "Fetch", 11, body)
            except Disconnected:
                self.leaders.pop(place, None)
                return -1
            row = answer["responses"][0]["partitions"][0]
            if row["error_code"]:
                check_retried(row["error_code"], f"Fetch of {place} from {offset}")
                self.leaders.pop(place, None)
                return -1
            stable = row["last_stable_offset"]
            transactions.on_ends(place, stable, row["high_watermark"])
            end, found = committed_of(row, offset)
            transactions.on_read(place, offset, end, found, stable)
            nothing += end == offset
            offset = end
            if offset == stable:
                return transactions.on_read_to_end(place, offset, row["high_watermark"])
            if offset > stable:
                return -1  # a new leader does not know yet how far it goes
        return -1

    def ask_stable(self, place: Place) -> Doing:
        """Ask for the end of what is committed."""
        port = yield from self.leader(place)
        known = self.transactions.stable(place)
        partition = {"partition_index": place[1], "current_leader_epoch": -1, "timestamp": -1}
        body = {
            "replica_id": -1,
            "isolation_level": READ_COMMITTED,
            "topics": [{"name": place[0], "partitions": [partition]}],
        }
        try:
            answer = yield from self.ask(port, "ListOffsets", 5, body)
        except Disconnected:
            self.leaders.pop(place, None)
            return
        row = answer["topics"][0]["partitions"][0]
        if row["error_code"]:
            check_retried(row["error_code"], "ListOffsets")
            self.leaders.pop(place, None)
            return
        self.transactions.on_stable(place, known, row["offset"])


def committed_of(row: Body, offset: int) -> tuple[int, list[tuple[int, Value]]]:
    """(where to go on, committed records from `offset` on) of a partition's answer: what a
    consumer makes of it."""
    told = [
        (each["first_offset"], each["producer_id"]) for each in row["aborted_transactions"] or ()
    ]
    told.sort()
    aborted: set[int] = set()
    found = []
    end = offset
    data = bytes(row["records"] or b"")
    for position, header in iterate_batches(data):
        last = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        while told and told[0][0] <= last:
            aborted.add(told.pop(0)[1])
        end = max(end, last + 1)
        producer_id = header[H_PRODUCER_ID]
        if header[H_ATTRIBUTES] & CONTROL_BIT:
            marker = parse_marker(data, position)
            if marker is not None and not marker.is_commit:
                aborted.discard(producer_id)
        elif not (header[H_ATTRIBUTES] & TRANSACTIONAL_BIT and producer_id in aborted):
            for at, _, _, value, _ in iterate_records(data, position):
                if at >= offset:
                    found.append((at, VALUE.unpack_from(value or b"")))
    return end, found


class CommittedReader(CommittedClient):
    """Reads partitions over and over, from places where others have been."""

    def script(self) -> Script:
        while not self.is_told_to_end:
            if not self.seen.places:
                yield 0.1
                continue
            place = self.random.choice(self.seen.places)
            end = self.transactions.view_end(place)
            offset = self.random.choice((0, end, end, self.random.randrange(end + 1)))
            if self.random.random() < 0.3:
                yield from self.ask_stable(place)
            else:
                yield from self.read_committed(place, offset)
            yield self.pause(0.0, 0.1)


class Instance(CommittedClient):
    """One life of a transactional id."""

    def __init__(
        self,
        network: Network,
        number: int,
        seen: Seen,
        transactions: TransactionsSeen,
        session: str,
        version: int,
        can_fail: bool,
    ) -> None:
        """can_fail: processes die or hang, so that a transaction may have to be aborted."""
        self.number = number
        self.session = transactions.session(session)
        self.version = version
        self.can_fail = can_fail
        self.timeout_s = network.scheduler.random.choice(TIMEOUTS_S)
        self.producer_id = self.epoch = -1
        self.sequences: dict[Place, int] = {}
        self.coordinators: dict[int, int] = {}
        self.transaction: Transaction | None = None
        self.is_in_doubt = False
        """What became of one of its batches it does not know."""
        self.may_be_fenced = False
        """It may have been given an epoch that it has not heard of."""
        self.has_successor = False
        super().__init__(network, f"{session}.{number}", seen, transactions)

    def script(self) -> Script:
        try:
            yield from self._begin_life()
            while not self.is_told_to_end:
                yield from self._transact()
                if self.is_in_doubt:
                    yield from self._next_epoch()
                yield self.pause(0.0, 0.2)
        except Fenced:
            self.say("is over")
        self._succeed()

    def _succeed(self) -> None:
        """Another instance begins."""
        if self.has_successor or self.is_told_to_end:
            return
        self.has_successor = True
        version = self.random.choice((1, self.version)) if self.version == 2 else 1
        Instance(
            self.network,
            self.number + 1,
            self.seen,
            self.transactions,
            self.session.name,
            version if self.random.random() < 0.2 else self.version,
            self.can_fail,
        )

    # ── producer id ─────────────────────────────────────────────────────────────────────────────

    def _begin_life(self) -> Doing:
        self.session.instances = max(self.session.instances, self.number)
        known = dict(self.session.newest)
        answer = yield from self._init()
        self._take(answer, known)
        self.transactions.on_init(
            self.session,
            self.number,
            (self.producer_id, self.epoch),
            known.get(self.producer_id, -1),
            self.scheduler.now,
            self.timeout_s,
        )
        self.say(f"is producer {self.producer_id}, epoch {self.epoch}, {self.timeout_s} s")
        yield from self._check_offset(is_stable=True)

    def _next_epoch(self) -> Doing:
        """With the epoch of now another one is asked for (KIP-360)."""
        answer = yield from self._init()
        assert answer["producer_epoch"] > self.epoch or answer["producer_id"] != self.producer_id
        self._take(answer, self.session.newest)
        self.is_in_doubt = self.may_be_fenced = False
        self.say(f"goes on with {self.producer_id}, epoch {self.epoch}")

    def _init(self) -> Generator[Wait, None, Body]:
        body = {
            "transactional_id": self.session.name,
            "transaction_timeout_ms": int(self.timeout_s * 1000),
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

        def on_lost() -> None:
            # With an epoch: only the coordinator's memory knows the one before (KIP-360). Without:
            # it may come to the coordinator behind the next one, which another gateway has.
            self.may_be_fenced = True

        version = 5 if self.version == 2 else 3
        return (yield from self._ask(TRANSACTION, "InitProducerId", version, body, _error, on_lost))

    def _take(self, answer: Body, newest: dict[int, int]) -> None:
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.session.newest[self.producer_id] = max(
            self.epoch, self.session.newest.get(self.producer_id, -1)
        )
        self.transactions.timeouts_s.setdefault(self.producer_id, self.timeout_s)
        self.sequences.clear()

    # ── a transaction ───────────────────────────────────────────────────────────────────────────

    def _transact(self) -> Doing:
        random, seen = self.random, self.seen
        number = seen.new_producer()
        places = random.sample(seen.places, random.randrange(1, min(4, len(seen.places)) + 1))
        if random.random() < EMPTY:
            places = []
        reads = random.choice(seen.places)
        count = -1
        if random.random() < 0.3:
            count = yield from self.read_committed(reads, self.transactions.view_end(reads))
        self.transaction = one = self.transactions.begin(
            self.session, number, self.scheduler.now, self.timeout_s
        )
        if count >= 0:
            one.read[reads] = count
        self.say(f"begins {one.name} of {places}")
        is_commit = random.random() >= ABORTS
        try:
            yield from self._write(one, places)
            if random.random() < 0.5:
                yield from self._maybe_hang()
                yield from self._commit_offset(one)
            yield from self._maybe_hang()
            if one.values or one.has_offset:
                yield from self._end(one, is_commit)
            elif self.version == 2:
                # Kafka, too, refuses to end nothing while the transaction before is being ended.
                self.may_be_fenced = True
                yield from self._end(one, is_commit=False)
                self.may_be_fenced = False
        except Aborted:
            self.is_in_doubt |= self.version == 1
            try:
                yield from self._end(one, is_commit=False)
            except Aborted:
                pass  # there was nothing, or it is aborted already
        self.transaction = None
        if random.random() < 0.2:
            yield from self._check_offset(is_stable=random.random() < 0.5)

    def _maybe_hang(self) -> Doing:
        draw = self.random.random()
        if draw < HANGS and not self.is_told_to_end:
            self.say("hangs, and is replaced")
            self._succeed()
            yield self.random.uniform(0.05, 2.0)
        elif draw < HANGS + OVERTIMES:
            self.say("takes too long")
            yield self.timeout_s * self.random.uniform(0.9, 1.5)

    def _write(self, one: Transaction, places: list[Place]) -> Doing:
        """Some batches into each of the places, all at once, and again until each is there."""
        if self.version == 1 and places:
            yield from self._add(places)
        left: dict[Place, list[bytes]] = {}
        for place in places:
            left[place] = [self._batch(one, place) for _ in range(self.random.randrange(1, 4))]
        while any(left.values()):
            sent: list[tuple[Place, bytes, Connection, Pending]] = []
            for place, batches in left.items():
                if batches:
                    connection = self.connection((yield from self.leader(place)))
                    for batch in batches:
                        pending = connection.send("Produce", *self._produce(place, batch))
                        sent.append((place, batch, connection, pending))
            yield from self._take_answers(left, sent)

    def _take_answers(
        self,
        left: dict[Place, list[bytes]],
        sent: list[tuple[Place, bytes, Connection, Pending]],
    ) -> Doing:
        """All answers, whatever they are, before one of them ends the transaction."""
        bad: set[Place] = set()
        errors: list[int] = []
        for place, batch, connection, pending in sent:
            try:
                answer = yield from connection.wait(pending)
            except Disconnected:
                self.leaders.pop(place, None)
                bad.add(place)
                continue
            error = answer["responses"][0]["partition_responses"][0]["error_code"]
            if error in (0, error_codes.DUPLICATE_SEQUENCE_NUMBER):
                self._on_granted(pending.sent_at, f"Produce to {place}")
                if place not in bad:
                    left[place].remove(batch)
                continue
            bad.add(place)
            errors.append(error)
            if error != error_codes.CONCURRENT_TRANSACTIONS:
                self.leaders.pop(place, None)
        for error in errors:
            self.is_in_doubt |= self.version == 1 and error not in FENCED
            self._judge(error, "Produce")
        if bad:
            yield self.random.uniform(0.01, 0.1)

    def _batch(self, one: Transaction, place: Place) -> bytes:
        own = one.values.setdefault(place, [])
        first = sum(map(len, one.values.values()))
        values = [(one.number, first + each) for each in range(self.random.randrange(1, 4))]
        own += values
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + len(values)
        filler = bytes(self.random.choice((0, 20, 400)))
        return encode_batch(
            [(self.seen.now_ms(), None, VALUE.pack(*value) + filler, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def _produce(self, place: Place, batch: bytes) -> tuple[int, Body]:
        body = produce_body(place, batch, -1) | {"transactional_id": self.session.name}
        return (12 if self.version == 2 else 8), body

    def _who(self) -> Body:
        return {
            "transactional_id": self.session.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _add(self, places: list[Place]) -> Doing:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        rows = [{"name": topic, "partitions": each} for topic, each in by_topic.items()]
        body = {f"v3_and_below_{name}": value for name, value in self._who().items()}
        body["v3_and_below_topics"] = rows

        def error_of(answer: Body) -> int:
            topics = answer["results_by_topic_v3_and_below"]
            codes = [
                row["partition_error_code"]
                for each in topics
                for row in each["results_by_partition"]
            ]
            # Where one is refused, the others are told that they were not tried.
            real = [code for code in codes if code != error_codes.OPERATION_NOT_ATTEMPTED]
            return next(filter(None, real), 0)

        yield from self._ask(TRANSACTION, "AddPartitionsToTxn", 3, body, error_of)

    def _commit_offset(self, one: Transaction) -> Doing:
        topic, partition = self.seen.places[0]
        if self.version == 1:
            body = self._who() | {"group_id": self.session.name}
            yield from self._ask(TRANSACTION, "AddOffsetsToTxn", 3, body, _error)
        row: Body = {"partition_index": partition, "committed_offset": one.number}
        row["committed_metadata"] = ""
        body = self._who() | {
            "group_id": self.session.name,
            "topics": [{"name": topic, "partitions": [row]}],
        }
        version = 5 if self.version == 2 else 3

        def error_of(answer: Body) -> int:
            found: int = answer["topics"][0]["partitions"][0]["error_code"]
            return found

        yield from self._ask(GROUP, "TxnOffsetCommit", version, body, error_of)
        one.has_offset = True

    def _end(self, one: Transaction, is_commit: bool) -> Doing:
        body = self._who() | {"committed": is_commit}
        one.is_commit_asked |= is_commit
        losses = 0

        def on_lost() -> None:
            nonlocal losses
            losses += 1

        version = 5 if self.version == 2 else 2
        try:
            answer = yield from self._ask(TRANSACTION, "EndTxn", version, body, _error, on_lost)
        except (Fenced, Aborted):
            if not losses and is_commit:
                self.transactions.on_told(one, False)
            raise
        self.say(f"has {'committed' if is_commit else 'aborted'} {one.name}")
        self.transactions.on_told(one, is_commit)
        if self.version == 2:
            given = answer["producer_id"], answer["producer_epoch"]
            is_next = given == (self.producer_id, self.epoch + 1)
            is_new = given[0] not in self.transactions.owners and given[1] == 0
            assert is_next or is_new, f"{self.name} has epoch {self.epoch}, and gets {given}"
            self.transactions.owners.setdefault(given[0], self.session)
            self._take(answer, self.session.newest)

    def _check_offset(self, *, is_stable: bool) -> Doing:
        """What the group has, with and without what is still open."""
        topic, partition = self.seen.places[0]
        known = self.session.committed if is_stable else -1
        body = {
            "group_id": self.session.name,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
            "require_stable": is_stable,
        }

        def error_of(answer: Body) -> int:
            found: int = answer["error_code"]
            return found or answer["topics"][0]["partitions"][0]["error_code"]

        answer = yield from self._ask(GROUP, "OffsetFetch", 7, body, error_of)
        found = answer["topics"][0]["partitions"][0]["committed_offset"]
        self.transactions.on_offset(self.session, known, found)

    # ── coordinators ────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        kind: int,
        name: str,
        version: int,
        body: Body,
        error_of: Callable[[Body], int],
        on_lost: Callable[[], None] | None = None,
    ) -> Generator[Wait, None, Body]:
        """The good answer of a coordinator, from whoever it is; Fenced, Aborted."""
        while True:
            if kind not in self.coordinators:
                yield from self._find(kind)
                continue
            asked_at = self.scheduler.now
            try:
                answer = yield from self.ask(self.coordinators[kind], name, version, body)
            except Disconnected:
                if on_lost is not None:
                    on_lost()
                self.coordinators.pop(kind, None)
                yield self.random.uniform(0.01, 0.1)
                continue
            error = error_of(answer)
            if not error:
                if name != "OffsetFetch":
                    self._on_granted(asked_at, name)
                return answer
            self._judge(error, name)
            if error in (
                error_codes.NOT_COORDINATOR,
                error_codes.COORDINATOR_NOT_AVAILABLE,
                error_codes.REQUEST_TIMED_OUT,
            ):
                self.coordinators.pop(kind, None)
            if on_lost is not None and error not in (
                error_codes.CONCURRENT_TRANSACTIONS,
                error_codes.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                on_lost()  # It may be in the log of who does not coordinate any more.
            yield self.random.uniform(0.01, 0.1)

    def _find(self, kind: int) -> Doing:
        body = {"key": self.session.name, "key_type": kind}
        try:
            answer = yield from self.ask(self.any_port(), "FindCoordinator", 3, body)
        except Disconnected:
            yield self.random.uniform(0.01, 0.1)
            return
        if answer["error_code"]:
            check_retried(answer["error_code"], "FindCoordinator")
            yield 0.05
            return
        self.coordinators[kind] = answer["port"]

    def _judge(self, error: int, what: str) -> None:
        """Fenced or Aborted, or it is asked again."""
        if error in FENCED:
            if not self.may_be_fenced:
                self.transactions.on_fenced(
                    self.session, self.number, self.transaction, self.scheduler.now
                )
            raise Fenced
        if error in ABORTED:
            name = error_codes.name_of(error)
            if not self.can_fail:
                self.transactions.on_fenced(
                    self.session, self.number, self.transaction, self.scheduler.now
                )
            self.say(f"must abort: {name}")
            raise Aborted
        check_retried(error, what, AGAIN)

    def _on_granted(self, asked_at: float, what: str) -> None:
        self.transactions.on_granted(self.session, self.number, asked_at, what)


def _error(answer: Body) -> int:
    found: int = answer["error_code"]
    return found
