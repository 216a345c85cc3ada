"""DescribeQuorum: who votes on the metadata log, who follows it, and how far each is. Pure.

Source: Kafka's `KafkaRaftClient`, `LeaderState`, `DescribeQuorumRequest`; KIP-595, KIP-836,
KIP-853.
"""

from __future__ import annotations

from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Replica = tuple[int, int, int, int]
    """Node id, log end offset, times of the last fetch and of when it had everything (ms since
    1970); -1 where that is not known."""

_NO_PARTITION = "This server does not host this topic-partition."


def describe_quorum(
    request: dict[str, Any],
    version: int,
    leader_id: int,
    epoch: int,
    high_watermark: int,
    voters: Iterable[Replica],
    observers: Iterable[Replica],
) -> dict[str, Any]:
    """The leader's response to DescribeQuorum v0–2.

    Kafka answers for the metadata log only if nothing else is asked for; without a partition,
    without a topic, it has nothing to say and no error. Directory ids of voters are left out, as
    at level 0 of its feature kraft.version, which is what the log here is at.
    """
    asked = [
        (topic["topic_name"], partition["partition_index"])
        for topic in request["topics"]
        for partition in topic["partitions"]
    ]
    if asked == [(METADATA_TOPIC, 0)]:
        rows = [_row(replica) for replica in voters]
        partition = {
            "partition_index": 0,
            "leader_id": leader_id,
            "leader_epoch": epoch,
            "high_watermark": high_watermark,
            "current_voters": rows,
            "observers": [_row(replica) for replica in observers],
        }
        # Controllers have no listener for clients: their requests come by way of the brokers.
        nodes = [{"node_id": row["replica_id"], "listeners": []} for row in rows]
        return {
            "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
            "nodes": nodes if version >= 2 else [],
        }
    return {
        "topics": [
            {
                "topic_name": topic["topic_name"],
                "partitions": [
                    {
                        "partition_index": partition["partition_index"],
                        "error_code": UNKNOWN_TOPIC_OR_PARTITION,
                        "error_message": _NO_PARTITION,
                    }
                    for partition in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _row(replica: Replica) -> dict[str, Any]:
    replica_id, log_end_offset, fetched_ms, caught_up_ms = replica
    return {
        "replica_id": replica_id,
        "log_end_offset": log_end_offset,
        "last_fetch_timestamp": fetched_ms,
        "last_caught_up_timestamp": caught_up_ms,
    }
