"""Lists the segments and producer snapshots that a log's directory holds.

What interrupted work left behind is finished or removed first. No file is looked into: with
thousands of logs of many segments each, that is what a start would take its time for.
"""

from __future__ import annotations

import logging
import os

from shmbroker.errors import StorageFault
from shmbroker.log.compaction.cleaned_files import settle
from shmbroker.log.file_names import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
    sort_by_suffix,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)


def list_files(log: PartitionLog, now_ms: int) -> set[int]:
    """Give a log the segments and snapshots of its directory; the base offsets of the segments that
    lack an index."""
    kinds = _names_by_suffix(log.directory)
    _remove_orphans(log.directory, kinds)
    log.snapshots.offsets = _offsets(kinds, SNAPSHOT)
    for base_offset in _offsets(kinds, TXN_INDEX):
        log.aborted.found(base_offset)
    last: Segment | None = None
    for base_offset in _offsets(kinds, LOG):
        segment = log.new_segment(base_offset, now_ms, is_found=True)
        if last is not None:
            last.end_offset = base_offset
        log.segments.append(segment)
        last = segment
    if len(kinds[LOG]) == len(kinds[INDEX]) == len(kinds[TIME_INDEX]):
        return set()
    return {
        offset
        for offset in _offsets(kinds, LOG)
        if file_name(offset, INDEX) not in kinds[INDEX]
        or file_name(offset, TIME_INDEX) not in kinds[TIME_INDEX]
    }


def _names_by_suffix(directory: str) -> dict[str, list[str]]:
    """The names of a log's files, once what was interrupted is finished or removed.

    The directory is made if there is none. StorageFault if the disk refuses.
    """
    try:
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            os.makedirs(directory)
            names = []
        kinds, others = sort_by_suffix(names)
        if others and settle(directory, names, others):
            kinds, others = sort_by_suffix(os.listdir(directory))
        for name in others:
            if name.endswith(".tmp"):
                os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise StorageFault(f"can't open {directory}: {error}", directory) from error
    return kinds


def _remove_orphans(directory: str, kinds: dict[str, list[str]]) -> None:
    """Remove indexes whose segment is gone, as Kafka does it: they are all that tells of it."""
    count, newest = len(kinds[LOG]), max(kinds[LOG], default="")[:20]
    for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
        if len(kinds[suffix]) == (count if suffix != TXN_INDEX else 0) and (
            not count or max(kinds[suffix], default=newest)[:20] == newest
        ):
            continue  # one for each: 100,000 segments are not compared one by one
        known = {name[:20] for name in kinds[LOG]}
        for name in [name for name in kinds[suffix] if name[:20] not in known]:
            kinds[suffix].remove(name)
            path = os.path.join(directory, name)
            logger.warning("%s has no segment beside it, which is lost; it is removed", path)
            os.unlink(path)


def _offsets(kinds: dict[str, list[str]], suffix: str) -> list[int]:
    """The offsets in the names with a suffix, ascending."""
    names = kinds[suffix]
    names.sort()
    return [offset for name in names if (offset := offset_of(name, suffix)) is not None]
