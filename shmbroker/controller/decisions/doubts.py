"""The choice of leaders after brokers ended without a clean stop: a power cut takes what was not on
the disk yet, more from some than from others, and the controller can't see what is gone.

   broker   registers, and stays fenced    opens its logs, leads and follows nothing
            TellLogEnds: (epoch of the last batch, log end offset) of each replica
   here     waits for all that may come, then decides about all partitions at once, and unfences

Rules of this file:
* A broker that stopped cleanly, or died alone (the page cache lives), is safe: it has all it ever
  had, serves at once, and where it is in sync or eligible those who are not leave ISR and ELR.
* Of the others, whoever has the greatest (epoch, end) leads: it has everything that another one has
  and that was committed. In sync with it are those who have as much; the rest follow, and come in
  when they have it.
* Somebody who is neither in sync nor eligible leads only if one who is has told, has less, and all
  of that is there too, by the leader epochs: else it may have gone on from what an unclean election
  has given up.
* The family's brokers that have not registered are waited for, as long as the caller says. One that
  registered and still opens its logs is waited for until it has, or dies.
* Partitions whose holders (who is in sync or eligible) have not come keep what they have.

Pure: state, and functions of an image.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from shmbroker.controller.decisions.partition_change import has_lost, partition_change
from shmbroker.ids import TopicIdPartition
from shmbroker.metadata.image import NO_LEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.controller.decisions.lost_replicas import Ends
    from shmbroker.metadata.image import PartitionImage, TopicImage
    from shmbroker.metadata.record import MetadataRecord


Epochs = tuple[tuple[int, int], ...]
"""The last leader epochs of a log, and where they began."""


class Decided(NamedTuple):
    """What comes of what all have told."""

    records: list[MetadataRecord]
    brokers: list[int]
    """The brokers that were in doubt: they may serve now."""
    waiting: dict[str, tuple[int, ...]]
    """Partitions that nobody can lead yet, and who is waited for."""


class Doubts:
    """What is known, while a family starts, of brokers that may have lost records."""

    __slots__ = ("_ends", "_epochs", "_told", "safe", "unclean")

    def __init__(self) -> None:
        self.safe: set[int] = set()
        self.unclean: set[int] = set()
        self._ends: dict[int, dict[TopicIdPartition, Ends]] = {}
        self._epochs: dict[tuple[int, TopicIdPartition], Epochs] = {}
        """The log ends of replicas that are neither in sync nor eligible."""
        self._told: set[int] = set()
        """Brokers that have told all."""

    def note(self, broker_id: int, is_clean: bool) -> None:
        """A broker registers."""
        self.forget(broker_id)
        (self.safe if is_clean else self.unclean).add(broker_id)

    def tell(
        self, broker_id: int, ends: Iterable[tuple[TopicIdPartition, Ends, Epochs]], is_last: bool
    ) -> None:
        """One in doubt says where its logs end; also to the successor of who has heard it."""
        self.safe.discard(broker_id)
        self.unclean.add(broker_id)
        known = self._ends.setdefault(broker_id, {})
        for place, end, epochs in ends:
            known[place] = end
            if epochs:
                self._epochs[broker_id, place] = epochs
        if is_last:
            self._told.add(broker_id)

    def forget(self, broker_id: int) -> None:
        """Forget a broker that has died, or begins again."""
        for known in (self.safe, self.unclean, self._told):
            known.discard(broker_id)
        self._ends.pop(broker_id, None)
        self._epochs = {key: of for key, of in self._epochs.items() if key[0] != broker_id}

    def withdrawn(self, cluster: ClusterState) -> list[MetadataRecord]:
        """PartitionChangeRecords by which those in doubt leave ISR and ELR where one is at work
        that is safe: it need not wait for what they tell."""
        records: list[MetadataRecord] = []
        if not (self.safe and self.unclean):
            return records
        for topic in cluster.image.topics_by_id.values():
            for partition in topic.partitions:
                holders = _holders(partition)
                if self.unclean.isdisjoint(holders):
                    continue
                if any(other in self.safe and cluster.is_active(other) for other in holders):
                    away = self.unclean
                    message = without_unclean(cluster, topic, partition, self.unclean, away)
                    if message is not None:
                        records.append(("PartitionChangeRecord", 2, message))
        return records

    def absent(self, pending: AbstractSet[int]) -> AbstractSet[int]:
        """The brokers that have not come, of those that may not have registered yet."""
        return pending - self.safe - self.unclean

    def can_be_settled(self, pending: AbstractSet[int], is_waiting: bool) -> bool:
        """Whether all have told who are waited for; `is_waiting`: for who is absent, too."""
        is_known = bool(self.unclean) and self.unclean <= self._told
        return is_known and not (is_waiting and self.absent(pending))

    def settle(self, cluster: ClusterState, pending: AbstractSet[int]) -> Decided:
        """Decide about all partitions of those in doubt, who are forgotten when that is stored."""
        decided = Decided([], sorted(self.unclean), {})
        away = self.unclean | self.absent(pending)
        for topic in cluster.image.topics_by_id.values():
            for partition in topic.partitions:
                if self.unclean.isdisjoint(partition.replicas):
                    continue
                if len(partition.replicas) == 1 and partition.leader_id != NO_LEADER:
                    continue
                message = self._decide(cluster, topic, partition, away)
                if message is not None:
                    decided.records.append(("PartitionChangeRecord", 2, message))
                elif not (
                    cluster.is_active(partition.leader_id) and partition.leader_id not in away
                ):
                    name = f"{topic.name}-{partition.partition}"
                    decided.waiting[name] = _holders(partition)
        return decided

    def _decide(
        self, cluster: ClusterState, topic: TopicImage, partition: PartitionImage, away: set[int]
    ) -> dict[str, Any] | None:
        """The change of one partition; None if it stays as it is."""
        holders = _holders(partition)
        if len(partition.replicas) == 1:  # no record is anywhere else, whatever it has
            return led_by_the_longest(topic, partition, {partition.replicas[0]: (-1, 0)})
        if any(cluster.is_active(other) and other not in away for other in holders):
            return without_unclean(cluster, topic, partition, self.unclean, away)
        place = topic.topic_id, partition.partition
        ends = {
            other: self._ends[other][place]
            for other in partition.replicas
            if place in self._ends.get(other, ()) and not has_lost(partition, other)
        }
        told = [ends[other] for other in holders if other in ends]
        if not told:
            return None
        for other in ends.keys() - set(holders):
            epochs = self._epochs.get((other, place), ())
            if not has_all_of(ends[other], epochs, max(told)):
                del ends[other]
        return led_by_the_longest(topic, partition, ends)


def _holders(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that have everything that was committed, by what is known."""
    return (*partition.in_sync_replicas, *partition.eligible_leader_replicas)


def has_all_of(ends: Ends, epochs: Epochs, other: Ends) -> bool:
    """Whether a log has everything that another one has, by its ends and its leader epochs."""
    if other[1] == 0 or ends[0] == other[0]:
        return ends[1] >= other[1]
    ends_at = {epoch: start for (epoch, _), (_, start) in itertools.pairwise(epochs)}
    return other[1] <= ends_at.get(other[0], -1)


def without_unclean(
    cluster: ClusterState,
    topic: TopicImage,
    partition: PartitionImage,
    unclean: AbstractSet[int],
    away: AbstractSet[int],
) -> dict[str, Any] | None:
    """The change by which those who may have lost records leave ISR and ELR, as somebody is there
    who has not; None if they are in neither. `away`: who can't lead now."""

    def is_acceptable(other: int) -> bool:
        return cluster.is_active(other) and other not in away

    return partition_change(
        topic.topic_id,
        partition,
        cluster.rules(topic, is_acceptable),
        isr=[other for other in partition.in_sync_replicas if other not in unclean],
        unclean=tuple(unclean),
    )


def led_by_the_longest(
    topic: TopicImage, partition: PartitionImage, ends: dict[int, Ends]
) -> dict[str, Any]:
    """The change by which the replica leads that has the most, `ends` saying what they have, always
    in a new epoch, as followers compare in a new one only. Among equals the leader that was, then
    who is in sync, eligible, in the order of the replicas."""
    most = max(ends.values())
    order = (partition.leader_id, *_holders(partition), *partition.replicas)
    leader_id = next(other for other in order if ends.get(other) == most)
    isr = tuple(other for other in partition.in_sync_replicas if ends.get(other) == most)
    if leader_id not in isr:
        isr = (leader_id, *isr)
    message: dict[str, Any] = {
        "partition_id": partition.partition,
        "topic_id": topic.topic_id,
        "leader": leader_id,
    }
    if isr != partition.in_sync_replicas:
        message["isr"] = isr
    if partition.eligible_leader_replicas:
        message["eligible_leader_replicas"] = ()
    if partition.last_known_elr:
        message["last_known_elr"] = ()
    return message
