"""What transactional clients of a simulated family have seen, and what Kafka promises of it. It
goes on where `history` ends.

Looked at as soon as a client learns it:

    L  what read_committed gives of some offsets is the same whoever reads them, whenever
    M  the last stable offset that readers are told never goes back; it is not beyond the high
       watermark, and no record is given beyond it *
    N  nothing is given of a transaction whose commit nobody has asked for, or that was aborted
    O  up to the last stable offset, all of a transaction's records in a partition are there or
       none, unless another one is open in between: then what lies behind its begin is not stable
    P  an instance is fenced by a successor, or as its transaction has taken too long; not before
    Q  what it asks for once its successor has begun is refused
    R  a producer id is of one transactional id, and its epoch goes up with each instance
    S  a group has no offset of a transaction whose commit nobody has asked for, and none from
       before one that is committed
    T  no transaction stays open for longer than its time-out, where nothing fails

* What a Fetch tells beside its records may be behind, where a leader is new (KIP-207).

At the end, when everything works again (`check_end`):

    U  what is committed is there, in every partition, and the group's offset with it; of any other
       transaction there is all or nothing
    V  no anomalies (`list_append`)
"""

from __future__ import annotations

from tests.simulation.family import list_append
from tests.simulation.family.history import Place, Value

FENCED_EARLY_S = 0.003
"""A coordinator counts whole milliseconds."""
ENDED_LATE_S = 1.0
"""Where nothing fails: so much longer than its time-out may a transaction be open."""


class Transaction:
    """One that a client has begun."""

    def __init__(self, session: Session, number: int, began: float, timeout_s: float) -> None:
        self.session = session
        self.number = number
        """The producer of its values, and the offset that it commits for the session's group."""
        self.began = began
        self.timeout_s = timeout_s
        self.values: dict[Place, list[Value]] = {}
        self.read: dict[Place, int] = {}
        """How many records it had read of a partition, from its start on."""
        self.has_offset = False
        self.may_be_aged = False
        """The wall clock has jumped since, and others may coordinate it now."""
        self.is_commit_asked = False
        self.is_committed: bool | None = None
        """As its client was told."""

    @property
    def name(self) -> str:
        return f"{self.session.name}/{self.number}"


class Session:
    """A transactional id: its instances come one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instances = 0
        """How many have asked for their producer id."""
        self.begun: dict[int, float] = {}
        """When each had it."""
        self.newest: dict[int, int] = {}
        """Epochs by producer id."""
        self.transactions: list[Transaction] = []
        self.committed = -1
        """The newest offset of those that are committed."""


class TransactionsSeen:
    """The transactional history of one seed."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.owners: dict[int, Session] = {}
        """By producer id."""
        self.timeouts_s: dict[int, float] = {}
        """The longest of each producer id."""
        self.by_number: dict[int, Transaction] = {}
        self._view: dict[Place, list[tuple[int, Value]]] = {}
        self._view_end: dict[Place, int] = {}
        self._stable: dict[Place, int] = {}
        self.reads: list[tuple[Place, int]] = []
        """How many committed records there were from a partition's start to the end of then."""
        self._open: dict[tuple[Place, int, int], float] = {}
        self.fenced = 0
        self.has_jumped = False

    # ── producers ───────────────────────────────────────────────────────────────────────────────

    def session(self, name: str) -> Session:
        return self.sessions.setdefault(name, Session(name))

    def begin(self, session: Session, number: int, now: float, timeout_s: float) -> Transaction:
        made = Transaction(session, number, now, timeout_s)
        session.transactions.append(made)
        self.by_number[number] = made
        return made

    def on_init(
        self,
        session: Session,
        instance: int,
        given: tuple[int, int],
        known: int,
        now: float,
        timeout_s: float,
    ) -> None:
        """An instance has its producer id and epoch; known: the epoch of before it had asked."""
        producer_id, epoch = given
        owner = self.owners.setdefault(producer_id, session)
        assert owner is session, f"{producer_id} is of {owner.name} and {session.name}"  # R
        assert epoch > known, f"{session.name} gets epoch {epoch} after {known}"  # R
        session.newest[producer_id] = max(epoch, session.newest.get(producer_id, -1))
        session.begun.setdefault(instance, now)
        self.timeouts_s[producer_id] = max(timeout_s, self.timeouts_s.get(producer_id, 0.0))

    def on_fenced(
        self, session: Session, instance: int, transaction: Transaction | None, now: float
    ) -> None:
        """An instance was told so, or that its transaction was aborted."""
        self.fenced += 1
        if session.instances > instance:
            return
        is_late = (
            transaction is not None
            and now - transaction.began > transaction.timeout_s - FENCED_EARLY_S
        )
        # A coordinator that takes over knows an open transaction's age by the wall clock alone.
        is_aged = transaction is not None and transaction.may_be_aged
        assert is_late or is_aged, f"{session.name} is fenced, and nobody has come after it"  # P

    def on_granted(self, session: Session, instance: int, asked_at: float, what: str) -> None:
        """An instance was not refused."""
        for other, begun in session.begun.items():
            assert other <= instance or asked_at <= begun, (
                f"{session.name}: {what} is granted though {other} has come after {instance}"
            )  # Q

    def on_told(self, transaction: Transaction, is_committed: bool) -> None:
        """How it ended."""
        transaction.is_committed = is_committed
        if not is_committed:
            return
        if transaction.has_offset:
            session = transaction.session
            session.committed = max(session.committed, transaction.number)

    def on_offset(self, session: Session, known: int, found: int) -> None:
        """What OffsetFetch gave; known: the least that it had to give when it was asked."""
        assert found >= known, f"{session.name}: offset {known} was committed, now {found}"  # S
        if found >= 0:
            self._check_visible(found, f"the offset of {session.name}")  # S

    def on_jump(self) -> None:
        """The wall clock jumps where another broker may take over."""
        self.has_jumped = True
        for one in self.by_number.values():
            one.may_be_aged = True

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def stable(self, place: Place) -> int:
        """The highest last stable offset that anybody was told: to be asked before a request."""
        return self._stable.get(place, 0)

    def on_ends(self, place: Place, stable: int, high: int) -> None:
        """A Fetch has told both."""
        assert stable <= high, f"{place}: {stable} is stable beyond {high}"  # M
        self._stable[place] = max(stable, self.stable(place))

    def on_stable(self, place: Place, known: int, told: int) -> None:
        """ListOffsets has told the end of what is committed."""
        assert told >= known, (
            f"{place}: the last stable offset goes back from {known} to {told}"
        )  # M
        self._stable[place] = max(told, self.stable(place))

    def view_end(self, place: Place) -> int:
        """Up to where somebody has read with read_committed."""
        return self._view_end.get(place, 0)

    def on_read(
        self, place: Place, offset: int, end: int, found: list[tuple[int, Value]], stable: int
    ) -> None:
        """The committed records of [offset, end)."""
        view, view_end = self._view.setdefault(place, []), self.view_end(place)
        assert offset <= view_end, f"{place} is read from {offset}, where nobody has been"
        is_beyond = end > max(stable, offset)
        assert not is_beyond, f"{place} is given to {end}, and stable to {stable}"  # M
        known = [row for row in view if offset <= row[0] < end]
        again = [row for row in found if row[0] < view_end]
        assert known == again, f"{place} from {offset} to {end}: {known}, then {again}"  # L
        for at, (number, _) in found[len(again) :]:
            self._check_visible(number, f"{place} at {at}")  # N
        view += found[len(again) :]
        self._view_end[place] = max(end, view_end)

    def _check_visible(self, number: int, where: str) -> None:
        transaction = self.by_number.get(number)
        if transaction is not None:
            assert transaction.is_commit_asked, f"{where} is of {transaction.name}, which is open"
            assert transaction.is_committed is not False, (
                f"{where} is of {transaction.name}, which was aborted"
            )

    def on_read_to_end(self, place: Place, end: int, high: int) -> int:
        """A reader has come to the last stable offset of now; how many records there are from the
        partition's start on. -1: part of a transaction is not stable yet. high: the
        high watermark, told with `end`."""
        view = self._view.get(place, [])
        values = {value for at, value in view if at < end}
        for number in {number for number, _ in values}:
            transaction = self.by_number.get(number)
            if transaction is not None:
                missing = set(transaction.values[place]) - values
                if missing and end < high:
                    return -1
                assert not missing, f"{place} to {end} lacks {missing} of {transaction.name}"  # O
        count = len(values)
        self.reads.append((place, count))
        return count

    # ── open transactions ───────────────────────────────────────────────────────────────────────

    def on_open(self, found: list[tuple[Place, int, int]], now: float, well_since: float) -> None:
        """(partition, producer id, first offset) of all that are open now where they are led."""
        self._open = {each: self._open.get(each, now) for each in found}
        for (place, producer_id, first_offset), since in self._open.items():
            timeout_s = self.timeouts_s.get(producer_id)
            if timeout_s is not None:
                # Who takes over after a jump may begin to count again.
                times = 2 if self.has_jumped else 1
                late_s = now - max(since, well_since) - timeout_s * times
                assert late_s < ENDED_LATE_S, (
                    f"{place}: the transaction of {producer_id} from {first_offset} on has been "
                    f"open for {now - since:.2f} s, and its time-out is {timeout_s} s"
                )  # T

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def check_end(self, offsets: dict[str, int]) -> None:
        """All partitions were read to their ends with read_committed; offsets: of the sessions'
        groups."""
        visible = {place: {value for _, value in rows} for place, rows in self._view.items()}
        for session in self.sessions.values():
            newest = -1
            for one in session.transactions:
                self._check_whole(one, visible, offsets[session.name])
                if one.has_offset and one.is_committed:
                    newest = one.number
            assert offsets[session.name] == newest, (
                f"the offset of {session.name} is {offsets[session.name]}, not {newest}"
            )  # U
        found = list_append.anomalies(self._history())
        assert not found, "; ".join(found)  # V

    def _check_whole(self, one: Transaction, visible: dict[Place, set[Value]], offset: int) -> None:
        """All of it is there or nothing; from here on it is known which."""
        values = {(place, value) for place, own in one.values.items() for value in own}
        missing = {(place, value) for place, value in values if value not in visible.get(place, ())}
        if one.is_committed is None:
            one.is_committed = missing != values if values else offset == one.number
        elif not one.is_committed:
            assert missing == values, f"{one.name} was aborted, and is there"  # U
        if one.is_committed:
            assert not missing, f"{one.name} is committed, and lacks {missing}"  # U

    def _history(self) -> list[list_append.Transaction]:
        found = [
            list_append.Transaction(
                one.name,
                one.session.name,
                dict(one.values),
                {place: self._values(place, count) for place, count in one.read.items()},
                one.is_committed,
            )
            for session in self.sessions.values()
            for one in session.transactions
        ]
        for number, (place, count) in enumerate(self.reads):
            read = {place: self._values(place, count)}
            found.append(list_append.Transaction(f"read {number}", "", {}, read, True))
        return found

    def _values(self, place: Place, count: int) -> list[Value]:
        """Of transactional producers, among the first `count` that were read."""
        rows = self._view.get(place, ())[:count]
        return [value for _, value in rows if value[0] in self.by_number]
