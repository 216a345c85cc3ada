"""One partition's log against a plain list of batches: appended, rolled, cut, closed, killed.

After a kill the directory is what the page cache would hold, with garbage behind the end.
"""

import itertools
import os
import random
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shmbroker.log import segment_space
from shmbroker.log.config import LogConfig
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp, segments_up_to
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retiring import advance_log_start, delete_segments_before
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import check_batch, encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import STAMP
from shmbroker.wire.error_codes import NONE
from tests.support.examples import examples

CONFIG = {"segment.bytes": "5000", "index.interval.bytes": "300", "segment.index.bytes": "240"}


class Slot:
    def __init__(self):
        self.stored = None

    def store(self, base, position, end):
        self.stored = base, position, end


class ModelBatch:
    def __init__(self, data, base_offset, records, epoch, producer):
        stamped = bytearray(data)
        STAMP.pack_into(stamped, 0, base_offset, len(data) - 12, epoch)
        self.data = bytes(stamped)
        self.base_offset = base_offset
        self.end_offset = base_offset + len(records)
        self.records = records
        self.epoch = epoch
        self.producer = producer


class LogMachine(RuleBasedStateMachine):
    @initialize(write_bytes_min=st.sampled_from([600, 32 << 10]))
    def start(self, write_bytes_min):
        self.write_bytes_min = segment_space.WRITE_BYTES_MIN
        segment_space.WRITE_BYTES_MIN = write_bytes_min
        self.root = tempfile.mkdtemp(prefix="log-model-")
        self.ids = itertools.count(1)
        self.slot = Slot()
        self.config = LogConfig(CONFIG)
        self.config.producer_snapshot_interval = 4
        self.batches = []
        self.log_start = 0
        self.epoch = 0
        self.flushed = 0
        self.sequences = {}
        self.is_history_whole = True
        self.is_window_walked = True
        self.log = self.open()

    def open(self, **how):
        return PartitionLog.open(
            os.path.join(self.root, "t-0"),
            self.config,
            file_ids=self.ids,
            position_slot=self.slot,
            log_start_offset=self.log_start,
            **how,
        )

    def teardown(self):
        if hasattr(self, "log"):
            segment_space.WRITE_BYTES_MIN = self.write_bytes_min
            self.log.close(clean=False)
            shutil.rmtree(self.root)

    @property
    def end(self):
        return self.batches[-1].end_offset if self.batches else self.base

    base = 0

    def readable(self):
        return [batch for batch in self.batches if batch.end_offset > self.log_start]

    # --- what a writer does ---

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([0, 10, 100, 700, 2500]),
        times=st.lists(st.integers(0, 60), min_size=4, max_size=4),
        codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
        producer_id=st.sampled_from([-1, 7, 8]),
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, 3]),
        append_time=st.booleans(),
    )
    def append(self, count, size, times, codec, producer_id, epoch_step, append_time):
        self.epoch += epoch_step
        value = random.Random(size + count).randbytes(size)
        records = [(times[number], b"k", value, [(b"h", None)]) for number in range(count)]
        sequence = self.sequences.get(producer_id, 0)
        producer = (producer_id, 0, sequence) if producer_id >= 0 else (-1, -1, -1)
        data = encode_batch(
            records,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            log_append_time=max(times) if append_time else None,
        )
        error, header = check_batch(memoryview(data), 0, len(data))
        assert error == NONE
        if producer_id >= 0:
            assert self.log.producers.check(*producer, count - 1) == (NONE, -1, -1)
        base_offset = self.log.append(memoryview(data), header[6], header[8], self.epoch, 0)
        assert base_offset == self.end
        if producer_id >= 0:
            self.log.producers.update(*producer, count - 1, base_offset, header[8])
            self.sequences[producer_id] = sequence + count
        if append_time:
            records = [(max(times), *record[1:]) for record in records]
        self.batches.append(ModelBatch(data, base_offset, records, self.epoch, producer))

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def populate(self):
        self.log.populate_step(0)

    @rule()
    def park(self):
        self.log.park()

    @rule()
    def flush(self):
        self.log.flush()
        self.flushed = self.end
        assert self.log.recovery_point == self.end

    # --- cuts ---

    @rule(data=st.data())
    def truncate(self, data):
        offset = data.draw(st.integers(self.log_start, self.end + 2))
        changed = truncate_to(self.log, offset)
        assert changed == (offset < self.end)
        while self.batches and self.batches[-1].end_offset > offset:
            self.base = self.batches.pop().base_offset
        if self.log_start > self.end:
            self.log_start = self.end
        self.flushed = min(self.flushed, self.end)
        self.is_window_walked |= changed
        self.take_sequences()

    @rule(data=st.data())
    def delete_records(self, data):
        self.log_start = data.draw(st.integers(self.log_start, self.end))
        advance_log_start(self.log, self.log_start)

    @rule()
    def delete_segments(self):
        before = len(self.log.segments)
        count = delete_segments_before(self.log, self.log_start)
        assert len(self.log.segments) == before - count
        first = self.log.segments[0].base_offset
        assert first <= self.log_start or not self.readable()
        if count:
            self.is_history_whole = False

    # --- ends and beginnings ---

    @rule()
    def reopen_clean(self):
        self.log.close(clean=True)
        self.log = self.open(clean=True)
        self.flushed = self.end
        self.is_window_walked = False
        self.take_sequences()

    @rule(garbage=st.binary(max_size=200), old=st.booleans())
    def reopen_after_kill(self, garbage, old):
        """The process dies while it copies the next batch; its supervisor lives."""
        self.kill(garbage, old)
        self.log = self.open(trusted=self.slot.stored, recovery_point=self.flushed)
        self.take_sequences()

    @rule(garbage=st.binary(max_size=200), old=st.booleans())
    def reopen_after_kill_of_all(self, garbage, old):
        self.kill(garbage, old)
        self.log = self.open(clean=False, recovery_point=self.flushed)
        self.take_sequences()

    def kill(self, garbage, old):
        self.is_window_walked = True
        segment = self.log.active
        for other in self.log.segments:
            other.close()
        if old and self.batches:
            # What stood there before a truncation: good by its CRC, of other offsets.
            garbage = self.batches[0].data[:16] + self.batches[-1].data[16:]
            if int.from_bytes(garbage[:8], "big") == self.end:
                garbage = b""
        if os.path.exists(segment.path):
            with open(segment.path, "r+b") as file:
                file.seek(segment.size)
                file.write(garbage)

    def take_sequences(self):
        """Every producer's last batch must be known; of a killed one all that a retry may name."""
        self.sequences = {}
        for batch in self.batches:
            if batch.producer[0] >= 0:
                self.sequences[batch.producer[0]] = batch.producer[2] + len(batch.records)
        known = self.log.producers.producers
        for producer_id, sequence in self.sequences.items():
            mine = [batch for batch in self.batches if batch.producer[0] == producer_id]
            is_there = mine[-1].base_offset >= self.log_start and self.is_history_whole
            if producer_id not in known and not is_there:
                continue
            entry = known[producer_id]
            assert entry.next_sequence == sequence
            kept = [(found[0], found[2]) for found in entry.batches]
            expected = [(batch.producer[2], batch.base_offset) for batch in mine]
            assert kept == expected[-len(kept) :]
            if self.is_window_walked and self.log_start == 0 and self.is_history_whole:
                assert kept == expected[-5:]
        for producer_id in list(known):
            if producer_id not in self.sequences:
                # Its batches are gone from the model as well: it starts anew.
                del known[producer_id]

    # --- what readers see ---

    @invariant()
    def ends_agree(self):
        if hasattr(self, "log"):
            assert self.log.log_end_offset == self.end
            assert self.log.log_start_offset == self.log_start
            assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)
            assert self.slot.stored is None or self.slot.stored[2] == self.end

    @rule()
    def read_all(self):
        offset, seen = self.log_start, []
        while offset < self.end:
            segment, position, length = self.log.read(offset, 3000, self.end)
            assert length > 0
            data = segment.read_bytes(position, length)
            for at, header in iterate_batches(data):
                seen.append(data[at : at + header[1] + 12])
                offset = header[0] + header[6] + 1
        assert seen == [batch.data for batch in self.readable()]

    @rule(data=st.data())
    def read_somewhere(self, data):
        offset = data.draw(st.integers(max(self.log_start - 1, 0), self.end + 1))
        ends = [batch.end_offset for batch in self.readable()] or [self.end]
        end = data.draw(st.sampled_from(ends))
        max_bytes = data.draw(st.sampled_from([0, 1, 100, 1000, 10_000]))
        min_one = data.draw(st.booleans())
        result = self.log.read(offset, max_bytes, end, min_one)
        if not self.log_start <= offset <= self.end:
            assert result is None
            return
        segment, position, length = result
        rest = [
            batch for batch in self.batches if batch.end_offset > offset and batch.end_offset <= end
        ]
        content = segment.read_bytes(position, length) if length else b""
        sizes = list(itertools.accumulate(len(batch.data) for batch in rest))
        assert length in [0, *sizes]
        assert content == b"".join(batch.data for batch in rest)[:length]
        assert length <= max_bytes or (min_one and length == sizes[0])
        if rest and (min_one or len(rest[0].data) <= max_bytes):
            assert length
        if length and length < sizes[-1]:
            following = rest[sizes.index(length) + 1]
            is_next_segment = following.base_offset in [s.base_offset for s in self.log.segments]
            assert is_next_segment or length + len(following.data) > max_bytes

    @rule(timestamp=st.integers(-1, 61))
    def look_up_timestamp(self, timestamp):
        records = [
            (record[0], batch.base_offset + number)
            for batch in self.readable()
            for number, record in enumerate(batch.records)
            if batch.base_offset + number >= self.log_start
        ]
        expected = next((pair for pair in records if pair[0] >= timestamp), None)
        assert offset_for_timestamp(self.log, timestamp) == expected

    @precondition(lambda self: self.log_start == 0 and self.is_history_whole)
    @rule()
    def look_up_max_timestamp(self):
        records = [
            (record[0], -(batch.base_offset + number))
            for batch in self.batches
            for number, record in enumerate(batch.records)
        ]
        timestamp, offset = max(records, default=(-1, 1))
        assert max_timestamp(self.log) == (timestamp, -offset)

    @precondition(lambda self: self.readable())
    @rule(data=st.data())
    def look_up_epoch(self, data):
        starts = {}
        for batch in self.batches:
            starts.setdefault(batch.epoch, batch.base_offset)
        in_force = max(
            (epoch for epoch, start in starts.items() if start <= self.log_start), default=None
        )
        starts = {
            epoch: max(start, self.log_start)
            for epoch, start in starts.items()
            if in_force is None or epoch >= in_force
        }
        asked = data.draw(st.integers(0, max(starts) + 1))
        answer = self.log.end_offset_for_epoch(asked)
        if asked > max(starts):
            assert answer == (-1, -1)
            return
        higher = [epoch for epoch in starts if epoch > asked]
        end = starts[min(higher)] if higher else self.end
        found = max((epoch for epoch in starts if epoch <= asked), default=asked)
        assert answer == (found, end)

    @rule(data=st.data())
    def list_segments(self, data):
        ends = [batch.end_offset for batch in self.batches] or [self.end]
        end = data.draw(st.sampled_from(ends))
        seen = []
        for name, inode, base, stop, valid_bytes, newest in segments_up_to(self.log, end):
            path = os.path.join(self.root, "t-0", name)
            assert os.stat(path).st_ino == inode
            with open(path, "rb") as file:
                content = file.read(valid_bytes)
            headers = list(iterate_batches(content))
            assert headers[0][1][0] == base
            last = headers[-1][1]
            assert last[0] + last[6] + 1 == stop
            assert max(header[8] for _, header in headers) <= newest
            seen += [content[at : at + header[1] + 12] for at, header in headers]
        first = self.log.segments[0].base_offset
        assert seen == [batch.data for batch in self.batches if first <= batch.base_offset < end]


LogMachine.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLogModel = LogMachine.TestCase


def test_records_of_a_stored_batch_read_back(tmp_path):
    log = PartitionLog.open(str(tmp_path / "t-0"), LogConfig(), file_ids=itertools.count())
    batch = encode_batch([(5, b"k", b"v", [(b"h", b"x")]), (6, None, None, [])])
    log.append(memoryview(batch), 1, 6, 0, 0)
    segment, position, length = log.read(0, 1 << 20, 2)
    assert list(iterate_records(segment.read_bytes(position, length))) == [
        (0, 5, b"k", b"v", [(b"h", b"x")]),
        (1, 6, None, None, []),
    ]
    log.close(clean=True)
