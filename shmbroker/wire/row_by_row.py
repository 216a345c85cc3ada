"""A message whose last field is an array of structs, encoded row by row: in steps.

    flexible   fields before   rows + 1: uvarint   rows …   0: no tagged fields
    else       fields before   rows: int32         rows …

A row is encoded as the only one of its message, and what stands around it is cut off.
"""

from __future__ import annotations

from shmbroker.wire import codec, schema
from shmbroker.wire.primitives import uvarint
from shmbroker.wire.schema import is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from shmbroker.wire.codec import Message


class RowByRow:
    """One message, its fields before the rows being those of `around`."""

    __slots__ = ("_around", "_array", "_before", "_end", "_name", "_version")

    def __init__(self, name: str, version: int, array: str, around: Message) -> None:
        found = schema.message(name)
        assert found.fields[-1].name == array and found.fields[-1].type == "{}"
        is_flexible = is_within(version, found.flexible)
        self._name, self._version = name, version
        self._array, self._around = array, around
        self._end = b"\0" if is_flexible else b""
        empty = codec.encode(name, version, around | {array: []})
        self._before = empty[:-2] if is_flexible else empty[:-4]

    def row(self, row: Message) -> bytes:
        """One row. ProtocolFault as `codec.encode`."""
        whole = codec.encode(self._name, self._version, self._around | {self._array: [row]})
        count_bytes = 1 if self._end else 4
        return whole[len(self._before) + count_bytes : len(whole) - len(self._end)]

    def whole(self, rows: Iterable[bytes]) -> bytes:
        """The message with these rows."""
        rows = list(rows)
        count = uvarint(len(rows) + 1) if self._end else len(rows).to_bytes(4, "big")
        return b"".join((self._before, count, *rows, self._end))
