"""Whether a follower that has something to tell its leader has to ring for it.

A  All in-sync followers are beyond the high watermark: the leader can move it.
B  The leader has more for this one, and no other is behind, who would ring.
Otherwise another one is behind and will find A or B.

Every follower stores its end before it looks at those of the others (a fence lies between), so of
two at least one sees both.
"""

from __future__ import annotations

from collections.abc import Mapping

from shmbroker.replica.partition import Partition
from shmbroker.shm.positions import SiblingPositions
from shmbroker.shm.words import fence


class LeaderRings:
    """The leaders' rings of one broker. siblings: the position tables of the others, by broker
    id."""

    def __init__(self, broker_id: int, siblings: Mapping[int, SiblingPositions]) -> None:
        self._broker_id = broker_id
        self._siblings = siblings

    def is_worth_one(self, partition: Partition) -> bool:
        """Whether the leader, should it sleep, has to hear now how far this replica is."""
        siblings = self._siblings
        in_sync = partition.in_sync_replicas
        leader = siblings.get(partition.leader_id)
        if partition.is_fsync or self._broker_id not in in_sync or leader is None:
            return True
        key = partition.key
        own_end: int = partition.log.log_end_offset
        least_end = own_end
        fence()
        for number in in_sync:
            if number != self._broker_id and number != partition.leader_id:
                told = siblings.get(number)
                end = None if told is None else told.end_offset(key)
                if end is not None and end < least_end:
                    least_end = end
        if least_end > leader.high_watermark(key):
            return True  # A
        return least_end == own_end and own_end != leader.end_offset(key)  # B
