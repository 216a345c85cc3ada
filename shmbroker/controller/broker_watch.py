"""What the controller sees of the brokers in shared memory: states, signs of life, disks, offsets.

Rules of this file:
* It looks, and keeps who hangs; what is to be done about a broker, `controller` decides.
* Signs of life are left in shared memory: no broker sends heartbeats.
* A controller that was not let run itself takes nobody's silence for a death.
"""

from __future__ import annotations

from shmbroker.ipc.attention import Attention
from shmbroker.shm.counters import (
    DISK,
    DISK_HAS_FAILED,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_UNABLE,
    Counters,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shmbroker.controller.raft.quorum_description import Replica

AWAY_S = 1.0
"""A controller that has not looked for so long was not let run, and the brokers perhaps neither."""

DISK_LOOK_S = 1.0
"""The time between two looks at what the brokers say of their disks."""

EVERYTHING = 1 << 62
"""An offset beyond all others."""


class BrokerWatch:
    """The I/O workers of the family, as their words in shared memory show them."""

    def __init__(
        self, counters: Counters, brokers: Mapping[int, int], session_timeout_s: float
    ) -> None:
        """`brokers`: their slots, by broker id."""
        self._words = counters.words
        self._at = {
            number: {
                field: counters.at(slot, field)
                for field in (STATE, INCARNATION, LIVENESS_NS, METADATA_APPLIED, DISK)
            }
            for number, slot in brokers.items()
        }
        self._session_timeout_s = session_timeout_s
        self._attention = Attention(session_timeout_s, AWAY_S)
        self._next_disk_look = 0.0
        self.hanging: set[int] = set()
        """Brokers that were fenced because they gave no sign of life."""

    def word(self, number: int, field: int) -> int:
        """What a broker shows in one field of its slot."""
        return self._words[self._at[number][field]]

    def running(self) -> list[int]:
        """Ids of those that serve."""
        return [number for number in self._at if self.word(number, STATE) == STATE_RUNNING]

    def died(self) -> list[int]:
        """Ids of those that ran in this family once and do not now."""
        return [
            number
            for number in self._at
            if self.word(number, STATE) in (STATE_NONE, STATE_UNABLE)
            and self.word(number, INCARNATION) > 1
        ]

    def pending(self) -> set[int]:
        """Brokers that may not have registered since the family started, but for those that can't
        boot: nobody knows when they will."""
        return {
            number
            for number in self._at
            if not self.has_served(number) and self.word(number, STATE) != STATE_UNABLE
        }

    def has_served(self, number: int) -> bool:
        """Whether a broker has followed the metadata since the family started."""
        return self.word(number, METADATA_APPLIED) > 0

    def applied(self) -> int:
        """One past the last metadata offset that every running broker has applied that doesn't
        hang."""
        return min(
            (
                self.word(number, METADATA_APPLIED)
                for number in self.running()
                if number not in self.hanging
            ),
            default=EVERYTHING,
        )

    def changed_silence(self, now: float) -> tuple[list[int], list[int]]:
        """Look at the signs of life: who gives none and is not hanging yet, who is and gives one
        again. `now`: monotonic seconds."""
        may_judge = self._attention.is_enough(now)
        silent_since = int((now - self._session_timeout_s) * 1e9)
        silent, back = [], []
        for number in self.running():
            is_silent = self.word(number, LIVENESS_NS) < silent_since
            if is_silent and may_judge and number not in self.hanging:
                silent.append(number)
            elif not is_silent and number in self.hanging:
                back.append(number)
        return silent, back

    def short_of_room(self, now: float) -> tuple[set[int], set[int]] | None:
        """Ids of those whose disk is full, and of those whose disk has failed; None while it is too
        early to look again."""
        if now < self._next_disk_look:
            return None
        self._next_disk_look = now + DISK_LOOK_S
        found: dict[int, set[int]] = {DISK_IS_FULL: set(), DISK_HAS_FAILED: set()}
        for number in self.running():
            if (disk := self.word(number, DISK)) in found:
                found[disk].add(number)
        return found[DISK_IS_FULL], found[DISK_HAS_FAILED]

    def observers(
        self, voters: Collection[int], committed: int, now: float, now_ms: int
    ) -> list[Replica]:
        """Brokers that run without a controller beside them: they follow, and have no vote."""
        rows: list[Replica] = []
        for number in self.running():
            if number in voters:
                continue
            applied = self.word(number, METADATA_APPLIED)
            seen_ms = now_ms - (int(now * 1e9) - self.word(number, LIVENESS_NS)) // 1_000_000
            rows.append((number, applied, seen_ms, seen_ms if applied >= committed else -1))
        return rows
