"""DeleteRecords (key 21): raise the log start offset of partitions (KIP-107).

Versions: 0-2.
Where: the I/O worker of the connection's port.
Version notes: 2 flexible.

Rules of this file:
* Records below the new start can't be read from now on; their segments go with the next retention
  check. The start outlives all processes from the answer on, and is in
  `log-start-offset-checkpoint` within a second.
* The low watermark is the least log start offset of all replicas. With one there is nobody to wait
  for, so the request's timeout has no meaning yet.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.replica.partition import not_led_error
from shmbroker.wire import error_codes

API_KEY = 21
NAME = "DeleteRecords"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0

NO_LOW_WATERMARK = -1


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The low watermark of each partition. Named twice, the last offset counts, as in Kafka."""
    asked: dict[str, dict[int, int]] = {}
    for topic in body["topics"]:
        for row in topic["partitions"]:
            asked.setdefault(topic["name"], {})[row["partition_index"]] = row["offset"]
    topics = []
    deleted = 0
    for name, offsets in asked.items():
        rows = []
        for index, offset in offsets.items():
            error, low_watermark = _delete(broker, name, index, offset)
            rows.append(
                {"partition_index": index, "low_watermark": low_watermark, "error_code": error}
            )
            deleted += 1
            if deleted % STEP_ROWS == 0:
                yield
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _delete(broker: BrokerContext, name: str, index: int, offset: int) -> tuple[int, int]:
    """(error, low watermark)."""
    topic = broker.image.topics_by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, NO_LOW_WATERMARK
    if topic.is_internal:
        return error_codes.INVALID_TOPIC_EXCEPTION, NO_LOW_WATERMARK
    partition = broker.partitions.find(partition_key(topic.topic_id, index))
    if partition is None or not partition.is_leader:
        return not_led_error(partition), NO_LOW_WATERMARK
    if not partition.log.config.is_deleted:
        return error_codes.POLICY_VIOLATION, NO_LOW_WATERMARK
    low_watermark = broker.store.delete_records(partition, offset)
    if low_watermark is None:
        return error_codes.OFFSET_OUT_OF_RANGE, NO_LOW_WATERMARK
    return error_codes.NONE, low_watermark
