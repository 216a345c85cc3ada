"""Produce requests that name several partitions: what goes over the ring, and what comes of it."""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shmbroker.errors import ProtocolFault
from shmbroker.gateway import produce_many, produce_sending
from shmbroker.gateway.produce_many import walk
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_MANY,
    APPEND_MANY_HEAD,
    APPEND_ROW_PARTS,
    APPENDED,
    APPENDED_HEAD,
    APPENDED_MANY,
    APPENDED_MANY_HEAD,
    APPENDED_ROW,
)
from shmbroker.kernels import native
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec, error_codes
from shmbroker.wire.primitives import uvarint
from tests.support.examples import examples
from tests.support.family_memory import TOPIC, TOPIC_ID, topic
from tests.support.gateway_family import GatewayFamily, gateway_family

PRODUCE = 0, 9, "Produce"
BATCH = encode_batch([(1_700_000_000_000, None, b"value", ())])
LARGE = encode_batch([(1_700_000_000_000, None, bytes(4000), ())])


def request_of(*rows: tuple[int, bytes | None], **more: Any) -> dict[str, Any]:
    partitions = [{"index": index, "records": records} for index, records in rows]
    topics = [{"name": TOPIC, "topic_id": TOPIC_ID, "partition_data": partitions}]
    return {"acks": 1, "timeout_ms": 1000, "topic_data": topics} | more


def spoilt(at: int, layout: str, value: int) -> bytes:
    data = bytearray(BATCH)
    Struct(layout).pack_into(data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    "body",
    [
        request_of((0, BATCH), transactional_id="x"),
        request_of((0, None)),
        request_of((0, b"")),
        request_of((0, BATCH[:-1])),
        request_of((0, BATCH + BATCH)),
        request_of((0, BATCH + b"x")),
        request_of((0, spoilt(16, ">b", 1))),
        request_of((0, spoilt(8, ">i", 13))),
        request_of((0, spoilt(21, ">h", 0x10))),
        request_of(),
        request_of() | {"topic_data": []},
    ],
)
@pytest.mark.parametrize("version", [8, 9, 13])
def test_what_is_not_plain_is_not_walked(body: dict[str, Any], version: int) -> None:
    encoded = codec.encode("ProduceRequest", version, body)
    assert walk(bytearray(encoded), 0, len(encoded), version) is None


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    """Topic `t` with 40 partitions."""
    with gateway_family() as made:
        _, (kind, version, row) = topic()
        made.link.commit(*((kind, version, row | {"partition_id": n}) for n in range(1, 40)))
        made.turn()
        yield made


def answered(family: GatewayFamily) -> list[dict[str, Any]]:
    family.turn()
    [found] = family.answer(*PRODUCE)["responses"]
    rows: list[dict[str, Any]] = found["partition_responses"]
    return rows


def taken(family: GatewayFamily) -> list[tuple[int, int, list[int]]]:
    """(operation, first token, partitions) of what is on the ring."""
    found = []
    for operation, payload in family.taken():
        token, _, _, _, count, _ = APPEND_MANY_HEAD.unpack_from(payload)
        indexes = []
        if operation == APPEND_MANY:
            at = APPEND_MANY_HEAD.size
            for _ in range(count):
                topic_id, index, size = APPEND_ROW_PARTS.unpack_from(payload, at)
                assert topic_id == TOPIC_ID
                at += APPEND_ROW_PARTS.size
                assert payload[at : at + size] == BATCH
                at += size
                indexes.append(index)
            assert at == len(payload)
        found.append((operation, token, indexes))
    return found


def test_small_batches_go_together_and_large_ones_alone(
    family: GatewayFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_sending, "TOGETHER_BYTES_MAX", 4000)
    family.ask(*PRODUCE, request_of(*((n, BATCH) for n in range(30)), (30, LARGE), (31, BATCH)))
    entries = taken(family)
    first = entries[0][1]
    assert entries == [
        (APPEND_MANY, first, list(range(25))),
        (APPEND_MANY, first + 25, list(range(25, 30))),
        (APPEND, first + 30, []),
        (APPEND_MANY, first + 31, [31]),
    ]
    assert len(family.gateway.pending) == 32
    for begin, rows in ((31, [0]), (0, list(range(25))), (25, list(range(5)))):
        packed = [APPENDED_ROW.pack(row, 1000 + begin + row, 7) for row in rows]
        head = APPENDED_MANY_HEAD.pack(first + begin, len(rows), 0)
        family.reply(APPENDED_MANY, head + b"".join(packed))
    family.turn()
    assert list(family.gateway.pending) == [first + 30]
    family.reply(APPENDED, APPENDED_HEAD.pack(first + 30, 0, 0, 0, 1030, -1, 7))
    rows = answered(family)
    assert [row["base_offset"] for row in rows] == [1000 + n for n in range(32)]
    assert {(row["error_code"], row["log_start_offset"]) for row in rows} == {(0, 7)}
    assert not family.gateway.pending


def test_what_one_partition_refuses_the_others_have_stored(family: GatewayFamily) -> None:
    family.ask(*PRODUCE, request_of((3, BATCH), (1, BATCH), (3, BATCH)))
    [(_, first, indexes)] = taken(family)
    assert indexes == [3, 1, 3]
    why = b"no room"
    code = error_codes.KAFKA_STORAGE_ERROR
    family.reply(APPENDED, APPENDED_HEAD.pack(first + 1, code, len(why), 0, -1, -1, -1) + why)
    packed = APPENDED_ROW.pack(0, 5, 0) + APPENDED_ROW.pack(2, 6, 0)
    family.reply(APPENDED_MANY, APPENDED_MANY_HEAD.pack(first, 2, 0) + packed)
    rows = answered(family)
    assert [(row["index"], row["error_code"], row["base_offset"]) for row in rows] == [
        (3, 0, 5),
        (1, code, -1),
        (3, 0, 6),
    ]
    assert rows[1]["error_message"] == "no room"


def test_an_unknown_partition_is_decoded_and_refused_alone(family: GatewayFamily) -> None:
    family.ask(*PRODUCE, request_of((0, BATCH), (40, BATCH)))
    [(operation, token, _)] = taken(family)
    assert operation == APPEND
    family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 9, -1, 0))
    assert [row["error_code"] for row in answered(family)] == [
        0,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def encoded_rows(rows: list[tuple[int, bytes]], is_flexible: bool) -> bytes:
    parts = []
    for index, records in rows:
        size = uvarint(len(records) + 1) if is_flexible else len(records).to_bytes(4, "big")
        parts += [index.to_bytes(4, "big", signed=True), size, records, b"\0" * is_flexible]
    return b"".join(parts)


def numbers(count: int, kind: str) -> memoryview:
    return memoryview(bytearray(count * 3 * (4 if kind == "i" else 8))).cast(kind)  # type: ignore[call-overload,no-any-return]


@pytest.mark.skipif(native is None, reason="no kernels are built")
@settings(max_examples=examples(200), deadline=None)
@given(some.data())
def test_kernels_do_what_python_does(data: some.DataObject) -> None:
    """Of requests that are whole, cut off or spoilt anywhere."""
    batches = some.sampled_from([BATCH, LARGE, BATCH[:-1], b"", spoilt(21, ">h", 0x10)])
    rows = data.draw(some.lists(some.tuples(some.integers(-1, 1 << 20), batches), max_size=5))
    is_flexible = data.draw(some.booleans())
    whole = bytearray(encoded_rows(rows, is_flexible))
    if whole and data.draw(some.booleans()):
        whole[data.draw(some.integers(0, len(whole) - 1))] = data.draw(some.integers(0, 255))
    end = data.draw(some.integers(0, len(whole)))
    found = []
    for find in (produce_many.find_by_python, native.find_appends):
        places = numbers(len(rows), "i")
        try:
            at = find(whole, 0, end, is_flexible, places)
        except (IndexError, StructError, ProtocolFault):
            at = -1
        found.append((at, places.tolist() if at >= 0 else []))
    assert found[0] == found[1]
    if found[0][0] < 0:
        return
    places = numbers(len(rows), "i")
    native.find_appends(whole, 0, end, is_flexible, places)
    first = data.draw(some.integers(0, len(rows)))
    packed = []
    for pack in (produce_many.pack_by_python, native.pack_appends):
        target = bytearray(len(whole) + 40 * len(rows) + 5)
        packed.append((pack(target, 5, whole, places, first, len(rows) - first, TOPIC_ID), target))
    assert packed[0] == packed[1]
    stored = b"".join(APPENDED_ROW.pack(n, 1 << 40, n) for n in range(0, len(rows), 2))
    answers = []
    for put, answer in (
        (produce_many.put_by_python, produce_many.answer_by_python),
        (native.put_stored, native.answer_appends),
    ):
        results = memoryview(bytearray(b"\xff" * 24 * (len(rows) + 2))).cast("q")
        put(results, 2, stored)
        answers.append(answer(places, results, 2, is_flexible))
    assert answers[0] == answers[1]


@pytest.mark.skipif(native is None, reason="no kernels are built")
def test_kernels_refuse_what_is_not_there() -> None:
    places, results = numbers(2, "i"), numbers(2, "q")
    places[1], places[2] = 10, 100
    for ask in (
        lambda: native.pack_appends(bytearray(500), 0, bytearray(50), places, 0, 1, TOPIC_ID),
        lambda: native.pack_appends(bytearray(50), 0, bytearray(500), places, 0, 1, TOPIC_ID),
        lambda: native.pack_appends(bytearray(500), 0, bytearray(500), places, 1, 2, TOPIC_ID),
        lambda: native.pack_appends(bytearray(500), 0, bytearray(500), places, 0, 1, b"short"),
        lambda: native.put_stored(results, 1, APPENDED_ROW.pack(1, 0, 0)),
        lambda: native.put_stored(results, -1, APPENDED_ROW.pack(0, 0, 0)),
        lambda: native.answer_appends(places, results, 1, True),
    ):
        with pytest.raises(ValueError):
            ask()
