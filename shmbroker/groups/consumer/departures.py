"""Members go: they leave, or were silent for too long; and what is left may be a classic group.

    ConsumerGroupHeartbeat, LEFT_EPOCH ─┐
    LeaveGroup ─────────────────────────┼──► `fence` ──► their tombstones, a new group epoch
    a deadline has passed ──────────────┘          └──► only classic members stay: a `Downgrade`
    ConsumerGroupHeartbeat, AWAY_EPOCH ────► a static member keeps its place until its session ends

Rules of this file:
* What they had is free when that is stored: the next heartbeat of another makes new targets.
* The last member of the new protocol takes the group's records with it where the settings allow
  the way back: the owner writes the classic group in the same append.

Source: KIP-848; Kafka's GroupMetadataManager.consumerGroupFenceMembers, convertToClassicGroup.
"""

from __future__ import annotations

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.admission import known
from shmbroker.groups.consumer.answers import refusal
from shmbroker.groups.consumer.change import Change, Downgrade
from shmbroker.groups.consumer.member import AWAY_EPOCH
from shmbroker.groups.consumer.targets import topics_hash
from shmbroker.purgatory import NEVER_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.consumer.answers import Answer
    from shmbroker.groups.consumer.change import Topics
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.groups.consumer.member import ConsumerMember


def on_leave(
    group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int, topics: Topics
) -> tuple[Answer, Change | None]:
    """A ConsumerGroupHeartbeat with LEFT_EPOCH, or AWAY_EPOCH of a static member."""
    member, error = known(group, member_id, instance_id)
    if member is None:
        return refusal(error), None
    answer = {"member_id": member_id, "member_epoch": epoch}
    if epoch != AWAY_EPOCH:
        return answer, fence(group, [member], topics)
    away = member.copy()
    away.epoch = AWAY_EPOCH
    away.revoking = {}
    change = Change()
    change.records.append(stored.current_record(group.group_id, away))
    change.deadlines_of(member_id).revoke_ms = NEVER_MS  # it reads nothing now
    return answer, change


def on_classic_leave(
    group: ConsumerGroup, leaving: list[tuple[str, str | None]], topics: Topics
) -> tuple[list[int], Change | None]:
    """A LeaveGroup, of members of either protocol: an error code for each, and what follows."""
    errors = []
    gone: dict[str, ConsumerMember] = {}
    for member_id, instance_id in leaving:
        if instance_id is not None and not member_id:
            member_id = group.static_members.get(instance_id, "")
        member, error = known(group, member_id, instance_id)
        if member is not None:
            gone[member.member_id] = member
        errors.append(error)
    return errors, fence(group, list(gone.values()), topics) if gone else None


def fence(group: ConsumerGroup, gone: list[ConsumerMember], topics: Topics) -> Change:
    """Take members out. A group of classic members alone becomes a classic group again."""
    change = Change()
    if can_become_classic(group, gone, 0):
        downgrade(group, change, gone, None, True)
        return change
    for member in gone:
        change.records += stored.member_tombstones(group.group_id, member.member_id)
    rest = _members_without(group, gone)
    resolved = group.regexes.resolved
    for regex in resolved.keys() - {member.subscribed_regex for member in rest}:
        change.records.append(stored.regex_tombstone(group.group_id, regex))
    metadata_hash = topics_hash(rest, resolved, topics)
    change.records.append(stored.epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    return change


def can_become_classic(group: ConsumerGroup, gone: list[ConsumerMember], coming: int) -> bool:
    """Whether without these there are only classic members, and they may go back.

    coming: how many classic members take the place of one who goes: 0, or 1 of a new one.
    """
    if coming and gone[0].classic is not None:
        return False
    rest = _members_without(group, gone)
    return (
        0 < len(rest) + coming <= group.settings.classic_size_max
        and group.settings.can_downgrade
        and all(member.classic is not None for member in rest)
    )


def downgrade(
    group: ConsumerGroup,
    change: Change,
    gone: list[ConsumerMember],
    joining: ConsumerMember | None,
    is_rebalancing: bool,
) -> None:
    """Let a change end the group, and say who is in the classic one that follows.

    joining: who takes the place of the one who goes; None if nobody does.
    """
    members = [
        (member, group.targets.get(member.member_id, {}))
        for member in _members_without(group, gone)
    ]
    member_ids = list(group.members)
    if joining is not None:
        members.append((joining, group.targets.get(gone[0].member_id, {})))
        member_ids[member_ids.index(gone[0].member_id)] = joining.member_id
    change.records += stored.group_tombstones(
        group.group_id, member_ids, list(group.regexes.resolved)
    )
    change.downgrade = Downgrade(members, is_rebalancing)


def _members_without(group: ConsumerGroup, gone: list[ConsumerMember]) -> list[ConsumerMember]:
    ids = {member.member_id for member in gone}
    return [member for each, member in group.members.items() if each not in ids]
