"""The committed offsets of the groups of one partition of `__consumer_offsets`.

Rules of this file:
* Pure: a copy of what the log says, put in only after the log has it; the time comes in. Offsets of
  a deleted topic alone go before: nobody is to find them under a new one of that name.
* An offset expires after `offsets.retention.minutes` without a use (KIP-211): in a classic group
  of consumers counted from when it became empty, in other groups from the commit; never while a
  member may read the topic. A commit of version 2 to 4 may bring its own time.
* Offsets that a transaction still holds back (`pending`) count as unstable (KIP-447) and keep
  their group alive. When it is committed, they count as if they were committed at the place where
  they stand in the log: not over a later commit.

Source: Kafka's OffsetMetadataManager, OffsetExpirationConditionImpl.
"""

from __future__ import annotations

from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.classic.states import EMPTY, STABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set
    from typing import Any

    from shmbroker.groups.consumer.group import ConsumerGroup

    Committed = tuple[int, int, str, int, int, bytes]
    """offset, leader epoch (-1: not told), metadata, commit time in ms, expiry in ms (-1: by the
    retention), topic id (zeros: not told)"""

NO_EXPIRY = -1
MAX_OFFSET = 2**63 - 1


class OffsetStore:
    """Offsets by group, then by (topic, partition)."""

    __slots__ = ("_by_producer", "offsets", "pending")

    def __init__(self) -> None:
        self.offsets: dict[str, dict[tuple[str, int], Committed]] = {}
        self.pending: dict[str, dict[tuple[str, int], dict[int, tuple[int, Committed | None]]]] = {}
        """What open transactions would commit, by group, partition and producer id, with its place
        in the log; None: nothing more, as what was committed stands behind it."""
        self._by_producer: dict[int, set[tuple[str, str, int]]] = {}

    def put(self, group_id: str, topic: str, partition: int, committed: Committed) -> None:
        """A commit is in the log."""
        of_group = self.offsets.get(group_id)
        if of_group is None:
            of_group = self.offsets[group_id] = {}
        of_group[topic, partition] = committed
        if self.pending:
            self._put_over(group_id, topic, partition, MAX_OFFSET)

    def _put_over(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """What stands before this offset in the log counts no more."""
        waiting = self.pending.get(group_id, {}).get((topic, partition), {})
        for producer_id, (place, _) in waiting.items():
            if place < offset:
                waiting[producer_id] = place, None

    def put_pending(
        self,
        producer_id: int,
        offset: int,
        group_id: str,
        topic: str,
        partition: int,
        committed: Committed | None,
    ) -> None:
        """A commit that is part of a transaction is in the log, at this offset."""
        of_group = self.pending.setdefault(group_id, {})
        of_group.setdefault((topic, partition), {})[producer_id] = offset, committed
        self._by_producer.setdefault(producer_id, set()).add((group_id, topic, partition))

    def end_pending(self, producer_id: int, is_commit: bool) -> set[str]:
        """The marker of a transaction is in the log; the groups that it was about."""
        ended = self._by_producer.pop(producer_id, set())
        for group_id, topic, partition in ended:
            of_group = self.pending.get(group_id, {})
            waiting = of_group.get((topic, partition))
            if waiting is None:
                continue  # removed since
            place, committed = waiting.pop(producer_id, (-1, None))
            if not waiting:
                del of_group[topic, partition]
            if not of_group:
                del self.pending[group_id]
            if is_commit and committed is not None:
                self.offsets.setdefault(group_id, {})[topic, partition] = committed
                self._put_over(group_id, topic, partition, place)
        return {group_id for group_id, _, _ in ended}

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """A tombstone is in the log."""
        holders: tuple[dict[str, dict[tuple[str, int], Any]], ...] = (self.offsets, self.pending)
        for holder in holders:
            of_group = holder.get(group_id)
            if of_group is not None:
                of_group.pop((topic, partition), None)
                if not of_group:
                    del holder[group_id]

    def of_group(self, group_id: str) -> dict[tuple[str, int], Committed]:
        """Everything that a group has committed; not to be changed."""
        return self.offsets.get(group_id, {})

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        return (topic, partition) in self.pending.get(group_id, ())

    def take_topics(self, topics: Set[str]) -> list[tuple[str, str, int]]:
        """Remove every offset in topics that are gone, before the log has the tombstones: (group,
        topic, partition) of each, of some twice. It takes 0.3 us for each of them."""
        gone: list[tuple[str, str, int]] = []
        holders: tuple[dict[str, dict[tuple[str, int], Any]], ...] = (self.offsets, self.pending)
        for holder in holders:
            for group_id, of_group in list(holder.items()):
                rest = {key: value for key, value in of_group.items() if key[0] not in topics}
                if len(rest) < len(of_group):
                    gone += [(group_id, *key) for key in of_group if key[0] in topics]
                    holder[group_id] = rest
                    if not rest:
                        del holder[group_id]
        return gone

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether there is a committed offset, or one that a transaction would commit."""
        return (topic, partition) in self.of_group(group_id) or self.is_unstable(
            group_id, topic, partition
        )

    def expired(
        self,
        group: ClassicGroup | ConsumerGroup,
        now_ms: int,
        retention_ms: int,
        wall_ahead_ms: int = 0,
    ) -> list[tuple[str, int]]:
        """(topic, partition) of what nobody has used for too long.

        now_ms: by the wall clock, as the stamps of offsets; wall_ahead_ms: what it shows more than
        the group's clock.
        """
        since_empty = NO_EXPIRY
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state == EMPTY:
                since_empty = group.state_since_ms + wall_ahead_ms
            elif (
                group.protocol_type != CONSUMER
                or group.subscribed_topics is None
                or group.state != STABLE
            ):
                return []
        found = []
        for (topic, partition), committed in self.of_group(group.group_id).items():
            _, _, _, commit_ms, expiry_ms, _ = committed
            if expiry_ms != NO_EXPIRY:
                is_over = now_ms >= expiry_ms
            else:
                since = since_empty if since_empty >= 0 else commit_ms
                is_over = now_ms - since >= retention_ms
            if (
                is_over
                and not group.is_subscribed(topic)
                and not self.is_unstable(group.group_id, topic, partition)
            ):
                found.append((topic, partition))
        return found

    def is_empty_of(self, group_id: str) -> bool:
        """Whether there is nothing left that a group would be kept for."""
        return group_id not in self.offsets and group_id not in self.pending


def committed_of(value: dict[str, Any]) -> Committed:
    """The committed offset of an OffsetCommitValue."""
    return (
        value["offset"],
        value["leader_epoch"],
        value["metadata"],
        value["commit_timestamp"],
        value["expire_timestamp"],
        value["topic_id"],
    )
