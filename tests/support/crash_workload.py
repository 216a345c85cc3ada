"""A node's life, step by step from a seed, and what must be true of it after a crash anywhere.

`Life` drives the real storage code (`LogDirectory`, `PartitionStore`, `Compaction`, `MetadataLog`)
over a `CrashDisk`: topics made, deleted and made again, appends, rolls, flushes whose fdatasync
comes later, checkpoints, retention, DeleteRecords, truncation, compaction, snapshots, kills, clean
stops. Beside it a plain model notes what was promised. After some changes of the disk, drawn by
the seed, a crash image is laid down, opened by the real code, and compared with the model:

 A  the log ends where the durable part ended or behind, and begins where it began or before
 B  every batch served is one that was appended there, and none is missing in between
    (compacted: the last record of each key is there)
 C  what is deleted for good does not come back
 D  offset and time index lead to what a walk finds
 E  the checkpointed recovery point is not ahead of the log; epochs are those of the batches
 F  a producer whose batches are in the log goes on where it was
 T  the transactions that are open, and those that were aborted, are what the batches say
 G  the metadata log holds all that was committed, and its epoch is new
"""

import itertools
import os
import random
import shutil
from collections.abc import Callable
from typing import Any

from shmbroker import clock
from shmbroker.broker.compaction import Compaction
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import RECOVERY_POINT, read_offsets, sync_directory
from shmbroker.log.compaction import compactor
from shmbroker.log.compaction.chunks import Source
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.markers import append_marker
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.shm.positions import PositionTable, table_bytes
from shmbroker.tools.log_verify import verify
from tests.support.crash_checks import check_log
from tests.support.crash_disk import CrashDisk, lay_down
from tests.support.crash_model import PRODUCERS, TOPICS, TRANSACTIONAL, Topic
from tests.support.leadership import leadership

CLUSTER = "cluster"
BASE_MS = 1_700_000_000_000
RETENTION_CHECK_MS = 1000


class Life:
    """One seed. `run` raises AssertionError with the place of the crash when something is wrong."""

    def __init__(self, root: str, seed: int, steps: int, crash_rate: float) -> None:
        self.root = root
        self.seed = seed
        self.steps = steps
        self.crash_rate = crash_rate
        self.rng = random.Random(f"life {seed}")
        self.crash_rng = random.Random(f"crash {seed}")
        self.disk = CrashDisk(os.path.join(root, "data"), self.maybe_crash)
        self.crashes = 0
        self.now_ms = BASE_MS
        self.jobs: list[tuple[list[int], Any]] = []
        self.topics: dict[str, Topic] = {}
        self.step = "boot"
        self.file_ids = itertools.count(1)
        self.metadata_committed = 0
        self.metadata_epoch = 0
        self.positions = self._new_positions()
        self.is_up = False

    @staticmethod
    def _new_positions() -> PositionTable:
        return PositionTable(memoryview(bytearray(table_bytes(64))), 64)

    # ── the node ────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """All steps; how many crashes were looked at."""
        os.makedirs(self.disk.root)
        with self.disk.recording():
            os.mkdir(self.node)
            sync_directory(self.disk.root)  # As the supervisor does it.
            self.boot(is_successor=False)
            while self.steps:
                self.steps -= 1
                self.do_step()
            if self.is_up:
                self.stop_clean()
        return self.crashes

    @property
    def node(self) -> str:
        return os.path.join(self.disk.root, "node-1")

    def _steady_ms(self) -> int:
        return self.now_ms

    def boot(self, *, is_successor: bool) -> None:
        self.step = "boot"
        self.metadata, self.metadata_epoch = lead(self.node)
        self.metadata_committed = flushed_end(self.metadata)
        if not is_successor:
            self.positions = self._new_positions()
        self.store = make_store(
            self.node,
            self.positions,
            self._steady_ms,
            is_successor=is_successor,
            submit=self._submit,
        )
        self.rounds = Upkeep(self.store, RETENTION_CHECK_MS)
        settings: Any = {
            "log.cleaner.enable": True,
            "log.cleaner.backoff.ms": 0,
            "log.cleaner.dedupe.buffer.size": 1 << 20,
        }
        self.compaction = Compaction(
            self.store,
            settings,
            self._compact,
            lambda: self.now_ms,
            lambda _name: None,
        )
        for topic in self.topics.values():
            self._open(topic)
        self.store.take_stock({topic.topic_id: topic for topic in self.topics.values()})
        self.is_up = True

    def _open(self, topic: Topic) -> None:
        partition = self.store.open(topic, 0, topic.config, self.now_ms)
        partition.on_leadership(1, leadership(topic.epoch))
        start = partition.log.log_start_offset
        assert start >= topic.start_told, f"C: {topic.name} begins at {start} after a death"
        # Opening may cut off what was never promised.
        end = partition.log.log_end_offset
        for base in [base for base in topic.batches if base >= end]:
            del topic.batches[base]
        topic.end = end
        topic.sequences = {
            producer_id: entry.next_sequence
            for producer_id, entry in partition.log.producers.producers.items()
        }
        self._note_durable(topic, partition)

    def _submit(self, fds: list[int], on_done: Any) -> None:
        self.jobs.append((fds, on_done))

    def _compact(self, body: dict[str, Any], _on_answer: object) -> bool:
        settings = compactor.Settings(
            body["now_ms"],
            body["delete_retention_ms"],
            body["segment_bytes"],
            body["segment_index_bytes"],
            body["index_interval_bytes"],
            1 << 16,
        )
        report = compactor.compact(
            body["directory"],
            [Source(s["base_offset"], s["size"], s["end_offset"]) for s in body["segments"]],
            body["dirty_offset"],
            {
                p["producer_id"]: compactor.LastRecord(p["last_offset"], p["epoch"])
                for p in body["producers"]
            },
            settings,
        )
        self.answer = {
            "error_code": 0,
            "end_offset": report.end_offset,
            "groups": [
                {"first": group.first, "count": group.length, "size": group.size}
                for group in report.groups
            ],
        }
        return True

    # ── steps ───────────────────────────────────────────────────────────────────────────────────

    def do_step(self) -> None:
        """One of them, drawn."""
        steps = {
            self.append: 40,
            self.begin_flush: 6,
            self.finish_flush: 12,
            self.upkeep: 10,
            self.checkpoint: 3,
            self.compact: 4,
            self.delete_records: 3,
            self.truncate: 2,
            self.decide: 3,
            self.recreate: 2,
            self.stop_clean: 1,
            self.kill: 1,
            self.kill_worker: 1,
        }
        (step,) = self.rng.choices(list(steps), list(steps.values()))
        self.step = step.__name__
        self.now_ms += self.rng.randrange(300)
        step()
        if not self.is_up:
            self.boot(is_successor=False)

    def _some_topic(self) -> Topic:
        name = self.rng.choice(list(TOPICS))
        if name not in self.topics:
            topic = Topic(name, self.rng)
            self.topics[name] = topic
            self._open(topic)
        return self.topics[name]

    def _partition(self, topic: Topic) -> Any:
        return self.store.partitions[partition_key(topic.topic_id, 0)]

    def append(self) -> None:
        topic = self._some_topic()
        partition = self._partition(topic)
        log = partition.log
        if self.rng.random() < 0.03:
            topic.epoch += 1
            partition.on_leadership(1, leadership(topic.epoch))
        for _ in range(self.rng.randrange(1, 5)):
            if self.rng.random() < 0.4 and not topic.is_compacted:
                self._append_transactional(topic, partition)
                continue
            timestamp = self.now_ms - self.rng.randrange(1000)
            count = self.rng.randrange(1, 4)
            size = self.rng.choice((10, 100, 600))
            records = [
                (timestamp + n, b"%d" % self.rng.randrange(8), self.rng.randbytes(size), ())
                for n in range(count)
            ]
            producer_id = self.rng.randrange(-1, PRODUCERS)
            sequence = topic.sequences.get(producer_id, 0) if producer_id >= 0 else -1
            batch = encode_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence,
            )
            base = topic.end
            # From here on a crash may leave it there.
            topic.batches[base] = base + count, batch[16:], topic.epoch
            topic.end += count
            if producer_id >= 0:
                assert partition.producers.check(producer_id, 0, sequence, count - 1)[0] == 0
            found = log.append(
                memoryview(batch), count - 1, timestamp + count - 1, topic.epoch, self.now_ms
            )
            assert found == base
            if producer_id >= 0:
                topic.sequences[producer_id] = sequence + count
                partition.producers.update(
                    producer_id, 0, sequence, count - 1, base, timestamp + count - 1
                )
            partition.advance_high_watermark()

    def _append_transactional(self, topic: Topic, partition: Any) -> None:
        """A batch of a transaction, or the marker that ends it."""
        log = partition.log
        producer_id, base = self.rng.choice(TRANSACTIONAL), topic.end
        if producer_id in log.producers.open and self.rng.random() < 0.5:
            marker = EndMarker(producer_id, 0, 0, self.rng.random() < 0.4)
            batch = encode_marker(marker, self.now_ms)
            topic.batches[base] = base + 1, batch[16:], topic.epoch
            topic.end += 1
            append_marker(log, marker, self.now_ms, topic.epoch, self.now_ms)
        else:
            sequence = topic.sequences.get(producer_id, 0)
            batch = encode_batch(
                [(self.now_ms, b"k", self.rng.randbytes(100), ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            topic.batches[base] = base + 1, batch[16:], topic.epoch
            topic.end += 1
            log.append(memoryview(batch), 0, self.now_ms, topic.epoch, self.now_ms)
            topic.sequences[producer_id] = sequence + 1
            log.producers.update(producer_id, 0, sequence, 0, base, self.now_ms)
            log.producers.begin(producer_id, base)
        partition.advance_high_watermark()

    def begin_flush(self) -> None:
        topic = self._some_topic()
        self.store.flush([self._partition(topic).log])

    def finish_flush(self) -> None:
        if not self.jobs:
            return
        fds, on_done = self.jobs.pop(0)
        for fd in fds:
            os.fdatasync(fd)
            os.close(fd)
        on_done(None)
        self._note_all_durable()

    def _note_durable(self, topic: Topic, partition: Any) -> None:
        topic.durable_end = partition.log.recovery_point
        partition.advance_high_watermark()

    def _note_all_durable(self) -> None:
        for topic in self.topics.values():
            self._note_durable(topic, self._partition(topic))

    def upkeep(self) -> None:
        self.now_ms += self.rng.choice((0, 600, 61_000))
        for topic in self.topics.values():
            # Retention goes no further than this.
            topic.start_most = max(topic.start_most, self._partition(topic).high_watermark)
        self.rounds.run(self.now_ms)

    def checkpoint(self) -> None:
        logs = {name: self._partition(topic).log for name, topic in self.topics.items()}
        # What is deleted behind the durable part is checkpointed when that has followed.
        starts = {name: min(log.log_start_offset, log.recovery_point) for name, log in logs.items()}
        self.store.checkpoint()
        for name, start in starts.items():
            self.topics[name].start_least = start

    def compact(self) -> None:
        busy = self.compaction.current
        self.compaction.run(self.now_ms)
        if busy is None and self.compaction.current is not None:
            self.compaction.on_answer(self.answer)

    def delete_records(self) -> None:
        topic = self._some_topic()
        partition = self._partition(topic)
        if topic.is_compacted:
            return
        low, high = partition.log.log_start_offset, partition.high_watermark
        offset = self.rng.randrange(low, high + 1)
        topic.start_most = max(topic.start_most, offset)
        topic.start_told = max(topic.start_told, offset)
        self.store.delete_records(partition, offset)
        if self.rng.random() < 0.5:
            self.upkeep()

    def truncate(self) -> None:
        topic = self._some_topic()
        partition = self._partition(topic)
        log = partition.log
        if topic.is_compacted or not topic.batches:
            return
        bases = [base for base in topic.batches if base >= log.log_start_offset]
        if not bases:
            return
        offset = self.rng.choice(bases[-6:])
        self.jobs_now()
        topic.before = dict(topic.batches)
        topic.durable_end = min(topic.durable_end, offset)
        topic.start_told = min(topic.start_told, offset)
        for base in [base for base in topic.batches if base >= offset]:
            del topic.batches[base]
        truncate_to(log, offset)
        topic.before = None
        topic.end = log.log_end_offset
        assert topic.end == offset
        partition.high_watermark = min(partition.high_watermark, offset)
        topic.epoch += 1
        partition.on_leadership(1, leadership(topic.epoch))
        topic.sequences = {
            producer_id: entry.next_sequence
            for producer_id, entry in log.producers.producers.items()
        }

    def jobs_now(self) -> None:
        while self.jobs:
            self.finish_flush()

    def decide(self) -> None:
        record = ("FeatureLevelRecord", 0, {"name": "f", "feature_level": self.rng.randrange(100)})
        self.metadata.append(self.metadata_epoch, [record], self.now_ms)
        self.metadata.flush()
        self.metadata_committed = flushed_end(self.metadata)

    def recreate(self) -> None:
        """Delete a topic; most often there is soon one of the same name."""
        topic = self._some_topic()
        self.jobs_now()
        if self.compaction.current is not None:
            return
        del self.topics[topic.name]
        self.store.delete(self._partition(topic))
        if self.rng.random() < 0.7:
            again = Topic(topic.name, self.rng)
            self.topics[topic.name] = again
            self._open(again)

    def stop_clean(self) -> None:
        self.jobs_now()
        self.store.close(1, clock.monotonic)
        self.metadata.close()
        self.is_up = False
        for topic in self.topics.values():
            log = self._partition(topic).log
            topic.durable_end = topic.end
            topic.start_least = log.log_start_offset

    def kill(self) -> None:
        """All processes; what they have written stays."""
        self.disk.capture_maps()
        self._let_go()
        self.is_up = False

    def kill_worker(self) -> None:
        """The I/O worker under a living supervisor: its successor trusts the positions."""
        self.disk.capture_maps()
        self._let_go()
        self.boot(is_successor=True)

    def _let_go(self) -> None:
        for fds, _ in self.jobs:
            for fd in fds:
                os.close(fd)
        self.jobs.clear()
        with self.disk.paused():
            for partition in self.store.partitions.values():
                partition.log.close(clean=False)
            self.metadata._log.close(clean=False)
            self.store.log_directory.close()

    # ── crashes ─────────────────────────────────────────────────────────────────────────────────

    def maybe_crash(self) -> None:
        if self.crash_rng.random() >= self.crash_rate:
            return
        self.crashes += 1
        outcome, image = self.disk.crash_image(self.crash_rng)
        where = os.path.join(self.root, "after")
        try:
            with self.disk.paused():
                lay_down(image, where)
                self.check(where)
        except (AssertionError, StorageFault) as fault:
            raise AssertionError(
                f"seed {self.seed}, crash {self.crashes} ({outcome}) at change "
                f"{self.disk.count} in {self.step}, left in {where}: {fault}"
            ) from fault
        shutil.rmtree(where)

    def check(self, where: str) -> None:
        """Open what a crash has left, and compare it with what was promised."""
        node = os.path.join(where, "node-1")
        os.makedirs(node, exist_ok=True)
        metadata, epoch = lead(node)
        try:
            assert flushed_end(metadata) > self.metadata_committed, "G: committed records lost"
            assert epoch > self.metadata_epoch, "G: an epoch comes twice"
        finally:
            metadata._log.close(clean=False)
        store = make_store(node, self._new_positions(), self._steady_ms, is_successor=False)
        try:
            for topic in self.topics.values():
                partition = store.open(topic, 0, topic.config, self.now_ms)
                checkpointed = read_offsets(os.path.join(node, RECOVERY_POINT))
                check_log(topic, partition.log, checkpointed.get((topic.name, 0), 0))
            store.take_stock({topic.topic_id: topic for topic in self.topics.values()})
            ends = {
                partition.topic: partition.log.log_end_offset
                for partition in store.partitions.values()
            }
            if self.crashes % 4:
                for partition in store.partitions.values():
                    partition.log.close(clean=False)
                return
            store.close(1, clock.monotonic)
        finally:
            store.log_directory.close()
        for verdict in verify(node):
            if verdict.path.endswith("-stray"):
                continue  # left as it was found
            assert verdict.fault is None, verdict.fault
        store = make_store(node, self._new_positions(), self._steady_ms, is_successor=False)
        try:
            for topic in self.topics.values():
                log = store.open(topic, 0, topic.config, self.now_ms).log
                assert log.log_end_offset == ends[topic.name], "a clean start finds another end"
                log.close(clean=False)
        finally:
            store.log_directory.close()


def lead(node: str) -> tuple[MetadataLog, int]:
    """Recover the metadata log and begin a new epoch, as the only voter does."""
    metadata = MetadataLog.open(node, lambda: BASE_MS)
    state = QuorumState(metadata.directory)
    epoch = max(state.read()[0], metadata.last_epoch) + 1
    state.write(epoch, 1, -1)
    metadata.append_leader_change(epoch, 1, [1], [1])
    metadata.flush()
    return metadata, epoch


def flushed_end(metadata: MetadataLog) -> int:
    """One past the last durable record."""
    return metadata._log.recovery_point


def make_store(
    node: str,
    positions: PositionTable,
    steady_ms: Callable[[], int],
    *,
    is_successor: bool,
    submit: Any = None,
) -> Any:
    return PartitionStore(
        LogDirectory.open(node, 1, CLUSTER),
        positions,
        0,
        is_successor,
        submit,
        steady_ms,
    )
