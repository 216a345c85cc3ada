"""Finds the active controller for everybody else: whom to ask, and whose log files to follow.

While nobody is active nobody is asked; what was committed is still read where it was.
"""

from __future__ import annotations

from collections.abc import Iterable

from shmbroker.ipc.committed_log import CommittedLog
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import CONTROLLER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.counters import Counters


class ActiveLink(CommittedLog):
    """One process's view of the controllers."""

    def __init__(
        self,
        counters: Counters,
        peers: Iterable[Peer],
        config: BrokerConfig,
        cluster_id: str,
    ) -> None:
        super().__init__(counters, config.metadata_directory, cluster_id)
        self.controllers = {peer.number: peer for peer in peers if peer.role == CONTROLLER}

    def peer(self) -> Peer | None:
        """The active controller, if there is one that can be asked."""
        epoch, number, is_active = self._counters.metadata_leader()
        if not is_active or epoch < self.epoch:
            return None
        peer = self.controllers.get(number)
        return peer if peer is not None and peer.incarnation else None

    def others(self) -> list[Peer]:
        """The controllers that are not the one that led last."""
        return [peer for number, peer in self.controllers.items() if number != self.number]
