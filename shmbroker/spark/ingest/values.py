"""Values to columns: JSON, CSV, Avro or raw bytes of whole batches, and what is wrong with some.

    decode(values) → (columns of the good ones, {row: reason} of the bad ones)

JSON and CSV are parsed by pyarrow, all values of a batch joined by newlines at once. That a row of
the outcome is the value of the same row is made sure of beforehand, so that no value can shift the
others: each value is one line; one of JSON begins with "{" and ends with "}", and "}" newline "{"
can't be inside an object, so none can reach into the next; none is empty. Then as many rows as
values means one row of each. Where the parser refuses, the batch is cut around the row that it
names, and where it names none, or counts other rows, halved until the bad values stand alone.

Rules
 * A bad value is told, not guessed at: a number that doesn't fit its column, text in a numeric
   one, a second document, invalid UTF-8. Fields that the schema lacks are left out; fields that the
   value lacks are null, which is wrong only in a column that is NOT NULL.
 * Null values (tombstones) are bad: there is nothing to make columns of.
"""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import schema as schemas

RAW = "raw"
JSON = "json"
CSV = "csv"
AVRO = "avro"
CONFLUENT_AVRO = "confluent-avro"
KINDS = (JSON, CSV, AVRO, CONFLUENT_AVRO, RAW)

_CONFLUENT_HEAD = 5
"""A zero byte and the id of the schema in its registry, before each value."""

_REASON_MAX = 300

_OPEN = "a quote is not closed"
"""A fault of CSV: what comes behind became a part of the value."""

_ROW = re.compile(r"in row (\d{1,9})$")

Bad = dict[int, str]
Decode = Callable[[pa.Array], tuple[pa.RecordBatch, Bad]]


def decoder(kind: str, schema: str, delimiter: str = ",") -> Decode:
    """What decodes values of this kind; `schema` is DDL, or JSON for Avro. Not for RAW."""
    if kind in (AVRO, CONFLUENT_AVRO):
        return _avro(schemas.avro_document(schema), _CONFLUENT_HEAD * (kind == CONFLUENT_AVRO))
    columns = schemas.parse(schema)
    parse = _json_parser(columns) if kind == JSON else _csv_parser(columns, delimiter)
    return lambda values: _lines(values, columns, parse, kind == JSON)


def columns_of(kind: str, schema: str) -> pa.Schema:
    """The schema of what `decoder` yields."""
    if kind in (AVRO, CONFLUENT_AVRO):
        return schemas.of_avro(schemas.avro_document(schema))
    return schemas.parse(schema)


Parse = Callable[[memoryview], pa.Table]
"""Lines to columns; pa.ArrowException if it can't."""


def _lines(
    values: pa.Array, schema: pa.Schema, parse: Parse, is_json: bool
) -> tuple[pa.RecordBatch, Bad]:
    """Decode values that are a line each."""
    bad: Bad = {}
    if not len(values):
        return _one_batch(schema.empty_table(), schema), bad
    if is_json:  # many programs end a value with a line end; as text, though it may be none
        values = pc.ascii_trim_whitespace(values.view(pa.string())).view(pa.binary())
    values, is_usable = _usable(values, is_json, bad)
    rows = np.flatnonzero(is_usable)
    if len(rows) < len(values):
        values = values.take(pa.array(rows))
    found: list[pa.Table] = []
    _halve(values, rows, parse, found, bad)
    table = pa.concat_tables(found) if found else schema.empty_table()
    batch = _one_batch(table, schema)
    required = [field.name for field in schema if not field.nullable]
    if not any(batch.column(name).null_count for name in required):
        return batch, bad
    good = np.array([row for row in rows.tolist() if row not in bad], np.int64)
    has_all = np.ones(len(good), bool)
    for name in required:
        is_null = batch.column(name).is_null().to_numpy(zero_copy_only=False)
        for row in good[is_null & has_all].tolist():
            bad[row] = f"{name} is missing, and may not be null"
        has_all &= ~is_null
    return batch.filter(pa.array(has_all)), bad


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([f.with_nullable(True) for f in schema])
    )


def _usable(values: pa.Array, is_json: bool, bad: Bad) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Mark the values that may be joined by newlines; tell the others, or take off space and line
    ends around them to make them so."""
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    data = values.buffers()[2]
    cells = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    is_usable = ~is_null & (lengths > 0)
    if is_json:
        some = np.flatnonzero(is_usable)
        is_usable[some] = (cells[offsets[some]] == ord("{")) & (
            cells[offsets[some + 1] - 1] == ord("}")
        )
    span = cells[offsets[0] : offsets[-1]]
    if (span == ord("\n")).any() or (span == ord("\r")).any():
        has_break = pc.match_substring_regex(values, "[\r\n]")
        is_usable &= ~pc.fill_null(has_break, False).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(~is_usable).tolist()
    if not odd:
        return values, is_usable
    repaired = values.to_pylist()
    for row in odd:
        value = repaired[row]
        if value is None:
            bad[row] = "the value is null"
            continue
        value = value.strip()
        if is_json and (b"\n" in value or b"\r" in value):
            try:
                json.loads(value)  # a line end is space, but for one in a string, which is wrong
            except (ValueError, RecursionError) as error:
                bad[row] = _told(str(error), value)
                continue
            value = value.replace(b"\r\n", b" ").replace(b"\n", b" ").replace(b"\r", b" ")
        if not value:
            bad[row] = "the value is empty"
        elif is_json and (value[:1] != b"{" or value[-1:] != b"}"):
            bad[row] = f"no JSON object: {_shown(value)}"
        elif b"\n" in value or b"\r" in value:
            bad[row] = "more than one line"
        else:
            repaired[row] = value
            is_usable[row] = True
    return pa.array(repaired, pa.binary()), is_usable


def _halve(
    values: pa.Array,
    rows: np.ndarray[Any, Any],
    parse: Parse,
    found: list[pa.Table],
    bad: Bad,
) -> None:
    """Parse values, halving them around the bad ones; `rows` are their places in the batch."""
    stack = [(0, len(values))]
    while stack:
        start, end = stack.pop()
        if start == end:
            continue
        try:
            table = parse(_joined(values.slice(start, end - start)))
            if table.num_rows == end - start:
                found.append(table)
                continue
            reason = f"{table.num_rows} documents in one value" if table.num_rows else _OPEN
        except (pa.ArrowException, UnicodeDecodeError) as error:
            reason = str(error).split("\n")[0]
        if end - start == 1:
            bad[int(rows[start])] = _told(reason, values[start].as_py())
        else:
            # what comes first is on top; the parser's row is only a hint where to cut
            hint = _ROW.search(reason)
            row = start + int(hint[1]) if hint else end
            if row < end:
                stack += [(row + 1, end), (row, row + 1), (start, row)]
            else:
                middle = (start + end) // 2
                stack += [(middle, end), (start, middle)]


def _joined(values: pa.Array) -> memoryview:
    lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined = pc.binary_join(lines, b"\n")
    joined.cast(pa.string())  # the parser does not look whether it is UTF-8
    return memoryview(joined[0].as_buffer())


def _told(reason: str, value: bytes) -> str:
    reason = reason.removesuffix(" in row 0").removesuffix(".").replace("In CSV column", "column")
    return f"{reason}: {_shown(value)}"[:_REASON_MAX]


def _shown(value: bytes) -> str:
    text = value[:80].decode(errors="replace")
    return text + ("…" if len(value) > 80 else "")


def _with_decimals(schema: pa.Schema) -> list[str]:
    """The columns that are decimals, or hold some."""
    return [field.name for field in schema if _has_decimal(field.type)]


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_decimal(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_decimal(field.type) for field in kind)
    return bool(pa.types.is_decimal(kind))


def _check_digits(table: pa.Table, names: list[str]) -> None:
    """Refuse decimals with more digits than their columns. pyarrow's readers count those of the
    text, and then add zeros up to the column's scale."""
    for name in names:
        try:
            table.column(name).validate(full=True)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(str(error).rpartition("Invalid: ")[2]) from None


# --- JSON ----------------------------------------------------------------------------------------


def _json_parser(schema: pa.Schema) -> Parse:
    from pyarrow import json as arrow_json

    # dates are numbers to pyarrow's JSON reader, timestamps are text
    read_as = pa.schema([pa.field(f.name, _dates_as_text(f.type)) for f in schema])
    options = arrow_json.ParseOptions(explicit_schema=read_as, unexpected_field_behavior="ignore")
    wanted = pa.schema([field.with_nullable(True) for field in schema])
    decimals = _with_decimals(schema)

    def parse(lines: memoryview) -> pa.Table:
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=options,
        )
        _check_digits(table, decimals)
        return table if table.schema.equals(wanted) else table.cast(wanted)

    return parse


def _dates_as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_dates_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _dates_as_text(f.type)) for f in kind])
    return kind


# --- CSV -----------------------------------------------------------------------------------------


def _csv_parser(schema: pa.Schema, delimiter: str) -> Parse:
    from pyarrow import csv as arrow_csv

    nested = [f.name for f in schema if pa.types.is_nested(f.type)]
    if nested:
        raise ConfigFault(f"a column of CSV can't be an array or a struct: {', '.join(nested)}")
    zoned = [place for place, f in enumerate(schema) if pa.types.is_timestamp(f.type) and f.type.tz]
    convert = arrow_csv.ConvertOptions(
        column_types={
            f.name: pa.string() if place in zoned else f.type for place, f in enumerate(schema)
        },
        null_values=[""],
        strings_can_be_null=False,
        true_values=["true", "True", "TRUE", "1"],
        false_values=["false", "False", "FALSE", "0"],
    )
    parsing = arrow_csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
    names = schema.names
    decimals = _with_decimals(schema)
    # behind the last value, so that a quote which is not closed there takes it, and is noticed
    guard = b"\n" + delimiter.encode() * (len(names) - 1) + b"\n"

    def parse(lines: memoryview) -> pa.Table:
        table = arrow_csv.read_csv(
            pa.py_buffer(b"".join((lines, guard))),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, column_names=names, block_size=len(lines) + len(guard) + 1
            ),
            parse_options=parsing,
            convert_options=convert,
        )
        table = table.slice(0, table.num_rows - 1)
        _check_digits(table, decimals)
        for place in zoned:
            kind = schema.field(place).type
            table = table.set_column(place, names[place], _times(table.column(place), kind))
        return table

    return parse


def _times(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Times with a zone, or without one, which are UTC; pyarrow takes no mixture of them."""
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)


# --- Avro ----------------------------------------------------------------------------------------


def _avro(document: dict[str, Any], head: int) -> Decode:
    """Decode with fastavro, a value at a time: Avro's bytes have no marks by which to take them
    together."""
    try:
        import fastavro
    except ImportError:
        raise ConfigFault("Avro values need fastavro: pip install fastavro") from None
    schema = schemas.of_avro(document)
    try:
        parsed = fastavro.parse_schema(schemas.without_other_kinds(document))
    except Exception as error:  # fastavro has no fault of its own for all that may be wrong
        raise ConfigFault(f"this is not an Avro schema: {error}") from None
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    read = fastavro.schemaless_reader

    def decode(values: pa.Array) -> tuple[pa.RecordBatch, Bad]:
        bad: Bad = {}
        rows: list[Any] = []
        places: list[int] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                if value is None:
                    raise ValueError("the value is null")
                if head and (len(value) < head or value[0]):
                    raise ValueError("the value has no Confluent header of 5 bytes, the first 0")
                stream = io.BytesIO(value)
                stream.seek(head)
                record = read(stream, parsed, None)
                if stream.tell() != len(value):
                    raise ValueError(f"{len(value) - stream.tell()} bytes are left over")
                rows.append(record)
                places.append(row)
            except IndexError:
                bad[row] = "it names a place that its union or enum has not"
            except Exception as error:  # of any kind: the bytes may be anything
                bad[row] = (str(error) or "the value ends in the midst of it")[:_REASON_MAX]
        try:
            return pa.RecordBatch.from_pylist(rows, schema=nullable), bad
        except _NOT_HELD:  # a number that its column can't hold: which one is looked for
            good = []
            for row, record in zip(places, rows, strict=True):
                try:
                    pa.RecordBatch.from_pylist([record], schema=nullable)
                    good.append(record)
                except _NOT_HELD as error:
                    bad[row] = str(error)[:_REASON_MAX]
            return pa.RecordBatch.from_pylist(good, schema=nullable), bad

    return decode


_NOT_HELD = (pa.ArrowException, ValueError, OverflowError, TypeError)
