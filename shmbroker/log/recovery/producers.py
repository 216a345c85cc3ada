"""The producer state at a log's end, and the transaction indexes of its segments.

Both are derived: from the newest snapshot that fits, and the batches behind it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from shmbroker.errors import StorageFault
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.places import segment_number
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.recovery.replay import follow
from shmbroker.log.recovery.snapshots import newest_fitting, snapshot_path, walk_window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction


def rebuild_producers(
    log: PartitionLog,
    *,
    is_window_walked: bool = True,
    now_ms: int = 0,
    decided_below: int = NO_LIMIT,
) -> None:
    """Make the producer state at the log's end: newest good snapshot, then the batches behind it.

    With the window, also the batches shortly before it, as a snapshot knows only the last of each
    producer. The transaction indexes of what is behind the snapshot are compared with the batches,
    and set right.

    now_ms: for what may have expired; 0: nobody knows. decided_below: from this offset on, the high
    watermark, markers do not count yet; or the indexes may lack entries, as a power cut may have
    taken what was written to them. Where there are transactions, a snapshot from before is taken.
    """
    log.aborted.keep(log.segments[0].base_offset, log.segments[-1].base_offset)
    # What lies before the first segment is decided, however old the high watermark is: it was
    # deleted, or is in the remote store.
    decided_below = max(decided_below, log.segments[0].base_offset)
    undecided = [row for row in log.producers.ended if row[0] < log.log_end_offset]
    _rebuild(log, is_window_walked, now_ms, NO_LIMIT)
    log.producers.knows_last_only = not is_window_walked and len(log.producers) > 0
    has_any = bool(log.aborted) or log.producers.has_transactions()
    if has_any and any(taken > decided_below for taken in log.snapshots.offsets):
        _rebuild(log, is_window_walked, now_ms, decided_below)
    log.producers.ended = deque(sorted({*undecided, *log.producers.ended}))


def recall_batches(log: PartitionLog) -> None:
    """Learn the last batches of each producer, if a start has left them to who asks for them."""
    log.producers.knows_last_only = False
    with suppress(StorageFault):  # who reads there is told
        log.producers.recall(walk_window(log, log.log_end_offset))


def _rebuild(log: PartitionLog, is_window_walked: bool, now_ms: int, offset_max: int) -> None:
    """Begin with the newest good snapshot at `offset_max` or before."""
    log.producers.clear()
    known = newest_fitting(
        log, is_window_walked=is_window_walked, now_ms=now_ms, offset_max=offset_max
    )
    log.producers.take(known.stored, known.recent)
    bases, is_whole = [segment.base_offset for segment in log.segments], True
    for segment in log.segments[segment_number(log, known.offset) :]:
        if is_whole and segment.base_offset > known.offset:
            # a copy in a remote store has the snapshot at its end: a kill may have left none there
            log.snapshots.take(segment.base_offset, bases)
        is_whole = _replay(log, segment, known.offset) and is_whole


def _replay(log: PartitionLog, segment: Segment, start: int) -> bool:
    """Let the producer state follow a segment's batches from `start` on, and let its transaction
    index be what they say; whether all could be read."""
    entries, is_whole = follow(log.producers, segment, start)
    known = log.aborted.stored(segment.base_offset)
    right = [entry for entry in known if entry.last_offset < start] + entries
    if not is_whole:
        right = sorted({*known, *entries}, key=lambda entry: entry.last_offset)
    log.aborted.set_right(segment.base_offset, right)
    return is_whole


def find_aborted(log: PartitionLog, base_offset: int) -> list[AbortedTransaction]:
    """Find what the transaction index of a segment must hold, from a snapshot and the batches."""
    state = ProducerState()
    start = log.segments[0].base_offset
    for offset in reversed(log.snapshots.offsets):
        if start <= offset <= base_offset:
            try:
                known = read_snapshot(snapshot_path(log, offset))
            except StorageFault:
                continue
            state.take(known, ProducerState())
            start = offset
            break
    entries: list[AbortedTransaction] = []
    first, last = segment_number(log, start), segment_number(log, base_offset)
    for segment in log.segments[first : last + 1]:
        entries, _ = follow(state, segment, start)
    return entries
