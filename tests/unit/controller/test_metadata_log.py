"""The metadata log on disk: epochs, recovery, damage; the files beside it."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from controller_at_work import NOW_MS

from shmbroker.controller.bootstrap import (
    FEATURE_LEVELS,
    bootstrap_checkpoint,
    bootstrap_records,
    users_of,
)
from shmbroker.controller.raft.metadata_log import (
    BATCH_BYTES_MAX,
    DecisionTooLargeFault,
    MetadataLog,
)
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.snapshots import snapshot
from shmbroker.controller.raft.voter import Voter
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import METADATA_TOPIC_ID, uuid_text
from shmbroker.log.meta_properties import META_PROPERTIES
from shmbroker.log.partition_metadata import read_partition_metadata
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.records.batch_layout import CONTROL_BIT, H_LENGTH, LOG_OVERHEAD
from shmbroker.wire import codec
from tests.support.family_memory import VirtualClock
from tests.support.metadata_log import read_all

LOG = "__cluster_metadata-0/00000000000000000000.log"


def open_alone(directory: Path, node_id: int = 1) -> Voter:
    """The only voter, on the log in a directory."""
    voter = Voter.open(str(directory), node_id, clock=VirtualClock())
    voter.start()
    return voter


def feature(level: int) -> tuple:
    return "FeatureLevelRecord", 0, {"name": "test.version", "feature_level": level}


def levels(directory: Path, end_offset: int) -> list[int]:
    reader = MetadataLogReader(str(directory / "__cluster_metadata-0"))
    try:
        return [message["feature_level"] for *_, message in read_all(reader, end_offset)]
    finally:
        reader.close()


@pytest.mark.parametrize("with_directory", [False, True])
def test_nothing_is_lost_of_a_log_whose_file_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_directory: bool
) -> None:
    log = open_alone(tmp_path)
    log.append([feature(7)], NOW_MS)
    if with_directory:
        shutil.rmtree(tmp_path / "__cluster_metadata-0")
    else:
        (tmp_path / LOG).unlink()
    with pytest.raises(StorageFault):  # whoever has the old file open sees nothing more
        log.append([feature(8)], NOW_MS)
    assert "was removed by somebody; it is there again" in caplog.text
    log = open_alone(tmp_path)
    assert levels(tmp_path, log.committed_offset) == [7, 8]
    log.close()


def test_an_epoch_begins_with_its_leader(tmp_path: Path) -> None:
    log = open_alone(tmp_path, 3)
    assert (log.epoch, log.committed_offset, log.log_end_offset) == (1, 1, 1)
    log.close()
    content = (tmp_path / LOG).read_bytes()
    ((_, header),) = list(iterate_batches(content))
    assert header[2] == 1
    assert header[5] & CONTROL_BIT
    ((offset, timestamp, key, value, _),) = list(iterate_records(content))
    assert (offset, timestamp, key) == (0, VirtualClock().now_ms(), bytes((0, 0, 0, 2)))
    message = codec.decode_all("LeaderChangeMessage", 0, value)
    assert message["leader_id"] == 3
    assert [voter["voter_id"] for voter in message["voters"]] == [3]


def test_every_start_is_a_new_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        log = open_alone(tmp_path)
        assert log.epoch == epoch
        assert QuorumState(log.directory).read() == (epoch, 1, -1)
        log.close()


def test_epoch_does_not_go_back_when_either_file_is_gone(tmp_path: Path) -> None:
    open_alone(tmp_path).close()
    QuorumState(str(tmp_path / LOG).rpartition("/")[0]).write(7, 1, -1)
    log = open_alone(tmp_path)
    assert log.epoch == 8
    log.close()
    (tmp_path / "__cluster_metadata-0/quorum-state").unlink()
    log = open_alone(tmp_path)
    assert log.epoch == 9
    log.close()


@pytest.mark.parametrize(
    "identity", [None, "", "garbage", f"version: 0\ntopic_id: {uuid_text(bytes(15) + b'x')}\n"]
)
def test_a_log_gets_its_identity_and_what_is_no_part_of_it_goes(
    tmp_path: Path, identity: str | None
) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    (tmp_path / META_PROPERTIES).touch()  # strangers are put aside in a node's directory only
    (directory / "00000000000000000009.log").mkdir()
    (directory / "00000000000000000100-0000000007.checkpoint.part").write_text("not whole")
    path = directory / "partition.metadata"
    if identity is not None:
        path.write_text(identity)
    open_alone(tmp_path).close()
    assert read_partition_metadata(str(path)) == METADATA_TOPIC_ID
    left = sorted(one.name for one in directory.iterdir() if one.suffix in (".log", ".part"))
    assert left == ["00000000000000000000.log"]


def test_what_was_appended_is_there_after_a_kill(tmp_path: Path) -> None:
    log = open_alone(tmp_path)
    assert log.append([feature(1), feature(2)], NOW_MS) == 3
    assert log.append([feature(3)], NOW_MS) == log.committed_offset == 4
    # no close: the process was killed
    again = open_alone(tmp_path)
    assert again.committed_offset == 5
    assert levels(tmp_path, 5) == [1, 2, 3]
    again.close()


def test_a_decision_that_is_too_large_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = open_alone(tmp_path)
    large = ("FeatureLevelRecord", 0, {"name": "x" * (1 << 14), "feature_level": 1})
    with pytest.raises(DecisionTooLargeFault):
        log.append([large] * (BATCH_BYTES_MAX >> 14), NOW_MS)
    assert log.append([feature(1)], NOW_MS) == 2
    log.close()


def test_only_whole_batches_that_continue_the_log_are_taken_from_a_leader(tmp_path: Path) -> None:
    leads = open_alone(tmp_path / "leads")
    leads.append([feature(1)], NOW_MS)
    batches = leads.log.read(0)
    leads.close()
    log = MetadataLog.open(str(tmp_path / "follows"), lambda: NOW_MS)
    damaged = batches[:-1] + bytes([batches[-1] ^ 1])
    for records in damaged, batches:  # the second time they don't continue it
        with pytest.raises(CorruptFault):
            log.append_fetched(records)
        assert log.log_end_offset == 1
    first = next(iterate_batches(batches))[1][H_LENGTH] + LOG_OVERHEAD
    log.append_fetched(batches[first:])
    assert log.read(0) == batches
    log.close()


def test_nothing_is_committed_before_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_alone(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageFault, match="no such luck"):
            log.append([feature(1)], NOW_MS)
    assert (log.committed_offset, log.log_end_offset) == (1, 2)


def kill(log: Voter, directory: Path) -> None:
    """What a process that is killed leaves: no producer snapshot at the end."""
    log.close()
    for path in (directory / LOG).parent.glob("*.snapshot"):
        path.unlink()


def test_torn_last_batch_is_cut(tmp_path: Path) -> None:
    log = open_alone(tmp_path)
    log.append([feature(1)], NOW_MS)
    log.append([feature(2)], NOW_MS)
    kill(log, tmp_path)
    path = tmp_path / LOG
    path.write_bytes(path.read_bytes()[:-3])
    log = open_alone(tmp_path)
    assert log.append([feature(4)], NOW_MS) == 4
    assert levels(tmp_path, 4) == [1, 4]
    log.close()


@pytest.mark.parametrize("size", [-3, -200, 0])
def test_log_that_was_longer_at_a_clean_end_is_refused(tmp_path: Path, size: int) -> None:
    log = open_alone(tmp_path)
    log.append([feature(1)], NOW_MS)
    log.append([feature(2)], NOW_MS)
    log.close()
    path = tmp_path / LOG
    content = path.read_bytes()
    path.write_bytes(content[:size] if size else b"")
    for _ in range(2):
        with pytest.raises(CorruptFault, match=f"{path}.*restore the file"):
            open_alone(tmp_path)
    path.unlink()
    with pytest.raises(CorruptFault, match="restore the file"):
        open_alone(tmp_path)
    path.write_bytes(content)
    open_alone(tmp_path).close()


def test_empty_log_beside_logs_of_topics_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flights-0").mkdir()
    with pytest.raises(CorruptFault, match="flights-0"):
        open_alone(tmp_path)


def test_damaged_last_batch_is_cut(tmp_path: Path) -> None:
    log = open_alone(tmp_path)
    log.append([feature(1)], NOW_MS)
    log.append([feature(2)], NOW_MS)
    kill(log, tmp_path)
    path = tmp_path / LOG
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content + bytes(4096))
    log = open_alone(tmp_path)
    assert levels(tmp_path, log.committed_offset) == [1]
    log.close()


@pytest.mark.parametrize("at", [3, 11, 15, 16, 18, 26, 70])
def test_damage_before_a_whole_batch_is_refused_and_nothing_is_cut(tmp_path: Path, at: int) -> None:
    """In base offset, length, epoch, magic, CRC, last offset delta, records."""
    log = open_alone(tmp_path)
    for level in (1, 2, 3):
        log.append([feature(level)], NOW_MS)
    log.close()
    path = tmp_path / LOG
    content = bytearray(path.read_bytes())
    (_, _), (second, _), *_ = list(iterate_batches(bytes(content)))
    content[second + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFault, match=f"position {second} is damaged"):
        open_alone(tmp_path)
    assert path.read_bytes() == content


def test_quorum_state_is_written_as_kafka_does(tmp_path: Path) -> None:
    state = QuorumState(str(tmp_path))
    state.voters = [1]
    state.write(5, 1, -1)
    assert (tmp_path / "quorum-state").read_text() == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    again = QuorumState(str(tmp_path))
    assert (again.read(), again.voters, again.data_version) == ((5, 1, -1), [1], 0)


def test_quorum_state_of_version_1_stays_one(tmp_path: Path) -> None:
    open_alone(tmp_path).close()
    path = tmp_path / "__cluster_metadata-0/quorum-state"
    path.write_text(
        '{"leaderId":1,"leaderEpoch":4,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    open_alone(tmp_path).close()
    state = json.loads(path.read_text())
    assert (state["leaderEpoch"], state["data_version"]) == (5, 1)
    assert "currentVoters" not in state


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"leaderId":1}', '{"leaderId":1,"leaderEpoch":1,"data_version":9}']
)
def test_garbage_in_quorum_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(CorruptFault, match="quorum-state"):
        QuorumState(str(tmp_path))


def test_bootstrap_checkpoint_holds_the_feature_levels(tmp_path: Path) -> None:
    content = bootstrap_checkpoint(NOW_MS)
    batches = list(iterate_batches(content))
    assert [bool(header[5] & CONTROL_BIT) for _, header in batches] == [True, False, True]
    assert [header[0] for _, header in batches] == [0, 1, 1 + len(FEATURE_LEVELS)]
    keys = [record[2] for position, _ in batches for record in iterate_records(content, position)]
    assert (keys[0], keys[-1]) == (bytes((0, 0, 0, 3)), bytes((0, 0, 0, 4)))
    (tmp_path / f"{7:020d}-{0:010d}.checkpoint").write_bytes(content)
    (tmp_path / f"{7:020d}.log").write_bytes(b"")
    reader = MetadataLogReader(str(tmp_path))
    records = read_all(reader, 7)
    assert [(r[4]["name"], r[4]["feature_level"]) for r in records] == [
        row[:2] for row in FEATURE_LEVELS
    ]
    reader.close()


def test_bootstrap_records_are_a_transaction_with_the_least_of_in_sync_replicas() -> None:
    names = [name for name, _, _ in bootstrap_records(2)]
    assert (names[0], names[-1]) == ("BeginTransactionRecord", "EndTransactionRecord")
    assert bootstrap_records(2)[-2][2]["value"] == "2"


def test_a_directory_that_can_not_be_made_durable_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFault, match=r"can't open .*Input/output error"):
        MetadataLog.open(str(tmp_path), lambda: 0)


def test_users_of_a_formatted_directory_are_among_the_first_records(tmp_path: Path) -> None:
    fields = {
        "name": "alice",
        "mechanism": 2,
        "salt": b"salt",
        "stored_key": b"stored",
        "server_key": b"server",
        "iterations": 4096,
    }
    user = ("UserScramCredentialRecord", 0, fields)
    (tmp_path / "bootstrap.checkpoint").write_bytes(
        b"".join(snapshot([("FeatureLevelRecord", 0, {"name": "f", "feature_level": 1}), user],
                          0, 0, 1))
    )  # fmt: skip
    ((name, version, found),) = users = users_of(str(tmp_path))
    assert (name, version, dict(found)) == user
    assert bootstrap_records(1, users)[-2:] == [*users, ("EndTransactionRecord", 0, {})]
