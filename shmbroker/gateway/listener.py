"""A listening socket, and what is known of it: whose port it is, how it is told and served."""

from __future__ import annotations

from shmbroker.gateway.connection import Connection
from shmbroker.settings.listeners import PLAINTEXT, ListenerConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from shmbroker.gateway.door import Door
    from shmbroker.gateway.tls_context import TlsContext

ANY_LISTENER = ListenerConfig("PLAINTEXT", PLAINTEXT, "", 0)


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
        """What is asked who comes; None: nothing is."""
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
