"""Logs that are opened again, with what their last writer has left in shared memory."""

import itertools

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch, iterate_batches


class Slot:
    stored = None

    def store(self, base, position, end):
        self.stored = base, position, end


def batch_of(size=100, timestamp=1000, **how):
    return encode_batch([(timestamp, b"k", b"v" * size, [])], **how)


@pytest.fixture
def slot():
    return Slot()


@pytest.fixture
def opened(tmp_path, slot):
    logs = []

    def open_log(settings=None, **how):
        log = PartitionLog.open(
            str(tmp_path / "t-0"),
            settings if isinstance(settings, LogConfig) else LogConfig(settings or {}),
            file_ids=itertools.count(1),
            position_slot=slot,
            **how,
        )
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close(clean=False)


def append(log, batch, epoch=0):
    (header,) = [header for _, header in iterate_batches(batch)]
    return log.append(memoryview(batch), header[6], header[8], epoch, 0)


def offsets_in(log):
    offsets, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        segment, position, length = log.read(offset, 1 << 20, log.log_end_offset)
        offsets += [h[0] for _, h in iterate_batches(segment.read_bytes(position, length))]
        offset = offsets[-1] + 1
    return offsets


def write_behind(log, data, distance=0):
    with open(log.active.path, "r+b") as file:
        file.seek(log.active.size + distance)
        file.write(data)
