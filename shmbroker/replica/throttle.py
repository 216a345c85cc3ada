"""How many bytes a second a broker may give to, or copy as, replicas that are throttled (KIP-73).

A bucket of tokens, one for each byte, that holds what a second brings. All that is copied of a
throttled replica is taken out of it, that of replicas in sync as well; only those out of sync wait
while it is empty. What is taken once may be more than is there: then it is owed.

What goes to and from the remote store has such buckets, too (`broker.tiering`).

Source: Kafka's ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle,
ReplicaFetcherThread.shouldFollowerThrottle. Kafka looks at the mean of the last eleven seconds.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

UNLIMITED = 2**63 - 1
OWED_S_MAX = 10
OWED_BYTES_MAX = 1 << 20
"""The larger of the two: replicas in sync, which do not wait, owe no more to those that do."""
WAIT_MS_MAX = 1000
_EVERY_BROKER = range(2**31)
_NO_BROKER: tuple[int, ...] = ()


class ReplicationThrottle:
    """One direction of one broker."""

    __slots__ = ("_at_ms", "_rate", "_tokens")

    def __init__(self, rate: int = UNLIMITED) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self._at_ms = 0

    def set_rate(self, rate: int) -> None:
        """Set the bytes a second from now on. What was owed at another rate is forgotten."""
        if rate != self._rate:
            self._rate = rate
            self._tokens = float(rate)

    def take(self, count: int, now_ms: int) -> None:
        """Note that `count` bytes are on their way."""
        if self._rate == UNLIMITED:
            return
        self._fill(now_ms)
        owed_max = max(OWED_S_MAX * self._rate, OWED_BYTES_MAX)
        self._tokens = max(self._tokens - count, -owed_max)

    def room(self, now_ms: int) -> int:
        """Bytes that may be copied now; none: `wait_ms` says when to ask again."""
        if self._rate == UNLIMITED:
            return UNLIMITED
        self._fill(now_ms)
        return max(int(self._tokens), 0)

    def wait_ms(self) -> int:
        """The time until there is room, after `room` was 0; not longer than the rate may take to
        change."""
        if not self._rate:
            return WAIT_MS_MAX
        return min(int((1 - self._tokens) * 1000 / self._rate) + 1, WAIT_MS_MAX)

    def _fill(self, now_ms: int) -> None:
        passed = now_ms - self._at_ms
        self._at_ms = now_ms
        if passed > 0:
            self._tokens = min(self._tokens + passed * self._rate / 1000, float(self._rate))


def throttled_brokers(replicas: Iterable[str], partition: int) -> Container[int]:
    """The brokers whose replica of a partition is named in a *.replication.throttled.replicas."""
    items = [item.strip() for item in replicas if item.strip()]
    if not items:
        return _NO_BROKER
    if items[0] == "*":
        return _EVERY_BROKER
    wanted = str(partition)
    pairs = (item.partition(":") for item in items)
    return tuple(int(broker) for number, _, broker in pairs if number == wanted)
