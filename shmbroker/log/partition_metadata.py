"""`partition.metadata`: whose log a directory holds (source: Kafka `PartitionMetadataFile`).

version: 0
topic_id: 0PSFYTyPT6qFqpVANcHwVw
"""

from shmbroker.errors import CorruptFault
from shmbroker.ids import uuid_from_text, uuid_text
from shmbroker.log.checkpoints import read_file, write_file


def write_partition_metadata(path: str, topic_id: bytes, *, is_synced: bool = False) -> None:
    """Not synced: creating 50 partitions would wait for 100 fsyncs. The log's first flush does."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
    write_file(path, text, is_synced=is_synced)


def read_partition_metadata(path: str) -> bytes | None:
    """The topic id; None if there is no file or an empty one; CorruptFault if it is malformed."""
    text = read_file(path)
    if not text:
        return None
    lines = text.rstrip("\n").split("\n")
    if len(lines) != 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise CorruptFault(f"{path} is no partition.metadata of version 0")
    try:
        return uuid_from_text(lines[1].removeprefix("topic_id: "))
    except ValueError:
        raise CorruptFault(f"{path}: the topic id is no uuid") from None
