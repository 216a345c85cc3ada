"""`.log-dirs` in a data directory: the log directories of the family there, as it was last started.

   node-1                one path a line; from the data directory, if below it: that may be moved
   /disk-2/shmbroker

A start that leaves out a --log-dir would else begin a new family, or an empty node, beside the
records of the old one. Of a directory that is gone, or empty, nothing can be kept: that is said, as
its disk may not be mounted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from shmbroker.errors import ConfigFault, StorageFault
from shmbroker.log.checkpoints import read_file, write_file
from shmbroker.processes.data_directory import DirectoryPlan, Found, find

logger = logging.getLogger(__name__)

FILE_NAME = ".log-dirs"


def refuse_left_out(data_directory: str, found: Sequence[Found], plan: DirectoryPlan) -> None:
    """ConfigFault if a directory of the family that holds records is not among those `found`."""
    before = _read(data_directory)
    runs = {os.path.realpath(node.path) for node in found}
    copies = {node.identity.directory_id for node in found if node.identity}
    left_out = [find(path) for path in before if os.path.realpath(path) not in runs]
    for node in left_out:
        if (
            node.identity
            and node.identity.directory_id not in copies
            and (plan.is_new or node.holds_replicas)
            and (plan.is_new or node.identity.cluster_id == plan.cluster_id)
        ):
            named = " ".join(f"--log-dir {path}" for path in before)
            raise ConfigFault(
                f"{node.path} is a log directory of the family of {data_directory}, and would not "
                f"run: start with {named}, or remove {data_directory}/{FILE_NAME} if it is to go."
            )


def say_lost(data_directory: str, plan: DirectoryPlan) -> None:
    """Log that what a family had here is gone, where that is so."""
    before = _read(data_directory)
    if plan.is_new and before:
        logger.warning(
            "a family has run here, and nothing is left in %s: a new cluster begins; if a disk is "
            "not mounted, stop, mount it and start again",
            ", ".join(before),
        )


def remember(data_directory: str, places: Sequence[str]) -> None:
    """Write where the log directories are, for the next start."""
    below = f"{data_directory}/"
    text = "".join(f"{place.removeprefix(below)}\n" for place in places)
    path = below + FILE_NAME
    if _read(data_directory) == [os.path.join(data_directory, place) for place in places]:
        return
    try:
        write_file(path, text)
    except StorageFault as fault:  # as a full disk: it holds up no start
        logger.warning("%s", fault)


def _read(data_directory: str) -> list[str]:
    try:
        text = read_file(f"{data_directory}/{FILE_NAME}") or ""
    except StorageFault:
        text = ""  # as if it was not there: the next start writes it anew
    return [os.path.join(data_directory, line) for line in text.splitlines()]
