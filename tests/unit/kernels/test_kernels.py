"""The compiled kernels, each against the library or the plain loop that does the same."""

import random
from collections.abc import Sequence

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of

from shmbroker.errors import ProtocolFault
from shmbroker.kernels import native
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import BATCH_HEADER
from tests.support.examples import examples

pytestmark = pytest.mark.skipif(native is None, reason="the kernels are not built here")


# --- CRC-32C -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", range(getattr(native, "CRC_METHODS", 0)))
@pytest.mark.parametrize("sizes", [range(700), [1535, 1536, 4095, 12287, 12288, 12289, 30001]])
def test_crc_is_that_of_the_library(sizes: Sequence[int], method: int) -> None:
    data = random.Random(len(sizes)).randbytes(30_002)
    for size in sizes:
        part = memoryview(data)[size % 3 : size % 3 + size]
        begin, end = part[: size // 3], part[size // 3 :]
        assert native.crc32c(part, 0, method) == native.crc32c(part) == crc32c(part)
        assert native.crc32c(end, crc32c(begin), method) == crc32c(part)


def test_a_method_of_crc_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="methods, no 9"):
        native.crc32c(b"", 0, 9)


# --- LZ4 -----------------------------------------------------------------------------------------

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 5000)),
    st.lists(st.sampled_from([b"abc", b"abcd", b"x", b'{"id": 17}']), max_size=300).map(b"".join),
)
lz4_options = st.fixed_dictionaries(
    {},
    optional={
        "block_linked": st.booleans(),
        "block_checksum": st.booleans(),
        "content_checksum": st.booleans(),
        "store_size": st.booleans(),
        "compression_level": st.sampled_from([0, 9]),
    },
)


@given(contents, lz4_options, st.integers(0, 40))
@settings(deadline=None, max_examples=examples(60))
def test_lz4_frames_are_those_of_the_library(content: bytes, options: dict, room: int) -> None:
    frame = lz4.frame.compress(content, **options)
    target = bytearray(3 + len(content) + room)
    assert native.lz4_decompress(frame, target, 3) == 3 + len(content)
    assert target[3 : 3 + len(content)] == content
    if content:
        assert native.lz4_decompress(frame, bytearray(len(content) - 1), 0) == -1


@given(contents, lz4_options, st.data())
@settings(deadline=None, max_examples=examples(100))
def test_damaged_lz4_is_an_error_or_what_the_library_reads(
    content: bytes, options: dict, data: st.DataObject
) -> None:
    frame = bytearray(lz4.frame.compress(content, **options))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]
    target = bytearray(2 * len(content) + 100)
    try:
        end = native.lz4_decompress(bytes(frame), target, 0)
    except ValueError:
        return
    if end >= 0:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        assert decompressor.decompress(bytes(frame)) == target[:end]


# --- murmur2 and encode --------------------------------------------------------------------------

maybe = st.one_of(st.none(), st.binary(max_size=70))
header_lists = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), maybe), max_size=3))
rows = st.lists(
    st.tuples(maybe, maybe, st.integers(-(2**40), 2**40), header_lists), min_size=1, max_size=20
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def column(array: pa.Array) -> tuple:
    return (*array.buffers(), array.offset)


def header_column(array: pa.ListArray) -> tuple:
    valid, offsets = array.buffers()[:2]
    pairs = array.values
    return (valid, offsets, array.offset, column(pairs.field(0)), column(pairs.field(1)))


@given(st.lists(st.binary(max_size=40)), st.integers(0, 3))
@settings(deadline=None)
def test_hashes_are_those_of_the_client(keys: list[bytes], skip: int) -> None:
    array = pa.array(keys, pa.binary())[skip:]
    out = np.empty(len(array), np.int32)
    native.murmur2(column(array), len(array), out)
    assert out.view(np.uint32).tolist() == [murmur2_of(key) & 0xFFFFFFFF for key in keys[skip:]]


def records_of(raw: bytes, count: int, base_timestamp: int) -> list[tuple]:
    header = BATCH_HEADER.pack(
        0, len(raw) + 49, 0, 2, 0, 0, count - 1, base_timestamp, 0, -1, -1, -1, count
    )
    return list(iterate_records(header + raw))


@given(rows, st.data())
@settings(deadline=None, max_examples=examples(100))
def test_encoded_records_are_read_back(table: list[tuple], data: st.DataObject) -> None:
    skip = data.draw(st.integers(0, len(table) - 1))
    chosen = data.draw(st.lists(st.integers(0, len(table) - skip - 1), min_size=1))
    keys, values, times, headers = zip(*table, strict=True)
    header_array = pa.array(
        [h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS
    )[skip:]
    timestamps = np.array(times[skip:], np.int64)
    out = bytearray(data.draw(st.sampled_from([60, 300, 20_000])))
    done, end, newest = native.encode(
        out,
        5,
        len(out),
        0,
        np.array(chosen, np.int32),
        0,
        len(chosen),
        column(pa.array(keys, pa.binary())[skip:]),
        column(pa.array(values, pa.binary())[skip:]),
        timestamps,
        7,
        header_column(header_array),
        len(table) - skip,
    )
    assert done == len(chosen) or len(out) < 20_000
    expected = [table[skip + row] for row in chosen[:done]]
    assert newest == max((row[2] for row in expected), default=7)
    found = records_of(bytes(out[5:end]), done, 7)
    assert [(r[2], r[3], r[1], [(k.decode(), v) for k, v in r[4]]) for r in found] == [
        (key, value, time, h or []) for key, value, time, h in expected
    ]
    assert [r[0] for r in found] == list(range(done))


def test_columns_are_checked_against_their_buffers() -> None:
    array = pa.array([b"abc", b"de"], pa.binary())
    valid, offsets, content, first = column(array)
    out = np.empty(2, np.int32)
    for bad, count in (
        ((valid, offsets, content.slice(0, 4), first), 2),
        ((valid, offsets, content, first), 3000),
        ((valid, offsets, content, -1), 2),
        ((b"", offsets, content, first), 2),
        ((valid, np.array([0, -1, 5], np.int32), content, 0), 2),
        ((valid, np.array([3, 2, 5], np.int32), content, 0), 2),
    ):
        with pytest.raises(ValueError, match=r"column|outside"):
            native.murmur2(bad, count, np.empty(count, np.int32))
        with pytest.raises(ValueError, match=r"column|outside"):
            native.encode(
                bytearray(9000), 0, 9000, 0, None, 0, count, bad, None, None, 0, None, count
            )
    with pytest.raises(ValueError, match="room"):
        native.murmur2((valid, offsets, content, first), 2, out[:1])


def test_scatter_checks_batches_and_partitions() -> None:
    content = column(pa.array([b"abc", b"de"], pa.binary()))
    out = bytearray(100)

    def scatter(
        states: list[int], placed: list[int], outs: list[bytearray | None]
    ) -> tuple[int, np.ndarray]:
        moving = np.array(states, np.int64)
        where = np.array(placed, np.int32)
        return native.scatter(outs, moving, where, 0, 2, content, None, None, 7, None, 2), moving

    assert scatter([0, 100, 0, 7, 7], [0, 0], [out])[0] == 2
    assert scatter([0, 0, 0, 0, 0], [0, 0], [None])[0] == 0
    done, state = scatter([95, 100, 2, 7, 7], [0, 0], [out])
    assert (done, state.tolist()) == (0, [95, 100, 2, 7, 7])
    for states, placed, outs, text in (
        ([0, 101, 0, 7, 7], [0, 0], [out], "no such bytes"),
        ([-1, 100, 0, 7, 7], [0, 0], [out], "no such bytes"),
        ([9, 8, 0, 7, 7], [0, 0], [out], "no such bytes"),
        ([0, 100, -1, 7, 7], [0, 0], [out], "or records"),
        ([0, 100, 2**31 - 2, 7, 7], [0, 0], [out], "or records"),
        ([0, 100, 0, 7, 7], [0, 1], [out], "no partition 1 among 1"),
        ([0, 100, 0, 7, 7], [0, -1], [out], "no partition -1"),
        ([0, 100, 0, 7], [0, 0], [out], "of 0 states"),
        ([0, 100, 0, 7, 7], [0], [out], "no rows 0 to 2"),
        ([0] * 325, [0, 0], [None] * (native.SCATTER_MAX + 1), "65 batches"),
    ):
        with pytest.raises(ValueError, match=text):
            scatter(states, placed, outs)


# --- walk ----------------------------------------------------------------------------------------


def encoded(keys: list[bytes | None], times: list[int]) -> bytes:
    array, out = pa.array(keys, pa.binary()), bytearray(4096)
    _, end, _ = native.encode(
        out,
        0,
        4096,
        0,
        None,
        0,
        len(keys),
        column(array),
        None,
        np.array(times),
        0,
        None,
        len(keys),
    )
    return bytes(out[:end])


def test_walk_names_what_is_wrong_with_which_record() -> None:
    raw = encoded([b"a", None, b"b", b"c"], [0, 5, 99, 7])
    assert native.walk(raw, 4, 0, 99, False, 10) == (4, 99, [])
    assert native.walk(raw, 4, 0, 10, True, 10) == (
        4,
        99,
        [(1, native.WALK_NO_KEY), (2, native.WALK_TIMESTAMP)],
    )
    assert native.walk(raw + encoded([b"a"], [0]), 5, 0, 99, False, 10) == (
        5,
        99,
        [(4, native.WALK_OFFSET)],
    )
    malformed = native.WALK_MALFORMED
    assert native.walk(raw, 3, 0, 99, False, 10) == (3, 99, [(3, malformed)])
    assert native.walk(raw, 5, 0, 99, False, 10) == (4, 99, [(4, malformed)])
    assert native.walk(raw[:-1], 4, 0, 99, True, 1) == (3, 99, [(3, malformed)])


@given(rows, st.data())
@settings(deadline=None, max_examples=examples(100))
def test_what_walks_is_what_the_plain_loop_reads(table: list[tuple], data: st.DataObject) -> None:
    raw = bytearray(encoded([row[0] for row in table][:9], [0] * min(len(table), 9)))
    count = min(len(table), 9)
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    walked, _, faults = native.walk(bytes(raw), count, -(2**62), 2**62, False, 100)
    try:
        found = records_of(bytes(raw), count, 0)
    except ProtocolFault:
        assert faults[-1][1] == native.WALK_MALFORMED
        return
    is_in_order = [record[0] for record in found] == list(range(count))
    assert walked == count
    assert (faults == []) == is_in_order
