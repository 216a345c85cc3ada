"""READ in a fetch session of many partitions: what it costs goes by what has changed, not by all
that the client asks for.

   gateway (`gateway.fetch_session`)                  here, one ReadSession
   READ, new: all partitions            ──►  rows     what is asked, by place
   READ: those that have changed        ──►  ready    places to look at, in the order of reading
                                        ◄──  READ_DONE: what the look has found

Rules of this file:
* A row is ready, or it has nothing to tell: no records, no error, and the client knows its high
  watermark and its log start offset. The session attends to the keys of rows with nothing to tell,
  between its READs, too: whatever changes makes them ready.
* Ready rows are looked at in their order, until the answer is full. One that gave records goes to
  the end; it stays ready until the client names another offset.
* What nobody is told of (that retention took segments) is looked for once in REFRESH_MS, and where
  a READ waits in vain: then all rows are ready.
* One READ of a session waits. Another one takes its place: the gateway refuses the first.
* Bounded by the rows of all sessions: who has not read for the longest time goes, and names all
  its partitions when it comes back.
"""

from __future__ import annotations

from shmbroker.broker.read import DelayedRead
from shmbroker.broker.read_lookup import P_KEY, P_KNOWN, P_OFFSET, S_PARTITION, ReadRefusal
from shmbroker.ipc.operation_layout import (
    READ_COMMITTED,
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
    UNKNOWN_SESSION,
)
from shmbroker.purgatory import DelayedOperation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from shmbroker.broker.read import Reader
    from shmbroker.broker.read_lookup import AskedRow, Result
    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition

ROWS_MAX = 50_000
"""Rows of all sessions together, of some 700 bytes."""
REFRESH_MS = 1000
"""The time between two looks at all rows of a session."""


class SessionRead(DelayedRead):
    """A READ of a session. It is watched by no keys: the session tells it what has changed."""

    __slots__ = ("session",)

    def __init__(
        self, session: ReadSession, peer: Peer, token: int, limits: tuple[int, int, int]
    ) -> None:
        """limits: fewest bytes, most bytes, isolation level."""
        super().__init__(session.reader, peer, token, session.rows, *limits)
        self.session = session

    def keys(self) -> list[bytes]:
        self.session.attend_ready()
        return []

    def look(self) -> tuple[list[Result], int, bool]:
        return self.session.look(self)

    def note_nothing(self, results: list[Result]) -> None:
        """Rows that are ready are looked at again."""

    def finish(self, results: list[Result]) -> None:
        super().finish(results)
        self.session.on_told(self, results)

    def on_expire(self) -> None:
        self.session.refresh()
        super().on_expire()


class ReadSession(DelayedOperation):
    """What one session asks for, and what of it has something to tell."""

    __slots__ = ("_isolation", "_places", "_ready", "_refreshed_ms", "read", "reader", "rows")

    def __init__(self, reader: Reader, rows: list[AskedRow]) -> None:
        super().__init__()
        self.reader = reader
        self.rows = rows
        self._places: dict[Hashable, int] = {row[P_KEY]: place for place, row in enumerate(rows)}
        self._ready: dict[int, None] = {}
        self._isolation = 0
        self.read: SessionRead | None = None
        """The last one, which may wait yet."""
        self.refresh()

    def refresh(self) -> None:
        """Look at all rows the next time, those first that are ready now."""
        self._refreshed_ms = self.reader.steady_ms()
        self._ready.update(dict.fromkeys(range(len(self.rows))))

    def change(self, rows: Iterable[AskedRow]) -> bool:
        """Take what a READ says; False where it names what the session has not."""
        for row in rows:
            place = self._places.get(row[P_KEY])
            if place is None:
                return False
            self.rows[place] = row
            self._ready[place] = None
        return True

    def start(self, read: SessionRead, max_wait_ms: int) -> None:
        """Answer it now, or as soon as there is enough."""
        self.read = read
        if read.isolation != self._isolation:
            self._isolation = read.isolation
            self.refresh()
        elif self.reader.steady_ms() - self._refreshed_ms >= REFRESH_MS:
            self.refresh()
        self.reader.begin(read, max_wait_ms)

    def stop(self) -> None:
        """The READ that waits gets nothing."""
        read = self.read
        if read is not None and not read.is_done:
            self.reader.purgatory.cancel(read)
            self.reader.answer(read, [])

    def end(self) -> None:
        """Forget the session."""
        self.is_done = True
        self.stop()
        self.reader.purgatory.leave(self, self._places)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def look(self, read: SessionRead) -> tuple[list[Result], int, bool]:
        """Look as `DelayedRead.look` does, at the rows that are ready."""
        rows = self.rows
        read.looked = looked = list(self._ready)
        lookup = self.reader.lookup
        if not looked:
            lookup.is_cold = lookup.is_tier_awaited = False
            return [], 0, False
        found, total, must_answer = lookup.look_up(
            read, map(rows.__getitem__, looked), len(looked) < len(rows)
        )
        for place, result in zip(looked, found, strict=False):
            if not isinstance(result, tuple) and self._is_at_end(rows[place], result):
                known = result.high_watermark, result.log.log_start_offset
                if rows[place][P_KNOWN:] == known:
                    self._settle(place)
        return found, total, must_answer

    def on_told(self, read: SessionRead, results: list[Result]) -> None:
        """The client knows now what was found."""
        rows, ready = self.rows, self._ready
        for place, result in zip(read.looked, results, strict=False):
            row, known = rows[place], (-1, -1)
            if not isinstance(result, tuple):
                known = result.high_watermark, result.log.log_start_offset
                if place in ready and self._is_at_end(row, result):
                    self._settle(place)
            elif type(result) is not ReadRefusal:
                partition = result[S_PARTITION]
                known = partition.high_watermark, partition.log.log_start_offset
                del ready[place]
                ready[place] = None
            if row[P_KNOWN:] != known:
                rows[place] = (*row[:P_KNOWN], *known)

    def attend_ready(self) -> None:
        """A READ waits: what is ready does not suffice, but more may come to the same rows."""
        rows = self.rows
        self.reader.purgatory.attend(self, [rows[place][P_KEY] for place in self._ready])

    def try_complete_of(self, keys: Sequence[Hashable]) -> bool:
        """Look at partitions that have changed: now if a READ waits, else with the next one."""
        read = self.read
        for key in keys:
            self._ready[self._places[key]] = None
        if read is None or read.is_done:
            self.reader.purgatory.leave(self, keys)
        elif read.try_complete():
            self.reader.purgatory.cancel(read)
        return False

    def _is_at_end(self, row: AskedRow, partition: Partition) -> bool:
        """Whether there is nothing for it to read."""
        if self._isolation == READ_COMMITTED:
            return row[P_OFFSET] >= partition.last_stable_offset
        return row[P_OFFSET] >= partition.high_watermark

    def _settle(self, place: int) -> None:
        """Note that a row has nothing to tell until something changes."""
        del self._ready[place]
        self.reader.purgatory.attend(self, (self.rows[place][P_KEY],))


class ReadSessions:
    """The sessions of all gateways, the one that has not read for the longest time first."""

    def __init__(self, reader: Reader, rows_max: int = ROWS_MAX) -> None:
        self._reader = reader
        self._rows_max = rows_max
        self._sessions: dict[tuple[int, int], ReadSession] = {}
        """The sessions, by the slot of a gateway and the number of its session."""
        self._row_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def on_read(self, peer: Peer, data: memoryview, index: int) -> None:
        """One READ entry with READ_FLAG_SESSION."""
        token, max_wait_ms, *limits, flags, count, number = READ_HEAD.unpack_from(data, index)
        at = index + READ_HEAD.size
        rows: list[AskedRow] = []
        if count:
            view = data[at : at + READ_PARTITION.size * count]
            rows = list(READ_PARTITION.iter_unpack(view))
            view.release()
        key = peer.slot, number
        session = self._sessions.get(key)
        if session is not None:
            session.stop()
        if flags & READ_FLAG_NEW:
            if session is not None:
                self._end(key)
            if not rows:
                return
            session = self._make(key, rows)
        elif session is None or not session.change(rows):
            peer.send(READ_DONE, READ_DONE_HEAD.pack(token, UNKNOWN_SESSION, 0))
            return
        else:
            del self._sessions[key]
            self._sessions[key] = session
        min_bytes, max_bytes, isolation = limits
        read = SessionRead(session, peer, token, (min_bytes, max_bytes, isolation))
        session.start(read, max_wait_ms)

    def drop_peer(self, slot: int) -> None:
        """Drop the sessions of a dead gateway."""
        for key in list(self._sessions):
            if key[0] == slot:
                self._end(key)

    def _make(self, key: tuple[int, int], rows: list[AskedRow]) -> ReadSession:
        while self._sessions and self._row_count + len(rows) > self._rows_max:
            self._end(next(iter(self._sessions)))
        self._row_count += len(rows)
        session = self._sessions[key] = ReadSession(self._reader, rows)
        return session

    def _end(self, key: tuple[int, int]) -> None:
        session = self._sessions.pop(key)
        self._row_count -= len(session.rows)
        session.end()
