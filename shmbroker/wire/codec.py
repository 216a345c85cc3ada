"""Decode and encode functions, compiled out of the schema table when first used.

For each (message, version) that is asked for, two Python functions are written, compiled and kept:
straight-line code, fixed-size fields next to each other read or written by one Struct.

A message is a dict with snake_case keys, as the table names them:

    int*, uint*, float64, bool   int, float, bool          struct   dict
    string                       str                       array    list
    bytes                        bytes (copied)            null     None
    uuid                         bytes, always 16
    records                      decoded: a memoryview of the buffer, not copied; encoded: any bytes

* A decoded message has every field of the message; those that its version lacks have their default.
* To encode, absent keys stand for the default; keys that the message does not know are not looked
  at. A field that the version lacks is left out if the table calls it ignorable, and must have its
  default otherwise, as in Kafka. Values that do not fit raise ProtocolFault too, with the cause
  attached.
* Only `records` keep the buffer alive: what releases it (a ring) drops them first.
* Unknown tagged fields are skipped. Malformed bytes raise ProtocolFault: truncation, null or a
  negative length where there must be a value, text that isn't UTF-8, a tagged field of another size
  than it says. An array's count is checked against the bytes left and lists grow by appending, but
  small elements still become up to a hundred times their size in dicts, and a MiB of them takes a
  third of a second to read: what a stranger has sent goes through `decode_request`, which bounds
  their number.

How the generated functions check bounds: a Struct and an index raise by themselves, a slice is
merely short. So strings are not checked one by one: the position runs past the end, the next read
raises, and at the very end the position is compared with the end. One `except` makes ProtocolFault
of all of these.

Compiling one of the larger functions takes much longer than running it: a process that forks may do
it before.

Source: KIP-482 and what Kafka's MessageDataGenerator generates; every message and version was
compared with Kafka 4.2.1's own classes.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from shmbroker.errors import ProtocolFault
from shmbroker.wire import schema
from shmbroker.wire.primitives import (
    STRING_BYTES_MAX,
    skip_fields,
    uvarint,
    uvarint_rest,
)
from shmbroker.wire.schema import Field, is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.wire.primitives import Buffer

    Message = dict[str, Any]
    Decoder = Callable[..., tuple[Message, int]]
    Encoder = Callable[[Message], bytes]

_FIXED = {
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

_SHORT = 17
"""Arrays of fewer numbers have a Struct each; making a format string costs more than packing."""

ANY_NUMBER = 1 << 62

REQUEST_ELEMENTS_MAX = 20_000
"""Elements of all arrays and tagged fields of a client's request: some 15 ms to read at most.

A broker holds some thousands of partitions, and Kafka lets one request make 10,000.
"""


def decode(name: str, version: int, buffer: Buffer, position: int = 0) -> tuple[Message, int]:
    """(message, position after it). The buffer's end is the end of what may be read."""
    return decoder(name, version)(buffer, position)


def decode_request(api_name: str, version: int, buffer: Buffer, position: int = 0) -> Message:
    """A client's request: ProtocolFault, too, for more elements than REQUEST_ELEMENTS_MAX."""
    return _request_decoder(api_name, version)(buffer, position, REQUEST_ELEMENTS_MAX)[0]


def decode_all(name: str, version: int, buffer: Buffer, position: int = 0) -> Message:
    """The message that fills the buffer from `position` on; ProtocolFault if bytes are left."""
    message, end_position = decoder(name, version)(buffer, position)
    if end_position != len(buffer):
        raise ProtocolFault(f"{name} v{version}: {len(buffer) - end_position} bytes left over")
    return message


def encode(name: str, version: int, message: Message) -> bytes:
    """The bytes of a message; ProtocolFault if a value does not fit its field or version."""
    return encoder(name, version)(message)


def encode_response(api_name: str, version: int, message: Message) -> bytes:
    """The bytes of an answer to a client; raises as `encode` does."""
    return _response_encoder(api_name, version)(message)


@lru_cache(None)
def _request_decoder(api_name: str, version: int) -> Decoder:
    return decoder(api_name + "Request", version)


@lru_cache(None)
def _response_encoder(api_name: str, version: int) -> Encoder:
    return encoder(api_name + "Response", version)


@lru_cache(None)
def decoder(name: str, version: int) -> Decoder:
    """`decode(buffer, position=0, elements=ANY_NUMBER) -> (message, end_position)` for one message
    and version; ProtocolFault for more elements, of arrays and tagged fields, than that.

    KeyError for a name that is not in the table, ProtocolFault for a version it doesn't have.
    """
    found: Decoder = _compile(_DecoderSource(name, version))
    return found


@lru_cache(None)
def encoder(name: str, version: int) -> Encoder:
    """`encode(message) -> bytes` for one message and version; raises as `decoder` does."""
    found: Encoder = _compile(_EncoderSource(name, version))
    return found


def _compile(source: _Source) -> Any:
    """The function that a source defines."""
    namespace = source.namespace
    code = compile("\n".join(source.lines), f"<{source.title} {source.function}>", "exec")
    exec(code, namespace)
    return namespace[source.function]


class _Source:
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


class _DecoderSource(_Source):
    """def decode(buffer, position=0, elements=…). In it: p is the position, n a length, end the
    end, elements how many there may still be."""

    function = "decode"

    def write(self) -> None:
        self.namespace.update(
            rest=uvarint_rest, skip_fields=skip_fields, unpack_from=struct.unpack_from
        )
        self.line(f"def decode(buffer, position=0, elements={ANY_NUMBER}):", +1)
        self.line("p = position")
        self.line("end = len(buffer)")
        self.line("try:", +1)
        result = self.struct(self.fields, 0)
        self.line(f"message = {result}", -1)
        self.line("except (StructError, IndexError, UnicodeDecodeError) as error:", +1)
        self.line(
            f"raise ProtocolFault(f'{self.title}: malformed near {{p}} of {{end}}: {{error}}')"
            " from None",
            -1,
        )
        self.fault("truncated", "p > end")
        self.line("return message, p")

    def struct(self, fields: list[Field], depth: int) -> str:
        """Read a struct; the result is the source of its dict."""
        for field in self.untagged(fields):
            self.field(field, f"{field.name}_{depth}", depth)
        if self.is_flexible:
            self.tagged_fields(self.tagged(fields), depth)
        self.flush()
        absent = self.absent(fields)
        items = (
            f"{field.name!r}: "
            + (self.default(field) if field in absent else f"{field.name}_{depth}")
            for field in fields
        )
        return "{" + ", ".join(items) + "}"

    def default(self, field: Field) -> str:
        """The source of a fresh default value."""
        if field.type == "uuid" and not field.is_array:
            return "zero_uuid"
        if field.default != {}:
            return repr(field.default)
        items = (f"{nested.name!r}: {self.default(nested)}" for nested in field.fields)
        return "{" + ", ".join(items) + "}"

    def flush(self) -> None:
        """Read the run: one unpack for all of it."""
        if not self.run:
            return
        codes = "".join(code for _, code in self.run)
        if codes == "B":
            self.line(f"{self.run[0][0]} = buffer[p]")
            self.line("p += 1")
        else:
            form = struct.Struct(f">{codes}")
            unpacker = "unpack_" + codes.replace("?", "t")
            self.namespace[unpacker] = form.unpack_from
            targets = "".join(f"{target}, " for target, _ in self.run)
            self.line(f"{targets}= {unpacker}(buffer, p)")
            self.line(f"p += {form.size}")
        self.run.clear()

    def field(self, field: Field, target: str, depth: int) -> None:
        """Read a field into the variable `target`."""
        is_nullable = is_within(self.version, field.nullable)
        if field.is_array:
            self.length(field, "i", is_nullable, target)
            self.array(field, target, depth)
            self.indent -= is_nullable
        elif field.type in _FIXED:
            self.run.append((target, _FIXED[field.type]))
        elif field.type == "{}":
            if is_nullable:
                self.run.append(("n", "b"))
                self.flush()
                # A tagged struct's mark is a uvarint, 0 or 1; another's is an int8, -1 or 1.
                self.line("if n < 0:" if field.tag is None else "if not n:", +1)
                self.line(f"{target} = None", -1)
                self.line("else:", +1)
            self.line(f"{target} = {self.struct(field.fields, depth + 1)}")
            self.indent -= is_nullable
        else:
            self.length(field, "h" if field.type == "string" else "i", is_nullable, target)
            self.blob(field, target)
            self.indent -= is_nullable

    def length(self, field: Field, code: str, is_nullable: bool, target: str) -> None:
        """Read a length into n. Null is dealt with; if it is allowed, the value is an else."""
        self.run.append(("n", "B" if self.is_compact(field) else code))
        self.flush()
        if self.is_compact(field):
            self.line("if n > 127: n, p = rest(buffer, p, n)")
            if field.type == "string" and not field.is_array:
                self.fault(f"{field.name} is too long", f"n > {STRING_BYTES_MAX + 1}")
            null = "not n"
        else:
            self.fault(f"{field.name} has a negative length", "n < -1" if is_nullable else "n < 0")
            null = "n < 0"
        if is_nullable:
            self.line(f"if {null}:", +1)
            self.line(f"{target} = None", -1)
            self.line("else:", +1)
        elif self.is_compact(field):
            self.fault(f"{field.name} is null", null)

    def blob(self, field: Field, target: str) -> None:
        """Read n bytes (compact: n - 1) as text, bytes or a view."""
        forms = {
            "string": "str(buffer[p:e], 'utf-8')",
            "bytes": "bytes(buffer[p:e])",
            "records": "memoryview(buffer)[p:e]",
        }
        self.line("e = p + n - 1" if self.is_compact(field) else "e = p + n")
        self.line(f"{target} = {forms[field.type]}")
        self.line("p = e")

    def array(self, field: Field, target: str, depth: int) -> None:
        """Read n elements (compact: n - 1). Each takes a byte or more, which bounds the count."""
        if self.is_compact(field):
            self.line("n -= 1")
        self.fault(f"{field.name} has more elements than there are bytes", "n > end - p")
        self.spend()
        code = _FIXED.get(field.type, "")
        if code and field.type != "uuid":
            self.namespace[f"unpack_array_{code}"] = [
                form.unpack_from for form in _short_arrays(code)
            ]
            self.line(f"if n < {_SHORT}: {target} = list(unpack_array_{code}[n](buffer, p))")
            self.line(f"else: {target} = list(unpack_from(f'>{{n}}{code}', buffer, p))")
            self.line(f"p += n * {struct.calcsize('>' + code)}")
            return
        self.line(f"{target} = []")
        self.line("for _ in range(n):", +1)
        if field.type == "{}":
            self.line(f"{target}.append({self.struct(field.fields, depth + 1)})")
        elif field.type == "uuid":
            self.line(f"{target}.append(bytes(buffer[p:p + 16]))")
            self.line("p += 16")
        else:
            element = Field(f"{field.name} {field.type}", field.versions)
            self.field(element, "element", depth)
            self.line(f"{target}.append(element)")
        self.indent -= 1

    def spend(self) -> None:
        """Count n elements, before they are read."""
        self.line("elements -= n")
        self.fault("more elements than are allowed", "elements < 0")

    def tagged_fields(self, fields: list[tuple[int, Field]], depth: int) -> None:
        """Read the section of tagged fields; those that this version doesn't know are skipped."""
        self.run.append(("n", "B"))
        self.flush()
        for _, field in fields:
            self.line(f"{field.name}_{depth} = {self.default(field)}")
        self.line("if n:", +1)
        self.line("if n > 127: n, p = rest(buffer, p, n)")
        self.spend()
        if not fields:
            self.line("p = skip_fields(buffer, p, n)", -1)
            return
        self.line("for _ in range(n):", +1)
        tag_end = f"tag_end_{depth}"
        for variable in ("tag", "n"):
            self.line(f"{variable} = buffer[p]")
            self.line("p += 1")
            self.line(f"if {variable} > 127: {variable}, p = rest(buffer, p, {variable})")
        self.line(f"{tag_end} = p + n")
        for tag, field in fields:
            self.line(f"if tag == {tag}:", +1)
            self.field(field, f"{field.name}_{depth}", depth)
            self.flush()
            self.fault(f"{field.name} is not as long as it says", f"p != {tag_end}")
            self.line("continue", -1)
        self.line(f"p = {tag_end}", -2)


class _EncoderSource(_Source):
    """def encode(message). In it: get_D is the get method of the struct at depth D."""

    function = "encode"

    def write(self) -> None:
        self.namespace.update(
            pack=struct.pack,
            uvarint=uvarint,
            missing=object(),
            string_length=_string_length,
            minus_one_2=b"\xff" * 2,
            minus_one_4=b"\xff" * 4,
        )
        self.line("def encode(message):", +1)
        self.line("get_0 = message.get")
        self.line("try:", +1)
        self.line("out = bytearray()")
        self.struct(self.fields, 0)
        self.indent -= 1
        self.line(
            "except (StructError, UnicodeEncodeError, TypeError, AttributeError) as error:", +1
        )
        self.line(f"raise ProtocolFault(f'{self.title}: {{error}}') from error", -1)
        self.line("return bytes(out)")

    def struct(self, fields: list[Field], depth: int) -> None:
        """Write the struct whose get method is get_{depth}."""
        for field in self.absent(fields):
            if not field.is_ignorable:
                condition = self.differs(field, self.value(field, depth))
                self.fault(f"{field.name} is not in this version", condition)
        for field in self.untagged(fields):
            self.field(field, self.value(field, depth), depth)
        if self.is_flexible:
            self.tagged_fields(self.tagged(fields), depth)
        self.flush()

    def value(self, field: Field, depth: int) -> str:
        """The source of a field's value."""
        default = "zero_uuid" if field.default == bytes(16) else repr(field.default)
        return f"get_{depth}({field.name!r}, {'()' if default == '[]' else default})"

    def differs(self, field: Field, value: str) -> str:
        """The source of: this value is not the default."""
        if field.default is None:
            return f"{value} is not None"
        if field.is_array:
            return f"{value} is None or len({value})"
        if field.type == "{}":
            conditions = [
                self.differs(nested, f"{value}.get({nested.name!r}, {nested.default!r})")
                for nested in field.fields
            ]
            return " or ".join([f"{value} is None", *conditions])
        return f"{value} != {field.default!r}"

    def flush(self) -> None:
        """Write the run: one pack for all of it."""
        if not self.run:
            return
        codes = "".join(code for _, code in self.run)
        values = ", ".join(value for value, _ in self.run if value)
        if codes == "x":
            self.line("out.append(0)")
        else:
            packer = "pack_" + codes.replace("?", "t")
            self.namespace[packer] = struct.Struct(f">{codes}").pack
            self.line(f"out += {packer}({values})")
        self.run.clear()

    def field(self, field: Field, value: str, depth: int) -> None:
        """Write the value that the source `value` stands for."""
        variable = f"{field.name}_{depth}"
        is_nullable = is_within(self.version, field.nullable)
        if not field.is_array and field.type in _FIXED:
            if field.type == "uuid":
                self.line(f"{variable} = {value}")
                self.fault(f"{field.name} is not 16 bytes", f"len({variable}) != 16")
                value = variable
            self.run.append((value, _FIXED[field.type]))
            return
        self.line(f"{variable} = {value}")
        if is_nullable:
            self.flush()
            self.line(f"if {variable} is None:", +1)
            self.null(field)
            self.indent -= 1
            self.line("else:", +1)
        if field.is_array:
            self.array(field, variable, depth)
        elif field.type == "{}":
            if is_nullable:
                self.run.append(("1", "b"))
            self.line(f"get_{depth + 1} = {variable}.get")
            self.struct(field.fields, depth + 1)
        else:
            self.blob(field, variable)
        if is_nullable:
            self.flush()
            self.indent -= 1

    def null(self, field: Field) -> None:
        """Write null: length -1, or 0 in the compact form; a struct has one byte for it."""
        if field.type == "{}" and not field.is_array:
            self.line(f"out.append({255 if field.tag is None else 0})")
        elif self.is_compact(field):
            self.line("out.append(0)")
        else:
            width = 2 if field.type == "string" and not field.is_array else 4
            self.line(f"out += minus_one_{width}")

    def length(self, field: Field, variable: str, code: str) -> None:
        """Write the length of what is in the variable; it is left in n."""
        self.line(f"n = len({variable})")
        if not self.is_compact(field):
            self.run.append(("n", code))
            self.flush()
            return
        self.flush()
        self.line("if n < 127: out.append(n + 1)")
        is_string = field.type == "string" and not field.is_array
        self.line(f"else: out += {'string_length(n)' if is_string else 'uvarint(n + 1)'}")

    def blob(self, field: Field, variable: str) -> None:
        """Write text or bytes."""
        if field.type == "string":
            self.line(f"{variable} = {variable}.encode()")
        self.length(field, variable, "h" if field.type == "string" else "i")
        self.line(f"out += {variable}")

    def array(self, field: Field, variable: str, depth: int) -> None:
        """Write the elements of the array in the variable."""
        self.length(field, variable, "i")
        code = _FIXED.get(field.type, "")
        if code and field.type != "uuid":
            self.numbers(variable, code)
            return
        element = f"element_{depth}"
        self.line(f"for {element} in {variable}:", +1)
        if field.type == "{}":
            self.line(f"get_{depth + 1} = {element}.get")
            self.struct(field.fields, depth + 1)
        else:
            inner = Field(f"{element} {field.type}", field.versions)
            self.field(inner, element, depth)
            self.flush()
        self.indent -= 1

    def numbers(self, variable: str, code: str) -> None:
        """Write the n numbers of an array."""
        packers = f"pack_array_{code}"
        self.namespace[packers] = [form.pack for form in _short_arrays(code)]
        self.line(f"if 0 < n < {_SHORT}: out += {packers}[n](*{variable})")
        self.line(f"elif n: out += pack(f'>{{n}}{code}', *{variable})")

    def tagged_fields(self, fields: list[tuple[int, Field]], depth: int) -> None:
        """Write the section of tagged fields: those whose value is not the default."""
        if not fields:
            self.run.append(("", "x"))
            return
        self.flush()
        count, section, outer = f"count_{depth}", f"section_{depth}", f"outer_{depth}"
        values = " is ".join(f"get_{depth}({field.name!r}, missing)" for _, field in fields)
        self.line(f"if {values} is missing: out.append(0)")  # by far the most frequent
        self.line("else:", +1)
        self.line(f"{count}, {section}, {outer} = 0, b'', out")
        for tag, field in fields:
            variable = f"{field.name}_{depth}"
            self.line(f"{variable} = {self.value(field, depth)}")
            self.line(f"if {self.differs(field, variable)}:", +1)
            self.line(f"{count} += 1")
            self.line("out = bytearray()")
            self.field(field, variable, depth)
            self.flush()
            self.line(f"{section} += {uvarint(tag)!r} + uvarint(len(out)) + out", -1)
        self.line(f"out = {outer}")
        self.line(f"out.append({count})")
        self.line(f"out += {section}", -1)


def _short_arrays(code: str) -> list[struct.Struct]:
    """A Struct for each count of numbers under _SHORT."""
    return [struct.Struct(f">{count}{code}") for count in range(_SHORT)]


def _string_length(size: int) -> bytes:
    """The compact length of a string of 127 bytes or more."""
    if size > STRING_BYTES_MAX:
        raise ProtocolFault(f"string of {size} bytes is over {STRING_BYTES_MAX}")
    return uvarint(size + 1)
