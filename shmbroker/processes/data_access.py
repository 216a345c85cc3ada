"""Decides who on this host may read the files of a family: `shmbroker.data.access`.

   value   new files and directories     control.sock    what was there before
   umask   as the process's umask says,  0600            log directories are closed to others; what
           but nothing for others                        is in them can't be reached then
   owner   0600, 0700                    0600            the directories are closed; what is in them
                                                         can't be reached then
   group   0640, 0750                    0660            gets these modes, and the process's group

The group is the one that the process runs with (`Group=` of a unit). What its members have no use
for stays the owner's: the metadata log and the controllers' sockets. A member reads records and
changes nothing: on the control socket it may ask what readers of files need
(`apis.table.FOR_READERS`).
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shmbroker.metadata.topic_names import METADATA_DIRECTORY

UMASK = "umask"
OWNER = "owner"
GROUP = "group"

_UMASKS = {OWNER: 0o077, GROUP: 0o027}
_OTHERS = 0o007
_OWN = 0o700
_DIRECTORY = 0o750
_FILE = 0o640
_BITS = 0o7777

logger = logging.getLogger(__name__)


def begin(access: str) -> None:
    """Have this process, and all that it forks, make files with the modes of `access`."""
    mask = _UMASKS.get(access)
    os.umask(os.umask(_OTHERS) | _OTHERS if mask is None else mask)


@contextmanager
def private() -> Iterator[None]:
    """What is made in it is for its user alone."""
    before = os.umask(_UMASKS[OWNER])
    try:
        yield
    finally:
        os.umask(before)


def socket_mode(access: str) -> int:
    """The mode of the control socket."""
    return 0o660 if access == GROUP else 0o600


def settle(access: str, data_directory: str, log_directories: Iterable[str]) -> None:
    """Give what is there already the modes of `access`. What belongs to another user can't be
    changed: it is counted in a line of the log."""
    if access == UMASK:
        _close_to_others(log_directories)
        return
    mode = _OWN if access == OWNER else _DIRECTORY
    group = -1 if access == OWNER else os.getegid()
    refused = 0
    for top in (data_directory, *log_directories):
        refused += not _set(top, os.stat(top), mode, group)
        if access == GROUP and top != data_directory:
            refused += _settle_below(top, group)
    if refused:
        logger.warning(
            "%d files or directories belong to another user, so shmbroker.data.access=%s does not "
            "hold for them",
            refused,
            access,
        )


def _close_to_others(log_directories: Iterable[str]) -> None:
    """Close this user's directories: a user who lets others in has made them for others."""
    for directory in log_directories:
        found = os.stat(directory)
        if found.st_mode & _OTHERS and found.st_uid == os.geteuid():
            os.chmod(directory, found.st_mode & _BITS & ~_OTHERS)


def _settle_below(directory: str, group: int) -> int:
    """Partitions' directories and what is in them; how many could not be changed."""
    refused = 0
    with os.scandir(directory) as found:
        for entry in found:
            if entry.is_symlink():
                continue
            if entry.name == METADATA_DIRECTORY:
                refused += not _set(entry.path, entry.stat(), _OWN, -1)
                continue
            is_directory = entry.is_dir()
            mode = _DIRECTORY if is_directory else _FILE
            refused += not _set(entry.path, entry.stat(), mode, group)
            if is_directory:
                refused += _settle_below(entry.path, group)
    return refused


def _set(path: str, found: os.stat_result, mode: int, group: int) -> bool:
    """False if it can't be; nothing is called where it is so already."""
    try:
        if group not in (-1, found.st_gid):
            os.chown(path, -1, group)
        if found.st_mode & _BITS & ~0o2000 != mode:
            os.chmod(path, mode)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
