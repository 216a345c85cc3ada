"""`quorum-state`: the controller epoch this node has seen, so that it never goes back.

{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,
 "currentVoters":[{"voterId":1}],"data_version":0}                              (one line)

data_version 0 goes with a fixed set of voters (kraft.version 0), 1 with voters kept in the log;
a file of version 1 stays one. Source: Kafka's `FileQuorumStateStore`, schema QuorumStateData.
"""

from __future__ import annotations

import os

from shmbroker.errors import CorruptFault
from shmbroker.ids import ZERO_UUID, uuid_text
from shmbroker.log.checkpoints import read_file, write_file

FILE_NAME = "quorum-state"


class QuorumState:
    """leader_id, leader_epoch (0 before the first election), data_version."""

    __slots__ = ("data_version", "leader_epoch", "leader_id")

    def __init__(self, leader_id: int = -1, leader_epoch: int = 0, data_version: int = 0) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.data_version = data_version


def read_quorum_state(directory: str) -> QuorumState:
    """The state in `directory`; the initial one if there is no file. CorruptFault for garbage."""
    import json

    path = os.path.join(directory, FILE_NAME)
    text = read_file(path)
    if not text:
        return QuorumState()
    try:
        values = json.loads(text)
        state = QuorumState(values["leaderId"], values["leaderEpoch"], values["data_version"])
        if state.data_version not in (0, 1) or state.leader_epoch < 0:
            raise ValueError("unknown version or negative epoch")
    except (ValueError, KeyError, TypeError) as fault:
        raise CorruptFault(f"{path} is no quorum state: {fault}") from None
    return state


def write_quorum_state(directory: str, state: QuorumState, voter_ids: list[int]) -> None:
    """Write it durably."""
    import json

    values: dict[str, object]
    if state.data_version == 0:
        values = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": -1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter_id} for voter_id in voter_ids],
            "data_version": 0,
        }
    else:
        values = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": -1,
            "votedDirectoryId": uuid_text(ZERO_UUID),
            "data_version": 1,
        }
    write_file(os.path.join(directory, FILE_NAME), json.dumps(values, separators=(",", ":")))
