"""Segments into a store and back: killed at every step, damaged at every byte."""

import os

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.segment import Segment
from shmbroker.log.segment_indexes import load_indexes
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import H_BASE_OFFSET
from shmbroker.tier import transfer
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.manifest import PartitionName, partition_prefix
from shmbroker.tier.object_store import MissingFault, StoreFault
from shmbroker.tier.remote_log import RemoteSegment
from tests.unit.tier.stores import Killed, MemoryStore

NAME = PartitionName("t", bytes(range(16)), 0)
PREFIX = partition_prefix("cluster", NAME)
RECORDS = 4
"""In each batch."""


def make_log(path, segments: int, batches: int, value_bytes: int = 200) -> PartitionLog:
    """A log of closed segments and an empty active one; record n has timestamp 1000 + n."""
    log = PartitionLog.open(str(path), LogConfig(), file_ids=iter(range(1, 1000)))
    for _ in range(segments):
        for _ in range(batches):
            first = log.log_end_offset
            records = [
                (1000 + first + n, b"k%d" % (first + n), os.urandom(value_bytes), [])
                for n in range(RECORDS)
            ]
            batch = memoryview(encode_batch(records))
            log.append(batch, RECORDS - 1, 1000 + first + RECORDS - 1, 0, 1)
        log.roll(1)
    return log


def copies_of(log: PartitionLog) -> list[RemoteSegment]:
    return [
        RemoteSegment(one.base_offset, one.end_offset, 0, one.size, one.max_timestamp)
        for one in log.segments[:-1]
    ]


def copy(store, log: PartitionLog, segment: RemoteSegment) -> None:
    transfer.copy_segment(
        store, PREFIX, NAME, log.directory, segment, log.leader_epochs.entries, lambda _: None
    )


@pytest.fixture
def log(tmp_path):
    made = make_log(tmp_path / "t-0", 2, 60)
    yield made
    made.close(clean=False)


def read_back(store, segments, tmp_path, bytes_max: int, start: int = 0) -> list[int]:
    """Offsets of all records from `start` on, chunk by chunk."""
    offsets = []
    offset = start
    indexes = transfer.Indexes()
    for segment in segments:
        while segment.base_offset <= offset < segment.end_offset:
            chunk = transfer.fetch_chunk(
                store, PREFIX, segment, offset, str(tmp_path), indexes, 4096, bytes_max
            )
            assert chunk.base_offset <= offset < chunk.end_offset
            data = (tmp_path / f"{chunk.base_offset:020d}.log").read_bytes()
            assert len(data) == chunk.size
            for position, _ in iterate_batches(data):
                found = [record[0] for record in iterate_records(data, position)]
                offsets += [one for one in found if one >= offset]
            offset = chunk.end_offset
    return offsets


@pytest.mark.parametrize("bytes_max", [61, 1000, 5000, 1 << 20])
def test_everything_comes_back_in_order(log, tmp_path, bytes_max):
    store = DirectoryStore(str(tmp_path / "store"))
    for segment in copies_of(log):
        copy(store, log, segment)
    found = transfer.load_segments(store, PREFIX, NAME, must_sweep=True)
    assert sorted(found.segments) == copies_of(log)
    assert not found.damaged
    offsets = read_back(store, sorted(found.segments), tmp_path, bytes_max)
    assert offsets == list(range(log.log_end_offset))


@pytest.mark.parametrize("bytes_max", [1000, 1 << 20])
@pytest.mark.parametrize("interval_bytes", [0, 100, 4096])
def test_a_chunk_has_whole_indexes(log, tmp_path, bytes_max, interval_bytes):
    store = DirectoryStore(str(tmp_path / "store"))
    segment = copies_of(log)[0]
    copy(store, log, segment)
    chunk = transfer.fetch_chunk(
        store, PREFIX, segment, 100, str(tmp_path), transfer.Indexes(), interval_bytes, bytes_max
    )
    config = LogConfig({"index.interval.bytes": str(interval_bytes)})
    opened = Segment(str(tmp_path), chunk.base_offset, config, 1, Descriptors(8))
    opened.size, opened.end_offset = chunk.size, chunk.end_offset
    _, header = opened.find(100)
    assert header is not None and header[H_BASE_OFFSET] == 100
    load_indexes(opened)
    assert not opened.is_rebuilt
    opened.close()


@pytest.mark.parametrize("start", [1, 100, 237, 239, 240, 300])
def test_any_offset_is_found_by_the_index_and_without_it(log, tmp_path, start):
    store = MemoryStore()
    segments = copies_of(log)
    for segment in segments:
        copy(store, log, segment)
    segments = [one for one in segments if one.end_offset > start]
    expected = list(range(start, log.log_end_offset))
    assert read_back(store, segments, tmp_path, 3000, start) == expected
    for key in list(store.objects):
        if key.endswith(".index"):
            # Of another segment: positions that begin no batch.
            store.objects[key] = bytes(store.objects[key][:4]) + b"\0\0\1\7"
    assert read_back(store, segments, tmp_path, 3000, start) == expected
    store.objects = {k: v for k, v in store.objects.items() if not k.endswith(".index")}
    assert read_back(store, segments, tmp_path, 3000, start) == expected


def test_copy_that_is_killed_anywhere_is_whole_or_swept(log):
    segment = copies_of(log)[0]
    store = MemoryStore()
    copy(store, log, segment)
    whole = dict(store.objects)
    assert len(whole) >= 6
    for steps in range(len(whole)):
        store = MemoryStore()
        store.steps_left = steps
        with pytest.raises(Killed):
            copy(store, log, segment)
        assert len(store.objects) == steps
        store.steps_left = 1 << 30
        kept = transfer.load_segments(store, PREFIX, NAME, must_sweep=False)
        assert not kept.segments and len(store.objects) == steps
        assert not transfer.load_segments(store, PREFIX, NAME, must_sweep=True).segments
        assert not store.objects, "an orphan is left"
        copy(store, log, segment)
        assert store.objects == whole


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex"])
def test_file_that_can_not_be_read_is_named(log, suffix):
    """It gives an input/output error to who reads its first bytes."""
    path = f"{log.directory}/{0:020d}.{suffix}"
    os.unlink(path)
    os.symlink("/proc/self/mem", path)
    store = MemoryStore()
    with pytest.raises(StorageFault, match=f"can't read {path}: Input/output error$"):
        copy(store, log, copies_of(log)[0])
    assert not [key for key in store.objects if key.endswith(".manifest")]


def test_deletion_that_is_killed_anywhere_leaves_no_half(log):
    segments = copies_of(log)
    for steps in range(14):
        store = MemoryStore()
        for segment in segments:
            copy(store, log, segment)
        stems = [transfer.manifest.stem_of(*segment[:3]) for segment in segments]
        store.steps_left = steps
        with pytest.raises(Killed):
            transfer.delete_segments(store, PREFIX, stems)
        store.steps_left = 1 << 30
        left = transfer.load_segments(store, PREFIX, NAME, must_sweep=True).segments
        kept = {key.rpartition("/")[2].split(".")[0] for key in store.objects}
        assert kept == {transfer.manifest.stem_of(*segment[:3]) for segment in left}
        for segment in left:
            assert store.objects[f"{PREFIX}{transfer.manifest.stem_of(*segment[:3])}.log"]
        transfer.delete_segments(store, PREFIX, stems)
        assert not store.objects


def test_damaged_segment_is_not_copied(log):
    segment = copies_of(log)[0]
    path = os.path.join(log.directory, f"{0:020d}.log")
    with open(path, "r+b") as file:
        file.seek(segment.size // 2)
        byte = file.read(1)
        file.seek(segment.size // 2)
        file.write(bytes([byte[0] ^ 4]))
    store = MemoryStore()
    with pytest.raises(CorruptFault):
        copy(store, log, segment)
    assert not store.objects


@pytest.mark.parametrize("seed", range(40))
def test_damaged_object_is_never_served(log, tmp_path, seed):
    store = MemoryStore()
    segment = copies_of(log)[0]
    copy(store, log, segment)
    key = next(key for key in store.objects if key.endswith(".log"))
    data = bytearray(store.objects[key])
    at = seed * 997 % len(data) if seed % 2 else seed % 61
    data[at] ^= 1 << seed % 8
    store.objects[key] = bytes(data)
    try:
        offsets = read_back(store, [segment], tmp_path, 4000)
    except CorruptFault:
        return
    # Bits that no checksum of Kafka's format covers: the epoch of the leader.
    assert offsets == list(range(segment.end_offset))
    assert 12 <= at % _batch_bytes(log) < 16


def _batch_bytes(log: PartitionLog) -> int:
    for _, header in log.segments[0].headers(0, log.segments[0].size):
        return header[1] + 12
    raise AssertionError


def test_cut_object_is_a_fault_of_the_store_or_damage(log, tmp_path):
    store = MemoryStore()
    segment = copies_of(log)[0]
    copy(store, log, segment)
    key = next(key for key in store.objects if key.endswith(".log"))
    store.objects[key] = store.objects[key][: segment.size // 2]
    with pytest.raises(CorruptFault):
        read_back(store, [segment], tmp_path, 4000)
    del store.objects[key]
    with pytest.raises(MissingFault):
        read_back(store, [segment], tmp_path, 4000)


@pytest.mark.parametrize("timestamp", [0, 1000, 1001, 1117, 1238, 1239])
def test_record_is_found_by_its_time(log, timestamp):
    store = MemoryStore()
    segment = copies_of(log)[0]
    copy(store, log, segment)
    indexes = transfer.Indexes()
    found = transfer.find_timestamp(store, PREFIX, segment, timestamp, 0, indexes)
    wanted = max(timestamp, 1000)
    assert found == (wanted, wanted - 1000)
    late = transfer.find_timestamp(store, PREFIX, segment, timestamp, 238, indexes)
    assert late == (max(wanted, 1238), max(wanted - 1000, 238))


def test_no_record_is_found_behind_the_last(log):
    store = MemoryStore()
    segment = copies_of(log)[0]
    copy(store, log, segment)
    newest = segment.max_timestamp
    for start, timestamp in ((0, newest + 1), (segment.end_offset, 0)):
        found = transfer.find_timestamp(
            store, PREFIX, segment, timestamp, start, transfer.Indexes()
        )
        assert found is None


def test_damaged_manifest_costs_its_segment_alone(log):
    store = MemoryStore()
    segments = copies_of(log)
    for segment in segments:
        copy(store, log, segment)
    key = next(key for key in store.objects if key.endswith(".manifest"))
    store.objects[key] = store.objects[key][:-3]
    count = len(store.objects)
    found = transfer.load_segments(store, PREFIX, NAME, must_sweep=True)
    assert found.segments == segments[1:]
    (damaged,) = found.damaged
    assert damaged[:3] == segments[0][:3]
    assert len(found.complaints) == 1
    assert len(store.objects) == count, "what can't be judged is left alone"
    copy(store, log, segments[0])
    assert not transfer.load_segments(store, PREFIX, NAME, must_sweep=True).damaged


def test_store_that_is_down_is_a_store_fault(log, tmp_path):
    store = MemoryStore()
    store.is_down = True
    with pytest.raises(StoreFault):
        copy(store, log, copies_of(log)[0])
    with pytest.raises(StoreFault):
        transfer.load_segments(store, PREFIX, NAME, must_sweep=True)


def test_deleting_everything_leaves_other_topics(log):
    store = MemoryStore()
    for segment in copies_of(log):
        copy(store, log, segment)
    store.objects["cluster/other.x/0/a.log"] = b""
    transfer.delete_everything(store, PREFIX)
    assert list(store.objects) == ["cluster/other.x/0/a.log"]


def test_indexes_are_kept_within_their_bound():
    store = MemoryStore()
    for number in range(10):
        store.objects[f"{number}.index"] = bytes(100)
    indexes = transfer.Indexes(bytes_max=350)
    for number in (0, 1, 2, 0, 3, 0, 1):
        indexes.get(store, f"{number}.index")
    assert [key for key, _, _ in store.gets] == [f"{n}.index" for n in (0, 1, 2, 3, 1)]
