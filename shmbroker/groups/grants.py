"""Heartbeats that are answered elsewhere: which members have a grant for it (`shm.standing`).

A network worker answers the heartbeat of a member with a grant as the coordinator did before. It
notes when; nobody here hears of it before he asks.

Rules of this file:
* A grant holds as long as the group is what it was (`is_as_granted`). Whoever changes a group has
  it reviewed before anybody is answered.
* A group looks at its deadlines after it has heard of the heartbeats that were answered elsewhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.groups.group_table import AnyGroup
    from shmbroker.shm.standing import StandingAnswers


class Grants:
    """The grants of one coordinator; each group has the words of its own members."""

    __slots__ = ("_standing", "_steady_ms")

    def __init__(self, standing: StandingAnswers | None, steady_ms: Callable[[], int]) -> None:
        """standing: None for a coordinator that is always asked."""
        self._standing = standing
        self._steady_ms = steady_ms

    def grant(self, group: AnyGroup, member_id: str) -> tuple[int, int] | None:
        """(word, value) by which this member's heartbeat may be answered elsewhere, if it may."""
        standing = self._standing
        if standing is None:
            return None
        word = group.grants.get(member_id)
        if word is not None:
            return word, standing.value(word)
        grant: tuple[int, int] | None = standing.grant()
        if grant is not None:
            word, _ = grant
            group.add_grant(member_id, word)
        return grant

    def review(self, group: AnyGroup) -> None:
        """Withdraw what does not hold any more."""
        if not group.is_as_granted():
            self.withdraw(group)

    def withdraw(self, group: AnyGroup) -> None:
        """Take the grants of a group back: its members have to ask again."""
        self.see_silent(group, self._steady_ms())
        if self._standing is not None:
            for word in group.grants.values():
                self._standing.withdraw(word)
        group.grants.clear()

    def see_silent(self, group: AnyGroup, now_ms: int) -> None:
        """Take notice of the heartbeats that were answered elsewhere."""
        if self._standing is None:
            return
        for member_id, word in group.grants.items():
            group.see(member_id, now_ms - self._standing.idle_ms(word))
