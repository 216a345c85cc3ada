"""Rows in a file: all of them, in order, in the same batches whenever they come again."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.client.cluster import NO_ID, Cluster, Topic
from shmbroker.client.producer.delivery import ProducerIdentity
from shmbroker.client.producer.spill import Spill
from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault
from shmbroker.records import codecs
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import ATTRIBUTES_POSITION, BATCH_HEADER, TRANSACTIONAL_BIT
from tests.support.examples import examples

NOW_MS = 1_700_000_000_000
PARTITIONS = 4


def spilled(parts: list[pa.RecordBatch], topic: str | None = "t", **settings: Any) -> Spill:
    """All of these rows; the topics are there."""
    cluster = Cluster([("127.0.0.1", 1)], "test", 1.0)
    for name in ("t", "u"):
        cluster.topics[name] = Topic(name, NO_ID, [1] * PARTITIONS)
    arguments: dict[str, Any] = {
        "batch_size": 300,
        "compression": "none",
        "memory_max": 1 << 20,
        "now_ms": NOW_MS,
        "seed": 5,
        "wait_s": 1.0,
    }
    spill = Spill(cluster, **arguments | settings)
    for part in parts:
        spill.add(part, topic)
    spill.finish()
    return spill


def records_of(spill: Spill, codec: int = 0) -> dict[tuple[str, int], list[Any]]:
    """Of each partition (value, timestamp), as the leader gets them."""
    found: dict[tuple[str, int], list[Any]] = {}
    for partition, stored in spill.batches.items():
        sequence = 0
        for batch in spill.load(stored):
            batch.sequence = sequence
            frame = batch.seal(ProducerIdentity(7, 2, is_transactional=True), codec)
            header = BATCH_HEADER.unpack_from(frame)
            assert header[4] == crc32c(frame[ATTRIBUTES_POSITION:])
            assert header[5] == codec | TRANSACTIONAL_BIT
            assert header[9:] == (7, 2, sequence, batch.count)
            rows = list(iterate_records(frame))
            assert len(rows) == batch.count
            assert max(row[1] for row in rows) == header[8]
            sequence += batch.count
            found.setdefault(partition, []).extend((row[3], row[1]) for row in rows)
    return found


values = st.lists(st.binary(max_size=120), max_size=80)


@given(
    parts=st.lists(values, max_size=4),
    codec=st.sampled_from(["none", "lz4", "zstd"]),
    memory=st.sampled_from([300, 5000, 1 << 20]),
)
@settings(deadline=None, max_examples=examples(60))
def test_every_row_is_there_once_and_in_order(
    parts: list[list[bytes]], codec: str, memory: int
) -> None:
    given_rows = [
        pa.record_batch(
            {
                "value": pa.array(part, pa.binary()),
                "partition": pa.array([len(value) % PARTITIONS for value in part], pa.int32()),
            }
        )
        for part in parts
    ]
    expected: dict[tuple[str, int], list[Any]] = {}
    for value in (value for part in parts for value in part):
        expected.setdefault(("t", len(value) % PARTITIONS), []).append((value, NOW_MS))
    with spilled(given_rows, compression=codec, memory_max=memory) as spill:
        assert records_of(spill, codecs.NAMES.index(codec)) == expected


def rows_of(count: int, first: int = 0) -> pa.RecordBatch:
    """Every third without a key, every second without a time."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "key": pa.array([None if n % 3 == 0 else b"%d" % n for n in numbers], pa.binary()),
            "value": [b"value %d" % n for n in numbers],
            "timestamp": pa.array([None if n % 2 else NOW_MS + n for n in numbers], pa.int64()),
        }
    )


def test_the_same_rows_have_the_same_digests_and_others_have_others() -> None:
    def digests(*parts: pa.RecordBatch) -> dict[Any, list[str]]:
        with spilled(list(parts)) as spill:
            return {one: [row.digest for row in rows] for one, rows in spill.batches.items()}

    once = digests(rows_of(500), rows_of(500, 500))
    assert digests(rows_of(500), rows_of(500, 500)) == once
    changed = digests(rows_of(500), rows_of(500, 600))
    for partition, rows in once.items():
        assert rows[0] == changed[partition][0]
        assert rows[-1] != changed[partition][-1]
        assert len(set(rows)) == len(rows)


def test_memory_of_open_batches_is_bounded() -> None:
    largest = 0

    class Watched(Spill):
        def _take_memory(self, size: int) -> None:
            nonlocal largest
            super()._take_memory(size)
            held = sum(len(opened.buffer) for opened in self._open.values())
            largest = max(largest, held + size)

    settings = {"batch_size": 60_000, "memory_max": 100_000}
    cluster = Cluster([("127.0.0.1", 1)], "test", 1.0)
    cluster.topics["t"] = Topic("t", NO_ID, [1] * PARTITIONS)
    with Watched(cluster, compression="none", now_ms=NOW_MS, seed=1, wait_s=1, **settings) as spill:
        for n in range(30):
            spill.add(rows_of(1000, n * 1000), "t")
        spill.finish()
        assert sum(len(rows) for rows in records_of(spill).values()) == 30_000
    assert 50_000 < largest <= 100_000 + 60_000


def test_topics_of_a_column_and_a_record_larger_than_a_batch() -> None:
    rows = pa.record_batch({"topic": ["t", "u", "t"], "value": [b"a", b"b" * 5000, b"c"]})
    with spilled([rows], None) as spill:
        found = records_of(spill)
    assert {name for name, _ in found} == {"t", "u"}
    assert sorted(len(value) for rows in found.values() for value, _ in rows) == [1, 1, 5000]


def test_a_row_that_can_not_be_taken_is_told() -> None:
    rows = pa.record_batch({"value": [b"a"], "partition": pa.array([PARTITIONS], pa.int32())})
    with pytest.raises(ConfigFault, match="topic t has no partition 4"):
        spilled([rows])
