"""Accepting: which worker takes a new connection, and who is let in.

Rules of this file:
* Workers share the listeners, and each that watches one is woken by each new connection. A worker
  whose open connections exceed the smallest count by more than one stops watching, and tells the
  others, so that somebody always watches. (EPOLLEXCLUSIVE is not for this: it wakes one worker, and
  if that one leaves the connection to the others, they are never told.)
* A listener rests while too many come by it: they stay in its backlog. The control socket never
  does. Where there is no descriptor for who comes, any listener rests for a moment.
* A client that comes too often, or is one too many, never becomes a `Connection`.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol

from shmbroker import tcp
from shmbroker.gateway.door import peer_credentials
from shmbroker.gateway.poller import EPOLLIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.connection import Connection, Traffic
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.poller import Poller

ACCEPTS_PER_TURN = 16

NO_DESCRIPTOR_S = 0.1
"""The rest of a listener while its worker has no descriptor for who comes: who waits in the backlog
would wake it in every turn."""

MAPPED = "::ffff:"
"""What stands before an IPv4 address where a socket takes both kinds."""

LOOPBACK = "127.0.0.1"
"""What limits and ACLs take for the address of who comes by a Unix socket."""


class Reception(Protocol):
    """What a worker says of those who come."""

    submits: dict[int, Callable[..., bool]]
    submits_of_readers: dict[int, Callable[..., bool]]
    """What another user on the control socket may ask."""

    def now(self) -> float: ...

    def may_accept(self) -> bool: ...

    def rest_s(self, listener: Listener) -> float: ...

    def admits(self, address: str, listener: Listener) -> bool: ...

    def holds_back(self, accepted: socket.socket, broker_id: int, address: str) -> bool: ...

    def on_opened(self, connection: Connection) -> None: ...

    def on_left_accepting(self) -> None: ...


class Acceptor:
    """The listeners as one worker watches them. connections: who is let in is added there."""

    def __init__(
        self,
        reception: Reception,
        poller: Poller,
        traffic: Traffic,
        connections: dict[int, Connection],
    ) -> None:
        self._reception = reception
        self._poller = poller
        self._traffic = traffic
        self._connections = connections
        self.listeners: dict[int, Listener] = {}
        self.is_watching = False
        self.resting: dict[int, float] = {}
        """Listeners that accept nobody until then, as too many came."""

    def add(self, listener: Listener) -> None:
        listener.socket.setblocking(False)
        self.listeners[listener.socket.fileno()] = listener

    def watch(self, want: bool) -> None:
        """Take part in accepting, or leave it to the other workers."""
        if want == self.is_watching:
            return
        self.is_watching = want
        if not want:
            self._reception.on_left_accepting()
        for fd in self.listeners:
            if fd in self.resting:
                continue
            if want:
                self._poller.register(fd, EPOLLIN)
            else:
                self._poller.unregister(fd)

    def _rest(self, listener: Listener, rest_s: float) -> None:
        """Leave those who come in its backlog for a while."""
        fd = listener.socket.fileno()
        if self.is_watching and fd not in self.resting:  # else an event from before it left that
            self._poller.unregister(fd)
        self.resting[fd] = self._reception.now() + rest_s

    def wake(self, now: float) -> None:
        """Accept again where the time is over."""
        for fd, until in list(self.resting.items()):
            if now >= until:
                del self.resting[fd]
                if self.is_watching:
                    self._poller.register(fd, EPOLLIN)

    def accept(self, listener: Listener) -> None:
        """Take new connections, as long as this worker has no more than its share."""
        reception = self._reception
        for _ in range(ACCEPTS_PER_TURN):
            if not reception.may_accept():
                self.watch(False)
                return
            if not listener.is_control and (rest_s := reception.rest_s(listener)):
                self._rest(listener, rest_s)
                return
            try:
                accepted, address = listener.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: let the others try, and come back when some may be free.
                self._rest(listener, NO_DESCRIPTOR_S)
                self.watch(False)
                return
            is_local = accepted.family == socket.AF_UNIX
            client = "" if listener.is_control else LOOPBACK if is_local else _plain(address[0])
            if client and reception.holds_back(accepted, listener.broker_id, client):
                continue
            if not reception.admits(client, listener):
                accepted.close()
                continue
            port = 0 if is_local else address[1]
            self._let_in(listener, accepted, client, port)

    def _let_in(self, listener: Listener, accepted: socket.socket, client: str, port: int) -> None:
        """Serve it from now on. client: its address, "" of who comes by the control socket; port:
        0 of who comes by a Unix socket."""
        reception = self._reception
        accepted.setblocking(False)
        submits = reception.submits
        if listener.is_control and not _is_owner(accepted):
            submits = reception.submits_of_readers
        connection = listener.make_connection(
            accepted, listener, reception.now(), submits, self._traffic
        )
        if accepted.family != socket.AF_UNIX:
            tcp.tune(accepted)
            connection.client = f"{client}:{port}"
            connection.host = listener.config.told_host or _plain(accepted.getsockname()[0])
        elif client:
            connection.client = f"{client}:process-{peer_credentials(accepted)[0]}"
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, EPOLLIN)
        reception.on_opened(connection)


def _plain(address: str) -> str:
    """An IPv4 address as such, though it came in by a socket of both kinds."""
    return address.removeprefix(MAPPED)


def _is_owner(accepted: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of our user, or of root, as it was
    when it connected. Everybody else whom the socket's mode lets in only reads."""
    return peer_credentials(accepted)[1] in (0, os.geteuid())
