"""Limits on who may connect: how many, by `max.connections` (of all, and of one listener) and by
`max.connections.per.ip` with its overrides; how fast, by `max.connection.creation.rate`.

Connections are counted over all network workers. The control socket, which only this host's own
user reaches, is left out of every limit: the operator gets in.

Who is one too many is closed at once; who comes too fast waits in the backlog, as in Kafka
(KIP-402, KIP-612).
"""

from __future__ import annotations

from shmbroker.settings.layers import effective_broker_config
from shmbroker.settings.setting import INT_MAX
from shmbroker.settings.table import LISTENER_PREFIX, address_limits
from shmbroker.shm.address_counts import packed_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.layers import Layers
    from shmbroker.shm.address_counts import AddressCounts

_NAMED = bytes(17)
"""The prefix of what is counted by a name: longer than any address."""
NOBODY_S = 1.0
"""How long a listener rests that takes no connections at all."""


class Rate:
    """New connections a second of the whole family: a bucket that a second fills (decision 039),
    and that each worker empties by what all of them have taken."""

    __slots__ = ("_at", "_level", "_per_s", "_seen", "_taken")

    def __init__(self, per_s: int, taken: Callable[[], int], now: float) -> None:
        """taken: how many were let in so far, by all workers; less after one was started again."""
        self._per_s = per_s
        self._taken = taken
        self._seen = taken()
        self._level = float(per_s)
        self._at = now

    def rest_s(self, now: float) -> float:
        """Seconds until the next one may come; 0: now."""
        if not self._per_s:
            return NOBODY_S
        taken = self._taken()
        left = self._level - max(0, taken - self._seen)
        self._level = level = min(left + (now - self._at) * self._per_s, float(self._per_s))
        self._seen, self._at = taken, now
        return 0.0 if level >= 1 else (1 - level) / self._per_s


class ConnectionLimits:
    """One worker's limits; `open_connections` are those of the whole family."""

    def __init__(
        self,
        counts: AddressCounts,
        open_connections: Callable[[], int],
        running: Callable[[], list[int]],
        listeners: Iterable[str] = (),
    ) -> None:
        """`running`: the slots of the other workers that run. listeners: their names."""
        self._counts = counts
        self._running = running
        self._open_connections = open_connections
        self._all = self._each = INT_MAX
        self._of: dict[bytes, int] = {}
        self._of_listener: dict[str, int] = {}
        self._rates: dict[str, Rate] = {}
        self._set_rates: dict[str, int] = {}
        self._listeners = list(dict.fromkeys(listeners))
        for name in ("", *self._listeners):
            # Once each, so that they have their entry whatever addresses come later.
            counts.add(_open_key(name))
            counts.add(_taken_key(name))

    def apply(self, config: BrokerConfig, layers: Layers, now: float) -> None:
        """Take the settings as they are now. layers: see `broker_layers`."""
        of_all, of_each, overrides, rate = (
            effective_broker_config(name, config, layers)
            for name in (
                "max.connections",
                "max.connections.per.ip",
                "max.connections.per.ip.overrides",
                "max.connection.creation.rate",
            )
        )
        self.set(of_all, of_each, overrides)

        def of_listeners(setting: str) -> dict[str, int]:
            found = {
                name: effective_broker_config(
                    f"{LISTENER_PREFIX}{name.lower()}.{setting}", config, layers
                )
                for name in self._listeners
            }
            return {name: limit for name, limit in found.items() if limit is not None}

        self.set_listeners(
            of_listeners("max.connections"),
            of_listeners("max.connection.creation.rate") | {"": rate},
            now,
        )

    def set(self, of_all: int, of_each: int, overrides: str) -> None:
        """Set what holds from now on, for connections to come."""
        self._all = of_all
        self._each = of_each
        self._of = {
            packed_address(address): limit for address, limit in address_limits(overrides).items()
        }

    def set_listeners(
        self, limits: Mapping[str, int], rates: Mapping[str, int], now: float
    ) -> None:
        """Most open connections of a listener, and new ones a second, by its name; in `rates` ""
        is all of them."""
        self._of_listener = {name: limit for name, limit in limits.items() if limit < INT_MAX}
        wanted = {name: rate for name, rate in rates.items() if rate < INT_MAX}
        if wanted != self._set_rates:
            self._set_rates = wanted
            self._rates = {
                name: Rate(rate, lambda name=name: self._total(_taken_key(name)), now)  # type: ignore[misc]
                for name, rate in wanted.items()
            }

    def rest_s(self, listener: str, now: float) -> float:
        """How many seconds this listener accepts nobody, as too many came; 0: it accepts."""
        rates = self._rates
        if not rates:
            return 0.0
        return max(rates[name].rest_s(now) if name in rates else 0.0 for name in ("", listener))

    def take(self, address: str, listener: str = "") -> str:
        """Count a connection of this address ("": the control socket); else why it is refused."""
        if not address:
            return ""
        counts = self._counts
        if self._rates:
            for name in {"", listener}:
                counts.add(_taken_key(name))
        if self._open_connections() >= self._all:
            return f"max.connections is {self._all}"
        most = self._of_listener.get(listener, INT_MAX)
        if most < INT_MAX and self._total(_open_key(listener)) >= most:
            return f"max.connections is {most} for listener {listener}"
        packed = packed_address(address)
        counts.add(packed)
        limit = self._of.get(packed, self._each)
        if limit < INT_MAX and counts.total(packed, self._running()) > limit:
            counts.remove(packed)
            name = "max.connections.per.ip" + (".overrides" if packed in self._of else "")
            return f"{name} is {limit} for {address}"
        counts.add(_open_key(listener))
        return ""

    def release(self, address: str, listener: str = "") -> None:
        """A connection of this address has ended."""
        if address:
            self._counts.remove(packed_address(address))
            self._counts.remove(_open_key(listener))

    def _total(self, key: bytes) -> int:
        """What was counted by a name, without the one of each worker that holds its entry."""
        running = self._running()
        return self._counts.total(key, running) - len(running) - 1


def _open_key(listener: str) -> bytes:
    return _NAMED + b"open " + listener.encode()


def _taken_key(listener: str) -> bytes:
    return _NAMED + b"taken " + listener.encode()
