"""Voters of the metadata log under one seeded scheduler: crashes, lost bytes, a bad network.

The real `Quorum` runs; log, disk, network and time are replaced. `simulate(seed)` runs one history
and raises AssertionError where an invariant breaks. Looked at after every event:

* one leader in an epoch, and one vote of each voter in it, across restarts;
* what was committed once stays, and is the same on everyone who says it is committed;
* a commit is durable on a majority;
* two logs with a record of the same epoch at the same offset are the same up to there;
* a voter's high watermark never falls while it lives.

At the end, with all faults off, a leader is there and everybody catches up.
"""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

from shmbroker.controller.raft.quorum import LEADER, Quorum
from shmbroker.controller.raft.quorum_messages import (
    EpochAnswer,
    QuorumFetchAnswer,
    SnapshotAnswer,
    SnapshotId,
    VoteAnswer,
)

ANSWERS = (VoteAnswer, EpochAnswer, QuorumFetchAnswer, SnapshotAnswer)
READ_RECORDS = 5
SNAPSHOT_PIECE = 3


class SimulatedLog:
    """Records (epoch, value); what is not flushed may be lost in a crash."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.records: list[tuple[int, Any]] = []
        """Of all offsets, those before the log start too: only to compare with."""
        self.flushed = 0
        self.snapshot: SnapshotId | None = None
        self.piece: list[tuple[int, Any]] = []

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def log_start_epoch(self) -> int:
        return self.records[self.log_start_offset - 1][0] if self.log_start_offset else 0

    @property
    def last_epoch(self) -> int:
        return self.records[-1][0] if self.records else 0

    def append(self, epoch: int, value: Any) -> None:
        self.records.append((epoch, value))

    def append_leader_change(self, epoch: int, leader_id: int, voters: Any, granting: Any) -> None:
        self.append(epoch, f"leader {leader_id}")

    def append_fetched(self, records: Any) -> None:
        first, rows = records
        assert first == self.log_end_offset, "records that don't continue the log"
        self.records += rows

    def flush(self) -> None:
        self.flushed = len(self.records)

    def read(self, offset: int) -> Any:
        assert self.log_start_offset <= offset < self.log_end_offset
        return offset, tuple(self.records[offset : offset + READ_RECORDS])

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        epochs = [row[0] for row in self.records[max(0, self.log_start_offset - 1) :]]
        base = max(0, self.log_start_offset - 1)
        if not epochs or epoch > epochs[-1]:
            return -1, -1
        lower = [at for at, each in enumerate(epochs) if each <= epoch]
        if not lower:
            return epoch, self.log_start_offset
        return epochs[lower[-1]], base + lower[-1] + 1

    def truncate_to(self, offset: int) -> None:
        assert offset >= self.log_start_offset
        del self.records[offset:]
        self.flush()

    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshot

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> tuple[int, Any] | None:
        if snapshot != self.snapshot:
            return None
        end = min(position + SNAPSHOT_PIECE, snapshot.end_offset)
        return snapshot.end_offset, tuple(self.records[position:end])

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Any) -> None:
        if position == 0:
            self.piece = []
        assert len(self.piece) == position
        self.piece += data

    def install_snapshot(self, snapshot: SnapshotId) -> None:
        assert len(self.piece) == snapshot.end_offset
        assert self.piece[-1][0] == snapshot.epoch
        self.records, self.piece = self.piece, []
        self.snapshot = snapshot
        self.log_start_offset = snapshot.end_offset
        self.flush()

    def take_snapshot(self, offset: int) -> None:
        """All before `offset` (committed) goes into a snapshot."""
        if offset > self.log_start_offset:
            self.snapshot = SnapshotId(offset, self.records[offset - 1][0])
            self.log_start_offset = offset
            self.flushed = max(self.flushed, offset)

    def crash(self, random: Random) -> None:
        end = random.randint(self.flushed, len(self.records))
        del self.records[end:]
        self.flushed = end
        self.piece = []


class SimulatedStore:
    """quorum-state; checks that a vote is never given twice."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.row = (0, -1, -1)
        self.is_lost = False
        """Nothing was stored since the directory was emptied."""

    def read(self) -> tuple[int, int, int]:
        return self.row

    def write(self, epoch: int, leader_id: int, voted_id: int) -> None:
        assert epoch >= self.row[0], "the stored epoch fell"
        if voted_id >= 0:
            first = self.world.votes.setdefault((self.node_id, epoch), voted_id)
            assert first == voted_id, f"{self.node_id} voted twice in epoch {epoch}"
        self.row = epoch, leader_id, voted_id
        self.is_lost = False

    def lose(self) -> None:
        self.row = (0, -1, -1)
        self.is_lost = True
        # Its vote for itself is of no use to anybody: what it stood for is dead.
        votes, own = self.world.votes, self.node_id
        for key in [key for key, voted in votes.items() if key[0] == voted == own]:
            del votes[key]


class Node:
    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.log = SimulatedLog()
        self.lost: list[list[tuple[int, Any]]] = []
        """What was durable each time that the directory was emptied, as long as it `is_lost`."""
        self.store = SimulatedStore(world, node_id)
        self.quorum: Quorum | None = None
        self.incarnation = 0
        self.hung_until = 0
        self.high_watermark = 0

    def start(self) -> None:
        self.incarnation += 1
        self.high_watermark = 0
        world = self.world
        self.quorum = Quorum(
            self.node_id,
            world.voters,
            self.log,
            self.store,
            Random(world.random.random()),
            lost_epoch=self.stored_by_others() if self.store.is_lost else -1,
        )
        self.quorum.start(world.now)

    def crash(self) -> None:
        self.quorum = None
        self.log.crash(self.world.random)

    def lose(self) -> None:
        """The directory is emptied; of it nothing runs."""
        if not self.store.is_lost:
            self.lost.clear()
        self.lost.append(self.log.records)
        self.log = SimulatedLog()
        self.store.lose()

    def stored_by_others(self) -> int:
        """The highest epoch."""
        return max(node.store.row[0] for node in self.world.nodes.values() if node is not self)

    def has(self, records: list[tuple[int, Any]]) -> bool:
        """Whether that is durable here, or was acknowledged before it was lost."""
        logs = [self.log.records[: self.log.flushed], *(self.lost if self.store.is_lost else [])]
        return any(each[: len(records)] == records for each in logs)


class World:
    """The scheduler: events are (time, order, what, arguments)."""

    def __init__(self, seed: int, voters: int) -> None:
        self.random = Random(seed)
        self.now = 1000
        self.voters = tuple(range(1, voters + 1))
        self.events: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self.order = 0
        self.votes: dict[tuple[int, int], int] = {}
        self.leaders: dict[int, int] = {}
        self.committed: list[tuple[int, Any]] = []
        self.cut: set[tuple[int, int]] = set()
        """Directed pairs between which nothing passes."""
        self.loss = self.random.choice((0.0, 0.0, 0.02, 0.2))
        self.slowness = self.random.choice((1, 5, 40))
        self.value = 0
        self.is_quiet = False
        self.nodes = {voter: Node(self, voter) for voter in self.voters}

    # ── scheduler ───────────────────────────────────────────────────────────────────────────────

    def at(self, time: int, what: Any, *arguments: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, what, arguments))

    def run_until(self, end: int) -> None:
        while self.events and self.events[0][0] <= end:
            time, _, what, arguments = heapq.heappop(self.events)
            self.now = max(self.now, time)
            what(*arguments)
        self.now = end

    def step(self, node: Node, what: Any, *arguments: Any) -> None:
        """Let a node do something, send what it says, look at the invariants."""
        quorum = node.quorum
        if quorum is None:
            return
        if node.hung_until > self.now:
            self.at(node.hung_until, self.step_of, node, node.incarnation, what, arguments)
            return
        what(quorum, self.now, *arguments)
        self.send_all(node)
        self.check(node)
        self.at(max(self.now + 1, quorum.next_deadline()), self.tick, node, node.incarnation)

    def step_of(self, node: Node, incarnation: int, what: Any, arguments: tuple[Any, ...]) -> None:
        if node.incarnation == incarnation:
            self.step(node, what, *arguments)

    def tick(self, node: Node, incarnation: int) -> None:
        quorum = node.quorum
        if node.incarnation == incarnation and quorum and self.now >= quorum.next_deadline():
            self.step(node, Quorum.tick)

    # ── network ─────────────────────────────────────────────────────────────────────────────────

    def send_all(self, node: Node) -> None:
        assert node.quorum is not None
        outbox, node.quorum.outbox = node.quorum.outbox, []
        for voter, request_id, message in outbox:
            to = self.nodes[voter]
            is_lost = (node.node_id, voter) in self.cut or self.random.random() < self.loss
            if isinstance(message, ANSWERS):
                request_id, incarnation = request_id
            else:
                incarnation = node.incarnation
                if to.quorum is None and not is_lost:
                    self.at(
                        self.now + 1, self.step_of, node, incarnation, Quorum.on_failed,
                        (voter, request_id),
                    )  # fmt: skip
                    continue
            if is_lost:
                continue
            for _ in range(2 if self.random.random() < self.loss / 2 else 1):
                delay = 1 + int(self.random.expovariate(1 / self.slowness))
                self.at(
                    self.now + delay, self.deliver, node.node_id, voter, request_id, incarnation,
                    message,
                )  # fmt: skip

    def deliver(
        self, source: int, target: int, request_id: int, incarnation: int, message: Any
    ) -> None:
        node = self.nodes[target]
        if isinstance(message, ANSWERS):
            if node.incarnation == incarnation:
                self.step(node, Quorum.on_answer, source, request_id, message)
        else:
            self.step(node, Quorum.on_request, source, (request_id, incarnation), message)

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def something(self) -> None:
        """A client's wish, or a fault; then the next."""
        if self.is_quiet:
            return
        random = self.random
        node = self.nodes[random.choice(self.voters)]
        kind = random.random()
        if kind < 0.75:
            self.append()
        elif kind < 0.80:
            self.crash(node)
        elif kind < 0.84:
            node.hung_until = self.now + random.randrange(10, 6000)
        elif kind < 0.88:
            others = [voter for voter in self.voters if voter != node.node_id]
            self.cut |= {(node.node_id, other) for other in others if random.random() < 0.8}
            self.cut |= {(other, node.node_id) for other in others if random.random() < 0.8}
        elif kind < 0.93:
            self.cut.clear()
        elif kind < 0.97 and node.quorum is not None:
            node.log.take_snapshot(node.quorum.high_watermark)
        elif node.quorum is not None:
            self.step(node, Quorum.resign)
        self.at(self.now + 1 + int(random.expovariate(1 / 150)), self.something)

    def lose(self) -> None:
        """A process ends and its directory is emptied, if that leaves a majority; then the next."""
        if self.is_quiet:
            return
        node = self.nodes[self.random.choice(self.voters)]
        lost = {each.node_id for each in self.nodes.values() if each.store.is_lost}
        if node.quorum is not None and len(lost | {node.node_id}) <= len(self.voters) // 2:
            self.crash(node)
            node.lose()
        self.at(self.now + 1 + int(self.random.expovariate(1 / 500)), self.lose)

    def append(self) -> None:
        for node in self.nodes.values():
            quorum = node.quorum
            if quorum is not None and quorum.state == LEADER and node.hung_until <= self.now:
                self.value += 1
                node.log.append(quorum.epoch, self.value)
                self.step(node, Quorum.on_appended)
                self.at(self.now + 2, self.flush, node, node.incarnation, quorum.epoch)

    def flush(self, node: Node, incarnation: int, epoch: int) -> None:
        quorum = node.quorum
        if node.incarnation == incarnation and quorum and quorum.epoch == epoch:
            if node.hung_until > self.now:
                self.at(node.hung_until, self.flush, node, incarnation, epoch)
                return
            node.log.flush()
            self.step(node, Quorum.on_flushed)

    def crash(self, node: Node) -> None:
        if node.quorum is None:
            return
        node.crash()
        node.hung_until = 0
        if self.random.random() < 0.5:
            for other in self.nodes.values():
                if other is not node:
                    self.at(
                        self.now + self.random.randrange(1, 5), self.step, other,
                        Quorum.on_voter_lost, node.node_id,
                    )  # fmt: skip
        delay = int(self.random.expovariate(1 / self.random.choice((20, 500, 4000))))
        self.at(self.now + 10 + delay, self.start, node)

    def start(self, node: Node) -> None:
        if node.quorum is None:
            node.start()
            self.step(node, Quorum.tick)

    # ── invariants ──────────────────────────────────────────────────────────────────────────────

    def check(self, node: Node) -> None:
        quorum = node.quorum
        assert quorum is not None
        if quorum.state == LEADER:
            first = self.leaders.setdefault(quorum.epoch, node.node_id)
            assert first == node.node_id, f"two leaders in epoch {quorum.epoch}"
        end = quorum.high_watermark
        assert end >= node.high_watermark, "a high watermark fell"
        if end == node.high_watermark:
            return
        node.high_watermark = end
        records, committed = node.log.records, self.committed
        assert end <= len(records), "committed beyond the log's end"
        known = min(end, len(committed))
        assert records[:known] == committed[:known], "a committed record changed"
        if end > len(committed):
            durable = sum(each.has(records[:end]) for each in self.nodes.values())
            assert durable > len(self.voters) // 2, "committed without a majority"
            committed += records[len(committed) : end]

    def check_logs(self) -> None:
        logs = [node.log.records for node in self.nodes.values()]
        for one in logs:
            for other in logs:
                for at in range(min(len(one), len(other)) - 1, -1, -1):
                    if one[at][0] == other[at][0]:
                        assert one[: at + 1] == other[: at + 1], "logs differ below a shared record"
                        break

    def check_liveness(self) -> None:
        leaders = [
            node
            for node in self.nodes.values()
            if node.quorum is not None
            and node.quorum.state == LEADER
            and node.quorum.epoch == max(each.store.row[0] for each in self.nodes.values())
        ]
        assert len(leaders) == 1, "no leader though nothing is in the way"
        end = leaders[0].log.log_end_offset
        for node in self.nodes.values():
            assert node.log.log_end_offset == end, f"{node.node_id} did not catch up"
            assert node.quorum is not None
            assert node.quorum.high_watermark == end, f"{node.node_id} doesn't know of the commit"
        assert leaders[0].log.records[: len(self.committed)] == self.committed


def simulate(seed: int, voters: int = 0, ms: int = 25_000, *, loses: bool = False) -> World:
    """One history of `ms` milliseconds with faults, then calm; `loses`: directories are emptied,
    too. AssertionError if it goes wrong."""
    world = World(seed, voters or (3, 5, 3, 3)[seed % 4])
    for node in world.nodes.values():
        world.at(world.now + world.random.randrange(200), world.start, node)
    world.at(world.now + 500, world.something)
    if loses:
        world.at(world.now + 500, world.lose)
    for _ in range(4):
        world.run_until(world.now + ms // 4)
        world.check_logs()
    world.is_quiet = True
    world.cut.clear()
    world.loss = 0.0
    world.slowness = 1
    for node in world.nodes.values():
        node.hung_until = 0
        world.at(world.now + 10, world.start, node)
    world.run_until(world.now + 15_000)
    world.check_logs()
    world.check_liveness()
    assert world.committed, "nothing was ever committed"
    return world


def calm_three(seed: int) -> World:
    world = World(seed, 3)
    world.loss, world.slowness = 0.0, world.random.choice((1, 5))
    for node in world.nodes.values():
        world.at(world.now, world.start, node)
    return world


def replacement_ms(seed: int) -> int:
    """How long nobody leads when the leader of three dies for good: the others hear of it late,
    and not at the same time; one of them may lack the last records."""
    world = calm_three(seed)
    while not (leaders := [node for node in world.nodes.values() if is_leading(node)]):
        world.run_until(world.now + 1)
    (leader,) = leaders
    for _ in range(world.random.randrange(4)):
        world.append()
        world.run_until(world.now + world.random.randrange(1, 30))
    # A majority has the last ones.
    others = [node for node in world.nodes.values() if node is not leader]
    slow = world.random.choice(others)
    world.cut = {(leader.node_id, slow.node_id)}
    for _ in range(world.random.randrange(2)):
        world.append()
        world.run_until(world.now + 60)
    leader.quorum = None
    died = world.now
    for node in others:
        late = world.random.choice((1, 10, 100))
        world.at(
            died + world.random.randrange(1, 1 + late), world.step, node, Quorum.on_voter_lost,
            leader.node_id,
        )  # fmt: skip
    while not any(is_leading(node) for node in others):
        world.run_until(world.now + 1)
        assert world.now < died + 20_000, "nobody leads"
    return world.now - died


def raised_by_a_return(seed: int) -> int:
    """By how much the epoch of three rises while one that follows is away, hanging or cut off, and
    when it comes back; the leader has nothing new meanwhile."""
    world = calm_three(seed)
    world.run_until(world.now + 5_000)
    (leader,) = [node for node in world.nodes.values() if is_leading(node)]
    assert leader.quorum is not None
    epoch = leader.quorum.epoch
    away = world.random.choice([node for node in world.nodes.values() if node is not leader])
    away_ms = world.random.randrange(3_000, 20_000)
    if world.random.random() < 0.5:
        away.hung_until = world.now + away_ms
    else:
        others = [voter for voter in world.voters if voter != away.node_id]
        world.cut = {(away.node_id, other) for other in others}
        world.cut |= {(other, away.node_id) for other in others}
    world.run_until(world.now + away_ms)
    world.cut.clear()
    world.run_until(world.now + 5_000)
    world.check_liveness()
    return max(node.store.row[0] for node in world.nodes.values()) - epoch


def lost_after_a_vote(seed: int) -> None:
    """Of three, one that has voted for a new leader loses its directory, and then hears only the
    leader before, which has not heard of the new one and stands when the new epoch has begun
    without it. AssertionError if that goes wrong."""
    world = calm_three(seed)

    def until_one_leads(among: list[Node]) -> Node:
        while not any(is_leading(node) for node in among):
            world.run_until(world.now + 1)
            assert world.now < 20_000, "nobody leads"
        return next(node for node in among if is_leading(node))

    def cut_off(node: Node) -> None:
        others = [voter for voter in world.voters if voter != node.node_id]
        world.cut = {(node.node_id, other) for other in others}
        world.cut |= {(other, node.node_id) for other in others}

    first = until_one_leads(list(world.nodes.values()))
    others = [node for node in world.nodes.values() if node is not first]
    world.run_until(world.now + 500)
    cut_off(first)
    second = until_one_leads(others)
    world.append()
    world.run_until(world.now + world.random.randrange(200))
    assert is_leading(first), "it has not had the time to see that it is alone"
    cut_off(second)
    (third,) = (node for node in others if node is not second)
    third.crash()
    third.lose()
    world.start(third)
    world.run_until(world.now + world.random.randrange(2000))
    world.step(first, Quorum.resign)
    world.run_until(world.now + 5_000)
    world.cut.clear()
    world.run_until(world.now + 15_000)
    world.check_logs()
    world.check_liveness()


def is_leading(node: Node) -> bool:
    quorum = node.quorum
    return quorum is not None and quorum.state == LEADER
