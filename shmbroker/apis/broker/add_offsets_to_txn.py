"""AddOffsetsToTxn (key 25): a group's offsets become part of a transaction.

Versions: 0-4.
Where: the I/O worker of the connection's port, if it coordinates the transactional id.
Version notes: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.transactions.transaction import Transaction, error_in_version
from shmbroker.ipc.operation_adapter import Call
from shmbroker.metadata.topic_names import OFFSETS_TOPIC

API_KEY = 25
NAME = "AddOffsetsToTxn"
VERSION_MIN = 0
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 0

FENCED_FROM = 2


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    """The partition of `__consumer_offsets` that keeps the group is added."""
    topic = broker.image.topics_by_name.get(OFFSETS_TOPIC)
    # The topic is created when somebody looks for the group's coordinator, which may come later.
    count = (
        broker.config["offsets.topic.num.partitions"] if topic is None else len(topic.partitions)
    )

    def done(error: int, _: Transaction | None) -> None:
        call.reply({"error_code": error_in_version(error, call.api_version, FENCED_FROM)})

    broker.transactions.requests.add_partitions(
        body["transactional_id"],
        body["producer_id"],
        body["producer_epoch"],
        [(OFFSETS_TOPIC, group_partition(body["group_id"], count))],
        0,
        done,
    )
