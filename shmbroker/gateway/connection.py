"""One client connection: its bytes in, its requests in flight, its answers out.

Rules of this file:
* A connection belongs to the broker id of the port it came in on.
* Bytes in: complete frames are taken from the worker's scratch buffer without being kept; only the
  rest of an incomplete or held-back frame lives in a buffer of the connection's own, which grows
  with what has *arrived*, never to what a frame announces.
* A connection is *held* while its next frame may not start yet (order, a full ring), or there is
  no memory for it, or it is over a quota (*muted*): then it is not read from, so the kernel's
  buffer and the client's window bound what it can pile up.
* Answers leave in request order: only the head of `inflight` is ever moved to `out`.
"""

from __future__ import annotations

import socket
from array import array
from collections import deque
from collections.abc import Callable, Hashable
from fcntl import ioctl
from os import sendfile
from termios import FIONREAD

from shmbroker.gateway.arriving import Sender
from shmbroker.ipc.passed_files import INLINE_BYTES, ColdSlice, FileSlice
from shmbroker.security.acls import ANONYMOUS
from shmbroker.security.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.door import Stranger
    from shmbroker.gateway.fetch_ahead import ToldSlices
    from shmbroker.gateway.fetch_session import FetchSession
    from shmbroker.gateway.inflight import Bytes, Part, Request
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.ports import Submits
    from shmbroker.gateway.produce_known import FastProduce
    from shmbroker.gateway.quotas import Throttle

MSG_MORE = socket.MSG_MORE

LENT_BYTES_MAX = 2 << 20
"""The most bytes that a lent client sends or gets at once (`gateway.lending`)."""

SENDFILE_BYTES_MAX = 1 << 20
"""The most bytes for one call: what is looked at beforehand is its first and its last byte."""

GATHERED_BYTES = 256 << 10
"""The size from which answers are sent in parts: what is joined is copied, and stays in memory
until it is taken."""

SEND_BYTES_PER_TURN = 4 << 20
"""What one connection may send before the others of its worker have their turn."""


NO_VIEW = memoryview(bytearray())

NEVER_S = float("inf")


Meaning = tuple[bytes, bytes, bytes, bytes, bytes, bool, bool]
"""What the known bytes of a Produce mean, for `kernels/straight.c`: its header's first bytes, those
from the client's name to the batch, an APPEND_CONSTANT, the answer's begin and end; whether the
version is flexible, and whether it answers with the log's start."""

StraightRow = tuple[int, Meaning | None, memoryview, int]
"""Descriptor, the meaning of its Produces (None: it asks for offsets), marks, which is its own."""

Answered = tuple[int, float, int, float, int, float]
"""What one connection has got together: the API of the first and when it was read, the same of the
last, how many there are, and when. Only the first may be of another API than the rest."""


class Traffic:
    """What all connections of a gateway count together."""

    __slots__ = ("answered", "monotonic", "received_bytes", "sent_bytes", "sent_file_bytes")

    def __init__(self, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        """monotonic: the clock by which answers are measured."""
        self.monotonic = monotonic
        self.received_bytes = 0
        self.sent_bytes = 0
        """File slices included."""
        self.sent_file_bytes = 0
        self.answered: list[Answered] = []
        """What was answered and is not measured yet."""


class Connection(Sender):
    """State of one accepted socket; `listener` says whose port it is."""

    is_unread: bool = False
    """Bytes of it have left the kernel and wait elsewhere: see `come_back`. With TLS alone."""

    __slots__ = (
        "ahead",
        "answered",
        "asked_large_at",
        "asked_offsets_at",
        "asked_other_at",
        "buffer",
        "changed_session_at",
        "client",
        "deadline",
        "fast_ends",
        "fast_produce",
        "fd",
        "filled",
        "has_left",
        "has_standing",
        "host",
        "inflight",
        "is_by_token",
        "is_closed",
        "is_cold",
        "is_ended",
        "is_muted",
        "large_bytes",
        "last_active",
        "listener",
        "opened_at",
        "out",
        "packed_identity",
        "principal",
        "recv_into",
        "scope",
        "session",
        "socket",
        "straight_row",
        "stranger",
        "submits",
        "taken_at",
        "throttle",
        "traffic",
        "unanswered",
        "unsent",
        "view",
        "wants_write",
    )

    def __init__(
        self,
        accepted: socket.socket,
        listener: Listener,
        now: float,
        submits: Submits,
        traffic: Traffic | None = None,
    ) -> None:
        super().__init__()
        self.traffic = traffic = traffic or Traffic()
        self.answered = traffic.answered
        self.socket = accepted
        self.recv_into: Callable[..., int] = accepted.recv_into
        """The socket's `recv_into`; with TLS, what it brings is decrypted."""
        self.fd = accepted.fileno()
        self.listener = listener
        self.inflight: deque[Request] = deque()
        self.out: deque[Part] = deque()
        self.unanswered = 0
        """How many of its requests are under way that get no answer (acks=0), so that they are not
        in flight; but an error closes it."""
        self.buffer: bytearray | None = None
        self.view = NO_VIEW
        self.filled = 0
        self.is_closed = False
        self.is_cold = False
        self.has_left = False
        """The client has closed its sending side, or all; what it sent before may be unread."""
        self.is_ended = False
        """Nothing more will come in; it is closed when its last answer has gone out."""
        self.is_muted = False
        """Whether it is over a quota, and not read from for a while."""
        self.throttle: Throttle | None = None
        """What charges it, where there are client quotas."""
        self.wants_write = False
        self.large_bytes = 0
        self.fast_produce: FastProduce | None = None
        """What the bytes of its last Produce mean, where they are known."""
        self.fast_ends: list[int] = []
        self.last_active = now
        self.opened_at = now
        """When it was accepted: a client that was active since has asked for something."""
        self.deadline = NEVER_S
        """When it is closed: it has not shown by then who it is."""
        self.unsent = 0
        """Bytes of memory in answers that its socket did not take."""
        self.taken_at = now
        """When its socket took some last, while it does not take all."""
        self.client = ""
        self.host = ""
        self.principal = ANONYMOUS
        """The principal that it has shown to be, as far as it has."""
        self.is_by_token = False
        """Whether a delegation token showed it."""
        self.packed_identity = b""
        """`identity` as requests to other processes take it along, once one has; a change of
        that empties this."""
        self.stranger: Stranger | None = None
        """What takes its frames while it has to show who it is."""
        self.scope: Hashable = listener.broker_id
        """The scope within which requests with the same bytes mean the same."""
        self.asked_offsets_at = 0.0
        """When it has committed or fetched offsets last; as a guest: by known bytes, with nothing
        else since."""
        self.asked_other_at = 0.0
        """When it asked last for what is not asked of a guest: see `gateway.lending`."""
        self.has_standing = False
        """Whether it had a standing answer, and the kernel has met nothing else of it since."""
        self.asked_large_at = float("-inf")
        """When it produced last what the kernel of `guests.straight` does not take."""
        self.ahead: ToldSlices | None = None
        """What its next fetches are answered with."""
        self.straight_row: StraightRow | None = None
        """What `kernels/straight.c` is told of it, where it is a guest and goes that way."""
        self.session: FetchSession | None = None
        """The fetch session that it used last."""
        self.changed_session_at = float("-inf")
        """When it used that one while it had another."""
        self.submits = submits
        """What it may ask for now, by API key, as said by what accepts the connection, and by what
        authenticates it."""

    @property
    def address(self) -> str:
        """The client's address without its port; "" for the control socket."""
        return self.client.rpartition(":")[0]

    @property
    def identity(self) -> Identity:
        """The identity of its client, for other processes."""
        listener = self.listener
        name = "" if listener.is_control else listener.config.name
        return Identity(self.principal, self.address, name, self.is_by_token)

    def peer_name(self) -> str:
        """Where the client is, for log lines."""
        return self.client or "local client"

    def bytes_in_kernel(self) -> int:
        """How much has come that was not read yet."""
        count = array("i", [0])
        ioctl(self.fd, FIONREAD, count)
        return count[0]

    def come_back(self) -> None:
        """Have it read again soon, though its socket may bring nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Close its socket."""
        self.socket.close()
        self.recv_into = self.socket.recv_into  # What read it may hold this: a cycle.

    def collect(self) -> bool:
        """Move the answers that are complete and next in order to `out`; True if there were any."""
        inflight = self.inflight
        if not inflight or inflight[0].response is None:
            return False
        if self.throttle is not None:
            self.throttle.charge(inflight)
        first = request = inflight.popleft()
        if first.response:
            self.out.extend(first.response)
        count = 1
        while inflight and inflight[0].response is not None:
            request = inflight.popleft()
            if request.response:
                self.out.extend(request.response)
            count += 1
        self.answered.append(
            (
                first.api_key,
                first.received,
                request.api_key,
                request.received,
                count,
                self.traffic.monotonic(),
            )
        )
        return True

    def send(self) -> bool:
        """Send what `out` holds, up to a turn's share. True if all of it went.

        Raises OSError where the peer is gone.
        """
        out = self.out
        budget = SEND_BYTES_PER_TURN
        while out:
            part = out[0]
            if type(part) is FileSlice and not self._has_read_front(part):
                try:
                    sent = self._send_file(part)
                except BlockingIOError:
                    return False
                except ColdSlice:
                    self.is_cold = True
                    return False
                part.position += sent
                part.length -= sent
                if part.length == 0:
                    out.popleft()
                elif sent < SENDFILE_BYTES_MAX:
                    return False  # the socket took what it could
            else:
                data: Bytes
                if len(out) == 1:
                    data = out[0]  # type: ignore[assignment]  # a slice was read
                    flags = 0
                    out.clear()
                else:
                    data, flags = self._gather()
                try:
                    sent = self.socket.send(data, flags)
                except BlockingIOError:
                    out.appendleft(data)
                    return False
                self.traffic.sent_bytes += sent
                if sent < len(data):
                    out.appendleft(memoryview(data)[sent:])
            budget -= sent
            if budget <= 0 and out:
                return False
        return True

    def unsent_bytes(self) -> int:
        """What `out` holds."""
        return sum(part.length if type(part) is FileSlice else len(part) for part in self.out)

    def unsent_memory(self) -> int:
        """What of it is in memory, not in files."""
        return sum(len(part) for part in self.out if type(part) is not FileSlice)

    def _send_file(self, part: FileSlice) -> int:
        length = min(part.length, SENDFILE_BYTES_MAX)
        part.warm(length)
        sent = sendfile(self.fd, part.file.fd, part.position, length)
        if sent == 0:
            raise ConnectionResetError("a slice ended before its length")
        traffic = self.traffic
        traffic.sent_bytes += sent
        traffic.sent_file_bytes += sent
        return sent

    def _has_read_front(self, part: FileSlice) -> bool:
        """Read the slice in front, if it is small and in the page cache: then it is bytes."""
        if part.length > INLINE_BYTES or (data := part.try_read()) is None:
            return False
        self.out[0] = data
        return True

    def _gather(self) -> tuple[Bytes, int]:
        """The parts in front, joined up to the next large file slice, and the flags to send them
        with. The first is no slice any more."""
        out = self.out
        parts: list[Bytes] = [out.popleft()]  # type: ignore[list-item]
        size = len(parts[0])
        flags = 0
        while out:
            front = out[0]
            if type(front) is FileSlice:
                if size > GATHERED_BYTES or not self._has_read_front(front):
                    flags = MSG_MORE
                    break
            elif size > GATHERED_BYTES:
                break
            part: Bytes = out.popleft()  # type: ignore[assignment]  # a slice was read
            size += len(part)
            parts.append(part)
        return (parts[0] if len(parts) == 1 else b"".join(parts)), flags
