"""The disk refuses what puts a compacted segment in its place: the pass is done again later."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmbroker.ids import partition_key
from shmbroker.log.compaction.cleaned_files import CLEANED, DELETED, SWAP
from shmbroker.log.compaction.compactor import compact
from shmbroker.log.file_names import LOG
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from tests.support.broker_family import BrokerFamily, broker_family
from tests.support.compaction_logs import last_batches, settings_of, sources_of
from tests.support.family_memory import TOPIC, TOPIC_ID, topic

KEY = partition_key(TOPIC_ID, 0)
NAME = TOPIC, 0
PLAIN = (".log", "index")
BATCH = encode_batch([(1_700_000_000_000, b"key", b"value", [])])
ROUNDS_MAX = 200


@contextmanager
def compacting(path: Path) -> Iterator[tuple[BrokerFamily, Partition, list[dict[str, Any]]]]:
    """A family, its partition of three full segments, and what its cleaner was asked."""
    with broker_family(
        path,
        "log.cleanup.policy=compact",
        "log.cleaner.min.cleanable.ratio=0.01",
        "log.cleaner.backoff.ms=1000",
        "log.flush.interval.ms=1000",
    ) as family:
        family.boot(*topic())
        partition = family.broker.partitions[KEY]
        compaction: Any = family.broker.compaction
        asked: list[dict[str, Any]] = []
        compaction.ask = lambda body, _: asked.append(body) is None
        for _ in range(3):
            family.append(1, KEY, BATCH)
            family.broker.turn()
            partition.log.roll(family.clock.now_ms())
        rounds_until(family, lambda: bool(asked))
        yield family, partition, asked


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_swap_that_is_refused_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """refused: which rename, the checkpoint's or one of those to `.swap`."""
    with compacting(tmp_path) as (family, partition, asked):
        compaction: Any = family.broker.compaction
        answer = clean(partition)

        rename, tried = os.rename, []

        def fails(old: str, new: str) -> None:
            tried.append(new)
            if len(tried) == refused + 1:
                raise OSError(errno.EIO, "no")
            rename(old, new)

        offsets = family.broker.store.log_directory.cleaned_offsets
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fails)
            compaction.on_answer(answer)
        assert tried[refused].endswith(SWAP) is bool(refused)
        assert compaction.current is None and offsets.get(NAME) is None
        assert not names(tmp_path, CLEANED, SWAP)
        assert [segment.base_offset for segment in partition.log.segments] == [0, 1, 2, 3]

        asked.clear()
        rounds_until(family, lambda: bool(asked))
        compaction.on_answer(clean(partition))
        rounds_until(family, lambda: len(partition.log.segments) == 2)
        assert offsets[NAME] == 3 and not names(tmp_path, CLEANED, SWAP)


@pytest.mark.parametrize("refused", range(1, 13))
def test_segments_that_can_not_be_replaced_are_read_on_and_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """refused: which rename to `.deleted` or from `.swap`."""
    with compacting(tmp_path) as (family, partition, _):
        compaction: Any = family.broker.compaction

        rename, tried = os.rename, 0

        def fails(old: str, new: str) -> None:
            nonlocal tried
            is_counted = new.endswith(DELETED) or (old.endswith(SWAP) and new.endswith(PLAIN))
            tried += is_counted
            if is_counted and tried == refused:
                raise OSError(errno.ENOSPC, "no")
            rename(old, new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fails)
            compaction.on_answer(clean(partition))
            rounds_until(family, lambda: tried >= refused)
            assert KEY in family.broker.store.swapping, "retention must leave it alone"
            assert not partition.is_offline and len(partition.log.segments) == 4
            for offset in range(3):
                segment, position, length = partition.log.read(offset, 1000, 3)
                assert segment.read_bytes(position, length)
            family.append(1, KEY, BATCH)
            family.broker.turn()
            assert partition.log.log_end_offset == 4
            assert len(names(tmp_path, LOG)) == 4 and not names(tmp_path, DELETED)
        rounds_until(family, lambda: len(partition.log.segments) == 2)
        assert not family.broker.store.swapping
        assert not names(tmp_path, CLEANED, SWAP)
        segment, position, length = partition.log.read(0, 1000, 3)
        assert segment.read_bytes(position, length)


def test_segments_that_can_be_neither_replaced_nor_left_take_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with compacting(tmp_path) as (family, partition, _):
        compaction: Any = family.broker.compaction
        answer = clean(partition)
        rename, done = os.rename, 0

        def fails(old: str, new: str) -> None:
            nonlocal done
            if done:
                raise OSError(errno.EROFS, "no")
            done += new.endswith(DELETED)
            rename(old, new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fails)
            compaction.on_answer(answer)
            rounds_until(family, lambda: partition.is_offline)
            family.broker.turn()
        assert "00000000000000000000.index" in caplog.text
    with broker_family(tmp_path) as family:
        family.boot(*topic())
        log = family.broker.partitions[KEY].log
        assert log.log_end_offset == 3
        segment, position, length = log.read(0, 1000, 3)
        assert segment.read_bytes(position, length)


def rounds_until(family: BrokerFamily, is_so: Callable[[], bool]) -> None:
    for _ in range(ROUNDS_MAX):
        if is_so():
            return
        family.clock.now += 1
        family.broker.turn()
    raise AssertionError("it did not come")


def clean(partition: Partition) -> dict[str, Any]:
    """What a cleaner does and answers."""
    log = partition.log
    report = compact(log.directory, sources_of(log), 0, last_batches(log), settings_of(log))
    groups = [
        {"first": group.first, "count": group.length, "size": group.size} for group in report.groups
    ]
    return {"error_code": 0, "groups": groups, "end_offset": log.segments[-1].base_offset}


def names(path: Path, *endings: str) -> list[Path]:
    return [one for one in path.rglob("*") if one.name.endswith(endings)]
