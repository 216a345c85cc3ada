"""Who leads a partition that has no leader.

shmbroker leaves partitions their leader (see `active_controller`), but Apache Kafka, when it stops,
leaves a directory in which nobody leads anything: leader -1, and with eligible leader replicas on
even the in-sync replicas empty. A broker that comes back leads again

A. what it is in sync with;
B. what has no in-sync replica, if it is the only replica there is: no record is anywhere else.
"""

from __future__ import annotations

from shmbroker.metadata.image import NO_LEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.controller.metadata_log import Record
    from shmbroker.metadata.image import MetadataImage


def elect_leaders(image: MetadataImage, broker_id: int) -> list[Record]:
    """PartitionChangeRecords that make a returning broker leader of what has none."""
    records: list[Record] = []
    for topic in image.topics_by_id.values():
        for partition in topic.partitions:
            if partition.leader_id != NO_LEADER:
                continue
            in_sync = partition.in_sync_replicas
            if not in_sync and partition.replicas == (broker_id,):  # B
                in_sync = partition.replicas
            if broker_id not in in_sync:  # A
                continue
            message = {
                "partition_id": partition.partition,
                "topic_id": topic.topic_id,
                "isr": list(in_sync),
                "leader": broker_id,
                "eligible_leader_replicas": [],
                "last_known_elr": [],
            }
            records.append(("PartitionChangeRecord", 2, message))
    return records
