"""Another number of controllers on the same directories."""

from pathlib import Path

import pytest
from controller_at_work import NOW_MS

from shmbroker.controller.metadata_log import MetadataLog
from shmbroker.controller.quorum_state import QuorumState
from shmbroker.controller.voter import Voter
from shmbroker.controller.voter_change import change_voters
from shmbroker.errors import ConfigFault


def now_ms() -> int:
    return NOW_MS


def directories(tmp_path: Path, count: int = 3) -> dict[int, str]:
    return {n: str(tmp_path / f"node-{n}" / "__cluster_metadata-0") for n in range(1, count + 1)}


def write_alone(tmp_path: Path, node_id: int, decisions: int) -> int:
    """Decisions of the only voter; where its log then ends."""
    voter = Voter.open(str(tmp_path / f"node-{node_id}"), node_id, now_ms=now_ms)
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
    assert change_voters(metadata, [1, 2, 3], now_ms)
    for node, directory in metadata.items():
        log = MetadataLog.open(str(tmp_path / f"node-{node}"), now_ms)
        assert log.log_end_offset == end_offset
        log.close()
        state = QuorumState(directory)
        assert (state.voters, state.read()) == ([1, 2, 3], (1, -1, -1))
    assert content(metadata[2]) == content(metadata[1])
    assert not change_voters(metadata, [1, 2, 3], now_ms), "nothing is left to do"


def test_shrinking_keeps_the_longest_log(tmp_path: Path) -> None:
    write_alone(tmp_path, 1, 1)
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-3").mkdir()
    metadata = directories(tmp_path)
    change_voters(metadata, [1, 2, 3], now_ms)
    ahead = write_alone(tmp_path, 3, 2)  # in a higher epoch
    for directory in metadata.values():
        state = QuorumState(directory)
        state.voters = [1, 2, 3]
        state.write(state.read()[0], -1, -1)
    assert change_voters(metadata, [1], now_ms)
    log = MetadataLog.open(str(tmp_path / "node-1"), now_ms)
    assert log.log_end_offset == ahead
    log.close()
    assert not Path(metadata[3], "quorum-state").exists()


def test_a_new_directory_has_nothing_to_change(tmp_path: Path) -> None:
    assert not change_voters(directories(tmp_path), [1, 2, 3], now_ms)


def test_voters_in_the_log_are_refused(tmp_path: Path) -> None:
    write_alone(tmp_path, 1, 1)
    metadata = directories(tmp_path)
    Path(metadata[1], "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":4,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    with pytest.raises(ConfigFault, match="--controllers 1"):
        change_voters(metadata, [1, 2, 3], now_ms)
    assert not change_voters(metadata, [1], now_ms)
