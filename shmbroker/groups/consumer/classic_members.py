"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat.

    JoinGroup    like a heartbeat with news; answered at once, without a leader: the generation is
                 the member epoch
    SyncGroup    the assignment, in the consumers' own format, from here instead of from a leader
    Heartbeat    REBALANCE_IN_PROGRESS where the member has to join again to get on

Rules of this file:
* Only a JoinGroup changes what is stored. The others move deadlines, which no log has.
* A member that is told to join again, or has joined, has its rebalance timeout for the next step.
* Who joins in the place of the last member of the new protocol makes it a classic group again.

Source: KIP-848; Kafka's GroupMetadataManager.classicGroupJoinToConsumerGroup and the like.
"""

from __future__ import annotations

from shmbroker.groups.classic.answers import join_refusal
from shmbroker.groups.classic.embedded_protocol import (
    CONSUMER,
    by_topic_id,
    encode_assignment,
    subscription_of,
)
from shmbroker.groups.classic.joining import MEMBER_ID_REQUIRED_FROM
from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.admission import find, has_room_for, known_classic
from shmbroker.groups.consumer.change import Change
from shmbroker.groups.consumer.departures import can_become_classic, downgrade
from shmbroker.groups.consumer.member import NO_TIMEOUT, UNRELEASED, UNREVOKED, ClassicPart
from shmbroker.groups.consumer.targets import step, update
from shmbroker.groups.group_memory import MEMBER_BYTES, PROTOCOLS_MAX, protocols_bytes
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.groups.classic.member import Protocols
    from shmbroker.groups.consumer.answers import Answer
    from shmbroker.groups.consumer.change import Topics
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.groups.consumer.member import ConsumerMember


def on_classic_join(
    group: ConsumerGroup,
    body: dict[str, Any],
    version: int,
    client_id: str,
    client_host: str,
    now_ms: int,
    topics: Topics,
) -> tuple[Answer, Change | None]:
    """A JoinGroup: it is answered at once, without a leader."""
    member_id, instance_id = body["member_id"], body["group_instance_id"]
    is_new = not member_id
    if is_new:
        member_id = group.make_member_id()
    protocols = tuple((row["name"], row["metadata"]) for row in body["protocols"])
    brings = MEMBER_BYTES + 2 * protocols_bytes(protocols)
    if not has_room_for(group, member_id, instance_id, brings):
        return join_refusal(error_codes.GROUP_MAX_SIZE_REACHED), None
    if body["protocol_type"] != CONSUMER or not _supports(group, protocols):
        return join_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL), None
    if is_new and instance_id is None and version >= MEMBER_ID_REQUIRED_FROM:
        return join_refusal(error_codes.MEMBER_ID_REQUIRED, member_id), None
    change = Change()
    is_joining = instance_id is None or is_new
    old, error = find(group, change, member_id, instance_id, is_joining, is_classic=True)
    if old is None:
        return join_refusal(error), None
    protocol_name, metadata = protocols[0]
    found = subscription_of(metadata)
    if found is None:
        return join_refusal(error_codes.UNKNOWN_SERVER_ERROR), None
    subscription = found.message
    rebalance_timeout_ms = body["rebalance_timeout_ms"] if version else body["session_timeout_ms"]
    new = _subscribed(old, instance_id, subscription, rebalance_timeout_ms)
    new.client_id = client_id
    new.client_host = client_host
    new.classic = ClassicPart(body["session_timeout_ms"], protocols)
    replaced = group.members.get(group.static_members.get(instance_id or "", ""))
    error, _, are_topics_new = update(group, change, old, new, now_ms, topics)
    if error:
        return join_refusal(error), None
    owned = stored.rows_of(
        by_topic_id(subscription["owned_partitions"], topics.image.topics_by_name)
    )
    moved = step(group, change, new, owned, are_topics_new, now_ms, topics)
    if moved is None:
        return join_refusal(error_codes.UNKNOWN_MEMBER_ID), None
    generation_id = moved.epoch
    if replaced is not None and replaced is not old and can_become_classic(group, [replaced], 1):
        is_bumped = any(kind == stored.EPOCH for kind, _, _ in change.records)
        downgrade(group, change, [replaced], moved, is_bumped)
        generation_id = group.epoch
    else:
        deadlines = change.deadlines_of(moved.member_id)
        deadlines.session_ms = now_ms + body["session_timeout_ms"]
        deadlines.join_ms = NEVER_MS
        deadlines.sync_ms = now_ms + max(rebalance_timeout_ms, 0)
    return {
        "error_code": 0,
        "generation_id": generation_id,
        "protocol_type": CONSUMER,
        "protocol_name": protocol_name,
        "leader": "",
        "skip_assignment": False,
        "member_id": moved.member_id,
        "members": [],
    }, change


def on_classic_sync(
    group: ConsumerGroup, body: dict[str, Any], now_ms: int, topics: Topics
) -> Answer:
    """A SyncGroup: the member's assignment, in the consumers' own format."""
    member, error = known_classic(group, body)
    if member is None or member.classic is None:
        return {"error_code": error}
    protocol_name, metadata = member.classic.protocols[0]
    if body["protocol_type"] not in (None, CONSUMER) or body["protocol_name"] not in (
        None,
        protocol_name,
    ):
        return {"error_code": error_codes.INCONSISTENT_GROUP_PROTOCOL}
    if group.epoch > member.epoch and member.state != UNREVOKED:
        _expect_join(group, member, now_ms)
        return {"error_code": error_codes.REBALANCE_IN_PROGRESS}
    found = subscription_of(metadata)
    version = found.version if found is not None else 0
    member.sync_deadline_ms = NEVER_MS
    member.deadline_ms = now_ms + member.classic.session_timeout_ms
    return {
        "error_code": 0,
        "protocol_type": body["protocol_type"],
        "protocol_name": body["protocol_name"],
        "assignment": encode_assignment(version, member.assigned, topics.image.topics_by_id),
    }


def on_classic_heartbeat(group: ConsumerGroup, body: dict[str, Any], now_ms: int) -> int:
    """A Heartbeat: the error code."""
    member, error = known_classic(group, body)
    if member is None or member.classic is None:
        return error
    member.deadline_ms = now_ms + member.classic.session_timeout_ms
    if (
        member.epoch < group.epoch
        or member.state == UNREVOKED
        or (member.state == UNRELEASED and not _is_waiting_for_others(group, member))
    ):
        _expect_join(group, member, now_ms)
        return error_codes.REBALANCE_IN_PROGRESS
    return 0


def _supports(group: ConsumerGroup, protocols: Protocols) -> bool:
    """Whether there is a protocol that this and every other classic member knows."""
    if len(protocols) > PROTOCOLS_MAX:
        return False
    names = {name for name, _ in protocols}
    for member in group.members.values():
        if member.classic is not None:
            names &= {name for name, _ in member.classic.protocols}
    return bool(names)


def _subscribed(
    old: ConsumerMember,
    instance_id: str | None,
    subscription: Mapping[str, Any],
    rebalance_timeout_ms: int,
) -> ConsumerMember:
    """A member as the subscription in its JoinGroup says."""
    new = old.copy()
    if instance_id is not None:
        new.instance_id = instance_id
    if subscription["rack_id"]:
        new.rack_id = subscription["rack_id"]
    if rebalance_timeout_ms != NO_TIMEOUT:
        new.rebalance_timeout_ms = rebalance_timeout_ms
    new.subscribed_topics = frozenset(subscription["topics"])
    new.subscribed_regex = ""
    return new


def _expect_join(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
    if member.join_deadline_ms == NEVER_MS:
        member.join_deadline_ms = now_ms + max(member.rebalance_timeout_ms, 0)
        group.wake_by(member.join_deadline_ms)


def _is_waiting_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether others still have some of what it shall have."""
    return any(
        partition not in member.assigned.get(topic_id, ())
        and group.owner_of(topic_id, partition) is not None
        for topic_id, partitions in group.targets.get(member.member_id, {}).items()
        for partition in partitions
    )
