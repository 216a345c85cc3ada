"""What a broker asks of its remote store, whether there is one or not.

`broker.tiering.tiering.Tiering` is the answer where there is a store, `NoTier` where there is none.
Readers, placement and retention know only this.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from shmbroker.apis.broker_parts import TierLookups
from shmbroker.replica.throttle import ReplicationThrottle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction
    from shmbroker.log.truncation import StateAt
    from shmbroker.replica.partition import Partition

OnState: TypeAlias = "Callable[[StateAt | None], None]"
"""What is told a state, or None where it can't be had now."""

Slice: TypeAlias = "tuple[Segment, int, int]"
"""Segment, position and length, as `PartitionLog.read` gives them."""


class Tier(TierLookups, Protocol):
    """The remote store's part in the logs of one broker."""

    find_timeout_ms: int
    """How long a lookup by time may take (remote.list.offsets.request.timeout.ms)."""
    copied: ReplicationThrottle
    """The bytes a second that go to the store (remote.log.manager.copy.max.bytes.per.second)."""
    fetched: ReplicationThrottle
    """The bytes a second that come from it (remote.log.manager.fetch.max.bytes.per.second)."""

    def on_partition(self, partition: Partition, /) -> None:
        """A log is placed here, or its settings have changed."""

    def on_deleted(self, key: bytes, /) -> None:
        """A log has left this broker."""

    def on_tier_lost(self) -> None:
        """The tier process is dead: what it was asked for does not come."""

    def on_tier_running(self) -> None:
        """Note that the tier process may be asked."""

    def run(self) -> None:
        """Do what is due once a second: copy, delete, look again."""

    def retain(self, partition: Partition, now_ms: int, /) -> bool:
        """Retention of a tiered log; True if its local segments are to be judged as well."""

    def read(
        self, partition: Partition, offset: int, max_bytes: int, end_offset: int, min_one: bool, /
    ) -> Slice | int | None:
        """A slice of what lies before the local start; an error code; None: it is on the way."""

    def aborted_in(
        self, partition: Partition, offset: int, segment: Segment, position: int, end_offset: int, /
    ) -> list[AbortedTransaction] | int | None:
        """The aborted transactions of a slice that `read` gave."""

    def find_state(self, partition: Partition, offset: int, on_state: OnState, /) -> None:
        """Look for what was known where the copy with `offset` ends."""


class NoTier:
    """A broker without a remote store."""

    is_there = False
    find_timeout_ms = 0

    def __init__(self) -> None:
        self.copied = ReplicationThrottle()
        self.fetched = ReplicationThrottle()

    def on_partition(self, partition: Partition, /) -> None:
        pass

    def on_deleted(self, key: bytes, /) -> None:
        pass

    def on_tier_lost(self) -> None:
        pass

    def on_tier_running(self) -> None:
        pass

    def run(self) -> None:
        pass

    def retain(self, partition: Partition, now_ms: int, /) -> bool:
        return True

    def read(
        self, partition: Partition, offset: int, max_bytes: int, end_offset: int, min_one: bool, /
    ) -> Slice | int | None:
        raise AssertionError("only a tiered log has a local start")

    def aborted_in(
        self, partition: Partition, offset: int, segment: Segment, position: int, end_offset: int, /
    ) -> list[AbortedTransaction] | int | None:
        raise AssertionError("nothing was read from a store")

    def find_state(self, partition: Partition, offset: int, on_state: OnState, /) -> None:
        on_state(None)

    def is_older_here(self, partition: Partition, timestamp: int, /) -> bool:
        return False

    def max_timestamp(self, partition: Partition, /) -> int:
        return -1

    def find_time(
        self, partition: Partition, timestamp: int, on_done: Callable[[int, int, int], None], /
    ) -> None:
        raise AssertionError("nothing is older in a store that is not there")

    def end_offset(self, partition: Partition, /) -> int:
        return -1
