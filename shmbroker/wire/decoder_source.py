"""The source of a decode function: a dict out of bytes.

How the generated functions check bounds: a Struct and an index raise by themselves, a slice is
merely short. So strings are not checked one by one: the position runs past the end, the next read
raises, and at the very end the position is compared with the end. One `except` makes ProtocolFault
of all of these.
"""

from __future__ import annotations

import struct

from shmbroker.wire.codec_source import FIXED, SHORT, FunctionSource, short_arrays
from shmbroker.wire.primitives import STRING_BYTES_MAX, skip_fields, uvarint_rest
from shmbroker.wire.schema import Field, is_within

ANY_NUMBER = 1 << 62


class DecoderSource(FunctionSource):
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
        elif field.type in FIXED:
            self.run.append((target, FIXED[field.type]))
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
        code = FIXED.get(field.type, "")
        if code and field.type != "uuid":
            self.namespace[f"unpack_array_{code}"] = [
                form.unpack_from for form in short_arrays(code)
            ]
            self.line(f"if n < {SHORT}: {target} = list(unpack_array_{code}[n](buffer, p))")
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
