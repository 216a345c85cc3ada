"""Logs to compact, and what must be left of them by a plain model of Kafka's rules."""

import itertools
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shmbroker.kernels import native
from shmbroker.log.compaction import engine as engines
from shmbroker.log.compaction.chunks import Source
from shmbroker.log.compaction.compactor import LastRecord, Report, Settings, compact
from shmbroker.log.compaction.swap import prepare_swap, replace_segments
from shmbroker.log.config import LogConfig
from shmbroker.log.markers import append_marker
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.segment import Segment
from shmbroker.records.batch import Record, encode_batch, iterate_records
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD,
)
from shmbroker.records.end_marker import EndMarker

Batch = tuple[tuple[int, ...], list[Record]]
"""A batch's header and its records."""
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "2000", "index.interval.bytes": "200"}


ENGINES = [
    import_module(f"shmbroker.log.compaction.by_{name}")
    for name in ("numpy", *(["kernels"] if native is not None else []))
]


def open_log(
    directory: str | Path, settings: dict[str, str] | None = None, **options: Any
) -> PartitionLog:
    options.setdefault("file_ids", itertools.count(1))
    return PartitionLog.open(str(directory), LogConfig(settings or COMPACT), **options)


def append(
    log: PartitionLog,
    records: Iterable[tuple[Any, ...]],
    codec: int = 0,
    producer: tuple[int, int, int] | None = None,
    **options: Any,
) -> int:
    """One batch of (timestamp, key, value) or (timestamp, key, value, headers); its base offset."""
    rows: Any = [(*record, ()) if len(record) == 3 else record for record in records]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    batch = encode_batch(
        rows,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **options,
    )
    timestamp = BATCH_HEADER.unpack_from(batch)[8]
    base = log.append(memoryview(batch), len(rows) - 1, timestamp, 0, 0)
    if producer:
        log.producers.update(producer_id, epoch, sequence, len(rows) - 1, base, timestamp)
        if options.get("is_transactional"):
            log.producers.begin(producer_id, base)
    return base


def end_transaction(
    log: PartitionLog, producer_id: int, epoch: int = 0, *, is_commit: bool, timestamp: int = 1
) -> int:
    """The marker of a producer; its offset."""
    return append_marker(log, EndMarker(producer_id, epoch, 0, is_commit), timestamp, 0, 0)


def sources_of(log: PartitionLog) -> list[Source]:
    return [
        Source(segment.base_offset, segment.size, segment.end_offset)
        for segment in log.segments[:-1]
    ]


def settings_of(
    log: PartitionLog,
    now_ms: int = 1_000_000,
    delete_retention_ms: int = 100,
    map_bytes: int = 1 << 20,
) -> Settings:
    config = log.config
    return Settings(
        now_ms,
        delete_retention_ms,
        config.segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
        map_bytes,
    )


def last_batches(log: PartitionLog) -> dict[int, LastRecord]:
    return {
        producer_id: LastRecord(
            entry.batches[-1][2] + entry.batches[-1][1] if entry.batches else -1, entry.epoch
        )
        for producer_id, entry in log.producers.producers.items()
    }


def groups_of(log: PartitionLog, report: Report) -> list[tuple[list[Segment], int]]:
    """The segments that become one, and the size of that one."""
    return [
        (log.segments[group.first : group.first + group.length], group.size)
        for group in report.groups
    ]


def swap(log: PartitionLog, report: Report) -> None:
    groups = groups_of(log, report)
    prepare_swap(log.directory, groups)
    for old, size in groups:
        for path in replace_segments(log, old, size, 0):
            if os.path.exists(path):
                os.unlink(path)


def compact_log(log: PartitionLog, dirty_offset: int = 0, **options: int) -> Report:
    """Compact all closed segments, by each engine, of which all must write the same, and swap; the
    report."""
    settings = settings_of(log, **options)
    written = []
    for engine in ENGINES:
        with patch.object(engines, "chosen", engine):
            report = compact(
                log.directory, sources_of(log), dirty_offset, last_batches(log), settings
            )
        figures = [getattr(report, name) for name in report.__slots__]
        written.append((figures, cleaned_of(log.directory)))
    assert all(one == written[0] for one in written)
    swap(log, report)
    return report


def cleaned_of(directory: str) -> dict[str, bytes]:
    """The `.cleaned` files there, name -> bytes."""
    found = {}
    for name in os.listdir(directory):
        if name.endswith(".cleaned"):
            with open(os.path.join(directory, name), "rb") as file:
                found[name] = file.read()
    return found


def batches_of(log: PartitionLog) -> list[Batch]:
    """[(header, [records])] of the whole log, as its files hold them."""
    found = []
    for segment in log.segments:
        with open(segment.path, "rb") if segment.size else open(os.devnull, "rb") as file:
            data = file.read()[: segment.size]
        at = 0
        while at < len(data):
            header = BATCH_HEADER.unpack_from(data, at)
            records = [] if header[5] & CONTROL_BIT else list(iterate_records(data, at))
            found.append((header, records))
            at += header[1] + LOG_OVERHEAD
    return found


def records_of(log: PartitionLog) -> list[Record]:
    return [record for _, records in batches_of(log) for record in records]


def model(
    batches: Iterable[Batch],
    dirty_offset: int,
    end_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    producers: dict[int, LastRecord],
) -> list[tuple[int, int, int | None, list[Record]]]:
    """Kafka's rules over [(header, records)]: [(base, last, horizon or None, records)]."""
    latest: dict[bytes, int] = {}
    for _, records in batches:
        latest |= {
            key: offset
            for offset, _, key, _, _ in records
            if key is not None and dirty_offset <= offset < end_offset
        }
    result: list[tuple[int, int, int | None, list[Record]]] = []
    for header, records in batches:
        base, last = header[0], header[0] + header[6]
        horizon = header[7] if header[5] & DELETE_HORIZON_BIT else None
        kept = [
            record
            for record in records
            if record[2] is not None
            and record[0] >= latest.get(record[2], -1)
            and (record[3] is not None or horizon is None or now_ms < horizon)
        ]
        if header[5] & CONTROL_BIT or kept:
            if horizon is None and any(record[3] is None for record in kept):
                horizon = now_ms + delete_retention_ms
            result.append((base, last, horizon, kept))
        elif header[9] in producers and producers[header[9]].last_offset == last:
            result.append((base, last, None, []))
    return result
