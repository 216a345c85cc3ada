"""The sockets of one network worker: accept, read frames, keep request order, send answers.

Rules of this file:
* Level-triggered epoll. A connection's interest is EPOLLIN while it may be read from, EPOLLOUT
  while answers wait for its socket; a held connection has no EPOLLIN.
* Workers share the listeners, and each that watches one is woken by each new connection. A worker
  whose open connections exceed the smallest count by more than one stops watching, and tells the
  others, so that somebody always watches. (EPOLLEXCLUSIVE is not for this: it wakes one worker, and
  if that one leaves the connection to the others, they are never told.)
* Order (protocol.md): consecutive Produce requests overlap, and Produce may pass a waiting Fetch
  ahead of it; every other API waits until the earlier answers are sent.
* A request that waits for a broker which is down is dropped when its client leaves: it may have
  been sent again on another connection, and served there, long before its turn comes here.
* Nothing is allocated from an announced length: buffers double as bytes arrive, and all buffers of
  a worker together are bounded; who has to wait for room, and who to pay, says `arriving.py`.
* While that memory is short, what connections without a buffer have sent is looked at before it is
  read: frames that lie whole in the kernel are taken, the rest stays there. So a small request
  needs no memory, whoever holds it.
* No time limit runs against a connection that is not read from.
"""

import os
import select
import socket
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from shmbroker import tcp
from shmbroker.errors import ProtocolFault
from shmbroker.gateway.arriving import LOOK_AGAIN_S, ArrivingMemory, first_room, next_room
from shmbroker.gateway.connection import NO_VIEW, Connection, Traffic
from shmbroker.gateway.door import Door, peer_credentials
from shmbroker.settings.listeners import PLAINTEXT, ListenerConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.tls_context import TlsContext

EPOLLIN = select.EPOLLIN
EPOLLOUT = select.EPOLLOUT
EPOLLRDHUP = select.EPOLLRDHUP
HUNG_UP = select.EPOLLHUP | select.EPOLLERR
MSG_PEEK = socket.MSG_PEEK

SCRATCH_BYTES = 256 * 1024
"""One read's worth: what a socket hands over at once on loopback is rarely more."""

TAIL_BYTES_MAX = 16 * 1024
"""So few bytes of a frame are copied in front of what comes next, in the scratch buffer."""

UNSENT_BYTES_MIN = 32 << 20
"""So many bytes of answers may wait for slow readers in any case, of all connections together."""

LARGE_FRAME_BYTES = 128 * 1024
"""From here on a frame is read into the connection's buffer at once, up to its end."""

GROWN_BYTES_MIN = 1 << 20
"""A buffer of this size grows where it is: the system moves its pages (see `processes/heap.py`)."""

ZEROS = memoryview(bytes(1 << 20))
"""What it grows by."""

SPARES_MAX = 4
SPARE_BYTES_MIN = 16 * 1024
SPARE_BYTES_MAX = 8 << 20
"""All spare buffers together; with what is held, they are no more than the usual memory."""
SPARE_TIMES_MAX = 4
"""How many times larger than what is needed a spare buffer may be, unless the connection's last
frame was as large."""

INFLIGHT_MAX = 256
"""Requests of one connection that may wait for results together."""

ANSWERS_UNSENT_MAX = 16
"""Answers that may wait unsent while more frames of the same read are started."""

ACCEPTS_PER_TURN = 16

FED_PER_TURN = 64
"""Connections that wait for memory, of which another look is taken at once."""

MAPPED = "::ffff:"
"""What stands before an IPv4 address where a socket takes both kinds."""

LOOPBACK = "127.0.0.1"
"""What limits and ACLs take for the address of who comes by a Unix socket."""

ANY_LISTENER = ListenerConfig("PLAINTEXT", PLAINTEXT, "", 0)

FRAME_HEAD = Struct(">ihhi")
"""Size, api key, api version, correlation id: the fixed start of every request."""

PLAIN_FRAME_BYTES_MAX = 1 << 20
"""For every api but Produce: as dicts, a request of short names takes a hundred times its bytes."""

TLS_HANDSHAKE = 0x1603
"""First two bytes of who speaks TLS."""

FRAME_SIZE_MIN = 10
"""Key, version, correlation id and the length of a client id."""

PRODUCE = 0
FETCH = 1

SLOW = "a slow frame while others wait for its memory"
IDLE = "idle"
STALLED = "half a frame that has not moved"
UNREAD = "it does not read its answers"
LATE = "it has not authenticated in time"


class Service(Protocol):
    """What a worker gives its event loop: the API table, and words about connections."""

    submit: dict[int, Callable[..., bool]]
    submit_of_readers: dict[int, Callable[..., bool]]
    """What another user on the control socket may ask."""

    def now(self) -> float: ...

    def may_accept(self) -> bool: ...

    def rest_s(self, listener: "Listener") -> float: ...

    def admits(self, address: str, listener: "Listener") -> bool: ...

    def holds_back(self, accepted: socket.socket, broker_id: int, address: str) -> bool: ...

    def on_opened(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None: ...

    def on_left_accepting(self) -> None: ...


class Poller(Protocol):
    """Says which descriptors are ready, as `select.epoll` does."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def modify(self, fd: int, eventmask: int, /) -> None: ...

    def unregister(self, fd: int, /) -> None: ...

    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...

    def fileno(self) -> int: ...


class Listener:
    """A listening socket and the broker id whose port it is; -1: the control socket.

    config: what the settings say of it. place: that of its broker in the family, from 0.
    """

    __slots__ = (
        "broker_id",
        "config",
        "door",
        "is_control",
        "make_connection",
        "place",
        "socket",
        "tls",
    )

    def __init__(
        self,
        listening: socket.socket,
        broker_id: int,
        is_control: bool,
        config: ListenerConfig = ANY_LISTENER,
        place: int = 0,
    ) -> None:
        self.socket = listening
        self.broker_id = broker_id
        self.is_control = is_control
        self.config = config
        self.place = place
        self.door: Door | None = None
        """Asked who comes; None: it is not asked."""
        self.make_connection: Callable[..., Connection] = Connection
        """What speaks with a client: made of its socket, this, the time, `submit`, `Traffic`."""
        self.tls: TlsContext | None = None
        """What its TLS was made of at the start, where it has one."""

    def told(self) -> tuple[str, int]:
        """Host and port that clients are told. A Unix socket's host is its path."""
        config = self.config
        if config.is_unix:
            return config.path_of(self.place), 0
        host, port = self.socket.getsockname()[:2]
        return config.told_host or host, config.told_port_of(self.place, port)

    def bound(self) -> tuple[str, int]:
        """Where it listens."""
        if self.config.is_unix:
            return self.config.path_of(self.place), 0
        host, port = self.socket.getsockname()[:2]
        return host, port


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
        self.memory: ArrivingMemory[Connection] = ArrivingMemory(buffer_bytes_max, SCRATCH_BYTES)
        self.poller = poller
        self.traffic = traffic or Traffic()
        self.held = 0
        """Times that a request found a ring full, or its broker down, and was put off."""
        self.connections: dict[int, Connection] = {}
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.listeners: dict[int, Listener] = {}
        self.is_watching = False
        self.resting: dict[int, float] = {}
        """Listeners that accept nobody until then, as too many came."""
        self.unsent_bytes_max = max(UNSENT_BYTES_MIN, buffer_bytes_max)
        self.unsent = 0
        """Bytes of memory in answers of slow readers: the sum over `slow_readers`."""
        self.slow_readers: set[Connection] = set()
        self.is_stopping = False
        self.blocked: list[Connection] = []
        self.cold: list[Connection] = []
        self._next_feed = 0.0
        self.scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self.scratch)
        self.straight: Callable[[Connection], bool] | None = None
        """Asked first where a connection can be read: see `processes.straight`."""
        self._is_peeked = False
        self._spare: list[bytearray] = []
        self._has_used_spare = False

    # ── registration ────────────────────────────────────────────────────────────────────────────

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` when the descriptor has some of `events`."""
        self.handlers[fd] = handler
        self.poller.register(fd, events)

    def add_listener(self, listener: Listener) -> None:
        listener.socket.setblocking(False)
        self.listeners[listener.socket.fileno()] = listener

    def watch_listeners(self, want: bool) -> None:
        """Take part in accepting, or leave it to the other workers."""
        if want == self.is_watching:
            return
        self.is_watching = want
        if not want:
            self.service.on_left_accepting()
        for fd in self.listeners:
            if fd in self.resting:
                continue
            if want:
                self.poller.register(fd, EPOLLIN)
            else:
                self.poller.unregister(fd)

    def _rest_listener(self, listener: Listener, rest_s: float) -> None:
        """Leave those who come in its backlog for a while."""
        fd = listener.socket.fileno()
        self.resting[fd] = self.service.now() + rest_s
        self.poller.unregister(fd)

    def wake_listeners(self, now: float) -> None:
        """Accept again where the time is over."""
        for fd, until in list(self.resting.items()):
            if now >= until:
                del self.resting[fd]
                if self.is_watching:
                    self.poller.register(fd, EPOLLIN)

    # ── one turn ────────────────────────────────────────────────────────────────────────────────

    def handle(self, events: list[tuple[int, int]]) -> None:
        """What `poller.poll` has returned."""
        connections = self.connections
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is not None:
                if mask & EPOLLOUT:
                    connection.taken_at = self.service.now()
                    self.flush(connection)
                if mask & ~EPOLLOUT and not connection.is_closed:
                    self.on_readable(connection, mask)
            elif fd in self.listeners:
                self.accept(self.listeners[fd])
            elif fd in self.handlers:
                self.handlers[fd](mask)
            # else it was closed since the poll, with others of a broker that has gone

    def accept(self, listener: Listener) -> None:
        """Take new connections, as long as this worker has no more than its share."""
        service = self.service
        for _ in range(ACCEPTS_PER_TURN):
            if not service.may_accept():
                self.watch_listeners(False)
                return
            if not listener.is_control and (rest_s := service.rest_s(listener)):
                self._rest_listener(listener, rest_s)
                return
            try:
                accepted, address = listener.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: let the others try, come back at the next balance check.
                self.watch_listeners(False)
                return
            is_local = accepted.family == socket.AF_UNIX
            client = "" if listener.is_control else LOOPBACK if is_local else plain(address[0])
            if client and service.holds_back(accepted, listener.broker_id, client):
                continue
            if not service.admits(client, listener):
                accepted.close()
                continue
            accepted.setblocking(False)
            submit = service.submit
            if listener.is_control and not _is_owner(accepted):
                submit = service.submit_of_readers
            connection = listener.make_connection(
                accepted, listener, service.now(), submit, self.traffic
            )
            if not is_local:
                tcp.tune(accepted)
                connection.client = f"{client}:{address[1]}"
                connection.host = listener.config.told_host or plain(accepted.getsockname()[0])
            elif client:
                connection.client = f"{client}:process-{peer_credentials(accepted)[0]}"
            self.connections[connection.fd] = connection
            self.poller.register(connection.fd, EPOLLIN)
            service.on_opened(connection)

    # ── bytes in ────────────────────────────────────────────────────────────────────────────────

    def on_readable(self, connection: Connection, mask: int) -> None:
        """Read once, and start every complete request that may start."""
        if connection.is_held:
            if mask & HUNG_UP or connection.is_blocked:
                self.close(connection, "the client left")
                return
            # It waits in order behind its own requests, and may have closed its sending side only.
            connection.has_left = True
            self._set_interest(connection)
            return
        if self.straight is not None and self.straight(connection):
            return
        filled = connection.filled
        buffer = connection.buffer
        if buffer is None:
            if self.memory.is_short:
                self._peek(connection)
                return
            if connection.large_bytes:
                buffer = self._hold(connection, SCRATCH_BYTES)
                view = connection.view[: connection.large_bytes]
            else:
                buffer = self.scratch
                view = self._scratch_view
        elif filled <= TAIL_BYTES_MAX and not self.memory.is_short:
            buffer = self.scratch
            view = self._scratch_view[filled:]
        else:
            if filled == len(buffer) and not self._make_room(connection):
                return
            buffer = connection.buffer or buffer
            # No further than the end of a large frame: what lies behind would have to be moved.
            view = connection.view[filled : connection.large_bytes or len(buffer)]
        try:
            count = connection.recv_into(view)
        except BlockingIOError:
            if not filled and connection.buffer is not None:
                self.give_buffer(connection)
            return
        except OSError as fault:
            self.on_broken(connection, fault)
            return
        if not self.has_received(connection, count):
            return
        if filled:
            if buffer is self.scratch:
                self._scratch_view[:filled] = connection.view[:filled]
            connection.filled = 0
        self.take_frames(connection, buffer, 0, filled + count)

    def has_received(self, connection: Connection, count: int) -> bool:
        """Note that so much was read; False where that was the end."""
        if count == 0:
            self._on_end(connection)
            return False
        self.traffic.received_bytes += count
        connection.last_active = self.service.now()
        return True

    def on_broken(self, connection: Connection, fault: OSError) -> None:
        """Its bytes can't be read: it has gone, or its TLS is at fault."""
        self.close(connection, str(fault), is_fault=isinstance(fault, ProtocolFault))

    def _on_end(self, connection: Connection) -> None:
        """The client has closed its sending side."""
        connection.collect()
        if not connection.inflight and not connection.out:
            self.close(connection, "")
            return
        # It may have closed its sending side only: it gets what it has asked for.
        connection.is_ended = connection.is_held = connection.has_left = True
        self._set_interest(connection)

    def _peek(self, connection: Connection) -> None:
        """Start what lies whole in the kernel; the rest stays there until there is memory."""
        try:
            count = connection.recv_into(self._scratch_view, 0, MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as fault:
            self.on_broken(connection, fault)
            return
        if count == 0:
            self._on_end(connection)
            return
        connection.last_active = self.service.now()
        self._is_peeked = True
        self.take_frames(connection, self.scratch, 0, count)
        self._is_peeked = False

    def take_frames(
        self, connection: Connection, buffer: bytearray, position: int, end: int
    ) -> None:
        """Start the requests whose frames lie complete in buffer[position:end]; keep the rest."""
        if connection.stranger is not None:
            self._take_of_stranger(connection, buffer, position, end)
            return
        submit = connection.submit
        inflight = connection.inflight
        frame_bytes_max = self.frame_bytes_max
        need = 0
        try:
            while end - position >= 14:
                size, api_key, api_version, correlation_id = FRAME_HEAD.unpack_from(
                    buffer, position
                )
                frame_end = position + 4 + size
                if frame_end > end or size < FRAME_SIZE_MIN:
                    if not FRAME_SIZE_MIN <= size <= frame_bytes_max:
                        raise ProtocolFault(_size_complaint(size))
                    if size > PLAIN_FRAME_BYTES_MAX and api_key != PRODUCE:
                        raise ProtocolFault(f"frame of {size} bytes for api key {api_key}")
                    need = frame_end - position
                    break
                handler = submit.get(api_key)
                if handler is None:
                    raise ProtocolFault(f"unknown api key {api_key}")
                if inflight:
                    if inflight[0].response is not None:
                        connection.collect()
                    if inflight and (
                        api_key != PRODUCE
                        or inflight[0].api_key > 1
                        or len(inflight) >= INFLIGHT_MAX
                    ):
                        connection.is_held = True
                        break
                if len(connection.out) > ANSWERS_UNSENT_MAX and not connection.wants_write:
                    self.flush(connection)
                    if connection.is_closed:
                        return
                if connection.wants_write or connection.is_cold or connection.is_muted:
                    connection.is_held = True  # until `flush` has sent all of it, or `unmute`
                    break
                if not handler(
                    connection, buffer, position + 4, frame_end, api_version, correlation_id
                ):
                    if connection.has_left:
                        self._answer_rest(connection)
                        self.close(connection, "the client left")
                        return
                    connection.is_held = connection.is_blocked = True
                    self.held += 1
                    self.blocked.append(connection)
                    break
                if connection.is_closed:
                    return
                position = frame_end
            else:
                if end - position >= 4:
                    size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
                    if not FRAME_SIZE_MIN <= size <= frame_bytes_max:
                        raise ProtocolFault(_size_complaint(size))
                    need = size + 4
        except ProtocolFault as fault:
            self._answer_rest(connection)
            self.close(connection, str(fault), is_fault=True)
            return
        self._keep_rest(connection, buffer, position, end, need)
        if connection.out or (inflight and inflight[0].response is not None):
            self.flush(connection)

    def _take_of_stranger(
        self, connection: Connection, buffer: bytearray, position: int, end: int
    ) -> None:
        """Frames of a client that has to show who it is, each after the answer to the one before.
        What comes after it has shown that, in the same read, are requests as ever."""
        need = 0
        try:
            while (stranger := connection.stranger) is not None and end - position >= 4:
                size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
                if not 0 <= size <= stranger.frame_bytes_max:
                    raise ProtocolFault(f"frame of {size} bytes before authentication")
                frame_end = position + 4 + size
                if frame_end > end:
                    need = size + 4
                    break
                stranger.on_frame(buffer, position + 4, frame_end)
                position = frame_end
                self.flush(connection)
                if connection.is_closed:
                    return
                if connection.wants_write:
                    connection.is_held = True
                if connection.is_held:
                    break
        except ProtocolFault as fault:
            self._answer_rest(connection)
            self.close(connection, str(fault), is_fault=True)
            return
        if connection.stranger is None and not connection.is_held and position < end:
            self.take_frames(connection, buffer, position, end)
            return
        self._keep_rest(connection, buffer, position, end, need)

    def _keep_rest(
        self, connection: Connection, buffer: bytearray, position: int, end: int, need: int
    ) -> None:
        """Remember what is left of the bytes read, and set the socket's interest accordingly."""
        left = end - position
        if self._is_peeked:
            self._is_peeked = False
            self._leave_rest(connection, position, left, need)
            return
        if left == 0:
            if connection.buffer is not None:
                self.give_buffer(connection)
        else:
            connection.large_bytes = need if need > LARGE_FRAME_BYTES else 0
            if buffer is self.scratch:
                if connection.room < left:
                    # There is room: nothing is read into the scratch buffer while memory is short.
                    self._hold(connection, first_room(left, need))
                connection.view[:left] = self._scratch_view[position:end]
            elif position:
                # Overlapping slices of one bytearray: go through a copy of the rest.
                connection.view[:left] = bytes(connection.view[position:end])
            connection.filled = left
            connection.arrive(left, need, position > 0, self.service.now())
        if connection.is_held:
            self._set_interest(connection)

    def _leave_rest(self, connection: Connection, taken: int, left: int, need: int) -> None:
        """Read again what was taken of the bytes peeked at, and ask for room for what is left."""
        unread = taken
        self.traffic.received_bytes += taken
        while unread:
            try:
                unread -= connection.recv_into(self._scratch_view[:unread])
            except OSError as fault:
                self.close(connection, str(fault))
                return
        if left and not connection.is_held:
            connection.large_bytes = need if need > LARGE_FRAME_BYTES else 0
            connection.arrive(left, need, taken > 0, self.service.now())
            size = first_room(left, need)
            if not self._ask(connection, size):
                self._starve(connection, size)
        elif connection.is_held:
            self._set_interest(connection)

    def resume(self, connection: Connection) -> None:
        """What held the connection may have gone: try its next frames again."""
        if (
            connection.is_closed
            or connection.is_ended
            or not connection.is_held
            or connection.is_muted
            or self.is_stopping
        ):
            return
        connection.is_held = False
        buffer, end = connection.buffer, connection.filled
        if buffer is None:
            self.on_readable(connection, 0)  # it was left in the kernel
        else:
            connection.filled = 0
            self.take_frames(connection, buffer, 0, end)
        if not connection.is_closed and not connection.is_held:
            self._set_interest(connection)

    def retry_cold(self) -> None:
        """What was on the disk may have come in."""
        cold, self.cold = self.cold, []
        for connection in cold:
            if not connection.is_closed:
                connection.is_cold = False
                self.flush(connection)
                if connection.wants_write and not connection.is_cold and not connection.is_closed:
                    self._set_interest(connection)

    def resume_blocked(self) -> None:
        """The rings may have room again."""
        blocked, self.blocked = self.blocked, []
        for connection in blocked:
            connection.is_blocked = False
            self.resume(connection)

    def mute(self, connection: Connection) -> None:
        """Read nothing more from it, and start nothing that it has sent, until `unmute`."""
        connection.is_muted = connection.is_held = True
        self._set_interest(connection)

    def unmute(self, connection: Connection) -> None:
        """It may go on."""
        connection.is_muted = False
        self.flush(connection)

    def feed_starved(self) -> None:
        """There may be memory now for those who wait for it."""
        memory = self.memory
        now = self.service.now()
        if self.is_stopping or (not memory.has_released and now < self._next_feed):
            return
        memory.has_released = False
        self._next_feed = now + LOOK_AGAIN_S
        for connection in memory.in_turn()[:FED_PER_TURN]:
            if connection.is_closed:
                continue  # it has paid for one before it
            if not connection.room:
                connection.arrived = connection.bytes_in_kernel()
            if self._ask(connection, connection.wanted):
                connection.is_held = connection.is_muted
                self._set_interest(connection)
        if memory.waiting and (given_up := memory.deadlocked()) is not None:
            self.close(given_up, SLOW, is_fault=True)

    def _set_interest(self, connection: Connection) -> None:
        if not connection.is_held:
            interest = EPOLLIN
        else:
            interest = 0 if connection.has_left else EPOLLRDHUP
        if connection.wants_write and not connection.is_cold:
            interest |= EPOLLOUT
        self.poller.modify(connection.fd, interest)
        if connection.is_unread and not connection.is_held:
            connection.come_back()

    # ── buffers ─────────────────────────────────────────────────────────────────────────────────

    def _hold(self, connection: Connection, size: int) -> bytearray:
        """Give the connection a buffer of its own with at least `size` bytes, or a larger one."""
        buffer = connection.buffer
        if buffer is None:
            buffer = self._new_buffer(size, connection.large_bytes)
            view = memoryview(buffer)
        elif len(buffer) >= GROWN_BYTES_MIN:
            connection.view.release()
            while len(buffer) < size:
                buffer += ZEROS[: size - len(buffer)]
            view = memoryview(buffer)
        else:
            old, buffer = buffer, self._new_buffer(size, connection.large_bytes)
            view = memoryview(buffer)
            filled = connection.filled
            view[:filled] = connection.view[:filled]
            connection.view.release()
            self._keep_spare(old)
        memory = self.memory
        memory.hold(connection, len(buffer), self.service.now())
        if memory.is_short or memory.used + sum(map(len, self._spare)) > memory.usual:
            self._spare.clear()
        connection.buffer = buffer
        connection.view = view
        return buffer

    def _ask(self, connection: Connection, size: int) -> bool:
        """Give it so much room, or all that its frame needs, if it may have it now."""
        memory = self.memory
        now = self.service.now()
        allowed = memory.allowed(connection, size, now)
        if not allowed:
            for payer in memory.payers(connection, size, now):
                self.close(payer, SLOW, is_fault=True)
            allowed = memory.allowed(connection, size, now)
        if allowed:
            self._hold(connection, allowed)
        return allowed > 0

    def _make_room(self, connection: Connection) -> bool:
        """Double the buffer of a frame that is still arriving; False if it has to wait."""
        size = next_room(connection.room, connection.whole)
        if self._ask(connection, size):
            return True
        self._starve(connection, size)
        return False

    def give_buffer(self, connection: Connection) -> None:
        """It needs its buffer no more."""
        buffer = connection.buffer
        assert buffer is not None
        connection.view.release()
        connection.view, connection.buffer = NO_VIEW, None
        self.memory.release(connection)
        self._keep_spare(buffer)

    def _new_buffer(self, size: int, usual_size: int) -> bytearray:
        """A spare one if there is one of about that size: its pages are there already."""
        if size >= SPARE_BYTES_MIN:
            most = max(SPARE_TIMES_MAX * size, usual_size)
            if self.memory.used + most > self.memory.usual:
                most = size
            for which in reversed(range(len(self._spare))):
                if size <= len(self._spare[which]) <= most:
                    self._has_used_spare = True
                    return self._spare.pop(which)
        return bytearray(size)

    def _keep_spare(self, buffer: bytearray) -> None:
        """Keep the largest few buffers."""
        if not SPARE_BYTES_MIN <= len(buffer) <= SPARE_BYTES_MAX or self.memory.is_short:
            return
        spare = self._spare
        spare.append(buffer)
        spare.sort(key=len)
        most = min(SPARE_BYTES_MAX, self.memory.usual - self.memory.used)
        while len(spare) > SPARES_MAX or sum(map(len, spare)) > most:
            del spare[0]

    def _starve(self, connection: Connection, size: int) -> None:
        """Stop reading from it until there is so much room for it."""
        connection.is_held = True
        self.memory.wait(connection, size, self.service.now())
        self._set_interest(connection)

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
                self._set_interest(connection)
                if done:
                    self._count_unsent(connection, 0)
            if not done:
                self._count_unsent(connection, connection.unsent_memory())
                return
        if connection.is_ended:
            if not connection.inflight and not connection.out:
                self.close(connection, "")
            return
        if connection.is_held and not connection.is_blocked and not connection.waits_since:
            inflight = connection.inflight
            if not inflight or inflight[0].api_key <= 1:
                self.resume(connection)

    def end(self, connection: Connection) -> None:
        """Send what is answered, then end it."""
        connection.is_ended = connection.is_held = True
        self.flush(connection)

    def _count_unsent(self, connection: Connection, unsent: int) -> None:
        """So much of its answers waits for its socket. Where it is too much of all together,
        whoever has taken nothing for the longest time is given up."""
        self.unsent += unsent - connection.unsent
        connection.unsent = unsent
        if unsent:
            self.slow_readers.add(connection)
        else:
            self.slow_readers.discard(connection)
        while self.unsent > self.unsent_bytes_max and len(self.slow_readers) > 1:
            self.close(min(self.slow_readers, key=_taken_at), UNREAD, is_fault=True)

    def stop_reading(self) -> None:
        """Start no request any more; those in flight are still answered."""
        self.watch_listeners(False)
        for connection in self.blocked:
            connection.is_blocked = False
        self.blocked.clear()
        self.is_stopping = True
        for connection in self.connections.values():
            connection.is_held = True
            self._set_interest(connection)

    def _answer_rest(self, connection: Connection) -> None:
        """Send what is complete, once, to a client whose connection is about to be closed."""
        connection.collect()
        if connection.out and not connection.wants_write:
            try:
                connection.send()
            except OSError:
                pass

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
        connection.filled = 0
        if connection.buffer is not None:
            self.give_buffer(connection)
        else:
            self.memory.release(connection)
        connection.out.clear()
        if connection.unsent:
            self._count_unsent(connection, 0)
        self.service.on_closed(connection, reason, is_fault)
        connection.inflight.clear()
        connection.close()

    # ── from one process to another ─────────────────────────────────────────────────────────────

    def let_go(self, connection: Connection) -> None:
        """Serve it no more, though it goes on elsewhere. Only where nothing of it is in flight or
        unsent; what was read of it and not taken has whoever takes it over."""
        del self.connections[connection.fd]
        self.poller.unregister(connection.fd)
        connection.filled = 0
        if connection.buffer is not None:
            self.give_buffer(connection)
        else:
            self.memory.release(connection)

    def take_over(self, connection: Connection, left: bytes) -> None:
        """Serve a connection of another process from here on; `left`: what it has read already."""
        self.connections[connection.fd] = connection
        self.poller.register(connection.fd, EPOLLIN)
        if left:
            self._hold(connection, len(left))
            connection.view[: len(left)] = left
            connection.filled = len(left)
            connection.arrive(len(left), len(left), True, self.service.now())
            connection.is_held = True
            self.resume(connection)

    def sweep(self, now: float, idle_s: float, partial_s: float) -> None:
        """Close connections that are idle (no negative `idle_s`: none is), that take nothing of
        their answers for as long, whose half frame has not moved for too long, or who have not
        shown in time who they are."""
        if not self._has_used_spare:
            self._spare.clear()
        self._has_used_spare = False
        for connection in list(self.connections.values()):
            is_read = not connection.is_held
            if now >= connection.deadline:
                self.close(connection, LATE, is_fault=True)
            elif connection.wants_write and 0 <= idle_s < now - connection.taken_at:
                if not connection.is_cold:
                    self.close(connection, UNREAD, is_fault=True)
            elif is_read and connection.room and now - connection.moved > partial_s:
                self.close(connection, f"{STALLED} for over {partial_s:.0f} s", is_fault=True)
            elif not is_read or connection.inflight or connection.out:
                connection.last_active = now
            elif 0 <= idle_s < now - connection.last_active:
                self.close(connection, IDLE)


def _taken_at(connection: Connection) -> float:
    return connection.taken_at


def plain(address: str) -> str:
    """An IPv4 address as such, though it came in by a socket of both kinds."""
    return address.removeprefix(MAPPED)


def _size_complaint(size: int) -> str:
    if size >> 16 == TLS_HANDSHAKE:
        return (
            "it speaks TLS, but this listener does not: the client needs the port of one that does"
        )
    return f"frame of {size} bytes"


def _is_owner(accepted: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of our user, or of root, as it was
    when it connected. Everybody else whom the socket's mode lets in only reads."""
    return peer_credentials(accepted)[1] in (0, os.geteuid())
