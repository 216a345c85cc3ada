"""What the members of a classic group agree on: a protocol that everybody knows, and its topics.

Each member brings protocols with what it says under each of them, the preferred one first. One
that not everybody knows can't be chosen, so a group admits nobody who would leave it without any.

Rules of this file:
* Each JoinGroup asks here, of groups with thousands of members: counts are kept, not made anew.
* Subscriptions are opaque to the broker, but for groups of consumers, and there only to know whose
  offsets may be deleted: whatever can't be read means "not known".

Source: Kafka's ClassicGroup (selectProtocol, computeSubscribedTopics).
"""

from __future__ import annotations

from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.classic.member import subscribed_topics
from shmbroker.groups.group_memory import SUBSCRIBED_NAMES_MAX
from shmbroker.groups.group_partition import java_string_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.classic.member import ClassicMember, Protocols

KNOWN_SUBSCRIPTIONS_MAX = 8
"""Different subscriptions that others are compared with before they are read."""


class Support:
    """How many members know a protocol."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """How many members have a protocol, by its name; a protocol that no member has is not in
        here."""

    def count(self, protocols: Protocols, difference: int) -> None:
        """Count so many members more that have these protocols."""
        counts = self.counts
        for name in {name for name, _ in protocols}:
            counts[name] = counts.get(name, 0) + difference
            if not counts[name]:
                del counts[name]

    def has_common(self, protocols: Protocols, everybody: int) -> bool:
        """Whether one of these is known to so many members, who are all of them."""
        counts = self.counts
        for name, _ in protocols:  # noqa: SIM110 - each JoinGroup asks; a generator costs twice
            if counts.get(name, 0) == everybody:
                return True
        return False

    def elected(self, members: dict[str, ClassicMember]) -> str:
        """The protocol with the most votes: each member votes for its first that all members
        know. Of several with as many it is the one that Kafka takes, whatever members came first.
        """
        everybody = len(members)
        votes: dict[str, int] = {}
        for member in members.values():
            for name, _ in member.protocols:
                if self.counts[name] == everybody:
                    votes[name] = votes.get(name, 0) + 1
                    break
        most = max(votes.values())
        first = [name for name, count in votes.items() if count == most]
        return first[0] if len(first) == 1 else min(first, key=lambda name: _place(name, votes))


def _place(name: str, votes: dict[str, int]) -> int:
    """Where Kafka finds a protocol among those with votes: its place in a hash map of Java's."""
    places = 16
    while len(votes) * 4 > places * 3:
        places *= 2
    value = java_string_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & (places - 1)


def topics_of(group: ClassicGroup) -> frozenset[str] | None:
    """What the members are subscribed to, if they say it in the consumers' own format."""
    if group.protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    if group.members and group.protocol_name is None:
        return None
    left = SUBSCRIBED_NAMES_MAX
    known: tuple[bytes, ...] = ()  # what subscriptions begin with: most are to the same topics
    for member in group.members.values():
        metadata = member.metadata(group.protocol_name)
        if metadata.startswith(known, 2):
            continue
        found = subscribed_topics(metadata, left)
        if found is None:
            return None
        topics.update(found[0])
        left -= len(found[0])
        if len(known) < KNOWN_SUBSCRIPTIONS_MAX:
            known += (metadata[2 : found[1]],)
    return frozenset(topics)
