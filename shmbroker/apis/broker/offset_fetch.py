"""OffsetFetch (key 9): what groups have committed.

Versions: 1-10.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 2 all topics, error code; 5 leader epoch (KIP-320); 6 flexible; 7 require stable
(KIP-447); 8 several groups (KIP-709); 9 member epoch (KIP-848); 10 topic ids.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import ZERO_UUID
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.wire import error_codes

API_KEY = 9
NAME = "OffsetFetch"
VERSION_MIN = 1
VERSION_MAX = 10
VERSION_MIN_ADVERTISED = 1

ERROR_FROM = 2
GROUPS_FROM = 8
TOPIC_IDS_FROM = 10
NO_OFFSET = (-1, -1, "")

TO_BE_ASKED_AGAIN = (
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
)
ASK_AGAIN = (-1000, -1, "")
"""Beside a group's error: librdkafka's own mark for "the committed offset, to be asked for".

On these errors librdkafka looks for the coordinator, but asks again only for partitions that the
answer names as UNSTABLE_OFFSET_COMMIT; without them it waits for ever (librdkafka's issue 5586).
All other clients look at the group's error first, and at nothing else then. Kafka names none.
"""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """Committed offsets, -1 where there is none; all of a group where no topics are named."""
    by_id = call.api_version >= TOPIC_IDS_FROM
    require_stable = body["require_stable"]
    if call.api_version >= GROUPS_FROM:
        # All of a group only once: no small request has a huge answer.
        whole = {row["group_id"]: row for row in body["groups"] if row["topics"] is None}
        asked = [
            row
            for row in body["groups"]
            if row["topics"] is not None or whole[row["group_id"]] is row
        ]
        groups: list[dict[str, Any]] = []
        for row in asked:
            groups.append(_group(broker, row, by_id, require_stable))
            if len(groups) % STEP_ROWS == 0:
                yield
        for row, found in zip(asked, groups, strict=True):
            if found["error_code"] in TO_BE_ASKED_AGAIN and row["topics"] and not by_id:
                again = error_codes.UNSTABLE_OFFSET_COMMIT
                found["topics"] = _all_alike(row["topics"], again, ASK_AGAIN)
        return {"groups": groups}
    found = _group(broker, body, by_id, require_stable)
    error = found["error_code"]
    if error and call.api_version < ERROR_FROM:
        found["topics"] = _all_alike(body["topics"], error, None)
    return {"topics": found["topics"], "error_code": error}


def _group(
    broker: BrokerContext, request: dict[str, Any], by_id: bool, require_stable: bool
) -> dict[str, Any]:
    image = broker.image
    answered = []
    wanted = None
    if request["topics"] is not None:
        wanted = []
        for topic in request["topics"]:
            name = topic["name"] if not by_id else None
            if by_id:
                found = image.topics_by_id.get(topic["topic_id"])
                name = found.name if found is not None else None
            if name is not None:
                wanted.append((name, topic["partition_indexes"]))
                continue
            unknown = error_codes.UNKNOWN_TOPIC_ID
            answered.append(
                {
                    "topic_id": topic["topic_id"],
                    "partitions": [
                        _row(index, unknown, None) for index in topic["partition_indexes"]
                    ],
                }
            )
    error, topics = broker.groups.offsets.fetch(
        request["group_id"],
        wanted,
        require_stable,
        request.get("member_id"),
        request.get("member_epoch", -1),
    )
    if error:
        answered = []
    for name, rows in topics:
        topic_id = ZERO_UUID
        if by_id:
            found = image.topics_by_name.get(name)
            if found is None:
                continue
            topic_id = found.topic_id
        answered.append(
            {"name": name, "topic_id": topic_id, "partitions": [_row(*row) for row in rows]}
        )
    return {"group_id": request["group_id"], "topics": answered, "error_code": error}


def _all_alike(
    topics: list[dict[str, Any]], error: int, committed: tuple[Any, ...] | None
) -> list[dict[str, Any]]:
    """Every partition that was asked for, with the same answer."""
    return [
        {
            "name": topic["name"],
            "partitions": [_row(index, error, committed) for index in topic["partition_indexes"]],
        }
        for topic in topics
    ]


def _row(index: int, error: int, committed: tuple[Any, ...] | None) -> dict[str, Any]:
    offset, leader_epoch, metadata = NO_OFFSET if committed is None else committed[:3]
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": error,
    }
