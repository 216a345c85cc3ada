"""Another number of controllers on an existing data directory: before any of them runs.

The set of voters is fixed while a family runs (kraft.version 0, as `controller.quorum.voters`
has it). With a new set, voters that begin with an empty log could outvote the one that has it. But
here all directories are at hand and nobody writes, so the change is made offline:

* The longest log (last epoch, then end) of all nodes has every committed record: each was on a
  majority of the voters that there were, and those of later epochs have it too.
* Every voter to be gets a copy of that directory, and at last a quorum-state with the new set.
  Until all have it, the next start does it again.
* Who votes no more loses its quorum-state alone, before: to Kafka its log is an observer's.
* A voter whose directory was emptied gets its copy the same way. While another node can't be read,
  that is done only if the logs at hand are a majority: one of them then has what is committed.

`look` and `judge` read; only `VoterChange.carry_out` writes, and refuses before its first copy.
A log with the voters in itself (kraft.version 1) is refused unless one controller is wanted.
Source: KIP-595, KIP-853; Kafka allows no such change but by records in the log.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from shmbroker.controller.decisions.nodes import refuse_missing_brokers
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.log.checkpoints import sync_directory
from shmbroker.log.file_names import QUORUM_STATE
from shmbroker.log.quarantine import put_aside
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import MetadataLogReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

logger = logging.getLogger(__name__)

COPY = ".metadata-copy"
"""The name of the copy in the node's directory, on the same disk, until it is whole."""


class StoredQuorum(NamedTuple):
    """What the quorum-state in a node's directory says."""

    directory: str
    """The directory of its metadata log."""
    state: QuorumState | None
    """None if there is no file, or none that can be read."""
    damage: str
    """Why the file can't be read; it is put aside, as nobody runs, so no vote in it can count."""


def look(directory: str) -> StoredQuorum:
    """Read one node's quorum-state. StorageFault if the disk refuses."""
    path = os.path.join(directory, QUORUM_STATE)
    if not os.path.lexists(path):
        return StoredQuorum(directory, None, "")
    try:
        return StoredQuorum(directory, QuorumState(directory), "")
    except CorruptFault as fault:
        return StoredQuorum(directory, None, str(fault))
    except StorageFault:
        if not os.path.isdir(path):
            raise
        return StoredQuorum(directory, None, f"{path} is a directory")


class VoterChange:
    """What `carry_out` is to do; from `judge`."""

    __slots__ = ("_standings", "before", "voters")

    def __init__(
        self, standings: Mapping[int, StoredQuorum], before: list[int], voters: list[int]
    ) -> None:
        self._standings = standings
        self.before = before
        """The voters that there were; empty if nothing says so."""
        self.voters = voters
        """The voters to be; empty if only damaged files are put aside."""

    def carry_out(self, now_ms: Callable[[], int], brokers: Collection[int]) -> None:
        """Make the logs those of the voters to be.

        ConfigFault, before anything was copied, if the metadata places replicas on others than
        `brokers`. CorruptFault, StorageFault, OSError: as of the disk.
        """
        for standing in self._standings.values():
            if standing.damage:
                put_aside(standing.directory, [os.path.join(standing.directory, QUORUM_STATE)])
                logger.error("%s; it is in quarantine/ now, and made anew", standing.damage)
        if not self.voters:
            return
        directories = {node: standing.directory for node, standing in self._standings.items()}
        states = {node: s.state for node, s in self._standings.items() if s.state is not None}
        logs = {node: _end(path, now_ms) for node, path in directories.items() if _has_log(path)}
        if not logs:
            return  # killed in the first moments of all: nothing was decided
        best = max(logs, key=lambda node: logs[node])
        _refuse_missing_brokers(directories[best], logs[best][1], brokers)
        epoch = max(state.read()[0] for state in states.values())
        at_hand = [node for node in self.voters if node in directories]
        for node in at_hand:
            if logs.get(node) != logs[best]:
                _copy(directories[best], directories[node])
        # First, as nothing is left to do once all voters to be have theirs.
        for node in states.keys() - set(self.voters):
            os.unlink(os.path.join(directories[node], QUORUM_STATE))
            sync_directory(directories[node])
        for node in at_hand:
            state = QuorumState(directories[node])
            state.voters = self.voters
            state.write(epoch, -1, -1)
        self._say(states.keys())

    def _say(self, had_state: Collection[int]) -> None:
        before, after = len(self.before), len(self.voters)
        if before != after:
            logger.warning("controllers changed from %d to %d", before, after)
            return
        for node in self.voters:
            if node in self._standings and node not in had_state:
                logger.warning("controller %d had no metadata: it got a copy", node)


def judge(
    standings: Mapping[int, StoredQuorum], voters: Iterable[int], unread: Collection[int] = ()
) -> VoterChange | None:
    """What has to change, by node, for `voters` to be those of the metadata log; None if nothing
    has. `unread`: nodes whose directory can't be read now.

    ConfigFault if it can't be done.
    """
    wanted = sorted(voters)
    states = {node: s.state for node, s in standings.items() if s.state is not None}
    at_hand = [node for node in wanted if node not in unread]
    before = max((s.read()[0], s.voters) for s in states.values())[1] if states else []
    damage_alone = VoterChange(standings, before, [])
    nothing = damage_alone if any(s.damage for s in standings.values()) else None
    if not states or all(node in states and states[node].voters == wanted for node in at_hand):
        return nothing
    if any(state.data_version != 0 for state in states.values()):
        if len(wanted) == 1 and wanted[0] in states:
            return nothing
        raise ConfigFault(
            "This directory keeps its voters in the metadata log (kraft.version 1): "
            "start it with --controllers 1."
        )
    if unread:
        if before != wanted:
            raise ConfigFault(
                f"The controllers can't change from {len(before)} to {len(wanted)} while the "
                "directory of one can't be read."
            )
        if 2 * len(states.keys() & set(wanted)) <= len(wanted):
            raise ConfigFault(
                "What the controllers decided is lost or can't be read on most of them: mend the "
                "directory that can't be read first."
            )
    return VoterChange(standings, before, wanted)


def _refuse_missing_brokers(directory: str, end_offset: int, brokers: Collection[int]) -> None:
    """ConfigFault if a log places replicas on brokers that would not run."""
    follower = MetadataFollower(MetadataLogReader(directory), "")
    try:
        follower.catch_up(end_offset)
    finally:
        follower.reader.close()
    refuse_missing_brokers(follower.image, brokers)


def _has_log(directory: str) -> bool:
    return os.path.isdir(directory) and any(name.endswith(".log") for name in os.listdir(directory))


def _end(directory: str, now_ms: Callable[[], int]) -> tuple[int, int]:
    """(last epoch, end offset) of the log in a directory, which is recovered for that."""
    log = MetadataLog.open(os.path.dirname(directory), now_ms)
    end = log.last_epoch, log.log_end_offset
    log.close()
    return end


def _copy(source: str, target: str) -> None:
    """Put a copy of one log directory in the place of another, durably."""
    import shutil  # with all of its archive formats: nothing for a start

    beside = os.path.join(os.path.dirname(target), COPY)
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source, beside, ignore=shutil.ignore_patterns(QUORUM_STATE))
    for name in os.listdir(beside):
        fd = os.open(os.path.join(beside, name), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    sync_directory(beside)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(beside, target)
    sync_directory(os.path.dirname(target))
