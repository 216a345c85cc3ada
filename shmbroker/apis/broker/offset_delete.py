"""OffsetDelete (key 47): forget committed offsets of topics that a group does not read any more.

Versions: 0.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: KIP-496.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.apis.offset_rows import OffsetRows
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.wire import error_codes

API_KEY = 47
NAME = "OffsetDelete"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """An error code for each partition, or one for the whole group."""
    topics, offsets, answers = OffsetRows(), [], []
    for topic in body["topics"]:
        found = broker.image.topics_by_name.get(topic["name"])
        refused, asked = [], []
        for row in topic["partitions"]:
            index = row["partition_index"]
            result = {
                "partition_index": index,
                "error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            }
            if found is not None and 0 <= index < len(found.partitions):
                asked.append(result)
                offsets.append((topic["name"], index))
                answers.append(result)
            else:
                refused.append(result)
        topics.add(topic["name"], {"name": topic["name"]}, refused, asked, found is not None)
    for at in range(0, max(len(offsets), 1), STEP_ROWS):
        if at:
            yield
        some = slice(at, at + STEP_ROWS)
        error, errors = broker.groups.offsets.delete_offsets(body["group_id"], offsets[some])
        if error:
            return {"error_code": error}
        for result, code in zip(answers[some], errors, strict=True):
            result["error_code"] = code
    return {"topics": topics.topics()}
