"""Logs of one partition for tests: made, filled, and closed at the end."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import check_batch, encode_batch
from shmbroker.wire.error_codes import NONE


def batch_of(size: int = 100, count: int = 1, timestamp: int = 1000, **how: Any) -> bytes:
    """A batch of so many records with values of that size."""
    return encode_batch([(timestamp, b"k", bytes(size), [])] * count, **how)


def append(log: PartitionLog, batch: bytes, epoch: int = 0, now_ms: int = 0) -> int:
    """Append a batch; its base offset."""
    error, header = check_batch(memoryview(batch), 0, len(batch))
    assert error == NONE
    return log.append(memoryview(batch), header[6], header[8], epoch, now_ms)


def fill(log: PartitionLog, batches: int, **how: Any) -> None:
    """Append so many batches."""
    for _ in range(batches):
        append(log, batch_of(**how))


def files(log: PartitionLog) -> list[str]:
    """The names of a log's files."""
    return sorted(os.listdir(log.directory))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., PartitionLog]]:
    """What opens the log t-0, with settings; closed at the end."""
    logs = []

    def open_log(settings: dict[str, str] | None = None, **how: Any) -> PartitionLog:
        how.setdefault("file_ids", itertools.count(1))
        log = PartitionLog.open(str(tmp_path / "t-0"), LogConfig(settings or {}), **how)
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close(clean=False)
