"""The log start offset that DeleteRecords has raised, or a leader that has nothing before it, or
the end of what the remote store had, until the checkpoint says it durably.

File `log-start-offset` in the log's directory: one number. It is written before DeleteRecords is
answered and not synced, so it survives the death of all processes, as batches do. The next
checkpoint makes the offset durable and removes it. A power cut may leave it beside a log that has
lost its end: then it is not used. Apache Kafka takes no notice of it.
"""

from __future__ import annotations

import logging
import os

from shmbroker import logs
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import parse_number, read_file, remove_files, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

RAISED_START = "log-start-offset"


def note_raised(log: PartitionLog, start: int) -> None:
    """Write where the log begins from now on. A full disk may refuse it, and must not refuse to
    make room: then only the checkpoint says it."""
    log.is_start_raised = True
    try:
        write_file(_path(log), str(start), is_synced=False)
    except StorageFault as fault:
        again = "a log start offset is on the disk with the next checkpoint only"
        logger.warning("%s; %s", fault, again, extra=logs.seldom(again))


def find_raised(log: PartitionLog) -> int:
    """What the file says; 0 if there is none, or a power cut has damaged it."""
    path = _path(log)
    try:
        text = read_file(path)
        return parse_number(path, text) if text else 0
    except CorruptFault as fault:
        logger.warning("%s; going on without it", fault)
        return 0


def forget_raised(log: PartitionLog) -> None:
    """Remove the file: the checkpoint says it, or it is not true any more."""
    if log.is_start_raised:
        remove_files((_path(log),))
        log.is_start_raised = False


def _path(log: PartitionLog) -> str:
    return os.path.join(log.directory, RAISED_START)
