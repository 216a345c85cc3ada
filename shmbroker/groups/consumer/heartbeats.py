"""ConsumerGroupHeartbeat: the one request of members of the new protocol that stay or come.

    quiet      nothing new on either side: the session is longer by one, and that is all
    news       a member comes, says something of itself, has given something up, or the group has
               moved on: the member as it is now, then `targets.update`, then `targets.step`

Rules of this file:
* Without anything new a heartbeat stores one number and has no `Change`.
* The assignment is in the answer only where it is new to the member, or may have got lost.
* A member one epoch behind is believed if all that it has is still its own: our last answer may
  not have come.

Source: KIP-848; Kafka's GroupMetadataManager.consumerGroupHeartbeat.
"""

from __future__ import annotations

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.admission import find, has_room_for
from shmbroker.groups.consumer.answers import refusal
from shmbroker.groups.consumer.change import Change
from shmbroker.groups.consumer.member import NO_TIMEOUT, STABLE
from shmbroker.groups.consumer.targets import step, update
from shmbroker.groups.group_memory import MEMBER_BYTES, names_bytes
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.consumer.answers import Answer
    from shmbroker.groups.consumer.change import Topics
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.groups.consumer.member import ConsumerMember, Owned


def on_heartbeat(
    group: ConsumerGroup,
    body: dict[str, Any],
    client_id: str,
    client_host: str,
    now_ms: int,
    topics: Topics,
) -> tuple[Answer, Change | None]:
    """A ConsumerGroupHeartbeat of a member that stays or comes (epoch 0)."""
    member = group.members.get(body["member_id"])
    if member is not None and is_quiet(group, member, body, client_id, client_host, now_ms, topics):
        member.deadline_ms = now_ms + group.session_timeout_ms
        return _answer(group, member), None
    return _on_news(group, body, client_id, client_host, now_ms, topics)


def is_quiet(
    group: ConsumerGroup,
    member: ConsumerMember,
    body: dict[str, Any],
    client_id: str,
    client_host: str,
    now_ms: int,
    topics: Topics,
) -> bool:
    """Neither this heartbeat of a member nor the cluster has anything new for the group."""
    return bool(
        body["member_epoch"] == member.epoch == group.assignment_epoch == group.epoch
        and member.state == STABLE
        and body["topic_partitions"] is None
        and body["subscribed_topic_names"] is None
        and body["instance_id"] == member.instance_id
        and body["subscribed_topic_regex"] is None
        and body["rebalance_timeout_ms"] == NO_TIMEOUT
        and body["server_assignor"] is None
        and body["rack_id"] is None
        and group.seen_offset == topics.changed_offset
        and client_id == member.client_id
        and client_host == member.client_host
        and member.classic is None
        and not (group.regexes.counts and group.regexes.is_due(now_ms, topics))
    )


def _on_news(
    group: ConsumerGroup,
    body: dict[str, Any],
    client_id: str,
    client_host: str,
    now_ms: int,
    topics: Topics,
) -> tuple[Answer, Change | None]:
    member_id, epoch = body["member_id"], body["member_epoch"]
    names, regex = body["subscribed_topic_names"], body["subscribed_topic_regex"]
    brings = 0
    if names or regex:
        brings = MEMBER_BYTES + names_bytes(names or ()) + len(regex or "")
    if not has_room_for(group, member_id, body["instance_id"], brings):
        return refusal(error_codes.GROUP_MAX_SIZE_REACHED), None
    change = Change()
    owned = body["topic_partitions"]
    old, error = find(group, change, member_id, body["instance_id"], epoch == 0, is_classic=False)
    if old is None:
        return refusal(error), None
    if epoch and not _is_epoch_right(old, epoch, owned):
        return refusal(error_codes.FENCED_MEMBER_EPOCH), None
    new = _as_it_says(old, body)
    new.client_id = client_id
    new.client_host = client_host
    new.classic = None
    error, text, are_topics_new = update(group, change, old, new, now_ms, topics)
    if error:
        return refusal(error, text), None
    moved = step(group, change, new, owned, are_topics_new, now_ms, topics)
    if moved is None:
        return refusal(error_codes.FENCED_MEMBER_EPOCH), None
    deadlines = change.deadlines_of(moved.member_id)
    deadlines.session_ms = now_ms + group.session_timeout_ms
    if old.classic is not None:
        deadlines.join_ms = deadlines.sync_ms = NEVER_MS
    answer = _answer(group, moved)
    is_full = (
        body["rebalance_timeout_ms"] != NO_TIMEOUT
        and (
            body["subscribed_topic_names"] is not None or body["subscribed_topic_regex"] is not None
        )
        and owned is not None
    )
    if epoch == 0 or is_full or moved.assigned != old.assigned:
        answer["assignment"] = {"topic_partitions": stored.rows_of(moved.assigned)}
    return answer, change


def _as_it_says(old: ConsumerMember, body: dict[str, Any]) -> ConsumerMember:
    """A member as its heartbeat says; what is left out is as before."""
    new = old.copy()
    if body["instance_id"] is not None:
        new.instance_id = body["instance_id"]
    if body["rack_id"] is not None:
        new.rack_id = body["rack_id"]
    if body["rebalance_timeout_ms"] != NO_TIMEOUT:
        new.rebalance_timeout_ms = body["rebalance_timeout_ms"]
    if body["server_assignor"] is not None:
        new.assignor = body["server_assignor"]
    if body["subscribed_topic_names"] is not None:
        new.subscribed_topics = frozenset(body["subscribed_topic_names"])
    if body["subscribed_topic_regex"] is not None:
        new.subscribed_regex = body["subscribed_topic_regex"]
    return new


def _is_epoch_right(member: ConsumerMember, epoch: int, owned: Owned) -> bool:
    """Whether the member is where it says; one behind if our last answer may have been lost."""
    if epoch >= member.epoch:
        return epoch == member.epoch
    return epoch == member.previous_epoch and (
        owned is not None
        and all(
            member.assigned.get(row["topic_id"], frozenset()).issuperset(row["partitions"])
            and row["topic_id"] in member.assigned
            for row in owned
        )
    )


def _answer(group: ConsumerGroup, member: ConsumerMember) -> Answer:
    return {
        "member_id": member.member_id,
        "member_epoch": member.epoch,
        "heartbeat_interval_ms": group.heartbeat_interval_ms,
    }
