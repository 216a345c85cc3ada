"""Which record a time leads to: the same with and without kernels, and never a long search."""

from itertools import product
from typing import Any

import pytest

from shmbroker.records import time_lookup
from shmbroker.records.batch import encode_batch, iterate_records
from shmbroker.records.time_lookup import RECORDS_MAX, first_not_older
from shmbroker.wire.primitives import varint
from tests.processes.wire_cases_records import record, text

TIME = 1_700_000_000_000


@pytest.fixture(params=["kernels", "plain"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(time_lookup, "native", None)
    elif time_lookup.native is None:
        pytest.skip("no kernels")
    return str(request.param)


def batch(block: bytes, count: int, codec: int = 0) -> bytes:
    """A batch of ready records, from offset 0 on, uncompressed."""
    from shmbroker.records import codecs

    made = bytearray(encode_batch([(TIME, None, b"", ())], codec=0)[:61])
    packed = codecs.compress(codec, block)
    made[8:12] = (49 + len(packed)).to_bytes(4, "big")
    made[21:23] = codec.to_bytes(2, "big")
    made[23:27] = (count - 1).to_bytes(4, "big")
    made[57:61] = count.to_bytes(4, "big")
    return bytes(made) + packed


def by_hand(data: bytes, timestamp: int, start: int) -> tuple[int, int] | None:
    return next(
        (
            (each[1], each[0])
            for each in iterate_records(data)
            if each[1] >= timestamp and each[0] >= start
        ),
        None,
    )


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_the_first_record_that_is_not_older(way: str, codec: int) -> None:
    times = [5, 3, 9, 9, -1, 30, 2, 30, 31]
    data = encode_batch([(TIME + time, b"k", b"v", [(b"h", b"1")]) for time in times], codec=codec)
    for wanted, start in product([-5, 0, 3, 5, 6, 9, 10, 30, 31, 32], range(10)):
        asked = TIME + wanted, start
        assert first_not_older(memoryview(data), *asked) == by_hand(data, *asked)


def test_offsets_with_gaps(way: str) -> None:
    """Compaction took some records."""
    deltas = [2, 5, 6, 40]
    block = b"".join(record(delta, timestamp_delta=delta) for delta in deltas)
    data = batch(block, len(deltas))
    for wanted, start in product([0, 2, 3, 6, 7, 40, 41], [0, 3, 7, 41]):
        asked = TIME + wanted, start
        assert first_not_older(data, *asked) == by_hand(data, *asked)


def test_a_batch_stands_for_records_that_can_not_be_read(way: str) -> None:
    block = record(0) + record(1)
    for bad in (block[:-1], block + b"\0", b"\xff" * len(block), b""):
        found = first_not_older(batch(bad, 2), TIME + 1, 0)
        assert found is None or found == (TIME, 0)
    assert first_not_older(batch(b"garbage", 2, 0)[:61] + b"garbage", TIME, 0) == (TIME, 0)


def test_no_search_is_long(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are passed over, very many records are for the kernels, bombs end at 16 MiB."""
    numbers = 0
    original = time_lookup.uvarint

    def counting(*asked: Any) -> Any:
        nonlocal numbers
        numbers += 1
        return original(*asked)

    monkeypatch.setattr(time_lookup, "uvarint", counting)
    headers = varint(300_000) + b"\x00\x01" * 300_000
    with_headers = record(0, headers=headers) + record(1, timestamp_delta=9, key=text(b"k"))
    assert first_not_older(batch(with_headers, 2, 4), TIME + 9, 0) == (TIME + 9, 1)
    count = RECORDS_MAX + 1
    many = b"".join(record(number, timestamp_delta=number) for number in range(count))
    found = first_not_older(batch(many, count, 4), TIME + count - 1, 0)
    assert found == ((TIME, 0) if way == "plain" else (TIME + count - 1, count - 1))
    assert first_not_older(batch(bytes(20 << 20), 2, 4), TIME + 1, 0) == (TIME, 0)
    assert numbers < 10
