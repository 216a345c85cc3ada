"""Batches that are too large to be unpacked at once."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.client.reader import large_batches
from shmbroker.client.reader.decode import decode
from shmbroker.errors import CorruptFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import GZIP, LZ4, ZSTD
from tests.support.examples import examples
from tests.support.record_batches import batch, record, rows_by_loop, rows_of, with_right_crc
from tests.unit.client.decoding import ALL, EVER, decoded, engine, logs

__all__ = ["engine"]


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
@pytest.mark.parametrize("columns", [ALL, ("value", "offset")])
def test_a_batch_that_unpacks_a_hundredfold_is_read_between_others(
    codec: int, columns: tuple[str, ...]
) -> None:
    rows = [(2 * i, i % 7, b"k%d" % i, bytes(1 << 20), [(b"h", b"x")]) for i in range(70)]
    neighbour = [(0, 5, b"key", b"value", [])]
    large = batch(10, rows, codec=codec)
    assert len(large) < (70 << 20) // 100
    log = batch(9, neighbour, codec=codec) + large + batch(200, neighbour, codec=codec)
    found = decoded(log, 0, EVER, columns)
    assert sum(part.num_rows for part in found) == 72
    offsets = [10 + 2 * i for i in range(70)]
    table = pa.Table.from_batches(found)
    assert table["offset"].to_pylist() == [9, *offsets, 200]
    assert table["value"].to_pylist() == [b"value", *[bytes(1 << 20)] * 70, b"value"]
    if columns == ALL:
        assert table["key"].to_pylist()[1:-1] == [b"k%d" % i for i in range(70)]
    (views,) = {
        sum(part.num_rows for part in decode(memoryview(log), 15, 101, ALL, "t", 0, has_views=way))
        for way in (True, False)
    }
    assert views == 43


@pytest.mark.thorough
@given(logs((0, GZIP, LZ4, ZSTD)), st.data())
@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_log_in_parts_is_decoded_as_by_the_plain_loop(log: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 300))
    end = data.draw(st.integers(start, 700))
    has_views = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_batches, "PART_BYTES", data.draw(st.sampled_from([1, 40, 300])))
        expected = rows_by_loop(log, start, end)
        if data.draw(st.booleans()):
            patch.setattr(codecs, "output_bytes_max", lambda _: 20)
        else:
            patch.setattr(codecs, "AT_ONCE_BYTES_MAX", 20)
        found = decode(memoryview(log), start, end, ALL, "a topic", 7, has_views=has_views)
        assert rows_of(list(found)) == expected


def test_records_one_by_one_are_read_in_parts_too() -> None:
    rows = [(i, 7, b"key", bytes(1 << 20), [(b"h", None)]) for i in range(40)]
    log = batch(5, rows, codec=ZSTD)
    found = list(large_batches.records_of(log, 0))
    assert found == [(5 + delta, *row) for delta, *row in rows]
    small = batch(5, rows[:2], codec=ZSTD)
    assert list(large_batches.records_of(small, 0)) == found[:2]


@pytest.mark.parametrize(
    ("deltas", "count", "cut", "reason"),
    [
        ([0, 1, 1], 3, 0, "do not grow"),
        ([0, 1, 2], 4, 0, r"too (early|short)|can't have"),
        ([0, 1, 2], 2, 0, "left over"),
        ([0, 1, 2], 3, 5, "too early"),
    ],
)
def test_parts_that_are_no_batch_are_a_fault(
    deltas: list[int], count: int, cut: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_batches, "PART_BYTES", 1)
    monkeypatch.setattr(codecs, "output_bytes_max", lambda _: 20)
    plain = b"".join(record(0, (delta, 0, b"k", b"v" * 30, [])) for delta in deltas)
    plain = plain[: len(plain) - cut]
    with pytest.raises(CorruptFault, match=reason):
        decoded(batch(0, [], records=plain, codec=ZSTD, count=count, last_delta=9))


def test_compressed_bytes_that_are_cut_off_are_a_fault_in_parts() -> None:
    whole = batch(0, [(0, 0, None, bytes(20 << 20), [])], codec=ZSTD)
    cut = bytearray(whole[:-9])
    cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
    with pytest.raises(CorruptFault, match=r"decompressed|zstd"):
        decoded(with_right_crc(bytes(cut)))
