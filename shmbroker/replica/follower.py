"""What the leader of a partition knows of one follower, and who is in sync.

A follower is caught up while it has all that the log holds. It lags from the moment that something
is appended which it has not asked beyond; one that lags for longer than replica.lag.time.max.ms is
taken out of the in-sync replicas. It comes in again once it has everything below the high watermark
and where the leader's epoch began, and does not begin before the leader's log: so no replica in
sync has records of which DeleteRecords has said that they are gone.

Source: Kafka's Replica and Partition (`maybeExpandIsr`, `maybeShrinkIsr`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.replica.partition import Partition

UNKNOWN = -1


class Follower:
    """A replica on another broker."""

    __slots__ = ("broker_id", "caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN
        """Where it read last: it has everything before. UNKNOWN in a new epoch."""
        self.log_start_offset = UNKNOWN
        """Where its log began then."""
        self.caught_up_ms = 0
        """When it had all that there was, for the last time that is known."""


def may_join(partition: Partition, follower: Follower) -> bool:
    """Whether a follower that isn't in sync has what it takes to be."""
    return (
        follower.broker_id not in partition.in_sync_replicas
        and follower.log_end_offset >= partition.high_watermark
        and follower.log_end_offset >= partition.epoch_start_offset
        and follower.log_start_offset >= partition.log.log_start_offset
    )


def lagging(partition: Partition, now_ms: int, lag_max_ms: int) -> list[int]:
    """In-sync followers that have been behind for too long."""
    end_offset = partition.log.log_end_offset
    found = []
    for follower in partition.waits_for:
        if follower.log_end_offset >= end_offset:
            continue
        if not follower.caught_up_ms:
            follower.caught_up_ms = now_ms  # in a new epoch its time begins now
        elif (
            now_ms - follower.caught_up_ms > lag_max_ms
            and follower.broker_id in partition.in_sync_replicas
        ):
            found.append(follower.broker_id)
    return found
