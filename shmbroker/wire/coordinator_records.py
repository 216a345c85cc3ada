"""The frame around each record of the coordinators' logs.

   key     2   record type       value   2   version
           …   the key message           …   the value message

The type says which messages follow, and is unique within a log: `__consumer_offsets` is "group",
`__transaction_state` "transaction", `__share_group_state` "share". Key messages have the version 0
only. A null value is a tombstone: what the key names is gone.

Example: the key of group "g", topic "t", partition 1: 00 01 00 01 67 00 01 74 00 00 00 01

Source: Kafka's CoordinatorRecordSerde, GroupCoordinatorRecordHelpers and TransactionLog.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec, schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message
    from shmbroker.wire.primitives import Buffer

GROUP = "group"
TRANSACTION = "transaction"
SHARE = "share"

# Types of the records that classic groups and transactions write.
OFFSET_COMMIT = 1
GROUP_METADATA = 2
TRANSACTION_LOG = 0

_PREFIX = Struct(">h")

_key_names: dict[str, dict[int, str]] = {}


def encode_key(log: str, record_type: int, message: Message) -> bytes:
    """A record's key; KeyError for a type that the log does not have."""
    name = _names(log)[record_type]
    return _PREFIX.pack(record_type) + codec.encode(name + "Key", 0, message)


def encode_value(log: str, record_type: int, version: int, message: Message) -> bytes:
    """A record's value; KeyError for a type that the log does not have."""
    name = _names(log)[record_type]
    return _PREFIX.pack(version) + codec.encode(name + "Value", version, message)


def decode_key(log: str, buffer: Buffer) -> tuple[int, Message | None]:
    """(record type, message) of a key; no message for a type that isn't known.

    Kafka passes over such records when it loads: a newer broker may have written them.
    """
    record_type = _prefix(buffer)
    name = _names(log).get(record_type)
    if name is None:
        return record_type, None
    return record_type, codec.decode_all(name + "Key", 0, buffer, 2)


def decode_value(log: str, record_type: int, buffer: Buffer) -> tuple[int, Message]:
    """(version, message) of a value that isn't null; KeyError for a type that isn't known."""
    version = _prefix(buffer)
    return version, codec.decode_all(_names(log)[record_type] + "Value", version, buffer, 2)


def _prefix(buffer: Buffer) -> int:
    if len(buffer) < 2:
        raise ProtocolFault("coordinator record without a type or version")
    prefix: int = _PREFIX.unpack_from(buffer)[0]
    return prefix


def _names(log: str) -> dict[int, str]:
    """Names by type, without the ending Key or Value."""
    found = _key_names.get(log)
    if found is None:
        keys = schema.names_of_kind(f"{log}-key")
        found = {record_type: name.removesuffix("Key") for record_type, name in keys.items()}
        _key_names[log] = found
    return found
