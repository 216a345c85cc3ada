"""A tiered log, a store in memory that dies, and a plain list of what the log must hold."""

import itertools
import os
import shutil
from collections import deque
from types import SimpleNamespace

from shmbroker.broker.tiering.tiering import Tiering
from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.lookups import aborted_in
from shmbroker.log.markers import append_marker
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records, raise_start, retain
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.end_marker import EndMarker
from shmbroker.replica.partition import Partition
from shmbroker.tier import transfer
from shmbroker.tier.manifest import PartitionName, partition_prefix, stem_of
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.states import read_state
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
