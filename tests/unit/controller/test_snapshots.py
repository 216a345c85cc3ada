"""Snapshots: written, retained, read by those that come late, fetched by voters that lag."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from controller_at_work import CLUSTER_ID, DIRECTORY_ID, NOW_MS, join

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.raft import metadata_log
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum import FOLLOWER, LEADER, Quorum
from shmbroker.controller.raft.quorum_messages import SnapshotId
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.snapshots import SnapshotSchedule, image_snapshot
from shmbroker.controller.raft.snapshots import snapshot as snapshot_pieces
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.draft import applied
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from shmbroker.metadata.image_records import image_records
from shmbroker.metadata.log_reader import MetadataLogReader, snapshot_ids, snapshot_name
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire.metadata_records import decode_metadata_record, encode_metadata_record
from tests.support.damaged_directory import Damage, empty, fill, flip, flip_last, halve, zero
from tests.support.descriptors import open_below
from tests.support.kills import kill_after
from tests.support.metadata_log import read_all

METADATA = "__cluster_metadata-0"
STEADY_MS = 50_000
"""What waits goes by another clock than that of records."""


def now_ms() -> int:
    return NOW_MS


def feature(level: int) -> tuple:
    return "FeatureLevelRecord", 0, {"name": "test.version", "feature_level": level}


def follower_of(directory: Path) -> MetadataFollower:
    return MetadataFollower(MetadataLogReader(str(directory / METADATA)), CLUSTER_ID)


@pytest.fixture
def lived_in(controller: ActiveController) -> ActiveController:
    """A controller with topics, settings, producer ids, a fenced broker."""
    topic = {"num_partitions": 2, "replication_factor": 1, "assignments": []}
    configs = [{"name": "retention.ms", "value": "1234567"}]
    topics = [topic | {"name": "a", "configs": configs}, topic | {"name": "b", "configs": []}]
    request = {"topics": topics, "validate_only": False, "timeout_ms": 1}
    controller.handle("CreateTopics", 7, request, NOW_MS)
    controller.allocate_producer_ids(1, controller.image.brokers[1].broker_epoch, NOW_MS)
    join(controller, 2)
    controller.membership.fence_broker(2, NOW_MS)
    return controller


def test_an_image_is_what_its_records_make(lived_in: ActiveController) -> None:
    image = lived_in.image
    records = [(at, 0, *record) for at, record in enumerate(image_records(image, []))]
    made, _ = applied(MetadataImage(CLUSTER_ID), records, image.offset, image.epoch)
    assert made == image


def test_all_that_is_known_of_a_broker_and_a_partition_is_in_a_snapshot() -> None:
    """Each field has a value that no other has, and that isn't the one it has by default."""
    image = MetadataImage(CLUSTER_ID)
    broker = BrokerImage(3, "h", 9, "r", 5, b"i" * 16, False, (b"d" * 16,), True)
    directories = (b"1" * 16, b"2" * 16)
    partition = PartitionImage(0, (1, 2), (1,), 1, 4, 7, directories, (2,), (5,), (6,), (8,), 1)
    topic = TopicImage("t", b"t" * 16, (partition,))
    image.brokers[3] = broker
    image.topics_by_name["t"] = image.topics_by_id[topic.topic_id] = topic
    rows = [encode_metadata_record(*record) for record in image_records(image, [])]
    records = [(at, 0, *decode_metadata_record(row)) for at, row in enumerate(rows)]
    assert applied(MetadataImage(CLUSTER_ID), records, 0, 0)[0] == image


def test_who_begins_late_begins_with_the_snapshot(
    lived_in: ActiveController, tmp_path: Path
) -> None:
    image, log = lived_in.image, lived_in.log.voter.log
    snapshot = SnapshotId(image.offset, image.epoch)
    log.add_snapshot(snapshot, image_snapshot(image, NOW_MS, NOW_MS))
    assert snapshot_ids(log.directory) == [tuple(snapshot)]
    late = follower_of(tmp_path)
    late.catch_up(image.offset)
    assert late.image == image
    assert None in list(follower_of(tmp_path).reader.lots(image.offset))


def test_a_snapshot_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({}))

    def content() -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files, held = sorted(os.listdir(log.directory)), open_below(log.directory)
    with pytest.raises(DiskFullFault):
        log.add_snapshot(SnapshotId(1, 1), content())
    assert sorted(os.listdir(log.directory)) == files
    assert open_below(log.directory) == held


def test_a_piece_of_a_snapshot_that_is_taken_in_parts_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({}))
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    snapshot = SnapshotId(1, 1)
    log.write_snapshot(snapshot, 0, b"the first ")
    log.write_snapshot(snapshot, 10, b"and the second")
    log.install_snapshot(snapshot)
    assert log.read_snapshot(snapshot, 0) == (24, b"the first and the second")


def test_a_kill_amid_a_snapshot_leaves_no_epoch_of_records_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms)
    log.append(7, [feature(1)], NOW_MS)
    log.flush()
    snapshot = SnapshotId(100, 6)
    log.write_snapshot(snapshot, 0, b"".join(snapshot_pieces([feature(1)], 6, NOW_MS, NOW_MS)))

    class Killed(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(metadata_log, "truncate_fully", die)
        with pytest.raises(Killed):
            log.install_snapshot(snapshot)
    again = MetadataLog.open(str(tmp_path), now_ms)
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    assert again.last_epoch == 6
    again.close()


@pytest.mark.parametrize("end_offset", [90, 130])
def test_a_kill_at_any_step_of_a_snapshot_leaves_a_log_or_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_offset: int
) -> None:
    """The log was ended cleanly, and leads elsewhere than the snapshot, or not as far."""
    snapshot = SnapshotId(100, 6)
    content = b"".join(snapshot_pieces([feature(1)], 6, NOW_MS, NOW_MS))

    def killed_after(steps: int) -> bool:
        """Whether there were more steps than these."""
        node = tmp_path / str(steps)
        config = LogConfig({"segment.bytes": "2000"})
        log = MetadataLog.open(str(node), now_ms, config)
        for level in range(end_offset):
            log.append(5, [feature(level)], NOW_MS)
        log.close()
        assert len(list((node / METADATA).glob("*.log"))) > 2
        log = MetadataLog.open(str(node), now_ms, config)
        log.write_snapshot(snapshot, 0, content)
        calls = [(os, name) for name in ("unlink", "rename", "ftruncate", "open")]
        with kill_after(steps, monkeypatch, *calls) as kill:
            log.install_snapshot(snapshot)
        again = MetadataLog.open(str(node), now_ms)
        epoch, end = again.last_epoch, again.log_end_offset
        is_as_before = kill.happened and end <= end_offset
        assert end == 100 if epoch == 6 else is_as_before, (steps, epoch, end)
        assert bool(again.read(0)) == (epoch == 5), "what is before it is in the snapshot"
        again.close()
        return kill.happened

    assert next(steps for steps in range(200) if not killed_after(steps)) > 20


def test_another_snapshot_takes_the_place_of_one_that_has_not_come_whole(tmp_path: Path) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms)
    held = open_below(log.directory)
    log.write_snapshot(SnapshotId(50, 1), 0, b"some of the first")
    later = SnapshotId(100, 2)
    log.write_snapshot(later, 0, b"some of it")
    log.write_snapshot(later, 0, b"all ")  # begun anew
    log.write_snapshot(later, 4, b"of it")
    log.install_snapshot(later)
    assert log.latest_snapshot() == later
    assert log.read_snapshot(later, 0) == (9, b"all of it")
    assert not list((tmp_path / METADATA).glob("*.part"))
    assert open_below(log.directory) == held
    log.close()


def test_a_full_disk_takes_the_next_piece_of_a_snapshot_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms)
    snapshot = SnapshotId(1, 1)
    log.write_snapshot(snapshot, 0, b"the first ")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullFault):
            log.write_snapshot(snapshot, 10, b"and the second")
    log.write_snapshot(snapshot, 10, b"and the second")
    log.install_snapshot(snapshot)
    assert log.read_snapshot(snapshot, 0) == (24, b"the first and the second")


def test_snapshots_come_by_growth_and_by_time_and_old_ones_go(tmp_path: Path) -> None:
    config = BrokerConfig(
        {
            "metadata.log.max.record.bytes.between.snapshots": "500",
            "metadata.log.max.snapshot.interval.ms": "1000",
            "metadata.max.retention.bytes": "800",
        }
    )
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({"segment.bytes": "400"}))
    schedule = SnapshotSchedule(log, config)
    follower = follower_of(tmp_path)
    written = []
    for level in range(40):
        log.append(1, [feature(level)], NOW_MS)
        log.flush()
        follower.catch_up(log.log_end_offset)
        if schedule.maybe_write(follower, NOW_MS, STEADY_MS):
            written.append(log.log_end_offset)
    assert len(written) > 3
    assert log.log_start_offset > 0
    assert snapshot_ids(log.directory)[-1][0] == written[-1]
    assert not list((tmp_path / METADATA).glob("*.deleted")), "nobody reads them by descriptor"
    assert log.log_start_offset in {end for end, _ in snapshot_ids(log.directory)}
    log.append(1, [feature(99)], NOW_MS)
    log.flush()
    follower.catch_up(log.log_end_offset)
    set_back_ms = NOW_MS - 3_600_000  # in between the wall clock is set
    assert not schedule.maybe_write(follower, set_back_ms, STEADY_MS + 900)
    assert schedule.maybe_write(follower, set_back_ms, STEADY_MS + 1000)
    assert not schedule.maybe_write(follower, set_back_ms, STEADY_MS + 9000), "nothing has changed"
    log.append(1, [feature(100)], NOW_MS)
    log.flush()
    follower.catch_up(log.log_end_offset)
    assert schedule.maybe_write(follower, NOW_MS, STEADY_MS + 9000)
    log.append(1, [feature(99)], NOW_MS)
    log.flush()
    follower.catch_up(log.log_end_offset)
    assert not schedule.maybe_write(follower, NOW_MS, STEADY_MS + 9999), "an interval after that"
    end_offset = log.log_end_offset
    log.close()
    again = MetadataLog.open(str(tmp_path), now_ms)
    assert again.log_end_offset == end_offset
    late = follower_of(tmp_path)
    late.catch_up(end_offset)
    assert late.image.features == {"test.version": 99}
    again.close()


def test_no_snapshot_is_written_while_records_are_read_that_the_image_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmbroker.metadata.follower.LOT_RECORDS", 1)
    config = BrokerConfig({"metadata.log.max.record.bytes.between.snapshots": "10"})
    log = MetadataLog.open(str(tmp_path), now_ms)
    schedule = SnapshotSchedule(log, config)
    follower = follower_of(tmp_path)
    log.append(1, [("BeginTransactionRecord", 0, {"name": None}), feature(1)], NOW_MS)
    log.flush()
    follower.catch_up(log.log_end_offset)
    log.append(1, [feature(2), feature(3), ("EndTransactionRecord", 0, {})], NOW_MS)
    log.flush()
    assert follower.advance(log.log_end_offset) is None
    assert follower.is_midway and not schedule.maybe_write(follower, NOW_MS, STEADY_MS)
    follower.catch_up(log.log_end_offset)
    assert schedule.maybe_write(follower, NOW_MS, STEADY_MS)
    log.close()


@pytest.mark.parametrize("damage", [flip, flip_last, empty, halve, zero, fill])
def test_a_damaged_snapshot_is_put_aside_while_the_log_leads_there(
    tmp_path: Path, damage: Damage
) -> None:
    node = tmp_path / "node-1"
    log = MetadataLog.open(str(node), now_ms)
    follower = MetadataFollower(MetadataLogReader(log.directory), "cluster")
    for level in range(1, 20):
        log.append(1, [feature(level)], NOW_MS)
        log.flush()
        if level % 6 == 0:
            follower.catch_up(log.log_end_offset)
            snapshot = SnapshotId(follower.image.offset, follower.image.epoch)
            log.add_snapshot(snapshot, image_snapshot(follower.image, NOW_MS, NOW_MS))
    log.close()
    *sound, latest = snapshot_ids(log.directory)
    name = snapshot_name(*latest)
    damage(Path(log.directory) / name)
    again = MetadataLog.open(str(node), now_ms)
    assert snapshot_ids(log.directory) == sound
    assert (tmp_path / "quarantine" / "node-1" / METADATA / name).exists()
    late = MetadataFollower(MetadataLogReader(log.directory), "cluster")
    late.catch_up(again.log_end_offset)
    assert late.image.features == {"test.version": 19}
    again.close()


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_reader_whose_segments_are_gone_goes_on_with_a_snapshot(
    tmp_path: Path, is_in_transaction: bool
) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({"segment.bytes": "300"}))
    behind = follower_of(tmp_path)
    ahead = follower_of(tmp_path)
    for level in range(1, 30):
        if is_in_transaction and level == 2:
            log.append(1, [("BeginTransactionRecord", 0, {"name": None})], NOW_MS)
        log.append(1, [feature(level)], NOW_MS)
        log.flush()
        if level == 2:
            behind.catch_up(log.log_end_offset)
            assert behind.reader.is_in_transaction is is_in_transaction
            if is_in_transaction:
                log.append(1, [("EndTransactionRecord", 0, {})], NOW_MS)
        if level % 10 == 0:
            ahead.catch_up(log.log_end_offset)
            snapshot = SnapshotId(ahead.image.offset, ahead.image.epoch)
            log.add_snapshot(snapshot, image_snapshot(ahead.image, NOW_MS, NOW_MS))
            log.retain(0, -1)
    behind.catch_up(log.log_end_offset)
    assert not behind.reader.is_in_transaction
    assert behind.image.features == {"test.version": 29}
    assert behind.image.offset == log.log_end_offset
    log.close()


def test_a_log_that_no_snapshot_leads_to_is_refused(tmp_path: Path) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({"segment.bytes": "300"}))
    for level in range(1, 10):
        log.append(1, [feature(level)], NOW_MS)
    log.close()
    (tmp_path / METADATA / f"{0:020d}.log").unlink()
    with pytest.raises(CorruptFault, match="no snapshot leads there"):
        MetadataLog.open(str(tmp_path), now_ms)


def test_a_log_begins_at_the_first_snapshot_that_its_files_continue(tmp_path: Path) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms, LogConfig({"segment.bytes": "300"}))
    for level in range(1, 10):
        log.append(1, [feature(level)], NOW_MS)
    log.flush()
    for end_offset in (1, 8, 9):
        pieces = snapshot_pieces([feature(1)], 1, NOW_MS, NOW_MS)
        log.add_snapshot(SnapshotId(end_offset, 1), pieces)
    log.close()
    first, second, *_ = sorted((tmp_path / METADATA).glob("*.log"))
    assert 1 < int(second.stem) < 8
    first.unlink()
    again = MetadataLog.open(str(tmp_path), now_ms)
    assert again.log_start_offset == 8
    again.close()


def test_a_snapshot_that_is_not_durable_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageFault, match="no such luck"):
            log.add_snapshot(SnapshotId(1, 1), [b"some"])
    assert log.latest_snapshot() is None
    log.close()


def test_a_voter_that_lags_fetches_the_snapshot_in_pieces_and_then_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmbroker.controller.raft.metadata_log.SNAPSHOT_BYTES_MAX", 100)
    voters = {}
    for node in (1, 2, 3):
        (tmp_path / f"node-{node}").mkdir()
        log = MetadataLog.open(
            str(tmp_path / f"node-{node}"), now_ms, LogConfig({"segment.bytes": "300"})
        )
        voters[node] = Quorum(node, (1, 2, 3), log, QuorumState(log.directory), Random(1))
        voters[node].start(1000)
    clock = [1000]

    def run(nodes: tuple[int, ...], ms: int) -> None:
        end = clock[0] + ms
        while clock[0] < end:
            clock[0] += 10
            for node in nodes:
                voters[node].tick(clock[0])
            while any(voters[node].outbox for node in nodes):
                for node in nodes:
                    outbox, voters[node].outbox = voters[node].outbox, []
                    for to, token, message in outbox:
                        if to not in nodes:
                            voters[node].on_failed(clock[0], to, token)
                        elif "Answer" in type(message).__name__:
                            voters[to].on_answer(clock[0], node, token, message)
                        else:
                            voters[to].on_request(clock[0], node, token, message)

    run((1, 2), 2000)
    (leader,) = (voter for voter in voters.values() if voter.state == LEADER)
    follower = follower_of(tmp_path / f"node-{leader.node_id}")
    for level in range(30):
        leader.log.append(leader.epoch, [feature(level)], NOW_MS)
        leader.on_appended(clock[0])
        leader.log.flush()
        leader.on_flushed(clock[0])
        run((1, 2), 20)
        if level % 10 == 9:
            follower.catch_up(leader.high_watermark)
            image = follower.image
            leader.log.add_snapshot(
                SnapshotId(image.offset, image.epoch), image_snapshot(image, NOW_MS, NOW_MS)
            )
            leader.log.retain(0, -1)
    assert leader.log.log_start_offset > 0
    run((1, 2, 3), 3000)
    assert voters[3].state == FOLLOWER
    assert voters[3].log.log_end_offset == leader.log.log_end_offset
    assert voters[3].high_watermark == leader.high_watermark
    assert voters[3].log.log_start_offset > 0
    late = follower_of(tmp_path / "node-3")
    late.catch_up(voters[3].high_watermark)
    assert late.image.features == {"test.version": 29}
    for voter in voters.values():
        voter.log.close()
    reopened = MetadataLog.open(str(tmp_path / "node-3"), now_ms)
    assert (reopened.log_end_offset, reopened.last_epoch) == (
        leader.log.log_end_offset,
        leader.epoch,
    )
    reopened.close()


def test_who_moves_to_another_directory_goes_on_at_the_same_offset(tmp_path: Path) -> None:
    follower = None
    for node in ("one", "two"):
        (tmp_path / node).mkdir()
        log = MetadataLog.open(str(tmp_path / node), now_ms)
        for level in range(1, 6 if node == "one" else 9):
            log.append(1, [feature(level)], NOW_MS)
        log.flush()
        if follower is None:
            follower = follower_of(tmp_path / node)
        else:
            follower.reader.move(str(tmp_path / node / METADATA))
        follower.catch_up(log.log_end_offset)
        log.close()
    assert follower.image.features == {"test.version": 8}


def test_directory_ids_stay(lived_in: ActiveController) -> None:
    (record,) = (
        message
        for name, _, message in image_records(lived_in.image, [])
        if name == "RegisterBrokerRecord" and message["broker_id"] == 1
    )
    assert record["log_dirs"] == [DIRECTORY_ID]


def test_who_moves_finds_the_place_by_the_index(tmp_path: Path) -> None:
    log = MetadataLog.open(str(tmp_path), now_ms)
    follower = follower_of(tmp_path)
    for level in range(1, 400):
        log.append(1, [feature(level)], NOW_MS)
        if level == 300:
            log.flush()
            follower.catch_up(log.log_end_offset)
    log.flush()
    reader = follower.reader
    reader.move(log.directory)
    follower.catch_up(log.log_end_offset)
    assert follower.image.features == {"test.version": 399}
    reader.move(log.directory)
    reader.next_offset = 300
    assert len(read_all(reader, log.log_end_offset)) == 99
    reader.move(log.directory)
    reader.next_offset = 300
    reader._open_segment(0)
    assert 0 < reader._indexed_position(0) < log.size_bytes * 300 // 399
    log.close()


def test_a_full_disk_costs_a_snapshot_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig({"metadata.log.max.record.bytes.between.snapshots": "10"})
    log = MetadataLog.open(str(tmp_path), now_ms)
    schedule = SnapshotSchedule(log, config)
    follower = follower_of(tmp_path)
    log.append(1, [feature(1)], NOW_MS)
    log.flush()
    follower.catch_up(log.log_end_offset)

    def full(*_: object) -> list:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(
            "shmbroker.controller.raft.snapshots.image_snapshot", lambda *_: map(full, [1])
        )
        assert not schedule.maybe_write(follower, NOW_MS, STEADY_MS)
    assert not list((tmp_path / METADATA).glob("*.part"))
    assert not schedule.maybe_write(follower, NOW_MS, STEADY_MS + 59_000)
    assert schedule.maybe_write(follower, NOW_MS, STEADY_MS + 60_000)
    log.close()
