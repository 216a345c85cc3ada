"""The sockets of one network worker: read frames, keep request order, send answers.

   handle ──► on_readable ──► take_frames ──► submit … ──► flush
                   ▲ what waits for its turn, or for room, is resumed ┘

A frame goes the whole way through this file: a call more would be one for each request. What lies
beside that way is elsewhere:

    EventLoop           reads, keeps the order, sends, closes
    ├─ .acceptor        who takes a new connection                     accepting.py
    ├─ .buffers         room for parts of frames, and who waits        frame_buffers.py
    └─ .slow_readers    answers that are not read                      slow_readers.py

    peeking             reads while memory is short                    ends      time limits
    stranger_frames     takes frames before authentication             poller    what is waited for

Rules of this file:
* Order, as in Kafka's protocol: answers of one connection come in the order of its requests.
  Consecutive Produce requests overlap, and a Produce starts while a Fetch ahead of it waits; every
  other API starts when the earlier answers are complete.
* A request that waits for a broker which is down is dropped when its client leaves: it may have
  been sent again on another connection, and served there, long before its turn comes here.
* All connections are read into one scratch buffer, but for large frames. A part of a frame that is
  left there goes to a buffer of the connection's own.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from shmbroker.errors import BrokerGoneFault, ProtocolFault
from shmbroker.gateway.accepting import Acceptor, Reception
from shmbroker.gateway.connection import Traffic
from shmbroker.gateway.ends import IDLE, SLOW, UNREAD, has_all, overdue
from shmbroker.gateway.frame_buffers import FrameBuffers
from shmbroker.gateway.peeking import leave_rest, peek
from shmbroker.gateway.poller import EPOLLIN, EPOLLOUT, HUNG_UP, set_interest
from shmbroker.gateway.slow_readers import SlowReaders
from shmbroker.gateway.stranger_frames import size_complaint, take_of_stranger
from shmbroker.wire.api_keys import FETCH, PRODUCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.poller import Poller

SCRATCH_BYTES = 256 * 1024
"""One read's worth: what a socket hands over at once on loopback is rarely more."""

TAIL_BYTES_MAX = 16 * 1024
"""The most bytes of a frame that are copied in front of what comes next, in the scratch buffer."""

INFLIGHT_MAX = 256
"""Requests of one connection that may wait for results together."""

PASSABLE = (PRODUCE, FETCH)
"""What the first request in flight is while a Produce may start behind it."""

ANSWERS_UNSENT_MAX = 16
"""Answers that may wait unsent while more frames of the same read are started."""

FRAME_HEAD = Struct(">ihhi")
"""Size, api key, api version, correlation id: the fixed start of every request."""

PLAIN_FRAME_BYTES_MAX = 1 << 20
"""The largest frame of every API but Produce: as dicts, a request of short names takes a hundred
times its bytes."""

FRAME_SIZE_MIN = 10
"""Key, version, correlation id and the length of a client id."""


class Service(Reception, Protocol):
    """What a worker gives its event loop: the API table, and words about connections."""

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None: ...


class EventLoop:
    """All connections of this worker; its owner waits on `poller`, hands the events to `handle`."""

    def __init__(
        self,
        service: Service,
        frame_bytes_max: int,
        buffer_bytes_max: int,
        poller: Poller,
        traffic: Traffic | None = None,
    ) -> None:
        self.service = service
        self.frame_bytes_max = frame_bytes_max
        self.poller = poller
        self.traffic = traffic or Traffic()
        self.connections: dict[int, Connection] = {}
        self.handlers: dict[int, Callable[[], None]] = {}
        """What is called for the descriptors of others, by descriptor: see `watch`."""
        self.acceptor = Acceptor(service, poller, self.traffic, self.connections)
        self.buffers = FrameBuffers(
            buffer_bytes_max, SCRATCH_BYTES, poller, service.now, self._give_up
        )
        self.memory = self.buffers.memory
        self.slow_readers = SlowReaders(buffer_bytes_max)
        self.held = 0
        """Times that a request found a ring full, or its broker down, and was put off."""
        self.is_stopping = False
        self.blocked: list[Connection] = []
        self.cold: list[Connection] = []
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.is_peeked = False
        """What `take_frames` is given still lies in the kernel."""

    def watch(self, fd: int, events: int, handler: Callable[[], None]) -> None:
        """Call `handler` when the descriptor has some of `events`."""
        self.handlers[fd] = handler
        self.poller.register(fd, events)

    # ── one turn ────────────────────────────────────────────────────────────────────────────────

    def handle(self, events: list[tuple[int, int]]) -> None:
        """Handle what `poller.poll` has returned."""
        connections = self.connections
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is not None:
                if mask & EPOLLOUT:
                    connection.taken_at = self.service.now()
                    self.flush(connection)
                if mask & ~EPOLLOUT and not connection.is_closed:
                    self.on_readable(connection, mask)
            elif fd in self.acceptor.listeners:
                self.acceptor.accept(self.acceptor.listeners[fd])
            elif fd in self.handlers:
                self.handlers[fd]()
            # else it was closed since the poll, with others of a broker that has gone

    # ── bytes in ────────────────────────────────────────────────────────────────────────────────

    def on_readable(self, connection: Connection, mask: int) -> None:
        """Read once, and start every complete request that may start."""
        if connection.is_held:
            if mask & HUNG_UP or connection.is_blocked:
                self.close(connection, "the client left")
                return
            # It waits in order behind its own requests, and may have closed its sending side only.
            connection.has_left = True
            set_interest(self.poller, connection)
            self._end_muted(connection)
            return
        filled = connection.filled
        buffer = connection.buffer
        if buffer is None:
            if self.memory.is_short:
                peek(self, connection)
                return
            if connection.large_bytes:
                buffer = self.buffers.hold(connection, SCRATCH_BYTES)
                view = connection.view[: connection.large_bytes]
            else:
                buffer = self.scratch
                view = self.scratch_view
        elif filled <= TAIL_BYTES_MAX and not self.memory.is_short:
            buffer = self.scratch
            view = self.scratch_view[filled:]
        else:
            if filled == len(buffer) and not self.buffers.grow(connection):
                return
            buffer = connection.buffer or buffer
            # No further than the end of a large frame: what lies behind would have to be moved.
            view = connection.view[filled : connection.large_bytes or len(buffer)]
        try:
            count = connection.recv_into(view)
        except BlockingIOError:
            if not filled and connection.buffer is not None:
                self.buffers.give(connection)
            return
        except OSError as fault:
            self.on_broken(connection, fault)
            return
        if not self.has_received(connection, count):
            return
        if filled:
            if buffer is self.scratch:
                self.scratch_view[:filled] = connection.view[:filled]
            connection.filled = 0
        self.take_frames(connection, buffer, 0, filled + count)

    def has_received(self, connection: Connection, count: int) -> bool:
        """Note that so much was read; False where that was the end."""
        if count == 0:
            self.on_end(connection)
            return False
        self.traffic.received_bytes += count
        connection.last_active = self.service.now()
        return True

    def on_broken(self, connection: Connection, fault: OSError) -> None:
        """Close a connection whose bytes can't be read: it has gone, or its TLS is at fault."""
        self.close(connection, str(fault), is_fault=isinstance(fault, ProtocolFault))

    def on_end(self, connection: Connection) -> None:
        """The client has closed its sending side."""
        connection.collect()
        if not connection.inflight and not connection.out:
            self.close(connection, "")
            return
        # It may have closed its sending side only: it gets what it has asked for.
        connection.is_ended = connection.is_held = connection.has_left = True
        set_interest(self.poller, connection)

    def take_frames(
        self, connection: Connection, buffer: bytearray, position: int, end: int
    ) -> None:
        """Start the requests whose frames lie complete in buffer[position:end]; keep the rest. They
        end where

           A  a frame is not complete, or not one that may be
           B  a request must wait for the answers to those before it
           C  answers wait for the client to take them, or the connection is muted
           D  what serves its API has no room
        """
        if connection.stranger is not None:
            take_of_stranger(self, connection, buffer, position, end)
            return
        submits = connection.submits
        inflight = connection.inflight
        need = 0
        try:
            while end - position >= 14:
                size, api_key, api_version, correlation_id = FRAME_HEAD.unpack_from(
                    buffer, position
                )
                frame_end = position + 4 + size
                if frame_end > end or size < FRAME_SIZE_MIN:  # A
                    need = self._frame_bytes(size, api_key)
                    break
                submit = submits.get(api_key)
                if submit is None:
                    raise ProtocolFault(f"unknown api key {api_key}")
                if inflight:  # B
                    if inflight[0].response is not None:
                        connection.collect()
                    if inflight and (
                        api_key != PRODUCE
                        or inflight[0].api_key not in PASSABLE
                        or len(inflight) >= INFLIGHT_MAX
                    ):
                        connection.is_held = True
                        break
                # C
                if len(connection.out) > ANSWERS_UNSENT_MAX and not connection.wants_write:
                    self.flush(connection)
                    if connection.is_closed:
                        return
                if connection.wants_write or connection.is_cold or connection.is_muted:
                    connection.is_held = True  # until `flush` has sent all of it, or `unmute`
                    break
                # D
                if not submit(
                    connection, buffer, position + 4, frame_end, api_version, correlation_id
                ):
                    if connection.has_left and not connection.is_held:
                        self.close_answered(connection, "the client left")
                        return
                    self._put_off(connection)
                    break
                if connection.is_closed:
                    return
                position = frame_end
            else:
                if end - position >= 4:  # A, and its API key is not here yet
                    size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
                    need = self._frame_bytes(size, PRODUCE)
        except ProtocolFault as fault:
            self.close_answered(connection, str(fault), is_fault=True)
            return
        except BrokerGoneFault as fault:
            self.close_answered(connection, str(fault))
            return
        self.keep_rest(connection, buffer, position, end, need)
        if connection.out or (inflight and inflight[0].response is not None):
            self.flush(connection)

    def _frame_bytes(self, size: int, api_key: int) -> int:
        """The bytes of a frame that is not complete, by its head; ProtocolFault: it may not be."""
        if not FRAME_SIZE_MIN <= size <= self.frame_bytes_max:
            raise ProtocolFault(size_complaint(size))
        if size > PLAIN_FRAME_BYTES_MAX and api_key != PRODUCE:
            raise ProtocolFault(f"frame of {size} bytes for api key {api_key}")
        return size + 4

    def _put_off(self, connection: Connection) -> None:
        """Try the next frame again when there may be room for it. One that is held already goes to
        another process, and the frame with it."""
        if not connection.is_held:
            connection.is_held = connection.is_blocked = True
            self.held += 1
            self.blocked.append(connection)

    def keep_rest(
        self, connection: Connection, buffer: bytearray, position: int, end: int, need: int
    ) -> None:
        """Remember what is left of the bytes read, and set the socket's interest accordingly.
        need: bytes of the frame that it is a part of, as far as that is known."""
        if self.is_peeked:
            self.is_peeked = False
            leave_rest(self, connection, position, end - position, need)
            return
        if position == end:
            if connection.buffer is not None:
                self.buffers.give(connection)
        else:
            view = self.scratch_view if buffer is self.scratch else connection.view
            self.buffers.keep(connection, view, position, end, need)
        if connection.is_held:
            set_interest(self.poller, connection)

    def resume(self, connection: Connection) -> None:
        """What held the connection may have gone: try its next frames again."""
        if connection.is_closed or connection.is_ended or not connection.is_held:
            return
        if connection.is_muted or self.is_stopping:
            self._end_muted(connection)
            return
        connection.is_held = False
        buffer, end = connection.buffer, connection.filled
        if buffer is None:
            self.on_readable(connection, 0)  # it was left in the kernel
        else:
            connection.filled = 0
            self.take_frames(connection, buffer, 0, end)
        if not connection.is_closed and not connection.is_held:
            set_interest(self.poller, connection)

    def retry_cold(self) -> None:
        """What was on the disk may have come in."""
        cold, self.cold = self.cold, []
        for connection in cold:
            if not connection.is_closed:
                connection.is_cold = False
                self.flush(connection)
                if connection.wants_write and not connection.is_cold and not connection.is_closed:
                    set_interest(self.poller, connection)

    def resume_blocked(self) -> None:
        """The rings may have room again."""
        blocked, self.blocked = self.blocked, []
        for connection in blocked:
            connection.is_blocked = False
            self.resume(connection)

    def mute(self, connection: Connection) -> None:
        """Read nothing more from it, and start nothing that it has sent, until `unmute`."""
        connection.is_muted = connection.is_held = True
        set_interest(self.poller, connection)

    def _end_muted(self, connection: Connection) -> None:
        """Close a muted connection whose client has left, where nothing is to be done for it."""
        if connection.has_left and connection.is_muted and has_all(connection):
            self.close(connection, "the client left")

    def unmute(self, connection: Connection) -> None:
        """Read from a muted connection again."""
        connection.is_muted = False
        self.flush(connection)

    def feed_starved(self) -> None:
        """Read on for those who wait for memory, as there may be some now."""
        if not self.is_stopping:
            self.buffers.feed()

    def _give_up(self, connection: Connection) -> None:
        self.close(connection, SLOW, is_fault=True)

    # ── answers out ─────────────────────────────────────────────────────────────────────────────

    def flush(self, connection: Connection) -> None:
        """Send the answers that are complete, in order; start what they held back."""
        was_cold = connection.is_cold
        if connection.is_closed or was_cold:
            return
        connection.collect()
        if connection.out:
            try:
                done = connection.send()
            except OSError as fault:
                self.close(connection, str(fault))
                return
            if connection.is_cold:
                # The socket would take it, so EPOLLOUT tells nothing: the worker tries again.
                self.cold.append(connection)
            if done == connection.wants_write or connection.is_cold:
                if not connection.wants_write:
                    # More than its socket holds is nothing that is asked of a guest.
                    connection.taken_at = connection.asked_other_at = self.service.now()
                connection.wants_write = not done
                set_interest(self.poller, connection)
                if done:
                    self.slow_readers.note(connection, 0)
            if not done:
                self.slow_readers.note(connection, connection.unsent_memory())
                while (given_up := self.slow_readers.too_much()) is not None:
                    self.close(given_up, UNREAD, is_fault=True)
                return
        if connection.is_ended:
            if not connection.inflight and not connection.out:
                self.close(connection, "")
            return
        if connection.is_held and not connection.is_blocked and not connection.waits_since:
            inflight = connection.inflight
            if not inflight or inflight[0].api_key in PASSABLE:
                self.resume(connection)

    def end(self, connection: Connection) -> None:
        """Send what is answered, then end it."""
        connection.is_ended = connection.is_held = True
        self.flush(connection)

    def stop_reading(self) -> None:
        """Start no request any more; those in flight are still answered."""
        self.acceptor.watch(False)
        for connection in self.blocked:
            connection.is_blocked = False
        self.blocked.clear()
        self.is_stopping = True
        for connection in self.connections.values():
            connection.is_held = True
            set_interest(self.poller, connection)

    def close_answered(self, connection: Connection, reason: str, is_fault: bool = False) -> None:
        """End it, but send what is complete before, once."""
        connection.collect()
        if connection.out and not connection.wants_write:
            try:
                connection.send()
            except OSError:
                pass
        self.close(connection, reason, is_fault)

    def close(self, connection: Connection, reason: str, is_fault: bool = False) -> None:
        """End a connection; its requests in flight are forgotten by the service."""
        if connection.is_closed:
            return
        connection.is_closed = True
        self.connections.pop(connection.fd, None)
        try:
            self.poller.unregister(connection.fd)
        except (OSError, ValueError):
            pass
        self.buffers.forget(connection)
        connection.out.clear()
        if connection.unsent:
            self.slow_readers.note(connection, 0)
        self.service.on_closed(connection, reason, is_fault)
        connection.inflight.clear()
        connection.close()

    # ── from one process to another ─────────────────────────────────────────────────────────────

    def let_go(self, connection: Connection) -> None:
        """Serve it no more, though it goes on elsewhere. Only where nothing of it is in flight or
        unsent; what takes it over has what was read of it and not taken."""
        del self.connections[connection.fd]
        self.poller.unregister(connection.fd)
        self.buffers.forget(connection)

    def take_over(self, connection: Connection, left: bytes) -> None:
        """Serve a connection of another process from here on; `left`: what it has read already."""
        self.connections[connection.fd] = connection
        self.poller.register(connection.fd, EPOLLIN)
        if left:
            self.buffers.hold(connection, len(left))
            connection.view[: len(left)] = left
            connection.filled = len(left)
            connection.arrive(len(left), len(left), True, self.service.now())
            connection.is_held = True
            self.resume(connection)

    # ── time limits ─────────────────────────────────────────────────────────────────────────────

    def sweep(self, now: float, idle_s: float, partial_s: float) -> None:
        """Close the connections that are `overdue`."""
        self.buffers.spare.sweep()
        for connection in list(self.connections.values()):
            if reason := overdue(connection, now, idle_s, partial_s):
                self.close(connection, reason, is_fault=reason != IDLE)
