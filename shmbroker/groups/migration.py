"""A group changes its protocol while its members work (KIP-848): both ways.

    classic group ──a member of the new protocol joins──► consumer group, with classic members in it
    consumer group ──its last member of the new protocol goes──► classic group

Members keep their ids and what they read; a generation becomes an epoch, and the reverse.

Rules of this file:
* Pure. The group that is converted stays as it is; the owner stores the records and swaps them,
  and tells who waits in the old one to begin again (`send_away`).
* A subscription may name thousands of topics: a large group is converted in steps, while its
  members go on in the one that it was. If they change it meanwhile (`mark_of`), it was in vain.

Source: Kafka's ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from shmbroker.groups.classic.agreement import topics_of
from shmbroker.groups.classic.answers import join_refusal
from shmbroker.groups.classic.embedded_protocol import (
    CONSUMER,
    assignment_of,
    encode_assignment,
    subscription_of,
    version_of,
)
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.classic.member import ClassicMember
from shmbroker.groups.classic.rebalance import prepare_rebalance
from shmbroker.groups.classic.states import STABLE
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.consumer.member import ClassicPart, ConsumerMember
from shmbroker.groups.consumer.targets import topics_hash
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from shmbroker.groups.classic.effects import Effect
    from shmbroker.groups.classic.group import ClassicSettings
    from shmbroker.groups.consumer.change import ConsumerSettings, Downgrade, Topics


STEP_BYTES = 16 << 10
"""The bytes of subscriptions, assignments or records between two steps: some 5 ms."""

_REBALANCE = error_codes.REBALANCE_IN_PROGRESS

Conversion = tuple[ConsumerGroup | None, str]
"""The consumer group and "", or None and why it can't be one."""


def to_consumer(
    group: ClassicGroup,
    settings: ConsumerSettings,
    make_member_id: Callable[[], str],
    topics: Topics,
) -> Conversion:
    """The consumer group that a classic group becomes, made at once."""
    steps = converting(group, settings, make_member_id, topics)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Conversion = end.value
            return made


def converting(
    group: ClassicGroup,
    settings: ConsumerSettings,
    make_member_id: Callable[[], str],
    topics: Topics,
) -> Generator[None, None, Conversion]:
    """Make the consumer group that a classic group becomes, in steps."""
    if not settings.can_upgrade:
        return None, "groups may not change to the consumer protocol here"
    if group.protocol_type != CONSUMER:
        return None, "it is no group of consumers"
    if len(group.members) > settings.size_max:
        return None, "it has too many members"
    new = ConsumerGroup(group.group_id, settings, make_member_id, group.owner)
    new.epoch = new.assignment_epoch = group.generation_id
    read = 0
    for member in list(group.members.values()):
        if read > STEP_BYTES:
            read = 0
            yield
        _, first_metadata = member.protocols[0]
        metadata = member.metadata(group.protocol_name) or first_metadata
        read += len(metadata) + len(member.assignment)
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
    if read > STEP_BYTES:
        yield
    new.metadata_hash = topics_hash(new.members.values(), new.regexes.resolved, topics)
    return new, ""


def mark_of(group: ClassicGroup) -> tuple[Any, ...]:
    """What the conversion of a group looks at: equal as long as it would come out the same."""
    members = [
        (
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.protocols,
            member.assignment,
        )
        for member in group.members.values()
    ]
    return group.state, group.generation_id, group.protocol_type, group.protocol_name, members


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
    _adopt(new, members, group.epoch, now_ms)
    for adopted, (_, target) in zip(members, downgrade.members, strict=True):
        version = version_of(adopted.metadata(new.protocol_name))
        adopted.assignment = encode_assignment(version, target, topics.image.topics_by_id)
    return new


def _adopt(
    group: ClassicGroup, members: list[ClassicMember], generation_id: int, now_ms: int
) -> None:
    """Make a new group a stable one, of members that were in one of the new protocol."""
    group.generation_id = generation_id
    group.protocol_type = CONSUMER
    for member in members:
        group.members[member.member_id] = member
        if member.instance_id is not None:
            group.static_members[member.instance_id] = member.member_id
        group.count(member, 1)
    group.leader_id = members[0].member_id
    group.protocol_name = group.support.elected(group.members)
    group.subscribed_topics = topics_of(group)
    group.set_state(STABLE, now_ms)


def on_adopted(group: ClassicGroup, is_rebalancing: bool, now_ms: int) -> list[Effect]:
    """The adopted members' sessions begin; they have to join again if anything is different."""
    for member in group.members.values():
        group.extend_session(member, now_ms)
    if is_rebalancing:
        prepare_rebalance(group, now_ms)
    return group.take_effects()


def send_away(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """Let the members that wait begin again: the group changes its protocol."""
    for member in group.members.values():
        if member.join_call is not None:
            group.answer_join(member, join_refusal(_REBALANCE, member.member_id))
            group.extend_session(member, now_ms)
        if member.sync_call is not None:
            group.answer_sync(member, {"error_code": _REBALANCE})
            group.extend_session(member, now_ms)
    return group.take_effects()
