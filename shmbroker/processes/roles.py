"""The roles of a family: what makes the process of each, of what all of them are told.

Rules of this file:
* What a role needs is imported when its maker is asked for, before the fork: once for all that will
  ever be forked. Metrics and the console import in the child: what they need is no part of any
  other process.
"""

from __future__ import annotations

from shmbroker.ipc.slots import CLEANER, CONSOLE, IO_WORKER, METRICS, NETWORK_WORKER, TIER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shmbroker.ipc.slots import Slot
    from shmbroker.processes.child import Child
    from shmbroker.processes.open_sockets import OpenSockets
    from shmbroker.processes.shared_resources import SharedResources
    from shmbroker.settings.broker_config import BrokerConfig

    Make = Callable[[SharedResources, Slot], Child]
    """Run in the child, by `run_child`."""


class Roles:
    """`maker` of a role; `sockets`: a child closes those that its role does not take."""

    def __init__(
        self, config: BrokerConfig, directory: Path, cluster_id: str, sockets: OpenSockets
    ) -> None:
        self._config = config
        self._directory = directory
        self._cluster_id = cluster_id
        self.sockets = sockets

    def maker(self, role: str) -> Make:
        """What makes a process of this role."""
        config, directory, cluster_id = self._config, self._directory, self._cluster_id
        sockets = self.sockets
        if role == NETWORK_WORKER:
            from shmbroker.processes.network_worker import NetworkWorker

            return lambda shared, slot: NetworkWorker(
                shared, slot, config, cluster_id, sockets.listeners
            )
        if role == IO_WORKER:
            from shmbroker.processes.io_worker import IoWorker

            return lambda shared, slot: IoWorker(
                shared, slot, config, directory, cluster_id, sockets.ports, sockets.listeners
            )
        if role == CLEANER:
            from shmbroker.processes.cleaner import Cleaner

            return Cleaner
        if role == TIER:
            from shmbroker.processes.tier import TierProcess

            return lambda shared, slot: TierProcess(shared, slot, config, directory, cluster_id)
        if role == METRICS:
            return self._make_metrics
        if role == CONSOLE:
            return self._make_console
        from shmbroker.processes.controller import ControllerProcess

        return lambda shared, slot: ControllerProcess(shared, slot, config, directory, cluster_id)

    def _make_metrics(self, shared: SharedResources, slot: Slot) -> Child:
        from shmbroker.processes.metrics import MetricsProcess

        return MetricsProcess(shared, slot, self.sockets.pages[METRICS])

    def _make_console(self, shared: SharedResources, slot: Slot) -> Child:
        from shmbroker.processes.console import ConsoleProcess

        return ConsoleProcess(shared, slot, self._config, self.sockets.pages[CONSOLE])
