"""Looks at a broker's disk once a second: Produce is refused while it is nearly full, and the
controller sees how it is (`shm.counters`, DISK).

A file system that has given up, as ext4 does after an error of its device, goes on taking stores
into mapped segments, which never reach the disk; and newer kernels don't call it read-only then.
But it refuses fdatasync, even of a file of which nothing is to be written. So after each second in
which the broker has appended, or met a fault, such a file is synced. Where that is refused, the log
directory goes offline.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

from shmbroker import logs
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.shm.counters import DISK, DISK_HAS_FAILED, DISK_HAS_ROOM, DISK_IS_FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.disk_reserve import DiskReserve, Space
    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.storage_faults import StorageFaults
    from shmbroker.ipc.member import FamilyMember

logger = logging.getLogger(__name__)


class DiskWatch:
    """space: the room there is now; OSError where it can't be looked at."""

    def __init__(
        self,
        reserve: DiskReserve,
        space: Callable[[], Space],
        member: FamilyMember,
        store: PartitionStore,
        appender: Appender,
        faults: StorageFaults,
    ) -> None:
        self.reserve = reserve
        self.words = member.words
        self.tally = member.tally
        self.store = store
        self.appender = appender
        self._space = space
        self.is_written = False
        """Something was appended since the last probe."""
        self._faults = faults
        self._faults_probed = 0
        self._is_probing = False
        self._index = member.counters.at(member.index, DISK)

    def look(self) -> None:
        """Refuse Produce, or serve it again; count; let the controller see it."""
        disk = self._look_at_room()
        self._probe()
        if self.store.is_fenced:  # one that has failed may not tell how much room it has
            disk = DISK_HAS_FAILED
        if disk is not None:
            self.words[self._index] = disk

    def _look_at_room(self) -> int | None:
        """Whether there is room; None where nobody can tell."""
        reserve = self.reserve
        try:
            space = self._space()
        except OSError as fault:
            what = f"can't look at the disk of {reserve.path}"
            logger.error("%s: %s", what, fault, extra=logs.seldom(what))
            return None
        is_changed = reserve.look(space)
        self.tally.set("disk_free_bytes", space.available)
        self.tally.set("disk_reserve_bytes", reserve.reserve_bytes)
        if is_changed:
            self.appender.is_disk_low = reserve.is_used
            if reserve.is_used:
                self.store.removals.release_held()
        return DISK_IS_FULL if reserve.is_used or not space.available else DISK_HAS_ROOM

    def _probe(self) -> None:
        """Find out whether the file system still writes, if it was written to or has refused."""
        store, met = self.store, self._faults.met
        is_due = self.is_written or met != self._faults_probed
        if not is_due or self._is_probing or store.is_fenced:
            return
        self.is_written, self._faults_probed = False, met
        try:
            fd = os.open(f"{self.reserve.path}/{META_PROPERTIES}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as fault:
            if fault.errno == errno.EIO:
                self._on_probed(fault)
            return
        self._is_probing = True
        store.submit_flush([fd], self._on_probed)

    def _on_probed(self, fault: OSError | None) -> None:
        self._is_probing = False
        if fault is not None:
            self.store.fence(fault)
            self.words[self._index] = DISK_HAS_FAILED
