"""ListOffsets (key 2): offsets by timestamp, and the ends of a log.

Versions: 1-11.
Where: the I/O worker of the connection's port.
Version notes: 2 isolation level; 4 leader epoch; 6 flexible; 7 max timestamp (KIP-734); 8 earliest
local (KIP-405); 9 latest tiered; 11 earliest pending upload.
"""

from typing import Any

from shmbroker.ids import partition_key
from shmbroker.wire import error_codes

API_KEY = 2
NAME = "ListOffsets"
VERSION_MIN = 1
VERSION_MAX = 11
VERSION_MIN_ADVERTISED = 1

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

VERSION_OF_SENTINEL = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def answer(worker: Any, call: Any, body: dict[str, Any]) -> dict[str, Any]:
    """One answer for each partition asked, errors per partition."""
    counts: dict[tuple[str, int], int] = {}
    for topic in body["topics"]:
        for asked in topic["partitions"]:
            key = topic["name"], asked["partition_index"]
            counts[key] = counts.get(key, 0) + 1
    is_known_isolation = body["isolation_level"] in (0, 1)
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic in body["topics"]:
        name = topic["name"]
        image = worker.image.topics_by_name.get(name)
        for asked in topic["partitions"]:
            index = asked["partition_index"]
            times = counts[name, index]
            if times == 0:
                continue  # told already
            if not is_known_isolation:
                found = {"error_code": error_codes.UNKNOWN_SERVER_ERROR}
            elif times > 1:
                counts[name, index] = 0
                found = {"error_code": error_codes.INVALID_REQUEST}
            else:
                found = _look_up(worker, image, asked, call.api_version)
            if call.api_version < 4:
                found.pop("leader_epoch", None)
            topics.setdefault(name, []).append(
                {"partition_index": index, "timestamp": -1, "offset": -1} | found
            )
    return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}


def _look_up(worker: Any, image: Any, asked: dict[str, Any], version: int) -> dict[str, Any]:
    index = asked["partition_index"]
    if image is None or not 0 <= index < len(image.partitions):
        return {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
    partition = worker.partitions.get(partition_key(image.topic_id, index))
    if partition is None or not partition.is_leader:
        return {"error_code": error_codes.NOT_LEADER_OR_FOLLOWER}
    epoch = asked["current_leader_epoch"]
    if epoch not in (-1, partition.leader_epoch):
        is_older = epoch < partition.leader_epoch
        return {
            "error_code": error_codes.FENCED_LEADER_EPOCH
            if is_older
            else error_codes.UNKNOWN_LEADER_EPOCH
        }
    timestamp = asked["timestamp"]
    if timestamp < 0 and version < VERSION_OF_SENTINEL.get(timestamp, 99):
        return {"error_code": error_codes.UNSUPPORTED_VERSION}
    log = partition.log
    leader_epoch = partition.leader_epoch
    if timestamp == LATEST:
        return {"offset": partition.high_watermark, "leader_epoch": leader_epoch}
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return {"offset": start, "leader_epoch": log.leader_epochs.epoch_at(start)}
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return {"offset": -1}
    found = (
        log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    )
    if found is None or found[1] < 0 or found[1] >= partition.high_watermark:
        return {"offset": -1}
    return {
        "timestamp": found[0],
        "offset": found[1],
        "leader_epoch": log.leader_epochs.epoch_at(found[1]),
    }
