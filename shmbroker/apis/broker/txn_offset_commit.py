"""TxnOffsetCommit (key 28): a group's place in some partitions, if a transaction is committed.

Versions: 0-5.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 2 leader epoch; 3 flexible, the member (KIP-447); 4 TRANSACTION_ABORTABLE; 5 adds the
group's partition to the transaction (KIP-890).
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.apis.offset_rows import OffsetRows
from shmbroker.ids import ZERO_UUID
from shmbroker.ipc.operation_adapter import Call
from shmbroker.wire import error_codes

API_KEY = 28
NAME = "TxnOffsetCommit"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

ABORTABLE_FROM = 4
ADDS_FROM = 5


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """An error code for each partition, once the transaction's coordinator knows of the group's."""
    topics, offsets, answers = OffsetRows(), [], []
    for topic in body["topics"]:
        image = broker.image.topics_by_name.get(topic["name"])
        refused, asked = [], []
        for row in topic["partitions"]:
            index = row["partition_index"]
            result = {"partition_index": index, "error_code": 0}
            if image is None or not 0 <= index < len(image.partitions):
                result["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(result)
            else:
                asked.append(result)
                offsets.append((topic["name"], ZERO_UUID, row))
                answers.append(result)
        topics.add(topic["name"], {"name": topic["name"]}, refused, asked, image is not None)
    found = {"topics": topics.topics()}
    if not offsets:
        return found

    def refuse(error: int) -> None:
        for result in answers:
            result["error_code"] = error
        call.reply(found)

    partition, error = broker.groups.partition_of(body["group_id"])
    if partition is None:
        refuse(error)
        return None

    def commit(error: int) -> None:
        if error:
            refuse(_error_for_client(error, call.api_version))
            return
        for result, code in zip(
            answers, broker.groups.offsets.commit_in_transaction(body, offsets), strict=True
        ):
            result["error_code"] = code
        call.reply(found)

    producer_id, epoch = body["producer_id"], body["producer_epoch"]
    if partition.producers.is_open(producer_id, epoch):
        commit(0)
    else:
        broker.verify_transaction(
            partition,
            body["transactional_id"],
            producer_id,
            epoch,
            call.api_version >= ADDS_FROM,
            commit,
        )
    return None


def _error_for_client(error: int, version: int) -> int:
    """What the coordinator of the transaction says, in words that the client's version knows."""
    if error == error_codes.NOT_ENOUGH_REPLICAS:
        return error_codes.COORDINATOR_NOT_AVAILABLE
    if error == error_codes.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return error_codes.INVALID_TXN_STATE
    return error
