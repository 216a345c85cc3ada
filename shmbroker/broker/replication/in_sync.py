"""Changes of in-sync replicas: the leader finds them, the controller decides (AlterPartition).

Rules of this file:
* One request under way, for all partitions that have changed; the next one takes the rest.
* From the time that a wider set is asked for, it counts for the high watermark: the controller may
  have said yes already, and then any of them may become the leader.
* The answer that counts is the metadata image. Of the response only those refusals are taken which
  say that nothing has changed; they come up again with the next read of the follower, or the next
  look. After any other (or none, if the controller has died) the set that was asked for goes on to
  count, and is asked for again until the image or a refusal tells.

Source: Kafka's AlterPartitionManager, KIP-497, KIP-841, KIP-903.
"""

from __future__ import annotations

from shmbroker.ids import partition_key
from shmbroker.replica.follower import lagging, may_join
from shmbroker.wire.error_codes import (
    INELIGIBLE_REPLICA,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    STALE_BROKER_EPOCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from shmbroker.ipc.asking import OnAnswer
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.replica.partition import Partition, Partitions

PARTITIONS_MAX = 1000
"""The partitions in one request: what fits onto the controller's ring several times."""


_NOTHING_DONE = (INELIGIBLE_REPLICA, OPERATION_NOT_ATTEMPTED)
"""Refusals after which the in-sync replicas are what they were, by the order of the checks."""


class InSyncChanges:
    """The changes to the in-sync replicas of the partitions that one broker leads."""

    __slots__ = ("_ask", "_asked", "_may_join", "_moved", "_partitions", "_unsure")

    def __init__(
        self,
        may_join: set[Partition],
        ask: Callable[[dict[str, Any], OnAnswer], bool],
        partitions: Partitions,
        moved: set[Partition],
    ) -> None:
        """`ask` sends an AlterPartition request but for the broker's own id and epoch, and tells
        the answer. `partitions`: those that are here. `moved` collects partitions whose high
        watermark did."""
        self._partitions = partitions
        self._moved = moved
        self._may_join = may_join
        self._ask = ask
        self._asked: list[Partition] = []
        """Partitions of the request under way."""
        self._unsure: set[Partition] = set()
        """Partitions of which nobody knows what became of their request."""

    def expand(self, image: MetadataImage) -> None:
        """Ask for those followers that have caught up."""
        if self._asked:
            return
        wanted = []
        for partition in list(self._may_join)[:PARTITIONS_MAX]:
            self._may_join.discard(partition)
            if not partition.is_leader or partition.pending_in_sync is not None:
                continue
            joining = [
                follower.broker_id
                for follower in partition.followers.values()
                if may_join(partition, follower) and _is_eligible(image, follower.broker_id)
            ]
            if joining:
                wanted.append((partition, (*partition.in_sync_replicas, *joining)))
        self._request(wanted, image)

    def look_at_all(
        self, partitions: Iterable[Partition], image: MetadataImage, steady_ms: int, lag_max_ms: int
    ) -> None:
        """Ask for those to be taken out that have been behind for too long, and find who may come
        in though it reads nothing new. For once a second or so."""
        if self._asked:
            return
        wanted = []
        for partition in list(self._unsure):
            pending = partition.pending_in_sync
            if not partition.is_leader or pending is None:
                self._unsure.discard(partition)  # the image has told
            else:
                wanted.append((partition, pending))
        for partition in partitions:
            if not partition.followers or partition.pending_in_sync is not None:
                continue
            if len(partition.in_sync_replicas) < len(partition.replicas) and any(
                may_join(partition, follower) for follower in partition.followers.values()
            ):
                self._may_join.add(partition)
            late = lagging(partition, steady_ms, lag_max_ms)
            if late:
                kept = tuple(id_ for id_ in partition.in_sync_replicas if id_ not in late)
                wanted.append((partition, kept))
                if len(wanted) >= PARTITIONS_MAX:
                    break
        self._request(wanted[:PARTITIONS_MAX], image)
        self.expand(image)

    def _request(
        self, wanted: list[tuple[Partition, tuple[int, ...]]], image: MetadataImage
    ) -> None:
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for partition, in_sync in wanted:
            topics.setdefault(partition.topic_id, []).append(
                {
                    "partition_index": partition.partition,
                    "leader_epoch": partition.leader_epoch,
                    "new_isr_with_epochs": [
                        {
                            "broker_id": broker_id,
                            "broker_epoch": image.brokers[broker_id].broker_epoch,
                        }
                        for broker_id in in_sync
                        if broker_id in image.brokers
                    ],
                    "leader_recovery_state": 0,
                    "partition_epoch": partition.partition_epoch,
                }
            )
        if not topics:
            return
        body = {
            "topics": [
                {"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()
            ]
        }
        # Before it is sent: it counts from the moment that the controller may see it.
        before = [partition.pending_in_sync for partition, _ in wanted]
        for partition, in_sync in wanted:
            partition.ask_for_in_sync(in_sync)
        if self._ask(body, self.on_answer):
            self._asked = [partition for partition, _ in wanted]
        else:
            for (partition, _), pending in zip(wanted, before, strict=True):
                self._set_pending(partition, pending)

    def _set_pending(self, partition: Partition, pending: tuple[int, ...] | None) -> None:
        """Acks may wait for nobody but who has just been refused, and no READ would come."""
        if partition.ask_for_in_sync(pending):
            self._moved.add(partition)

    def on_answer(self, answer: dict[str, Any]) -> None:
        """Take what the controller has answered. Where that does not say what it did, as with
        NOT_CONTROLLER of a dead one, the image tells."""
        asked, self._asked = self._asked, []
        errors = {
            partition_key(topic["topic_id"], row["partition_index"]): row["error_code"]
            for topic in answer.get("topics", ())
            for row in topic["partitions"]
        }
        for partition in asked:
            error = answer["error_code"] or errors.get(partition.key, NONE)
            if not self._partitions.holds(partition) or error == NONE:
                self._unsure.discard(partition)
            elif error in _NOTHING_DONE or (
                error == STALE_BROKER_EPOCH and partition not in self._unsure
            ):
                self._unsure.discard(partition)
                self._set_pending(partition, None)
            else:
                self._unsure.add(partition)


def _is_eligible(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active
