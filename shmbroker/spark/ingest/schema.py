"""What columns values become: parsing, writing and finding out a schema. Pure.

A schema is text as in Spark's DDL, and a `pyarrow.Schema` where it is used:

    columns   column ("," column)*
    column    name [":"] type ["NOT" "NULL"]
    name      letters, digits and "_", or anything in `backquotes`
    type      string | binary | boolean | tinyint | smallint | int | bigint | float | double
            | decimal["(" precision ["," scale] ")"] | date | timestamp | timestamp_ntz
            | "array" "<" type ">" | "struct" "<" columns ">"

    carrier string not null, delay int, legs array<struct<dest: string, miles: double>>

Timestamps are in microseconds, UTC; `timestamp_ntz` has no zone. Avro's schemas are JSON; here is
how they map to columns. Every fault is a ConfigFault whose sentence names the place.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from shmbroker.errors import ConfigFault

_SIMPLE = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SYNONYMS = {
    "varchar": "string",
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([<>(),:])|$)")
_NAME = re.compile(r"\w+")
_DEPTH_MAX = 20
_DECIMAL_MAX = 38


def parse(text: str) -> pa.Schema:
    """The schema of a text; ConfigFault if it is none."""
    parser = _Parser(text)
    fields = parser.columns("", 0)
    if not fields:
        raise ConfigFault("a schema has at least one column, such as: name string, age int")
    return pa.schema(fields)


class _Parser:
    """Tokens from left to right; `self.place` is the next one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.place = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ConfigFault(f"schema: {text[position : position + 20]!r} is not understood")
            if match[0].strip():
                self.tokens.append(match[0].strip())
            position = max(match.end(), position + 1)

    def columns(self, end: str, depth: int) -> list[pa.Field]:
        """Columns up to the token `end`, which is taken."""
        fields: list[pa.Field] = []
        while self._peek() != end:
            if fields:
                self._take(",")
            name = self._name()
            if any(field.name == name for field in fields):
                raise ConfigFault(f"schema: column {name} is there twice")
            if self._peek() == ":":
                self.place += 1
            kind = self._type(name, depth)
            is_nullable = True
            if self._peek().lower() == "not":
                if depth:
                    raise ConfigFault(
                        f"schema: {name} is NOT NULL inside a struct; only columns are"
                    )
                self.place += 1
                self._take("null")
                is_nullable = False
            fields.append(pa.field(name, kind, nullable=is_nullable))
        self.place += 1
        return fields

    def _type(self, name: str, depth: int) -> pa.DataType:
        word = self._next().lower()
        word = _SYNONYMS.get(word, word)
        if depth > _DEPTH_MAX:
            raise ConfigFault(f"schema: {name} is nested more than {_DEPTH_MAX} deep")
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word == "array":
            self._take("<")
            element = self._type(name, depth + 1)
            self._take(">")
            return pa.list_(element)
        if word == "struct":
            self._take("<")
            fields = self.columns(">", depth + 1)
            if not fields:
                raise ConfigFault(f"schema: the struct {name} has no fields")
            return pa.struct(fields)
        if word == "decimal":
            return self._decimal(name)
        raise ConfigFault(
            f"schema: {name} has the type {word or 'nothing'!r}, which is none of"
            f" {', '.join(_SIMPLE)}, decimal(p, s), array<…>, struct<…>"
        )

    def _decimal(self, name: str) -> pa.DataType:
        precision, scale = "10", "0"
        if self._peek() == "(":
            self._take("(")
            precision = self._next()
            if self._peek() == ",":
                self._take(",")
                scale = self._next()
            self._take(")")
        if not (precision.isdecimal() and scale.isdecimal()) or not (
            1 <= int(precision) <= _DECIMAL_MAX and int(scale) <= int(precision)
        ):
            raise ConfigFault(
                f"schema: {name} has decimal({precision}, {scale}): the precision is 1 to"
                f" {_DECIMAL_MAX}, the scale not more than it"
            )
        return pa.decimal128(int(precision), int(scale))

    def _name(self) -> str:
        word = self._next()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not _NAME.fullmatch(word):
            raise ConfigFault(f"schema: a column's name is missing before {word or 'the end'!r}")
        return word

    def _peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _next(self) -> str:
        word = self._peek()
        self.place += 1
        return word

    def _take(self, wanted: str) -> None:
        word = self._next()
        if word.lower() != wanted:
            raise ConfigFault(
                f"schema: {wanted!r} is missing before {word or 'the end'!r} in {self.text!r}"
            )


def to_text(schema: pa.Schema) -> str:
    """The text that `parse` makes this schema of."""
    return ", ".join(_field_text(field, " ") for field in schema)


def _field_text(field: pa.Field, between: str) -> str:
    name = field.name if _NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{_type_text(field.type)}{'' if field.nullable else ' not null'}"


def _type_text(kind: pa.DataType) -> str:
    for word, simple in _SIMPLE.items():
        if kind.equals(simple):
            return word
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{_type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_field_text(field, ': ') for field in kind)}>"
    raise ConfigFault(f"the type {kind} has no name here")


# --- found out -----------------------------------------------------------------------------------


def infer_json(documents: Iterable[Any]) -> pa.Schema:
    """The columns of parsed JSON objects, in the order in which they first appear.

    Whole numbers are bigint, others double (both in one column: double), what is always null is
    string. Where kinds differ otherwise, the most frequent one counts, and the others are bad
    records then. Text stays string, dates too: name them in a schema. Names that no column can have
    are left out.
    """
    seen: dict[str, list[Any]] = {}
    for document in documents:
        if isinstance(document, dict):
            for name, value in document.items():
                if _is_name(name):
                    seen.setdefault(name, []).append(value)
    if not seen:
        raise ConfigFault("no JSON object is among the first records: give a --schema")
    return pa.schema([(name, _kind_of(values)) for name, values in seen.items()])


def _is_name(name: str) -> bool:
    """Whether a column can have this name: not an empty one, nor half a surrogate pair."""
    return bool(name) and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _kind_of(values: Sequence[Any]) -> pa.DataType:
    """The type of what a column holds."""
    counts: dict[str, int] = {}
    for value in values:
        if value is not None:
            word = _WORDS.get(type(value), "string")
            counts[word] = counts.get(word, 0) + 1
    if not counts:
        return pa.string()
    if "double" in counts:
        counts["double"] += counts.pop("bigint", 0)
    word = max(counts, key=lambda each: counts[each])
    if word == "array":
        elements = [one for value in values if isinstance(value, list) for one in value]
        return pa.list_(_kind_of(elements))
    if word == "struct":
        inner: dict[str, list[Any]] = {}
        for value in values:
            if isinstance(value, dict):
                for name, each in value.items():
                    if _is_name(name):
                        inner.setdefault(name, []).append(each)
        if inner:
            return pa.struct([(name, _kind_of(each)) for name, each in inner.items()])
        return pa.string()
    return _SIMPLE[word]


_WORDS = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    list: "array",
    dict: "struct",
}


# --- Avro ----------------------------------------------------------------------------------------

_AVRO = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_AVRO_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def avro_document(text: str) -> dict[str, Any]:
    """The Avro record schema of a JSON text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigFault(f"the Avro schema is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("type") != "record":
        raise ConfigFault('the Avro schema is no record: {"type": "record", "fields": […], …}')
    return document


def without_other_kinds(schema: Any) -> Any:
    """An Avro schema whose logical types are those that columns have here: a uuid is text then, a
    time of day a whole number, as the bytes have them."""
    if isinstance(schema, list):
        return [without_other_kinds(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind, logical = schema.get("type"), schema.get("logicalType")
    is_known = logical == "decimal" or (isinstance(kind, str) and (kind, logical) in _AVRO_LOGICAL)
    return {
        name: without_other_kinds(each) if name in ("type", "items", "values", "fields") else each
        for name, each in schema.items()
        if name != "logicalType" or is_known
    }


def of_avro(document: Mapping[str, Any]) -> pa.Schema:
    """The columns of an Avro record; ConfigFault for what has none: maps, unions of several
    types, types that contain themselves."""
    return pa.schema(_avro_fields(document, {}, 0))


def _avro_fields(record: Mapping[str, Any], named: dict[str, Any], depth: int) -> list[pa.Field]:
    if depth > _DEPTH_MAX:
        raise ConfigFault(
            f"the Avro schema is nested more than {_DEPTH_MAX} deep, or contains itself"
        )
    try:
        named[record["name"]] = record
        fields = [_avro_field(field, named, depth) for field in record["fields"]]
        if not fields:
            raise ConfigFault(f"Avro: the record {record['name']} has no fields")
        return fields
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigFault(f"this is not an Avro schema: {error!r} in {record}") from None


def _avro_field(field: Mapping[str, Any], named: dict[str, Any], depth: int) -> pa.Field:
    kind, is_nullable = _avro_type(field["type"], named, str(field["name"]), depth)
    return pa.field(field["name"], kind, nullable=is_nullable)


def _avro_type(kind: Any, named: dict[str, Any], name: str, depth: int) -> tuple[pa.DataType, bool]:
    """An Avro type's column type, and whether it may be null."""
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        if len(others) != 1:
            raise ConfigFault(f"Avro: {name} is a union of several types, which is no column")
        return _avro_type(others[0], named, name, depth)[0], len(others) < len(kind)
    if isinstance(kind, str):
        if kind in _AVRO:
            return _AVRO[kind], False
        if kind not in named:
            raise ConfigFault(f"Avro: {name} has the type {kind}, which is not known")
        return _avro_type(named[kind], named, name, depth + 1)
    word = kind["type"]
    if word == "record":
        return pa.struct(_avro_fields(kind, named, depth + 1)), False
    if word in ("enum", "fixed"):
        named[kind["name"]] = kind
    if kind.get("logicalType") == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0)), False
    if word == "fixed":
        return pa.binary(), False
    if word == "array":
        element, is_nullable = _avro_type(kind["items"], named, name, depth + 1)
        return pa.list_(pa.field("item", element, nullable=is_nullable)), False
    if (logical := (word, kind.get("logicalType"))) in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical], False
    if isinstance(word, str) and word in _AVRO:
        return _AVRO[word], False
    raise ConfigFault(f"Avro: {name} has the type {word}, which is no column here")
