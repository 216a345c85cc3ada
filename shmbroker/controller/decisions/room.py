"""Brokers whose disk is nearly full or has failed lead nothing that another one can lead.

   full     appends of producers are refused there: others lead, it stays in sync as long as it can
   failed   its log directory is offline: it leaves ISR and ELR as well, as what it had not
            flushed may be gone

Rules of this file:
* A leader goes only to a broker at work, in sync, that is neither. Where there is none, nothing
  moves: a full disk that all of them share is everybody's. But a full one leads rather than one
  that has failed, as it serves what it has.
* A broker is heard of for WAIT_S before anything moves: brokers of one file system find it full
  within a second of each other, and the lead would go round among them.
* Who has room again gets back what it is the preferred leader of, as soon as it is in sync.

Pure functions of an image, and a small state.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.controller.decisions.election import preferred_leaders
from shmbroker.controller.decisions.partition_change import ONLINE, partition_change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.metadata.image import PartitionImage
    from shmbroker.metadata.record import MetadataRecord

WAIT_S = 2.0
GIVE_BACK_S = 60.0
"""How long one that has room again is waited for to be in sync."""
CHANGES_MAX = 1000
"""The changes of one decision."""


class Room(NamedTuple):
    """What a look has found."""

    short: frozenset[int]
    """Brokers without room, as of now."""
    handing: frozenset[int]
    """Brokers of `short` that have had none for WAIT_S: they are to lead nothing."""
    failed: frozenset[int]
    """Brokers of `short` whose log directory is offline."""
    returned: frozenset[int]
    """Brokers that had no room for a while, and have it again."""


class RoomWatch:
    """The brokers that have no room, and since when."""

    __slots__ = ("_returned", "_since")

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._returned: dict[int, float] = {}
        """Until when these brokers may get back what they led."""

    @property
    def is_watching(self) -> bool:
        """Whether there is a broker without room, or one that had none."""
        return bool(self._since or self._returned)

    def look(self, full: AbstractSet[int], failed: AbstractSet[int], now_s: float) -> Room:
        """Take note of who has no room now (`full`) and of who has lost its disk (`failed`)."""
        short = full | failed
        for broker_id in list(self._since):
            if broker_id not in short and now_s - self._since.pop(broker_id) >= WAIT_S:
                self._returned[broker_id] = now_s + GIVE_BACK_S
        for broker_id in short:
            self._since.setdefault(broker_id, now_s)
            self._returned.pop(broker_id, None)
        self._returned = {other: end for other, end in self._returned.items() if end > now_s}
        handing = {other for other, since in self._since.items() if now_s - since >= WAIT_S}
        return Room(
            frozenset(short),
            frozenset(handing),
            frozenset(handing & failed),
            frozenset(self._returned),
        )


def handed_over(cluster: ClusterState, room: Room) -> list[MetadataRecord]:
    """PartitionChangeRecords by which others lead what these brokers lead, CHANGES_MAX at most."""

    def has_room(other: int) -> bool:
        return cluster.is_active(other) and other not in room.short

    def is_whole(other: int) -> bool:
        return cluster.is_active(other) and other not in room.failed

    records: list[MetadataRecord] = []
    if not room.handing:
        return records
    for topic in cluster.image.topics_by_id.values():
        for partition in topic.partitions:
            if not _may_go(partition, room):
                continue
            in_sync = partition.in_sync_replicas
            is_acceptable = has_room if any(map(has_room, in_sync)) else is_whole
            if is_acceptable is is_whole and (
                room.failed.isdisjoint(in_sync) or not any(map(is_whole, in_sync))
            ):
                continue
            rules = cluster.rules(topic, is_acceptable, ONLINE)
            isr = tuple(each for each in partition.in_sync_replicas if each not in room.failed)
            message = partition_change(
                topic.topic_id, partition, rules, isr=isr, unclean=tuple(room.failed)
            )
            if message is not None:
                records.append(("PartitionChangeRecord", 2, message))
                if len(records) == CHANGES_MAX:
                    return records
    return records


def _may_go(partition: PartitionImage, room: Room) -> bool:
    return len(partition.replicas) > 1 and (
        partition.leader_id in room.handing
        or not room.failed.isdisjoint(partition.in_sync_replicas)
    )


def given_back(cluster: ClusterState, room: Room) -> list[MetadataRecord]:
    """PartitionChangeRecords that give the lead back to brokers that have room again, where they
    are preferred and in sync; CHANGES_MAX at most."""
    return preferred_leaders(cluster, only=room.returned)[:CHANGES_MAX] if room.returned else []
