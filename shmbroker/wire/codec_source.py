"""The source of one generated function of `codec`: its lines, and what they refer to.

codec ──► DecoderSource, EncoderSource   (`decoder_source`, `encoder_source`)
             └── Source ──► lines ──► `codec` compiles them
"""

from __future__ import annotations

import struct

from shmbroker.errors import ProtocolFault
from shmbroker.wire import schema
from shmbroker.wire.schema import Field, is_within

FIXED = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}
"""Types of a fixed size, as Struct writes them."""

SHORT = 17
"""Arrays of fewer numbers have a Struct each; making a format string costs more than packing."""


class FunctionSource:
    """Lines of a function under construction.

    `run` collects neighbours of a fixed size until something else must be read or written;
    `flush` then emits them as one Struct call. Variables carry the depth of their struct, as a
    struct within a struct may use the same names.
    """

    function = ""

    def __init__(self, name: str, version: int) -> None:
        message = schema.message(name)
        if not is_within(version, message.versions):
            raise ProtocolFault(f"{name} has no version {version}")
        self.title = f"{name} v{version}"
        self.version = version
        self.is_flexible = is_within(version, message.flexible)
        self.fields = message.fields
        self.lines: list[str] = []
        self.indent = 0
        self.run: list[tuple[str, str]] = []
        self.namespace: dict[str, object] = {
            "ProtocolFault": ProtocolFault,
            "StructError": struct.error,
            "zero_uuid": bytes(16),
        }
        self.write()

    def write(self) -> None:
        raise NotImplementedError

    def line(self, text: str, indent: int = 0) -> None:
        """Add one line; the next ones go `indent` levels deeper (or, if negative, less deep)."""
        self.lines.append("    " * self.indent + text)
        self.indent += indent

    def fault(self, what: str, condition: str = "") -> None:
        """Raise ProtocolFault, if the condition holds."""
        prefix = f"if {condition}: " if condition else ""
        self.line(f"{prefix}raise ProtocolFault({f'{self.title}: {what}'!r})")

    def is_compact(self, field: Field) -> bool:
        return self.is_flexible and not field.is_plain

    def untagged(self, fields: list[Field]) -> list[Field]:
        """The fields of this version that stand in line."""
        return [f for f in fields if is_within(self.version, f.versions) and f.tag is None]

    def tagged(self, fields: list[Field]) -> list[tuple[int, Field]]:
        """The tagged fields of this version, in the order of their tags."""
        present = [f for f in fields if is_within(self.version, f.versions)]
        return sorted(((f.tag, f) for f in present if f.tag is not None), key=lambda pair: pair[0])

    def absent(self, fields: list[Field]) -> list[Field]:
        """The fields that this version lacks."""
        return [f for f in fields if not is_within(self.version, f.versions)]


def short_arrays(code: str) -> list[struct.Struct]:
    """A Struct for each count of numbers under SHORT."""
    return [struct.Struct(f">{count}{code}") for count in range(SHORT)]
