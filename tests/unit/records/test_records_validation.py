"""The records of a batch, looked at: three ways, one oracle."""

import ctypes
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.errors import ProtocolFault
from shmbroker.records import record_walk, validation
from shmbroker.records.batch import encode_batch
from shmbroker.records.batch_layout import BATCH_HEADER, NO_TIMESTAMP
from shmbroker.records.validation import (
    RECORD_ERRORS_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Faults,
    Refusal,
    Rules,
    judge_records,
    walk,
)
from shmbroker.wire.error_codes import INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE
from shmbroker.wire.primitives import varint
from tests.processes.wire_cases_records import BATCHES, COUNTS, RECORDS, record, text
from tests.support.examples import examples

TIME = 1_700_000_000_000
ANY_TIME = Rules("t-0", False, False, TIMESTAMP_MIN, TIMESTAMP_MAX)


def plain(records: bytes, *arguments: object) -> int:
    return validation._walk(bytes(records), *arguments)


WAYS: dict[str, Callable[..., int]] = {"plain": plain, "numpy": record_walk.walk, "chosen": walk}

Seen = tuple[int, list[tuple[int, int | None]], int] | None


def seen(way: Callable[..., int], records: bytes, count: int, *rules: object) -> Seen:
    """(largest timestamp, faults, how many) or None; the timestamp only where all is well."""
    faults = Faults()
    try:
        latest = way(records, count, *rules, faults)
    except ProtocolFault:
        return None
    return (0 if faults.count else latest), faults.first, faults.count


class Wrong(Exception):
    """The oracle's word for it."""


def number(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """A zigzag varint, as protobuf has it: (value, position behind it)."""
    value = 0
    for place in range(5 if bits == 32 else 10):
        if at + place >= len(data):
            raise Wrong
        value |= (data[at + place] & 0x7F) << 7 * place
        if not data[at + place] & 0x80:
            if bits == 32 and value >= 1 << 32:
                raise Wrong
            value &= (1 << 64) - 1
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise Wrong


def string(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = number(data, at, 32)
    if length == -1:
        return None, at
    if not 0 <= length <= len(data) - at:
        raise Wrong
    return data[at : at + length], at + length


def read_record(data: bytes, at: int) -> tuple[int, int, bytes | None, int]:
    """(timestamp delta, offset delta, key, position behind it)"""
    length, at = number(data, at, 32)
    if not 0 < length <= len(data) - at:
        raise Wrong
    body, behind = data[at : at + length], at + length
    timestamp_delta, at = number(body, 1, 64)
    offset_delta, at = number(body, at, 32)
    key, at = string(body, at)
    _, at = string(body, at)
    headers, at = number(body, at, 32)
    if not 0 <= headers <= len(body):
        raise Wrong
    for _ in range(headers):
        name, at = string(body, at)
        if name is None:
            raise Wrong
        _, at = string(body, at)
    if at != len(body):
        raise Wrong
    return timestamp_delta, offset_delta, key, behind


def oracle(
    records: bytes, count: int, base: int, needs_key: bool, oldest: int, newest: int
) -> Seen:
    """The same, as plainly as can be."""
    found: list[tuple[int, int | None]] = []
    latest, at = NO_TIMESTAMP, 0
    try:
        for index in range(count):
            timestamp_delta, offset_delta, key, at = read_record(records, at)
            timestamp = ctypes.c_int64(base + timestamp_delta).value
            latest = max(latest, timestamp)
            if offset_delta != index:
                raise Wrong
            if key is None and needs_key:
                found.append((index, None))
            elif not oldest <= timestamp <= newest and timestamp != NO_TIMESTAMP:
                found.append((index, timestamp))
        if at != len(records):
            raise Wrong
    except Wrong:
        return None
    return (0 if found else latest), found[:RECORD_ERRORS_MAX], len(found)


def agree(records: bytes, count: int, *rules: object) -> Seen:
    wanted = oracle(records, count, *rules)
    for name, way in WAYS.items():
        assert seen(way, records, count, *rules) == wanted, name
    return wanted


# --- one record after the other ---


def test_what_is_wrong_is_what_the_oracle_says() -> None:
    verdicts = {
        name: agree(b"".join(records), COUNTS.get(name) or len(records), TIME, False, 0, TIME)
        for name, records in RECORDS.items()
    }
    assert [name for name, verdict in verdicts.items() if verdict] == [
        "good",
        "with headers",
        "null key and value",
        "empty key and value",
        "attributes set",
        "long varints",
        "long length",
        "timestamp delta of ten bytes",
        "offset delta of five bytes",
        "header key empty",
    ]


SIZES = st.sampled_from([0, 1, 5, 63, 64, 130, 9000])
LONG = st.sampled_from([0, 1, -1, 63, 64, 8191, 8192, 1 << 20, 1 << 40, (1 << 63) - 1, -(1 << 63)])


@st.composite
def record_blocks(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records as a client makes them, then perhaps spoilt."""
    count = draw(st.sampled_from([1, 2, 3, 64, 65, 130, 400]))
    seed = random.Random(draw(st.integers(0, 1 << 30)))
    is_uniform = draw(st.booleans())
    deltas = draw(st.lists(LONG, min_size=1, max_size=4))
    sizes = draw(st.lists(SIZES, min_size=1, max_size=4))
    header_counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    null_chance = draw(st.sampled_from([0, 0.01, 0.5]))
    parts = []
    for number in range(count):
        some = 0 if is_uniform else seed.randrange(1 << 20)
        size = sizes[some % len(sizes)]
        headers = header_counts[some % len(header_counts)]
        parts.append(
            record(
                number,
                timestamp_delta=deltas[some % len(deltas)],
                key=text(None if seed.random() < null_chance else bytes(size % 100)),
                value=text(None if seed.random() < null_chance else bytes(size)),
                headers=bytes([2 * headers]) + (text(b"name") + text(b"")) * headers,
            )
        )
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 2))):
        where = seed.randrange(len(data))
        data[where] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, data[where] ^ 1]))
    if draw(st.booleans()):
        del data[len(data) - draw(st.integers(0, 2)) :]
    return bytes(data), max(1, count + draw(st.sampled_from([0, 0, 0, 1, -1])))


@pytest.mark.thorough
@given(
    record_blocks(),
    st.sampled_from([TIME, 0, -1, TIMESTAMP_MAX, TIMESTAMP_MIN, TIMESTAMP_MAX - 5]),
    st.booleans(),
    st.sampled_from([TIMESTAMP_MIN, 0, TIME - 1, TIME]),
    st.sampled_from([TIMESTAMP_MAX, TIME, TIME + 64]),
)
@settings(deadline=None, max_examples=examples(150))
def test_all_ways_find_the_same(
    block: tuple[bytes, int], base: int, needs_key: bool, oldest: int, newest: int
) -> None:
    agree(*block, base, needs_key, oldest, newest)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [63, 65, 8193, 17_000])
@pytest.mark.parametrize("spread", [0, 100])
def test_large_batches_block_by_block(count: int, spread: int) -> None:
    seed = random.Random(count)
    parts = [
        record(number, timestamp_delta=number // 7, value=text(bytes(seed.randint(0, spread))))
        for number in range(count)
    ]
    wanted = TIME + (count - 1) // 7
    data = b"".join(parts)
    assert agree(data, count, TIME, True, 0, wanted) == (wanted, [], 0)
    assert agree(data[:-1], count, TIME, True, 0, wanted) is None
    assert agree(data + b"\0", count, TIME, True, 0, wanted) is None
    late = [(number, TIME + number // 7) for number in range(count) if number // 7 > 5]
    assert agree(data, count, TIME, True, 0, TIME + 5)[1:] == (late[:1000], len(late))
    parts[count // 2] = record(count // 2 + 1)
    assert agree(b"".join(parts), count, TIME, True, 0, wanted) is None


def test_headers_of_many_records_in_step_and_of_few() -> None:
    for count, most in ((100, 3), (100, 40), (30, 1)):
        parts = []
        for number in range(count):
            headers = number % (most + 1)
            parts.append(record(number, headers=bytes([2 * headers]) + b"\x02n\x01" * headers))
        data = b"".join(parts)
        assert agree(data, count, TIME, False, 0, TIME) == (TIME, [], 0)
        for bad in (b"\x01n\x01", b"\x02n\x03", b"\x02n\x7e"):
            spoilt = [*parts]
            spoilt[count // 2] = record(count // 2, headers=b"\x02" + bad)
            assert agree(b"".join(spoilt), count, TIME, False, 0, TIME) is None


# --- what a topic makes of it ---


def judged(data: bytes, rules: Rules = ANY_TIME) -> tuple[int, Refusal | None]:
    return judge_records(memoryview(data), BATCH_HEADER.unpack_from(data), rules)


def test_the_largest_timestamp_is_told_where_the_header_lies() -> None:
    for name in ("max timestamp too large", "max timestamp too small"):
        assert judged(BATCHES[name]) == (TIME + 5, None)
    assert judged(BATCHES["first is the latest"]) == (TIME, None)
    assert judged(BATCHES["no timestamps"]) == (NO_TIMESTAMP, None)


@pytest.mark.parametrize("name", [name for name in BATCHES if "garbage" in name or "cut" in name])
def test_bytes_that_cannot_be_decompressed_are_refused(name: str) -> None:
    _, refusal = judged(BATCHES[name])
    assert refusal is not None
    assert (refusal.error_code, refusal.record_errors) == (INVALID_RECORD, [])


def test_a_count_beyond_the_bytes_takes_no_memory() -> None:
    _, refusal = judged(BATCHES["count beyond the bytes, gzip"])
    assert refusal is not None
    assert refusal.error_code == INVALID_RECORD


def rows(*records: tuple[int, bytes | None], codec: int = 0) -> bytes:
    return encode_batch([(time, key, b"v", []) for time, key in records], codec=codec)


KEYED = ANY_TIME._replace(is_key_needed=True)
LIMITED = KEYED._replace(oldest_ms=100, newest_ms=200)
NO_KEY = "Compacted topic cannot accept message without key in topic partition t-0"


def test_each_record_at_fault_is_named_in_kafkas_words() -> None:
    _, refusal = judged(rows((1, b"k"), (2, None), (3, b""), (4, None), codec=4), KEYED)
    assert refusal == (
        INVALID_RECORD,
        "One or more records have been rejected due to 2 record errors in total, and only showing "
        f"the first three errors at most: [RecordError(batchIndex=1, message='{NO_KEY}'), "
        f"RecordError(batchIndex=3, message='{NO_KEY}')]",
        [(1, NO_KEY), (3, NO_KEY)],
    )
    _, refusal = judged(rows((100, b"k"), (201, b"k"), (-1, b"k"), (99, None), (-2, b"")), LIMITED)
    words = "Timestamp {} of message with offset {} is out of range. The timestamp should be "
    words += "within [100, 200]"
    assert refusal == (
        INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
        [(1, words.format(201, 1)), (3, NO_KEY), (4, words.format(-2, 4))],
    )
    stamped = LIMITED._replace(is_log_append_time=True, is_key_needed=False)
    assert judged(rows((99, b"k"), (201, None)), stamped) == (201, None)


def test_only_the_first_errors_are_named() -> None:
    size = RECORD_ERRORS_MAX + 7
    _, refusal = judged(rows(*[(1, None)] * size), KEYED)
    assert refusal is not None
    assert f"due to {size} record errors" in refusal.message
    assert [index for index, _ in refusal.record_errors] == list(range(RECORD_ERRORS_MAX))


HEADERS_MANY = 200_000


@pytest.mark.skipif(validation.native is None, reason="the kernels walk the headers")
@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize(("key", "timestamp"), [(None, TIME), (b"k", TIME + 5), (b"k", TIME)])
def test_headers_that_the_kernels_have_seen_are_not_walked_again(
    count: int, key: bytes | None, timestamp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python a MiB of them takes a tenth of a second, and a KiB may hold 16 MiB."""
    skipped: list[int] = []
    for module in (validation, record_walk):
        monkeypatch.setattr(module, "skip_headers", lambda *_: skipped.append(1))
    headers = varint(HEADERS_MANY) + b"\x00\x01" * HEADERS_MANY
    parts = [record(0, timestamp_delta=timestamp - TIME, key=text(key), headers=headers)]
    parts += [record(number) for number in range(1, count)]
    faults = validation.Faults()
    validation.walk(b"".join(parts), count, TIME, True, 0, TIME, faults)
    assert faults.first == (
        [] if (key, timestamp) == (b"k", TIME) else [(0, None if key is None else timestamp)]
    )
    assert not skipped


@pytest.mark.skipif(validation.native is None, reason="the kernels find what is wrong")
def test_of_very_many_records_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: Any) -> int:
        raise AssertionError("some hundred ns for each record")

    monkeypatch.setattr(record_walk, "walk", walk)
    monkeypatch.setattr(validation, "DETAILED_RECORDS_MAX", 5000)
    late = 6000
    data = b"".join(record(number, timestamp_delta=number >= late) for number in range(7000))
    faults = validation.Faults()
    validation.walk(data, 7000, TIME, False, 0, TIME, faults)
    assert (faults.count, faults.is_more) == (1000, False)
    assert faults.first[0] == (late, validation.UNTOLD)
    faults = validation.Faults()
    data = b"".join(record(number, key=text(None)) for number in range(7000))
    validation.walk(data, 7000, TIME, True, 0, TIME, faults)
    assert (faults.count, faults.is_more) == (validation.NATIVE_FAULTS_MAX, True)
    assert faults.first == [(number, None) for number in range(RECORD_ERRORS_MAX)]
    faults = validation.Faults()
    data = b"".join(record(number) for number in range(7000))
    assert validation.walk(data, 7000, NO_TIMESTAMP, False, 0, TIME, faults) == NO_TIMESTAMP
    assert faults.count == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_is_too_large_without_compression_is_one_to_be_cut(codec: int) -> None:
    packed = rows((TIME, bytes(200_000)), codec=codec)
    assert judged(packed)[1] is None
    _, refusal = judged(packed, ANY_TIME._replace(plain_bytes_max=100_000))
    assert refusal is not None and refusal.error_code == MESSAGE_TOO_LARGE
    assert validation.plain_bytes_max(1 << 20) == 16 << 20
    assert validation.plain_bytes_max(10 << 20) == 160 << 20


def test_one_timestamp_for_all_records() -> None:
    flagged = BATCHES["LogAppendTime flag"]
    assert judged(flagged) == (TIME, None)
    for rules in (ANY_TIME._replace(is_log_append_time=True), LIMITED):
        _, refusal = judged(flagged, rules)
        assert refusal is not None
        assert refusal.error_code == INVALID_TIMESTAMP
        assert [index for index, _ in refusal.record_errors] == [0, 1]
