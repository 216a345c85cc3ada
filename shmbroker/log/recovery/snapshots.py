"""Finds the producer snapshot of a log: the newest that fits the batches around it.

A snapshot may be torn, or another log's. One that does not fit is removed; an older one and the
batches behind it tell the same.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.file_names import SNAPSHOT, file_name
from shmbroker.log.places import segment_number
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.recovery.damage import report
from shmbroker.log.recovery.places import gaps_end
from shmbroker.log.recovery.replay import follow
from shmbroker.log.segment_indexes import load_indexes
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_WINDOW_ENTRIES = 256
"""Index entries before a snapshot whose batches are walked too: the producers' last five."""


class KnownProducers(NamedTuple):
    """What is known of producers before an offset."""

    offset: int
    """The offset behind which the batches tell."""
    stored: ProducerState
    """The producers by the snapshot; empty without one."""
    recent: ProducerState
    """The producers by the batches shortly before the offset, if they were walked."""


def remove_unfit_snapshots(log: PartitionLog, recovery_point: int, *, clean: bool) -> None:
    """Remove the snapshots that can't be the log's, or, where it was not closed cleanly, are torn.

    Before the recovery point they are durable.
    """
    if clean:
        _name_foreign_snapshots(log)
    log.snapshots.remove_behind(log.log_end_offset)
    if clean:
        return
    for snapshot in [taken for taken in log.snapshots.offsets if taken >= recovery_point]:
        try:
            read_snapshot(snapshot_path(log, snapshot))
        except CorruptFault:
            log.snapshots.remove(snapshot)


def _name_foreign_snapshots(log: PartitionLog) -> None:
    """Name the snapshots whose offsets the log does not reach, though it was closed."""
    beyond = [at for at in log.snapshots.offsets if at > log.log_end_offset]
    if beyond:
        report(
            log,
            "%s ends at offset %d: the producer snapshots at %s are not its",
            log.directory,
            log.log_end_offset,
            ", ".join(map(str, beyond)),
        )


def snapshot_path(log: PartitionLog, offset: int) -> str:
    """Where the snapshot at an offset lies."""
    return os.path.join(log.directory, file_name(offset, SNAPSHOT))


def newest_fitting(
    log: PartitionLog, *, is_window_walked: bool, now_ms: int, offset_max: int
) -> KnownProducers:
    """Find the newest good snapshot at `offset_max` or before; those that do not fit are removed.

    is_window_walked: it is compared with the batches shortly before it, too; once one did not fit,
    the others are anyway.
    """
    first = log.segments[0].base_offset
    for offset in reversed(log.snapshots.offsets[:]):
        if offset > offset_max:
            continue
        if offset < first:
            break  # What followed it is gone: it would refuse who wrote since.
        try:
            return _read_fitting(log, offset, is_window_walked=is_window_walked, now_ms=now_ms)
        except StorageFault as fault:
            logger.warning("%s; its producers are found in the batches", fault)
            log.snapshots.remove(offset)
            is_window_walked = True
    return KnownProducers(first, ProducerState(), ProducerState())


def _read_fitting(
    log: PartitionLog, offset: int, *, is_window_walked: bool, now_ms: int
) -> KnownProducers:
    """Read the snapshot at an offset; CorruptFault if it is not the log's."""
    path = snapshot_path(log, offset)
    stored, recent = read_snapshot(path), ProducerState()
    if stored.last_offset >= offset:
        raise CorruptFault(f"{path} knows offset {stored.last_offset}: it is another's", path)
    if offset == log.log_end_offset and not _fits_last_batch(log, stored, now_ms):
        raise CorruptFault(f"{path} does not know the producer of the last batch", path)
    if is_window_walked and len(stored):
        recent = walk_window(log, offset)
        if not stored.fits(recent, is_dense=gaps_end(log) <= 0):
            raise CorruptFault(f"{path} does not fit the batches before it", path)
    return KnownProducers(offset, stored, recent)


def _fits_last_batch(log: PartitionLog, stored: ProducerState, now_ms: int) -> bool:
    """Whether producers are those of the log's end, as far as its last batch tells.

    now_ms: 0 if nobody knows: any may have expired then.
    """
    segment = log.segments[-1]
    try:
        _, header = segment.find(log.log_end_offset - 1)
    except CorruptFault:
        return True
    if header is None or header[H_PRODUCER_ID] < 0 or header[H_ATTRIBUTES] & CONTROL_BIT:
        return True
    entry = stored.producers.get(header[H_PRODUCER_ID])
    if entry is None:  # It may have expired.
        expired_ms = now_ms - log.config.producer_id_expiration_ms
        return not now_ms or bool(header[H_MAX_TIMESTAMP] <= expired_ms)
    return (
        entry.epoch >= header[H_PRODUCER_EPOCH]
        and entry.batches != []
        and entry.last_offset == header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
    )


def walk_window(log: PartitionLog, end: int) -> ProducerState:
    """What the batches shortly before an offset tell of their producers."""
    recent = ProducerState()
    start = _window_start(log, end)
    for segment in log.segments[segment_number(log, start) : segment_number(log, end) + 1]:
        follow(recent, segment, start, end)
    return recent


def _window_start(log: PartitionLog, offset: int) -> int:
    """The offset that lies a window's length of index entries before `offset`."""
    number = segment_number(log, offset)
    left = _WINDOW_ENTRIES
    while True:
        segment = log.segments[number]
        load_indexes(segment)
        index = segment.offset_index
        relative = offset - segment.base_offset
        low = index.count_below(relative, 0)
        if low > left:
            return segment.base_offset + index.entry(low - left)[0]
        left -= low
        if number == 0 or left <= 0:
            return segment.base_offset
        number -= 1
