"""What lies in a log directory, and reading it without a broker: kinds of files, and batches.

Rules
 * Files are only read, in pieces; nothing is trusted, nothing mapped (the owner may cut a file).
 * What must not be there is a CorruptFault that names the file and the position.
 * Zeros behind the last batch or entry are space that the writer allocated ahead.
 * A broker may work there: what was listed may be gone when it is opened (`is_gone`).
"""

import os
import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.file_names import (
    CLEAN_SHUTDOWN,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    QUORUM_STATE,
    SNAPSHOT,
    TIER_CACHE,
    TIME_INDEX,
    TXN_INDEX,
)
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.log.transaction_index import ENTRY as ABORTED_ENTRY
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)

EPOCHS = LEADER_EPOCH_CHECKPOINT
OFFSET_CHECKPOINT = "-offset-checkpoint"
METADATA_SNAPSHOT = ".checkpoint"

_NAMED = (EPOCHS, PARTITION_METADATA, META_PROPERTIES, QUORUM_STATE, CLEAN_SHUTDOWN)
_SEGMENT_FILE = re.compile(
    r"\d{20}(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(\.deleted|\.cleaned|\.swap)?"
)
_SNAPSHOT_FILE = re.compile(r"\d{20}-\d{10}\.checkpoint(\.deleted)?|bootstrap\.checkpoint")

CHUNK_BYTES = 4 << 20

ENTRIES = {INDEX: OffsetIndex.ENTRY, TIME_INDEX: TimeIndex.ENTRY, TXN_INDEX: ABORTED_ENTRY}
"""Layout of an entry by the kind of index file."""

Batch = tuple[int, tuple[int, ...], memoryview]
"""(position, header as BATCH_HEADER unpacks it, the whole batch)."""


def kind_of(path: str) -> str | None:
    """What a file is by its name: LOG, INDEX …, EPOCHS …; None if it is nothing of ours."""
    name = os.path.basename(path)
    if name in _NAMED:
        return name
    if match := _SEGMENT_FILE.fullmatch(name):
        return match["kind"]
    if _SNAPSHOT_FILE.fullmatch(name):
        return METADATA_SNAPSHOT
    return OFFSET_CHECKPOINT if name.endswith(OFFSET_CHECKPOINT) else None


def files_below(path: str) -> Iterator[str]:
    """The file itself, or all of a known kind in a directory and below, in order; without what lies
    in the cache of a data directory, which is no log."""
    check_readable(path)
    if not os.path.isdir(path):
        if kind_of(path) is None:
            raise StorageFault(
                f"{path} is no file of a log directory, by its name: .log, .index, .timeindex, "
                ".txnindex, .snapshot, .checkpoint, meta.properties, …"
            )
        yield path
        return
    for directory, directories, names in os.walk(path, onerror=_refuse):
        directories[:] = sorted(set(directories) - {TIER_CACHE})
        for name in sorted(names):
            if kind_of(name):
                yield os.path.join(directory, name)


def check_readable(path: str) -> None:
    """StorageFault where there is nothing, or where it can't be seen what there is."""
    try:
        os.stat(path)
    except FileNotFoundError:
        raise StorageFault(f"there is no {path}") from None
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error.strerror}") from error


def _refuse(error: OSError) -> None:
    """A directory that can't be listed is no empty one; one that is gone meanwhile is."""
    if not isinstance(error, FileNotFoundError):
        raise StorageFault(f"can't read {error.filename}: {error.strerror}") from error


def is_gone(path: str) -> bool:
    """Whether a file that was listed has been removed or renamed since: no damage, but a broker
    whose retention, compaction or deletion of a topic went on meanwhile."""
    return not os.path.lexists(path)


def open_file(path: str) -> BinaryIO:
    """The file, to be read; StorageFault if that is refused."""
    try:
        return cast(BinaryIO, open(path, "rb", buffering=0))
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}") from error


def base_offset_of(path: str) -> int:
    """The offset in a segment file's name."""
    return int(os.path.basename(path)[:20])


def topic_of(path: str) -> str:
    """The topic whose partition's directory a file lies in, or ""."""
    directory = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return directory.rpartition("-")[0]


def read_batches(path: str) -> Iterator[Batch]:
    """The batches of a segment or metadata snapshot, in order, CRC not looked at.

    CorruptFault where neither a whole batch nor allocated zeros begin.
    """
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        data, start, position = memoryview(b""), 0, 0
        while position < end:
            at = position - start
            if at + HEADER_SIZE > len(data):
                data, start, at = _read(path, file.fileno(), position, CHUNK_BYTES), position, 0
                if len(data) < HEADER_SIZE:
                    break
            header = BATCH_HEADER.unpack_from(data, at)
            size = header[H_LENGTH] + LOG_OVERHEAD
            if header[H_MAGIC] != MAGIC or size < HEADER_SIZE:
                break
            if size > end - position:
                raise CorruptFault(
                    f"{path} at position {position}: the batch of {size} bytes does not end "
                    f"within the file"
                )
            if at + size > len(data):
                wanted = max(size, CHUNK_BYTES)
                data, start, at = _read(path, file.fileno(), position, wanted), position, 0
                if len(data) < size:
                    break
            yield position, header, data[at : at + size]
            position += size
        _check_zeros(path, file.fileno(), position, end)


def _read(path: str, fd: int, position: int, size: int) -> memoryview:
    return memoryview(_pread(path, fd, size, position))


def _pread(path: str, fd: int, size: int, position: int) -> bytes:
    try:
        return os.pread(fd, size, position)
    except OSError as error:  # A disk that can't read its sectors any more.
        raise StorageFault(f"can't read {path} at position {position}: {error}") from error


def _check_zeros(path: str, fd: int, position: int, end: int) -> None:
    first = position
    while position < end:
        piece = _pread(path, fd, CHUNK_BYTES, position)
        if not piece:
            return
        if piece.count(0) != len(piece):
            raise CorruptFault(
                f"{path} at position {first}: neither a record batch of magic 2 nor empty space"
            )
        position += len(piece)


def read_entries(path: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, entry) of an index file; CorruptFault if it doesn't end with whole entries."""
    entry = ENTRIES[kind_of(path) or ""]
    size = entry.size
    chunk = CHUNK_BYTES // size * size
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        for start in range(0, end, chunk):
            piece = _pread(path, file.fileno(), chunk, start)
            whole = len(piece) // size * size
            for number, fields in enumerate(entry.iter_unpack(piece[:whole])):
                if not any(fields):
                    _check_zeros(path, file.fileno(), start + number * size, end)
                    return
                yield start + number * size, fields
            if whole != len(piece):
                raise CorruptFault(
                    f"{path} at position {start + whole}: {len(piece) - whole} bytes are no entry"
                )


__all__ = [
    "CLEAN_SHUTDOWN",
    "ENTRIES",
    "EPOCHS",
    "INDEX",
    "LOG",
    "METADATA_SNAPSHOT",
    "META_PROPERTIES",
    "OFFSET_CHECKPOINT",
    "PARTITION_METADATA",
    "QUORUM_STATE",
    "SNAPSHOT",
    "TIME_INDEX",
    "TXN_INDEX",
    "Batch",
    "base_offset_of",
    "files_below",
    "is_gone",
    "kind_of",
    "open_file",
    "read_batches",
    "read_entries",
    "topic_of",
]
