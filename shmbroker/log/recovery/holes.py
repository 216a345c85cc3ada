"""A damaged segment of a log that no other replica has: what is whole behind the damage is served.

`mending` finds what is right of it; here the log takes that over.
"""

from __future__ import annotations

from shmbroker.errors import StorageFault
from shmbroker.log.mending import lines_of, look_at, rewrite
from shmbroker.log.recovery.damage import report
from shmbroker.log.recovery.epochs import rebuild_epochs
from shmbroker.log.recovery.places import gaps_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


def mend_segment(log: PartitionLog, segment: Segment, recovery_point: int, limit: int) -> bool:
    """Leave holes where a segment is damaged, and set right what its neighbours bear out; False if
    there is nothing of the kind.

    limit: where the next segment begins.
    """
    before = segment is not log.segments[0]
    try:
        mend = look_at(
            segment.path,
            segment.base_offset,
            log.leader_epochs.epoch_at(segment.base_offset - 1) if before else -1,
            limit,
            gaps_end(log),
            recovery_point,
        )
    except OSError as error:
        raise StorageFault(f"can't read {segment.path}: {error}", segment.path) from error
    for line in lines_of(segment.path, mend):
        report(log, "%s", line)
    for hole in mend.holes:
        _note_hole(log, hole.end_offset)
    if mend.is_of_bytes:
        rewrite(segment.path, mend)
        segment.on_rewritten()
    if mend.moved:
        rebuild_epochs(log)
    return mend.is_any


def _note_hole(log: PartitionLog, end_offset: int) -> None:
    """Let readers and later starts jump over what is missing before `end_offset`."""
    if not log.config.is_compacted:
        log.cleaned_offset = max(log.cleaned_offset, end_offset)
