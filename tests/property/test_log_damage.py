"""Any damage to any file: a log always opens, and serves what was stored or says that it can't."""

import itertools
import os
import shutil
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.log.config import LogConfig
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch, iterate_batches
from tests.support.examples import examples

CONFIG = LogConfig({"segment.bytes": "8000", "index.interval.bytes": "500"})
BATCHES = [
    encode_batch(
        [(1000 + number * 7 % 50, b"k", bytes([number]) * 150, [])],
        producer_id=number % 2,
        producer_epoch=0,
        base_sequence=number // 2,
    )
    for number in range(100)
]


def make_log(root):
    log = PartitionLog.open(os.path.join(root, "t-0"), CONFIG, file_ids=itertools.count())
    for offset, batch in enumerate(BATCHES):
        log.append(memoryview(batch), 0, 1000 + offset * 7 % 50, offset // 40, 0)
        log.producers.update(offset % 2, 0, offset // 2, 0, offset, 1000)
    return log


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_damaged_files(data):
    root = tempfile.mkdtemp(prefix="log-damage-")
    try:
        log = make_log(root)
        is_closed = data.draw(st.booleans(), "is closed")
        log.close(clean=is_closed)
        bases = [segment.base_offset for segment in log.segments]
        names = sorted(os.listdir(log.directory))
        name = data.draw(st.sampled_from(names), "file")
        path = os.path.join(log.directory, name)
        with open(path, "rb") as file:
            content = bytearray(file.read())
        position = data.draw(st.integers(0, len(content) - 1), "position")
        length = data.draw(st.sampled_from([1, 8, 200]), "length")
        byte = data.draw(st.sampled_from([0, 1, 0xFF]), "byte")
        damaged = content[:position] + bytes([byte]) * length + content[position + length :]
        if data.draw(st.booleans(), "is cut"):
            del damaged[position:]
        with open(path, "wb") as file:
            file.write(damaged)
        recovery_point = data.draw(st.sampled_from([0, 45, 90, 100]), "recovery point")
        again = PartitionLog.open(
            log.directory,
            CONFIG,
            file_ids=itertools.count(),
            clean=is_closed and data.draw(st.booleans(), "is believed clean"),
            recovery_point=recovery_point,
        )
        check(again, name, bases, recovery_point)
        again.close(clean=True)
    finally:
        shutil.rmtree(root)


def check(log, name, bases, recovery_point):
    if not name.endswith(".log"):
        # Everything else is derived.
        assert log.log_end_offset == 100
    offset = 0
    while offset < log.log_end_offset:
        try:
            segment, position, length = log.read(offset, 2000, log.log_end_offset)
            stored = segment.read_bytes(position, length)
            headers = list(iterate_batches(stored))
        except (CorruptFault, ProtocolFault):
            # Below the recovery point nobody looked: who reads there is told, or sees the CRC.
            assert name.endswith(".log")
            offset += 1
            continue
        for at, header in headers:
            if not name.endswith(".log"):
                assert stored[at + 16 : at + header[1] + 12] == BATCHES[offset][16:]
                assert header[::2][:2] == (offset, offset // 40)
            offset += 1
    if name.endswith(".log"):
        return
    if name.endswith(".timeindex"):
        # One that lost its end looks like any other: what it finds may not be the first.
        for timestamp in (999, 1001, 1030):
            assert offset_for_timestamp(log, timestamp)[0] >= timestamp
    else:
        assert max_timestamp(log) == (1049, 7)
        for timestamp, expected in [(999, 0), (1001, 1), (1049, 7)]:
            assert offset_for_timestamp(log, timestamp)[1] == expected
        assert offset_for_timestamp(log, 1050) is None
    assert [log.producers.check(which, 0, 50, 0) for which in (0, 1)] == [(0, -1, -1)] * 2
    assert log.leader_epochs.epoch_at(39) in (0, -1, 1)
    assert [segment.base_offset for segment in log.segments] == bases


def open_only_replica(directory, **how):
    return PartitionLog.open(
        directory, CONFIG, file_ids=itertools.count(), is_only_replica=True, clean=False, **how
    )


def served_by(log):
    """{offset: batch} of what a consumer gets that goes on from each batch to what comes next."""
    found = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        segment, position, length = log.read(offset, 2000, log.log_end_offset)
        stored = segment.read_bytes(position, length)
        for at, header in iterate_batches(stored):
            assert header[0] not in found
            found[header[0]] = stored[at : at + header[1] + 12]
            offset = header[0] + header[6] + 1
    return found


@pytest.mark.thorough
@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_damage_of_the_only_replica(data):
    """Of flushed segments, whatever happens to them: what was not touched is served, what was not
    written never is; offsets stay. A second start finds the same, and nothing to say."""
    root = tempfile.mkdtemp(prefix="log-damage-")
    try:
        log = make_log(root)
        log.close(clean=True)
        bases = [segment.base_offset for segment in log.segments]
        number = data.draw(st.integers(0, len(bases) - 1), "segment")
        base, end = bases[number], [*bases[1:], 100][number]
        path = log.segments[number].path
        with open(path, "rb") as file:
            content = bytearray(file.read())
        places = [position for position, _ in iterate_batches(bytes(content))]
        kind = data.draw(st.sampled_from(["bytes", "offset", "stray", "gone", "cut"]), "kind")
        ends = [*places[1:], len(content)]
        touched = set()
        if kind == "bytes":
            for _ in range(data.draw(st.integers(1, 3), "times")):
                position = data.draw(st.integers(0, len(content) - 1), "position")
                damage = data.draw(st.binary(min_size=1, max_size=400), "bytes")
                damage = damage[: len(content) - position]
                content[position : position + len(damage)] = damage
                touched |= {
                    base + n
                    for n, (start, stop) in enumerate(zip(places, ends, strict=True))
                    if start < position + len(damage) and position < stop
                }
        elif kind == "offset":
            which = data.draw(st.integers(0, len(places) - 1), "batch")
            offset = data.draw(st.one_of(st.integers(0, 200), st.integers(0, 2**63 - 1)), "offset")
            content[places[which] : places[which] + 8] = offset.to_bytes(8, "big")
            if (number, which) == (len(bases) - 1, len(places) - 1):
                touched.add(99)  # nothing follows that would show it
        elif kind == "cut":
            del content[data.draw(st.integers(0, len(content) - 1), "size") :]
            touched = {base + n for n in range(len(places)) if ends[n] > len(content)}
        if kind == "gone":
            os.unlink(path)
            touched = set(range(base, end))
        else:
            with open(path, "wb") as file:
                file.write(content)
        if kind == "stray":
            where = data.draw(
                st.one_of(st.integers(base + 1, 5000), st.integers(2**32, 2**63 - 1)), "where"
            )
            stray = os.path.join(log.directory, f"{where:020d}.log")
            if where not in (*bases, 100):
                with open(stray, "xb") as file:
                    file.write(data.draw(st.sampled_from([b"", content[: places[3]]]), "content"))
        for name in os.listdir(log.directory):
            if name.endswith("index"):
                os.unlink(os.path.join(log.directory, name))  # so that all of it is scanned
        again = open_only_replica(log.directory, recovery_point=end, cleaned_offset=0)
        found = served_by(again)
        assert {at: batch[16:] for at, batch in found.items()} == {
            at: BATCHES[at][16:] for at in found
        }
        is_last = number == len(bases) - 1
        lost = set(range(100)) - set(found)
        if is_last and touched:
            # What is wrong at the very end is an end.
            assert lost <= touched | set(range(min(touched), 100))
            assert again.log_end_offset >= min(touched, default=100)
        elif kind == "gone" and number == 0:
            assert lost == touched
        else:
            assert lost <= touched
            assert again.log_end_offset == 100
        ended = again.log_end_offset, again.cleaned_offset
        again.close(clean=True)
        third = open_only_replica(log.directory, recovery_point=end, cleaned_offset=ended[1])
        assert served_by(third) == found
        assert third.log_end_offset == ended[0]
        assert not third.damage_count or is_last
        third.close(clean=False)
    finally:
        shutil.rmtree(root)
