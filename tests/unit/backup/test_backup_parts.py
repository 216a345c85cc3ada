"""The parts of a backup that need no family: manifests, stores, and where partitions are put."""

import errno
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmbroker.backup import manifest, target
from shmbroker.backup.asking import is_one_moment
from shmbroker.backup.manifest import Backup, PartitionBackup, SegmentObject
from shmbroker.backup.restoring import placed, restore
from shmbroker.backup.taking import prune
from shmbroker.backup.target import LOCK, Lock, open_target, put_open_file, url_of
from shmbroker.backup.verifying import stray, verify
from shmbroker.cli.backup import command
from shmbroker.cli.backup import restore as put_back
from shmbroker.cli.outcome import CommandFault
from shmbroker.controller.raft.snapshots import image_snapshot
from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
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
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.metadata.security_image import Acl
from shmbroker.records.batch import encode_batch
from shmbroker.records.batch_layout import BATCH_HEADER, H_BASE_OFFSET
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.tier.object_store import ObjectStore, StoreFault
from shmbroker.tools import log_verify

TOPIC_ID = bytes(range(16))
ACL_ID = b"a" * 16
ACL = Acl(2, "t", 3, "User:alice", "*", 3, 3)
BATCH = encode_batch([(1, None, b"value", ())], base_offset=7, leader_epoch=3)


def image_of(replicas: tuple[int, ...]) -> MetadataImage:
    image = MetadataImage("cluster")
    image.offset, image.epoch, image.next_producer_id = 500, 4, 3000
    partitions = tuple(
        PartitionImage(index, replicas, replicas[:1], replicas[0], 5, 9, (bytes(16),) * 3)
        for index in range(4)
    )
    topic = TopicImage("t", TOPIC_ID, partitions)
    image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
    image.configs = {
        (TOPIC_RESOURCE, "t"): {"min.insync.replicas": "2", "retention.ms": "1"},
        (BROKER_RESOURCE, ""): {"min.insync.replicas": "2"},
        (BROKER_RESOURCE, "7"): {"log.cleaner.threads": "1"},
    }
    image.features = {"group.version": 1}
    image.security.acls[ACL_ID] = ACL
    return image


def stored(
    store: ObjectStore,
    name: str = "one",
    *batches: bytes | bytearray,
    start: int = 7,
    end: int | None = None,
) -> Backup:
    """A backup of one partition with one segment."""
    log = b"".join(batches or (BATCH,))
    end_offset = BATCH_HEADER.unpack_from((batches or (BATCH,))[-1])[H_BASE_OFFSET] + 1
    content = b"".join(image_snapshot(image_of((3, 5, 7)), 1, 1))
    crc = crc32c(log)
    key = manifest.segment_key(TOPIC_ID.hex(), 2, 7, end_offset, len(log), crc)
    store.put(key, log)
    store.put(f"metadata/{name}", content)
    segment = SegmentObject(key, len(log), crc, 7, end_offset, 1, 1)
    end = end_offset if end is None else end
    row = PartitionBackup("t", TOPIC_ID.hex(), 2, start, end, ((3, 7),), (segment,))
    size, crc = len(content), crc32c(content)
    backup = Backup(name, "cluster", 1, f"metadata/{name}", size, crc, 500, 4, (row,))
    store.put(f"backups/{name}.json", manifest.encode(backup))
    return backup


@pytest.mark.parametrize(
    ("times", "is_one"),
    [
        ([], True),
        ([(1, 1)], True),
        ([(1, 5), (5, 9)], True),
        ([(1, 4), (5, 9)], False),
        ([(1, 10), (2, 3), (4, 9)], False),
    ],
)
def test_moment_of_all(times: list[tuple[int, int]], is_one: bool) -> None:
    assert is_one_moment(times) is is_one


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


@pytest.mark.parametrize("at", [0, 3, 8, 9, 40, -1])
def test_damaged_manifest_is_none(tmp_path: Path, at: int) -> None:
    store = open_target(str(tmp_path), None, None)
    data = bytearray(manifest.encode(stored(store)))
    assert manifest.decode("one", bytes(data)) == stored(store)
    data[at] ^= 1
    with pytest.raises(CorruptFault, match="the backup one can't be used"):
        manifest.decode("one", bytes(data))
    with pytest.raises(CorruptFault, match="can't be used"):
        manifest.decode("one", bytes(data)[: len(data) // 2])


def test_damaged_metadata_is_not_restored(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    backup = stored(store)
    store.put(backup.metadata_key, b"other")
    with pytest.raises(CorruptFault, match="is damaged: restore another"):
        restore(store, backup, str(tmp_path / "data"))


def test_damage_is_told_of_each_backup_that_has_it(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    backups = [stored(store, name) for name in ("one", "two")]
    key = backups[0].partitions[0].segments[0].key
    asked: list[tuple[int, int]] = []

    def faults() -> list[list[str]]:
        found = verify(store, manifest.names(store), lambda *both: asked.append(both))
        return [each.faults for each in found]

    assert faults() == [[], []]
    assert asked[-1][0] == asked[-1][1] == len(BATCH) + sum(each.metadata_size for each in backups)
    assert stray(store) == (0, 0)
    for at in (0, 30, len(BATCH) - 1):
        data = bytearray(BATCH)
        data[at] ^= 1
        store.put(key, data)
        assert faults() == [[f"{key} is damaged: its checksum is wrong"]] * 2
    store.put(key, BATCH[:-1])
    told = f"{key} is damaged: it ends at {len(BATCH) - 1}, and had {len(BATCH)} bytes"
    assert faults() == [[told]] * 2
    store.put(key, BATCH + b"later")  # a link to a file that has grown
    assert faults() == [[], []]
    store.delete([key, "metadata/two"])
    assert faults() == [[f"{key} is missing"], ["metadata/two is missing", f"{key} is missing"]]
    store.put("segments/strange", b"12345")
    assert stray(store) == (1, 5)
    store.put("backups/two.json", b"garbage")
    assert faults()[1] == [
        "the backup two can't be used: invalid literal for int() with base 16: b'garbage'"
    ]
    assert stray(store) is None


def test_what_is_missing_is_told_wherever_the_backup_is_used(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    names = tuple(f"t-{index:02}" for index in range(12))
    backup = stored(store)._replace(missing=names)
    store.put("backups/one.json", manifest.encode(backup))
    (verdict,) = verify(store, ["one"])
    shown = ", ".join(names[:10])
    lack = f"partitions that had no leader are not in it: {shown} and 2 more"
    assert verdict.faults == [lack]
    target, data = str(tmp_path / "backups"), str(tmp_path / "data")
    run = CliRunner().invoke
    with pytest.raises(CommandFault, match="1 of 1 backups can't be restored as they were"):
        run(command, ["verify", target], catch_exceptions=False)
    listed = run(command, ["list", target])
    assert "1 of 13" in listed.output
    told: list[str] = []
    for words in ([], ["--json"]):
        with pytest.raises(CommandFault, match=lack):
            run(put_back, [target, "--data", data, *words], catch_exceptions=False)
        told.append((tmp_path / "data" / "node-1" / "t-2" / f"{7:020}.log").read_bytes().hex())
        shutil.rmtree(data)
    assert told == [bytes(BATCH).hex()] * 2


def test_one_in_which_something_is_missing_has_none_pruned_for_its_sake(tmp_path: Path) -> None:
    """It may be the last one that has those partitions."""
    store = open_target(str(tmp_path), None, None)
    for name in ("1", "2", "3", "4", "5"):
        backup = stored(store, name)._replace(missing=("t-0",) if name in "35" else ())
        store.put(f"backups/{name}.json", manifest.encode(backup))
    assert prune(store, 2)[0] == ["1"]
    assert prune(store, 1)[0] == ["2", "3"]
    assert manifest.names(store) == ["4", "5"]
    store.delete(["backups/4.json"])
    assert prune(store, 1)[0] == []


def test_backup_from_before_anything_could_be_missing_is_whole(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    text = json.loads(manifest.encode(stored(store)).partition(b"\n")[2])
    del text["missing"]
    content = json.dumps(text).encode()
    assert manifest.decode("one", b"%08x\n" % crc32c(content) + content).missing == ()


def test_nothing_is_pruned_where_a_backup_to_keep_is_damaged(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    stored(store, "one")
    stored(store, "two")
    store.put("backups/two.json", b"garbage")
    before = sorted(store.list_objects("segments/"))
    with pytest.raises(CorruptFault):
        prune(store, 1)
    assert manifest.names(store) == ["one", "two"]
    assert sorted(store.list_objects("segments/")) == before


def test_one_at_a_time_works_in_a_directory(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "new"), None, None)
    with Lock(store), pytest.raises(ConfigFault, match="another backup or pruning works in"):
        Lock(store)
    with Lock(store):
        pass


def test_open_file_is_linked_where_it_may_be_and_ends_there(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert put_open_file(store, "a/whole", fd, 10, True)
        assert not put_open_file(store, "a/part", fd, 5, True)
        assert not put_open_file(store, "a/copy", fd, 10, False)
        path.rename(tmp_path / "renamed")  # the open file counts, not its name
        assert put_open_file(store, "b/whole", fd, 10, True)
        (tmp_path / "renamed").unlink()
    finally:
        os.close(fd)
    assert store.get("a/whole") == store.get("a/copy") == store.get("b/whole") == b"0123456789"
    assert store.get("a/part") == b"01234"
    inodes = {(tmp_path / "backups" / "a" / name).stat().st_ino for name in ("whole", "copy")}
    assert len(inodes) == 2


def test_open_file_that_can_not_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    """It gives an input/output error to who reads its first bytes."""
    store = open_target(str(tmp_path), None, None)
    path = f"/proc/{os.getpid()}/mem"
    with open(path, "rb") as file, pytest.raises(StorageFault, match=f"can't read {path}: Input/"):
        put_open_file(store, "a/copy", file.fileno(), 10, False)


def test_open_file_that_its_disk_does_not_take_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    path = tmp_path / "segment"
    path.write_bytes(BATCH)

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", refuse)
    told = f"can't write {path} to its disk"
    with path.open("rb") as file, pytest.raises(StorageFault, match=told):
        put_open_file(store, "a/link", file.fileno(), len(BATCH), True)


def test_bucket_is_a_place_like_any(s3_endpoint: str, tmp_path: Path) -> None:
    store = bucket(s3_endpoint, "backups")
    assert url_of(store) == "s3://backups/of/kafka/"
    path = tmp_path / "segment"
    path.write_bytes(BATCH + b"more")
    with path.open("rb") as file:
        crc = crc32c(BATCH)
        key = manifest.segment_key(TOPIC_ID.hex(), 2, 7, 8, len(BATCH), crc)
        assert not put_open_file(store, key, file.fileno(), len(BATCH), True)
    first, second = stored(store, "one"), stored(store, "two")
    assert manifest.names(store) == ["one", "two"]
    assert manifest.load(store, "one") == first
    assert prune(store, 1)[:2] == (["one"], 1)
    restore(store, second, str(tmp_path / "data"), 1)
    log = tmp_path / "data" / "node-1" / "t-2" / f"{7:020}.log"
    assert log.read_bytes() == BATCH
    with pytest.raises(CorruptFault, match="there is no backup one"):
        manifest.load(store, "one")


def bucket(endpoint: str, name: str) -> ObjectStore:
    import boto3

    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return open_target(f"s3://{name}/of/kafka", endpoint, None)


def test_one_at_a_time_works_in_a_bucket(s3_endpoint: str) -> None:
    store = bucket(s3_endpoint, "locked")
    stored(store)
    with Lock(store) as lock:
        refusal = rf"works in s3://locked/of/kafka/: process {os.getpid()} of \S+; wait"
        with pytest.raises(ConfigFault, match=refusal):
            prune(store, 1)
        lock.keep()
    assert prune(store, 1) == ([], 0, 0)
    assert LOCK not in {key for key, _ in store.list_objects("")}


def test_lock_of_who_was_killed_is_taken_over_when_it_is_old(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket(s3_endpoint, "left")
    monkeypatch.setattr(target, "EXPIRY_S", -1.0)
    with Lock(store) as old:
        with Lock(store) as new:
            with pytest.raises(ConfigFault, match="another backup or pruning has begun"):
                old.keep()
            old.__exit__()
            new.keep()
        assert LOCK not in {key for key, _ in store.list_objects("")}


def test_who_is_renewed_meanwhile_is_not_taken_over(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at an old lock and the PUT."""
    store = bucket(s3_endpoint, "renewed")
    monkeypatch.setattr(target, "EXPIRY_S", -1.0)
    with Lock(store) as lock:
        look = type(store).look  # type: ignore[attr-defined]

        def slow(self: object, key: str) -> tuple[bytes, str, float]:
            found = look(self, key)
            monkeypatch.setattr(type(store), "look", look)
            lock.keep()
            return found

        # The first look is for the own content: the PUT might have been repeated.
        looks = iter((look, slow))
        monkeypatch.setattr(type(store), "look", lambda self, key: next(looks)(self, key))
        with pytest.raises(ConfigFault, match="works in"):
            Lock(store)


def test_put_that_was_repeated_holds_the_lock(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As boto3 does it where the first answer was lost."""
    store = bucket(s3_endpoint, "repeated")
    put_if = type(store).put_if  # type: ignore[attr-defined]

    def twice(self: object, key: str, data: bytes, tag: str | None) -> str | None:
        put_if(self, key, data, tag)
        return put_if(self, key, data, tag)

    monkeypatch.setattr(type(store), "put_if", twice)
    with Lock(store) as lock:
        lock.keep()
    assert LOCK not in {key for key, _ in store.list_objects("")}


@pytest.mark.parametrize("lost", [1, 2])
def test_lock_of_which_the_answer_is_lost_does_not_stay(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """At its first PUT, or where it is renewed: nobody would begin for a quarter of an hour."""
    store = bucket(s3_endpoint, f"lost-{lost}")
    put_if = type(store).put_if  # type: ignore[attr-defined]
    count = itertools.count(1)

    def put(self: object, key: str, data: bytes, tag: str | None) -> str | None:
        found: str | None = put_if(self, key, data, tag)
        if next(count) == lost:
            raise StoreFault("no answer")
        return found

    monkeypatch.setattr(type(store), "put_if", put)
    monkeypatch.setattr(target, "EXPIRY_S", 0.0)
    with pytest.raises(StoreFault, match="no answer"), Lock(store) as lock:
        lock.keep()
    assert LOCK not in {key for key, _ in store.list_objects("")}


@pytest.mark.parametrize("named", ["ftp://there", "s3://"])
def test_place_that_is_none_is_refused(named: str) -> None:
    with pytest.raises(ConfigFault):
        open_target(named, None, None)
