"""WriteTxnMarkers (key 27): a coordinator, or an operator, ends transactions in partitions.

Versions: 1-2.
Where: the I/O worker of the connection's port, if it leads the partitions.
Version notes: 1 flexible; 2 transaction.version (KIP-890).
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import Call
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.records.end_marker import EndMarker
from shmbroker.wire import error_codes

API_KEY = 27
NAME = "WriteTxnMarkers"
VERSION_MIN = 1
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 1


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    """An error code for each partition, when the markers are on the in-sync replicas."""
    results: list[dict[str, Any]] = []
    waiting = 1

    def written() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.reply({"markers": results})

    def write(row: dict[str, Any], name: str, index: int, result: dict[str, Any]) -> None:
        nonlocal waiting
        marker = EndMarker(
            row["producer_id"],
            row["producer_epoch"],
            row["coordinator_epoch"],
            row["transaction_result"],
        )
        image = broker.image.topics_by_name.get(name)
        if image is None or not 0 <= index < len(image.partitions):
            result["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            return
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            result["error_code"] = error_codes.UNKNOWN_SERVER_ERROR
            return
        partition = broker.partitions.find(partition_key(image.topic_id, index))
        if partition is None:
            result["error_code"] = error_codes.NOT_LEADER_OR_FOLLOWER
            return
        error, end_offset = 0, -1
        if name == OFFSETS_TOPIC and partition.is_leader:
            error = broker.groups.may_end_transactions(partition)
        if not error:
            error, end_offset = broker.append_marker(
                partition, marker, row.get("transaction_version", 0)
            )
        if error:
            result["error_code"] = error
            return
        if name == OFFSETS_TOPIC:
            broker.groups.offsets.on_marker(partition, marker.producer_id, marker.is_commit)

        def replicated(error: int) -> None:
            result["error_code"] = error
            written()

        waiting += 1
        broker.when_replicated(partition, end_offset, replicated)

    for row in body["markers"]:
        topics = []
        for topic in row["topics"]:
            rows: list[dict[str, Any]] = []
            for index in topic["partition_indexes"]:
                rows.append({"partition_index": index, "error_code": 0})
                write(row, topic["name"], index, rows[-1])
            topics.append({"name": topic["name"], "partitions": rows})
        results.append({"producer_id": row["producer_id"], "topics": topics})
    written()
