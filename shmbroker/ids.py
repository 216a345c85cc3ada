"""Identifiers: topic ids, cluster ids, directory ids, the ids of classic members, and the key of a
partition on the rings.

A Kafka uuid is 16 bytes; as text it is url-safe base64 without padding (22 characters).
The all-zero uuid means "none"; the uuid 1 is `__cluster_metadata`'s topic id; neither is handed
out, nor is one whose text begins with "-" (it would read as a command-line flag).
"""

import base64
import os
import struct

ZERO_UUID = bytes(16)
LOST_DIRECTORY = bytes(15) + b"\x01"
"""Kafka's `DirectoryId.LOST`: the log directory of a replica that is in none."""
_RESERVED_DIRECTORIES = 100
"""Ids below that are no directory's (KIP-858)."""
METADATA_TOPIC_ID = bytes(15) + b"\x01"

PARTITION_KEY = struct.Struct(">16si")
"""Topic id and partition index: how every ring entry and table names a partition (20 bytes)."""

partition_key = PARTITION_KEY.pack

TopicPartition = tuple[str, int]
"""Topic name and partition index."""
TopicIdPartition = tuple[bytes, int]
"""Topic id and partition index."""

MEMBER_NAME_MAX = 1024
"""Characters of a client's name in a member id, which must fit into a string again."""


def is_real_directory(uuid: bytes) -> bool:
    """Whether a directory id is one of a log directory, not one that says something else."""
    return int.from_bytes(uuid) >= _RESERVED_DIRECTORIES


def random_uuid() -> bytes:
    """A fresh uuid (version 4) that is neither reserved nor begins with a dash as text."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if not uuid_text(bytes(raw)).startswith("-"):
            return bytes(raw)


def uuid_dashed(uuid: bytes) -> str:
    """The 36 characters that everybody else prints; `uuid` itself takes 10 ms to import."""
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_member_id(name: str) -> str:
    """A member id that no member of any group ever had: the client's name, then a uuid."""
    return f"{name[:MEMBER_NAME_MAX]}-{uuid_dashed(random_uuid())}"


def uuid_text(uuid: bytes) -> str:
    """The 22 characters that Kafka prints for a uuid of 16 bytes."""
    return base64.urlsafe_b64encode(uuid).decode()[:22]


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of a uuid's text; ValueError if it isn't one."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a uuid")
    return raw
