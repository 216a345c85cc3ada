"""The source of an encode function: bytes out of a dict."""

from __future__ import annotations

import struct

from shmbroker.errors import ProtocolFault
from shmbroker.wire.codec_source import FIXED, SHORT, FunctionSource, short_arrays
from shmbroker.wire.primitives import STRING_BYTES_MAX, uvarint
from shmbroker.wire.schema import Field, is_within


class EncoderSource(FunctionSource):
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
        if not field.is_array and field.type in FIXED:
            if field.type == "uuid":
                self.line(f"{variable} = {value}")
                self.fault(f"{field.name} is not 16 bytes", f"len({variable}) != 16")
                value = variable
            self.run.append((value, FIXED[field.type]))
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
        code = FIXED.get(field.type, "")
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
        self.namespace[packers] = [form.pack for form in short_arrays(code)]
        self.line(f"if 0 < n < {SHORT}: out += {packers}[n](*{variable})")
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


def _string_length(size: int) -> bytes:
    """The compact length of a string of 127 bytes or more."""
    if size > STRING_BYTES_MAX:
        raise ProtocolFault(f"string of {size} bytes is over {STRING_BYTES_MAX}")
    return uvarint(size + 1)
