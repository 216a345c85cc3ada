"""What one broker knows of its partitions' copies in the remote store.

Remote        one partition's copies, what is asked for of them, and what of them is here
RemoteTable   all of them, and how the tier process is asked; what the parts of tiering work on
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict

from shmbroker.tier.remote_log import RemoteLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction
    from shmbroker.replica.partition import Partition
    from shmbroker.tier.remote_log import RemoteSegment

    Ask = Callable[[int, str, dict[str, Any], Callable[[dict[str, Any]], None]], bool]

logger = logging.getLogger(__name__)

BACKOFF_MS_MIN = 1000
BACKOFF_MS_MAX = 60_000
FETCH_BACKOFF_MS = 1000
"""How long reads are refused after a fetch has failed."""


class Remote:
    """What this broker knows of one partition's copies."""

    __slots__ = (
        "aborted",
        "backoff_ms",
        "boundaries",
        "chunks",
        "copied",
        "copying",
        "deleting",
        "fault_until_ms",
        "fetching",
        "is_asked",
        "is_current",
        "is_given_up",
        "is_loaded",
        "log",
        "partition",
        "refresh_ms",
        "retry_ms",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log = RemoteLog()
        self.is_loaded = False
        """`log` is what the store had at some time."""
        self.is_current = False
        """… and is it still, as far as this worker leads."""
        self.is_asked = False
        """Whether its list is on the way."""
        self.copied: list[RemoteSegment] = []
        """Copies that were made since its list was asked for, which may not name them."""
        self.is_given_up = False
        """Nothing of it is copied or deleted any more."""
        self.copying: Segment | None = None
        self.deleting: list[RemoteSegment] = []
        self.backoff_ms = BACKOFF_MS_MIN
        self.retry_ms = 0
        self.refresh_ms = 0
        self.chunks: list[Segment] = []
        """Pieces that are here, by base offset."""
        self.boundaries: dict[int, tuple[Segment, int]] = {}
        """offset -> (piece, position) where a reader stopped lately."""
        self.aborted: OrderedDict[RemoteSegment, list[AbortedTransaction] | None] = OrderedDict()
        """Transaction indexes that are here, or (None) on the way, used last at the end."""
        self.fetching: set[int] = set()
        """The offsets of fetches under way."""
        self.fault_until_ms = 0

    def succeeded(self) -> None:
        self.backoff_ms = BACKOFF_MS_MIN
        self.retry_ms = 0

    def failed(self, steady_ms: int) -> None:
        self.retry_ms = steady_ms + self.backoff_ms
        self.backoff_ms = min(self.backoff_ms * 2, BACKOFF_MS_MAX)

    def refuse_reads(self, steady_ms: int) -> None:
        """Refuse them for a while: something that they need can't be had."""
        self.fault_until_ms = steady_ms + FETCH_BACKOFF_MS

    def give_up(self, reason: str) -> None:
        """End the copying of this partition until the next start."""
        self.is_given_up = True
        logger.error(
            "%s-%d is not copied to the remote store any more until the next start: %s",
            self.partition.topic,
            self.partition.partition,
            reason,
        )

    def on_tier_lost(self, steady_ms: int) -> None:
        """Nothing that was asked for comes."""
        self.is_current = self.is_asked = False
        self.copying, self.deleting = None, []
        if self.fetching:
            # One that it died of must not be asked for at once.
            self.refuse_reads(steady_ms)
            self.fetching.clear()
        for copy in [copy for copy, entries in self.aborted.items() if entries is None]:
            del self.aborted[copy]

    def is_lost(self, gap_end: int) -> bool:
        """Whether what no copy has, up to there, was lost in the store: no hole that the log had
        itself, and has named (`PartitionLog.cleaned_offset`)."""
        return 0 <= self.partition.log.cleaned_offset < gap_end

    def chunk_of(self, offset: int) -> Segment | None:
        """The piece with `offset`."""
        place = bisect_right(self.chunks, offset, key=lambda chunk: chunk.base_offset)
        for chunk in reversed(self.chunks[max(place - 2, 0) : place]):
            if offset < chunk.end_offset:
                return chunk
        return None

    def name(self) -> dict[str, Any]:
        """How the tier process knows the partition."""
        partition = self.partition
        return {
            "topic": partition.topic,
            "topic_id": partition.topic_id,
            "partition": partition.partition,
        }


class RemoteTable:
    """The partitions here that have copies, and what is needed to ask for some.

    ask(key, name, body, on_answer): a request to the tier process; False if there is no room for
    it, or no such process now. wake(key): reads that wait for the partition look again.
    now_ms: by the wall clock, for the age of records; steady_ms: for rests and deadlines.
    """

    def __init__(
        self,
        store: PartitionStore,
        ask: Ask,
        wake: Callable[[bytes], object],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.ask = ask
        self.wake = wake
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.remotes: dict[bytes, Remote] = {}

    def get(self, partition: Partition) -> Remote | None:
        return self.remotes.get(partition.key)

    def has(self, remote: Remote) -> bool:
        """Whether it is still here: answers come late."""
        return self.remotes.get(remote.partition.key) is remote
