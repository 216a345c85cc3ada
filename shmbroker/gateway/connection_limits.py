"""Who may connect: `max.connections`, `max.connections.per.ip` and its overrides.

Connections are counted over all network workers. The control socket, which only this host's own
user reaches, is left out of every limit: whoever looks after the broker gets in.
"""

from collections.abc import Callable

from shmbroker.settings.setting import INT_MAX
from shmbroker.settings.table import address_limits
from shmbroker.shm.address_counts import AddressCounts, packed_address


class ConnectionLimits:
    """One worker's limits; `open_connections` are those of the whole family."""

    def __init__(
        self,
        counts: AddressCounts,
        open_connections: Callable[[], int],
        running: Callable[[], list[int]],
    ) -> None:
        """`running`: the slots of the other workers that run."""
        self._counts = counts
        self._running = running
        self._open_connections = open_connections
        self._all = self._each = INT_MAX
        self._of: dict[bytes, int] = {}

    def set(self, of_all: int, of_each: int, overrides: str) -> None:
        """What holds from now on, for connections to come."""
        self._all = of_all
        self._each = of_each
        self._of = {
            packed_address(address): limit for address, limit in address_limits(overrides).items()
        }

    def take(self, address: str) -> str:
        """Count a connection of this address ("": the control socket); else why it is refused."""
        if not address:
            return ""
        if self._open_connections() >= self._all:
            return f"max.connections is {self._all}"
        packed = packed_address(address)
        self._counts.add(packed)
        limit = self._of.get(packed, self._each)
        if limit < INT_MAX and self._counts.total(packed, self._running()) > limit:
            self._counts.remove(packed)
            name = "max.connections.per.ip" + (".overrides" if packed in self._of else "")
            return f"{name} is {limit} for {address}"
        return ""

    def release(self, address: str) -> None:
        """A connection of this address has ended."""
        if address:
            self._counts.remove(packed_address(address))
