"""What a restore makes of a backup: where partitions are put, and what lies there."""

import itertools
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shmbroker.backup import manifest
from shmbroker.backup.manifest import Backup, SegmentObject
from shmbroker.backup.restoring import placed, restore
from shmbroker.backup.target import open_target
from shmbroker.controller.raft.snapshots import image_snapshot
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.log.checkpoints import HIGH_WATERMARK, LOG_START_OFFSET, read_offsets
from shmbroker.log.closing import FEW
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.recovery import scan
from shmbroker.log.transaction_index import AbortedTransaction, parse_entries
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.records.batch import encode_batch
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.tier.object_store import ObjectStore
from shmbroker.tools import log_verify
from tests.support.stored_backups import ACL, ACL_ID, BATCH, TOPIC_ID, image_of, stored


@pytest.mark.parametrize("replicas", [None, 1, 2, 5])
def test_partitions_are_put_on_brokers_from_one_on(replicas: int | None) -> None:
    count = replicas or 3
    directories = {node: bytes([node] * 16) for node in range(1, count + 1)}
    image = placed(image_of((3, 5, 7)), directories, replicas)
    rows = image.topics_by_name["t"].partitions
    for row in rows:
        assert len(set(row.replicas)) == count
        assert row.in_sync_replicas == row.replicas
        assert row.directories == tuple(directories[node] for node in row.replicas)
        assert (row.leader_id, row.leader_epoch, row.partition_epoch) == (-1, 6, 10)
    assert {row.replicas[0] for row in rows} == set(list(directories)[:4])
    assert set(image.brokers) == set(directories)
    least = image.configs[TOPIC_RESOURCE, "t"]
    assert least == {"min.insync.replicas": str(min(count, 2)), "retention.ms": "1"}
    assert image.configs[BROKER_RESOURCE, ""] == {"min.insync.replicas": str(min(count, 2))}
    assert (BROKER_RESOURCE, "7") not in image.configs
    assert (image.offset, image.epoch, image.next_producer_id) == (500, 4, 3000)


def test_partition_that_is_moved_gets_the_replicas_that_it_will_have() -> None:
    image = image_of((3, 5, 7))
    moved = PartitionImage(0, (3, 5, 7), (3, 5), 3, 5, 9, (bytes(16),) * 3, (7, 5), (3, 5))
    topic = TopicImage("t", TOPIC_ID, (moved,))
    image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
    directories = {node: bytes([node] * 16) for node in range(1, 4)}
    (row,) = placed(image, directories, None).topics_by_name["t"].partitions
    assert len(row.replicas) == 1


def test_restored_directories_hold_what_the_backup_says(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    told: list[tuple[int, int]] = []
    done = restore(store, stored(store), str(tmp_path / "data"), 2, lambda *both: told.append(both))
    assert (done.brokers, done.partitions, done.bytes) == (2, 4, 2 * len(BATCH))
    assert told == [(2 * len(BATCH), 2 * len(BATCH))]
    for node in ("node-1", "node-2"):
        directory = tmp_path / "data" / node
        assert (directory / "t-2" / f"{7:020}.log").read_bytes() == BATCH
        assert (directory / "t-2" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 7\n"
        assert read_offsets(f"{directory}/{HIGH_WATERMARK}") == {("t", 2): 8}
        assert read_offsets(f"{directory}/{LOG_START_OFFSET}") == {}
        assert (directory / "t-0").is_dir()
    assert not (tmp_path / "data" / ".restoring").exists()
    reader = MetadataLogReader(str(tmp_path / "data" / "node-1" / "__cluster_metadata-0"))
    follower = MetadataFollower(reader, "cluster")
    follower.catch_up(500)
    reader.close()
    assert follower.image.security.acls == {ACL_ID: ACL}
    assert follower.image.next_producer_id == 3000
    assert follower.image.features == {"group.version": 1}
    assert set(follower.image.topics_by_name) == {"t"}


@pytest.mark.parametrize("replicas", [1, 5])
def test_everything_is_durable_and_many_logs_wait_for_the_disk_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """The last sync of each file, and of each directory, is after its last change."""
    synced: dict[str, tuple[int, int]] = {}
    waited: list[str] = []

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def note(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            sync(fd)
            synced[path.removesuffix(".tmp")] = os.fstat(fd).st_size, os.fstat(fd).st_mtime_ns
            if threading.current_thread() is threading.main_thread() and path.endswith(".log"):
                waited.append(path)

        return note

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    batches = [encode_batch([(1, None, b"v", ())], base_offset=at, leader_epoch=3) for at in (7, 9)]
    store = open_target(str(tmp_path / "backups"), None, None)
    backup = stored(store, "one", *batches)
    data = tmp_path / "data"
    restore(store, backup, str(data), replicas)
    logs = [each.parent for each in data.glob(f"node-*/t-2/{7:020}.log")]
    assert len(logs) == replicas
    assert bool(waited) is (replicas <= FEW)
    late = [
        str(path.relative_to(data))
        for path in (data, *data.rglob("*"))
        if path.stat().st_size
        and synced.get(str(path)) != (path.stat().st_size, path.stat().st_mtime_ns)
    ]
    assert late == []


def stored_in_segments(store: ObjectStore, partitions: int, segments: int) -> Backup:
    """A backup of partitions that have the same batches, each in a segment of its own."""
    backup = stored(store, "many")
    image = image_of((1,))
    rows = [PartitionImage(index, (1,), (1,), 1, 5, 9, (bytes(16),)) for index in range(partitions)]
    topic = TopicImage("t", TOPIC_ID, tuple(rows))
    image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
    content = b"".join(image_snapshot(image, 1, 1))
    store.put(backup.metadata_key, content)
    objects = []
    for at in range(7, 7 + segments):
        batch = encode_batch([(1, None, b"value", ())], base_offset=at, leader_epoch=3)
        size, crc = len(batch), crc32c(batch)
        key = manifest.segment_key(TOPIC_ID.hex(), 0, at, at + 1, size, crc)
        store.put(key, batch)
        objects.append(SegmentObject(key, size, crc, at, at + 1, 1, 1))
    row = backup.partitions[0]._replace(high_watermark=7 + segments, segments=tuple(objects))
    backup = backup._replace(
        metadata_size=len(content),
        metadata_crc=crc32c(content),
        partitions=tuple(row._replace(partition=index) for index in range(partitions)),
    )
    store.put("backups/many.json", manifest.encode(backup))
    return backup


def test_many_segments_need_no_more_open_files_than_are_allowed(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    backup = stored_in_segments(store, 20, 16)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 450, before[1]))
    try:
        assert restore(store, backup, str(tmp_path / "data")).partitions == 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_restore_opens_as_many_files_as_it_may(tmp_path: Path) -> None:
    """A log of many segments, as a shell begins a command: with a low limit that may be raised."""
    stored_in_segments(open_target(str(tmp_path / "backups"), None, None), 1, 100)
    words = ["restore", str(tmp_path / "backups"), "--data", str(tmp_path / "data")]
    limited = ["sh", "-c", 'ulimit -Sn 256 && exec "$0" "$@"']
    done = subprocess.run(
        [*limited, sys.executable, "-m", "shmbroker", *words],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("replicas", [1, 2])
def test_start_on_what_was_restored_scans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """Also where compaction has left gaps in a log that nothing compacts any more."""
    batches = [
        encode_batch([(each, None, bytes(9000), ())], base_offset=each, leader_epoch=3)
        for each in (7, 8, 12, 13)
    ]
    store = open_target(str(tmp_path / "backups"), None, None)
    restore(store, stored(store, "one", *batches), str(tmp_path / "data"), replicas)
    scanned: list[str] = []
    monkeypatch.setattr(scan, "scan_segment", lambda log, *_, **__: scanned.append(log))
    for node in range(1, replicas + 1):
        place = LogDirectory.open(f"{tmp_path}/data/node-{node}", node, "cluster")
        assert place.is_clean
        log = PartitionLog.open(
            f"{place.path}/t-2",
            LogConfig(),
            file_ids=itertools.count(1),
            clean=place.is_clean,
            recovery_point=place.recovery_points["t", 2],
            cleaned_offset=place.cleaned_offset(("t", 2)),
        )
        assert (log.log_end_offset, log.cleaned_offset) == (14, 14)
        assert place.cleaned_offset(("t", 0)) == 0
        (segment,) = log.segments
        assert segment.offset_index.count == 3
        segment, position, length = log.read(8, 1 << 20, 14)
        assert segment.read_bytes(position, length) == b"".join(batches[1:])
        log.close(clean=False)
        place.close()
    assert not scanned


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize(("start", "end"), [(0, 8), (7, 20), (3, 20)])
def test_log_begins_and_ends_where_it_did_though_nothing_is_there(
    tmp_path: Path, start: int, end: int, policy: str
) -> None:
    """Compaction has emptied its first segment, or its last one before the one that is written to:
    no committed offset is before the log, and none is given twice."""
    store = open_target(str(tmp_path / "backups"), None, None)
    restore(store, stored(store, start=start, end=end), str(tmp_path / "data"), 1)
    assert [each.fault for each in log_verify.verify(str(tmp_path / "data")) if each.fault] == []
    for is_clean in (True, False):
        place = LogDirectory.open(f"{tmp_path}/data/node-1", 1, "cluster")
        log = PartitionLog.open(
            f"{place.path}/t-2",
            LogConfig({"cleanup.policy": policy}),
            file_ids=itertools.count(1),
            clean=is_clean,
            recovery_point=place.recovery_points["t", 2] if is_clean else 0,
            log_start_offset=place.log_start_offsets.get(("t", 2), 0),
            cleaned_offset=place.cleaned_offset(("t", 2)),
            is_only_replica=True,
        )
        assert (log.log_start_offset, log.log_end_offset) == (start, end)
        segment, position, length = log.read(7, 1 << 20, end)
        assert segment.read_bytes(position, length) == BATCH
        log.close(clean=False)
        place.close()


def test_aborted_transactions_are_known_after_a_restore(tmp_path: Path) -> None:
    """A start after a clean stop looks for none."""
    value = [(7, None, b"aborted", ())]
    begun = encode_batch(
        value,
        base_offset=7,
        leader_epoch=3,
        base_sequence=0,
        producer_id=1,
        producer_epoch=0,
        is_transactional=True,
    )
    marker = bytearray(encode_marker(EndMarker(1, 0, 0, is_commit=False), 8))
    marker[0:8] = (8).to_bytes(8, "big")
    marker[12:16] = (3).to_bytes(4, "big")
    last = encode_batch([(9, None, b"value", ())], base_offset=9, leader_epoch=3)
    store = open_target(str(tmp_path / "backups"), None, None)
    restore(store, stored(store, "one", begun, marker, last), str(tmp_path / "data"), 1)
    index = tmp_path / "data" / "node-1" / "t-2" / f"{7:020}.txnindex"
    assert parse_entries(index.read_bytes()) == [AbortedTransaction(1, 7, 8, 9)]


def test_damaged_metadata_is_not_restored(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    backup = stored(store)
    store.put(backup.metadata_key, b"other")
    with pytest.raises(CorruptFault, match="is damaged: restore another"):
        restore(store, backup, str(tmp_path / "data"))
