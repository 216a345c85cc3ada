"""When a follower rings its leader: never for nothing, and never too rarely.

Leader and followers as their steps in shared memory, interleaved at random: whoever has done
something is asked `LeaderRings.is_worth_one`. When nobody can do anything any more, the leader
must know all there is.
"""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.replication.leader_rings import LeaderRings
from shmbroker.shm.positions import PositionSlot, PositionTable, SiblingPositions, table_bytes

KEY = bytes(range(20))
LEADER, FOLLOWERS = 1, (2, 3)
BROKERS = (LEADER, *FOLLOWERS)


class Tables:
    """The position tables of three brokers, with one partition each."""

    def __init__(self) -> None:
        self.views = {number: memoryview(bytearray(table_bytes(8))) for number in BROKERS}
        tables = {number: PositionTable(view, 8) for number, view in self.views.items()}
        self.slots: dict[int, PositionSlot] = {}
        for number, table in tables.items():
            slot = table.allocate(KEY)
            assert slot is not None
            self.slots[number] = PositionSlot(table, slot)
            self.slots[number].store(0, 0, 0)

    def rings_of(self, broker_id: int) -> LeaderRings:
        views = {number: view for number, view in self.views.items() if number != broker_id}
        return LeaderRings(
            broker_id, {number: SiblingPositions(view) for number, view in views.items()}
        )


def partition_with(end_offset: int, in_sync: tuple[int, ...] = BROKERS) -> Any:
    return SimpleNamespace(
        key=KEY,
        leader_id=LEADER,
        in_sync_replicas=in_sync,
        leader_recovery_state=0,
        is_fsync=False,
        log=SimpleNamespace(log_end_offset=end_offset),
    )


@pytest.mark.parametrize(
    ("own", "other", "leader_end", "high_watermark", "is_worth"),
    [
        (5, 3, 5, 3, False),  # the other one will ring
        (5, 5, 5, 3, True),  # the last of both
        (5, 7, 7, 3, True),
        (7, 5, 7, 3, True),  # the other one was behind 5 when it published, and waits
        (5, 5, 5, 5, False),  # nothing to say on either side
        (5, 5, 7, 5, True),  # the leader has more, and may sleep on it
        (5, 7, 7, 5, True),
        (5, 4, 7, 4, False),  # the other one gets it first
    ],
)
def test_who_rings(
    own: int, other: int, leader_end: int, high_watermark: int, is_worth: bool
) -> None:
    tables = Tables()
    tables.slots[LEADER].store(0, 0, leader_end)
    tables.slots[LEADER].store_high_watermark(high_watermark)
    tables.slots[3].store(0, 0, other)
    assert tables.rings_of(2).is_worth_one(partition_with(own)) == is_worth


def test_one_that_is_not_in_sync_always_rings() -> None:
    assert Tables().rings_of(2).is_worth_one(partition_with(0, (1, 3)))


class Follower:
    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.rings = world.tables.rings_of(number)
        self.end = 0
        self.answer: int | None = None
        """Up to where a READ_DONE brings records."""
        self.ring: list[int] = []
        """READs that the leader has not taken."""
        self.steps: list[Any] = []
        self.is_waiting, self.known = True, 0
        """At the leader: a READ waits, and from where it reads."""

    def can_go_on(self) -> bool:
        return bool(self.steps) or self.answer is not None

    def go_on(self) -> None:
        if not self.steps:
            assert self.answer is not None
            self.end, self.answer = self.answer, None
            self.steps = [self.store, self.publish, self.look]
        self.steps.pop(0)()

    def store(self) -> None:
        self.world.tables.slots[self.number].store(0, 0, self.end)

    def publish(self) -> None:
        self.ring.append(self.end)

    def look(self) -> None:
        if self.rings.is_worth_one(partition_with(self.end)):
            self.world.is_asleep = False


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tables = Tables()
        self.followers = [Follower(self, number) for number in FOLLOWERS]
        self.end = self.high_watermark = 0
        self.is_asleep = False
        self.left = 6

    def produce(self) -> None:
        self.left -= 1
        self.is_asleep = False
        self.end += self.random.randrange(1, 4)
        self.tables.slots[LEADER].store(0, 0, self.end)

    def turn(self) -> None:
        """The leader's; it sleeps if there is nothing on its rings and nothing to answer."""
        had_work = False
        for follower in self.followers:
            for offset in follower.ring:
                follower.is_waiting, follower.known = True, offset
                had_work = True
            follower.ring.clear()
        least = min(self.end, *(follower.known for follower in self.followers))
        if least > self.high_watermark:
            self.high_watermark = least
            self.tables.slots[LEADER].store_high_watermark(least)
        for follower in self.followers:
            if follower.is_waiting and follower.known < self.end:
                follower.answer, follower.is_waiting = self.end, False
                had_work = True
        self.is_asleep = not had_work

    def run(self) -> None:
        while True:
            able = [follower.go_on for follower in self.followers if follower.can_go_on()]
            able += [self.produce] if self.left else []
            able += [] if self.is_asleep else [self.turn]
            if not able:
                return
            self.random.choice(able)()


def test_no_order_of_steps_leaves_the_leader_asleep_on_news() -> None:
    for seed in range(2000):
        world = World(seed)
        world.run()
        told = [follower.end for follower in world.followers]
        assert (world.high_watermark, told) == (world.end, [world.end] * 2), f"seed {seed}"
