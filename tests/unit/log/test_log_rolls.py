"""Thousands of rolls leave no map, no descriptor and no memory behind (`SHMBROKER_ROLLS=10000`).

The files of retired segments stay until the end: ext4 gives out no inode that was freed within the
last five seconds, and looking for others took two thirds of the time where they were unlinked.
"""

import itertools
import os

from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import retain
from shmbroker.records.batch import encode_batch

ROLLS = int(os.environ.get("SHMBROKER_ROLLS", "500"))


def held() -> tuple[int, int, int]:
    """(maps, descriptors, KiB of private memory) of this process."""
    with open("/proc/self/maps", "rb") as maps:
        count = maps.read().count(b"\n")
    with open("/proc/self/smaps_rollup", "rb") as rollup:
        private = sum(int(line.split()[1]) for line in rollup if line.startswith(b"Anonymous"))
    return count, len(os.listdir("/proc/self/fd")), private


def test_rolls_leave_nothing_behind(tmp_path):
    config = LogConfig({"retention.bytes": "4000", "index.interval.bytes": "0"})
    log = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))
    batch = memoryview(encode_batch([(1000, b"k", bytes(100), ())]))
    before = (0, 0, 0)
    for number in range(ROLLS):
        log.append(batch, 0, 1000, 0, 0)
        log.roll()
        if number % 50 == 0:
            retain(log, log.log_end_offset, 1000)
            log.retired.clear()
        if number == ROLLS // 10:
            before = held()
    retain(log, log.log_end_offset, 1000)
    maps, descriptors, memory = after = held()
    print(f"(maps, descriptors, KiB): {before} after {ROLLS // 10} rolls, {after} after {ROLLS}")
    assert maps <= before[0] + 2
    assert descriptors <= before[1] + 2
    assert memory <= before[2] + 4096
    assert len(log.segments) < 100
    assert len(log.snapshots.offsets) < 100
    log.close(clean=False)
