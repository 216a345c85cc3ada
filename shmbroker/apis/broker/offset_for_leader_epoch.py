"""OffsetForLeaderEpoch (key 23): where the batches of a leader epoch end (KIP-101, KIP-279).

Versions: 2-4.
Where: the I/O worker of the connection's port.
Version notes: 3 replica id; 4 flexible.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.metadata.image import TopicImage
from shmbroker.wire import error_codes

API_KEY = 23
NAME = "OffsetForLeaderEpoch"
VERSION_MIN = 2
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 2


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """An unknown epoch is no error: -1 and -1."""
    topics = []
    looked_up = 0
    for topic in body["topics"]:
        image = broker.image.topics_by_name.get(topic["topic"])
        answers = []
        for asked in topic["partitions"]:
            found = {"error_code": 0, "leader_epoch": -1, "end_offset": -1}
            _look_up(broker, image, asked, found)
            answers.append({"partition": asked["partition"]} | found)
            looked_up += 1
            if looked_up % STEP_ROWS == 0:
                yield
        topics.append({"topic": topic["topic"], "partitions": answers})
    return {"topics": topics}


def _look_up(
    broker: BrokerContext, image: TopicImage | None, asked: dict[str, Any], found: dict[str, Any]
) -> None:
    index = asked["partition"]
    if image is None or not 0 <= index < len(image.partitions):
        found["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return
    partition = broker.partitions.find(partition_key(image.topic_id, index))
    if partition is None or not partition.is_leader:
        found["error_code"] = error_codes.NOT_LEADER_OR_FOLLOWER
        return
    epoch = asked["current_leader_epoch"]
    if epoch not in (-1, partition.leader_epoch):
        found["error_code"] = (
            error_codes.FENCED_LEADER_EPOCH
            if epoch < partition.leader_epoch
            else error_codes.UNKNOWN_LEADER_EPOCH
        )
        return
    log = partition.log
    if asked["leader_epoch"] > partition.leader_epoch or asked["leader_epoch"] < 0:
        return
    found["leader_epoch"], found["end_offset"] = log.leader_epochs.end_offset_for(
        asked["leader_epoch"], log.log_end_offset
    )
