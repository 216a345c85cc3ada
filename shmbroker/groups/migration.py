"""A group changes its protocol while its members work (KIP-848): both ways.

    classic group ──a member of the new protocol joins──► consumer group, with classic members in it
    consumer group ──its last member of the new protocol goes──► classic group

Members keep their ids and what they read; a generation becomes an epoch, and the reverse.

Rules of this file:
* Pure. The group that is converted stays as it is; the owner stores the records and swaps them.

Source: Kafka's ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from shmbroker.groups.classic.embedded_protocol import (
    assignment_of,
    encode_assignment,
    subscription_of,
)
from shmbroker.groups.classic.group import CONSUMER, ClassicGroup
from shmbroker.groups.classic.member import ClassicMember
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.consumer.member import ClassicPart, ConsumerMember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.groups.classic.group import ClassicSettings
    from shmbroker.groups.consumer.change import ConsumerSettings, Downgrade, Topics


def to_consumer(
    group: ClassicGroup,
    settings: ConsumerSettings,
    make_member_id: Callable[[], str],
    topics: Topics,
) -> tuple[ConsumerGroup | None, str]:
    """(the consumer group, ""), or (None, why it can't be one)."""
    if not settings.can_upgrade:
        return None, "groups may not change to the consumer protocol here"
    if group.protocol_type != CONSUMER:
        return None, "it is no group of consumers"
    if len(group.members) > settings.size_max:
        return None, "it has too many members"
    new = ConsumerGroup(group.group_id, settings, make_member_id, group.owner)
    new.epoch = new.assignment_epoch = group.generation_id
    for member in group.members.values():
        _, first_metadata = member.protocols[0]
        metadata = member.metadata(group.protocol_name) or first_metadata
        subscription = subscription_of(metadata)
        assigned = assignment_of(member.assignment, topics.image.topics_by_name)
        if subscription is None or assigned is None:
            return None, "its members don't speak the consumers' embedded protocol"
        if assigned.has_user_data:
            return None, "its assignor has data of its own, which would be lost"
        consumer = ConsumerMember(member.member_id)
        consumer.instance_id = member.instance_id
        consumer.rack_id = subscription.message["rack_id"] or None
        consumer.client_id = member.client_id
        consumer.client_host = member.client_host
        consumer.rebalance_timeout_ms = member.rebalance_timeout_ms
        consumer.subscribed_topics = frozenset(subscription.message["topics"])
        consumer.classic = ClassicPart(member.session_timeout_ms, member.protocols)
        consumer.epoch = consumer.previous_epoch = group.generation_id
        consumer.assigned = assigned.partitions
        new.add(consumer, assigned.partitions)
    new.look_at(topics)
    return new, ""


def to_classic(
    group: ConsumerGroup,
    downgrade: Downgrade,
    settings: ClassicSettings,
    make_member_id: Callable[[str], str],
    now_ms: int,
    topics: Topics,
) -> ClassicGroup:
    """The classic group of those who stay; `on_adopted` follows."""
    new = ClassicGroup(group.group_id, settings, make_member_id, now_ms, group.owner)
    members = []
    for member, _ in downgrade.members:
        assert member.classic is not None
        session_timeout_ms, protocols = member.classic
        members.append(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                session_timeout_ms,
                protocols,
            )
        )
    new.adopt(members, group.epoch, now_ms)
    for adopted, (_, target) in zip(members, downgrade.members, strict=True):
        subscription = subscription_of(adopted.metadata(new.protocol_name))
        version = subscription.version if subscription is not None else 0
        adopted.assignment = encode_assignment(version, target, topics.image.topics_by_id)
    return new
