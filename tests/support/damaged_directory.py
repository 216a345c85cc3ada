"""A data directory to do harm to: one topic, each partition of it for another kind of damage.

A partition has three segments of twelve batches, a record each, written by an idempotent producer;
index entries for nearly every batch, a producer snapshot at each roll, and leader epoch 0. What is
below `RECOVERY_POINT` counts as flushed: a start after a power cut scans the third segment only.
"""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from shmbroker import clock
from shmbroker.log.checkpoints import HIGH_WATERMARK, read_offsets, write_offsets
from shmbroker.log.checkpoints import RECOVERY_POINT as RECOVERY_POINT_FILE
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import CLEAN_SHUTDOWN, PARTITION_METADATA
from shmbroker.log.partition_log import PartitionLog
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient, batch_of
from tests.support.waiting import wait_until

TOPIC = "hurt"
SEGMENTS = 3
IN_SEGMENT = 12
RECORDS = SEGMENTS * IN_SEGMENT
RECOVERY_POINT = 2 * IN_SEGMENT
PRODUCER_ID = 7


def value_of(number: int) -> bytes:
    return b"%03d " % number + bytes(range(256))


def batch(number: int, timestamp: int) -> bytes:
    return batch_of(
        value_of(number),
        timestamp=timestamp,
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=number,
    )


def make(data: Path, partitions: int) -> None:
    """The directory, as a clean stop leaves it."""
    with Broker(data=data) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, partitions)
        node = data / "node-1"
        wait_until(lambda: len(list(node.glob(f"{TOPIC}-*"))) == partitions, "all logs")
    first = node / f"{TOPIC}-0"
    now_ms = clock.now_ms()
    size = len(batch(0, now_ms))
    settings = {"segment.bytes": str(IN_SEGMENT * size), "index.interval.bytes": str(size)}
    log = PartitionLog.open(str(first), LogConfig(settings), file_ids=itertools.count(1))
    for number in range(RECORDS):
        log.append(memoryview(batch(number, now_ms)), 0, now_ms, 0, now_ms)
        log.producers.update(PRODUCER_ID, 0, number, 0, number, now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, IN_SEGMENT, RECOVERY_POINT]
    log.close(clean=True)
    for partition in range(1, partitions):
        for path in first.iterdir():
            if path.name != PARTITION_METADATA:
                shutil.copyfile(path, node / f"{TOPIC}-{partition}" / path.name)
    ends = {(TOPIC, partition): RECORDS for partition in range(partitions)}
    for name in (RECOVERY_POINT_FILE, HIGH_WATERMARK):
        write_offsets(str(node / name), read_offsets(str(node / name)) | ends)


def forget_clean_stop(data: Path) -> None:
    """Let the last start have ended with a power cut, and the third segments not be flushed."""
    node = data / "node-1"
    (node / CLEAN_SHUTDOWN).unlink()
    path = str(node / RECOVERY_POINT_FILE)
    points = read_offsets(path)
    write_offsets(
        path, {log: RECOVERY_POINT if log[0] == TOPIC else point for log, point in points.items()}
    )


def flip(path: Path, place: float = 0.5) -> None:
    """Another bit in the middle, or `place` of the way."""
    content = bytearray(path.read_bytes() or b" ")
    content[min(int(len(content) * place), len(content) - 1)] ^= 0x10
    path.write_bytes(content)


def flip_first(path: Path) -> None:
    flip(path, 0)


def flip_last(path: Path) -> None:
    flip(path, 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def fill(path: Path) -> None:
    """Something else, of the same size."""
    path.write_bytes((b"\xff\x9d{}\n 17" * path.stat().st_size)[: path.stat().st_size])


def remove(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    """A directory under its name."""
    path.unlink()
    path.mkdir()


def swap(path: Path) -> None:
    """The content of its neighbour: the same file of another segment; of a file that is alone in
    its directory, that of the partition before."""
    if path.name[:20].isdigit():
        base = int(path.name[:20])
        other = path.with_name(f"{(base + IN_SEGMENT) % RECORDS:020d}{path.name[20:]}")
        if not other.exists():
            other = path.with_name(f"{base - IN_SEGMENT:020d}{path.name[20:]}")
    else:
        other = path.parent.parent / f"{TOPIC}-0" / path.name
    shutil.copyfile(other, path)


Damage = Callable[[Path], None]
ALL: tuple[Damage, ...] = (
    flip_first,
    flip,
    flip_last,
    empty,
    halve,
    zero,
    fill,
    swap,
    remove,
    make_directory,
)
