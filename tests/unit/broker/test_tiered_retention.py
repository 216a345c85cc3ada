"""Retention of a log that has copies, by table: what leaves the disk, what the log begins with, and
that nothing goes of which there is no copy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.tiering.remotes import Remote
from shmbroker.broker.tiering.retention import retain
from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import raise_start
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.tier.remote_log import RemoteSegment
from tests.support.leadership import leadership

TIMES = (1000, 2000, 3000, 4000)
"""Of the records, one in each of four segments; the last one is active."""
SIZE = len(encode_batch([(0, None, b"v" * 100, ())]))
Make = Callable[..., Remote]


class Store(SimpleNamespace):
    """Of the partitions' logs; it only counts."""

    moved = 0

    def raise_log_start(self, partition: Partition, offset: int) -> None:
        raise_start(partition.log, offset)
        self.moved += 1


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    logs = []

    def one(copies: int, /, times: tuple[int, ...] = TIMES, **settings: Any) -> Remote:
        """A led log, with copies of so many segments of it."""
        values = {name.replace("_", "."): str(value) for name, value in settings.items()}
        config = LogConfig(
            {"remote.storage.enable": "true", "retention.ms": "-1", "retention.bytes": "-1"}
            | values
        )
        log = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=iter(range(1, 100)))
        logs.append(log)
        for offset, time in enumerate(times):
            if offset:
                log.roll(max(time, 0))
                log.active.create_files()
            batch = encode_batch([(time, None, b"v" * 100, ())])
            log.append(memoryview(batch), 0, time, 0, max(time, 0))
        partition = Partition(bytes(20), "t", bytes(16), 0, log)
        partition.on_leadership(1, leadership())
        assert partition.high_watermark == len(times)
        remote = Remote(partition)
        for offset in range(copies):
            remote.log.add(RemoteSegment(offset, offset + 1, 0, SIZE, times[offset]))
        return remote

    yield one
    for log in logs:
        log.close(clean=False)


def local(remote: Remote) -> list[int]:
    return [segment.base_offset for segment in remote.partition.log.segments]


@pytest.mark.parametrize(
    ("copies", "settings", "now_ms", "left"),
    [
        (3, {"local_retention_ms": 500}, 1500, [0, 1, 2, 3]),
        (3, {"local_retention_ms": 500}, 1501, [1, 2, 3]),
        (3, {"local_retention_ms": 500}, 2501, [2, 3]),
        (0, {"local_retention_ms": 500}, 3501, [0, 1, 2, 3]),  # no copy
        (1, {"local_retention_ms": 500}, 3501, [1, 2, 3]),
        (3, {"local_retention_ms": -1}, 10**12, [0, 1, 2, 3]),
        (3, {"local_retention_ms": 0}, 3000, [2, 3]),
        (3, {"local_retention_bytes": 3 * SIZE + 1}, 0, [0, 1, 2, 3]),
        (3, {"local_retention_bytes": 3 * SIZE}, 0, [1, 2, 3]),
        (3, {"local_retention_bytes": SIZE}, 0, [3]),
        (2, {"local_retention_bytes": SIZE}, 0, [2, 3]),
        (3, {"local_retention_bytes": -1}, 0, [0, 1, 2, 3]),
        (3, {"local_retention_ms": 500, "local_retention_bytes": 2 * SIZE}, 1501, [2, 3]),
    ],
)
def test_copied_segments_leave_the_disk_and_the_log_begins_where_it_did(
    make: Make, copies: int, settings: dict[str, int], now_ms: int, left: list[int]
) -> None:
    remote = make(copies, **settings)
    store: Any = Store()
    assert not retain(remote, store, now_ms)
    assert local(remote) == left
    assert remote.partition.log.log_start_offset == 0
    assert store.moved == 0


@pytest.mark.parametrize(
    ("is_leader", "high_watermark", "left"),
    [(True, 4, [3, 4]), (True, 3, [3]), (False, 4, [3])],
)
def test_an_active_segment_that_is_too_old_is_rolled_by_its_leader_to_be_copied(
    make: Make, is_leader: bool, high_watermark: int, left: list[int]
) -> None:
    remote = make(3, local_retention_ms=500)
    remote.partition.high_watermark = high_watermark
    remote.partition.is_leader = is_leader
    store: Any = Store()
    retain(remote, store, 4501)
    assert local(remote) == left
    retain(remote, store, 4501)
    assert local(remote) == left, "nothing is in it, or no copy is there yet"


def test_a_full_disk_gets_room_though_it_refuses_a_new_segment(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = make(3, local_retention_ms=500)

    def refuse(_log: PartitionLog, _now_ms: int) -> None:
        raise StorageFault("no space")

    monkeypatch.setattr(PartitionLog, "roll", refuse)
    store: Any = Store()
    with pytest.raises(StorageFault):
        retain(remote, store, 4501)
    assert local(remote) == [3]


def test_records_without_a_time_are_as_old_as_their_file(make: Make) -> None:
    remote = make(1, times=(-1, 10**15), local_retention_ms=1000)
    store: Any = Store()
    written_ms = remote.partition.log.segments[0].modified_ms()
    retain(remote, store, written_ms + 1000)
    assert local(remote) == [0, 1]
    retain(remote, store, written_ms + 1001)
    assert local(remote)[0] == 1


@pytest.mark.parametrize(
    ("is_leader", "policy", "start"),
    [(True, "delete", 1), (False, "delete", 0), (True, "", 0)],
)
def test_copies_that_are_too_old_are_let_go_by_their_leader(
    make: Make, is_leader: bool, policy: str, start: int
) -> None:
    remote = make(3, retention_ms=1000, local_retention_bytes=SIZE, cleanup_policy=policy)
    store: Any = Store()
    retain(remote, store, 0)
    assert local(remote) == [3]
    remote.partition.is_leader = is_leader
    assert not retain(remote, store, 2001)
    assert remote.partition.log.log_start_offset == start
    assert store.moved == (1 if start else 0)


def test_the_log_start_is_told_once(make: Make) -> None:
    remote = make(3, retention_ms=1000, local_retention_bytes=SIZE)
    store: Any = Store()
    for _ in range(3):
        retain(remote, store, 0)
    assert store.moved == 0
    for _ in range(3):
        retain(remote, store, 2001)
    assert store.moved == 1


def test_where_nothing_is_copied_any_more_local_segments_have_the_time_of_all(make: Make) -> None:
    remote = make(0, local_retention_bytes=SIZE, remote_log_copy_disable="true")
    store: Any = Store()
    assert retain(remote, store, 0)
    assert local(remote) == [0, 1, 2, 3]


def test_a_log_that_begins_in_the_store_is_not_cut_by_what_is_local(make: Make) -> None:
    remote = make(3, local_retention_bytes=SIZE)
    remote.is_given_up = True
    store: Any = Store()
    assert not retain(remote, store, 0)
    assert local(remote) == [3]
    remote.partition.log.log_start_offset = 3
    assert retain(remote, store, 0)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_what_is_not_copied_yet_waits_unless_there_is_no_store_for_it(
    make: Make, is_given_up: bool
) -> None:
    remote = make(0)
    remote.is_given_up = is_given_up
    store: Any = Store()
    assert retain(remote, store, 0) == is_given_up
