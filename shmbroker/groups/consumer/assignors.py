"""The assignors of the broker: the partitions that each member of a consumer group shall have.

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
    """Give each member the same number of partitions; `previous` is what the members shall have so
    far.

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
    """The partitions that each member has: at first, what each has and may keep."""

    __slots__ = ("free", "held", "load", "partition_counts", "subscriptions")

    def __init__(
        self,
        subscriptions: Subscriptions,
        partition_counts: dict[bytes, int],
        previous: dict[str, Assignment],
    ) -> None:
        self.subscriptions = subscriptions
        self.partition_counts = partition_counts
        taken: dict[bytes, set[int]] = {}
        self.held: dict[str, dict[bytes, list[int]]] = {}
        """Partitions by member and topic."""
        self.load: dict[str, int] = {}
        """How many partitions each member holds."""
        for member_id, subscribed in subscriptions.items():
            held = self.held[member_id] = {}
            for topic_id, partitions in previous.get(member_id, _NOTHING).items():
                if topic_id in subscribed:
                    used = taken.setdefault(topic_id, set())
                    count = partition_counts[topic_id]
                    kept = [each for each in sorted(partitions) if each < count]
                    if used:
                        kept = [each for each in kept if each not in used]
                    if kept:
                        held[topic_id] = kept
                        used.update(kept)
            self.load[member_id] = sum(map(len, held.values()))
        wanted = frozenset().union(*subscriptions.values())
        self.free: dict[bytes, list[int]] = {}
        """What nobody holds, by topic; no topic without any."""
        for topic_id, count in partition_counts.items():
            if topic_id in wanted:
                has = taken.get(topic_id)
                left = [each for each in range(count) if each not in has] if has else range(count)
                if left:
                    self.free[topic_id] = list(left)

    def assignments(self) -> dict[str, Assignment]:
        return {
            member_id: {
                topic_id: frozenset(partitions)
                for topic_id, partitions in held.items()
                if partitions
            }
            for member_id, held in self.held.items()
        }


_NOTHING: Assignment = {}


def _even_out_alike(owners: _Owners) -> None:
    """Even out where each member may have every partition: cut down to the quota, then fill up."""
    held, load, free = owners.held, owners.load, owners.free
    if not held:
        return
    quota, extra = divmod(sum(map(len, free.values())) + sum(load.values()), len(held))
    quotas = {}
    # Those who have more than the quota are the first to be allowed one more.
    for member_id in sorted(held, key=lambda each: load[each] <= quota):
        quotas[member_id] = quota + (extra > 0)
        extra -= 1
    for member_id, mine in held.items():
        for topic_id in list(mine) if load[member_id] > quotas[member_id] else ():
            partitions = mine[topic_id]
            over = load[member_id] - quotas[member_id]
            if over <= 0:
                break
            free.setdefault(topic_id, []).extend(partitions[-over:])
            load[member_id] -= min(over, len(partitions))
            del partitions[-over:]
    rest = iter(free.items())
    topic_id, partitions, at = b"", _NO_PARTITIONS, 0
    for member_id, mine in held.items():
        wanted = quotas[member_id] - load[member_id]
        while wanted:
            if at == len(partitions):
                (topic_id, partitions), at = next(rest), 0
            some = partitions[at : at + wanted]
            mine.setdefault(topic_id, []).extend(some)
            at += len(some)
            wanted -= len(some)


_NO_PARTITIONS: list[int] = []


def _even_out_different(owners: _Owners) -> None:
    """Give what is free to the least loaded subscriber, then move from the most loaded."""
    held, load = owners.held, owners.load
    load_of = load.__getitem__
    subscribers: dict[bytes, list[str]] = {}
    for member_id, subscribed in owners.subscriptions.items():
        for topic_id in subscribed:
            of_topic = subscribers.get(topic_id)
            if of_topic is None:
                subscribers[topic_id] = [member_id]
            else:
                of_topic.append(member_id)
    counts = owners.partition_counts
    order = [(-counts[each] / len(of), len(of), each) for each, of in subscribers.items()]
    order.sort()
    topics = [topic_id for _, _, topic_id in order]
    for topic_id in topics:
        free = owners.free.get(topic_id)
        if free is None:
            continue
        of_topic = subscribers[topic_id]
        if len(of_topic) == 1:
            held[of_topic[0]].setdefault(topic_id, []).extend(free)
            load[of_topic[0]] += len(free)
            continue
        if len(free) == 1:
            member_id = min(of_topic, key=load_of)
            held[member_id].setdefault(topic_id, []).append(free[0])
            load[member_id] += 1
            continue
        loads = [(load[each], at, each) for at, each in enumerate(of_topic)]
        heapify(loads)
        for partition in free:
            least, at, member_id = loads[0]
            held[member_id].setdefault(topic_id, []).append(partition)
            heapreplace(loads, (least + 1, at, member_id))
        for least, _, member_id in loads:
            load[member_id] = least
    shared = [topic_id for topic_id in topics if len(subscribers[topic_id]) > 1]
    for _ in range(ROUNDS_MAX):
        if max(load.values()) - min(load.values()) <= 1:
            break
        if not sum(
            [_even_out_topic(owners, topic_id, subscribers[topic_id]) for topic_id in shared]
        ):
            break


def _even_out_topic(owners: _Owners, topic_id: bytes, subscribers: list[str]) -> int:
    """Move partitions of one topic until its subscribers differ by one; how many were moved."""
    held, load = owners.held, owners.load
    loads = [load[each] for each in subscribers]
    if max(loads) - min(loads) <= 1:
        return 0
    least = [(count, at, subscribers[at]) for at, count in enumerate(loads)]
    most = [(-count, at, each) for count, at, each in least if held[each].get(topic_id)]
    heapify(least)
    heapify(most)
    moved = 0
    while most:
        count, at, giver = heappop(most)
        while least[0][0] != load[least[0][2]]:
            # It was a giver since.
            _, position, stale = least[0]
            heapreplace(least, (load[stale], position, stale))
        low, position, taker = least[0]
        if -count - low <= 1:
            break
        mine = held[giver][topic_id]
        held[taker].setdefault(topic_id, []).append(mine.pop())
        load[giver] -= 1
        load[taker] += 1
        heapreplace(least, (low + 1, position, taker))
        moved += 1
        if mine:
            heappush(most, (count + 1, at, giver))
    return moved
