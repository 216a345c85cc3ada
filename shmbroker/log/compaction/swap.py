"""The steps of `cleaned_files`, done to a log that is open.

   prepare_swap      A  .cleaned -> .swap; then the caller makes the directory durable
   replace_segments  B  the old segments' files -> .deleted
                     C  .swap -> final name; the new segment stands in the place of the old ones

A repair of a damaged segment has a `.swap` file already, and does B and C only. Where the disk
refuses B or C, they are undone, and done again later (`broker.swaps`).
"""

from __future__ import annotations

import os
from contextlib import suppress

from shmbroker.errors import StorageFault
from shmbroker.log.compaction.cleaned_files import (
    CLEANED,
    SWAP,
    cleaned_path,
    deleted_paths,
    rename_files,
)
from shmbroker.log.file_names import LOG
from shmbroker.log.retiring import bring_back, set_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

    Groups = list[tuple[list[Segment], int]]
    """The segments that become one, and the size of that one."""


class NotUndoneFault(StorageFault):
    """Files and segments are apart: the log can't be used before the next start, which mends it."""


def prepare_swap(directory: str, groups: Groups) -> None:
    """Step A of `cleaned_files`, without making it durable: that is the caller's.

    groups: the segments that become one, and the size of that one. StorageFault if the disk refuses
    a rename: none is done then.
    """
    done: list[int] = []
    try:
        for old, _ in reversed(groups):
            rename_files(directory, old[0].base_offset, CLEANED, SWAP)  # A
            done.append(old[0].base_offset)
    except StorageFault:
        for base_offset in reversed(done):
            with suppress(StorageFault):
                rename_files(directory, base_offset, SWAP, CLEANED)
        raise


def replace_segments(log: PartitionLog, old: list[Segment], size: int, now_ms: int) -> list[str]:
    """Steps B and C of one group: a new segment in the place of the old ones; what to unlink later.

    StorageFault if the disk refuses a rename: the old ones are in their place, and `.swap` files
    wait for another try. Until that is done nothing else may change these segments: a start would
    let the `.swap` files take their place. NotUndoneFault if it refuses to undo the others, too.
    """
    place = log.segments.index(old[0])
    assert log.segments[place : place + len(old)] == old, "the log has changed meanwhile"
    aside: list[Segment] = []
    try:
        for segment in old:
            set_aside(log, segment)  # B
            aside.append(segment)
        rename_files(log.directory, old[0].base_offset, SWAP, "")  # C
    except StorageFault as fault:
        for segment in reversed(aside):
            with suppress(StorageFault):
                bring_back(log, segment)
        if not all(
            os.path.exists(cleaned_path(log.directory, one.base_offset, LOG, "")) for one in old
        ):
            raise NotUndoneFault(
                f"{fault}; what was renamed before can't be undone", fault.path
            ) from fault
        raise
    for segment in old:
        log.aborted.dropped(segment.base_offset)
    new = log.new_segment(old[0].base_offset, now_ms)
    new.size, new.end_offset = size, old[-1].end_offset
    if os.path.exists(log.aborted.path(new.base_offset)):
        log.aborted.found(new.base_offset)
    log.segments[place : place + len(old)] = [new]
    log.on_segments_changed()
    log.snapshots.prune(segment.base_offset for segment in log.segments)
    return [path for one in old for path in deleted_paths(log.directory, one.base_offset)]
