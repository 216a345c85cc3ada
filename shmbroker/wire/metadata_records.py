"""The frame around each record of the metadata log `__cluster_metadata`.

   size   field
   1      frame version: uvarint, always 1
   1+     api key: uvarint, unique among the metadata records
   1+     version: uvarint
   …      the message

That is the value of a data record; the key is null. Control records (LeaderChangeMessage,
SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord) have no such frame:
their value is the bare message, for `codec`.

Example: NoOpRecord v0 is 01 14 00 00 (key 20, version 0, no tagged fields).

Source: KIP-631, Kafka's MetadataRecordSerde.
"""

from __future__ import annotations

from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec, schema
from shmbroker.wire.primitives import read_uvarint, uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message
    from shmbroker.wire.primitives import Buffer

FRAME_VERSION = 1

_names: dict[int, str] = {}
_defaults: dict[str, Message] = {}


def encode_metadata_record(name: str, version: int, message: Message) -> bytes:
    """The value of a metadata record, such as "TopicRecord"."""
    api_key = schema.message(name).api_key
    assert api_key is not None and record_names()[api_key] == name
    head = uvarint(FRAME_VERSION) + uvarint(api_key) + uvarint(version)
    return head + codec.encode(name, version, message)


def decode_metadata_record(buffer: Buffer) -> tuple[str, int, Message]:
    """(name, version, message) of a metadata record's value.

    ProtocolFault for a frame, record or version that isn't known: metadata can't be skipped.
    """
    frame_version, position = read_uvarint(buffer, 0)
    if frame_version != FRAME_VERSION:
        raise ProtocolFault(f"metadata record of frame version {frame_version}")
    api_key, position = read_uvarint(buffer, position)
    version, position = read_uvarint(buffer, position)
    name = record_names().get(api_key)
    if name is None:
        raise ProtocolFault(f"unknown metadata record {api_key}")
    return name, version, codec.decode_all(name, version, buffer, position)


def completed(name: str, given: Message) -> Message:
    """A metadata record's message with the fields that were not given: as it is decoded."""
    defaults = _defaults.get(name)
    if defaults is None:
        defaults = _defaults[name] = {
            field.name: field.default for field in schema.message(name).fields
        }
    return defaults | given


def record_names() -> dict[int, str]:
    """Names of the metadata records by api key."""
    if not _names:
        _names.update(schema.names_of_kind("metadata"))
    return _names
