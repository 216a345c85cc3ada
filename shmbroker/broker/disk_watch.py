"""Looks at a broker's disk once a second: Produce is refused while it is nearly full, and the
controller sees how it is (`shm.counters`, DISK)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shmbroker import logs
from shmbroker.shm.counters import DISK, DISK_HAS_FAILED, DISK_HAS_ROOM, DISK_IS_FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.disk_reserve import DiskReserve, Space
    from shmbroker.broker.partition_store import PartitionStore
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
    ) -> None:
        self.reserve = reserve
        self.words = member.words
        self.tally = member.tally
        self.store = store
        self.appender = appender
        self._space = space
        self._index = member.counters.at(member.index, DISK)

    def look(self) -> None:
        """Refuse Produce, or serve it again; count; let the controller see it."""
        disk = self._look_at_room()
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
