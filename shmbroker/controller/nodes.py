"""Who belongs to the cluster: DescribeQuorum, UnregisterBroker.

The controller is the only voter of the metadata log; the other processes of the family read its
file and are no replicas of it, so there are no observers. Brokers register as they start
(`ActiveController.register_broker`); one that is left of a larger family may be unregistered.

Source: Kafka's `KafkaRaftClient`, `DescribeQuorumRequest`, `ReplicationControlManager`; KIP-595,
KIP-836, KIP-853.
"""

from __future__ import annotations

from shmbroker.controller.in_sync import broker_gone
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REQUEST,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.metadata_log import Record
    from shmbroker.controller.topics import Cluster

_NO_PARTITION = "This server does not host this topic-partition."


def describe_quorum(
    request: dict[str, Any],
    version: int,
    node_id: int,
    epoch: int,
    high_watermark: int,
    now_ms: int,
) -> dict[str, Any]:
    """The response to DescribeQuorum v0–2.

    Kafka answers for the metadata log only if nothing else is asked for; without a partition,
    without a topic, it has nothing to say and no error. Directory ids of voters are left out, as
    at level 0 of its feature kraft.version, which is what the log here is at.
    """
    asked = [
        (topic["topic_name"], partition["partition_index"])
        for topic in request["topics"]
        for partition in topic["partitions"]
    ]
    is_known = asked == [(METADATA_TOPIC, 0)]
    if is_known:
        voter = {
            "replica_id": node_id,
            "log_end_offset": high_watermark,
            "last_fetch_timestamp": now_ms,
            "last_caught_up_timestamp": now_ms,
        }
        partition = {
            "partition_index": 0,
            "leader_id": node_id,
            "leader_epoch": epoch,
            "high_watermark": high_watermark,
            "current_voters": [voter],
        }
        return {
            "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
            # The controller has no listener for clients: its requests come by way of the brokers.
            "nodes": [{"node_id": node_id, "listeners": []}] if version >= 2 else [],
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


def unregister_broker(
    request: dict[str, Any], cluster: Cluster
) -> tuple[list[Record], dict[str, Any]]:
    """UnregisterBroker v0: (records, response).

    Unlike in Kafka, where a broker that runs may be unregistered and only comes back with its next
    start, brokers of this family stay; they register with it.
    """
    broker_id = request["broker_id"]
    broker = cluster.image.brokers.get(broker_id)
    error, message = NONE, None
    records: list[Record] = []
    if broker is None:
        error, message = (
            BROKER_ID_NOT_REGISTERED,
            f"Broker ID {broker_id} is not currently registered",
        )
    elif broker_id <= cluster.config["shmbroker.io.workers"]:
        error, message = INVALID_REQUEST, f"Broker {broker_id} is a part of this shmbroker."
    else:
        records += broker_gone(cluster, broker_id, for_good=True)
        removal = {"broker_id": broker_id, "broker_epoch": broker.broker_epoch}
        records.append(("UnregisterBrokerRecord", 0, removal))
    return records, {"throttle_time_ms": 0, "error_code": error, "error_message": message}
