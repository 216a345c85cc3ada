"""Small text files: replaced as a whole, and read strictly.

An offset checkpoint holds one offset for each partition of a log directory:

   0                       version
   2                       entries
   flights 0 1200          topic partition offset
   flights 1 1187

`recovery-point-offset-checkpoint`: flushed up to here; `replication-offset-checkpoint`: high
watermarks; `log-start-offset-checkpoint`: only where it is not a segment's base offset.
A file is written beside, fsynced, renamed over, and its directory fsynced, so that after a crash it
is the old one or the new one (source: Kafka `CheckpointFile`). An empty file is what Kafka leaves
before its first checkpoint: no entries.
"""

import os
import re
from collections.abc import Iterable

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.signs import waiting_for_disk

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"

_FILE_BYTES_MAX = 64 << 20
_READ_BYTES = 16 << 10
_NUMBER = re.compile(r"0|[1-9]\d{0,18}")

Offsets = dict[tuple[str, int], int]


def write_file(path: str, content: str | bytes, *, is_synced: bool = True) -> None:
    """Replace a small file as a whole; StorageFault if the disk refuses.

    Not synced, it survives the death of the process but maybe not that of the machine.
    """
    beside = path + ".tmp"
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, content.encode() if isinstance(content, str) else content)
            if is_synced:
                with waiting_for_disk():
                    os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, path)
        if is_synced:
            sync_directory(os.path.dirname(path))
    except OSError as error:
        raise StorageFault(f"can't write {path}: {error}", path) from error


def remove_files(paths: Iterable[str]) -> None:
    """Unlink what is there of these; StorageFault if the disk refuses."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageFault(f"can't remove {path}: {error}", path) from error


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, or OSError: a disk that fills up takes the first bytes without a word."""
    while written := os.write(fd, data):
        if written == len(data):
            return
        data = data[written:]


def write_all_at(fd: int, data: memoryview | bytes, position: int) -> None:
    """Write all of it at a place of a file: a disk that gets full takes a part. OSError if it
    refuses."""
    while written := os.pwrite(fd, data, position):
        if written == len(data):
            return
        data = data[written:]
        position += written


def sync_directory(directory: str) -> None:
    """Make names that were created, renamed or removed in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with waiting_for_disk():
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_names(directory: str) -> None:
    """Make the names in a log's directory durable; StorageFault if the disk refuses."""
    try:
        sync_directory(directory)
    except OSError as error:
        raise StorageFault(f"can't fsync {directory}: {error}", directory) from error


def read_file(path: str) -> str | None:
    """The text of a small file; None if there is none; CorruptFault if it is no text."""
    try:
        raw = _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}", path) from error
    if len(raw) > _FILE_BYTES_MAX:
        raise CorruptFault(f"{path} is larger than {_FILE_BYTES_MAX} bytes", path)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptFault(f"{path} is no text: {error}", path) from None


def _read(path: str) -> bytes:
    """Read a file as `open` and `read` would, which take twice as long: starts read thousands of
    them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.read(fd, _READ_BYTES)
        if len(raw) == _READ_BYTES:
            chunks = [raw]
            while len(chunks) <= _FILE_BYTES_MAX // _READ_BYTES and chunks[-1]:
                chunks.append(os.read(fd, _READ_BYTES))
            raw = b"".join(chunks)
        return raw
    finally:
        os.close(fd)


def encode_entries(entries: list[str]) -> str:
    """Version, count, entries: the form that all checkpoint files share."""
    return "\n".join(["0", str(len(entries)), *entries, ""])


def parse_entries(path: str, text: str, columns: int) -> list[list[str]]:
    """The fields of each entry; CorruptFault, naming the line, for anything unexpected."""
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if lines[0] != "0":
        raise CorruptFault(f"{path} line 1: version {lines[0][:20]!r} is not 0", path)
    if len(lines) < 2 or not _NUMBER.fullmatch(lines[1]) or int(lines[1]) != len(lines) - 2:
        raise CorruptFault(
            f"{path} line 2: does not count the {max(len(lines) - 2, 0)} entries", path
        )
    entries = [line.split(" ") for line in lines[2:]]
    for number, entry in enumerate(entries, 3):
        if len(entry) != columns:
            raise CorruptFault(
                f"{path} line {number}: {len(entry)} fields, expected {columns}", path
            )
    return entries


def parse_number(path: str, text: str, limit: int = 2**63) -> int:
    """A non-negative number below `limit` from a checkpoint; CorruptFault otherwise."""
    if not _NUMBER.fullmatch(text) or (number := int(text)) >= limit:
        raise CorruptFault(f"{path}: {text[:40]!r} is no number that can stand here", path)
    return number


def write_offsets(path: str, offsets: Offsets) -> None:
    """Write an offset checkpoint: {(topic, partition): offset}."""
    entries = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    write_file(path, encode_entries(entries))


def read_offsets(path: str) -> Offsets:
    """Read an offset checkpoint; empty if there is none; CorruptFault if it is not whole."""
    text = read_file(path)
    offsets: Offsets = {}
    for topic, partition, offset in parse_entries(path, text or "", 3):
        key = topic, parse_number(path, partition, 2**31)
        if key in offsets:
            raise CorruptFault(f"{path}: {topic}-{partition} stands there twice", path)
        offsets[key] = parse_number(path, offset)
    return offsets
