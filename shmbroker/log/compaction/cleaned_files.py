"""How compacted segments take the place of the old ones, whenever a process dies.

Each file of a new segment goes through three names, `N` being its base offset:

   N.log.cleaned   written and made durable by the cleaner; nobody reads it
   N.log.swap      complete: from here on it will be finished, after a crash too
   N.log           in its place

Steps (source: Kafka `LocalLog.replaceSegments`, `LogLoader`), by the log's owner:
  A  .cleaned -> .swap, of the last segment first; the directory is made durable
  B  old files -> .deleted; they are unlinked `file.delete.delay.ms` later
  C  .swap -> final name

A pass begins where no `.cleaned` of an earlier one is left.

At start-up: `.deleted` and `.cleaned` are removed. A `.swap` at or behind the first `.cleaned` is
removed too, as A was not done: the old segments are all there. Any other is finished: the old
segments that it stands for, those that begin in its offsets, are removed, and C is done.
"""

import logging
import os
from contextlib import suppress

from shmbroker import logs
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import remove_files, sync_directory
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name, offset_of
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    HEADER_SIZE,
    LOG_OVERHEAD,
)

logger = logging.getLogger(__name__)

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"

_MARKS = (CLEANED, SWAP, DELETED)

SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
"""The files of a segment, in the order in which they are renamed."""


def cleaned_path(directory: str, base_offset: int, suffix: str, mark: str = CLEANED) -> str:
    """Where the cleaner writes a file of a new segment, or what its name becomes."""
    return os.path.join(directory, file_name(base_offset, suffix) + mark)


def remove_cleaned(directory: str, base_offset: int | None = None) -> None:
    """Remove what a cleaner has written, of one segment or of all. StorageFault if the disk
    refuses: no pass may begin then, as one that is interrupted would pass for one that was not
    done."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageFault(f"can't list {directory}: {error}", directory) from error
    for name in names:
        if name.endswith(CLEANED) and (
            base_offset is None or name.startswith(file_name(base_offset, "."))
        ):
            remove_files((os.path.join(directory, name),))


def try_remove_cleaned(directory: str) -> None:
    """Remove all of it that the disk lets go of, where a pass has ended. Never a fault."""
    try:
        remove_cleaned(directory)
    except StorageFault as fault:
        again = "the next pass over this log begins with it"
        logger.warning("%s; %s", fault, again, extra=logs.seldom(again))


def rename_files(directory: str, base_offset: int, before: str, after: str) -> None:
    """Rename the files of a segment that are there from one of the suffixes above to another.

    StorageFault if the disk refuses one of them: all have their names of before then, as far as the
    disk lets them.
    """
    renamed: list[str] = []
    for suffix in SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, suffix))
        try:
            os.rename(path + before, path + after)
        except FileNotFoundError:
            if suffix == LOG:  # the first: nothing was renamed yet
                raise StorageFault(f"{path}{before} is not there", path) from None
            continue
        except OSError as error:
            for done in reversed(renamed):
                with suppress(OSError):
                    os.rename(done + after, done + before)
            raise StorageFault(f"can't rename {path}{before}: {error}", path) from error
        renamed.append(path)


def deleted_paths(directory: str, base_offset: int) -> list[str]:
    """The names that the files of a replaced segment wait under."""
    return [
        os.path.join(directory, file_name(base_offset, suffix) + DELETED) for suffix in SUFFIXES
    ]


def settle(directory: str, names: list[str], others: list[str]) -> bool:
    """Finish or undo, at start-up, what was interrupted; True if there was anything.

    `names` are the directory's, `others` those of them that no plain file of a segment has.
    StorageFault if the disk fails; CorruptFault if a `.swap` file is damaged, which is only ever
    renamed when it is whole.
    """
    if not any(name.endswith(_MARKS) for name in others):
        return False
    undone: list[int] = []
    swaps: list[int] = []
    leftovers = []
    for name in names:
        if name.endswith(SWAP):
            if (base_offset := offset_of(name.removesuffix(SWAP), LOG)) is not None:
                swaps.append(base_offset)
        elif name.endswith((DELETED, CLEANED)):
            leftovers.append(name)
            plain = name.removesuffix(CLEANED)
            if plain != name and (digits := plain[:20]).isdigit():
                undone.append(int(digits))
    swap_names = [name for name in names if name.endswith(SWAP)]
    limit = min(undone, default=1 << 63)
    # Before anything is touched: what is damaged must stay as it is, whole.
    ends = [
        (base_offset, _end_offset(cleaned_path(directory, base_offset, LOG, SWAP), base_offset))
        for base_offset in sorted(swaps)
        if base_offset < limit
    ]
    # `.swap` first: without the `.cleaned` beside it, it would pass for one to be finished.
    unfinished = [name for name in swap_names if int(name[:20]) >= limit]
    remove_files(os.path.join(directory, name) for name in unfinished)
    sync_directory(directory)
    remove_files(os.path.join(directory, name) for name in leftovers)
    for base_offset, end_offset in ends:
        _finish(directory, names, base_offset, end_offset)
    # Indexes whose .log has its final name already.
    for name in swap_names:
        path = os.path.join(directory, name)
        if int(name[:20]) < limit and os.path.exists(path):
            os.rename(path, path.removesuffix(SWAP))
    sync_directory(directory)
    return True


def _finish(directory: str, names: list[str], base_offset: int, end_offset: int) -> None:
    for name in names:
        old = offset_of(name, LOG)
        if old is not None and base_offset <= old < max(end_offset, base_offset + 1):
            remove_files(os.path.join(directory, file_name(old, suffix)) for suffix in SUFFIXES)
    rename_files(directory, base_offset, SWAP, "")  # C


def _end_offset(path: str, base_offset: int) -> int:
    """One past the last offset in a segment file."""
    end_offset, position = base_offset, 0
    try:
        with open(path, "rb", buffering=1 << 16) as file:
            size = os.fstat(file.fileno()).st_size
            while position < size:
                file.seek(position)
                raw = file.read(HEADER_SIZE)
                if len(raw) < HEADER_SIZE:
                    raise CorruptFault(f"{path} has no whole batch at {position}", path)
                header = BATCH_HEADER.unpack(raw)
                position += header[H_LENGTH] + LOG_OVERHEAD
                if header[H_LENGTH] < HEADER_SIZE - LOG_OVERHEAD or position > size:
                    raise CorruptFault(f"{path} has no whole batch before {position}", path)
                end_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}", path) from error
    return end_offset
