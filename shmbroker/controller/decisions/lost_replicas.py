"""Replicas that lost what they had, and what follows from that.

   what happened                              who says so
   the log directory was replaced             its new id, at the broker's registration
   the log ends before its own checkpoints    the broker, when it has opened the log (LACKS)
   a follower has what its leader lacks       the follower, which has stopped there (IS_AHEAD)

Rules of this file:
* Such a replica leaves ISR and ELR, and does not lead while another replica exists, at work or not:
  somebody else may have what it lost. It is in sync again when it has caught up as a follower.
* That is durable before the broker serves, as it is in the metadata log: out of ISR and ELR, and
  with LOST for its log directory (KIP-858) until it is in sync again. Elections that an operator
  allows to lose records take such a replica last of all.
* If nobody is left who is in sync or eligible, the partition has no leader until one is back or an
  operator allows an unclean election. Only where every replica has said that it lost something is
  there nobody to wait for: then whoever has the most leads.
* A replica that has no other beside it begins empty. All that can be done is to say so.

Pure functions of an image.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.controller.decisions.partition_change import ONLINE, partition_change
from shmbroker.ids import LOST_DIRECTORY, is_real_directory
from shmbroker.metadata.image import NO_LEADER, changed_partition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.metadata.image import BrokerImage, PartitionImage, TopicImage
    from shmbroker.metadata.record import MetadataRecord

Ends = tuple[int, int]
"""Leader epoch of a log's last batch, log end offset: of two replicas that are in sync or eligible
the greater has everything that the other one has and that was committed."""


class BegunAnew(NamedTuple):
    """What a replaced log directory means."""

    records: list[MetadataRecord]
    replicas: int
    """How many of its replicas begin again, empty."""
    only: list[str]
    """Partitions that had no other replica: what they held is lost."""
    leaderless: list[str]
    """Partitions of which nobody who is in sync is at work."""


def begun_anew(cluster: ClusterState, broker_id: int, directories: list[bytes]) -> BegunAnew:
    """What a broker that registers with these log directories no longer has."""
    known = cluster.image.brokers.get(broker_id)
    found = BegunAnew([], 0, [], [])
    replicas = 0
    if known is not None and set(known.directories) <= set(directories):
        return found
    for topic in cluster.image.topics_by_id.values():
        for partition in topic.partitions:
            if broker_id not in partition.replicas:
                continue
            if not _is_replaced(partition.directory(broker_id), known, directories):
                continue
            replicas += 1
            name = f"{topic.name}-{partition.partition}"
            if len(partition.replicas) == 1:
                found.only.append(name)
                message: dict[str, Any] | None = {
                    "partition_id": partition.partition,
                    "topic_id": topic.topic_id,
                    "directories": directories[:1],
                }
            else:
                message = replica_withdrawn(cluster, topic, partition, broker_id)
            if message is not None:
                found.records.append(("PartitionChangeRecord", 2, message))
                if changed_partition(partition, message).leader_id == NO_LEADER:
                    found.leaderless.append(name)
    return found._replace(replicas=replicas)


def _is_replaced(was: bytes, known: BrokerImage | None, directories: list[bytes]) -> bool:
    """Whether a replica that was in the directory `was` is in none of these; `known`: what was
    registered before."""
    if known is None:
        return is_real_directory(was) and was not in directories
    return not (was in known.directories and was in directories)


def replica_withdrawn(
    cluster: ClusterState,
    topic: TopicImage,
    partition: PartitionImage,
    broker_id: int,
    *,
    heir: int | None = None,
) -> dict[str, Any] | None:
    """The change by which a replica that lacks committed records is neither in sync nor eligible
    and leads no more: rather nobody leads. None if that is so. heir: who is to lead instead, else
    the first that may."""

    def is_acceptable(other: int) -> bool:
        return other != broker_id and cluster.is_active(other) and heir in (None, other)

    isr = tuple(other for other in partition.in_sync_replicas if other != broker_id)
    others = {*isr, *partition.eligible_leader_replicas} - {broker_id}
    # Where somebody is left who has everything, losing records is no choice yet.
    rules = cluster.rules(topic, is_acceptable, ONLINE if others else None)
    if heir is not None and heir not in isr:
        isr = ()  # it is eligible: only an empty ISR lets it lead
    message = partition_change(
        topic.topic_id,
        partition,
        rules,
        isr=isr,
        unclean=(broker_id,),
        keeps_leader=False,
    )
    message = message or {"partition_id": partition.partition, "topic_id": topic.topic_id}
    if not isr and message.get("leader", partition.leader_id) == NO_LEADER:
        # Who is eligible is in sync, now: else a change of min.insync.replicas would forget it. And
        # where Kafka would keep the last one in sync, without ELRs, nobody is.
        eligible = tuple(
            message.get("eligible_leader_replicas", partition.eligible_leader_replicas)
        )
        message["isr"] = eligible[:1]
        if eligible:
            message["eligible_leader_replicas"] = eligible[1:]
        if broker_id in message.get("last_known_elr", partition.last_known_elr):
            message["last_known_elr"] = ()  # it would lead without being asked
    after = changed_partition(partition, message)
    if broker_id in after.replicas and after.directory(broker_id) != LOST_DIRECTORY:
        message["directories"] = _directories(after, {broker_id: LOST_DIRECTORY})
    return message if len(message) > 2 else None


def _directories(partition: PartitionImage, changed: Mapping[int, bytes]) -> list[bytes]:
    return [changed.get(other) or partition.directory(other) for other in partition.replicas]


def on_lack(
    cluster: ClusterState,
    topic: TopicImage,
    partition: PartitionImage,
    broker_id: int,
    lacking: Mapping[int, Ends],
) -> dict[str, Any] | None:
    """The change that follows from a broker's word that its log reached further once.

    lacking: what those have who said so of this partition, with this one.
    """
    if broker_id not in partition.replicas or len(partition.replicas) == 1:
        return None
    message = replica_withdrawn(cluster, topic, partition, broker_id)
    now = changed_partition(partition, message) if message else partition
    holders = (*now.in_sync_replicas, *now.eligible_leader_replicas)
    if now.leader_id != NO_LEADER or holders or not set(now.replicas) <= lacking.keys():
        return message
    best = max(now.replicas, key=lambda other: (cluster.is_active(other), lacking[other]))
    if not cluster.is_active(best):
        return message
    message = message or {"partition_id": partition.partition, "topic_id": topic.topic_id}
    directories = _directories(now, {best: cluster.directory_of(best)})
    return message | {"leader": best, "isr": (best,), "directories": directories}


def on_ahead(
    cluster: ClusterState, topic: TopicImage, partition: PartitionImage, broker_id: int, epoch: int
) -> dict[str, Any] | None:
    """The change that follows from a follower's word that in this epoch its leader lacks committed
    records that it has: it leads, if it is in sync or eligible.

    If it is neither, the leader may have committed others since: then an operator has to say which
    of the two are worth more, and nothing changes.
    """
    holders = (*partition.in_sync_replicas, *partition.eligible_leader_replicas)
    leader_id = partition.leader_id
    if (
        epoch != partition.leader_epoch
        or broker_id not in holders
        or leader_id in (broker_id, NO_LEADER)
        or not cluster.is_active(broker_id)
    ):
        return None
    return replica_withdrawn(cluster, topic, partition, leader_id, heir=broker_id)
