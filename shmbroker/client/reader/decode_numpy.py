"""Record batches to Arrow by numpy, where the compiled kernels were not built (rules: `decode`).

`batch_scan` gives groups of checked, decompressed batches. Where all of their records are laid out
alike, `decode_uniform` knows their places; else `record_lengths` finds them,
and here, block by block, all rows are parsed at once: one or two gathers for each varint of

    timestamp delta | offset delta | key length, key | value length, value |
    header count | header key length, key, value length, value | …

(behind a record's length and its attributes; every number is a zigzag varint).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shmbroker.client.reader import arrow_columns, large_batches
from shmbroker.client.reader.arrow_columns import (
    BLOCK_ROWS,
    COLUMNS,
    MAX_TIMESTAMP_MS,
    constant_columns,
    header_pairs,
    is_aborted,
    plain,
)
from shmbroker.client.reader.decode_uniform import Alike, Layout
from shmbroker.errors import CorruptFault
from shmbroker.records.batch_layout import TIMESTAMP_TYPE_BIT
from shmbroker.records.batch_scan import BatchGroup, gather, scan
from shmbroker.records.record_lengths import find_records, varints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_EVEN = np.arange(0, 2 * BLOCK_ROWS, 2, dtype=np.int32)


def decode(
    data: memoryview,
    start_offset: int,
    end_offset: int,
    types: Mapping[str, pa.DataType],
    topic: str,
    partition: int,
    aborted: Sequence[tuple[int, int, int]],
    checks_crc: bool,
) -> Iterator[pa.RecordBatch]:
    """`decode.decode`, with the columns' types."""
    rows = _Rows(types, topic, partition, start_offset, end_offset)
    has_views = any(kind == pa.binary_view() for kind in types.values())
    for group in scan(
        data,
        start_offset,
        end_offset,
        large_batches.parts,
        keeps_groups=has_views,
        checks_crc=checks_crc,
    ):
        if aborted:
            group = _without(aborted, group)
            if not len(group.header):
                continue
        done = 0
        if not has_views and "headers" not in types:
            for end, batch in rows.uniform(group):
                done = end
                yield batch
        if done == len(group.header):
            continue
        group = group.since(done)
        count = group.header["count"].astype(np.int64)
        bodies, ends = find_records(group.raw, group.low, group.high, count)
        first_rows = np.cumsum(count) - count
        for row, end in _blocks(bodies):
            # the batches of this block, and how many of its rows each has
            of = slice(
                int(np.searchsorted(first_rows, row, "right")) - 1,
                int(np.searchsorted(first_rows, end)),
            )
            edges = np.append(first_rows[of], end)
            edges[0] = row
            header, rows_of = group.header[of], np.diff(edges)
            batch = rows.build(_Block(group.raw, bodies[row:end], ends[row:end], header, rows_of))
            if batch.num_rows:
                yield batch


def _without(aborted: Sequence[tuple[int, int, int]], group: BatchGroup) -> BatchGroup:
    header = group.header
    is_left = ~is_aborted(
        aborted, header["producer_id"], header["base_offset"], header["attributes"]
    )
    return BatchGroup(group.raw, group.low[is_left], group.high[is_left], header[is_left])


def _blocks(bodies: Int64s) -> Iterator[tuple[int, int]]:
    """Cut the rows into blocks of at most BLOCK_ROWS and about BLOCK_BYTES, one row at least."""
    row, rows = 0, len(bodies)
    while row < rows:
        end = int(np.searchsorted(bodies, bodies[row] + arrow_columns.BLOCK_BYTES))
        end = min(max(end, row + 1), row + arrow_columns.BLOCK_ROWS, rows)
        yield row, end
        row = end


class _Block:
    """Rows whose places are known. `header` are the headers of their batches, `rows_of` how many
    rows of each are here."""

    __slots__ = ("bodies", "ends", "header", "raw", "rows_of")

    def __init__(
        self,
        raw: Bytes,
        bodies: Int64s,
        ends: Int64s,
        header: NDArray[np.void],
        rows_of: Int64s,
    ) -> None:
        self.raw = raw
        self.bodies = bodies
        self.ends = ends
        self.header = header
        self.rows_of = rows_of

    def per_row(self, field: str) -> Int64s:
        """A field of each row's batch header."""
        return np.repeat(self.header[field].astype(np.int64), self.rows_of)


class _Rows:
    """Makes Arrow batches of blocks: the wanted columns and range, and the constant columns."""

    __slots__ = ("constants", "end_offset", "schema", "start_offset", "types")

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self.types = types
        self.schema = pa.schema(list(types.items()))
        self.constants = constant_columns(topic, partition, arrow_columns.BLOCK_ROWS)
        self.start_offset = start_offset
        self.end_offset = end_offset

    def build(self, block: _Block) -> pa.RecordBatch:
        """The rows of this block in the range; parsed from left to right, as far as is needed."""
        raw, wants = block.raw, set(self.types)
        timestamp_delta, p = varints(raw, block.bodies + 1, 10)
        offset_delta, p = varints(raw, p, 5)
        offset, rows = self._offsets(block, offset_delta)
        built = self.constants.of(rows.stop - rows.start)
        if "offset" in wants:
            built["offset"] = plain(COLUMNS["offset"], offset[rows])
        if wants & {"timestamp", "timestampType"}:
            timestamp, kind = _timestamps(block, timestamp_delta)
            built["timestamp"] = plain(COLUMNS["timestamp"], timestamp[rows])
            built["timestampType"] = plain(COLUMNS["timestampType"], kind[rows])
        if wants & {"key", "value", "headers"}:
            key_length, key = varints(raw, p, 5)
            value_length, value = varints(raw, key + np.maximum(key_length, 0), 5)
            header_count, p = varints(raw, value + np.maximum(value_length, 0), 5)
            room = block.ends - p
            if (
                (header_count < 0).any()
                or (room < 2 * header_count).any()
                or room[header_count == 0].any()
            ):
                raise CorruptFault("a record's fields do not end where the record does")
            if "key" in wants:
                built["key"] = _strings(self.types["key"], raw, key[rows], key_length[rows])
            if "value" in wants:
                built["value"] = _strings(self.types["value"], raw, value[rows], value_length[rows])
            if "headers" in wants:
                built["headers"] = _headers(raw, header_count[rows], p[rows], block.ends[rows])
        elif (p > block.ends).any():
            raise CorruptFault("a record's fields go beyond its end")
        return pa.RecordBatch.from_arrays([built[name] for name in self.types], schema=self.schema)

    def uniform(self, group: BatchGroup) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(batches done, their rows) as long as all records are alike, and blocks hold whole
        batches."""
        layout = Layout.guess(group)
        if layout is None or not layout.fits(group):
            return
        header, count = group.header, group.header["count"].astype(np.int64)
        base_time = header["base_timestamp"].astype(np.int64)
        if (header["attributes"] & TIMESTAMP_TYPE_BIT).any() or (
            max(int(base_time.max()), -int(base_time.min())) > MAX_TIMESTAMP_MS - 64
        ):
            return
        base_offset, last = header["base_offset"].astype(np.int64), header["last_offset_delta"]
        if (count - 1 > last).any():
            return
        rows_before = np.append(0, np.cumsum(count))
        most = min(arrow_columns.BLOCK_ROWS, arrow_columns.BLOCK_BYTES // layout.value_length)
        first = 0
        while first < len(count):
            end = int(np.searchsorted(rows_before, rows_before[first] + most, "right")) - 1
            of = slice(first, end)
            rows = layout.rows(group.raw, group.low[of], count[of]) if end > first else None
            if rows is None:
                return
            offset = np.repeat(base_offset[of], count[of]) + rows.number
            low, high = np.searchsorted(offset, (self.start_offset, self.end_offset)).tolist()
            if low < high:
                base_ms = np.repeat(base_time[of], count[of])
                yield end, self._alike(group.raw, rows, layout, offset, base_ms, slice(low, high))
            first = end

    def _alike(
        self,
        raw: Bytes,
        rows: Alike,
        layout: Layout,
        offset: Int64s,
        base_ms: Int64s,
        chosen: slice,
    ) -> pa.RecordBatch:
        built = self.constants.of(chosen.stop - chosen.start)
        if "offset" in self.types:
            built["offset"] = plain(COLUMNS["offset"], offset[chosen])
        if "timestamp" in self.types:
            delta = (rows.time_bits >> np.uint64(1)).astype(np.int64)
            is_odd = rows.time_bits & np.uint64(1)
            if is_odd.any():
                delta ^= -is_odd.astype(np.int64)
            built["timestamp"] = plain(COLUMNS["timestamp"], (base_ms + delta)[chosen] * 1000)
        if "timestampType" in self.types:
            kind = np.zeros(chosen.stop - chosen.start, np.int32)
            built["timestampType"] = plain(COLUMNS["timestampType"], kind)
        for name, at, size in (
            ("key", rows.key, layout.key_length),
            ("value", rows.value, layout.value_length),
        ):
            if name in self.types:
                built[name] = _alike(raw, at[chosen], size)
        return pa.RecordBatch.from_arrays([built[name] for name in self.types], schema=self.schema)

    def _offsets(self, block: _Block, delta: Int64s) -> tuple[Int64s, slice]:
        """The offsets of all rows, and which rows are in the range."""
        # they must grow, so of each batch's rows in this block only the last can be too large
        last = delta[np.cumsum(block.rows_of) - 1]
        offset = block.per_row("base_offset") + delta
        if (
            int(delta.min()) < 0
            or (last > block.header["last_offset_delta"]).any()
            or (offset[1:] <= offset[:-1]).any()
        ):
            raise CorruptFault("record offsets do not grow inside of their batch")
        first, end = np.searchsorted(offset, (self.start_offset, self.end_offset)).tolist()
        return offset, slice(first, end)


def _timestamps(block: _Block, delta_ms: Int64s) -> tuple[Int64s, NDArray[np.int32]]:
    """Microseconds and type (0 create time, 1 log append time) of all rows."""
    is_append = block.header["attributes"] & TIMESTAMP_TYPE_BIT != 0
    kind = np.repeat(is_append.astype(np.int32), block.rows_of)
    ms = block.per_row("base_timestamp") + delta_ms
    if is_append.any():
        ms = np.where(kind != 0, block.per_row("max_timestamp"), ms)
    if max(int(ms.max()), -int(ms.min())) > MAX_TIMESTAMP_MS:
        ms = np.clip(ms, -MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
    return ms * 1000, kind


def _headers(raw: Bytes, count: Int64s, at: Int64s, ends: Int64s) -> pa.Array:
    """The headers column: null in a row without any, as Spark's Kafka source has it."""
    first = np.cumsum(count) - count
    total = int(count.sum())
    key, key_length, value, value_length = np.zeros((4, total), np.int64)
    p = at.copy()
    left = np.flatnonzero(count)
    step = 0
    while len(left):
        index = first[left] + step
        key_length[index], key[index] = varints(raw, p[left], 5)
        value_at = key[index] + np.maximum(key_length[index], 0)
        value_length[index], value[index] = varints(raw, value_at, 5)
        p[left] = value[index] + np.maximum(value_length[index], 0)
        if (key_length[index] < 0).any() or (p[left] > ends[left]).any():
            raise CorruptFault("a record header goes beyond its record")
        step += 1
        left = left[count[left] > step]
    if (p != ends).any():
        raise CorruptFault("record headers do not end where the record does")
    pairs = header_pairs(_binary(raw, key, key_length), _binary(raw, value, value_length))
    layout = np.append(first, total).astype(np.int32)
    return pa.Array.from_buffers(
        COLUMNS["headers"],
        len(count),
        [_validity(count > 0), pa.py_buffer(layout)],
        children=[pairs],
    )


def _validity(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    if is_valid.all():
        return None
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _strings(kind: pa.DataType, raw: Bytes, at: Int64s, length: Int64s) -> pa.Array:
    """A column of the strings at these growing positions; a negative length is a null."""
    return _views(raw, at, length) if kind == pa.binary_view() else _binary(raw, at, length)


def _views(raw: Bytes, at: Int64s, length: Int64s) -> pa.Array:
    """Arrow's binary view: up to 12 bytes in itself, of more the first 4 and the place in `raw`."""
    validity = _validity(length >= 0)
    size = np.maximum(length, 0)
    views = np.zeros((len(at), 4), np.int32)
    views[:, 0] = size
    # as many bytes as a view holds itself, zeros behind the string
    places = np.arange(12)
    inside = raw.take(at[:, None] + places, mode="clip")
    inside[places >= size[:, None]] = 0
    views[:, 1:] = inside.view(np.int32)
    is_long = size > 12
    views[is_long, 2] = 0
    views[is_long, 3] = at[is_long]
    buffers = [validity, pa.py_buffer(views), pa.py_buffer(raw)]
    return pa.Array.from_buffers(pa.binary_view(), len(at), buffers)


def _binary(raw: Bytes, at: Int64s, length: Int64s) -> pa.Array:
    """A binary column of the strings at these growing positions; a negative length is a null.

    Arrow copies them: the range is laid out as string, gap, string, gap, … and the even ones are
    taken. (Per string of 100 bytes: 10 ns; numpy's V100 items, if all have one size: 6 ns.)
    """
    n = len(at)
    if not n:
        return _alike(raw, at, 0)
    validity = _validity(length >= 0)
    if validity is not None:
        length = np.maximum(length, 0)
    size = int(length[0])
    if size and (length == size).all():
        _, offsets, body = _alike(raw, at, size).buffers()
    else:
        base = int(at[0])
        layout = np.empty(2 * n + 1, np.int32)
        layout[0:-1:2] = at - base
        layout[1::2] = at + length - base
        layout[-1] = layout[-2]
        strings = pa.Array.from_buffers(
            pa.binary(), 2 * n, [None, pa.py_buffer(layout), pa.py_buffer(raw[base:])]
        )
        even = _EVEN[:n] if n <= BLOCK_ROWS else np.arange(0, 2 * n, 2, dtype=np.int32)
        _, offsets, body = pc.take(strings, plain(pa.int32(), even), boundscheck=False).buffers()
    return pa.Array.from_buffers(pa.binary(), n, [validity, offsets, body])


def _alike(raw: Bytes, at: Int64s, size: int) -> pa.Array:
    """A binary column of strings of one size."""
    n = len(at)
    offsets = pa.py_buffer(np.arange(n + 1, dtype=np.int32) * size)
    body = pa.py_buffer(gather(raw, at, size) if size else b"")
    return pa.Array.from_buffers(pa.binary(), n, [None, offsets, body])
