"""A member of a consumer group of the new protocol, and its way from assignment to assignment.

                     ┌──────────────── partitions to give up ────────────────┐
                     ▼                                                       │
    UNREVOKED ──given up──► UNRELEASED ──nobody else has them any more──► STABLE
        │                      │   ▲                                       │   ▲
        └──────────────────────┼───┴────── some are still with others ─────┘   │
                               └───────────────────────────────────────────────┘

A member says what it owns; the group says what it shall have (the target). It stays at its epoch
until it has given up what isn't its any more, then goes to the target's epoch and gets what is
free, the rest as soon as others have given it up. So no partition is ever with two members.

Rules of this file:
* Pure. What stands in `FIELDS` is in the log; deadlines are lost with the coordinator.
* `reconcile` changes nothing: it returns the member itself, or a changed copy.

Source: KIP-848; Kafka's ConsumerGroupMember, CurrentAssignmentBuilder.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.groups.group_memory import MEMBER_BYTES, names_bytes, protocols_bytes
from shmbroker.purgatory import NEVER_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.groups.classic.member import Protocols
    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.change import Deadlines

    Owned = list[dict[str, Any]] | None
    """What a member says it has: rows of topic id and partitions; None if it says nothing."""

# States, as the records have them. A state that isn't known was written by a newer broker.
STABLE = 0
UNREVOKED = 1
UNRELEASED = 2

LEFT_EPOCH = -1
"""The epoch of a member that has gone."""
AWAY_EPOCH = -2
"""The epoch of a static member that has left and may come back."""

NO_TIMEOUT = -1

FIELDS = (
    "member_id",
    "instance_id",
    "rack_id",
    "client_id",
    "client_host",
    "rebalance_timeout_ms",
    "subscribed_topics",
    "subscribed_regex",
    "assignor",
    "classic",
    "epoch",
    "previous_epoch",
    "state",
    "assigned",
    "revoking",
)


class ClassicPart(NamedTuple):
    """What a member that speaks the classic protocol has besides."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerMember:
    """One member; `assigned` and `revoking` are topic id to partitions."""

    __slots__ = (
        *FIELDS,
        "deadline_ms",
        "join_deadline_ms",
        "revoke_deadline_ms",
        "sync_deadline_ms",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = NO_TIMEOUT
        self.subscribed_topics: frozenset[str] = frozenset()
        self.subscribed_regex: str | None = ""
        """An expression in RE2 syntax; neither "" nor None is one."""
        self.assignor: str | None = None
        """The assignor that it would like the group to have."""
        self.classic: ClassicPart | None = None
        """None: it speaks the new protocol."""
        self.epoch = 0
        self.previous_epoch = -1
        """The epoch before: an answer with the new one may have been lost."""
        self.state = STABLE
        self.assigned: Assignment = {}
        self.revoking: Assignment = {}
        """What it has to give up, and may still be reading."""
        self.deadline_ms = NEVER_MS
        """End of its session."""
        self.revoke_deadline_ms = NEVER_MS
        """The time until which it has to give up what it has to."""
        self.join_deadline_ms = NEVER_MS
        """The time until which a classic member has to join again."""
        self.sync_deadline_ms = NEVER_MS
        """The time until which a classic member has to ask for its assignment."""

    def copy(self, member_id: str | None = None) -> ConsumerMember:
        """This member, perhaps under another id; without deadlines."""
        other = ConsumerMember(self.member_id)
        for name in FIELDS:
            setattr(other, name, getattr(self, name))
        if member_id is not None:
            other.member_id = member_id
        return other

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, without what it is assigned."""
        texts = (self.instance_id, self.rack_id, self.client_id, self.subscribed_regex)
        size = MEMBER_BYTES + len(self.member_id) + sum(len(text or "") for text in texts)
        if self.classic is not None:
            size += protocols_bytes(self.classic.protocols)
        return size + names_bytes(self.subscribed_topics)

    def is_like(self, other: ConsumerMember) -> bool:
        """Whether all that is stored is the same."""
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all that it shall have at this epoch."""
        return self.state == STABLE and self.epoch == epoch

    def next_deadline_ms(self) -> int:
        """The first of its deadlines."""
        return min(
            self.deadline_ms,
            self.revoke_deadline_ms,
            self.join_deadline_ms,
            self.sync_deadline_ms,
        )

    def expect(self, deadlines: Deadlines) -> None:
        """Take over the deadlines that are new."""
        if deadlines.session_ms is not None:
            self.deadline_ms = deadlines.session_ms
        if deadlines.revoke_ms is not None:
            self.revoke_deadline_ms = deadlines.revoke_ms
        if deadlines.join_ms is not None:
            self.join_deadline_ms = deadlines.join_ms
        if deadlines.sync_ms is not None:
            self.sync_deadline_ms = deadlines.sync_ms

    def moved(
        self, epoch: int, state: int, assigned: Assignment, revoking: Assignment
    ) -> ConsumerMember:
        """A copy at this epoch with this assignment."""
        other = self.copy()
        other.previous_epoch = self.epoch
        other.epoch = epoch
        other.state = state
        other.assigned = assigned
        other.revoking = revoking
        return other


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    subscribed: frozenset[bytes],
    is_subscription_new: bool,
    owner_of: Callable[[bytes, int], str | None],
    owned: Owned,
) -> ConsumerMember | None:
    """The member one step closer to its target, or itself; None if it has to join anew.

    subscribed: ids of the topics that it is subscribed to now.
    owner_of: the member that has a partition, or None.
    """
    state, epoch = member.state, member.epoch
    if state == STABLE or (state == UNREVOKED and _owns(owned, member.revoking)):
        if state == STABLE and epoch != target_epoch:
            pass
        elif is_subscription_new:
            return _restrict(member, subscribed, owned)
        else:
            return member
    elif state not in (UNREVOKED, UNRELEASED):
        if owned is None or owned:
            return None
        epoch = target_epoch
    return _advance(member, epoch, target_epoch, target, subscribed, owner_of, owned)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    subscribed: frozenset[bytes],
    owner_of: Callable[[bytes, int], str | None],
    owned: Owned,
) -> ConsumerMember:
    is_unreleased = False
    kept: Assignment = {}
    given_up: Assignment = {}
    added: Assignment = {}
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, _NONE) if topic_id in subscribed else _NONE
        mine = member.assigned.get(topic_id, _NONE)
        was_mine = member.revoking.get(topic_id, _NONE)
        keep = mine & wanted
        free = frozenset(
            partition
            for partition in wanted - keep
            if partition in was_mine or owner_of(topic_id, partition) in (None, member.member_id)
        )
        is_unreleased = is_unreleased or len(keep) + len(free) < len(wanted)
        if keep:
            kept[topic_id] = keep
        if len(keep) < len(mine):
            given_up[topic_id] = mine - keep
        if free:
            added[topic_id] = free
    if given_up and _owns(owned, given_up):
        return member.moved(epoch, UNREVOKED, kept, given_up)
    for topic_id, partitions in added.items():
        kept[topic_id] = kept.get(topic_id, _NONE) | partitions
    return member.moved(target_epoch, UNRELEASED if is_unreleased else STABLE, kept, {})


def _restrict(member: ConsumerMember, subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    """Let a member that isn't subscribed to some topics any more give them up at once, at its
    epoch."""
    lost = {each: mine for each, mine in member.assigned.items() if each not in subscribed}
    if not lost:
        return member
    changed = member.copy()
    changed.assigned = {each: mine for each, mine in member.assigned.items() if each in subscribed}
    revoking = dict(member.revoking)
    for topic_id, partitions in lost.items():
        revoking[topic_id] = revoking.get(topic_id, _NONE) | partitions
    if _owns(owned, revoking):
        changed.state = UNREVOKED
        changed.revoking = revoking
    return changed


def _owns(owned: Owned, partitions: Assignment) -> bool:
    """Whether the member may have any of these; it may have all if it says nothing."""
    return owned is None or any(
        not partitions.get(row["topic_id"], _NONE).isdisjoint(row["partitions"]) for row in owned
    )


_NONE: frozenset[int] = frozenset()
