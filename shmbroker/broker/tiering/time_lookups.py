"""Lookups by time among what only the store has.

A lookup goes from copy to copy, in the order of offsets, until one has a record that isn't older.
It waits while the list of its partition is on the way, and ends at its deadline in any case.
"""

from __future__ import annotations

from shmbroker.wire.api_keys import TIER_FIND
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR, NONE, REQUEST_TIMED_OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.broker.tiering.lists import Lists
    from shmbroker.broker.tiering.remotes import Remote, RemoteTable


class Find:
    """One lookup by time in the store; `on_done(error, timestamp, offset)`, -1 for none there."""

    __slots__ = ("deadline_ms", "is_done", "on_done", "remote", "start", "timestamp")

    def __init__(
        self,
        remote: Remote,
        timestamp: int,
        deadline_ms: int,
        on_done: Callable[[int, int, int], None],
    ) -> None:
        self.remote = remote
        self.timestamp = timestamp
        self.start = 0
        self.deadline_ms = deadline_ms
        self.on_done = on_done
        self.is_done = False

    def finish(self, error: int, timestamp: int = -1, offset: int = -1) -> None:
        if not self.is_done:
            self.is_done = True
            self.on_done(error, timestamp, offset)


class TimeLookups:
    """The lookups that are under way."""

    def __init__(self, table: RemoteTable, lists: Lists) -> None:
        self.table = table
        self.lists = lists
        self.asked: list[Find] = []
        """The tier process looks for them."""
        self.waiting: list[Find] = []
        """Lookups that wait for the list of their partition."""

    def begin(self, find: Find) -> None:
        """Look for the first record that isn't older, or go on behind the copy that had none."""
        remote = find.remote
        log = remote.partition.log
        if find.is_done:
            return
        if not remote.is_loaded:
            self.waiting.append(find)
            self.lists.load(remote)
            return
        find.start = max(find.start, log.log_start_offset)
        copy = remote.log.newer_than(find.timestamp, find.start, log.local_start_offset)
        if copy is None:
            find.finish(NONE)
            return

        def on_answer(body: dict[str, Any]) -> None:
            if find in self.asked:
                self.asked.remove(find)
            if body["error_code"]:
                find.finish(KAFKA_STORAGE_ERROR)
            elif body["offset"] >= 0:
                find.finish(NONE, body["timestamp"], body["offset"])
            else:
                find.start = copy.end_offset
                self.begin(find)

        body = remote.name() | copy._asdict()
        body |= {"timestamp": find.timestamp, "start_offset": find.start}
        if self.table.ask(TIER_FIND, "TierFind", body, on_answer):
            self.asked.append(find)
        else:
            find.finish(KAFKA_STORAGE_ERROR)

    def on_loaded(self, remote: Remote) -> None:
        """Go on with the lookups of a partition whose list is here."""
        for find in self._take_waiting(remote):
            self.begin(find)

    def on_forgotten(self, remote: Remote) -> None:
        """Nothing of the partition is looked for any more."""
        for find in self._take_waiting(remote):
            find.finish(NONE)

    def _take_waiting(self, remote: Remote) -> list[Find]:
        taken = [find for find in self.waiting if find.remote is remote]
        self.waiting = [find for find in self.waiting if find.remote is not remote]
        return taken

    def on_tier_lost(self) -> None:
        """Have everything looked for again, once the lists are here."""
        self.waiting += self.asked
        self.asked = []

    def end_late(self, steady_ms: int) -> None:
        """End what has taken too long."""
        for find in self.asked + self.waiting:
            if find.deadline_ms <= steady_ms:
                find.finish(REQUEST_TIMED_OUT)

    def drop_done(self) -> None:
        self.asked = [find for find in self.asked if not find.is_done]
        self.waiting = [find for find in self.waiting if not find.is_done]
