"""What a guest asks for on a straight way, without the rings between its gateway and the broker.

Produces go from its socket into the segment, and their answers back, in one call of a compiled
kernel for all guests that can be read (`kernels/straight.c`). Requests for offsets that
came before are answered as `groups.known_requests` remembers them.

   events ──► StraightWay.take ──► serve_ready: recv, known bytes, append or answer, send
                    │ ├──► acks that wait for the replicas ──► APPENDED, as of any other
                    │ what is something else, with the bytes that were read
                    └──► take_frames ──► StraightOffsets, or the usual way

Rules of this file:
* A Produce goes this way where `ProduceApi.submit`, `AppendRuns.take_plain` and
  `ProduceApi.on_appended` would do the same, and only for this: frames that repeat the bytes of one
  before them, of a connection of which nothing else is under way, but for batches that went this
  way and wait for the replicas. All else goes the usual way, with the bytes that were read.
* Who waits for the records of a partition is told of small batches before their acks go out.
* A client that got offsets by their known bytes is read as one that asks for them again.
* Nothing goes this way on an older image than that of the family.
* The log is here: the gateway and the broker of this process have one thread.
* The guest's mark is set before it is read (`gateway.lending`).
"""

from __future__ import annotations

from shmbroker.gateway.poller import EPOLLIN
from shmbroker.gateway.produce import begin_known
from shmbroker.guests.brokers_image import is_current
from shmbroker.guests.straight_reads import GuestRead
from shmbroker.kernels import native
from shmbroker.wire.api_keys import OFFSET_COMMIT, OFFSET_FETCH, PRODUCE
from shmbroker.wire.frame import response_frame, skip_request_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker
    from shmbroker.gateway.connection import Connection, Meaning, StraightRow
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.guests import Guests
    from shmbroker.gateway.produce_known import FastProduce
    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition

    Waiting = tuple[int, int, Meaning, Partition, int, int]
    """A batch whose ack waits: row, correlation id, what its bytes mean, partition, base offset,
    end offset."""

SIZE_BYTES = 4
FILLED_MAX = 64 << 10
"""The most bytes of a frame that are copied in front of what comes next."""
STORED_MAX = 64
"""Batches of one connection whose acks wait: with more of them it goes the usual way."""

serve_ready = None if native is None else native.serve_ready


class StraightWay:
    """What is asked first when connections of a guest gateway can be read."""

    def __init__(self, gateway: Gateway, broker: Broker, guests: Guests, answers: Peer) -> None:
        """answers: the gateway, as the broker reaches it."""
        self._gateway = gateway
        self._answers = answers
        self._loop = gateway.loop
        self._recall = gateway.produce.known.recall
        self._broker = broker
        self._guests = guests
        self._monotonic = gateway.loop.traffic.monotonic
        self._ready: list[Connection] = []
        """The connections of the rows that the kernel serves."""
        self._known: list[FastProduce] = []
        """What bytes of theirs mean that the kernel was told of."""
        self.served = 0
        """Reads of which all was answered."""

    def take(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Read whom the kernel can read; the other events."""
        loop = self._loop
        if (
            serve_ready is None
            or loop.memory.is_short
            or not is_current(self._gateway, self._broker)
        ):
            return events
        connections = loop.connections
        others: list[tuple[int, int]] = []
        ready: list[Connection] = []
        rows: list[StraightRow] = []
        behind: list[Connection] = []
        rows_behind: list[StraightRow] = []
        good: FastProduce | None = None
        for event in events:
            connection = connections.get(event[0])
            if (
                connection is None
                or event[1] != EPOLLIN
                or connection.is_held
                or connection.out
                or connection.filled > FILLED_MAX
                or connection.large_bytes
                or connection.unanswered
                or connection.throttle is not None
            ):
                others.append(event)
                continue
            fast, row = connection.fast_produce, connection.straight_row
            inflight = connection.inflight
            if inflight and not waits_for_replicas(connection):
                others.append(event)
                continue
            if fast is None:
                if not connection.asked_offsets_at or inflight:
                    others.append(event)
                    continue
                if row is None:
                    row = connection.straight_row = self._guests.row_of(connection, None)
            else:
                if fast is not good:
                    if not self._may_append(fast):
                        others.append(event)
                        continue
                    good = fast
                if row is None or row[1] is not fast.straight:
                    row = connection.straight_row = self._guests.row_of(connection, fast.straight)
            if filled := connection.filled:
                loop.scratch[:filled] = connection.view[:filled]
                self._serve_all([connection], [row], filled, not inflight)
            elif inflight:
                behind.append(connection)
                rows_behind.append(row)
            else:
                ready.append(connection)
                rows.append(row)
        if rows:
            self._serve_all(ready, rows, 0, True)
        if rows_behind:
            self._serve_all(behind, rows_behind, 0, False)
        return others

    def _serve_all(
        self, ready: list[Connection], rows: list[StraightRow], filled: int, may_answer: bool
    ) -> None:
        """Serve these; of the first, so many bytes are in the scratch buffer already. may_answer:
        False: they wait for acks of replicas."""
        broker, loop, guests = self._broker, self._loop, self._guests
        self._ready = ready
        self._known.clear()
        appender, traffic = broker.appender, loop.traffic
        broker.look_at_clocks()
        now, first, count = self._monotonic(), 0, len(rows)
        while first < count:
            (
                reached, end, at, batches, size, commits, fetches, received, sent, unsent, large,
                waiting, awaited,
            ) = serve_ready(  # type: ignore[misc]
                rows, first, loop.scratch, filled, broker.partitions, appender.appended,
                broker.now_ms(), self._meaning_of, broker.executor.known, broker.purgatory.watched,
                may_answer,
            )  # fmt: skip
            traffic.received_bytes += received
            traffic.sent_bytes += sent
            appender.batches_in += batches
            appender.bytes_in += size
            then = self._monotonic()
            for api_key, times in (
                (PRODUCE, batches),
                (OFFSET_COMMIT, commits),
                (OFFSET_FETCH, fetches),
            ):
                if times:
                    traffic.answered.append((api_key, now, api_key, now, times, then))
            is_told = True
            if awaited:
                rest = loop.scratch[at:end] if reached < count and at < end else b""
                is_told = self._tell_waiting()
                if rest:
                    loop.scratch[at:end] = rest  # what a flush starts may read there
            for which, left in unsent:
                connection = ready[which]
                guests.mark(connection)
                connection.out.append(left)
                if not is_told:
                    self._gateway.touched.add(connection)  # behind the broker's turn
                elif which != reached:
                    loop.flush(connection)
            for which in range(first, reached):
                ready[which].last_active = now
            if filled and reached:
                ready[0].filled = filled = 0
                loop.buffers.give(ready[0])
            for which in large:
                self._note_large(ready[which], now)
            if waiting:
                self._let_wait(waiting, now)
            self.served += reached - first
            if reached < count:
                self._read_usually(ready[reached], at, end)
            first = reached + 1

    def _meaning_of(self, which: int, at: int) -> Meaning | None:
        """What the bytes in scratch[at:], of a row of the kernel's, mean if they are known, too."""
        connection = self._ready[which]
        if connection.fast_produce is not None:
            self._known.append(connection.fast_produce)  # batches of these bytes may wait
        fast = self._recall(connection, self._loop.scratch, at + SIZE_BYTES)
        return fast.straight if fast is not None and self._may_append(fast) else None

    def _let_wait(self, waiting: list[Waiting], now: float) -> None:
        """Have the acks of these batches wait for the replicas."""
        gateway, broker, guests = self._gateway, self._broker, self._guests
        acks = []
        for which, correlation_id, meaning, partition, base_offset, end_offset in waiting:
            connection = self._ready[which]
            fast = connection.fast_produce
            if fast is None or fast.straight is not meaning:
                fast = next(each for each in self._known if each.straight is meaning)
            connection.last_active = now
            gateway.token = token = gateway.token + 1
            begin_known(gateway, connection, fast, token, correlation_id)
            guests.mark(connection)
            acks.append((token, partition, base_offset, end_offset, fast.timeout_ms))
        broker.acks.let_wait(self._answers, acks)

    def _read_usually(self, connection: Connection, at: int, end: int) -> None:
        """Something else has come of it, or nothing could be read."""
        if connection.is_closed:  # by one before it
            return
        self._guests.mark(connection)
        if end < 0:
            self._loop.on_readable(connection, EPOLLIN)
            return
        connection.last_active = self._gateway.now()
        connection.asked_offsets_at = 0.0
        connection.filled = 0
        if connection.out:
            self._loop.flush(connection)
        self._take_rest(connection, at, end)

    def _take_rest(self, connection: Connection, at: int, end: int) -> None:
        """Have scratch[at:end] go the usual way."""
        if connection.is_closed:
            return
        self._loop.take_frames(connection, self._loop.scratch, at, end)
        if connection.inflight or connection.is_held:
            self._guests.note_usual(connection)

    def _tell_waiting(self) -> bool:
        """Answer guests that wait at the ends of the logs, which have moved; False where others
        wait there, too: the broker tells them in its turn."""
        broker = self._broker
        watched = broker.purgatory.watched
        told: list[Connection] = []
        is_told = True
        for partition in broker.appender.appended:
            for operation in tuple(watched.get(partition.key, ())):
                if type(operation) is GuestRead and operation.has_answered_with_end(partition):
                    told.append(operation.request.connection)
                else:
                    is_told = False
        for connection in told:  # what a flush starts may append
            self._loop.flush(connection)
        return is_told

    def _note_large(self, connection: Connection, now: float) -> None:
        """Count what it has sent as usual: it goes home when this process has too little rest."""
        connection.asked_large_at = now
        self._guests.note_usual(connection)

    def _may_append(self, fast: FastProduce) -> bool:
        """Whether what the bytes meant holds: `take` has seen that the image is current."""
        gateway, broker = self._gateway, self._broker
        return (
            fast.straight is not None
            and (fast.image is gateway.image or fast.holds(gateway.image))
            and not broker.appender.is_disk_low
            and not gateway.loop.memory.is_short
        )


def waits_for_replicas(connection: Connection) -> bool:
    """Whether the last of what is under way is a batch that is stored, so that what comes next may
    be, too."""
    inflight = connection.inflight
    last = inflight[-1]
    return last.api_key == PRODUCE and last.token > 0 and len(inflight) < STORED_MAX


class StraightOffsets:
    """What starts a guest's OffsetCommit or OffsetFetch."""

    def __init__(
        self, gateway: Gateway, broker: Broker, guests: Guests, api_key: int, flexible_from: int
    ) -> None:
        self._gateway = gateway
        self._broker = broker
        self._guests = guests
        self._api_key = api_key
        self._flexible_from = flexible_from
        self._usual = gateway.tables.submits[api_key]

    def __call__(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Answer it if its bytes are known; as `submit` else."""
        gateway, broker, api_key = self._gateway, self._broker, self._api_key
        if connection.throttle is None and is_current(gateway, broker):
            _, at = skip_request_header(buffer, start, end, version >= self._flexible_from)
            broker.look_at_clocks()
            body = broker.executor.known(api_key, version, bytes(buffer[at:end]))
            if body is not None:
                connection.out.append(response_frame(api_key, version, correlation_id, body))
                now, then = gateway.now(), connection.traffic.monotonic()
                connection.answered.append((api_key, now, api_key, now, 1, then))
                connection.asked_offsets_at = now
                self._guests.went_straight(connection)
                return True
        return self._usual(connection, buffer, start, end, version, correlation_id)
