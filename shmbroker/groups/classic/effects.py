"""What a classic group wants done: it returns these, and `execution` does them in their order.

A store writes the group's record; when that is done or has failed, the owner tells the group by
`ClassicGroup.on_stored`, whose effects come before those that follow the store.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.member import ClassicMember


class Reply(NamedTuple):
    """Answer a JoinGroup or SyncGroup."""

    call: Caller
    body: dict[str, Any]


class StoreEmptied(NamedTuple):
    """Store the group, which has no members any more."""


class StoreAssigned(NamedTuple):
    """Store the group with what its leader has assigned."""

    generation_id: int
    """The generation that it is for: there may be another by the time that it is stored."""
    assignments: dict[str, bytes]
    """The assignment of every member, by its id."""


class StoreReplaced(NamedTuple):
    """Store the group as it is: a static member has come back under another id."""

    old: ClassicMember
    """Put back if it can't be stored."""
    new: ClassicMember
    was_leader: bool
    version: int
    """The version of the JoinGroup by which it came back."""


Store = StoreEmptied | StoreAssigned | StoreReplaced
Effect = Reply | Store
