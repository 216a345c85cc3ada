"""Frames and headers, by hand, as every request and response passes here.

   request      size     field           response   size     field
                   4     frame size                    4     frame size
                   2     api key                       4     correlation id
                   2     api version                   0, 1+ tagged fields (header v1)
                   4     correlation id                …     body
                   2 + n client id, null allowed
                   0, 1+ tagged fields (header v2)
                   …     body

The frame size counts what comes after it. A flexible api version has request header v2 and
response header v1, but ApiVersions always has response header v0: its client doesn't know yet what
the broker speaks. The client id has the old two-byte length in every version.

Example: ApiVersions v3, correlation id 7, client id "ab", empty body
   00 00 00 0d  00 12  00 03  00 00 00 07  00 02 61 62  00

Source: KIP-482, KIP-511, Kafka's RequestHeader and ResponseHeader.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from shmbroker.errors import ProtocolFault
from shmbroker.wire.api_keys import API_VERSIONS, TABLE
from shmbroker.wire.primitives import STRING_BYTES_MAX, skip_tagged_fields, string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.primitives import Buffer

FRAME_SIZE = Struct(">i")
REQUEST_HEADER = Struct(">hhi")
"""Api key, api version, correlation id; the client id follows."""
RESPONSE_HEADER = Struct(">i")

_REQUEST_START = Struct(">hhih")
_unpack_request_start = _REQUEST_START.unpack_from
_pack_correlation_id = RESPONSE_HEADER.pack
_pack_response_start = Struct(">ii").pack
_FLEXIBLE_FROM = {api_key: row[3] for api_key, row in TABLE.items()}
_HEADER_V1_FROM = {**_FLEXIBLE_FROM, API_VERSIONS: 32768}


def frame_size(buffer: Buffer, position: int, frame_bytes_max: int) -> int:
    """The size of the frame whose four size bytes are at `position`; they must be there.

    ProtocolFault if it is negative or over `frame_bytes_max` (socket.request.max.bytes).
    """
    size: int = FRAME_SIZE.unpack_from(buffer, position)[0]
    if not 0 <= size <= frame_bytes_max:
        raise ProtocolFault(f"frame of {size} bytes, at most {frame_bytes_max} are allowed")
    return size


def parse_request_header(
    buffer: Buffer, position: int, end: int
) -> tuple[int, int, int, bytes | None, int]:
    """(api_key, api_version, correlation_id, client_id, body_position) of a frame's content.

    `position` and `end` are the frame's, without its size. The client id stays bytes, as nothing
    promises that it is text. The version is not checked here. ProtocolFault for an unknown api key:
    what follows can't be read, and Kafka closes the connection too.
    """
    try:
        api_key, api_version, correlation_id, size = _unpack_request_start(buffer, position)
        flexible_from = _FLEXIBLE_FROM[api_key]
        position += 10
        client_id = None
        if size >= 0:
            client_id = bytes(buffer[position : position + size])
            position += size
        elif size != -1:
            raise ProtocolFault(f"client id of {size} bytes")
        if api_version >= flexible_from:
            if buffer[position]:
                position = skip_tagged_fields(buffer, position)
            else:
                position += 1
    except KeyError:
        raise ProtocolFault(f"unknown api key {api_key}") from None
    except (StructError, IndexError):
        raise ProtocolFault("truncated request header") from None
    if position > end:
        raise ProtocolFault("truncated request header")
    return api_key, api_version, correlation_id, client_id, position


def skip_request_header(
    buffer: Buffer, position: int, end: int, is_flexible: bool
) -> tuple[bytes | None, int]:
    """(client_id, body_position) of a frame's content whose first 8 bytes were read: the same, for
    an api version that is known, in half the time."""
    if end - position < 10:
        raise ProtocolFault("truncated request header")
    size = buffer[position + 8] << 8 | buffer[position + 9]
    client_end = position + 10 + size
    body_at = client_end + is_flexible
    if size > STRING_BYTES_MAX or body_at > end or (is_flexible and buffer[client_end]):
        return parse_request_header(buffer, position, end)[3:]  # a null id, tags, or what is wrong
    return bytes(buffer[position + 10 : client_end]), body_at


def flexible_from(api_key: int) -> int:
    """The first flexible version of an API."""
    return _FLEXIBLE_FROM[api_key]


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """A response's header, without the frame size."""
    header = _pack_correlation_id(correlation_id)
    return header + b"\x00" if api_version >= _HEADER_V1_FROM[api_key] else header


def response_frame(api_key: int, api_version: int, correlation_id: int, body: bytes) -> bytes:
    """A whole response: size, header, body."""
    if api_version >= _HEADER_V1_FROM[api_key]:
        return _pack_response_start(len(body) + 5, correlation_id) + b"\x00" + body
    return _pack_response_start(len(body) + 4, correlation_id) + body


def request_frame(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: bytes
) -> bytes:
    """A whole request, for those who ask a broker: size, header, body."""
    tags = b"\x00" if api_version >= _FLEXIBLE_FROM[api_key] else b""
    start = REQUEST_HEADER.pack(api_key, api_version, correlation_id)
    content = b"".join((start, string(client_id), tags, body))
    return FRAME_SIZE.pack(len(content)) + content


def parse_response_header(
    api_key: int, api_version: int, buffer: Buffer, position: int = 0
) -> tuple[int, int]:
    """(correlation_id, body_position) of a response frame's content."""
    if len(buffer) - position < 4:
        raise ProtocolFault("truncated response header")
    correlation_id = RESPONSE_HEADER.unpack_from(buffer, position)[0]
    position += 4
    if api_version >= _HEADER_V1_FROM[api_key]:
        position = skip_tagged_fields(buffer, position)
    return correlation_id, position
