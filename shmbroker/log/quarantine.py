"""What a start or a repair takes out of a log, as it can't be served: kept beside the node's
directory, for people who want to look.

   <data directory>/node-1/flights-0/…
   <data directory>/quarantine/node-1/flights-0/<20 digits>.log

Never inside: Apache Kafka ends on what it can't place there. Nothing is ever replaced or removed.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
from errno import EIO

from shmbroker.crc32c import crc32c
from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import sync_directory, write_all
from shmbroker.log.file_names import LOG, META_PROPERTIES, file_name
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_CRC,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
)
from shmbroker.signs import sign, waiting_for_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
COPY_BYTES = 16 << 20
"""The most bytes of a file in memory at once."""


def quarantine_of(directory: str) -> str:
    """Where the files of a partition's directory are put aside."""
    node, name = os.path.split(directory)
    data, node_name = os.path.split(node)
    return os.path.join(data, QUARANTINE, node_name, name)


def put_aside(directory: str, paths: list[str], *, is_kept: bool = False) -> None:
    """Move files there, or copy them if `is_kept`. StorageFault if the disk refuses."""
    import shutil  # with all of its archive formats: nothing for a start

    away = quarantine_of(directory)
    try:
        os.makedirs(away, exist_ok=True)
        for path in paths:
            target = _free_name(os.path.join(away, os.path.basename(path)))
            with waiting_for_disk():
                (shutil.copy2 if is_kept else shutil.move)(path, target)
        sync_directory(away)
    except OSError as error:
        raise StorageFault(f"can't put files of {directory} aside: {error}", directory) from error


def put_strangers_aside(directory: str) -> bool:
    """Move what has a file's name in a partition's directory and is none (a directory, a pipe);
    False if there is nothing of the kind, or no place for it."""
    if not has_place(directory):
        return False
    try:
        with os.scandir(directory) as entries:
            strangers = [entry.path for entry in entries if not entry.is_file()]
    except OSError:
        return False
    if strangers:
        put_aside(directory, strangers)
    for path in strangers:
        logger.error("%s can't be there; it is in quarantine/ now", path)
    return bool(strangers)


def has_place(directory: str) -> bool:
    """Whether a partition's directory lies in a node's, beside which there is a place."""
    return os.path.exists(os.path.join(os.path.dirname(directory), META_PROPERTIES))


def put_tail_aside(path: str, position: int, *, is_any: bool = False) -> int:
    """Copy what is whole behind a damaged place of a segment, as a segment; how many bytes.

    Nothing for a torn write, or for space that was allocated. is_any: damaged or not, all that
    isn't zeros.
    """
    with open(path, "rb") as file:
        if position >= os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            name = os.path.basename(path)
            found = position if is_any else find_whole_batch(content, position)
            if found < 0:
                return 0
            if not is_any:
                header = BATCH_HEADER.unpack_from(content, found)
                name = file_name(max(header[H_BASE_OFFSET], 0), LOG)
            end = _end_of_content(content, found)
        if end > found:
            keep_piece(os.path.dirname(path), name, file.fileno(), found, end)
    return end - found


def _end_of_content(content: mmap.mmap, position: int) -> int:
    """Where the zeros begin that stand behind everything else from `position` on."""
    end = len(content)
    while end > position:
        sign()
        start = max(position, end - COPY_BYTES)
        with waiting_for_disk():
            size = len(content[start:end].rstrip(b"\0"))
        if size:
            return start + size
        end = start
    return position


def keep_piece(directory: str, name: str, source: int, position: int, end: int) -> None:
    """Keep bytes of a file of a partition's directory, open as `source`, under a name there."""
    away = quarantine_of(directory)
    try:
        os.makedirs(away, exist_ok=True)
        target = _free_name(os.path.join(away, name))
        with open(target, "xb", buffering=0) as file:
            copy_piece(source, file.fileno(), position, end)
        sync_directory(away)
    except OSError as error:
        raise StorageFault(
            f"can't put a piece of {directory}/{name} aside: {error}", directory
        ) from error


def copy_piece(source: int, target: int, position: int, end: int) -> None:
    """Copy bytes of one open file to the end of another; OSError if it has fewer. By steps: it may
    be a whole segment."""
    while position < end:
        sign()
        with waiting_for_disk():
            piece = os.pread(source, min(COPY_BYTES, end - position), position)
            if not piece:
                raise OSError(EIO, f"it ends at {position}, before {end}")
            write_all(target, piece)
        position += len(piece)


def put_end_aside(log: PartitionLog, offset: int, bytes_max: int) -> bool:
    """Copy what a log (`PartitionLog`) holds from the batch with `offset` on, as segments; False,
    and nothing is done, if that is more than `bytes_max`. StorageFault if the disk refuses."""
    pieces = []
    for segment in log.segments:
        if segment is log.segments[-1] or segment.end_offset > offset:
            position = segment.find(offset)[0] if segment.base_offset < offset else 0
            if position < segment.size:
                pieces.append((segment.path, position, segment.size - position))
    if sum(piece[2] for piece in pieces) > bytes_max:
        return False
    for path, position, _ in pieces:
        put_tail_aside(path, position, is_any=True)
    return True


def _free_name(path: str) -> str:
    if not os.path.exists(path):
        return path
    return next(
        name for number in itertools.count(1) if not os.path.exists(name := f"{path}.{number}")
    )


def find_whole_batch(content: mmap.mmap | bytes, position: int) -> int:
    """Where one begins, anywhere from `position` on; -1: nowhere.

    It looks everywhere, as a length may be what is damaged.
    """
    magic = position + MAGIC_POSITION
    while (magic := content.find(bytes([MAGIC]), magic)) >= 0:
        if whole_batch_at(content, magic - MAGIC_POSITION):
            return magic - MAGIC_POSITION
        magic += 1
        sign()
    return -1


def whole_batch_at(content: mmap.mmap | bytes, position: int) -> tuple[int, ...] | None:
    """The header of the batch at `position`, if it is one and right by its CRC."""
    if position + HEADER_SIZE > len(content):
        return None
    header = BATCH_HEADER.unpack_from(content, position)
    end = position + LOG_OVERHEAD + header[H_LENGTH]
    if header[H_MAGIC] != MAGIC or not position + HEADER_SIZE <= end <= len(content):
        return None
    if header[H_CRC] != crc32c(content[position + ATTRIBUTES_POSITION : end]):
        return None
    return header
