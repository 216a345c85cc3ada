"""The disk reserve: Produce is refused before the file system is full, not when it is.

What still needs room then goes on: committed offsets, the metadata log, indexes, checkpoints,
compaction. Below the reserve producers get KAFKA_STORAGE_ERROR, which they retry; from twice the
reserve on they are served again, so that a disk at the brink does not flap.

It is refused as well while the file system is read-only. Stores into mapped segments don't fail
then, but their pages never reach the disk: what is acknowledged after that would be lost.
"""

import logging
import os
from typing import NamedTuple

logger = logging.getLogger(__name__)

OWN_SHARE = -1
"""The setting for: a hundredth of the file system, at most 256 MiB."""
SHARE = 100
SHARE_BYTES_MAX = 256 << 20


class Space(NamedTuple):
    """What statvfs says, in bytes."""

    total: int
    available: int
    is_read_only: bool = False


def space_of(path: str) -> Space:
    """Room on the file system of a path; OSError where it can't be looked at."""
    found = os.statvfs(path)
    return Space(
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        bool(found.f_flag & os.ST_RDONLY),
    )


class DiskReserve:
    """Looked at once a second by the owner of a log directory; `is_used` is what appends ask."""

    __slots__ = ("_setting", "is_used", "path", "reserve_bytes")

    def __init__(self, path: str, reserve_bytes: int) -> None:
        self.path = path
        self._setting = reserve_bytes
        self.reserve_bytes = 0
        """What it is, once it was looked at."""
        self.is_used = False
        """The reserve is being used up, or nothing can be written: no more appends to what users
        produce."""

    def look(self, space: Space) -> bool:
        """Take note of the room there is; True if that has changed `is_used`."""
        reserve = self._setting
        if reserve == OWN_SHARE:
            reserve = min(space.total // SHARE, SHARE_BYTES_MAX)
        self.reserve_bytes = reserve
        before = self.is_used
        is_low = space.available < (2 * reserve if before else reserve)
        self.is_used = is_low or space.is_read_only
        if self.is_used == before:
            return False
        if space.is_read_only:
            logger.error(
                "%s: its file system has become read-only: Produce is refused until it is mounted "
                "for writing; the kernel's log says why (dmesg)",
                self.path,
            )
        elif self.is_used:
            logger.error(
                "%s: %d MiB are left on the disk, less than the reserve of %d MiB: Produce is "
                "refused until there is twice as much (shmbroker.disk.reserve.bytes)",
                self.path,
                space.available >> 20,
                reserve >> 20,
            )
        else:
            logger.warning("%s: there is room on the disk again; Produce is served", self.path)
        return True
