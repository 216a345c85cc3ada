"""Record batches to Arrow by the compiled kernels (rules: `decode`).

scan     batch headers of about one Arrow batch's worth of rows
unpack   (if any of them is compressed: CRCs, then behind each other into one buffer)
decode   batch by batch the CRC, then, as its bytes are still in the cache, field by field into the
         buffers of an Arrow batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from shmbroker.client.reader import arrow_columns, large_batches
from shmbroker.client.reader.arrow_columns import (
    ConstantColumns,
    constant_columns,
    header_pairs,
    is_aborted,
)
from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.kernels import native
from shmbroker.records import codecs
from shmbroker.records.batch_layout import COMPRESSION_MASK, LZ4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

TABLE_BATCHES = 8192
"""Batches scanned at a time: of those with one record each, an Arrow batch gets as many rows."""

SCRATCH_BYTES = 32 << 20
"""Decompressed bytes that are kept at a time, unless a single batch is larger."""

SLACK = 64
"""More room than strings need, so that short copies may be longer than what they copy."""

# Columns of a batch table and of a decoder's state, and the outputs (`kernels/kernels.h`).
LOW, HIGH, BASE_OFFSET, _, COUNT, _, _, ATTRIBUTES, PRODUCER_ID, POSITION = range(10)
(
    S_BATCH,
    S_DONE,
    _,
    _,
    S_KEY_BYTES,
    S_KEY_NULLS,
    S_VALUE_BYTES,
    S_VALUE_NULLS,
    S_HEADERS,
    S_HEADER_NULLS,
    S_NAME_BYTES,
    S_CONTENT_BYTES,
    S_CONTENT_NULLS,
) = range(13)
(
    O_OFFSET,
    O_TIMESTAMP,
    O_TYPE,
    O_KEY_OFFSETS,
    O_KEY_BYTES,
    O_KEY_VALID,
    O_VALUE_OFFSETS,
    O_VALUE_BYTES,
    O_VALUE_VALID,
    O_KEY_VIEWS,
    O_VALUE_VIEWS,
    O_LIST_OFFSETS,
    O_LIST_VALID,
    O_NAME_OFFSETS,
    O_NAME_BYTES,
    O_CONTENT_OFFSETS,
    O_CONTENT_BYTES,
    O_CONTENT_VALID,
    OUTPUTS,
) = range(19)

# kind of string: its outputs (offsets, bytes, valid), what the state says of it (bytes, nulls)
_STRINGS = {
    "key": (O_KEY_OFFSETS, O_KEY_BYTES, O_KEY_VALID, S_KEY_BYTES, S_KEY_NULLS),
    "value": (O_VALUE_OFFSETS, O_VALUE_BYTES, O_VALUE_VALID, S_VALUE_BYTES, S_VALUE_NULLS),
}
_VIEWS = {"key": O_KEY_VIEWS, "value": O_VALUE_VIEWS}


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
    assert native is not None
    table = np.empty((TABLE_BATCHES, native.BATCH_FIELDS), np.int64)
    has_views = any(kind == pa.binary_view() for kind in types.values())
    rows = _Rows(types, topic, partition, start_offset, end_offset)
    unpacker = _Unpacker(data, has_views)
    size = len(data)
    position = next_offset = 0
    is_over = False
    while not is_over and position < size:
        first = position
        try:
            found, position, next_offset, is_over = native.scan(
                data,
                position,
                start_offset,
                end_offset,
                next_offset,
                arrow_columns.BLOCK_BYTES,
                arrow_columns.BLOCK_ROWS,
                checks_crc and bool(aborted),
                table,
            )
            batches = table[:found]
            if aborted and found:
                fields = (batches[:, at] for at in (PRODUCER_ID, BASE_OFFSET, ATTRIBUTES))
                batches = batches[~is_aborted(aborted, *fields)]
            if not len(batches):
                continue
            if (batches[:, ATTRIBUTES] & COMPRESSION_MASK).any():
                if checks_crc:
                    _check_crcs(data, batches)
                for raw, part in unpacker.unpack(batches):
                    yield from rows.read(raw, part, False)
            else:
                yield from rows.read(data, batches, checks_crc)
        except ValueError as error:
            raise CorruptFault(str(error)) from None
        except ProtocolFault as fault:
            raise CorruptFault(f"a batch between {first} and {position}: {fault}") from fault


def _check_crcs(data: memoryview, batches: Table) -> None:
    assert native is not None
    at, high = batches[:, POSITION].copy(), batches[:, HIGH].copy()
    bad = native.check_crcs(data, at, high)
    if bad >= 0:
        raise CorruptFault(f"the CRC of the batch at {at[bad]} is wrong")


class _Unpacker:
    """Decompresses batches behind each other into a buffer: one that is used again and again, or a
    new one each time if views will point into it."""

    __slots__ = ("buffer", "data", "has_views")

    def __init__(self, data: memoryview, has_views: bool) -> None:
        self.data = data
        self.has_views = has_views
        self.buffer = np.empty(0, np.uint8)

    def unpack(self, batches: Table) -> Iterator[tuple[NDArray[np.uint8], Table]]:
        """(bytes, their batches) of at most SCRATCH_BYTES, unless a single batch is larger. One
        that is too large to be unpacked at once comes as several."""
        first = used = 0
        if self.has_views:
            self.buffer = np.empty(0, np.uint8)
        fields = batches[:, [LOW, HIGH, ATTRIBUTES, COUNT]].tolist()
        for i, (low, high, attributes, count) in enumerate(fields):
            if used >= SCRATCH_BYTES:
                yield self.buffer, batches[first:i]
                first, used = i, 0
                if self.has_views:
                    self.buffer = np.empty(0, np.uint8)
            codec = attributes & COMPRESSION_MASK
            try:
                end = self._unpack(codec, self.data[low:high], used)
            except codecs.DecompressedTooLargeFault:
                if first < i:
                    yield self.buffer, batches[first:i]
                for plain, records in large_batches.parts(codec, self.data[low:high], count):
                    part = batches[i : i + 1].copy()
                    part[0, [LOW, HIGH, COUNT]] = 0, len(plain), records
                    yield np.frombuffer(plain, np.uint8), part
                first, used = i + 1, 0
                self.buffer = np.empty(0, np.uint8)
                continue
            batches[i, LOW], batches[i, HIGH] = used, end
            used = end
        if first < len(batches):
            yield self.buffer, batches[first:]

    def _unpack(self, codec: int, packed: memoryview, used: int) -> int:
        """Decompress one batch's records to `used`; where they end."""
        if codec != LZ4:
            plain = codecs.decompress_at_once(codec, packed)
            end = used + len(plain)
            if end > len(self.buffer):
                self._grow(used, end)
            self.buffer.data[used:end] = plain
            return end
        assert native is not None
        limit = min(codecs.output_bytes_max(len(packed)), codecs.AT_ONCE_BYTES_MAX)
        room = min(max(8 * len(packed), 64 << 10), limit)
        while True:
            if used + room > len(self.buffer):
                self._grow(used, used + room)
            end = native.lz4_decompress(packed, self.buffer.data[: used + limit], used)
            if end >= 0:
                return int(end)
            if room == limit:
                raise codecs.DecompressedTooLargeFault(
                    f"lz4 records decompress to more than {limit} bytes"
                )
            room = min(max(4 * room, len(self.buffer) - used + 1), limit)

    def _grow(self, used: int, needed: int) -> None:
        # empty, not zeroed: only what is used is ever touched
        larger = np.empty(max(needed, 2 * len(self.buffer), 1 << 20), np.uint8)
        larger[:used] = self.buffer[:used]
        self.buffer = larger


class _Rows:
    """Makes Arrow batches of scanned ones: the wanted columns and range, and the constant columns.

    `_room` remembers what strings took, so that the next buffers are about as large as is needed.
    """

    __slots__ = ("_constants", "_range", "_room", "_schema", "_types")

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self._types = types
        self._schema = pa.schema(list(types.items()))
        self._constants = constant_columns(topic, partition, arrow_columns.BLOCK_ROWS)
        self._range = (start_offset, end_offset)
        self._room: dict[str, int] = {}

    def read(
        self, raw: memoryview | NDArray[np.uint8], batches: Table, checks_crc: bool
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these batches, whose records lie in `raw`; checks_crc: the batches, too."""
        assert native is not None
        state = np.zeros(native.STATE_FIELDS, np.int64)
        log_bytes = int((batches[:, HIGH] - batches[:, LOW]).sum())
        count = len(batches)
        rows_left = int(batches[:, COUNT].sum())
        is_tight = False
        while state[S_BATCH] < count:
            rows_max = min(rows_left, arrow_columns.BLOCK_ROWS)
            block = _Block(self._types, rows_max, log_bytes, self._room, is_tight)
            before = state[:2].tolist()
            rows = native.decode(
                raw, batches, count, rows_max, *self._range, checks_crc, state, tuple(block.outputs)
            )
            numbers = state.tolist()
            if rows:
                yield block.finish(rows, numbers, raw, self._schema, self._constants)
                block.remember(numbers)
                is_tight = False
            elif numbers[:2] == before:
                assert not is_tight
                is_tight = True  # not even one row fitted: room for whatever it may be
            rows_left -= rows


class _Block:
    """The buffers of one Arrow batch, with room for `rows_max` rows."""

    __slots__ = ("_headers_room", "_room", "_types", "outputs")

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        rows_max: int,
        log_bytes: int,
        room: dict[str, int],
        is_tight: bool,
    ) -> None:
        """`log_bytes`: what no string can exceed; `is_tight`: give every one as much."""
        self._types = types
        self._room = room
        outputs: list[pa.Buffer | None] = [None] * OUTPUTS
        self.outputs = outputs
        new = pa.allocate_buffer
        bits = (rows_max + 7) // 8

        def strings(kind: str, start: int) -> pa.Buffer:
            most = log_bytes if is_tight else min(log_bytes, arrow_columns.BLOCK_BYTES)
            return new(
                (most if is_tight else min(room.get(kind, start), most)) + SLACK, resizable=True
            )

        if "offset" in types:
            outputs[O_OFFSET] = new(8 * rows_max)
        if "timestamp" in types:
            outputs[O_TIMESTAMP] = new(8 * rows_max)
        if "timestampType" in types:
            outputs[O_TYPE] = new(4 * rows_max)
        for kind, (ends, content, valid, _, _) in _STRINGS.items():
            if kind in types:
                outputs[valid] = new(bits)
                if types[kind] == pa.binary():
                    outputs[ends] = new(4 * (rows_max + 1))
                    outputs[content] = strings(kind, log_bytes)
                else:
                    outputs[_VIEWS[kind]] = new(16 * rows_max)
        if "headers" in types:
            pairs = log_bytes // 2 if is_tight else room.get("pairs", rows_max)
            outputs[O_LIST_OFFSETS] = new(4 * (rows_max + 1))
            outputs[O_LIST_VALID] = new(bits)
            outputs[O_NAME_OFFSETS] = new(4 * (pairs + 1))
            outputs[O_NAME_BYTES] = strings("names", 16 * rows_max)
            outputs[O_CONTENT_OFFSETS] = new(4 * (pairs + 1))
            outputs[O_CONTENT_BYTES] = strings("contents", 32 * rows_max)
            outputs[O_CONTENT_VALID] = new((pairs + 7) // 8)

    def remember(self, state: list[int]) -> None:
        """How much room the next block shall have: twice of what this one took, at least."""
        for kind, used in (
            ("key", state[S_KEY_BYTES]),
            ("pairs", state[S_HEADERS]),
            ("names", state[S_NAME_BYTES]),
            ("contents", state[S_CONTENT_BYTES]),
        ):
            self._room[kind] = 2 * used + 4096

    def finish(
        self,
        rows: int,
        state: list[int],
        raw: memoryview | NDArray[np.uint8],
        schema: pa.Schema,
        constants: ConstantColumns,
    ) -> pa.RecordBatch:
        """The Arrow batch of the first `rows` rows."""
        types, outputs = self._types, self.outputs
        made = constants.of(rows)
        for name, output in (
            ("offset", O_OFFSET),
            ("timestamp", O_TIMESTAMP),
            ("timestampType", O_TYPE),
        ):
            if name in types:
                made[name] = pa.Array.from_buffers(types[name], rows, [None, outputs[output]], 0)
        for name, (ends, content, valid, size, nulls) in _STRINGS.items():
            if name not in types:
                continue
            is_valid = outputs[valid] if state[nulls] else None
            if types[name] == pa.binary():
                buffers = [is_valid, outputs[ends], _cut(outputs[content], state[size])]
            else:
                buffers = [is_valid, outputs[_VIEWS[name]], pa.py_buffer(raw)]
            made[name] = pa.Array.from_buffers(types[name], rows, buffers, state[nulls])
        if "headers" in types:
            made["headers"] = self._headers(rows, state)
        return pa.RecordBatch.from_arrays([made[name] for name in types], schema=schema)

    def _headers(self, rows: int, state: list[int]) -> pa.Array:
        outputs, pairs = self.outputs, state[S_HEADERS]
        names = [None, outputs[O_NAME_OFFSETS], _cut(outputs[O_NAME_BYTES], state[S_NAME_BYTES])]
        contents = [
            outputs[O_CONTENT_VALID] if state[S_CONTENT_NULLS] else None,
            outputs[O_CONTENT_OFFSETS],
            _cut(outputs[O_CONTENT_BYTES], state[S_CONTENT_BYTES]),
        ]
        children = header_pairs(
            pa.Array.from_buffers(pa.binary(), pairs, names),
            pa.Array.from_buffers(pa.binary(), pairs, contents, state[S_CONTENT_NULLS]),
        )
        is_valid = outputs[O_LIST_VALID] if state[S_HEADER_NULLS] else None
        return pa.Array.from_buffers(
            self._types["headers"],
            rows,
            [is_valid, outputs[O_LIST_OFFSETS]],
            state[S_HEADER_NULLS],
            children=[children],
        )


def _cut(buffer: pa.Buffer, used: int) -> pa.Buffer:
    """The used bytes; what is left over is given back if it is much."""
    if 4 * used < 3 * buffer.size:
        buffer.resize(used)
        return buffer
    return buffer.slice(0, used)
