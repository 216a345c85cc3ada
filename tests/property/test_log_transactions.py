"""A log with transactions against a plain list of what was written: killed, cut, compacted.

The reader is Kafka's consumer: of each answer it has the batches and the aborted transactions, and
nothing else.
"""

import glob
import itertools
import os
import shutil
import tempfile
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shmbroker.log.compaction.cleanable import find_cleanable
from shmbroker.log.compaction.compactor import compact
from shmbroker.log.config import LogConfig
from shmbroker.log.lookups import aborted_in
from shmbroker.log.markers import append_marker
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records, retain
from shmbroker.log.transaction_index import AbortedTransaction, parse_entries
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import CONTROL_BIT, TRANSACTIONAL_BIT
from shmbroker.records.end_marker import EndMarker, parse_marker
from shmbroker.replica.partition import Partition
from shmbroker.wire.error_codes import NONE
from tests.property.test_log_model import Slot
from tests.support.compaction_logs import last_batches, settings_of, sources_of, swap
from tests.support.examples import examples

pytestmark = pytest.mark.thorough

CONFIG = {
    "segment.bytes": "700",
    "index.interval.bytes": "150",
    "segment.index.bytes": "240",
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0",
}
PRODUCERS = (1, 2, 3)
STEP = st.tuples(
    st.sampled_from(["write", "write", "write", "end", "bump"]),
    st.sampled_from([-1, *PRODUCERS]),
    st.booleans(),
    st.integers(1, 3),
)


class Event(NamedTuple):
    """A batch, or a marker."""

    offset: int
    end_offset: int
    producer_id: int
    is_transactional: bool
    is_commit: bool | None
    """None: it is data."""


class Transactions(RuleBasedStateMachine):
    is_compacted = False

    @initialize()
    def start(self) -> None:
        self.root = tempfile.mkdtemp(prefix="log-transactions-")
        self.directory = os.path.join(self.root, "t-0")
        self.slot = Slot()
        policy = "compact" if self.is_compacted else "delete"
        self.config = LogConfig(CONFIG | {"cleanup.policy": policy})
        self.config.producer_snapshot_interval = 3
        self.ids = itertools.count(1)
        self.events: list[Event] = []
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.log_start = self.high_watermark = self.stable_seen = self.cleaned = 0
        self.now_ms = 1_000
        self.open(clean=True)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.root)

    def open(self, **how: object) -> None:
        self.log = PartitionLog.open(
            self.directory,
            self.config,
            file_ids=self.ids,
            position_slot=self.slot,
            log_start_offset=self.log_start,
            decided_below=self.high_watermark,
            cleaned_offset=self.cleaned,
            **how,
        )
        self.partition = Partition(b"k" * 20, "t", b"i" * 16, 0, self.log)
        self.partition.high_watermark = self.high_watermark

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def is_open(self, producer_id: int) -> bool:
        return producer_id in open_at(self.events)

    @rule(steps=st.lists(STEP, min_size=1, max_size=25))
    def work(self, steps: list[tuple[str, int, bool, int]]) -> None:
        for what, producer, flag, count in steps:
            if what == "write":
                self.write(producer, count, flag)
            elif producer > 0:
                self.end(producer, flag, what == "bump")

    def write(self, producer: int, count: int, plain: bool) -> None:
        is_transactional = producer > 0 and (self.is_open(producer) or not plain)
        offset = self.log.log_end_offset
        records = [(1_000, b"%d" % (offset + at), b"v" * 20, ()) for at in range(count)]
        epoch = self.epochs.get(producer, -1)
        sequence = self.sequences.get(producer, -1)
        batch = encode_batch(
            records,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        producers = self.log.producers
        if producer > 0:
            assert producers.check(producer, epoch, sequence, count - 1) == (NONE, -1, -1)
            assert producers.is_open(producer, epoch) == self.is_open(producer)
        assert self.log.append(memoryview(batch), count - 1, 1_000, 0, 0) == offset
        if producer > 0:
            self.sequences[producer] = sequence + count
            producers.update(producer, epoch, sequence, count - 1, offset, 1_000)
            if is_transactional:
                producers.begin(producer, offset)
        self.events.append(Event(offset, offset + count, producer, is_transactional, None))

    def end(self, producer: int, is_commit: bool, bumps: bool) -> None:
        if bumps:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        marker = EndMarker(producer, self.epochs[producer], 0, is_commit)
        assert self.log.producers.check_marker(marker, 2 if bumps else 1) == NONE
        offset = append_marker(self.log, marker, 1_000, 0, 0)
        self.events.append(Event(offset, offset + 1, producer, True, is_commit))

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        ahead = [
            event.end_offset for event in self.events if event.end_offset > self.high_watermark
        ]
        if ahead:
            self.high_watermark = ahead[int(share * (len(ahead) - 1))]
            self.partition.follow_high_watermark(self.high_watermark)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(share=st.floats(0, 1))
    def cut(self, share: float) -> None:
        """As a follower whose leader had other batches above the high watermark."""
        offset = self.high_watermark + int(share * (self.log.log_end_offset - self.high_watermark))
        truncate_to(self.log, offset)
        self.partition.on_truncated()
        gone = [event for event in self.events if event.end_offset > self.log.log_end_offset]
        self.events = [e for e in self.events if e.end_offset <= self.log.log_end_offset]
        for producer_id in {event.producer_id for event in gone} & {*PRODUCERS}:
            # Whoever wrote there begins anew.
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
            self.end(producer_id, False, False)

    # ── deaths ──────────────────────────────────────────────────────────────────────────────────

    @rule(lost=st.integers(0, 40), is_written_ahead=st.booleans())
    def kill(self, lost: int, is_written_ahead: bool) -> None:
        """The process dies: perhaps between an append and its entry of the index."""
        self.log.close(clean=False)
        index = self.log.aborted.path(self.log.active.base_offset)
        if self.log.aborted and os.path.exists(index) and not self.is_compacted:
            size = os.path.getsize(index)
            newest = max((snapshot_offset(p) for p in self.snapshots()), default=-1)
            kept = [e for e in parse_entries(read(index)) if e.last_offset < newest]
            os.truncate(index, max(size - lost, 34 * len(kept)))
            if is_written_ahead:
                with open(index, "ab") as file:
                    file.write(b"\0\0\7" * 4)
        self.open(trusted=self.slot.stored)

    @rule(snapshots_lost=st.integers(0, 3))
    def lose_power(self, snapshots_lost: int) -> None:
        recovery_point = self.log.recovery_point
        self.log.close(clean=False)
        for path in self.snapshots()[::-1][:snapshots_lost]:
            if snapshot_offset(path) > recovery_point:
                os.unlink(path)
        for path in glob.glob(self.directory + "/*.txnindex"):
            kept = [e for e in parse_entries(read(path)) if e.last_offset < recovery_point]
            os.truncate(path, 34 * len(kept))
        self.open(clean=False, recovery_point=recovery_point)

    def snapshots(self) -> list[str]:
        return sorted(glob.glob(self.directory + "/*.snapshot"))

    @rule()
    def stop_and_start(self) -> None:
        self.log.close(clean=True)
        self.open(clean=True, recovery_point=self.log.log_end_offset)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(number=st.integers(0, 3), damage=st.sampled_from([None, 0, 17, 51]))
    def damage_index(self, number: int, damage: int | None) -> None:
        """Of a closed segment, while nobody looks: it is noticed when it is read. A producer id may
        be any number, so the damage is in versions and offsets."""
        paths = self.log.aborted.paths
        paths = [
            path for path in paths if path != self.log.aborted.path(self.log.active.base_offset)
        ]
        if number >= len(paths) or self.is_compacted:
            return
        self.stop_and_start()
        if damage is None:
            os.unlink(paths[number])
        elif os.path.getsize(paths[number]) > damage:
            with open(paths[number], "r+b") as file:
                file.seek(damage)
                file.write(b"\xff")

    # ── retention ───────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: not self.is_compacted)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(share * self.high_watermark)
        self.log_start = delete_records(self.log, offset, self.high_watermark)
        retain(self.log, self.high_watermark, 1_000)
        self.log.retired.clear()
        for path in glob.glob(self.directory + "/*.deleted"):
            os.unlink(path)

    @precondition(lambda self: self.is_compacted)
    @rule(wait_ms=st.sampled_from([1, 60, 200]))
    def compact(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        stable = self.partition.last_stable_offset
        found = find_cleanable(self.log, 0, stable, self.now_ms)
        if found is None:
            return
        count = len(found.segments)
        report = compact(
            self.log.directory,
            sources_of(self.log)[:count],
            0,
            last_batches(self.log),
            settings_of(self.log, now_ms=self.now_ms),
        )
        self.cleaned = max(self.cleaned, report.end_offset)
        self.log.cleaned_offset = self.cleaned
        swap(self.log, report)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    @invariant()
    def offsets_are_in_order(self) -> None:
        if not hasattr(self, "log"):
            return
        stable = self.partition.last_stable_offset
        assert self.log.log_start_offset <= stable <= self.high_watermark
        assert self.high_watermark <= self.log.log_end_offset
        assert stable >= self.stable_seen, "it went back"
        self.stable_seen = stable
        undecided = [
            first
            for first, end in transactions(self.events)
            if end is None or end >= self.high_watermark
        ]
        expected = min([self.high_watermark, *undecided])
        assert stable == max(expected, self.log.log_start_offset)

    @invariant()
    def all_is_read(self) -> None:
        if hasattr(self, "log"):
            self.read(0.0, 400)

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 600, 10_000]))
    def read(self, share: float, max_bytes: int) -> None:
        stable = self.partition.last_stable_offset
        start = self.log.log_start_offset
        start += int(share * (stable - start))
        found = consume(self.log, start, stable, max_bytes)
        aborted = set()
        for first, end in transactions(self.events):
            ending = next((e for e in self.events if e.offset == end), None)
            if ending is not None and not ending.is_commit:
                aborted |= {
                    event.offset
                    for event in self.events
                    if event.producer_id == ending.producer_id
                    and event.is_transactional
                    and first <= event.offset < ending.offset
                }
        expected = [
            offset
            for event in self.events
            if event.is_commit is None and event.offset not in aborted
            for offset in range(event.offset, event.end_offset)
            if start <= offset < stable
        ]
        assert found == expected

    @precondition(lambda self: not self.is_compacted)
    @rule()
    def compare_indexes(self) -> None:
        first = self.log.segments[0].base_offset
        expected = [entry for entry in entries(self.events) if entry.last_offset >= first]
        self.log.aborted.check()
        found = []
        for segment in self.log.segments:
            of_segment = self.log.aborted.stored(segment.base_offset)
            assert all(segment.base_offset <= entry.last_offset for entry in of_segment)
            found += of_segment
        # What began before the first segment may not be known any more.
        assert [entry for entry in found if entry.first_offset >= first] == [
            entry for entry in expected if entry.first_offset >= first
        ]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def snapshot_offset(path: str) -> int:
    return int(os.path.basename(path)[:20])


def open_at(events: list[Event]) -> dict[int, int]:
    """First offsets of what is open behind these, by producer id."""
    begun: dict[int, int] = {}
    for event in events:
        if event.is_commit is not None:
            begun.pop(event.producer_id, None)
        elif event.is_transactional:
            begun.setdefault(event.producer_id, event.offset)
    return begun


def transactions(events: list[Event]) -> list[tuple[int, int | None]]:
    """(first offset, offset of the marker or None) of each."""
    found: list[tuple[int, int | None]] = []
    begun: dict[int, int] = {}
    for event in events:
        if event.is_commit is None and event.is_transactional:
            begun.setdefault(event.producer_id, event.offset)
        elif event.is_commit is not None and event.producer_id in begun:
            found.append((begun.pop(event.producer_id), event.offset))
    return found + [(first, None) for first in begun.values()]


def entries(events: list[Event]) -> list[AbortedTransaction]:
    """What the transaction indexes must hold."""
    found = []
    for number, event in enumerate(events):
        first = open_at(events[:number]).get(event.producer_id)
        if event.is_commit is False and first is not None:
            others = open_at(events[: number + 1])
            stable = min(others.values(), default=event.offset + 1)
            found.append(AbortedTransaction(event.producer_id, first, event.offset, stable))
    return found


def consume(log: PartitionLog, start: int, end: int, max_bytes: int) -> list[int]:
    """Offsets that a read_committed consumer gets to see, as Kafka's goes about it."""
    offsets: list[int] = []
    offset = start
    while offset < end:
        found = log.read(offset, max_bytes, end)
        assert found is not None
        segment, position, length = found
        if not length:
            break
        told = aborted_in(log, offset, segment, position + length, end)
        told.sort(key=lambda one: one.first_offset)
        data = segment.read_bytes(position, length)
        skipped: set[int] = set()
        last = offset
        for at, header in iterate_batches(data):
            last = header[0] + header[6]
            while told and told[0].first_offset <= last:
                skipped.add(told.pop(0).producer_id)
            if header[5] & CONTROL_BIT:
                marker = parse_marker(data, at)
                if marker is not None and not marker.is_commit:
                    skipped.discard(header[9])
            elif not (header[5] & TRANSACTIONAL_BIT and header[9] in skipped):
                offsets += [row[0] for row in iterate_records(data, at) if row[0] >= offset]
        is_whole = not log.config.is_compacted
        assert not told or not is_whole, "one is told that does not reach into the answer"
        offset = last + 1
    return [found for found in offsets if found < end]


class CompactedTransactions(Transactions):
    is_compacted = True


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=examples(60),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCompactedTransactions = CompactedTransactions.TestCase
TestCompactedTransactions.settings = TestTransactions.settings
