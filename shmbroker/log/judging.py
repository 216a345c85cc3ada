"""Judging what a segment held before this process opened it: it may have been damaged since.

A batch of it is given out when it was judged once, by its CRC and by the offsets around it, as no
CRC covers those. What this process has written is not judged again. A segment keeps how far that
has come: one stretch of it (`judged`), and once the whole is known to be good, that
(`unjudged_bytes`).
"""

from __future__ import annotations

from shmbroker.errors import CorruptFault
from shmbroker.log import residency
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    LOG_OVERHEAD,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.segment import Segment

JUDGED_BYTES_MAX = 1 << 20
JUDGED_BATCHES_MAX = 512
"""The most batches judged by one read: half a millisecond, whatever their size."""


def judge(
    segment: Segment, position: int, limit: int, offset: int, end_offset: int
) -> tuple[int, int]:
    """(end, next offset or -1 where `end` is `limit`) of what in [position, limit), two batch
    boundaries, may be given out.

    The first batch is that of `offset` and the others continue it, or, for offset -1, some may
    be missing; none ends behind `end_offset`. Of what was not judged before at most
    JUDGED_BYTES_MAX and JUDGED_BATCHES_MAX are looked at, but one batch. CorruptFault if that
    is damaged.
    """
    start, end, following = segment.judged
    if start <= position < end:
        return (limit, -1) if limit <= end else (end, following)
    if position != end or following < 0:
        start, end, following = position, position, -1
    is_dense = offset >= 0
    bound = position + JUDGED_BYTES_MAX
    last: tuple[int, tuple[int, ...], int] | None = None
    try:
        for _, (at, header) in zip(
            range(JUDGED_BATCHES_MAX), segment.good_batches(position, limit), strict=False
        ):
            base_offset, next_offset = (
                header[H_BASE_OFFSET],
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1,
            )
            if (
                header[H_LAST_OFFSET_DELTA] < 0
                or next_offset > end_offset
                or base_offset < segment.base_offset
            ):
                break
            if following < 0:
                if is_dense and not base_offset <= offset < next_offset:
                    break
            elif base_offset != following if is_dense else base_offset < following:
                break
            last = at, header, following
            following = next_offset
            end = at + header[H_LENGTH] + LOG_OVERHEAD
            if end >= bound:
                break
        if last is not None and not _is_in_place(segment, *last, is_dense=is_dense):
            end, _, following = last
    except residency.ColdBytes:
        segment.read_ahead(position, min(limit - position, JUDGED_BYTES_MAX))
        if last is not None:
            end, _, following = last  # What is behind it was not seen.
        if end == position:
            raise
    if end == position:
        raise CorruptFault(
            f"{segment.path}: the batch at position {position} is damaged", segment.path
        )
    note_judged(segment, start, end, following)
    return end, following


def note_judged(segment: Segment, start: int, end: int, next_offset: int) -> None:
    """Keep that [start, end), behind which `next_offset` follows, is as it should be."""
    segment.judged = start, end, next_offset
    if start == 0 and end >= segment.unjudged_bytes:
        segment.unjudged_bytes = 0


def _is_in_place(
    segment: Segment, position: int, header: tuple[int, ...], expected: int, *, is_dense: bool
) -> bool:
    """Whether a batch's base offset, which no CRC covers, is that of its place: the batch
    behind continues it, or else goes back and is the one that is wrong by the batch before.

    expected: where the batch before ends; -1: nobody has looked.
    """
    end = position + header[H_LENGTH] + LOG_OVERHEAD
    next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
    try:
        for _, behind in segment.headers(end, segment.size):
            if behind[H_BASE_OFFSET] == next_offset or (
                not is_dense and behind[H_BASE_OFFSET] > next_offset
            ):
                return True
            before = segment.end_before(position) if expected < 0 else expected
            return header[H_BASE_OFFSET] == before or (
                not is_dense and behind[H_BASE_OFFSET] < before
            )
    except CorruptFault:
        pass  # A neighbour that is damaged says nothing.
    return True
