"""Answers that wait for other replicas, as acks do: markers until the in-sync ones have them,
DeleteRecords until no live one has the records.

Rules of this file:
* A replica counts for DeleteRecords while the metadata says that its broker lives, in sync or not,
  and also when it is dead and eligible to lead (KIP-966): unlike in Kafka, as it would lead with
  the records. It is back soon. Any other that comes back learns from its leader where the log
  begins before it is in sync.

Source: Kafka's DelayedDeleteRecords, and Partition.lowWatermarkIfLeader.
"""

from __future__ import annotations

from shmbroker.apis.broker.delete_records import NO_LOW_WATERMARK
from shmbroker.purgatory import DelayedOperation
from shmbroker.replica.partition import not_led_error
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.followed import Followed
    from shmbroker.purgatory import Purgatory
    from shmbroker.replica.partition import Partition

MARKER_TIMEOUT_MS = 30_000
"""How long a marker waits for the in-sync replicas before its coordinator sends it again."""
LIVE_BROKERS = "live brokers"
"""The watch key of those who wait for what lives."""


class Replicated(DelayedOperation):
    """then: told 0 when the high watermark is at an offset, or the error code; once."""

    __slots__ = ("_end_offset", "_partition", "_then")

    def __init__(self, partition: Partition, end_offset: int, then: Callable[[int], None]) -> None:
        super().__init__()
        self._partition = partition
        self._end_offset = end_offset
        self._then = then

    def try_complete(self) -> bool:
        """Whether there is nothing more to wait for."""
        if not self._partition.is_leader:
            error = error_codes.NOT_LEADER_OR_FOLLOWER
        elif self._partition.high_watermark >= self._end_offset:
            error = error_codes.NONE
        else:
            return False
        self.is_done = True
        self._then(error)
        return True

    def on_expire(self) -> None:
        """The replicas take too long: who asked may ask again."""
        self._then(error_codes.REQUEST_TIMED_OUT)


class Deleted(DelayedOperation):
    """then: told 0 and the low watermark when that is at an offset, or the error code; once."""

    __slots__ = ("_metadata", "_offset", "_partition", "_then", "_was")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        metadata: Followed,
        then: Callable[[int, int], None],
    ) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset
        self._metadata = metadata
        self._then = then
        self._was = self._low_watermark()

    def _low_watermark(self) -> int:
        image, partition = self._metadata.image, self._partition
        counted = {broker.broker_id for broker in image.brokers.values() if not broker.is_fenced}
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is not None:
            counted.update(topic.partitions[partition.partition].eligible_leader_replicas)
        return partition.low_watermark(counted)

    def try_complete(self) -> bool:
        """Whether there is nothing more to wait for."""
        if not self._partition.is_leader:
            error, low_watermark = not_led_error(self._partition), NO_LOW_WATERMARK
        elif (low_watermark := self._low_watermark()) >= self._offset:
            error = error_codes.NONE
        else:
            return False
        self.is_done = True
        self._then(error, low_watermark)
        return True

    def on_expire(self) -> None:
        """Some replica takes too long: it was told, and may do it yet."""
        self._then(error_codes.REQUEST_TIMED_OUT, self._was)


class ReplicationWaits:
    """The waits of one broker for its replicas. steady_ms: the clock that they go by. metadata:
    what says who lives."""

    def __init__(
        self,
        purgatory: Purgatory,
        steady_ms: Callable[[], int],
        metadata: Followed,
    ) -> None:
        self._purgatory = purgatory
        self._steady_ms = steady_ms
        self._metadata = metadata

    def wait(self, partition: Partition, end_offset: int, then: Callable[[int], None]) -> None:
        """Tell 0 once the in-sync replicas have all below an offset, or the error code."""
        waiting = Replicated(partition, end_offset, then)
        if not waiting.try_complete():
            deadline_ms = self._steady_ms() + MARKER_TIMEOUT_MS
            self._purgatory.watch(waiting, (partition.key,), deadline_ms)

    def wait_deleted(
        self, partition: Partition, offset: int, timeout_ms: int, then: Callable[[int, int], None]
    ) -> None:
        """Tell 0 and the low watermark once no live replica begins before an offset, or the error
        code and the low watermark that is known."""
        waiting = Deleted(partition, offset, self._metadata, then)
        if not waiting.try_complete():
            deadline_ms = self._steady_ms() + timeout_ms
            self._purgatory.watch(waiting, (partition.key, LIVE_BROKERS), deadline_ms)
