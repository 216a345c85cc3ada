"""Every socket that a family listens on: of its brokers, for tools, for metrics and the console.

Rules of this file:
* The supervisor opens all of them before the first fork and never closes one: a client that comes
  while a process is replaced waits, and is answered by the next one.
* A child keeps what its role takes connections from, and closes the others (`keep_for`).
"""

from __future__ import annotations

from importlib.util import find_spec

from shmbroker import unix
from shmbroker.errors import ConfigFault
from shmbroker.gateway.listener import Listener
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER, PAGES
from shmbroker.processes import listening
from shmbroker.settings.table import page_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from shmbroker.processes.held_directory import HeldDirectory
    from shmbroker.settings.broker_config import BrokerConfig

PAGE_BACKLOG = 16


class OpenSockets:
    """Listeners for clients, the control socket's behind them, and a socket for each page."""

    def __init__(self, listeners: list[Listener], pages: dict[str, socket.socket]) -> None:
        self.listeners = listeners
        self.pages = pages
        """The sockets on which metrics and the console are shown, by role, if they are."""
        self.ports: dict[int, tuple[str, int]] = {}
        """The host and port of each broker's first listener, as clients are told."""
        for listener in self._of_brokers():
            self.ports.setdefault(listener.broker_id, listener.told())

    def keep_for(self, role: str) -> None:
        """Close, in a child, what its role has no use for."""
        if role not in (NETWORK_WORKER, IO_WORKER):
            for listener in self.listeners:
                listener.socket.close()
        for page, page_socket in self.pages.items():
            if page != role:
                page_socket.close()

    def addresses(self, unable: Collection[int]) -> str:
        """Where clients are served; not those of brokers that are `unable` to."""
        return ", ".join(
            listening.shown(listener)
            for listener in self._of_brokers()
            if listener.broker_id not in unable
        )

    def remove_paths(self) -> None:
        """Remove the paths of Unix sockets that clients came by."""
        for listener in self.listeners:
            if listener.config.is_unix:
                unix.remove(listener.bound()[0])

    def _of_brokers(self) -> list[Listener]:
        return [listener for listener in self.listeners if not listener.is_control]


def open_sockets(config: BrokerConfig, directory: HeldDirectory) -> OpenSockets:
    """Bind every listener of every broker, in a row from its configured port; 0 takes free ones.
    ConfigFault, which names what to change, where one can't be had."""
    listeners = listening.open_all(config)
    listeners.append(Listener(directory.bind_control_socket(), -1, True))
    if config["shmbroker.metrics"] and find_spec("prometheus_client") is None:
        raise ConfigFault(
            "--metrics needs the package prometheus_client: install it (pip install "
            "prometheus_client), or start without --metrics."
        )
    pages = {}
    for role in PAGES:
        if config[f"shmbroker.{role}"]:
            host, port = page_address(config[f"shmbroker.{role}"])
            pages[role] = listening.listen_on(host, port, PAGE_BACKLOG, f"--{role}")
    return OpenSockets(listeners, pages)
