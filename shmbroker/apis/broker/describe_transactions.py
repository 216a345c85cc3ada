"""DescribeTransactions (key 65): the state of transactional ids (KIP-664).

Versions: 0.
Where: the I/O worker of the connection's port, if it coordinates the transactional ids.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.transactions.transaction import STATE_NAMES
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps

API_KEY = 65
NAME = "DescribeTransactions"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """A row for each id; the partitions of one that is named again stand in its first row."""
    rows = []
    seen = set()
    for transactional_id in body["transactional_ids"]:
        error, known = broker.transactions.describe(transactional_id)
        row: dict[str, Any] = {"error_code": error, "transactional_id": transactional_id}
        if known is not None:
            by_topic: dict[str, list[int]] = {}
            if transactional_id not in seen:
                for topic, index in sorted(known.partitions):
                    by_topic.setdefault(topic, []).append(index)
            seen.add(transactional_id)
            row |= {
                "transaction_state": STATE_NAMES[known.state],
                "transaction_timeout_ms": known.timeout_ms,
                "transaction_start_time_ms": known.start_ms,
                "producer_id": known.producer_id,
                "producer_epoch": known.producer_epoch,
                "topics": [
                    {"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()
                ],
            }
        rows.append(row)
        if len(rows) % STEP_ROWS == 0:
            yield
    return {"transaction_states": rows}
