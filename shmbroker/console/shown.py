"""Keys, values and names of headers, which may be any bytes, as JSON has them. Pure.

   null     {"kind": "null"}
   text     {"kind": "text", "text": …, "bytes": 5}      UTF-8 without control characters
   others   {"kind": "bytes", "hex": …, "bytes": 5}

What is longer than there is room for is cut: `is_cut` is true then, `bytes` is the whole size. The
page decodes the rest (JSON, Avro), so that it costs the broker's host nothing.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.records.batch import Record

FIELD_BYTES_MAX = 64 << 10
"""The bytes of a key or value in a page of records."""
FIELD_BYTES_LEAST = 256
"""What every field gets though the answer has no room any more."""
HEADERS_MAX = 50
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

Field = dict[str, str | int | bool]


class AnswerRoom:
    """Bytes that an answer still has."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, wanted: int, most: int) -> int:
        """How many of these bytes may be shown."""
        given = min(wanted, most, max(self.left, FIELD_BYTES_LEAST))
        self.left -= given
        return given


def field(data: bytes | None, room: AnswerRoom, most: int = FIELD_BYTES_MAX) -> Field:
    """A key, a value, or the value of a header."""
    if data is None:
        return {"kind": "null"}
    given = room.take(len(data), most)
    part = data[:given]
    is_cut = given < len(data)
    found: Field = {"bytes": len(data)}
    if is_cut:
        found["is_cut"] = True
    text = _text(part, is_cut)
    if text is None:
        room.left -= given  # two characters for each
        return {"kind": "bytes", "hex": part.hex(), **found}
    return {"kind": "text", "text": text, **found}


def _text(part: bytes, is_cut: bool) -> str | None:
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(part) - 3:
            return None
        text = part[: error.start].decode()  # cut within a character
    return None if _CONTROLS.search(text) else text


def record(partition: int, found: Record, room: AnswerRoom, most: int = FIELD_BYTES_MAX) -> object:
    """A record for the page."""
    offset, timestamp, key, value, headers = found
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": field(key, room, most),
        "value": field(value, room, most),
        "headers": [
            [field(name, room, most), field(content, room, most)]
            for name, content in headers[:HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(headers) - HEADERS_MAX),
    }
