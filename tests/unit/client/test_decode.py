"""The vectorised decoder against a plain loop over the records, and against garbage."""

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.client.reader import arrow_columns, decode_native, large_batches
from shmbroker.client.reader.decode import COLUMNS, arrow_schema, decode
from shmbroker.errors import CorruptFault
from shmbroker.records import batch_scan, record_lengths
from shmbroker.records.batch_layout import TRANSACTIONAL_BIT
from tests.support.examples import examples
from tests.support.record_batches import (
    batch,
    is_readable,
    record,
    rows_by_loop,
    rows_of,
    varint,
    with_right_crc,
)
from tests.unit.client.decoding import ALL, EVER, decoded, engine, logs, uniform

__all__ = ["engine"]

FAR = batch(10_000, [(0, 0, None, bytes(40_000), [])])
"""Behind a log: the quick ways to read a record are taken where many bytes are left."""


@given(logs(), st.sampled_from([b"", FAR]), st.data())
@settings(deadline=None, max_examples=examples(50))
def test_any_log_is_decoded_as_by_the_plain_loop(
    log: bytes, behind: bytes, data: st.DataObject
) -> None:
    log += behind
    start = data.draw(st.integers(0, 300))
    end = data.draw(st.integers(start, 700))
    assert rows_of(decoded(log, start, end)) == rows_by_loop(log, start, end)


@pytest.mark.thorough
@given(logs())
@settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_small_blocks_and_groups_and_a_lone_lockstep_change_nothing(log: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_columns, "BLOCK_ROWS", 5)
        patch.setattr(arrow_columns, "BLOCK_BYTES", 100)
        patch.setattr(decode_native, "TABLE_BATCHES", 3)
        patch.setattr(decode_native, "SCRATCH_BYTES", 300)
        patch.setattr(batch_scan, "GROUP_BYTES", 300)
        patch.setattr(record_lengths, "LOCKSTEP_BATCHES_MIN", 1)
        patch.setattr(record_lengths, "_PROOF_ROWS", 70)
        assert rows_of(decoded(log)) == rows_by_loop(log, 0, EVER)


@pytest.mark.thorough
@given(logs(), st.data())
@settings(deadline=None, max_examples=examples(80))
def test_garbage_with_a_right_crc_is_a_fault_or_read_as_by_the_loop(
    log: bytes, data: st.DataObject
) -> None:
    first = log[: 12 + int.from_bytes(log[8:12], "big")]
    broken = bytearray(first)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(21, len(broken) - 1))
        broken[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, broken[at] ^ 1]))
    broken = with_right_crc(broken)
    try:
        rows = rows_of(decoded(broken + data.draw(st.sampled_from([b"", FAR])), 0, 10_000))
    except CorruptFault:
        return
    if is_readable(broken):
        assert rows == rows_by_loop(broken, 0, 10_000)


runs = st.tuples(
    st.integers(1, 80),
    st.sampled_from([(1, 0), (1, 1), (1, 40), (2, 0), (70, 9000)]),  # steps of offset and timestamp
    st.sampled_from([None, b"", b"key 8 by", b"k" * 17, b"k" * 70, b"k" * 600]),
    st.sampled_from([None, b"", b"v" * 12, b"v" * 64, b"v" * 100, b"v" * 600]),
    st.booleans(),
)


@given(st.lists(runs, min_size=1, max_size=6), st.data())
@settings(deadline=None, max_examples=examples(30))
def test_runs_of_like_records_are_decoded_as_by_the_plain_loop(
    given_runs: list, data: st.DataObject
) -> None:
    rows: list = []
    delta = timestamp = 0
    for count, (step, step_ms), key, value, has_headers in given_runs:
        for _ in range(count):
            rows.append((delta, timestamp, key, value, []))
            delta += step
            timestamp += step_ms
        if has_headers:
            rows[-1] = (*rows[-1][:4], [(b"h", b"x")])
    log = batch(7, rows) + batch(7 + delta, rows)
    log += batch(7 + 2 * delta, [(0, 0, None, bytes(40_000), [])])
    start = data.draw(st.integers(0, 2 * delta))
    end = data.draw(st.one_of(st.just(EVER), st.integers(start, 2 * delta + 7)))
    columns = data.draw(st.sampled_from([ALL, ALL[:-1], ("value",), ("key", "offset")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_columns, "BLOCK_ROWS", data.draw(st.sampled_from([1 << 15, 50])))
        patch.setattr(arrow_columns, "BLOCK_BYTES", data.draw(st.sampled_from([1 << 24, 3000])))
        found = decoded(log, start, end, ALL)
        part = decoded(log, start, end, columns)
    assert rows_of(found) == rows_by_loop(log, start, end)
    whole = pa.Table.from_batches(found, arrow_schema(ALL)).select(columns)
    assert pa.Table.from_batches(part, arrow_schema(columns)).equals(whole)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_are_a_fault_or_nothing(data: bytes) -> None:
    try:
        assert decoded(data) == []
    except CorruptFault:
        pass


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 62, 100])
def test_a_batch_that_is_cut_off_is_a_fault(cut: int) -> None:
    data = uniform(10)
    with pytest.raises(CorruptFault):
        decoded(data + data[:cut])


def test_what_is_behind_the_end_is_not_looked_at() -> None:
    """Beyond the planned end a batch may be half written."""
    data = uniform(10) + uniform(10, base_offset=10)
    torn = bytearray(data + uniform(10, base_offset=20))
    torn[-30:] = bytes(30)
    assert rows_of(decoded(bytes(torn), 0, 20)) == rows_by_loop(data, 0, 20)
    assert rows_of(decoded(bytes(torn[:-40]), 0, 20)) == rows_by_loop(data, 0, 20)


def test_rows_are_cut_to_the_range_inside_of_a_batch() -> None:
    data = uniform(10) + uniform(10, base_offset=10)
    offsets = [row[2] for row in rows_of(decoded(data, 3, 17))]
    assert offsets == list(range(3, 17))


# --- the ways to find records --------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 40_000])
@pytest.mark.parametrize("codec", [0, 3])
def test_records_of_one_size_are_foretold(count: int, codec: int, monkeypatch) -> None:
    """By numpy; the kernels have no need to."""
    monkeypatch.setattr(record_lengths._Chains, "_lockstep", _must_not_be_called)
    data = uniform(count, codec=codec) + uniform(3, base_offset=count)
    assert rows_of(decoded(data)) == rows_by_loop(data, 0, EVER)


def _must_not_be_called(*_: object) -> bool:
    raise AssertionError


@pytest.mark.parametrize("batches", [1, 23, 24, 60])
@pytest.mark.parametrize("size_max", [40, 300, 20_000])
def test_records_of_many_sizes_are_walked_or_in_lockstep(batches: int, size_max: int) -> None:
    rng = random.Random(batches * size_max)
    data, offset = b"", 0
    for _ in range(batches):
        count = rng.randrange(1, 40)
        rows = [(i, i, None, bytes(rng.randrange(size_max)), []) for i in range(count)]
        data += batch(offset, rows)
        offset += count
    assert rows_of(decoded(data)) == rows_by_loop(data, 0, EVER)


def test_sizes_that_only_seem_foretold_are_found_out() -> None:
    """The first size times the count fills the batch, but the records in between differ."""
    rows = [(0, 0, None, b"aaaa", []), (1, 0, None, b"aaa", []), (2, 0, None, b"aaaaa", [])]
    data = batch(0, rows) + uniform(5, base_offset=3)
    assert rows_of(decoded(data)) == rows_by_loop(data, 0, EVER)


def test_padded_varints_are_read() -> None:
    """A varint may have more bytes than it needs; nobody writes that, but Kafka reads it."""
    body = b"\0" + b"\x80\0" + b"\0" + b"\x81\x80\0" + b"\x84\0" + b"ab" + b"\x80\0"
    length = bytes([len(body) * 2 | 0x80, 0])
    data = batch(5, [], records=length + body, count=1, base_timestamp=9)
    assert rows_of(decoded(data)) == [(None, b"ab", 5, 9000, 0, [])]


# --- bad batches ---------------------------------------------------------------------------------


def bad_batches() -> list:
    rows = [(i, 0, b"k", b"value", []) for i in range(5)]
    one = record(0, rows[0])
    long_varint = b"\xff" * 11 + b"\0"
    return [
        ("crc", batch(0, rows, crc=1)),
        ("magic 1", batch(0, rows)[:16] + b"\x01" + batch(0, rows)[17:]),
        ("negative length", (0).to_bytes(8, "big") + b"\xff" * 4 + bytes(60)),
        ("count is too high", batch(0, rows, count=6)),
        ("count is far too high", batch(0, rows, count=1 << 30, last_delta=(1 << 30) - 1)),
        ("count is too low", batch(0, rows, count=4)),
        ("count is negative", batch(0, rows, count=-1)),
        ("more records than offsets", batch(0, rows, last_delta=3)),
        ("negative last delta", batch(0, rows, last_delta=-1)),
        ("offset delta is beyond", batch(0, [(9, 0, None, None, [])], last_delta=3)),
        ("offset delta is negative", batch(0, [(-1, 0, None, None, [])], last_delta=3)),
        ("offsets repeat", batch(0, [(1, 0, None, None, [])] * 2, last_delta=3)),
        ("bytes are left over", batch(0, [], records=one + b"\0\0", count=1)),
        ("length is negative", batch(0, [], records=varint(-3) + one, count=1)),
        ("length is beyond", batch(0, [], records=varint(500) + one, count=1)),
        ("length is endless", batch(0, [], records=long_varint, count=1)),
        ("key is beyond", batch(0, [], records=b"\x0e\0\0\0" + varint(50) + b"\x01\0\0", count=1)),
        ("no snappy", batch(0, rows, attributes=2)),
        ("no gzip", batch(0, rows, attributes=1)),
        ("no lz4", batch(0, rows, attributes=3)),
        ("no zstd", batch(0, rows, attributes=4)),
        ("unknown codec", batch(0, rows, attributes=5)),
        ("offsets go back", batch(10, rows) + batch(9, rows)),
        (
            "header key is null",
            batch(0, [], records=varint(9) + b"\0\0\0\x01\x01\x02\x01\0\0", count=1),
        ),
        ("headers are cut off", batch(0, [], records=b"\x0e\0\0\0\x01\x01\x06\0", count=1)),
        ("headers are negative", batch(0, [], records=b"\x0c\0\0\0\x01\x01\x01", count=1)),
    ]


@pytest.mark.parametrize(("_name", "data"), bad_batches(), ids=lambda p: p if p is str else None)
@pytest.mark.parametrize("neighbours", [0, 30])
def test_a_bad_batch_is_a_fault(_name: str, data: bytes, neighbours: int) -> None:
    before = b""
    if neighbours:
        moved = bytearray(data)
        moved[:8] = (int.from_bytes(data[:8], "big") + 1000).to_bytes(8, "big")
        before = b"".join(uniform(3, base_offset=i * 3, size=i) for i in range(neighbours))
        data = bytes(moved)
    with pytest.raises(CorruptFault):
        decoded(before + data)


def test_a_bomb_is_a_fault_before_it_takes_memory(monkeypatch) -> None:
    monkeypatch.setattr(large_batches, "RECORD_BYTES_MAX", 35 << 20)
    for records, reason in (
        (bytes(40 << 20), "no length"),
        (varint(39 << 20) + bytes(40 << 20), "more than 36700160 bytes"),
        (record(0, (0, 0, None, b"a", [])) + bytes(40 << 20), "left over"),
    ):
        bomb = batch(0, [], records=records, codec=4, count=1)
        assert len(bomb) < 10_000
        with pytest.raises(CorruptFault, match=reason):
            decoded(bomb)


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [(name,) for name in ALL] + [("offset", "value"), ALL[::-1]])
def test_columns_are_those_asked_for(columns: tuple[str, ...]) -> None:
    rows = [(i, 5, b"k" * i, None if i % 3 else b"v", [(b"h", b"x")] * (i % 2)) for i in range(9)]
    data = batch(40, rows)
    (whole,) = decoded(data)
    (found,) = decoded(data, columns=columns)
    assert found.schema == pa.schema([(name, COLUMNS[name]) for name in columns])
    assert found.to_pydict() == {name: whole.to_pydict()[name] for name in columns}


def test_timestamps_at_the_ends_of_int64_do_not_wrap() -> None:
    rows = [(0, -(2**62), None, None, []), (1, 2**62, None, None, [])]
    (found,) = decoded(batch(0, rows, base_timestamp=0))
    low, high = found.column(5).cast("int64").to_pylist()
    assert low < -(2**61)
    assert high > 2**61


def test_an_arrow_batch_is_bounded_in_bytes() -> None:
    rows = [(i, 0, None, bytes(3 << 20), []) for i in range(12)]
    found = decoded(batch(0, rows))
    assert [batch.num_rows for batch in found] in ([6, 6], [5, 5, 2])


@pytest.mark.thorough
def test_arrow_batches_have_at_most_32k_rows() -> None:
    found = decoded(uniform(70_000))
    assert [batch.num_rows for batch in found] == [32768, 32768, 4464]


def test_an_arrow_batch_does_not_keep_the_input() -> None:
    data = bytearray(uniform(100))
    view = memoryview(data)
    found = list(decode(view, 0, EVER, ALL, "a topic", 7))
    view.release()
    data.extend(b"x")  # BufferError while anything holds a view
    assert found[0].num_rows == 100


# --- aborted transactions, views, CRCs -----------------------------------------------------------


def transactional(data: bytes, producer_id: int) -> bytes:
    out = bytearray(data)
    out[21:23] = (int.from_bytes(out[21:23], "big") | TRANSACTIONAL_BIT).to_bytes(2, "big")
    out[43:51] = producer_id.to_bytes(8, "big")
    return with_right_crc(out)


@given(st.data())
@settings(deadline=None, max_examples=examples(40))
def test_batches_of_aborted_transactions_are_left_out(data: st.DataObject) -> None:
    log, expected, offset = b"", [], 0
    aborted = data.draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(0, 60)).map(
                lambda one: (one[0], min(one[1:]), max(one[1:]))
            ),
            max_size=3,
        )
    )
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.integers(1, 9))
        one = uniform(count, offset, codec=data.draw(st.sampled_from([0, 3])))
        producer_id = data.draw(st.integers(0, 3))
        if producer_id:
            one = transactional(one, producer_id)
        log += one
        if not any(i == producer_id and low <= offset <= high for i, low, high in aborted):
            expected += rows_by_loop(one, 0, EVER)
        offset += count
    found = decode(memoryview(log), 0, EVER, ALL, "a topic", 7, aborted=aborted)
    assert rows_of(found) == expected


@pytest.mark.thorough
@given(logs(), st.data())
@settings(deadline=None, max_examples=examples(40))
def test_views_hold_the_same(log: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 300))
    end = data.draw(st.integers(start, 700))
    found = list(decode(memoryview(log), start, end, ALL, "a topic", 7, has_views=True))
    assert rows_of(found) == rows_by_loop(log, start, end)
    assert all(batch.schema.field("value").type == pa.binary_view() for batch in found)


def test_views_outlive_what_they_were_decoded_from() -> None:
    """A buffer that batches are decompressed to is not used again while views point into it."""
    data = b"".join(uniform(40, i * 40, size=30 + i, codec=3) for i in range(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_columns, "BLOCK_ROWS", 50)
        patch.setattr(batch_scan, "GROUP_BYTES", 300)
        found = list(decode(memoryview(data), 0, EVER, ALL, "a topic", 7, has_views=True))
    assert len(found) > 10
    assert rows_of(found) == rows_by_loop(data, 0, EVER)


def test_crcs_are_compared_unless_they_need_not_be() -> None:
    data = uniform(5, crc=1)
    with pytest.raises(CorruptFault, match="CRC"):
        decoded(data)
    found = decode(memoryview(data), 0, EVER, ALL, "a topic", 7, checks_crc=False)
    assert rows_of(found) == rows_by_loop(data, 0, EVER)


def test_decoding_does_not_import_pandas(engine: str, tmp_path: Path) -> None:
    """Arrow does for what it makes of Python's objects, which takes each task's process 0.3 s."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas is imported')")
    log = uniform(10) + batch(10, [(0, 0, None, None, [(b"h", b"v"), (b"n", None)])])
    (tmp_path / "log").write_bytes(log)
    look = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"from shmbroker.client.reader import decode, decode_{engine} as engine\n"
        "decode.engine = engine\n"
        f"data = open({str(tmp_path / 'log')!r}, 'rb').read()\n"
        f"for rows in decode.decode(memoryview(data), 0, {EVER}, {ALL!r}, 'a topic', 7):\n"
        "    print(rows.num_rows, rows['topic'][10], rows['partition'][10])\n"
    )
    ran = subprocess.run([sys.executable, "-c", look], capture_output=True, timeout=60, text=True)
    assert (ran.stdout, ran.stderr) == ("11 a topic 7\n", "")
