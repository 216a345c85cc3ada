"""The log directory: identity, lock, clean marker, checkpoints; and retention."""

import fcntl
import itertools
import os
import signal

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.log.compaction.cleaned_files import deleted_paths
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records, retain
from shmbroker.log.retiring import advance_log_start, delete_log
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "node-1")


def log_in(path, settings=None, batches=0, timestamp=1000, name="t-0", **how):
    log = PartitionLog.open(
        os.path.join(path, name), LogConfig(settings or {}), file_ids=itertools.count(), **how
    )
    add(log, batches, timestamp)
    return log


def add(log, batches, timestamp=1000):
    for _ in range(batches):
        batch = encode_batch([(timestamp, b"k", bytes(100), [])])
        log.append(memoryview(batch), 0, timestamp, 0, 0)


def test_new_directory_gets_an_identity(path):
    directory = LogDirectory.open(path, 1, CLUSTER)
    assert not directory.is_clean
    again_id = directory.directory_id
    directory.close()
    again = LogDirectory.open(path, 1, CLUSTER)
    assert again.directory_id == again_id
    again.close()


@pytest.mark.parametrize(("node_id", "cluster"), [(2, CLUSTER), (1, "another")])
def test_directory_of_somebody_else_is_refused(path, node_id, cluster):
    LogDirectory.open(path, 1, CLUSTER).close()
    with pytest.raises(ConfigFault, match="belongs to"):
        LogDirectory.open(path, node_id, cluster)
    LogDirectory.open(path, 1, CLUSTER).close()


def test_directory_in_use_is_refused(path):
    os.makedirs(path)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(told, b"x")
        signal.pause()
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    try:
        with pytest.raises(ConfigFault, match="in use"):
            LogDirectory.open(path, 1, CLUSTER)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    LogDirectory.open(path, 1, CLUSTER).close()


def test_clean_stop_is_seen_once(path):
    directory = LogDirectory.open(path, 1, CLUSTER)
    log = log_in(path, batches=5)
    advance_log_start(log, 2)
    directory.close_clean([("t", 0, log)], {("t", 0): 4}, broker_epoch=11)
    with open(os.path.join(path, ".kafka_cleanshutdown")) as file:
        assert file.read() == '{"version":0,"brokerEpoch":11}'
    directory = LogDirectory.open(path, 1, CLUSTER)
    assert directory.is_clean
    assert directory.recovery_points == {("t", 0): 5}
    assert directory.high_watermarks == {("t", 0): 4}
    assert directory.log_start_offsets == {("t", 0): 2}
    assert directory.logs() == [("t", 0, os.path.join(path, "t-0"))]
    directory.close()
    directory = LogDirectory.open(path, 1, CLUSTER)
    assert not directory.is_clean
    directory.close()
    assert sorted(os.listdir(path)) == [
        ".lock",
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "t-0",
    ]


def test_damaged_checkpoint_costs_a_scan(path):
    directory = LogDirectory.open(path, 1, CLUSTER)
    directory.close_clean([("t", 0, log_in(path, batches=5))], {("t", 0): 5})
    with open(os.path.join(path, "recovery-point-offset-checkpoint"), "w") as file:
        file.write("0\n1\nt 0")
    directory = LogDirectory.open(path, 1, CLUSTER)
    assert not directory.is_clean
    assert directory.recovery_points == {}
    assert directory.high_watermarks == {("t", 0): 5}
    directory.close()


def test_deleted_logs_are_removed_at_start(path):
    directory = LogDirectory.open(path, 1, CLUSTER)
    log = log_in(path, batches=1)
    log_in(path, batches=1, name="u-3").close(clean=False)
    away = delete_log(log, "0" * 32)
    assert directory.logs() == [("u", 3, os.path.join(path, "u-3"))]
    assert not os.path.exists(away)
    directory.close()


# --- retention ---


def bases(log):
    return [segment.base_offset for segment in log.segments]


def test_old_segments_go(path):
    log = log_in(path, {"segment.bytes": "400", "retention.ms": "100"})
    for timestamp in (1000, 1000, 1050, 1050, 1200, 1200):
        add(log, 1, timestamp)
    assert bases(log) == [0, 2, 4]
    assert retain(log, 6, 1100) == 0
    assert retain(log, 6, 1101) == 1
    assert log.log_start_offset == 2
    assert retain(log, 6, 5000) == 2
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (6, 6, 0)
    log.close(clean=True)
    again = log_in(path, log_start_offset=6, batches=1)
    assert again.log_end_offset == 7
    again.close(clean=False)


@pytest.mark.parametrize(
    ("high_watermark", "kept"),
    [(0, [0, 2]), (1, [0, 2]), (2, [2]), (3, [2]), (4, [4])],  # 4: the active one has rolled
)
@pytest.mark.parametrize("rule", [{"retention.ms": "100"}, {"retention.bytes": "0"}])
def test_what_is_above_the_high_watermark_stays(path, rule, high_watermark, kept):
    log = log_in(path, {"segment.bytes": "400", **rule}, batches=4, timestamp=1000)
    retain(log, high_watermark, 9999)
    assert bases(log) == kept
    assert log.log_start_offset == kept[0]
    log.close(clean=False)


def test_deleted_segments_wait_under_another_name(path):
    log = log_in(path, {"segment.bytes": "400", "retention.bytes": "600"}, batches=8)
    content = log.segments[0].read_bytes(0, log.segments[0].size)
    assert retain(log, 8, 1000) == 2
    removed = log.retired
    assert [segment.base_offset for segment in removed] == [0, 2]
    assert removed[0].read_bytes(0, removed[0].size) == content
    waiting = [
        path for segment in removed for path in deleted_paths(log.directory, segment.base_offset)
    ]
    found = {name for name in os.listdir(log.directory) if name.endswith(".deleted")}
    assert found == {os.path.basename(path) for path in waiting if "txn" not in path}
    log.close(clean=False)
    again = log_in(path, batches=0)
    assert (again.log_start_offset, again.log_end_offset) == (4, 8)
    assert not [name for name in os.listdir(log.directory) if name.endswith(".deleted")]
    again.close(clean=False)


@pytest.mark.parametrize("policy", ["delete", "compact", "delete,compact", ""])
def test_policy_says_whether_age_counts(path, policy):
    settings = {"segment.bytes": "400", "retention.ms": "100", "cleanup.policy": policy}
    log = log_in(path, settings, batches=6, timestamp=1000)
    assert bool(retain(log, 6, 1101)) == ("delete" in policy)
    log.close(clean=False)


def test_active_segment_rolls_when_all_of_it_is_old(path):
    log = log_in(path, {"retention.ms": "100"})
    for timestamp in (1000, 1050):
        add(log, 1, timestamp)
    assert not retain(log, 2, 1150)
    assert retain(log, 2, 1151) == 1
    assert (bases(log), log.log_start_offset, log.size_bytes) == ([2], 2, 0)
    assert not retain(log, 2, 9999)  # an empty one stays
    log.close(clean=False)


def test_total_size_follows_every_change(path):
    log = log_in(path, {"segment.bytes": "400", "retention.bytes": "900"}, batches=9)

    def is_right():
        return log.size_bytes == sum(segment.size for segment in log.segments) > 0

    assert is_right()
    retain(log, 9, 1000)
    assert is_right()
    truncate_to(log, 7)
    assert is_right()
    add(log, 5)
    assert is_right()
    log.roll(1000)
    assert is_right()
    log.close(clean=True)


def test_segments_beyond_the_size_go(path):
    log = log_in(path, {"segment.bytes": "400", "retention.bytes": "600"}, batches=8)
    assert bases(log) == [0, 2, 4, 6]
    one = log.segments[0].size
    assert retain(log, 8, 1000) == 2
    assert log.size_bytes == 2 * one >= 600
    assert retain(log, 8, 1000) == 0
    log.close(clean=False)


def test_compacted_log_keeps_old_segments(path):
    settings = {"segment.bytes": "400", "retention.ms": "1", "cleanup.policy": "compact"}
    log = log_in(path, settings, batches=6)
    assert retain(log, 6, 10**9) == 0
    assert delete_records(log, 4, 6) == 4
    assert retain(log, 6, 10**9) == 2
    log.close(clean=False)


def test_records_are_deleted_up_to_the_high_watermark(path):
    log = log_in(path, {"segment.bytes": "400"}, batches=6)
    assert delete_records(log, 5, 4) is None
    assert delete_records(log, -2, 4) is None
    assert delete_records(log, 3, 4) == 3
    assert delete_records(log, 1, 4) == 3
    assert delete_records(log, -1, 4) == 4
    assert retain(log, 4, 1000) == 2
    assert bases(log) == [4]
    log.close(clean=False)


def test_records_without_timestamps_age_by_their_file(path):
    log = log_in(path, {"segment.bytes": "400", "retention.ms": "1000"}, batches=4, timestamp=-1)
    written = log.segments[0].modified_ms()
    assert retain(log, 4, written) == 0
    assert retain(log, 4, written + 10_000_000) >= 1
    log.close(clean=False)


@pytest.mark.parametrize("has_remote_store", [False, True])
def test_the_start_of_a_log_is_known_to_whoever_opens_it_as_tiered(path, has_remote_store):
    """No copies are missed that were never made: here it is the begin of a segment."""
    directory = LogDirectory.open(path, 1, "c")
    directory.has_remote_store = has_remote_store
    log = log_in(path, {"segment.bytes": "400", "retention.ms": "-1"}, batches=8)
    start = log.segments[1].base_offset
    delete_records(log, start, 8)
    retain(log, 8, log.segments[-1].modified_ms())
    assert log.segments[0].base_offset == start
    log.flush()
    directory.checkpoint([("t", 0, log)])
    assert not log.is_start_raised
    directory.close()
    directory = LogDirectory.open(path, 1, "c")
    assert directory.log_start_offsets.get(("t", 0), 0) == (start if has_remote_store else 0)
    directory.close()


def test_the_start_of_a_log_survives_two_kills_with_a_checkpoint_between(path):
    """The second process has not flushed what the first had: its recovery point is behind."""
    directory = LogDirectory.open(path, 1, "c")
    log = log_in(path, batches=3)
    delete_records(log, 2, 3)
    log.flush()
    directory.checkpoint_log_starts([("t", 0, log)])  # The recovery point is only in memory.
    directory.close()
    for _ in range(2):
        directory = LogDirectory.open(path, 1, "c")
        start = directory.log_start_offsets.get(("t", 0), 0)
        log = log_in(path, clean=False, recovery_point=0, log_start_offset=start)
        assert log.log_start_offset == 2
        directory.checkpoint([("t", 0, log)])
        directory.close()
