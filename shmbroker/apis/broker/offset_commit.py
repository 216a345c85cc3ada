"""OffsetCommit (key 8): a group's place in some partitions.

Versions: 2-10.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 5 no retention time; 6 leader epoch (KIP-320); 7 static members (KIP-345);
8 flexible; 9 KIP-848, GROUP_ID_NOT_FOUND; 10 topic ids.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.apis.offset_rows import OffsetRows
from shmbroker.ids import ZERO_UUID
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.wire import error_codes

API_KEY = 8
NAME = "OffsetCommit"
VERSION_MIN = 2
VERSION_MAX = 10
VERSION_MIN_ADVERTISED = 2

TOPIC_IDS_FROM = 10


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """An error code for each partition; the coordinator sees those that exist, some in each step:
    what it judges is the member, in each step again."""
    by_id = call.api_version >= TOPIC_IDS_FROM
    image = broker.image
    topics, offsets, answers = OffsetRows(), [], []
    for topic in body["topics"]:
        if by_id:
            found = image.topics_by_id.get(topic["topic_id"])
            missing = error_codes.UNKNOWN_TOPIC_ID
        else:
            found = image.topics_by_name.get(topic["name"])
            missing = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        refused, asked = [], []
        for row in topic["partitions"]:
            index = row["partition_index"]
            result = {"partition_index": index, "error_code": missing}
            if found is None:
                refused.append(result)
                continue
            if not 0 <= index < len(found.partitions):
                result["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(result)
                continue
            asked.append(result)
            offsets.append((found.name, found.topic_id if by_id else ZERO_UUID, row))
            answers.append(result)
        head = {"name": topic["name"], "topic_id": topic["topic_id"]}
        key = topic["topic_id"] if by_id else topic["name"]
        topics.add(key, head, refused, asked, found is not None)
    for at in range(0, len(offsets), STEP_ROWS):
        if at:
            yield
        some = slice(at, at + STEP_ROWS)
        errors = broker.groups.offsets.commit(body, call.api_version, offsets[some])
        for result, code in zip(answers[some], errors, strict=True):
            result["error_code"] = code
    return {"topics": topics.topics()}
