"""The leader epochs of a log that is opened: by their file, and where that is wrong by the batches.

The file is derived: each batch bears its epoch. But the batches may be leftovers from before a
truncation; so they judge the file only where they are known to be the log's.
"""

from __future__ import annotations

import logging
import os

from shmbroker.errors import CorruptFault
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.recovery.damage import report
from shmbroker.records.batch_layout import H_BASE_OFFSET, H_LAST_OFFSET_DELTA, H_LEADER_EPOCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def load_epochs(log: PartitionLog) -> None:
    """Take the epoch history from its file, or where that is damaged from the batches."""
    epochs = log.leader_epochs
    try:
        epochs.load()
        if epochs.latest >= 0:
            return
        # A file that was renamed into place and not synced may have lost its content.
        fault = None
    except CorruptFault as found:
        fault = found
        epochs.is_written = False
    end = rebuild_epochs(log)
    if fault is not None or (epochs.latest >= 0 and end > log.log_start_offset):
        why = fault or f"{epochs.path} is missing or empty"
        logger.warning("%s; made anew from the batches", why)


def rebuild_epochs(log: PartitionLog) -> int:
    """Rebuild the epoch history from all batches, as far as they can be read; where they end.

    One whose offset can't stand where it is says nothing: of a torn write's head the epoch may be
    there without the base offset, which reads as less than it was.
    """
    epochs = log.leader_epochs
    epochs.clear()
    end = 0
    limits = [segment.base_offset for segment in log.segments[1:]] + [NO_LIMIT]
    for segment, limit in zip(log.segments, limits, strict=True):
        least = segment.base_offset
        try:
            for _, header in segment.headers(0, segment.size):
                base_offset = header[H_BASE_OFFSET]
                if least <= base_offset < limit:
                    epochs.assign(header[H_LEADER_EPOCH], base_offset)
                    least = base_offset + 1
                    end = least + header[H_LAST_OFFSET_DELTA]
        except CorruptFault:
            pass  # What follows still counts.
    return end


def check_epochs(log: PartitionLog, header: tuple[int, ...]) -> None:
    """Compare the epoch history with a batch that is known to be right; if it does not fit, it is
    rebuilt.

    The history begins where the log does, which may be inside a batch after DeleteRecords. It says
    nothing of a batch that is before that.
    """
    epochs = log.leader_epochs
    base_offset = header[H_BASE_OFFSET]
    if base_offset + header[H_LAST_OFFSET_DELTA] < log.log_start_offset:
        return
    known = epochs.epoch_at(max(base_offset, log.log_start_offset))
    if 0 <= header[H_LEADER_EPOCH] != known:
        logger.warning(
            "%s does not fit the batch at offset %d; made anew from the batches",
            epochs.path,
            base_offset,
        )
        rebuild_epochs(log)


def cut_epochs(log: PartitionLog) -> None:
    """Keep the epochs of what is between the log's start and its end; those that can't be are
    named.

    Not where a tiered log has nothing: a death has come between the epochs of what is in the store
    and the segment that is to begin behind it (`truncation.begin_at`).
    """
    is_begun = log.config.is_tiered and not any(segment.size for segment in log.segments)
    for epoch, start in log.leader_epochs.entries:
        if start > log.log_end_offset and not is_begun:
            report(
                log,
                "%s ends at offset %d, and %s lets leader epoch %d begin at %d: it is not used",
                log.directory,
                log.log_end_offset,
                os.path.basename(log.leader_epochs.path),
                epoch,
                start,
            )
    log.leader_epochs.truncate_from_end(log.log_end_offset)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    log.write_epochs()
