"""Leaderships: what the metadata says of partition 0, for who needs no controller."""

from shmbroker.metadata.image import RECOVERED, PartitionImage


def leadership(
    epoch: int = 0,
    leader: int = 1,
    replicas: tuple[int, ...] = (1,),
    in_sync: tuple[int, ...] | None = None,
    recovery: int = RECOVERED,
) -> PartitionImage:
    """Led in this epoch, which is the partition's, too; all replicas are in sync if nothing else
    is said."""
    if in_sync is None:
        in_sync = replicas
    return PartitionImage(
        0, replicas, in_sync, leader, epoch, epoch, (), leader_recovery_state=recovery
    )
