"""Batches on their straight way from a ring into segments: what the compiled kernel makes of
entries is what `Appender.on_append` makes of them one by one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.broker import append_runs
from shmbroker.broker.append import Appender
from shmbroker.broker.append_runs import AppendRuns
from shmbroker.crc32c import crc32c
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_FLAG_NO_ZSTD,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_HEAD,
    APPEND_MANY,
    APPEND_MANY_HEAD,
    APPEND_ROW,
    NAME_LENGTH,
    READ,
)
from shmbroker.kernels import native
from shmbroker.log.retention import delete_records
from shmbroker.records.batch import encode_batch
from shmbroker.records.batch_layout import CRC_POSITION
from shmbroker.records.codecs import LZ4
from shmbroker.replica.follower import Follower
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.words import words_of
from tests.support.examples import examples
from tests.support.family_memory import RING_BYTES, FarEnd
from tests.support.leadership import leadership
from tests.unit.broker.test_group_commit import NOW_MS, Worker

pytestmark = [
    pytest.mark.skipif(native is None, reason="without the compiled kernels"),
    pytest.mark.thorough,
]

TOPICS: tuple[dict[str, str], ...] = (
    {},
    {"segment_bytes": "1500", "index_interval_bytes": "300"},
    {"max_message_bytes": "400"},
    {"message_timestamp_type": "LogAppendTime"},
    {"message_timestamp_after_max_ms": "1000"},
    {"flush_messages": "3"},
    {"segment_ms": "2000"},
    {},  # a leader with a follower
    {"min_insync_replicas": "2"},  # and too few of them in sync
)
REPLICATED, STARVED = 7, 8
ENTRIES_MAX = 32
LARGE_RING_BYTES = 1 << 23
_UINT32 = Struct(">I")


def topic_id(number: int) -> bytes:
    return bytes([number + 1]) * 16


class Leader(Worker):
    """One that takes what a ring holds as `Intake.take` does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runs = AppendRuns(self.appender)
        doorbell = Doorbell(EVENTFD, words_of(WORD), 0)
        self.far = FarEnd(1, "network-worker", 1, doorbell, LARGE_RING_BYTES)
        self.opened = []
        for number, configs in enumerate(TOPICS):
            partition = self.open(f"t{number}", **configs)
            del self.store.partitions[partition.key]
            partition.key = partition_key(topic_id(number), 0)
            self.store.partitions[partition.key] = partition
            self.opened.append(partition)
        for number, in_sync in ((REPLICATED, (1, 2)), (STARVED, (1,))):
            partition = self.opened[number]
            partition.on_leadership(1, leadership(0, 1, (1, 2), in_sync))
            partition.followers = {2: Follower(2)}
            partition.count_in_sync()

    def take(self, appender: Appender, with_kernel: bool) -> None:
        peer = self.far.peer
        reader = peer.reader
        append_rows = native and (native.append_rows if with_kernel else None)
        while reader.poll():
            while True:
                if with_kernel:
                    self.runs.take_plain(peer, ENTRIES_MAX, 1 << 20)
                if (entry := reader.next()) is None:
                    break
                operation, index, length = entry
                if operation == APPEND:
                    appender.on_append(peer, reader.data, index, length)
                elif operation == APPEND_MANY:
                    with mock.patch.object(append_runs, "append_rows", append_rows):
                        self.runs.on_append_many(peer, reader.data, index)
            reader.release()
        if peer in peer.outbox:
            peer.publish()
        peer.resume()
        peer.publish()

    def seen(self) -> list[Any]:
        """All that was changed, and answered."""
        appender = self.appender
        found: list[Any] = [self.far.taken(), appender.bytes_in, appender.batches_in]
        found.append(sorted(partition.topic for partition in appender.appended))
        for partition in self.opened:
            log = partition.log
            slot = self.store.positions.find(partition.key)
            found.append(slot is not None and self.store.positions.load(slot))
            found.append((log.log_end_offset, partition.high_watermark, len(log.segments)))
            producers = partition.producers
            for producer_id, entry in producers.producers.items():
                found.append((producer_id, entry.epoch, entry.next_sequence, list(entry.batches)))
            found.append(dict(producers._refused))
            waiting = appender.acks.delayed.partitions.get(partition, ())
            found.append([(ack[1], *ack[3:]) for _, ack in waiting])
            for segment in log.segments:
                found.append((segment.base_offset, segment.size, segment.max_timestamp_so_far))
                found.append(segment.max_timestamp_offset)
                for name in (segment.path, segment.offset_index.path, segment.time_index.path):
                    content = Path(name).read_bytes() if Path(name).exists() else b""
                    found.append(content.rstrip(b"\0"))
        return found

    def delete_all_but_the_last(self) -> None:
        for partition in self.opened:
            delete_records(partition.log, partition.high_watermark - 1, partition.high_watermark)

    def close(self) -> None:
        while self.jobs:
            self.finish_job()
        for partition in self.opened:
            partition.log.close(clean=False)
        self.store.log_directory.close()


EVENTFD = make_eventfd()
WORD = memoryview(bytearray(8))


Sequences = dict[tuple[int, int], int]
"""What comes next of a topic and a producer."""


Sizes = st.SearchStrategy[list[int]]

# Made once: to make a strategy takes longer than to draw from it.
TIMESTAMPS = st.sampled_from((0, -5, 500, 3000, -NOW_MS - 1))
SIZES = st.lists(st.sampled_from((0, 1, 100, 500)), min_size=1, max_size=3)
LARGE_SIZES = st.one_of(
    SIZES, SIZES, SIZES, st.sampled_from(([32_600, 200], [40_000], [9_000], [7_000, 500]))
)
"""Of the values. A batch of 32 KiB and more is written, not stored."""
CODECS = st.sampled_from((0, 0, 0, LZ4))
IS_IDEMPOTENT = st.booleans()
PRODUCER_IDS = st.integers(4, 5)
IN_ORDER = st.sampled_from((*["next"] * 8, "first", "gap"))
EPOCHS = st.sampled_from((*[0] * 9, 1))
DAMAGES = st.sampled_from(
    (*[None] * 8, "crc", "count", "length", "base", "control", "codec", "cut")
)
BITS = st.integers(1, 7)
SHARES = st.integers(0, 999)


@st.composite
def batches(
    draw: st.DrawFn, number: int, sequences: Sequences, sizes: Sizes = LARGE_SIZES
) -> bytes:
    records = [(NOW_MS + draw(TIMESTAMPS), None, b"v" * size, ()) for size in draw(sizes)]
    more: dict[str, Any] = {"codec": draw(CODECS)}
    if draw(IS_IDEMPOTENT):
        producer_id = draw(PRODUCER_IDS)
        sequence = sequences.get((number, producer_id), 0)
        base_sequence = {"next": sequence, "first": 0, "gap": sequence + 1}[draw(IN_ORDER)]
        epoch = draw(EPOCHS)
        sequences[number, producer_id] = base_sequence + len(records)
        more |= {"producer_id": producer_id, "producer_epoch": epoch}
        more |= {"base_sequence": base_sequence}
    batch = bytearray(encode_batch(records, **more))
    damage = draw(DAMAGES)
    if damage == "crc":
        batch[-1] ^= 1
    elif damage == "cut":
        del batch[len(batch) * draw(SHARES) // 1000 :]
    elif damage is not None:
        at = {"count": 60, "length": 11, "base": 7, "control": 22, "codec": 22}[damage]
        batch[at] ^= draw(BITS) if damage == "codec" else 0x20
        if at > CRC_POSITION:
            _UINT32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_POSITION + 4 :]))
    return bytes(batch)


TOPIC_NUMBERS = st.sampled_from((*[0] * 8, *range(len(TOPICS) + 1)))
ACKS = st.sampled_from((1, -1, 0))
ROW_COUNTS = st.integers(1, 8)
MANY_FLAGS = st.sampled_from((0, APPEND_FLAG_NO_ZSTD))
ENTRY_COUNTS = st.integers(1, 40)
KINDS = st.integers(0, 15)
FLAGS = st.sampled_from((*[0] * 6, APPEND_FLAG_NO_ZSTD, APPEND_FLAG_TRANSACTIONAL))


@st.composite
def many(draw: st.DrawFn, token: int, sequences: Sequences) -> bytes:
    """An APPEND_MANY."""
    rows = b""
    count = draw(ROW_COUNTS)
    for _ in range(count):
        number = draw(TOPIC_NUMBERS)
        batch = draw(batches(number, sequences))
        rows += APPEND_ROW.pack(partition_key(topic_id(number), 0), len(batch)) + batch
    flags = draw(MANY_FLAGS)
    return APPEND_MANY_HEAD.pack(token, draw(ACKS), flags, 30_000, count, 0) + rows


@st.composite
def entries(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """(operation, payload) of each; mostly rows of one topic, as clients send them."""
    found = []
    sequences: Sequences = {}
    for token in range(0, 8 * draw(ENTRY_COUNTS), 8):
        kind = draw(KINDS)
        if kind == 0:
            found.append((READ, bytes(64)))
            continue
        if kind < 4:
            found.append((APPEND_MANY, draw(many(token, sequences))))
            continue
        number = draw(TOPIC_NUMBERS)
        flags = draw(FLAGS)
        name = NAME_LENGTH.pack(1) + b"x" if flags & APPEND_FLAG_TRANSACTIONAL else b""
        head = APPEND_HEAD.pack(
            token, draw(ACKS), flags, 30_000, partition_key(topic_id(number), 0), 0
        )
        found.append((APPEND, head + name + draw(batches(number, sequences))))
    return found


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@settings(max_examples=examples(60))
@given(st.lists(entries(), min_size=1, max_size=3), st.booleans())
def test_the_kernel_appends_as_the_appender_does(
    root: Path, rounds: list[list[tuple[int, bytes]]], is_full: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        sides = [Leader(Path(made, name)) for name in ("plain", "kernel")]
        for side in sides:
            side.appender.is_disk_low = is_full
        for rows in rounds:
            for with_kernel, side in enumerate(sides):
                for operation, payload in rows:
                    side.far.send(operation, payload)
                side.take(side.appender, bool(with_kernel))
            assert sides[0].seen() == sides[1].seen()
            for side in sides:
                side.delete_all_but_the_last()
        for side in sides:
            side.close()


def test_a_run_is_taken_by_the_kernel(root: Path) -> None:
    """So that the test above compares two things."""
    with tempfile.TemporaryDirectory(dir=root) as made:
        side = Leader(Path(made))
        calls: list[Any] = []
        side.appender.on_append = lambda *entry: calls.append(entry)  # type: ignore[method-assign]
        batch = encode_batch([(NOW_MS, None, b"v", ())])
        head = APPEND_HEAD.pack(7, 1, 0, 30_000, partition_key(topic_id(0), 0), 0)
        side.appender.partitions[partition_key(topic_id(0), 0)].log.append(
            memoryview(batch), 0, NOW_MS, 0, NOW_MS
        )
        side.far.peer.writer.claim(1, 0)  # who has claimed once knows how much room there is
        for _ in range(20):
            side.far.send(APPEND, head + batch)
        side.take(side.appender, True)
        assert not calls
        assert len(side.far.taken()) == 21
        assert side.opened[0].log.log_end_offset == 21
        assert side.opened[0].high_watermark == 21
        side.close()


def test_rows_are_bounded_by_what_holds_them() -> None:
    assert native is not None
    row = APPEND_ROW.pack(partition_key(topic_id(0), 0), 1000)
    rows: tuple[Any, ...] = (7, 1, 0, 30_000, {}, NOW_MS, set(), [])
    for data, count in ((b"", 1), (row, 2), (row[:10], 1)):
        with pytest.raises(ValueError, match="there are no"):
            native.append_rows(data, 0, 0, count, *rows)
    assert native.append_rows(row, 0, 0, 1, *rows) == (0, 0, b"")


def test_a_broken_ring_is_said(root: Path) -> None:
    assert native is not None
    data = memoryview(bytearray(RING_BYTES))
    words_of(data)[0] = APPEND << 32 | RING_BYTES
    writer = SimpleNamespace(data=memoryview(bytearray(RING_BYTES)), _tail=0, _limit=RING_BYTES)
    for tail in (8, RING_BYTES, -8, RING_BYTES * 2):
        reader = SimpleNamespace(data=data, _head=0, _tail=tail)
        with pytest.raises(ValueError, match="broken ring"):
            native.append_plain(reader, writer, {}, NOW_MS, 9, 1 << 20, set(), [])
        assert (reader._head, writer._tail) == (0, 0)
