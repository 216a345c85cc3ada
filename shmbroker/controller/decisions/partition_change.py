"""How a partition changes: reassignment, ISR, ELR and leader are decided together, here alone.

`partition_change` takes what its caller wants to be different and makes one PartitionChangeRecord
of it, in this order:

A. A reassignment (KIP-455) whose target replicas are all in sync is completed.
B. Eligible leader replicas (KIP-966), where the feature is on: who leaves the ISR while it is
   smaller than min.insync.replicas still has every committed record, as nothing is committed from
   then on. Once the ISR is large enough the ELR is empty.
C. The leader: the one it has, as long as it is in sync and at work; else the first such replica in
   the order of the replicas, rather one with room on its disk (`room`); else, with an empty ISR,
   one of the ELR; else, with both empty, the last known leader; else, if that is allowed, any
   replica at work. The last two are *unclean*: the ISR is the new leader alone, which is RECOVERING
   until it says that it isn't.
D. What nobody can lead keeps leader, ISR and ELR as they are. Kafka would take the leader away (-1)
   and give the same one back when its broker returns; here that is back within half a second with
   all its records, as they are in the page cache. So a leader may be fenced; at every later change,
   and when a broker comes back, the ISR is looked at without the fenced, as if they had left it.
E. A record that names a leader makes a new leader epoch, be it the leader that was. One is needed
   where a replica is taken away, so that it is fenced; a shrinking ISR needs none (KAFKA-15021).
F. A replica that had lost what it had (`lost_replicas`) and is in sync again is in its broker's log
   directory (KIP-858).

Source: Kafka's `PartitionChangeBuilder`, `PartitionReassignmentReplicas`.
"""

from __future__ import annotations

from shmbroker.ids import LOST_DIRECTORY
from shmbroker.metadata.image import NO_LEADER, NO_LEADER_CHANGE, RECOVERING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.metadata.image import PartitionImage

# How a leader is looked for (`PartitionChangeBuilder.Election`).
ONLINE = 0
"""Another leader only if the leader can't stay."""
PREFERRED = 1
"""The first replica, if it may lead and has room on its disk; else as for ONLINE."""
UNCLEAN = 2
"""Another leader as for ONLINE; if nobody is eligible, any replica at work, rather one that has
lost nothing."""


class ElectionRules:
    """What decides besides the partition itself; one for many partitions of a topic."""

    __slots__ = ("default_directory", "election", "is_acceptable", "is_elr_on", "min_in_sync",
                 "short")  # fmt: skip

    def __init__(
        self,
        is_acceptable: Callable[[int], bool],
        min_in_sync: int,
        is_elr_on: bool,
        default_directory: Callable[[int], bytes],
        election: int = ONLINE,
        short: AbstractSet[int] = frozenset(),
    ) -> None:
        self.is_acceptable = is_acceptable
        """Whether a broker is at work, so that it may lead."""
        self.min_in_sync = min_in_sync
        """min.insync.replicas of the topic, at most its number of replicas."""
        self.is_elr_on = is_elr_on
        self.default_directory = default_directory
        """The log directory in which a broker puts a new replica."""
        self.election = election
        self.short = short
        """Brokers without room on their disk."""


def partition_change(
    topic_id: bytes,
    partition: PartitionImage,
    rules: ElectionRules,
    *,
    isr: Sequence[int] | None = None,
    replicas: Sequence[int] | None = None,
    adding: Sequence[int] | None = None,
    removing: Sequence[int] | None = None,
    unclean: Sequence[int] = (),
    recovery_state: int | None = None,
    keeps_leader: bool = True,
) -> dict[str, Any] | None:
    """A PartitionChangeRecord (version 2), or None if nothing would be different.

    What isn't given is to stay as it is. `unclean`: brokers that may have lost records, so no
    longer eligible. `keeps_leader`: D; not where the leader's broker is gone for good.
    """
    message: dict[str, Any] = {"partition_id": partition.partition, "topic_id": topic_id}
    isr = _still_in_sync(partition, rules) if isr is None else tuple(isr)
    replicas = partition.replicas if replicas is None else tuple(replicas)
    adding = partition.adding_replicas if adding is None else tuple(adding)
    removing = partition.removing_replicas if removing is None else tuple(removing)
    if adding or removing:  # A
        kept_isr = tuple(broker_id for broker_id in isr if broker_id not in removing)
        kept = tuple(broker_id for broker_id in replicas if broker_id not in removing)
        if kept_isr and kept and set(kept) <= set(kept_isr):
            isr, replicas, adding, removing = kept_isr, kept, (), ()

    elr = _eligible(partition, rules, isr, replicas, unclean)  # B
    leader_id, is_unclean = _elect(partition, rules, isr, replicas, elr)  # C
    if leader_id == NO_LEADER and keeps_leader and partition.leader_id in replicas:  # D
        leader_id = partition.leader_id
        isr = tuple(other for other in partition.in_sync_replicas if other in replicas)
        elr = tuple(other for other in partition.eligible_leader_replicas if other in replicas)
    if leader_id != partition.leader_id:
        message["leader"] = leader_id
        if leader_id in elr:
            isr = (leader_id,)
            elr = tuple(broker_id for broker_id in elr if broker_id != leader_id)
        if is_unclean:
            isr, elr = (leader_id,), ()
            recovery_state = RECOVERING
    elif not set(partition.replicas) <= set(replicas):  # E
        message["leader"] = leader_id

    if isr != partition.in_sync_replicas and (isr or rules.is_elr_on):
        message["isr"] = isr
    if elr != partition.eligible_leader_replicas:
        message["eligible_leader_replicas"] = elr
    last_known = _last_known(partition, rules, message)
    if last_known != partition.last_known_elr:
        message["last_known_elr"] = last_known
    if replicas != partition.replicas:
        message["replicas"] = replicas
    if replicas != partition.replicas or any(has_lost(partition, other) for other in isr):  # F
        message["directories"] = [
            partition.directory(other)
            if other in partition.replicas and not (other in isr and has_lost(partition, other))
            else rules.default_directory(other)
            for other in replicas
        ]
    if adding != partition.adding_replicas:
        message["adding_replicas"] = adding
    if removing != partition.removing_replicas:
        message["removing_replicas"] = removing
    if recovery_state not in (None, partition.leader_recovery_state):
        message["leader_recovery_state"] = recovery_state
    return message if len(message) > 2 else None


def _still_in_sync(partition: PartitionImage, rules: ElectionRules) -> tuple[int, ...]:
    isr = partition.in_sync_replicas
    if rules.is_acceptable(partition.leader_id):
        return isr
    if partition.leader_id == NO_LEADER:
        # Somebody eligible is at work, and nobody in sync: that one leads.
        can_lead = any(map(rules.is_acceptable, isr))
        return (
            isr
            if can_lead or not any(map(rules.is_acceptable, partition.eligible_leader_replicas))
            else ()
        )
    return tuple(broker_id for broker_id in isr if rules.is_acceptable(broker_id))


def _eligible(
    partition: PartitionImage,
    rules: ElectionRules,
    isr: tuple[int, ...],
    replicas: tuple[int, ...],
    unclean: Sequence[int],
) -> tuple[int, ...]:
    """The ELR next to this ISR, in the order of their ids."""
    if not rules.is_elr_on or len(isr) >= rules.min_in_sync:
        return ()
    candidates = {*partition.eligible_leader_replicas, *partition.in_sync_replicas}
    return tuple(sorted((candidates & set(replicas)).difference(isr, unclean)))


def _elect(
    partition: PartitionImage,
    rules: ElectionRules,
    isr: tuple[int, ...],
    replicas: tuple[int, ...],
    elr: tuple[int, ...],
) -> tuple[int, bool]:
    """(leader, whether the election is unclean)."""
    is_acceptable = rules.is_acceptable
    eligible = isr or elr
    if (
        rules.election == PREFERRED
        and replicas
        and replicas[0] in eligible
        and is_acceptable(replicas[0])
        and replicas[0] not in rules.short
    ):
        return replicas[0], False
    if partition.leader_id in eligible and is_acceptable(partition.leader_id):
        return partition.leader_id, False
    can_lead = [other for other in replicas if other in eligible and is_acceptable(other)]
    if can_lead:
        return next((other for other in can_lead if other not in rules.short), can_lead[0]), False
    last_known = partition.last_known_elr
    if not rules.is_elr_on or eligible or len(last_known) != 1 or last_known[0] not in replicas:
        last_known = ()
    if last_known and is_acceptable(last_known[0]):
        return last_known[0], True
    if rules.election == UNCLEAN:
        at_work = [broker_id for broker_id in replicas if is_acceptable(broker_id)]
        if at_work:  # Last of all one that has lost what it had.
            at_work.sort(key=lambda broker_id: has_lost(partition, broker_id))
            return at_work[0], True
    return NO_LEADER, False


def has_lost(partition: PartitionImage, broker_id: int) -> bool:
    """Whether a replica has lost what it had, and not been in sync since (`lost_replicas`)."""
    is_known = broker_id in partition.replicas
    return is_known and partition.directory(broker_id) == LOST_DIRECTORY


def _last_known(
    partition: PartitionImage, rules: ElectionRules, message: dict[str, Any]
) -> tuple[int, ...]:
    """The last leader, from when the partition has nobody in sync until it is led again."""
    if not rules.is_elr_on:
        return partition.last_known_elr
    leader_id = message.get("leader", NO_LEADER_CHANGE)
    if message.get("isr") == () and partition.leader_id != NO_LEADER:
        return (partition.leader_id,)
    if leader_id >= 0 or (partition.leader_id != NO_LEADER and leader_id != NO_LEADER):
        return ()
    return partition.last_known_elr
