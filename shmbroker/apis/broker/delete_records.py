"""DeleteRecords (key 21): raise the log start offset of partitions (KIP-107).

Versions: 0-2.
Where: the I/O worker of the connection's port.
Version notes: 2 flexible.

Rules of this file:
* Records below the new start can't be read from now on; their segments go with the next retention
  check. The start outlives all processes from the answer on, and is in
  `log-start-offset-checkpoint` within a second.
* The low watermark is the least log start offset of the replicas that count (`broker.replicated`).
  The answer waits until it is where was asked for, so that no later leader has the records: at the
  request's timeout with REQUEST_TIMED_OUT.
"""

from collections.abc import Callable
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
TO_HIGH_WATERMARK = -1
"""The offset that asks for all that consumers see."""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The low watermark of each partition; None: it comes later. Named twice, the last offset
    counts, as in Kafka."""
    asked: dict[str, dict[int, int]] = {}
    for topic in body["topics"]:
        for row in topic["partitions"]:
            asked.setdefault(topic["name"], {})[row["partition_index"]] = row["offset"]
    topics: list[dict[str, Any]] = []
    count = 0
    waiting = 1

    def delete(row: dict[str, Any], name: str, offset: int) -> None:
        nonlocal waiting

        def deleted(error: int, low_watermark: int) -> None:
            nonlocal waiting
            row["error_code"], row["low_watermark"] = error, low_watermark
            waiting -= 1
            if not waiting:
                call.reply({"topics": topics})

        waiting += 1
        _delete(broker, name, row["partition_index"], offset, body["timeout_ms"], deleted)

    for name, offsets in asked.items():
        rows: list[dict[str, Any]] = []
        for index, offset in offsets.items():
            rows.append({"partition_index": index})
            delete(rows[-1], name, offset)
            count += 1
            if count % STEP_ROWS == 0:
                yield
        topics.append({"name": name, "partitions": rows})
    waiting -= 1
    return None if waiting else {"topics": topics}


def _delete(
    broker: BrokerContext,
    name: str,
    index: int,
    offset: int,
    timeout_ms: int,
    then: Callable[[int, int], None],
) -> None:
    """Tell the error and the low watermark, perhaps later."""
    topic = broker.image.topics_by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        then(error_codes.UNKNOWN_TOPIC_OR_PARTITION, NO_LOW_WATERMARK)
        return
    if topic.is_internal:
        then(error_codes.INVALID_TOPIC_EXCEPTION, NO_LOW_WATERMARK)
        return
    partition = broker.partitions.find(partition_key(topic.topic_id, index))
    if partition is None or not partition.is_leader:
        then(not_led_error(partition), NO_LOW_WATERMARK)
        return
    if not partition.log.config.is_deleted:
        then(error_codes.POLICY_VIOLATION, NO_LOW_WATERMARK)
        return
    if offset == TO_HIGH_WATERMARK:
        offset = partition.high_watermark
    if broker.store.delete_records(partition, offset) is None:
        then(error_codes.OFFSET_OUT_OF_RANGE, NO_LOW_WATERMARK)
        return
    broker.when_deleted(partition, offset, timeout_ms, then)
