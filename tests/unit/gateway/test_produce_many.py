"""Produce requests that name several partitions: what goes over the ring, and what comes of it."""

from collections.abc import Iterator
from struct import Struct
from typing import Any

import pytest

from shmbroker.gateway import produce
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
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec, error_codes
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
    monkeypatch.setattr(produce, "TOGETHER_BYTES_MAX", 4000)
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
