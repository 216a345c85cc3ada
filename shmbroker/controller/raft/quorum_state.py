"""`quorum-state`: the epoch this voter has seen, who leads it and whom it voted for.

{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,
 "currentVoters":[{"voterId":1}],"data_version":0}                              (one line)

data_version 0 goes with a fixed set of voters (kraft.version 0), 1 with voters kept in the log;
a file of version 1 stays one. It is what makes a vote count once: written durably before any
answer that promises it. Source: Kafka's `FileQuorumStateStore`, schema QuorumStateData.
"""

from __future__ import annotations

import os

from shmbroker.errors import CorruptFault
from shmbroker.ids import ZERO_UUID, uuid_text
from shmbroker.log.checkpoints import read_file, write_file
from shmbroker.log.file_names import QUORUM_STATE


class QuorumState:
    """The file of one directory: `read` and `write` as `quorum_needs.QuorumStore`."""

    __slots__ = ("_path", "_row", "data_version", "is_found", "voters")

    def __init__(self, directory: str) -> None:
        """What the file says; epoch 0 if there is none. CorruptFault for garbage."""
        self._path = os.path.join(directory, QUORUM_STATE)
        self._row = (0, -1, -1)
        self.data_version = 0
        self.voters: list[int] = []
        """The voters that version 0 has; empty in version 1, and where there is no file."""
        text = read_file(self._path)
        self.is_found = bool(text)
        if text:
            self._parse(text)

    def _parse(self, text: str) -> None:
        import json

        try:
            values = json.loads(text)
            epoch, version = values["leaderEpoch"], values["data_version"]
            if version not in (0, 1) or epoch < 0:
                raise ValueError("unknown version or negative epoch")
            self._row = epoch, int(values["leaderId"]), int(values.get("votedId", -1))
            self.data_version = version
            rows = values.get("currentVoters") or []
            self.voters = [row["voterId"] for row in rows]
        except (ValueError, KeyError, TypeError) as fault:
            raise CorruptFault(f"{self._path} is no quorum state: {fault}") from None

    def read(self) -> tuple[int, int, int]:
        """(epoch, leader id, voted id); -1 for nobody."""
        return self._row

    def write(self, epoch: int, leader_id: int, voted_id: int) -> None:
        """Store it durably. StorageFault if the disk refuses."""
        import json

        self._row = epoch, leader_id, voted_id
        values: dict[str, object]
        if self.data_version == 0:
            values = {
                "clusterId": "",
                "leaderId": leader_id,
                "leaderEpoch": epoch,
                "votedId": voted_id,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": voter_id} for voter_id in self.voters],
                "data_version": 0,
            }
        else:
            values = {
                "leaderId": leader_id,
                "leaderEpoch": epoch,
                "votedId": voted_id,
                "votedDirectoryId": uuid_text(ZERO_UUID),
                "data_version": 1,
            }
        write_file(self._path, json.dumps(values, separators=(",", ":")))
