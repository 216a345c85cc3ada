"""Answers to markers, which wait for the in-sync replicas as acks do."""

from __future__ import annotations

from shmbroker.purgatory import DelayedOperation
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.purgatory import Purgatory
    from shmbroker.replica.partition import Partition

MARKER_TIMEOUT_MS = 30_000
"""How long a marker waits for the in-sync replicas before its coordinator sends it again."""


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


class ReplicationWaits:
    """The waits of one broker for its replicas. steady_ms: the clock that they go by."""

    def __init__(self, purgatory: Purgatory, steady_ms: Callable[[], int]) -> None:
        self._purgatory = purgatory
        self._steady_ms = steady_ms

    def wait(self, partition: Partition, end_offset: int, then: Callable[[int], None]) -> None:
        """Tell 0 once the in-sync replicas have all below an offset, or the error code."""
        waiting = Replicated(partition, end_offset, then)
        if not waiting.try_complete():
            deadline_ms = self._steady_ms() + MARKER_TIMEOUT_MS
            self._purgatory.watch(waiting, (partition.key,), deadline_ms)
