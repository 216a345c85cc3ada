"""TellLogEnds: what brokers say of the logs that they have opened, and who leads then.

* Where a log ends that may have lost records is remembered until all have told (`doubts`).
* A replica that lacks what it had, or what its follower has, leads no more, if somebody else can
  (`lost_replicas`).
"""

from __future__ import annotations

import logging

from shmbroker.apis.controller.tell_log_ends import HAS, LACKS
from shmbroker.controller.decisions import lost_replicas
from shmbroker.metadata.image import NO_LEADER
from shmbroker.wire.error_codes import NONE, STALE_BROKER_EPOCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.decision_log import DecisionLog
    from shmbroker.controller.decisions.doubts import Doubts

logger = logging.getLogger(__name__)


class ToldEnds:
    """What brokers have told, and what comes of it."""

    __slots__ = ("_doubts", "_lacking", "_log")

    def __init__(self, log: DecisionLog, doubts: Doubts) -> None:
        self._log = log
        self._doubts = doubts
        self._lacking: dict[tuple[bytes, int], dict[int, lost_replicas.Ends]] = {}
        """What those of leaderless partitions have whose logs reached further once."""

    def take(self, request: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """The response, with the leaders of partitions about which there was something
        to decide. Faults: DiskFullFault, StorageFault."""
        broker_id = request["broker_id"]
        broker = self._log.image.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != request["broker_epoch"]:
            return {"error_code": STALE_BROKER_EPOCH, "topics": []}
        ends = []
        topics: list[dict[str, Any]] = []
        for told in request["topics"]:
            topic_id, rows = told["topic_id"], []
            for row in told["partitions"]:
                place = topic_id, row["partition_index"]
                if row["state"] == HAS:
                    epochs = tuple((each["epoch"], each["start_offset"]) for each in row["epochs"])
                    ends.append((place, (row["last_epoch"], row["end_offset"]), epochs))
                elif (answer := self._on_told(broker_id, place, row, now_ms)) is not None:
                    rows.append(answer)
            if rows:
                topics.append({"topic_id": topic_id, "partitions": rows})
        if broker.is_fenced and (ends or request["is_last"]):
            self._doubts.tell(broker_id, ends, request["is_last"])
        return {"error_code": NONE, "topics": topics}

    def _on_told(
        self, broker_id: int, place: tuple[bytes, int], row: dict[str, Any], now_ms: int
    ) -> dict[str, Any] | None:
        """A broker says that its replica lacks what it had, or that its leader lacks what it has:
        who leads then, since when. None if there is no such partition."""
        topic = self._log.image.topics_by_id.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return None
        partition = topic.partitions[place[1]]
        cluster = self._log.cluster()
        if row["state"] == LACKS:
            lacking = self._lacking.setdefault(place, {})
            lacking[broker_id] = row["last_epoch"], row["end_offset"]
            change = lost_replicas.on_lack(cluster, topic, partition, broker_id, lacking)
        else:
            epoch = row["leader_epoch"]
            change = lost_replicas.on_ahead(cluster, topic, partition, broker_id, epoch)
        if change is not None:
            was = partition.leader_id
            self._log.commit([("PartitionChangeRecord", 2, change)], now_ms)
            partition = self._log.image.topics_by_id[place[0]].partitions[place[1]]
            if partition.leader_id == NO_LEADER and was != NO_LEADER:
                logger.error(
                    "%s-%d has no leader: broker %d lost what it had, and nobody else who is in "
                    "sync or eligible is here",
                    topic.name, place[1], broker_id,
                )  # fmt: skip
            elif partition.leader_id != was:
                logger.warning(
                    "%s-%d is led by broker %d now: broker %d lacks what others have",
                    topic.name, place[1], partition.leader_id, was,
                )  # fmt: skip
        if partition.leader_id != NO_LEADER:
            self._lacking.pop(place, None)
        return {
            "partition_index": place[1],
            "leader_id": partition.leader_id,
            "leader_epoch": partition.leader_epoch,
        }
