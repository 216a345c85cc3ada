"""What the batches of a segment say of producers and transactions.

Batches are walked by their headers; of control batches the marker is read. Damage below the
recovery point ends the walk of that segment: a reader there is told.
"""

from __future__ import annotations

from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.segment_indexes import load_indexes
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from shmbroker.log.producer_state import ProducerState
    from shmbroker.log.segment import Segment


def follow(
    state: ProducerState, segment: Segment, start: int, end: int = NO_LIMIT
) -> tuple[list[AbortedTransaction], bool]:
    """Let a producer state follow a segment's batches with offsets in [start, end).

    (the transactions that they abort, whether all were read)
    """
    entries: list[AbortedTransaction] = []
    try:
        for position, header in _producers_batches(segment, start, end):
            if not header[H_ATTRIBUTES] & CONTROL_BIT:
                state.update(*_of_producer(header))
                if header[H_ATTRIBUTES] & TRANSACTIONAL_BIT:
                    state.begin(header[H_PRODUCER_ID], header[H_BASE_OFFSET])
                continue
            marker = parse_marker(segment.read_bytes(position, header[H_LENGTH] + LOG_OVERHEAD))
            if marker is None:
                continue
            ended = state.end(marker, header[H_BASE_OFFSET], header[H_MAX_TIMESTAMP])
            if ended is not None and not marker.is_commit:
                entry = AbortedTransaction(
                    marker.producer_id, ended[0], header[H_BASE_OFFSET], ended[1]
                )
                entries.append(entry)
    except (CorruptFault, ProtocolFault):
        # Damage below the recovery point: a reader there is told.
        return entries, False
    return entries, True


def _producers_batches(
    segment: Segment, start: int, end: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of the batches of producers with offsets in [start, end).

    CorruptFault where the segment is damaged.
    """
    load_indexes(segment)
    position, _ = segment.find(start)
    for found, header in segment.headers(position, segment.size):
        if header[H_BASE_OFFSET] >= end:
            return
        if header[H_PRODUCER_ID] >= 0 and header[H_BASE_OFFSET] >= start:
            yield found, header


def _of_producer(header: tuple[int, ...]) -> tuple[int, int, int, int, int, int]:
    """What `ProducerState.update` is to know of a batch."""
    return (
        header[H_PRODUCER_ID],
        header[H_PRODUCER_EPOCH],
        header[H_BASE_SEQUENCE],
        header[H_LAST_OFFSET_DELTA],
        header[H_BASE_OFFSET],
        header[H_MAX_TIMESTAMP],
    )
