"""Snapshots of the metadata: when one is written, and what is in it.

A snapshot is a file of batches whose offsets are its own, from 0 on:

   offset 0      control batch   SnapshotHeader: timestamp of the last record that is in it
   offset 1 …    data batches    the records that make the image, `BATCH_RECORDS` each
   the next      control batch   SnapshotFooter

Every voter writes its own, of what is committed; so the log before it can go (`retain`), and who
comes late begins there. Source: KIP-630; Kafka's `SnapshotGenerator`, `RecordsSnapshotWriter`.
"""

from __future__ import annotations

import itertools
import logging

from shmbroker.controller.bootstrap import FEATURE_LEVELS
from shmbroker.controller.raft.quorum_messages import SnapshotId
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.image_records import image_records
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.records.batch_layout import CONTROL_SNAPSHOT_FOOTER, CONTROL_SNAPSHOT_HEADER
from shmbroker.wire import codec
from shmbroker.wire.metadata_records import encode_metadata_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from shmbroker.controller.raft.metadata_log import MetadataLog
    from shmbroker.metadata.follower import MetadataFollower
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

BATCH_RECORDS = 1000
DISK_RETRY_MS = 60_000


def image_snapshot(image: MetadataImage, last_timestamp_ms: int, now_ms: int) -> Iterator[bytes]:
    """The file of an image, in pieces."""
    supported = [
        {"name": name, "min_supported_version": least, "max_supported_version": most}
        for name, _, least, most in FEATURE_LEVELS
    ]
    return snapshot(image_records(image, supported), image.epoch, last_timestamp_ms, now_ms)


def snapshot(
    records: Iterable[MetadataRecord], epoch: int, last_timestamp_ms: int, now_ms: int
) -> Iterator[bytes]:
    """Header, records in batches, footer."""

    def control(kind: int, name: str, offset: int, **fields: Any) -> bytes:
        value = codec.encode(name, 0, {"version": 0} | fields)
        return control_batch(kind, value, timestamp=now_ms, base_offset=offset, leader_epoch=epoch)

    yield control(
        CONTROL_SNAPSHOT_HEADER,
        "SnapshotHeaderRecord",
        0,
        last_contained_log_timestamp=last_timestamp_ms,
    )
    offset = 1
    rest = iter(records)
    while lot := list(itertools.islice(rest, BATCH_RECORDS)):
        yield encode_batch(
            [(now_ms, None, encode_metadata_record(*record), ()) for record in lot],
            base_offset=offset,
            leader_epoch=epoch,
        )
        offset += len(lot)
    yield control(CONTROL_SNAPSHOT_FOOTER, "SnapshotFooterRecord", offset)


class SnapshotSchedule:
    """When a voter writes its next one: after so many bytes of log, or so long since the last."""

    def __init__(self, log: MetadataLog, config: BrokerConfig) -> None:
        self._log = log
        self._bytes = config["metadata.log.max.record.bytes.between.snapshots"]
        self._interval_ms = config["metadata.log.max.snapshot.interval.ms"]
        self._retention = (
            config["metadata.max.retention.bytes"],
            config["metadata.max.retention.ms"],
        )
        self._size_then = 0
        self._next_ms = 0
        latest = log.latest_snapshot()
        self._end_offset = latest.end_offset if latest else 0

    def maybe_write(self, follower: MetadataFollower, now_ms: int, steady_ms: int) -> bool:
        """Write one if it is time, and let old ones go; while the disk is full, later.

        now_ms: by the wall clock, for its records. steady_ms: for when it is due.
        StorageFault if the disk is bad.
        """
        log, image = self._log, follower.image
        if not self._next_ms:
            self._next_ms = steady_ms + self._interval_ms
        is_due = log.size_bytes - self._size_then >= self._bytes or (
            self._interval_ms > 0 and steady_ms >= self._next_ms
        )
        is_between = follower.is_midway or follower.reader.is_in_transaction
        if not is_due or is_between or image.offset <= self._end_offset:
            return False
        pieces = image_snapshot(image, follower.reader.last_timestamp_ms, now_ms)
        try:
            log.add_snapshot(SnapshotId(image.offset, image.epoch), pieces)
        except DiskFullFault as fault:
            logger.error("%s", fault)
            self._size_then, self._next_ms = log.size_bytes, steady_ms + DISK_RETRY_MS
            return False
        self._end_offset = image.offset
        self._next_ms = steady_ms + self._interval_ms
        log.retain(*self._retention)
        self._size_then = log.size_bytes
        return True
