"""DescribeProducers (key 61): who writes to partitions with a producer id (KIP-664).

Versions: 0.
Where: the I/O worker of the connection's port.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.metadata.image import TopicImage
from shmbroker.metadata.topic_names import topic_name_complaint
from shmbroker.wire import error_codes

API_KEY = 61
NAME = "DescribeProducers"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0

PRODUCERS_AGAIN_MAX = 10_000
"""Producers of partitions that are named more than once: no small request has a huge answer."""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The producers of each partition asked for, or why not."""
    topics = []
    looked_up = 0
    seen = set()
    again = PRODUCERS_AGAIN_MAX
    for topic in body["topics"]:
        name = topic["name"]
        image = broker.image.topics_by_name.get(name)
        error, message = error_codes.NONE, topic_name_complaint(name)
        if message is not None:
            error = error_codes.INVALID_TOPIC_EXCEPTION
        elif image is None:
            error = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            message = error_codes.message_of(error)
        rows = []
        for index in topic["partition_indexes"]:
            row = {"partition_index": index, "error_code": error, "error_message": message}
            if not error and image is not None:
                row |= _describe(broker, image, index)
            rows.append(row)
            count = len(row.get("active_producers", ()))
            if (name, index) in seen:
                again -= count
                if again < 0:
                    code = error_codes.INVALID_REQUEST
                    rows[-1] = {"partition_index": index, "error_code": code}
            seen.add((name, index))
            looked_up += 1 + count
            if looked_up >= STEP_ROWS:
                looked_up = 0
                yield
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _describe(broker: BrokerContext, image: TopicImage, index: int) -> dict[str, Any]:
    """What this broker's replica knows, whoever leads: who looks for transactions that hang asks
    one broker about all that it has (`kafka-transactions find-hanging --broker-id`)."""
    if not 0 <= index < len(image.partitions):
        return {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
    partition = broker.partitions.find(partition_key(image.topic_id, index))
    if partition is None:
        return {"error_code": error_codes.NOT_LEADER_OR_FOLLOWER}
    if partition.is_offline:
        return {"error_code": error_codes.KAFKA_STORAGE_ERROR}
    return {
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.current_txn_first_offset,
            }
            for producer_id, entry in partition.producers.producers.items()
        ]
    }
