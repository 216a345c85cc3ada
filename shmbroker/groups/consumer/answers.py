"""Requests to consumer groups that nobody need look up a group for, and what refusals look like.

Source: Kafka's GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
"""

from __future__ import annotations

from shmbroker.groups.consumer.member import AWAY_EPOCH, LEFT_EPOCH, NO_TIMEOUT
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Answer = dict[str, Any]

OWN_MEMBER_ID_FROM = 1
"""Version of ConsumerGroupHeartbeat from which members make their ids themselves."""


def fault_in_heartbeat(
    body: dict[str, Any], version: int, assignors: tuple[str, ...]
) -> tuple[int, str] | None:
    """(error code, text) of a ConsumerGroupHeartbeat that no group could answer otherwise."""
    epoch = body["member_epoch"]
    needs_id = version >= OWN_MEMBER_ID_FROM or epoch > 0 or epoch == LEFT_EPOCH
    text = None
    if needs_id and _is_blank(body["member_id"]):
        text = "the member id is empty"
    elif _is_blank(body["group_id"]):
        text = "the group id is empty"
    elif _is_blank(body["instance_id"]):
        text = "the instance id is empty"
    elif _is_blank(body["rack_id"]):
        text = "the rack id is empty"
    elif epoch == 0:
        if body["rebalance_timeout_ms"] == NO_TIMEOUT:
            text = "who joins has to say its rebalance timeout"
        elif body["topic_partitions"] is None or body["topic_partitions"]:
            text = "who joins has no partitions, and has to say so"
        elif body["subscribed_topic_names"] is None and body["subscribed_topic_regex"] is None:
            text = "who joins has to say what it is subscribed to"
    elif epoch == AWAY_EPOCH and body["instance_id"] is None:
        text = "the instance id is missing"
    elif epoch < AWAY_EPOCH:
        text = "there is no such member epoch"
    if text is not None:
        return error_codes.INVALID_REQUEST, text
    if body["server_assignor"] is not None and body["server_assignor"] not in assignors:
        return error_codes.UNSUPPORTED_ASSIGNOR, (
            f"ServerAssignor {body['server_assignor']} is not supported. "
            f"Supported assignors: {', '.join(assignors)}."
        )
    return None


def refusal(error: int, text: str | None = None) -> Answer:
    """A ConsumerGroupHeartbeat's answer with an error; by default with the error's own text."""
    return {"error_code": error, "error_message": text or error_codes.message_of(error)}


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()
