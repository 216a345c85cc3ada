"""Columns to records: both encoders against the plain one, hashes and places against clients'."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of

from shmbroker.client.producer import encoding
from shmbroker.client.producer.columns import ROWS_MAX, chunks
from shmbroker.client.producer.placement import Sticky, by_partition, columns_of, place
from shmbroker.errors import ConfigFault
from shmbroker.kernels import native
from shmbroker.records.batch import encode_batch
from shmbroker.records.batch_layout import HEADER_SIZE
from tests.support.examples import examples

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

ENCODERS = [
    encoding._encode,
    pytest.param(
        encoding.encode, marks=pytest.mark.skipif(native is None, reason="no kernels here")
    ),
]

contents = st.one_of(
    st.none(), st.binary(max_size=20), st.integers(0, 300).map(lambda size: bytes(size))
)
headers = st.one_of(
    st.none(), st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)))
)
times = st.integers(0, 2**40) | st.integers(NOW_MS - 100, NOW_MS + 100)
rows = st.lists(st.tuples(contents, contents, headers, times), min_size=1, max_size=60)


def table_of(records: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([r[0] for r in records], pa.binary()),
            "value": pa.array([r[1] for r in records], pa.binary()),
            "headers": pa.array(
                [r[2] and [{"key": k, "value": v} for k, v in r[2]] for r in records], HEADERS
            ),
            "timestamp": pa.array([r[3] for r in records], pa.int64()),
        }
    )


@pytest.mark.thorough
@pytest.mark.parametrize("encode", ENCODERS)
@given(records=rows, data=st.data())
@settings(deadline=None, max_examples=examples(80))
def test_records_are_those_of_the_plain_encoder(
    encode: Callable[..., Any], records: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    skip = data.draw(st.integers(0, len(records) - 1))
    ((_, chunk),) = chunks(table_of(records).slice(skip), "t", NOW_MS)
    chosen = data.draw(st.none() | st.lists(st.integers(0, chunk.rows - 1), min_size=1))
    order = range(chunk.rows) if chosen is None else chosen
    numbers = None if chosen is None else np.array(chosen, np.int32)
    base = records[skip + order[0]][3]
    out = bytearray(data.draw(st.sampled_from([50, 700, 60_000])))
    # In two steps, as an open batch takes them.
    first = data.draw(st.integers(0, len(order)))
    count, end, newest = encode(out, 0, len(out), 0, numbers, 0, first, base, columns_of(chunk))
    more, end, later = encode(
        out, end, len(out), count, numbers, count, len(order), base, columns_of(chunk)
    )
    count += more
    assert count == len(order) or len(out) < 60_000
    taken = [records[skip + row] for row in order[:count]]
    if not taken:
        return
    plain = encode_batch([(t, k, v, [(n.encode(), c) for n, c in h or ()]) for k, v, h, t in taken])
    assert bytes(out[:end]) == plain[HEADER_SIZE:]
    assert max(newest, later) == max(t for _, _, _, t in taken)


@pytest.mark.thorough
@pytest.mark.skipif(native is None, reason="no kernels here")
@given(records=rows, count=st.integers(1, 4), size=st.sampled_from([4000, 60_000]), data=st.data())
@settings(deadline=None, max_examples=examples(80))
def test_scattered_rows_are_those_that_each_partition_alone_would_take(
    records: list[tuple[Any, ...]], count: int, size: int, data: st.DataObject
) -> None:
    skip = data.draw(st.integers(0, len(records) - 1))
    ((_, chunk),) = chunks(table_of(records).slice(skip), "t", NOW_MS)
    where = data.draw(st.lists(st.integers(0, count - 1), min_size=chunk.rows, max_size=chunk.rows))
    columns = columns_of(chunk)
    if data.draw(st.booleans()):
        columns = columns._replace(timestamps=None)

    alone: list[list[tuple[bytes, int]]] = [[] for _ in range(count)]
    for partition in set(where):
        numbers = np.array([row for row in range(chunk.rows) if where[row] == partition], np.int32)
        first = 0
        while first < len(numbers):
            out = bytearray(size)
            more, end, newest = encoding.encode(
                out, 0, size, 0, numbers, first, len(numbers), NOW_MS, columns
            )
            assert more, "a row that is larger than the buffer"
            first += more
            alone[partition].append((bytes(out[:end]), max(newest, NOW_MS)))

    together: list[list[tuple[bytes, int]]] = [[] for _ in range(count)]
    outs: list[bytearray | None] = [None] * count
    assert native is not None and len(encoding.CLOSED) == native.SCATTER_FIELDS
    states = np.zeros((count, len(encoding.CLOSED)), np.int64)

    def close(partition: int) -> None:
        out, state = outs[partition], states[partition].tolist()
        if out is not None:
            content = bytes(out[: state[encoding.POSITION]])
            together[partition].append((content, state[encoding.NEWEST]))

    first, placed_rows = 0, np.array(where, np.int32)
    while (first := encoding.scatter(outs, states, placed_rows, first, columns, NOW_MS)) < len(
        where
    ):
        close(where[first])
        outs[where[first]] = bytearray(size)
        states[where[first]] = (0, size, 0, NOW_MS, NOW_MS)
    for partition in range(count):
        close(partition)
    assert together == alone


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=50), st.integers(0, 3))
@settings(deadline=None, max_examples=examples(80))
def test_hashes_are_those_of_kafka(keys: list[bytes | None], skip: int) -> None:
    array = pa.array([b"before"] * skip + keys, pa.binary())[skip:]
    column = encoding.BinaryColumn(array)
    for hashes in (encoding._murmur2(column, len(keys)), encoding.murmur2(column, len(keys))):
        for key, found in zip(keys, hashes.tolist(), strict=True):
            assert key is None or found == murmur2_of(key) & 0xFFFFFFFF


def placed(data: pa.Table, partitions: int = 5, batch_size: int = 1000) -> list[int]:
    found: list[int] = []
    sticky = Sticky(batch_size, np.random.default_rng(7).integers)
    for _, chunk in chunks(data, "t", NOW_MS):
        found += place(chunk, partitions, "t", sticky, lambda: [1] * partitions).tolist()
    return found


def test_a_key_is_hashed_and_a_partition_of_its_own_wins() -> None:
    keys = [b"a", b"", b"key", None, b"a"]
    found = placed(pa.table({"key": keys, "partition": pa.array([None, None, 3, 4, None])}))
    assert found[0] == found[4] == (murmur2_of(b"a") & 0x7FFFFFFF) % 5
    assert found[1] == (murmur2_of(b"") & 0x7FFFFFFF) % 5
    assert found[2:4] == [3, 4]


def test_records_without_a_key_stick_for_about_a_batch() -> None:
    found = placed(pa.table({"value": [b"x" * 90] * 3000}), batch_size=1000)
    changes = [i for i in range(1, 3000) if found[i] != found[i - 1]]
    # 100 bytes each; the lot may fall on the same partition again
    assert changes
    assert all(at % 10 == 0 for at in changes)
    share = [found.count(partition) for partition in range(5)]
    assert min(share) > 400
    assert sum(share) == 3000


def test_the_lot_leaves_out_partitions_without_a_leader() -> None:
    lots = np.random.default_rng(3).integers
    sticky = Sticky(10, lots)
    sizes = np.full(500, 10)
    assert set(sticky.place(sizes, lambda: [0, 3, 0, 1]).tolist()) == {1, 3}
    assert set(Sticky(10, lots).place(sizes, lambda: [0, 0]).tolist()) == {0, 1}


@pytest.mark.parametrize("partitions", [2, 3, 70_000])
def test_rows_of_a_partition_keep_their_order(partitions: int) -> None:
    given_ = np.random.default_rng(5).integers(0, partitions, 500).astype(np.int32)
    found: dict[int, list[int]] = {}
    for partition, numbers, first, last in by_partition(given_):
        rows = range(first, last) if numbers is None else numbers[first:last].tolist()
        found.setdefault(partition, []).extend(rows)
    assert found == {
        partition: np.flatnonzero(given_ == partition).tolist()
        for partition in set(given_.tolist())
    }


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_keys_and_values_are_of_any_binary_kind(kind: pa.DataType) -> None:
    values = pa.array(["ab", None, "cd"]).cast(
        pa.binary() if "binary" in str(kind) else pa.string()
    )
    ((_, chunk),) = chunks(pa.table({"value": values.cast(kind)})[:], "t", NOW_MS)
    out = bytearray(100)
    count, end, _ = encoding.encode(out, 0, 100, 0, None, 0, 3, NOW_MS, columns_of(chunk))
    plain = encode_batch([(NOW_MS, None, value, ()) for value in (b"ab", None, b"cd")])
    assert (count, bytes(out[:end])) == (3, plain[HEADER_SIZE:])


def test_times_of_any_unit_are_ms_and_null_is_now() -> None:
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        column = pa.array([17 * factor, None], pa.timestamp(unit, "UTC"))
        ((_, chunk),) = chunks(pa.table({"timestamp": column}), "t", NOW_MS)
        assert chunk.timestamps.tolist() == [17_000, NOW_MS]


def test_topics_come_from_the_column_unless_one_is_given() -> None:
    data = pa.table({"topic": ["a", "b", "a"], "value": ["1", "2", "3"]})
    assert [(name, chunk.rows) for name, chunk in chunks(data, None, NOW_MS)] == [
        ("a", 2),
        ("b", 1),
    ]
    assert [(name, chunk.rows) for name, chunk in chunks(data, "c", NOW_MS)] == [("c", 3)]


def test_large_tables_come_in_chunks_and_map_headers_are_pairs() -> None:
    data = pa.table({"value": pa.nulls(ROWS_MAX + 5)})
    assert [chunk.rows for _, chunk in chunks(data, "t", NOW_MS)] == [ROWS_MAX, 5]
    maps = pa.array([[("a", b"1")], []], pa.map_(pa.string(), pa.binary()))
    ((_, chunk),) = chunks(pa.table({"headers": maps}), "t", NOW_MS)
    assert chunk.headers.array.to_pylist() == [[{"key": "a", "value": b"1"}], []]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"valeu": ["x"]}, "column valeu is none of key, value"),
        ({"value": [1]}, "column value is int64, not binary or string"),
        ({"partition": [-1]}, "below 0"),
        ({"partition": ["1"]}, "not a whole number"),
        ({"partition": [2**40]}, "column partition"),
        ({"partition": [9]}, "topic t has no partition 9: it has 5"),
        ({"timestamp": [-5]}, "before 1970"),
        ({"timestamp": ["now"]}, "not a timestamp"),
        ({"headers": ["x"]}, "not list<struct"),
        ({"headers": [[{"k": "x", "value": b""}]]}, "fields k, value"),
        ({"headers": [[{"key": None, "value": b""}]]}, "null key"),
        ({"headers": [[{"key": "x", "value": 1}]]}, "column headers"),
        ({"timestamp": pa.array([2**62], pa.timestamp("s"))}, "column timestamp"),
        ({"timestamp": pa.array([2**63], pa.uint64())}, "column timestamp"),
    ],
)
def test_what_can_not_be_taken_is_said_in_one_sentence(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigFault, match=text):
        placed(pa.table(columns))
    with pytest.raises(ConfigFault, match="null: give the topic"):
        list(chunks(pa.table({"topic": pa.array(["a", None])}), None, NOW_MS))
    with pytest.raises(ConfigFault, match="no column topic"):
        list(chunks(pa.table({"value": ["a"]}), None, NOW_MS))
    with pytest.raises(ConfigFault, match="StringArray has no columns"):
        list(chunks(pa.array(["a"]), "t", NOW_MS))
    with pytest.raises(ConfigFault, match="ChunkedArray has no columns"):
        list(chunks(pa.chunked_array([["a"]]), "t", NOW_MS))
    with pytest.raises(ConfigFault, match="the topic is a name, not 5"):
        list(chunks(pa.table({"value": ["a"]}), 5, NOW_MS))  # type: ignore[arg-type]
    with pytest.raises(ConfigFault, match="list is no Arrow data"):
        list(chunks([1], "t", NOW_MS))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.large_string()])
def test_dictionaries_of_any_text_are_taken(kind: pa.DataType) -> None:
    # of views: what polars makes of its categories
    words = pa.array(["a", None, "b"]).cast(kind)
    column = pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 1, 2], pa.uint8()), words)
    ((_, chunk),) = chunks(pa.table({"key": column}).slice(1), "t", NOW_MS)
    assert chunk.key_array.cast(pa.binary()).to_pylist() == [None, b"a", None, b"b"]
