"""Another number of controllers on the same directories."""

import os
import shutil
from pathlib import Path

import pytest
from controller_at_work import NOW_MS, create

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.voter import Voter
from shmbroker.controller.raft.voter_change import judge, look
from shmbroker.errors import ConfigFault
from tests.support.family_memory import VirtualClock
from tests.support.kills import kill_after


def now_ms() -> int:
    return NOW_MS


def change_voters(metadata: dict[int, str], voters: list[int]) -> bool:
    """Judge and carry out; whether anything had to change."""
    change = judge({node: look(directory) for node, directory in metadata.items()}, voters)
    if change is None:
        return False
    change.carry_out(now_ms, metadata)
    return True


def directories(tmp_path: Path, count: int = 3) -> dict[int, str]:
    return {n: str(tmp_path / f"node-{n}" / "__cluster_metadata-0") for n in range(1, count + 1)}


def write_alone(tmp_path: Path, node_id: int, decisions: int) -> int:
    """Decisions of the only voter; where its log then ends."""
    voter = Voter.open(str(tmp_path / f"node-{node_id}"), node_id, clock=VirtualClock())
    voter.start()
    for level in range(decisions):
        voter.append([("FeatureLevelRecord", 0, {"name": "t", "feature_level": level})], NOW_MS)
    end_offset = voter.log_end_offset
    voter.close()
    return end_offset


def content(directory: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(directory).glob("*.log")))


def test_growing_gives_every_voter_the_whole_log(tmp_path: Path) -> None:
    end_offset = write_alone(tmp_path, 1, 3)
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-3").mkdir()
    metadata = directories(tmp_path)
    assert change_voters(metadata, [1, 2, 3])
    for node, directory in metadata.items():
        log = MetadataLog.open(str(tmp_path / f"node-{node}"), now_ms)
        assert log.log_end_offset == end_offset
        log.close()
        state = QuorumState(directory)
        assert (state.voters, state.read()) == ([1, 2, 3], (1, -1, -1))
    assert content(metadata[2]) == content(metadata[1])
    assert not change_voters(metadata, [1, 2, 3]), "nothing is left to do"


def test_shrinking_keeps_the_longest_log(tmp_path: Path) -> None:
    write_alone(tmp_path, 1, 1)
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-3").mkdir()
    metadata = directories(tmp_path)
    change_voters(metadata, [1, 2, 3])
    ahead = write_alone(tmp_path, 3, 2)  # in a higher epoch
    for directory in metadata.values():
        state = QuorumState(directory)
        state.voters = [1, 2, 3]
        state.write(state.read()[0], -1, -1)
    assert change_voters(metadata, [1])
    log = MetadataLog.open(str(tmp_path / "node-1"), now_ms)
    assert log.log_end_offset == ahead
    log.close()
    assert not Path(metadata[3], "quorum-state").exists()


def test_a_kill_at_any_write_of_a_change_leaves_it_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = (os, "rename"), (os, "unlink"), (shutil, "rmtree")

    def killed_after(steps: int) -> bool:
        """Whether there were more writes than these of 3 to 1, where 3 has the longest log."""
        root = tmp_path / str(steps)
        root.mkdir()
        metadata = three_voters(root)
        ahead = write_alone(root, 3, 2)
        state = QuorumState(metadata[3])
        state.voters = [1, 2, 3]
        state.write(2, 3, -1)
        with kill_after(steps, monkeypatch, *calls) as kill:
            change_voters(metadata, [1])
        change_voters(metadata, [1])
        log = MetadataLog.open(str(root / "node-1"), now_ms)
        assert log.log_end_offset == ahead, steps
        log.close()
        voters = {node: QuorumState(directory).voters for node, directory in metadata.items()}
        assert voters in ({1: each, 2: [], 3: []} for each in ([1], [])), steps
        return kill.happened

    assert next(steps for steps in range(100) if not killed_after(steps)) > 4


def test_a_new_directory_has_nothing_to_change(tmp_path: Path) -> None:
    assert not change_voters(directories(tmp_path), [1, 2, 3])


def test_voters_that_were_killed_before_they_had_a_log_start_anew(tmp_path: Path) -> None:
    metadata = directories(tmp_path)
    Path(metadata[2]).mkdir(parents=True)
    state = QuorumState(metadata[2])
    state.voters = [1, 2, 3]
    state.write(1, 2, -1)
    assert change_voters(metadata, [1, 2, 3])
    assert look(metadata[1]).state is None


def test_voters_in_the_log_are_refused(tmp_path: Path) -> None:
    write_alone(tmp_path, 1, 1)
    metadata = directories(tmp_path)
    Path(metadata[1], "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":4,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    with pytest.raises(ConfigFault, match="--controllers 1"):
        change_voters(metadata, [1, 2, 3])
    assert not change_voters(metadata, [1])


def three_voters(tmp_path: Path, count: int = 3) -> dict[int, str]:
    write_alone(tmp_path, 1, 1)
    for number in range(2, count + 1):
        (tmp_path / f"node-{number}").mkdir()
    metadata = directories(tmp_path, count)
    change_voters(metadata, list(metadata))
    return metadata


def test_emptied_voter_gets_a_copy_again(tmp_path: Path) -> None:
    metadata = three_voters(tmp_path)
    shutil.rmtree(metadata[1])
    assert change_voters(metadata, [1, 2, 3])
    assert content(metadata[1]) == content(metadata[2]) != b""
    assert QuorumState(metadata[1]).voters == [1, 2, 3]


@pytest.mark.parametrize(
    ("count", "emptied", "voters", "refused"),
    [
        (3, [], 3, ""),  # nothing has to change: the others are a majority
        (3, [1], 3, "most of them"),
        (5, [1], 5, ""),
        (5, [1, 2], 5, "most of them"),
        (3, [], 1, "from 3 to 1"),
        (1, [], 3, "from 1 to 3"),
    ],
)
def test_change_while_a_directory_cannot_be_read(
    tmp_path: Path, count: int, emptied: list[int], voters: int, refused: str
) -> None:
    metadata = three_voters(tmp_path, count)
    for number in emptied:
        shutil.rmtree(metadata[number])
    unread = max(count, voters)
    standings = {n: look(directory) for n, directory in metadata.items() if n != unread}
    if refused:
        with pytest.raises(ConfigFault, match=refused):
            judge(standings, range(1, voters + 1), {unread})
        return
    change = judge(standings, range(1, voters + 1), {unread})
    assert (change is not None) == bool(emptied)
    if change is not None:
        change.carry_out(now_ms, metadata)
        assert content(metadata[1]) == content(metadata[2]) != b""


def test_brokers_that_hold_replicas_are_missed_before_anything_changes(
    tmp_path: Path, three: ActiveController
) -> None:
    partition = {"num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
    create(three, partition | {"name": "placed"})
    three.close()
    (tmp_path / "node-2").mkdir()
    metadata = {
        1: str(tmp_path / "__cluster_metadata-0"),
        2: str(tmp_path / "node-2" / "__cluster_metadata-0"),
    }
    change = judge({node: look(directory) for node, directory in metadata.items()}, [1, 2])
    assert change is not None
    with pytest.raises(ConfigFault, match=r"broker 3 .*--io-workers 3"):
        change.carry_out(now_ms, [1, 2])
    assert not Path(metadata[2]).exists()
    assert QuorumState(metadata[1]).voters == [1]
    change.carry_out(now_ms, [1, 2, 3])
    assert QuorumState(metadata[2]).voters == [1, 2]
