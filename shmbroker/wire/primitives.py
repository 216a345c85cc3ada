"""The small pieces of the wire format, each with its bounds checked.

   uvarint         7 bits a byte, lowest first, top bit set on all but the last; at most 5 bytes for
                   32 bits, 10 for 64
   varint          signed: zigzag (0, -1, 1, -2, … as 0, 1, 2, 3, …), then as uvarint
   string, bytes   int16 or int32 length, then the bytes; -1 is null
   compact …       uvarint length + 1, then the bytes; 0 is null
   tagged fields   uvarint count, then for each: uvarint tag, uvarint size, the bytes

Example: the uvarint 300 is ac 02; the varint -3 is 05; the compact string "ab" is 03 61 62.

Every `read_` takes (buffer, position) and returns (value, position after it); `buffer` is bytes,
bytearray or a memoryview of bytes. Values never keep the buffer alive. Truncated or malformed bytes
raise ProtocolFault. The codec's generated functions do the same in line, and come here only for
varints of more than one byte and for tagged fields.

Source: KIP-482, Kafka's ByteUtils and ByteBufferAccessor. Kafka decodes malformed UTF-8 to
replacement characters; here it is refused.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.errors import ProtocolFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

STRING_BYTES_MAX = 32767
"""The most bytes of a string's UTF-8, in the compact form too, as in Kafka."""

HEADER_FIELDS_MAX = 1000
"""Tagged fields of a header. Kafka knows none or two; a MiB of them would take a second to skip."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_TRUNCATED = "truncated: {} bytes wanted at {}, {} there"


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint of up to 32 bits."""
    value = 0
    end = len(buffer)
    for shift in (0, 7, 14, 21, 28):
        if not 0 <= position < end:
            raise ProtocolFault(f"truncated varint at {position}")
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, position
    raise ProtocolFault(f"varint over 32 bits before {position}")


def uvarint(value: int) -> bytes:
    """The unsigned varint of a value from 0 to 2^64 - 1."""
    if value < _SHORT_MAX:
        return _SHORT[value]
    return _uvarint(value)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_MAX = 1024
_SHORT = [_uvarint(value) for value in range(_SHORT_MAX)]
"""The encodings of most lengths and deltas."""


def varint(value: int) -> bytes:
    """The signed varint of a value from -2^63 to 2^63 - 1, whichever width it is read with."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_length(buffer: Buffer, position: int, is_flexible: bool) -> tuple[int, int]:
    """How many elements or bytes follow, -1 for null: a uvarint of one more in a flexible version,
    else an int32. StructError at the end of the buffer."""
    if is_flexible:
        size, position = read_uvarint(buffer, position)
        return size - 1, position
    return _INT32.unpack_from(buffer, position)[0], position + 4


def array_head(count: int, is_flexible: bool) -> bytes:
    """What stands before so many elements of an array."""
    return uvarint(count + 1) if is_flexible else _INT32.pack(count)


def read_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with an int16 length; None if null."""
    size, position = _read_length(_INT16, buffer, position)
    return _read_text(buffer, position, size)


def read_compact_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with a uvarint length + 1; None if null."""
    size, position = read_uvarint(buffer, position)
    return _read_text(buffer, position, size - 1)


def read_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    """Bytes with an int32 length, copied; None if null."""
    size, position = _read_length(_INT32, buffer, position)
    return _read_blob(buffer, position, size)


def string(value: str | None) -> bytes:
    """A string with an int16 length; ProtocolFault over 32767 bytes or without UTF-8."""
    return _INT16.pack(-1) if value is None else _INT16.pack(len(raw := _utf8(value))) + raw


def compact_string(value: str | None) -> bytes:
    """A string with a uvarint length + 1; ProtocolFault over 32767 bytes or without UTF-8."""
    return b"\x00" if value is None else uvarint(len(raw := _utf8(value)) + 1) + raw


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """The position after a header's whole section of tagged fields, none of which is wanted."""
    count, position = read_uvarint(buffer, position)
    if count > HEADER_FIELDS_MAX:
        raise ProtocolFault(f"{count} tagged fields in a header")
    return skip_fields(buffer, position, count)


def skip_fields(buffer: Buffer, position: int, count: int) -> int:
    """The position after `count` tagged fields, none of which is wanted."""
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    if position > len(buffer):
        raise ProtocolFault(f"tagged fields end at {position}, past the end at {len(buffer)}")
    return position


def uvarint_rest(buffer: Buffer, position: int, value: int) -> tuple[int, int]:
    """The rest of a 32-bit uvarint whose first byte, `value`, had its top bit set.

    Raises IndexError at the end of the buffer: for callers that turn it into ProtocolFault.
    """
    value &= 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, position
    raise ProtocolFault(f"varint over 32 bits before {position}")


def _read_length(form: Struct, buffer: Buffer, position: int) -> tuple[int, int]:
    end = position + form.size
    if not 0 <= position <= end <= len(buffer):
        raise ProtocolFault(_TRUNCATED.format(form.size, position, len(buffer) - position))
    return form.unpack_from(buffer, position)[0], end


def _read_blob(buffer: Buffer, position: int, size: int) -> tuple[bytes | None, int]:
    if size == -1:
        return None, position
    end = position + size
    if not 0 <= position <= end <= len(buffer):
        raise ProtocolFault(_TRUNCATED.format(size, position, len(buffer) - position))
    return bytes(buffer[position:end]), end


def _read_text(buffer: Buffer, position: int, size: int) -> tuple[str | None, int]:
    if size > STRING_BYTES_MAX:
        raise ProtocolFault(f"string of {size} bytes at {position}")
    raw, position = _read_blob(buffer, position, size)
    if raw is None:
        return None, position
    try:
        return raw.decode(), position
    except UnicodeDecodeError as error:
        raise ProtocolFault(f"string before {position} is not UTF-8: {error.reason}") from None


def _utf8(value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise ProtocolFault(f"a string has no UTF-8 form: {error.reason}") from None
    if len(raw) > STRING_BYTES_MAX:
        raise ProtocolFault(f"string of {len(raw)} bytes is over {STRING_BYTES_MAX}")
    return raw
