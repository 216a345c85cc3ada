"""Layouts drawn in docstrings against the constants below them: whoever reads one may trust it."""

import re
import struct
from types import ModuleType

import pytest

from shmbroker.ipc import operation_layout
from shmbroker.records import batch_layout
from shmbroker.records.batch import check_batch, iterate_records
from shmbroker.shm import counters, positions, ring_layout
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.words import WORD_BYTES

ROW = re.compile(r"^ *\+?(0x[0-9a-f]+|\d+) +(\d+|0x[0-9a-f]+|…) +(\(zero\)|[a-z_]+)", re.MULTILINE)
HEX_LINE = re.compile(r"^ *(?:0x)?[0-9a-f]{4}: ((?: ?(?:[0-9a-f]{2}|--) ?)+)", re.MULTILINE)

Rows = list[tuple[int, int | None, str]]


def rows_of(text: str) -> Rows:
    """(position, size or None where it is open, field) of the rows drawn in a text."""
    return [
        (int(at, 0), None if size == "…" else int(size, 0), field)
        for at, size, field in ROW.findall(text)
    ]


def sections_of(module: ModuleType, titles: dict[str, str]) -> dict[str, Rows]:
    """The drawn rows below each line that begins with one of the titles."""
    found: dict[str, Rows] = {}
    current = ""
    for line in (module.__doc__ or "").splitlines():
        title = next((title for title in titles if re.match(rf"{title}\b", line)), None)
        if title:
            current = titles[title]
            found.setdefault(current, [])
        elif current:
            found[current] += rows_of(line)
    return found


def sizes_of(layout: struct.Struct) -> list[tuple[int, int]]:
    """(position, size) of each field of a struct."""
    order, fields = layout.format[0], re.findall(r"\d*[a-zA-Z?]", layout.format[1:])
    found, at = [], 0
    for field in fields:
        size = struct.calcsize(order + field)
        found.append((at, size))
        at += size
    assert at == layout.size
    return found


def bytes_of(example: str) -> list[str]:
    """The bytes of a drawn example, as two digits each; "--" has no meaning."""
    return [digits for line in HEX_LINE.findall(example) for digits in line.split()]


# ── record batch ────────────────────────────────────────────────────────────────────────────────

BATCH_FIELDS = {
    "base_offset": "BASE_OFFSET_POSITION",
    "batch_length": "LENGTH_POSITION",
    "partition_leader_epoch": "LEADER_EPOCH_POSITION",
    "magic": "MAGIC_POSITION",
    "crc": "CRC_POSITION",
    "attributes": "ATTRIBUTES_POSITION",
    "last_offset_delta": "LAST_OFFSET_DELTA_POSITION",
    "base_timestamp": "BASE_TIMESTAMP_POSITION",
    "max_timestamp": "MAX_TIMESTAMP_POSITION",
    "producer_id": "PRODUCER_ID_POSITION",
    "producer_epoch": "PRODUCER_EPOCH_POSITION",
    "base_sequence": "BASE_SEQUENCE_POSITION",
    "count": "COUNT_POSITION",
    "records": "RECORDS_POSITION",
}


def test_batch_table_agrees_with_constants():
    rows = rows_of(batch_layout.__doc__)
    assert [field for _, _, field in rows] == list(BATCH_FIELDS)
    for at, _, field in rows:
        assert getattr(batch_layout, BATCH_FIELDS[field]) == at, field
    assert [(at, size) for at, size, _ in rows[:-1]] == sizes_of(batch_layout.BATCH_HEADER)
    assert batch_layout.RECORDS_POSITION == batch_layout.HEADER_SIZE


def test_batch_example_is_a_batch():
    example = bytes(int(digits, 16) for digits in bytes_of(batch_layout.__doc__))
    stamped = bytes(8) + example[8:]  # a client sends base offset 0
    error, header = check_batch(memoryview(stamped), 0, len(stamped))
    assert error == 0
    assert header[batch_layout.H_LEADER_EPOCH] == 3
    assert list(iterate_records(example)) == [(7, 1000, None, b"hi", [])]


# ── operations ──────────────────────────────────────────────────────────────────────────────────

OPERATIONS = {
    "APPENDED_MANY": "APPENDED_MANY_HEAD",
    "APPENDED_ROW": "APPENDED_ROW",
    "APPENDED": "APPENDED_HEAD",
    "APPEND_MANY": "APPEND_MANY_HEAD",
    "APPEND_ROW": "APPEND_ROW",
    "APPEND": "APPEND_HEAD",
    "READ_PARTITION": "READ_PARTITION",
    "READ_DONE": "READ_DONE_HEAD",
    "READ_SLICE": "READ_SLICE",
    "READ_ABORTED": "READ_ABORTED",
    "READ_AHEAD_ROW": "READ_AHEAD_ROW",
    "READ_AHEAD": "READ_AHEAD_HEAD",
    "READ": "READ_HEAD",
    "EXECUTED": "EXECUTED_HEAD",
    "EXECUTE": "EXECUTE_HEAD",
    "IDENTITY": "IDENTITY",
}


@pytest.mark.parametrize("name", OPERATIONS.values())
def test_operation_table_agrees_with_struct(name):
    rows = sections_of(operation_layout, OPERATIONS)[name]
    drawn = [(at, size) for at, size, _ in rows if size is not None]
    layout = getattr(operation_layout, name)
    assert drawn == sizes_of(layout)
    for at, size, _ in rows:
        if size is None:
            assert at == layout.size


def test_append_constant_is_the_head_without_its_token():
    constant = operation_layout.APPEND_CONSTANT
    assert sizes_of(constant) == [
        (at - 8, size) for at, size in sizes_of(operation_layout.APPEND_HEAD)[1:]
    ]


# ── shared memory ───────────────────────────────────────────────────────────────────────────────

RING = {
    "magic": "MAGIC_WORD",
    "capacity_bytes": "CAPACITY_WORD",
    "incarnation": "INCARNATION_WORD",
    "stamp": "STAMP_WORD",
    "tail_position": "TAIL_WORD",
    "head_position": "HEAD_WORD",
    "data": "DATA_WORD",
}
COUNTERS = {
    "magic": "MAGIC_WORD",
    "slots": "SLOTS_WORD",
    "counters": "COUNTERS_WORD",
    "announcements": "ANNOUNCEMENTS_WORD",
    "metadata_leader": "METADATA_LEADER_WORD",
    "metadata_end_offset": "METADATA_END_OFFSET_WORD",
}
SLOT = {
    "pid": "PID",
    "started_ms": "STARTED_MS",
    "incarnation": "INCARNATION",
    "doorbell": "DOORBELL",
    "liveness_ns": "LIVENESS_NS",
    "state": "STATE",
    "open_connections": "OPEN_CONNECTIONS",
    "metadata_applied": "METADATA_APPLIED",
    "cleaner_wanted": "CLEANER_WANTED",
    "cleaner_rate": "CLEANER_RATE",
    "work": "WORK",
    "disk": "DISK",
    "guest_room": "GUEST_ROOM",
    "ahead_ends": "AHEAD_ENDS",
    "counters": "COUNTERS_START",
}


def test_ring_table_agrees_with_constants():
    rows = rows_of(ring_layout.__doc__.split("Entry,")[0])
    assert [field for _, _, field in rows] == list(RING)
    for at, _, field in rows:
        assert getattr(ring_layout, RING[field]) * WORD_BYTES == at, field
    assert ring_layout.DATA_WORD * WORD_BYTES == ring_layout.HEADER_BYTES


def test_ring_example_is_what_a_claim_writes():
    view = memoryview(bytearray(ring_layout.ring_bytes(4096)))
    ring_layout.create_ring(view)
    writer = RingWriter(*ring_layout.parts_of_ring(view))
    reader = RingReader(*ring_layout.parts_of_ring(view))
    index = writer.claim(1, 5)
    writer.data[index : index + 5] = b"hello"
    writer.publish()
    drawn = bytes_of(ring_layout.__doc__)
    written = view[ring_layout.HEADER_BYTES :]
    assert len(drawn) == 16
    for at, digits in enumerate(drawn):
        assert digits == "--" or written[at] == int(digits, 16), at
    assert reader.poll()
    assert reader.next() == (1, ring_layout.ENTRY_HEADER_BYTES, 5)
    assert view.cast("Q")[ring_layout.TAIL_WORD] == len(drawn)


def test_counters_tables_agree_with_constants():
    region, slot = counters.__doc__.split("One slot.")
    drawn = rows_of(region)
    assert [field for _, _, field in drawn[: len(COUNTERS)]] == list(COUNTERS)
    for at, _, field in drawn[: len(COUNTERS)]:
        assert getattr(counters, COUNTERS[field]) * WORD_BYTES == at, field
    assert drawn[len(COUNTERS)] == (counters.SLOTS_START_WORD * WORD_BYTES, None, "slots")
    drawn = rows_of(slot)
    assert [field for _, _, field in drawn] == list(SLOT)
    for at, _, field in drawn:
        assert getattr(counters, SLOT[field]) * WORD_BYTES == at, field
    at, size, _ = drawn[-1]
    assert at + size == counters.SLOT_BYTES


def test_positions_tables_agree_with_constants():
    table, entry = positions.__doc__.split("\nEntry\n")
    assert rows_of(table) == [
        (positions.SLOTS_USED_WORD * WORD_BYTES, 8, "slots_used"),
        (positions.HEADER_BYTES, None, "entries"),
    ]
    drawn = {field: at for at, _, field in rows_of(entry)}
    assert drawn["is_used"] == positions.IS_USED * WORD_BYTES
    assert drawn["selected"] == positions.SELECTED * WORD_BYTES
    assert drawn["copy"] == positions.COPY * WORD_BYTES
    assert drawn["other"] == positions.OTHER_COPY * WORD_BYTES
    assert rows_of(entry)[0] == (0, positions.KEY_BYTES, "key")
