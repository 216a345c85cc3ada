"""Any damage to any file: a log always opens, and serves what was stored or says that it can't."""

import itertools
import os
import shutil
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch, iterate_batches

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


@settings(deadline=None, max_examples=200)
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
            assert log.offset_for_timestamp(timestamp)[0] >= timestamp
    else:
        assert log.max_timestamp() == (1049, 7)
        for timestamp, expected in [(999, 0), (1001, 1), (1049, 7)]:
            assert log.offset_for_timestamp(timestamp)[1] == expected
        assert log.offset_for_timestamp(1050) is None
    assert [log.producers.check(which, 0, 50, 0) for which in (0, 1)] == [(0, -1, -1)] * 2
    assert log.leader_epochs.epoch_at(39) in (0, -1, 1)
    assert [segment.base_offset for segment in log.segments] == bases
