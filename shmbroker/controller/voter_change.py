"""Another number of controllers on an existing data directory: before any of them runs.

The set of voters is fixed while a family runs (kraft.version 0, as `controller.quorum.voters`
has it). With a new set, voters that begin with an empty log could outvote the one that has it. But
here all directories are at hand and nobody writes, so the change is made offline:

* The longest log (last epoch, then end) of all nodes has every committed record: each was on a
  majority of the voters that there were, and those of later epochs have it too.
* Every voter to be gets a copy of that directory, and then a quorum-state with the new set. Until
  all have it, the next start does it again.
* Who votes no more loses its quorum-state alone: to Kafka its log is an observer's.

A log with the voters in itself (kraft.version 1) is refused unless one controller is wanted.
Source: KIP-595, KIP-853; Kafka allows no such change but by records in the log.
"""

from __future__ import annotations

import logging
import os
import shutil

from shmbroker.controller.metadata_log import MetadataLog
from shmbroker.controller.quorum_state import FILE_NAME, QuorumState
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.log.checkpoints import sync_directory
from shmbroker.log.quarantine import put_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("shmbroker")

COPY = ".metadata-copy"
"""In the node's directory, on the same disk, until it is whole."""


def change_voters(
    directories: dict[int, str],
    voters: Iterable[int],
    now_ms: Callable[[], int],
) -> bool:
    """Make the logs in `directories` (of `__cluster_metadata-0`, by node) those of `voters`; True
    if anything had to change.

    ConfigFault if it can't be done. CorruptFault, StorageFault, OSError: as of the disk.
    """
    wanted = sorted(voters)
    for directory in directories.values():
        _drop_damaged_state(directory)
    states = {
        node: QuorumState(directory)
        for node, directory in directories.items()
        if os.path.exists(os.path.join(directory, FILE_NAME))
    }
    if not states or all(node in states and states[node].voters == wanted for node in wanted):
        return False
    if any(state.data_version != 0 for state in states.values()):
        if wanted == [min(directories)]:
            return False
        raise ConfigFault(
            "This directory keeps its voters in the metadata log (kraft.version 1): "
            "start it with --controllers 1."
        )
    logs = {node: _end(path, now_ms) for node, path in directories.items() if _has_log(path)}
    best = max(logs, key=lambda node: logs[node])
    epoch = max(state.read()[0] for state in states.values())
    for node in wanted:
        if logs.get(node) != logs[best]:
            _copy(directories[best], directories[node])
    for node in wanted:
        state = QuorumState(directories[node])
        state.voters = wanted
        state.write(epoch, -1, -1)
    for node in states.keys() - set(wanted):
        os.unlink(os.path.join(directories[node], FILE_NAME))
        sync_directory(directories[node])
    return True


def _drop_damaged_state(directory: str) -> None:
    """A quorum-state that can't be read is put aside: nobody runs, so no vote in it can count."""
    path = os.path.join(directory, FILE_NAME)
    if not os.path.lexists(path):
        return
    try:
        QuorumState(directory)
        return
    except CorruptFault as fault:
        why = str(fault)
    except StorageFault:
        if not os.path.isdir(path):
            raise
        why = f"{path} is a directory"
    put_aside(directory, [path])
    logger.error("%s; it is in quarantine/ now, and made anew", why)


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
    beside = os.path.join(os.path.dirname(target), COPY)
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source, beside, ignore=shutil.ignore_patterns(FILE_NAME))
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
