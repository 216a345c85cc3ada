"""Which member of a consumer group shall have which partitions: the assignors of the broker.

    uniform   everybody gets the same number of partitions, give or take one, and keeps what it has
    range     each topic is cut into ranges of partitions, in the order of the members

Rules of this file:
* Pure and deterministic: the same members in the same order give the same assignment.
* A partition of a topic that somebody is subscribed to is given to exactly one of its subscribers.
* `uniform` takes no partition from a member that doesn't have to give it: with the same
  subscriptions everywhere, members that have one more than others keep it.
* With different subscriptions `uniform` evens out one topic after the other, at most ROUNDS_MAX
  times over all: a difference of more than one may be left between members that share no topic.

Source: KIP-848; Kafka's UniformAssignor and RangeAssignor.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Assignment = dict[bytes, frozenset[int]]
    """Partitions by topic id; no topic without any."""
    Subscriptions = dict[str, frozenset[bytes]]
    """Topic ids by member id."""
    Assignor = Callable[
        [Subscriptions, dict[bytes, int], dict[str, Assignment], dict[str, str]],
        dict[str, Assignment],
    ]

UNIFORM = "uniform"
RANGE = "range"
ROUNDS_MAX = 16


def uniform(
    subscriptions: Subscriptions,
    partition_counts: dict[bytes, int],
    previous: dict[str, Assignment],
    instance_ids: dict[str, str],
) -> dict[str, Assignment]:
    """The same number for everybody; `previous` is what the members shall have so far.

    partition_counts: of every topic that is in a subscription.
    instance_ids: of static members, by member id.
    """
    owners = _Owners(subscriptions, partition_counts, previous)
    if len(set(subscriptions.values())) <= 1:
        _even_out_alike(owners)
    else:
        _even_out_different(owners)
    return owners.assignments()


def range_(
    subscriptions: Subscriptions,
    partition_counts: dict[bytes, int],
    previous: dict[str, Assignment],
    instance_ids: dict[str, str],
) -> dict[str, Assignment]:
    """Ranges of each topic, static members first: they keep theirs under a new member id."""
    order = sorted(
        subscriptions,
        key=lambda member_id: (
            member_id not in instance_ids,
            instance_ids.get(member_id, ""),
            member_id,
        ),
    )
    found: dict[str, Assignment] = {member_id: {} for member_id in subscriptions}
    for topic_id, count in partition_counts.items():
        subscribers = [each for each in order if topic_id in subscriptions[each]]
        if not subscribers:
            continue
        quota, extra = divmod(count, len(subscribers))
        first = 0
        for position, member_id in enumerate(subscribers):
            end = first + quota + (position < extra)
            if end > first:
                found[member_id][topic_id] = frozenset(range(first, end))
            first = end
    return found


ASSIGNORS: dict[str, Assignor] = {UNIFORM: uniform, RANGE: range_}


class _Owners:
    """Who has what: at first, what everybody has and may keep.

    A partition is (topic id, index); `held[member]` lists its partitions.
    """

    __slots__ = ("free", "held", "partition_counts", "subscriptions")

    def __init__(
        self,
        subscriptions: Subscriptions,
        partition_counts: dict[bytes, int],
        previous: dict[str, Assignment],
    ) -> None:
        self.subscriptions = subscriptions
        self.partition_counts = partition_counts
        taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in partition_counts}
        self.held: dict[str, list[tuple[bytes, int]]] = {}
        for member_id, subscribed in subscriptions.items():
            held = self.held[member_id] = []
            for topic_id, partitions in previous.get(member_id, _NOTHING).items():
                if topic_id in subscribed:
                    used, count = taken[topic_id], partition_counts[topic_id]
                    for partition in sorted(partitions):
                        if partition < count and partition not in used:
                            used.add(partition)
                            held.append((topic_id, partition))
        wanted = frozenset().union(*subscriptions.values())
        self.free = [
            (topic_id, partition)
            for topic_id, count in partition_counts.items()
            if topic_id in wanted
            for partition in range(count)
            if partition not in taken[topic_id]
        ]

    def assignments(self) -> dict[str, Assignment]:
        found = {}
        for member_id, held in self.held.items():
            by_topic: dict[bytes, list[int]] = {}
            for topic_id, partition in held:
                by_topic.setdefault(topic_id, []).append(partition)
            found[member_id] = {
                topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()
            }
        return found


_NOTHING: Assignment = {}


def _even_out_alike(owners: _Owners) -> None:
    """Everybody may have everything: cut down to the quota, then fill up."""
    held, free = owners.held, owners.free
    if not held:
        return
    quota, extra = divmod(len(free) + sum(map(len, held.values())), len(held))
    quotas = {}
    # Those who have more than the quota are the first to be allowed one more.
    for member_id in sorted(held, key=lambda each: len(held[each]) <= quota):
        quotas[member_id] = quota + (extra > 0)
        extra -= 1
    for member_id, mine in held.items():
        free += mine[quotas[member_id] :]
        del mine[quotas[member_id] :]
    at = 0
    for member_id, mine in held.items():
        end = at + quotas[member_id] - len(mine)
        mine += free[at:end]
        at = end


def _even_out_different(owners: _Owners) -> None:
    """Give what is free to the least loaded subscriber, then move from the most loaded."""
    held = owners.held
    subscribers: dict[bytes, list[str]] = {}
    for member_id, subscribed in owners.subscriptions.items():
        for topic_id in subscribed:
            subscribers.setdefault(topic_id, []).append(member_id)
    counts = owners.partition_counts
    topics = sorted(
        subscribers,
        key=lambda topic_id: (
            -counts[topic_id] / len(subscribers[topic_id]),
            len(subscribers[topic_id]),
            topic_id,
        ),
    )
    free: dict[bytes, list[int]] = {}
    for topic_id, partition in owners.free:
        free.setdefault(topic_id, []).append(partition)
    for topic_id in topics:
        if topic_id in free:
            loads = [(len(held[each]), at, each) for at, each in enumerate(subscribers[topic_id])]
            heapify(loads)
            for partition in free[topic_id]:
                load, at, member_id = loads[0]
                held[member_id].append((topic_id, partition))
                heapreplace(loads, (load + 1, at, member_id))
    shared = [topic_id for topic_id in topics if len(subscribers[topic_id]) > 1]
    for _ in range(ROUNDS_MAX):
        if not sum([_even_out_topic(held, topic_id, subscribers[topic_id]) for topic_id in shared]):
            break


def _even_out_topic(
    held: dict[str, list[tuple[bytes, int]]], topic_id: bytes, subscribers: list[str]
) -> int:
    """Move partitions of one topic until its subscribers differ by one; how many were moved."""
    least = [(len(held[each]), at, each) for at, each in enumerate(subscribers)]
    if max(least)[0] - min(least)[0] <= 1:
        return 0
    heapify(least)
    mine = {
        each: [partition for topic, partition in held[each] if topic == topic_id]
        for each in subscribers
    }
    most = [(-load, at, each) for load, at, each in least if mine[each]]
    heapify(most)
    moved = 0
    while most:
        load, at, giver = heappop(most)
        while least[0][0] != len(held[least[0][2]]):
            # It was a giver since.
            _, position, stale = least[0]
            heapreplace(least, (len(held[stale]), position, stale))
        low, position, taker = least[0]
        if -load - low <= 1:
            break
        partition = (topic_id, mine[giver].pop())
        held[giver].remove(partition)
        held[taker].append(partition)
        heapreplace(least, (low + 1, position, taker))
        moved += 1
        if mine[giver]:
            heappush(most, (load + 1, at, giver))
    return moved
