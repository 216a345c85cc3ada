"""The columns of a decoded topic, and what both engines make them with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from shmbroker.records.batch_layout import TRANSACTIONAL_BIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
"""Spark's Kafka schema. Spark compares the Arrow schema with its own exactly, nullability too."""

BLOCK_ROWS = 32_768
"""Rows of an Arrow batch: larger ones leave the second-level cache and are no faster."""

BLOCK_BYTES = 16 << 20
"""Bytes of keys or values in an Arrow batch, and of log behind it, so that large values do not
make batches of gigabytes; a larger row makes a batch of its own."""

MAX_TIMESTAMP_MS = (1 << 63) // 1000 - 1
"""Milliseconds that microseconds can tell; what is beyond stops there."""


def column_types(columns: Sequence[str], has_views: bool = False) -> dict[str, pa.DataType]:
    """The Arrow types of these columns; with `has_views` keys and values are views."""
    types = {name: COLUMNS[name] for name in columns}
    if has_views:
        types |= {name: pa.binary_view() for name in ("key", "value") if name in types}
    return types


def arrow_schema(columns: Sequence[str], has_views: bool = False) -> pa.Schema:
    """The Arrow schema of these columns, as Spark expects it unless there are views."""
    return pa.schema(list(column_types(columns, has_views).items()))


def plain(kind: pa.DataType, values: NDArray[np.generic]) -> pa.Array:
    """A column of numbers around the memory of these.

    `pa.array` would do, but what it takes of Python's objects it looks at with pandas, where that
    is installed, and the import takes each new Python process of Spark's 0.3 s.
    """
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class ConstantColumns:
    """Topic and partition, which are the same in every row; of up to `rows` of them.

    Made of their buffers, for the reason of `plain`.
    """

    __slots__ = ("_partition", "_topic")

    def __init__(self, topic: str, partition: int, rows: int) -> None:
        text = topic.encode()
        ends = np.arange(rows + 1, dtype=np.int32) * len(text)
        parts = (pa.py_buffer(ends), pa.py_buffer(text * rows))
        self._topic = pa.StringArray.from_buffers(rows, *parts)
        self._partition = plain(pa.int32(), np.full(rows, partition, np.int32))

    def of(self, rows: int) -> dict[str, pa.Array]:
        """Both, for an Arrow batch."""
        return {"topic": self._topic.slice(0, rows), "partition": self._partition.slice(0, rows)}


@lru_cache(maxsize=64)
def constant_columns(topic: str, partition: int, rows: int) -> ConstantColumns:
    """The columns that are the same in all rows. Making them takes 0.3 ms, which shows where a
    piece is small, so they are kept."""
    return ConstantColumns(topic, partition, rows)


def text_of(names: pa.Array) -> pa.Array:
    """Strings of bytes that should be UTF-8; what isn't is replaced, as Java does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def header_pairs(names: pa.Array, contents: pa.Array) -> pa.StructArray:
    """The children of the headers column."""
    return pa.StructArray.from_arrays([text_of(names), contents], names=["key", "value"])


def is_aborted(
    aborted: Sequence[tuple[int, int, int]],
    producer_id: NDArray[np.int64],
    base_offset: NDArray[np.int64],
    attributes: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Mark the batches that belong to an aborted transaction (producer id, first and last
    offset)."""
    found = np.zeros(len(base_offset), np.bool_)
    for aborted_id, first_offset, last_offset in aborted:
        found |= (
            (producer_id == aborted_id)
            & (base_offset >= first_offset)
            & (base_offset <= last_offset)
        )
    found &= attributes & TRANSACTIONAL_BIT != 0
    return found
