"""Any table to the columns of records, in chunks that the kernels can take.

    column       types                                               null
    key, value   binary, string, large and view kinds of them,       null key, null value
                 fixed-size binary, dictionary of these
    headers      list<struct<key: string, value: binary>>            no headers
    partition    whole numbers                                       by key, or sticky
    timestamp    timestamp of any unit, or whole ms since 1970       the time of the call
    topic        string                                              refused

Columns of other names are refused: they would be lost in silence. A chunk has at most `ROWS_MAX`
rows of one topic, all of them with int32 offsets as `kernels/_native.pyi` has them. Where the types
fit, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shmbroker.client.producer.encoding import BinaryColumn, HeaderColumn
from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

    from shmbroker.client.producer.encoding import Ints, Rows

NAMES = ("key", "value", "headers", "partition", "timestamp", "topic")
ROWS_MAX = 1 << 16
"""Rows of a chunk: small enough that its columns of numbers stay in the cache."""

BYTES_MAX = 1 << 30
"""The bytes of a chunk's columns: what int32 offsets reach, with room to spare."""

Plain = bytes | str | None
"""A key or a value of one record."""
Partitioner = Callable[[pa.RecordBatch, int], object]
"""Rows of one topic and its partitions, to what numpy or Arrow make numbers of: the partition of
each row, null or -1 for the default one."""

T = TypeVar("T")

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class ColumnChunk:
    """Rows of one topic; `partitions` and `timestamps` are None where no row has its own."""

    __slots__ = (
        "batch",
        "headers",
        "key",
        "key_array",
        "partitions",
        "rows",
        "timestamps",
        "value",
    )

    def __init__(self, batch: pa.RecordBatch, now_ms: int) -> None:
        self.batch = batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.rows = batch.num_rows
        self.key_array = _binary(columns, "key")
        self.key = BinaryColumn.of(self.key_array)
        self.value = BinaryColumn.of(_binary(columns, "value"))
        self.headers = _headers(columns.get("headers"))
        self.partitions = _partitions(columns.get("partition"))
        self.timestamps = _timestamps(columns.get("timestamp"), now_ms)


def chunks(data: object, topic: str | None, now_ms: int) -> Iterator[tuple[str, ColumnChunk]]:
    """(topic, chunk) of all rows in order; `topic`, if given, wins over the column.

    `data`: pyarrow Table, RecordBatch or RecordBatchReader, or whatever exports an Arrow stream
    (polars, DuckDB, pandas). ConfigFault for a column that can't be taken.
    """
    if topic is not None and not isinstance(topic, str):
        raise ConfigFault(f"the topic is a name, not {topic!r}")
    for batch in batches_of(data):
        _refuse_unknown(batch.schema)
        for start in range(0, batch.num_rows, ROWS_MAX):
            for part in _within_bytes(batch.slice(start, ROWS_MAX)):
                for name, rows in _by_topic(part, topic):
                    yield name, ColumnChunk(rows, now_ms)


def one_row(
    key: Plain,
    value: Plain,
    partition: int | None,
    timestamp: int | datetime | None,
    headers: Mapping[str, bytes | None] | None,
) -> pa.RecordBatch:
    """A record of plain values; ConfigFault for what is neither bytes nor text."""
    columns: dict[str, pa.Array] = {}
    for name, content in (("key", key), ("value", value)):
        if not isinstance(content, bytes | str | None):
            raise ConfigFault(f"{name} is {type(content).__name__}: give bytes, str or None")
        kind = pa.string() if isinstance(content, str) else pa.binary()
        columns[name] = pa.array([content], kind)
    try:
        if partition is not None:
            columns["partition"] = pa.array([partition], pa.int64())
        if timestamp is not None:
            columns["timestamp"] = pa.array([timestamp])
        if headers is not None:
            columns["headers"] = pa.array(
                [list(headers.items())], pa.map_(pa.string(), pa.binary())
            )
    except (pa.ArrowInvalid, TypeError, OverflowError) as error:
        raise ConfigFault(f"partition, timestamp or headers: {error}") from None
    return pa.RecordBatch.from_pydict(columns)


def choose(partitioner: Partitioner, chunk: ColumnChunk, partitions: int) -> None:
    """Give the rows that have no partition of their own the one that the function says."""
    chosen = partitioner(chunk.batch, partitions)
    try:
        array = chosen if isinstance(chosen, pa.Array) else pa.array(chosen)
    except (pa.ArrowInvalid, TypeError) as error:
        raise ConfigFault(f"partitioner: {error}") from None
    if len(array) != chunk.rows:
        raise ConfigFault(f"partitioner: {len(array)} numbers for {chunk.rows} rows")
    if pa.types.is_integer(array.type):
        array = pc.if_else(pc.equal(array, -1), pa.scalar(None, array.type), array)
    found = _partitions(array, "what partitioner gives")
    own = chunk.partitions
    if found is None or own is None:
        chunk.partitions = found if own is None else own
    else:
        chunk.partitions = np.where(own >= 0, own, found)


def batches_of(data: object) -> Iterator[pa.RecordBatch]:
    """The record batches of anything that holds Arrow data; ConfigFault if it does not."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _imported(pa.RecordBatchReader.from_stream, data)
    elif hasattr(data, "__arrow_c_array__"):
        yield _imported(pa.record_batch, data)
    else:
        raise ConfigFault(
            f"{type(data).__name__} is no Arrow data: give a pyarrow Table or RecordBatch, or what"
            " has __arrow_c_stream__ (polars, DuckDB, pandas)"
        )


def _imported(take: Callable[[object], T], data: object) -> T:
    """What `take` makes of data that exports itself; an array or a series has no columns."""
    try:
        return take(data)
    except pa.ArrowInvalid:
        name = type(data).__name__
        raise ConfigFault(f"{name} has no columns: give a table with a column value") from None


def _refuse_unknown(schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in NAMES:
            raise ConfigFault(f"column {name} is none of {', '.join(NAMES)}: leave it out")
        if schema.names.count(name) > 1:
            raise ConfigFault(f"column {name} is there more than once")


def _within_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each part is below BYTES_MAX; one row may be as large as it is."""
    if batch.num_rows <= 1 or batch.nbytes <= BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _within_bytes(batch.slice(0, half))
    yield from _within_bytes(batch.slice(half))


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, batch
        return
    if "topic" not in batch.schema.names:
        raise ConfigFault("there is no column topic: give the topic as an argument")
    names = batch.column("topic")
    if pa.types.is_dictionary(names.type):
        names = _decoded(names)
    if not _is_text(names.type):
        raise ConfigFault(f"column topic is {names.type}, not string")
    if names.null_count:
        raise ConfigFault("column topic has a null: give the topic as an argument")
    found = pc.unique(names)
    for name in found:
        one = batch if len(found) == 1 else batch.filter(pc.equal(names, name))
        yield name.as_py(), one


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    """A dictionary's values, one for each row."""
    values = array.dictionary
    if pa.types.is_string_view(values.type):  # pyarrow takes no rows of views
        values = values.cast(pa.string())
    elif pa.types.is_binary_view(values.type):
        values = values.cast(pa.binary())
    return values.take(array.indices)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _binary(columns: dict[str, pa.Array], name: str) -> pa.Array | None:
    """A column as binary or string with int32 offsets; None: null in every row."""
    array = columns.get(name)
    if array is None or pa.types.is_null(array.type):
        return None
    if pa.types.is_dictionary(array.type):
        array = _decoded(array)
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return array
    if not _is_text(kind) and not _is_bytes(kind):
        raise ConfigFault(f"column {name} is {kind}, not binary or string: cast it")
    return array.cast(pa.string() if _is_text(kind) else pa.binary())


def _headers(array: pa.Array | None) -> HeaderColumn | None:
    if array is None or pa.types.is_null(array.type) or array.null_count == len(array):
        return None
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        kind = array.type
    if not is_list or not pa.types.is_struct(kind.value_type):
        raise ConfigFault(f"column headers is {kind}, not list<struct<key: string, value: binary>>")
    names = [kind.value_type.field(i).name for i in range(kind.value_type.num_fields)]
    if names != ["key", "value"]:
        raise ConfigFault(f"column headers has the fields {', '.join(names)}, not key and value")
    try:
        array = array if kind == _HEADERS else array.cast(_HEADERS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigFault(f"column headers: {error}") from None
    pairs = array.values
    # A struct's children don't know of its slice and its nulls; a null pair is a null key.
    key, value = pairs.flatten()
    low, high = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    if key.slice(low, high - low).null_count:
        raise ConfigFault("column headers has a null key")
    return HeaderColumn(array, BinaryColumn(key), BinaryColumn(value))


def _partitions(array: pa.Array | None, what: str = "column partition") -> Rows | None:
    """int32 for each row, -1 where it has none; None if no row has one."""
    if array is None or array.null_count == len(array):
        return None
    if not pa.types.is_integer(array.type):
        raise ConfigFault(f"{what} is {array.type}, not a whole number")
    try:
        if pc.min(array).as_py() < 0:
            raise ConfigFault(f"{what} holds a number below 0: null stands for none")
        array = array.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise ConfigFault(f"{what}: {error}") from None
    rows: Rows = pc.fill_null(array, -1).to_numpy(zero_copy_only=False)
    return rows


def _timestamps(array: pa.Array | None, now_ms: int) -> Ints | None:
    """int64 ms for each row; None if no row has one."""
    if array is None or array.null_count == len(array):
        return None
    kind = array.type
    if not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
        raise ConfigFault(f"column timestamp is {kind}, not a timestamp or whole ms")
    try:
        if pa.types.is_timestamp(kind):
            is_finer = kind.unit in ("us", "ns")
            array = pc.cast(array, pa.timestamp("ms", kind.tz), safe=not is_finer)
        array = array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ConfigFault(f"column timestamp: {error}") from None
    filled: Ints = pc.fill_null(array, now_ms).to_numpy(zero_copy_only=False)
    if len(filled) and int(np.min(filled)) < 0:
        raise ConfigFault("column timestamp holds a time before 1970, which Kafka does not take")
    return filled
