"""The way from a changed member to what every member shall have, and one step of its own there.

    `update`      the member's record, the group epoch if anything is new, then the targets of all
                  MEMBER                EPOCH                             TARGET, TARGET_EPOCH
    `step`        the member itself, as close to its target as others let it come
                  CURRENT

Rules of this file:
* Nothing is changed but the `Change` that is filled in: the group learns of it when it is stored.
  So what follows in the same request looks at the change's records first (`_target`).
* The group epoch grows if members' subscriptions, or the topics that they name, are others than
  those that it was made for; a hash says so without the topics themselves in the log.
* Targets are made anew whenever the group epoch is ahead of them, and only those that differ are
  written.

Source: KIP-848; Kafka's TargetAssignmentBuilder, GroupMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.assignors import ASSIGNORS
from shmbroker.groups.consumer.member import UNREVOKED, reconcile
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.change import Change, Topics
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.groups.consumer.member import ConsumerMember, Owned
    from shmbroker.groups.consumer.regexes import ResolvedRegex

_BEFORE_OTHERS = "uniform"
"""The assignor that wins among those of as many votes; the hash table that Kafka counts in happens
to have it before "range"."""

# ── epochs and targets ──────────────────────────────────────────────────────────────────────────


def update(
    group: ConsumerGroup,
    change: Change,
    old: ConsumerMember,
    new: ConsumerMember,
    now_ms: int,
    topics: Topics,
) -> tuple[int, str | None, bool]:
    """The member's record, the group's epoch, the targets.

    (error code, text, whether the member's topics are others now)
    """
    records, regexes = change.records, group.regexes
    if not new.is_like(old):
        records.append(stored.member_record(group.group_id, new))
    are_topics_new = new.subscribed_topics != old.subscribed_topics
    is_regex_new = is_resolved = False
    if new.subscribed_regex != old.subscribed_regex:
        is_regex_new = True
        if old.subscribed_regex and regexes.is_only_of(old):
            records.append(stored.regex_tombstone(group.group_id, old.subscribed_regex))
        regex = new.subscribed_regex
        if regex and regex not in regexes.counts:
            fault = regexes.fault_of_new(regex)
            if fault is not None:
                return error_codes.INVALID_REGULAR_EXPRESSION, fault, False
            change.wants_regexes = True
        else:
            is_resolved = not regex or regex in regexes.resolved
    if change.wants_regexes or regexes.counts:
        change.wants_regexes = regexes.is_due(
            now_ms, topics, change.wants_regexes, regexes.after(old, new)
        )
    members = _members_with(group, new)
    epoch = group.epoch
    is_bumped = epoch == 0 or are_topics_new or is_resolved
    if is_bumped or group.seen_offset != topics.changed_offset:
        change.seen_offset = topics.changed_offset
        metadata_hash = topics_hash(members.values(), regexes.resolved, topics)
        if is_bumped or metadata_hash != group.metadata_hash:
            epoch += 1
            records.append(stored.epoch_record(group.group_id, epoch, metadata_hash))
        if group.has_partition_metadata:
            key = {"group_id": group.group_id}
            records.append((stored.PARTITION_METADATA, key, None))
    if epoch > group.assignment_epoch:
        records += _assign(group, members, epoch, topics)
    return 0, None, are_topics_new or is_regex_new


def topics_hash(
    members: Iterable[ConsumerMember],
    regexes: dict[str, ResolvedRegex],
    topics: Topics,
) -> int:
    """The hash of the topics of all members: names, ids, numbers of partitions; 0 without any."""
    from hashlib import blake2b

    names: set[str] = set()
    for member in members:
        names |= member.subscribed_topics
        if member.subscribed_regex in regexes:
            names |= regexes[member.subscribed_regex].topics
    by_name = topics.image.topics_by_name
    found = [by_name[name] for name in sorted(names) if name in by_name]
    if not found:
        return 0
    rows = [f"{each.name}\0{len(each.partitions)}\0".encode() + each.topic_id for each in found]
    digest = blake2b(b"".join(rows), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)


def assignor_of(group: ConsumerGroup) -> str:
    """The assignor that most of those who ask for one ask for."""
    return _elected(group, group.members)


def _elected(group: ConsumerGroup, members: dict[str, ConsumerMember]) -> str:
    votes: dict[str, int] = {}
    for member in members.values():
        if member.assignor is not None:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    if not votes:
        return group.settings.assignors[0]
    return max(votes, key=lambda name: (votes[name], name == _BEFORE_OTHERS))


def _members_with(group: ConsumerGroup, new: ConsumerMember) -> dict[str, ConsumerMember]:
    """The members, the new one instead of the one whose place it takes."""
    members = dict(group.members)
    if new.instance_id is not None:
        replaced = group.static_members.get(new.instance_id, new.member_id)
        if replaced != new.member_id:
            del members[replaced]
    members[new.member_id] = new
    return members


def _assign(
    group: ConsumerGroup, members: dict[str, ConsumerMember], epoch: int, topics: Topics
) -> list[stored.Record]:
    """The records of the targets that are others now, and of their epoch."""
    subscriptions: dict[str, frozenset[bytes]] = {}
    instance_ids = {}
    targets = group.targets
    known: dict[Any, frozenset[bytes]] = {}
    for member_id, member in members.items():
        said = member.subscribed_topics, member.subscribed_regex
        if said not in known:
            known[said] = _subscribed(group, member, topics)
        subscriptions[member_id] = known[said]
        if member.instance_id is not None:
            instance_ids[member_id] = member.instance_id
            previous_id = group.static_members.get(member.instance_id, member_id)
            if previous_id != member_id:
                targets = {**targets, member_id: targets.get(previous_id, {})}
    by_id = topics.image.topics_by_id
    counts = {
        topic_id: len(by_id[topic_id].partitions)
        for topic_id in sorted(frozenset().union(*known.values()))
    }
    assign = ASSIGNORS[_elected(group, members)]
    found = assign(subscriptions, counts, targets, instance_ids)
    records = [
        stored.target_record(group.group_id, member_id, target)
        for member_id, target in found.items()
        if group.targets.get(member_id) != target
    ]
    records.append(stored.target_epoch_record(group.group_id, epoch))
    return records


def _subscribed(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> frozenset[bytes]:
    """The ids of the topics that a member is subscribed to, as far as they exist."""
    names = member.subscribed_topics
    resolved = group.regexes.resolved
    if member.subscribed_regex in resolved:
        names |= resolved[member.subscribed_regex].topics
    by_name = topics.image.topics_by_name
    return frozenset(by_name[name].topic_id for name in names if name in by_name)


# ── reconciling ─────────────────────────────────────────────────────────────────────────────────


def step(
    group: ConsumerGroup,
    change: Change,
    member: ConsumerMember,
    owned: Owned,
    are_topics_new: bool,
    now_ms: int,
    topics: Topics,
) -> ConsumerMember | None:
    """The member after this request; None if it has to join anew."""
    epoch, target = _target(group, change, member)
    if not are_topics_new and member.is_reconciled_to(epoch):
        return member
    moved = reconcile(
        member,
        epoch,
        target,
        _subscribed(group, member, topics),
        are_topics_new,
        group.owner_of,
        owned,
    )
    if moved is not None and not moved.is_like(member):
        change.records.append(stored.current_record(group.group_id, moved))
        if moved.classic is None:
            revoke_ms = NEVER_MS
            if moved.state == UNREVOKED:
                revoke_ms = now_ms + max(moved.rebalance_timeout_ms, 0)
            change.deadlines_of(moved.member_id).revoke_ms = revoke_ms
    return moved


def _target(group: ConsumerGroup, change: Change, member: ConsumerMember) -> tuple[int, Assignment]:
    """(epoch, what the member shall have), as they are after the change."""
    epoch = group.assignment_epoch
    target = group.targets.get(member.member_id, {})
    for record_type, key, value in change.records:
        if value is not None:
            if record_type == stored.TARGET_EPOCH:
                epoch = value["assignment_epoch"]
            elif record_type == stored.TARGET and key["member_id"] == member.member_id:
                target = stored.assignment_of(value["topic_partitions"])
    return epoch, target
