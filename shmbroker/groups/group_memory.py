"""What groups may hold in memory, counted in bytes, and what they do hold.

Whoever reaches the broker may join groups, and each JoinGroup may bring a MiB that stays until its
session ends, half an hour at most, also when its client has gone. So what members bring is counted,
with something for the objects around it, in each group and in all of a coordinator:

    a group is full         GROUP_MAX_SIZE_REACHED, as where it has too many members: an error that
                            every client hands to its application
    the coordinator is full COORDINATOR_NOT_AVAILABLE: clients try again, and find room when the
                            sessions of those who left something behind are over

A member that brings no more than before is never refused. Ids that were handed out and not used yet
go first, the oldest of them: their owner is told UNKNOWN_MEMBER_ID and asks for another. Committed
offsets are not counted: they are bounded by `offset.metadata.max.bytes` and end by retention.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from shmbroker.groups.classic.member import Protocols
    from shmbroker.groups.group_table import AnyGroup

COORDINATOR_BYTES_MAX = 64 << 20
GROUP_BYTES_MAX = 8 << 20
"""What one group may hold: it is stored as one record, which has to fit into a batch (1 MiB by
default), so nobody who is served comes near."""

GROUP_BYTES = 2048
MEMBER_BYTES = 1024
ID_BYTES = 256
STRING_BYTES = 100
"""What the objects around a group, a member, an id that is handed out, a name or protocol take."""

PROTOCOLS_MAX = 100
"""The protocols of one member; clients have two or three."""

SUBSCRIBED_NAMES_MAX = 50_000
"""Topic names of different subscriptions that are looked through when a group has a new generation:
some 20 ms."""

REGEXES_MAX = 50
"""The expressions of one group: each is compared with the name of every topic."""

IDLE_GROUPS_MAX = 10_000
"""Groups without members and without committed offsets; the oldest of more are deleted before the
check of retention finds them, which is ten minutes away."""


def protocols_bytes(protocols: Protocols) -> int:
    """What a classic member's protocols take."""
    size = STRING_BYTES * len(protocols)
    for name, metadata in protocols:
        size += len(name) + len(metadata)
    return size


def names_bytes(names: Collection[str]) -> int:
    """What names of topics take."""
    return sum(map(len, names)) + STRING_BYTES * len(names)


class GroupMemory:
    """What the groups of one coordinator hold: their `held_bytes`, noted as `counted_bytes`."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int = COORDINATOR_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def has_room(self, more: int) -> bool:
        """Whether so much more may be held."""
        return more <= 0 or self.held_bytes + more <= self.bytes_max

    def count(self, group: AnyGroup) -> None:
        """What a group holds has changed."""
        held = group.held_bytes
        self.held_bytes += held - group.counted_bytes
        group.counted_bytes = held

    def forget(self, group: AnyGroup) -> None:
        """Stop counting a group that is not one of ours any more."""
        self.held_bytes -= group.counted_bytes
        group.counted_bytes = 0
