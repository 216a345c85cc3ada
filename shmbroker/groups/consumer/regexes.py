"""The expressions that members of a group are subscribed by, and the topics that match them.

    a member brings one ──► REGEX is wanted ──► `resolve_regexes` ──► REGEX, EPOCH
    topics came, or a long time went by ──► `is_due` ──┘

An expression is kept as long as a member has it; its topics come from the log, so that a
coordinator that takes over needs no look of its own. How one is compiled and compared is in
`topic_regex`.

Rules of this file:
* Pure: a look through all topics is a `Change` like any other, stored before it counts.
* A look costs time in proportion to all topics: there is one at a time for all expressions of a
  group, and never two within `REGEX_INTERVAL_MS`.

Source: KIP-848; Kafka's GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.change import Change
from shmbroker.groups.consumer.targets import topics_hash
from shmbroker.groups.consumer.topic_regex import fault_of, matching
from shmbroker.groups.group_memory import REGEXES_MAX, names_bytes
from shmbroker.purgatory import NEVER_MS
from shmbroker.security.rights import sees_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from shmbroker.groups.consumer.change import ConsumerSettings, Topics
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.groups.consumer.member import ConsumerMember

REGEX_INTERVAL_MS = 10_000
"""Least time between two looks through all topics for a group's expressions."""


class ResolvedRegex(NamedTuple):
    """The topics that match an expression of members."""

    topics: frozenset[str]
    offset: int
    """The metadata log's offset as of which they were looked for."""
    looked_ms: int


class Regexes:
    """The expressions of one group."""

    __slots__ = ("_settings", "counts", "held_bytes", "resolved")

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.counts: dict[str, int] = {}
        """How many members are subscribed by an expression."""
        self.resolved: dict[str, ResolvedRegex] = {}
        """Resolved expressions, by their text."""
        self.held_bytes = 0
        """What the names in `resolved` take in memory."""

    def fault_of_new(self, regex: str) -> str | None:
        """What is wrong with an expression that no member has yet; None if nothing is."""
        fault = fault_of(regex)
        if len(self.counts) >= REGEXES_MAX:
            fault = f"the group has {REGEXES_MAX} expressions already"
        return fault

    def is_only_of(self, member: ConsumerMember) -> bool:
        """Whether a member has an expression, and no other member has it."""
        regex = member.subscribed_regex
        return bool(regex) and self.counts.get(regex or "") == 1

    def after(self, old: ConsumerMember, new: ConsumerMember) -> set[str]:
        """The expressions that members are subscribed by when this one has changed."""
        regexes = set(self.counts)
        if old.subscribed_regex and self.is_only_of(old):
            regexes.discard(old.subscribed_regex)
        if new.subscribed_regex:
            regexes.add(new.subscribed_regex)
        return regexes

    def is_due(
        self,
        now_ms: int,
        topics: Topics,
        is_wanted: bool = False,
        regexes: Iterable[str] | None = None,
    ) -> bool:
        """Whether to look through all topics again."""
        wanted = self.counts.keys() if regexes is None else set(regexes)
        if not wanted:
            return False
        looked_ms, offset = -NEVER_MS, 0
        if self.resolved:
            looked_ms = max(found.looked_ms for found in self.resolved.values())
            offset = min(found.offset for found in self.resolved.values())
        if now_ms <= looked_ms + REGEX_INTERVAL_MS:
            return False
        return (
            is_wanted
            or len(wanted) != len(self.resolved)
            or offset < topics.created_offset
            or now_ms > looked_ms + self._settings.regex_refresh_ms
        )

    # ── what is stored ──────────────────────────────────────────────────────────────────────────

    def count(self, regex: str | None, difference: int) -> None:
        """Count so many members more that have this expression; neither "" nor None is one."""
        if regex:
            count = self.counts.get(regex, 0) + difference
            if count:
                self.counts[regex] = count
            else:
                del self.counts[regex]

    def replay(self, regex: str, value: dict[str, Any] | None) -> None:
        """Take in the record of an expression's topics."""
        known = self.resolved.pop(regex, None)
        if known is not None:
            self.held_bytes -= names_bytes(known.topics)
        if value is not None:
            names = frozenset(value["topics"])
            self.resolved[regex] = ResolvedRegex(names, value["version"], value["timestamp"])
            self.held_bytes += names_bytes(names)


def resolve_regexes(
    group: ConsumerGroup,
    now_ms: int,
    topics: Topics,
    may_see: Callable[[str], bool] = sees_all,
) -> Change:
    """Find the topics that match the members' expressions now. may_see: whether who has asked
    may know of a topic; the others are not read, whoever else is in the group (KIP-848)."""
    change = Change()
    image = topics.image
    regexes = group.regexes
    found = matching(regexes.counts, [*filter(may_see, image.topics_by_name)])
    resolved = {}
    is_new = False
    for regex, names in found.items():
        resolved[regex] = ResolvedRegex(names, image.offset, now_ms)
        known = regexes.resolved.get(regex)
        is_new = is_new or names != (known.topics if known is not None else frozenset())
        change.records.append(
            stored.regex_record(group.group_id, regex, names, image.offset, now_ms)
        )
    metadata_hash = topics_hash(group.members.values(), resolved, topics)
    if is_new or metadata_hash != group.metadata_hash:
        change.records.append(stored.epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    return change
