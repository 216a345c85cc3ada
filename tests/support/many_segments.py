"""A stopped broker's directory with many partitions of many small segments each."""

import itertools
import os
from pathlib import Path
from typing import Any
from unittest import mock

from shmbroker.log.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, write_offsets
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import META_PROPERTIES, PARTITION_METADATA
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.meta_properties import read_meta_properties
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch

BATCHES = 3
"""In each segment, of one record."""


def write_log(directory: str | Path, segments: int, now_ms: int, **options: Any) -> int:
    """A log of that many segments, closed cleanly; every batch but a segment's first is indexed."""
    options.setdefault("file_ids", itertools.count(1))
    config = LogConfig({"index.interval.bytes": "0"})
    log = PartitionLog.open(str(directory), config, cleaned_offset=0, now_ms=now_ms, **options)
    for number in range(segments):
        if number:
            log.roll(now_ms)
        for _ in range(BATCHES):
            timestamp = now_ms + log.log_end_offset
            batch = memoryview(encode_batch([(timestamp, b"key", b"v" * 100, ())]))
            log.append(batch, 0, timestamp, 0, now_ms)
    log.close(clean=True)
    return log.log_end_offset


def fill(
    node_directory: str | Path, topic: str, partitions: int, segments: int, now_ms: int
) -> None:
    """Give every partition of a topic that many segments, as after a clean stop.

    The topic's directories are there, empty. The log's own code writes the first partition; the
    others get copies of its files, as 2,000 x 50 segments are 400,000 of them.
    """
    path = str(node_directory)
    known = read_meta_properties(os.path.join(path, META_PROPERTIES))
    assert known is not None
    directory = LogDirectory.open(path, known.node_id, known.cluster_id)
    assert directory.is_clean, "stop the broker first"
    first = os.path.join(path, f"{topic}-0")
    with mock.patch.object(os, "fdatasync"), mock.patch.object(os, "fsync"):
        end = write_log(first, segments, now_ms)
        files = {}
        for name in os.listdir(first):
            if name != PARTITION_METADATA:
                with open(os.path.join(first, name), "rb") as file:
                    files[name] = file.read()
        for partition in range(1, partitions):
            for name, content in files.items():
                with open(os.path.join(path, f"{topic}-{partition}", name), "wb") as file:
                    file.write(content)
        ends = {(topic, partition): end for partition in range(partitions)}
        directory.close_clean((), broker_epoch=directory.clean_broker_epoch)
        write_offsets(os.path.join(path, RECOVERY_POINT), directory.recovery_points | ends)
        write_offsets(os.path.join(path, HIGH_WATERMARK), directory.high_watermarks | ends)
