"""The descriptors that are ready: what an event loop asks of its poller.

Level-triggered epoll. A connection's interest is EPOLLIN while it may be read from, EPOLLOUT while
answers wait for its socket; a held connection has no EPOLLIN.
"""

from __future__ import annotations

import select
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection

EPOLLIN = select.EPOLLIN
EPOLLOUT = select.EPOLLOUT
EPOLLRDHUP = select.EPOLLRDHUP
HUNG_UP = select.EPOLLHUP | select.EPOLLERR


class Poller(Protocol):
    """Says which descriptors are ready, as `select.epoll` does."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def modify(self, fd: int, eventmask: int, /) -> None: ...

    def unregister(self, fd: int, /) -> None: ...

    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...

    def fileno(self) -> int: ...


def set_interest(poller: Poller, connection: Connection) -> None:
    """Have the poller look for what the connection waits for now."""
    if not connection.is_held:
        interest = EPOLLIN
    else:
        interest = 0 if connection.has_left else EPOLLRDHUP
    if connection.wants_write and not connection.is_cold:
        interest |= EPOLLOUT
    poller.modify(connection.fd, interest)
    if connection.is_unread and not connection.is_held:
        connection.come_back()
