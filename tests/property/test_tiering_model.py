"""A tiered log against a plain list of its records, with deaths at every step of the store.

The log, `broker.tiering` and `tier.transfer` are the real ones; the store is a dict that dies
after so many changes, and the tier process a queue of what it was asked.
"""

import itertools
import os
import shutil
import tempfile
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.broker.tiering.tiering import Tiering
from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.lookups import aborted_in
from shmbroker.log.markers import append_marker
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.raised_start import RAISED_START
from shmbroker.log.retention import delete_records, raise_start, retain
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.end_marker import EndMarker
from shmbroker.replica.partition import Partition
from shmbroker.tier import transfer
from shmbroker.tier.manifest import PartitionName, partition_prefix, stem_of
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.states import read_state
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.support.leadership import leadership
from tests.unit.tier.stores import Killed, MemoryStore

TOPIC_ID = bytes(range(16))
KEY = TOPIC_ID + bytes(4)
NAME = PartitionName("t", TOPIC_ID, 0)
PREFIX = partition_prefix("cluster", NAME)
RECORDS = 3
FIELDS = RemoteSegment._fields
CONFIG = {
    "remote.log.manager.task.interval.ms": 1,
    "remote.list.offsets.request.timeout.ms": 1000,
    "shmbroker.tier.cache.bytes": 3000,
    "shmbroker.io.workers": 1,
}


class World:
    """One partition with everything around it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = MemoryStore()
        self.now_ms = 1_000_000
        self.records: list[bytes] = []
        """By offset; of a marker its value."""
        self.aborted: list[tuple[int, int, int]] = []
        """(producer id, first offset, offset of the marker)."""
        self.sequences = {1: 0, 2: 0}
        self.start = 0
        self.may_be_damaged = False
        self.asked: deque = deque()
        self.is_swept = False
        self.incarnation = 0
        self.epoch = 0
        self.log_start = 0
        self.settings = {"remote.storage.enable": "true", "index.interval.bytes": "150"}
        self.open()

    def open(self, is_new: bool = False) -> None:
        """The I/O worker begins (again): the page cache has survived."""
        self.incarnation += 1
        self.file_ids = itertools.count(self.incarnation << 20)
        self.asked.clear()
        self.log = PartitionLog.open(
            os.path.join(self.directory, "t-0"),
            LogConfig(self.settings),
            file_ids=self.file_ids,
            clean=False,
            log_start_offset=self.log_start,
            decided_below=(0, NO_LIMIT)[self.incarnation % 2],
            cleaned_offset=0,
        )
        self.partition = Partition(KEY, "t", TOPIC_ID, 0, self.log)
        self.partition.waits_for_store = is_new
        self.partition.on_leadership(1, leadership(self.epoch))
        self.table_store = store = SimpleNamespace(
            is_log_start_moved=False,
            log_directory=SimpleNamespace(
                path=os.path.join(self.directory, "node-1"), descriptors=Descriptors()
            ),
            file_ids=self.file_ids,
            dropped_file_ids=[],
            raise_log_start=self.raise_log_start,
            retain=lambda partition, now_ms: self.retain(),
        )
        self.tiering = Tiering(
            store, CONFIG, self.ask, lambda key: None, lambda: self.now_ms, lambda: self.now_ms,
            os.path.join(self.directory, "cache"), self.incarnation, self.on_decided,
        )  # fmt: skip
        self.tiering.on_partition(self.partition)

    def on_decided(self, partition: Partition) -> None:
        """The store has said what was lost here."""
        partition.on_leadership(1, leadership(self.epoch))
        self.tiering.on_partition(partition)

    def lose_disk(self) -> None:
        """The I/O worker begins again, and its directory is empty."""
        self.log.close(clean=False)
        shutil.rmtree(os.path.join(self.directory, "t-0"))
        self.log_start = 0
        self.epoch += 1
        self.open(is_new=True)

    def raise_log_start(self, partition: Partition, offset: int) -> None:
        raise_start(partition.log, offset)
        self.note_log_start()

    def note_log_start(self) -> None:
        self.table_store.is_log_start_moved = True

    def checkpoint(self) -> None:
        """What a round of upkeep makes durable."""
        self.log_start = self.log.log_start_offset
        self.table_store.is_log_start_moved = False

    def retain(self) -> None:
        if self.tiering.retain(self.partition, self.now_ms):
            retain(self.log, self.partition.high_watermark, self.now_ms)
        self.log.retired.clear()
        self.note_log_start()
        self.start = max(self.start, self.log.log_start_offset)

    # ── the tier process ────────────────────────────────────────────────────────────────────────

    def ask(self, _key: int, name: str, body: dict, on_answer) -> bool:
        self.asked.append((name, body, on_answer))
        return True

    def answer(self) -> None:
        """Do what was asked; a kill ends all of it."""
        while self.asked:
            name, body, on_answer = self.asked.popleft()
            try:
                found = getattr(self, name)(body)
            except Killed:
                self.store.steps_left = 1 << 30
                self.asked.clear()
                self.is_swept = False
                self.tiering.on_tier_lost()
                self.tiering.on_tier_running()
                continue
            except StorageFault as fault:
                found = {"error_code": 56, "error_message": str(fault)}
            on_answer({"error_code": 0} | found)

    def TierLoad(self, _body: dict) -> dict:
        found = transfer.load_segments(self.store, PREFIX, NAME, must_sweep=not self.is_swept)
        self.is_swept = True
        assert not found.damaged or self.may_be_damaged
        return {
            "segments": [one._asdict() for one in found.segments],
            "damaged": [
                {"base_offset": base, "end_offset": end, "leader_epoch": epoch}
                for base, end, epoch, *_ in found.damaged
            ],
        }

    def TierCopy(self, body: dict) -> dict:
        assert self.is_swept
        segment = RemoteSegment(**{field: body[field] for field in FIELDS})
        epochs = [(one["epoch"], one["start_offset"]) for one in body["epochs"]]
        transfer.copy_segment(
            self.store, PREFIX, NAME, body["directory"], segment, epochs, lambda _: None
        )
        return {}

    def TierDelete(self, body: dict) -> dict:
        stems = [
            stem_of(one["base_offset"], one["end_offset"], one["leader_epoch"])
            for one in body["segments"]
        ]
        transfer.delete_segments(self.store, PREFIX, stems)
        return {}

    def TierFetch(self, body: dict) -> dict:
        segment = RemoteSegment(**{field: body[field] for field in FIELDS})
        chunk = transfer.fetch_chunk(
            self.store, PREFIX, segment, body["offset"], body["directory"],
            transfer.Indexes(), body["index_interval_bytes"], 500,
        )  # fmt: skip
        return chunk._asdict()

    def TierAborted(self, body: dict) -> dict:
        segment = RemoteSegment(**{field: body[field] for field in FIELDS})
        found = transfer.read_aborted(self.store, PREFIX, segment)
        return {"aborted": [one._asdict() for one in found]}

    def TierState(self, body: dict) -> dict:
        state = read_state(self.store, PREFIX, NAME, body["offset"])
        if state is None:
            return {"offset": -1}
        epochs = [{"epoch": epoch, "start_offset": start} for epoch, start in state.epochs]
        return {"offset": state.offset, "epochs": epochs, "snapshot": state.snapshot or b""}

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def append(self, batches: int) -> None:
        for _ in range(batches):
            values = [b"v%d" % (len(self.records) + n) for n in range(RECORDS)]
            batch = encode_batch([(self.now_ms, None, value, []) for value in values])
            self.log.append(memoryview(batch), RECORDS - 1, self.now_ms, 0, self.now_ms)
            self.partition.advance_high_watermark()
            self.records += values

    def transact(self, what: int) -> None:
        """A batch of a transaction, and for some numbers the end of it."""
        producer_id = 1 + what % 2
        sequence = self.sequences[producer_id]
        self.sequences[producer_id] += RECORDS
        values = [b"t%d" % (len(self.records) + n) for n in range(RECORDS)]
        batch = encode_batch(
            [(self.now_ms, None, value, []) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        producers = self.log.producers
        offset = self.log.append(memoryview(batch), RECORDS - 1, self.now_ms, 0, self.now_ms)
        producers.update(producer_id, 0, sequence, RECORDS - 1, offset, self.now_ms)
        producers.begin(producer_id, offset)
        self.records += values
        if what & 4:
            first, is_commit = producers.open[producer_id], bool(what & 2)
            marker = EndMarker(producer_id, 0, 0, is_commit)
            offset = append_marker(self.log, marker, self.now_ms, 0, self.now_ms)
            self.records.append(bytes(6))
            if not is_commit:
                self.aborted.append((producer_id, first, offset))
        self.partition.advance_high_watermark()

    def roll(self, _: int) -> None:
        self.log.roll(self.now_ms)
        self.log.active.create_files()
        self.log.flush()

    def tick(self, answers: int) -> None:
        """A round, with a log start that is durable already if `answers` is even."""
        self.now_ms += 120_000
        if not answers % 2:
            self.checkpoint()
        self.tiering.run()
        if answers:
            self.answer()

    def keep_local(self, segments: int) -> None:
        self.settings["local.retention.bytes"] = str(segments * 400)
        self.log.set_config(LogConfig(self.settings))
        self.retain()

    def keep_in_all(self, segments: int) -> None:
        self.settings["retention.bytes"] = str((segments + 3) * 400)
        self.log.set_config(LogConfig(self.settings))
        self.retain()
        del self.settings["retention.bytes"]
        self.log.set_config(LogConfig(self.settings))

    def delete_records(self, part: int) -> None:
        offset = self.start + (len(self.records) - self.start) * part // 8
        assert delete_records(self.log, offset, self.partition.high_watermark) is not None
        self.start = max(self.start, offset)
        self.note_log_start()
        self.retain()

    def kill_tier(self, steps: int) -> None:
        self.store.steps_left = steps
        self.tick(1)
        self.store.steps_left = 1 << 30

    def kill_worker(self, _: int) -> None:
        self.log.close(clean=False)
        self.open()

    def unmount_store(self, _: int) -> None:
        """The store is an empty directory while the worker begins again, and for some rounds."""
        objects, self.store.objects = self.store.objects, {}
        self.kill_worker(0)
        self.is_swept = False
        log = self.log
        if log.log_start_offset < log.segments[0].base_offset:
            start = log.log_start_offset
            for _ in range(3):
                self.tick(2)
                self.retain()
            assert log.log_start_offset == start
            assert not self.store.objects
        self.store.objects = objects

    def fail_store(self, _: int) -> None:
        self.store.is_down = True
        self.tick(1)
        self.store.is_down = False

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def read(self, offset: int) -> tuple[bytes, list[tuple[int, int, int]]]:
        """Bytes from `offset` on, and the transactions in them that were aborted, after as many
        rounds as it takes."""
        for _ in range(6):
            log = self.log
            if offset >= log.local_start_offset:
                found = log.read(offset, 300, self.partition.high_watermark)
            else:
                found = self.tiering.read(
                    self.partition, offset, 300, self.partition.high_watermark, True
                )
            if type(found) is tuple and found[2]:
                segment, position, length = found
                where = segment, position + length, self.log.log_end_offset
                if offset >= log.local_start_offset:
                    aborted = aborted_in(log, offset, *where)
                else:
                    aborted = self.tiering.aborted_in(self.partition, offset, *where)
                if isinstance(aborted, list):
                    return segment.read_bytes(position, length), [one[:3] for one in aborted]
            self.now_ms += 120_000
            self.tiering.run()
            self.answer()
        raise AssertionError(f"offset {offset} can't be read: {found}")

    def check(self) -> None:
        log = self.log
        assert log.log_start_offset <= self.start or log.log_start_offset == self.start
        assert log.log_start_offset <= log.local_start_offset <= log.log_end_offset
        offset = log.log_start_offset
        values = self.records
        while offset < len(values):
            start = offset
            data, aborted = self.read(offset)
            for position, _ in iterate_batches(data):
                for found, _, _, value, _ in iterate_records(data, position):
                    if found >= offset:
                        assert (found, value) == (offset, values[offset])
                        offset += 1
            assert aborted == [one for one in self.aborted if one[2] >= start and one[1] < offset]

    def settle(self) -> None:
        """Nobody dies any more: what is closed is copied, what is not needed is gone."""
        self.roll(0)
        for producer_id in list(self.log.producers.open):
            self.transact(producer_id - 1 + 4)
        self.roll(0)
        for _ in range(40):
            self.tick(2)
        assert self.tiering.end_offset(self.partition) == self.log.log_end_offset or not (
            self.log.log_end_offset > self.log.log_start_offset
        )
        self.is_swept = False
        before = set(self.store.objects)
        loaded = self.TierLoad({})["segments"]
        assert set(self.store.objects) == before, "orphans were left"
        assert all(one["end_offset"] > self.log.log_start_offset for one in loaded)


OPERATIONS = (
    "append", "append", "transact", "transact", "transact", "roll", "roll", "tick", "tick",
    "keep_local", "keep_in_all", "delete_records", "kill_tier", "kill_tier", "kill_worker",
    "fail_store", "unmount_store",
)  # fmt: skip


@settings(max_examples=int(os.environ.get("TIERING_EXAMPLES", "40")), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7)), min_size=5, max_size=40))
def test_every_record_is_read_whatever_happens(operations):
    with tempfile.TemporaryDirectory() as directory:
        world = World(directory)
        try:
            world.answer()
            for name, argument in operations:
                getattr(world, name)(argument)
                if name in ("tick", "kill_worker", "kill_tier", "keep_local"):
                    world.check()
            world.settle()
            world.check()
        finally:
            world.log.close(clean=False)


@pytest.fixture
def tiered_world(tmp_path):
    """Four copied segments of which the local ones are gone."""
    world = World(str(tmp_path))
    world.answer()
    for _ in range(4):
        world.append(2)
        world.roll(0)
        world.tick(2)
    world.keep_local(0)
    world.append(1)
    assert world.log.log_start_offset == 0 < world.log.local_start_offset
    assert world.tiering.end_offset(world.partition) == world.log.local_start_offset
    yield world
    world.log.close(clean=False)


def test_store_that_is_not_mounted_costs_nothing(tiered_world):
    tiered_world.unmount_store(0)
    tiered_world.check()
    assert tiered_world.log.log_start_offset == 0


def test_switched_off_it_begins_where_it_is_local_after_a_kill_as_well(tiered_world):
    """Though it is switched on again by then, and the checkpoint is older."""
    start = tiered_world.log.local_start_offset
    tiered_world.log.set_config(LogConfig({"remote.storage.enable": "false"}))
    tiered_world.tiering.on_partition(tiered_world.partition)
    assert tiered_world.log.log_start_offset == start
    tiered_world.kill_worker(0)
    assert tiered_world.log_start == 0
    assert tiered_world.log.log_start_offset == start


@pytest.mark.parametrize(
    ("number", "is_removed"), [(0, False), (1, False), (1, True), (3, False), (3, True)]
)
def test_a_copy_without_a_manifest_is_named_and_never_skipped(
    tiered_world, caplog, number, is_removed
):
    world = tiered_world
    world.may_be_damaged = True
    keys = sorted(key for key in world.store.objects if key.endswith(".manifest"))
    base, end = (int(part) for part in keys[number].rpartition("/")[2].split("-")[:2])
    whole = world.store.objects[keys[number]]
    if is_removed:
        del world.store.objects[keys[number]]
    else:
        world.store.objects[keys[number]] = whole[:-3]
    world.kill_worker(0)
    world.tick(2)
    assert f"are offsets {base} to {end - 1}: reads of them" in caplog.text
    assert world.log.log_start_offset == 0, "the log begins where it did"
    limit = world.partition.high_watermark
    for offset in range(base, end):
        world.tick(2)
        found = world.tiering.read(world.partition, offset, 300, limit, True)
        assert found == KAFKA_STORAGE_ERROR
    for offset in {0, base - 1, end} - {-1, base}:
        data, _ = world.read(offset)
        assert data
    # DeleteRecords beyond it ends that, and removes what is left of it.
    assert delete_records(world.log, end, limit) == end
    world.note_log_start()
    for _ in range(4):
        world.tick(2)
    left = [key for key in world.store.objects if int(key.rpartition("/")[2][:20]) < end]
    assert not left or is_removed, "one without a manifest is swept with the next start of the tier"
    data, _ = world.read(end)
    assert data


def test_a_list_from_before_a_copy_does_not_take_it_back(tiered_world):
    world = tiered_world
    world.append(2)
    world.roll(0)
    world.tick(0)
    world.tiering.on_partition(world.partition)  # a setting has changed
    (_, body, on_list) = world.asked.pop()
    answer = {"error_code": 0} | world.TierLoad(body)
    assert [name for name, *_ in world.asked] == ["TierCopy"]
    world.answer()
    on_list(answer)
    assert world.tiering.end_offset(world.partition) == world.log.local_start_offset
    world.check()


def test_copies_stay_until_the_log_start_above_them_is_durable(tiered_world):
    world = tiered_world
    before = set(world.store.objects)
    end = world.log.local_start_offset
    assert delete_records(world.log, end, world.partition.high_watermark) == end
    world.note_log_start()
    world.tick(1)
    assert set(world.store.objects) == before
    os.unlink(os.path.join(world.log.directory, RAISED_START))
    world.kill_worker(0)  # as by a power cut: the log start goes back
    world.tick(2)
    world.check()
    delete_records(world.log, end, world.partition.high_watermark)
    world.start = end
    world.note_log_start()
    world.tick(2)
    assert not world.store.objects


def test_copies_wait_while_those_before_have_used_up_the_rate(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.answer()
    world.tiering.copied.set_rate(1)
    for _ in range(2):
        world.append(2)
        world.roll(0)
    first, second, _ = world.log.segments
    assert first.size > 120
    for _ in range(2):
        world.tick(2)
        assert world.tiering.end_offset(world.partition) == first.end_offset
    world.now_ms += first.size * 1000
    world.tick(2)
    assert world.tiering.end_offset(world.partition) == second.end_offset
    world.log.close(clean=False)


def test_pieces_wait_while_those_before_have_used_up_the_rate(tiered_world: World) -> None:
    world = tiered_world
    world.tiering.fetched.set_rate(1)

    def read(offset: int) -> object:
        end = world.partition.high_watermark
        return world.tiering.read(world.partition, offset, 300, end, True)

    assert read(0) is None
    world.answer()
    segment, _, _ = read(0)
    assert read(segment.end_offset) is None and not world.asked, "it is not asked for"
    world.now_ms += segment.size * 1000
    assert read(segment.end_offset) is None and world.asked
    world.answer()
    assert isinstance(read(segment.end_offset), tuple)
