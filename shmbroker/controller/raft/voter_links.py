"""The voters' connections: Unix sockets that carry Kafka's own frames.

    controller 1 ──► DATA/controller-2.sock   its requests to controller 2, and their answers
                 ◄── DATA/controller-1.sock   the requests of controller 2

* Each voter listens on a socket of its own and asks the others over connections that it opens when
  it has something to ask. One request at a time on each (`quorum` sees to that), so no frame waits
  behind another for long, and a voter that hangs fills nobody's memory.
* A connection that ends fails the request on it at once: who is dead is not waited for.
* Who asks says who it is by its client id, `controller-2`. The socket is the user's own (0600).
* What does not parse ends its connection and is logged; nobody else notices.

Bound and connected by a short path through /proc/self/fd: 108 bytes are all that an address holds.
"""

from __future__ import annotations

import logging
import os
import select
import socket

from shmbroker import logs
from shmbroker.controller.raft.quorum_messages import (
    KEYS,
    Answer,
    AnswerCame,
    EpochAnswer,
    NoAnswer,
    QuorumFetchAnswer,
    Request,
    RequestCame,
    SnapshotAnswer,
    VoteAnswer,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from shmbroker.errors import ProtocolFault
from shmbroker.wire.frame import (
    FRAME_SIZE,
    frame_size,
    parse_request_header,
    parse_response_header,
    request_frame,
    response_frame,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.controller.raft.quorum_messages import News

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX = 80 << 20
"""A fetch answer: one batch of Kafka's largest, or some MiB of smaller ones."""
RECEIVE_BYTES = 1 << 18
BACKLOG = 16
ANSWERS = (VoteAnswer, EpochAnswer, QuorumFetchAnswer, SnapshotAnswer)


def socket_name(node_id: int) -> str:
    """The file that a voter listens on, in the data directory."""
    return f"controller-{node_id}.sock"


class _Link:
    """One connection: bytes that came and are no frame yet, bytes that wait to be sent."""

    __slots__ = ("asked", "is_blocked", "is_closed", "received", "socket", "to_send", "voter")

    def __init__(self, connection: socket.socket, voter: int) -> None:
        self.socket = connection
        self.voter = voter
        """The voter that it reaches; 0 until it has said so."""
        self.received = bytearray()
        self.to_send = bytearray()
        self.asked: tuple[int, int, int] | None = None
        """The request on a connection to ask on that has no answer yet: request id, api key,
        version."""
        self.is_blocked = False
        """The socket has no room for what is to be sent."""
        self.is_closed = False


class VoterLinks:
    """`send` what the quorum says, `take` what it is told, `wait` for more."""

    def __init__(
        self, data_directory: str, node_id: int, others: Iterable[int], cluster_id: str
    ) -> None:
        """Listen. OSError if the directory can't hold the socket."""
        self.node_id = node_id
        self.others = frozenset(others)
        self.cluster_id = cluster_id
        self.epoll = select.epoll()
        self._directory_fd = os.open(data_directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path = self._path(node_id)
        if os.path.lexists(path):
            os.unlink(path)
        self._listening.bind(path)
        os.chmod(path, 0o600)
        self._listening.listen(BACKLOG)
        self.epoll.register(self._listening, select.EPOLLIN)
        self._links: dict[int, _Link] = {}
        """All, by descriptor."""
        self._to_ask: dict[int, _Link] = {}
        """The links to ask on, by voter."""
        self._told: list[News] = []

    def close(self) -> None:
        for link in list(self._links.values()):
            self._end(link)
        self._listening.close()
        self.epoll.close()
        os.close(self._directory_fd)

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to give though no socket has."""
        return bool(self._told)

    def wait(self, timeout_s: float) -> None:
        """Wait until something is there to be taken, or the time is over."""
        if not self._told:
            self.epoll.poll(timeout_s)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def send(self, voter: int, request_id: Any, message: Request | Answer) -> None:
        """An answer goes back on the connection that its request came on; a request to `voter`."""
        if isinstance(message, ANSWERS):
            link, api_key, api_version, correlation_id = request_id
            if not link.is_closed:
                body = encode_answer(api_key, message)
                link.to_send += response_frame(api_key, api_version, correlation_id, body)
                self._flush(link)
            return
        asking = self._connect(voter)
        if asking is None:
            self._told.append(NoAnswer(voter, request_id))
            return
        api_key, _, version = KEYS[type(message)]
        asking.asked = request_id, api_key, version
        body = encode_request(message, self.node_id, voter, self.cluster_id)
        name = f"controller-{self.node_id}"
        asking.to_send += request_frame(api_key, version, request_id & 0x7FFFFFFF, name, body)
        self._flush(asking)

    def _connect(self, voter: int) -> _Link | None:
        """The connection to ask a voter on; None if it can't be reached.

        One whose last answer never came is not used again: the next one would come behind it.
        """
        link = self._to_ask.get(voter)
        if link is not None and link.asked is None:
            return link
        if link is not None:
            link.asked = None
            self._end(link)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path(voter))
        except OSError:
            connection.close()
            return None
        self._to_ask[voter] = link = self._add(connection, voter)
        return link

    def _flush(self, link: _Link) -> None:
        try:
            while link.to_send:
                sent = link.socket.send(link.to_send)
                del link.to_send[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._end(link)
            return
        if bool(link.to_send) != link.is_blocked:
            link.is_blocked = not link.is_blocked
            writing = select.EPOLLOUT if link.is_blocked else 0
            self.epoll.modify(link.socket, select.EPOLLIN | writing)

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    def take(self) -> list[News]:
        """What there is to tell the quorum."""
        for fd, events in self.epoll.poll(0):
            if fd == self._listening.fileno():
                self._accept()
                continue
            link = self._links.get(fd)
            if link is None:
                continue
            if events & select.EPOLLOUT:
                self._flush(link)
            if not link.is_closed and events & ~select.EPOLLOUT:
                self._receive(link)
        told, self._told = self._told, []
        return told

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._add(connection, 0)

    def _receive(self, link: _Link) -> None:
        try:
            data = link.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(link)
            return
        received = link.received
        received += data
        try:
            while len(received) >= FRAME_SIZE.size and not link.is_closed:
                size = frame_size(received, 0, FRAME_BYTES_MAX)
                end = FRAME_SIZE.size + size
                if len(received) < end:
                    return
                frame = bytes(received[FRAME_SIZE.size : end])
                del received[:end]
                self._on_frame(link, frame)
        except ProtocolFault as fault:
            what = "a voter's connection is closed"
            logger.warning("%s: %s", what, fault, extra=logs.seldom(what))
            self._end(link)

    def _on_frame(self, link: _Link, frame: bytes) -> None:
        if self._to_ask.get(link.voter) is link:
            if link.asked is None:
                raise ProtocolFault("an answer that nobody asked for")
            request_id, api_key, version = link.asked
            _, position = parse_response_header(api_key, version, frame)
            answer = decode_answer(api_key, frame, position)
            link.asked = None
            self._told.append(AnswerCame(link.voter, request_id, answer))
            return
        api_key, version, correlation_id, client_id, position = parse_request_header(
            frame, 0, len(frame)
        )
        name = (client_id or b"").decode(errors="replace")
        number = name.removeprefix("controller-")
        voter = int(number) if number.isdecimal() else 0
        if voter not in self.others:
            raise ProtocolFault(f"{name!r} is no voter")
        request = decode_request(api_key, version, frame, position, self.cluster_id)
        token = link, api_key, version, correlation_id
        self._told.append(RequestCame(voter, token, request))

    # ── links ───────────────────────────────────────────────────────────────────────────────────

    def _add(self, connection: socket.socket, voter: int) -> _Link:
        link = self._links[connection.fileno()] = _Link(connection, voter)
        self.epoll.register(connection, select.EPOLLIN)
        return link

    def _end(self, link: _Link) -> None:
        if link.is_closed:
            return
        link.is_closed = True
        del self._links[link.socket.fileno()]
        link.socket.close()
        if self._to_ask.get(link.voter) is link:
            del self._to_ask[link.voter]
            if link.asked is not None:
                self._told.append(NoAnswer(link.voter, link.asked[0]))

    def _path(self, node_id: int) -> str:
        return f"/proc/self/fd/{self._directory_fd}/{socket_name(node_id)}"
