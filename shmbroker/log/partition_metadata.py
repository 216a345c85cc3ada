"""`partition.metadata`: whose log a directory holds (source: Kafka `PartitionMetadataFile`).

version: 0
topic_id: 0PSFYTyPT6qFqpVANcHwVw

The file may get lost: removed by hand, or by a power cut before the first flush. The directory
bears the id as well, in an extended attribute that no other broker minds; where the file system has
none, or the directory was copied without, only the file says it.
"""

import os

from shmbroker.errors import CorruptFault
from shmbroker.ids import uuid_from_text, uuid_text
from shmbroker.log.checkpoints import read_file, write_file

_ATTRIBUTE = "user.shmbroker.topic_id"
_ID_BYTES = 16


def write_partition_metadata(path: str, topic_id: bytes, *, is_synced: bool = False) -> None:
    """Write the file, by default not synced: creating 50 partitions would wait for 100 fsyncs. The
    first flush of the log syncs it."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
    write_file(path, text, is_synced=is_synced)


def read_partition_metadata(path: str) -> bytes | None:
    """The topic id; None if there is no file or an empty one; CorruptFault if it is malformed."""
    text = read_file(path)
    if not text:
        return None
    lines = text.rstrip("\n").split("\n")
    if len(lines) != 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise CorruptFault(f"{path} is no partition.metadata of version 0", path)
    try:
        return uuid_from_text(lines[1].removeprefix("topic_id: "))
    except ValueError:
        raise CorruptFault(f"{path}: the topic id is no uuid", path) from None


def mark_directory(directory: str, topic_id: bytes) -> None:
    """Let a partition's directory bear its topic id, where it can."""
    if read_mark(directory) != topic_id:
        try:
            os.setxattr(directory, _ATTRIBUTE, topic_id)
        except OSError:
            pass


def read_mark(directory: str) -> bytes | None:
    """The topic id that a partition's directory bears; None if it bears none."""
    try:
        mark = os.getxattr(directory, _ATTRIBUTE)
    except OSError:
        return None
    return mark if len(mark) == _ID_BYTES else None
