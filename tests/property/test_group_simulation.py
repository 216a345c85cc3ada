"""A hundred clients of one group that come, go, hang, crash, are replaced and fenced, from a seed.

The group is the real one, on a virtual clock; the clients do what client libraries do, over a
network that takes its time. Calls are lost when the coordinator dies, and its successor begins with
what was stored. All the while: a generation has one leader; each member of a generation gets what
its leader gave it, and nobody gets two things; a heartbeat of another generation is never answered
with 0. When the trouble is over, a rebalance ends, and everybody who is alive is in it.

    GROUP_SEEDS=1000 pytest tests/property/test_group_simulation.py     more of them
    GROUP_SEEDS=17:18 …                                                 one of them again
"""

import os
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from shmbroker.groups.classic.states import STABLE
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import Call, Table

CLIENTS = 100
TROUBLE_MS = 300_000
QUIET_MS = 600_000
SESSION_MS = 10_000
INTERVAL_MS = 3_000
DELAY_MS_MAX = 200
RETRY_MS = 100
FENCED = error_codes.FENCED_INSTANCE_ID
UNKNOWN = error_codes.UNKNOWN_MEMBER_ID

first, _, end = os.environ.get("GROUP_SEEDS", "8").rpartition(":")
SEEDS = range(int(first or 0), int(end))


class Client:
    """One member as a library has it: joins, syncs, heartbeats, and believes what it is told."""

    def __init__(self, world: "World", instance: str | None) -> None:
        self.world = world
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.is_stable = False
        self.is_alive = True
        self.hangs_until_ms = 0
        world.after(self, self.join)

    def identity(self) -> str:
        return self.instance or self.member_id

    def join(self) -> None:
        self.is_stable = False
        table = self.world.table
        protocols = (("range", b"m"),)
        call = table.join(
            self.member_id,
            instance=self.instance,
            version=9,
            protocols=protocols,
            session_ms=SESSION_MS,
            rebalance_ms=self.world.rebalance_ms,
        )
        self.world.expect(self, call, self.on_joined)

    def on_joined(self, body: dict[str, Any]) -> None:
        error = body["error_code"]
        if error == error_codes.MEMBER_ID_REQUIRED:
            self.member_id = body["member_id"]
            self.join()
        elif error:
            self.recover(error)
        else:
            self.member_id = body["member_id"]
            self.generation = body["generation_id"]
            self.world.identities[self.member_id] = self.identity()
            self.world.check_leader(body["deaths"], self.generation, body["leader"])
            given = {}
            if body["leader"] == self.member_id and not body["skip_assignment"]:
                given = {
                    row["member_id"]: self.world.share(
                        self.generation, row["group_instance_id"] or row["member_id"]
                    )
                    for row in body["members"]
                }
                assert self.member_id in given
            self.world.after(self, lambda: self.sync(given))

    def sync(self, given: dict[str, bytes]) -> None:
        call = self.world.table.sync(
            self.member_id, given, instance=self.instance, generation=self.generation
        )
        self.world.expect(self, call, self.on_synced)

    def on_synced(self, body: dict[str, Any]) -> None:
        if body["error_code"]:
            self.recover(body["error_code"])
            return
        share = self.world.share(self.generation, self.identity())
        assert body["assignment"] == share, (body["assignment"], share)
        self.is_stable = True
        self.world.after(self, self.heartbeat, INTERVAL_MS)

    def heartbeat(self) -> None:
        if not self.is_stable:
            return
        table = self.world.table
        error = table.heartbeat(self.member_id, self.instance, self.generation)
        if error:
            self.recover(error)
            return
        assert self.generation == table.group.generation_id
        assert self.member_id in table.group.members
        self.world.after(self, self.heartbeat, INTERVAL_MS)

    def recover(self, error: int) -> None:
        """Whatever it was, a library joins again, under a new id where the old one is gone."""
        self.is_stable = False
        if error == FENCED:
            assert self.instance is not None
            self.is_alive = False
            return
        if error == UNKNOWN:
            self.member_id = ""
        self.world.after(self, self.join, RETRY_MS)

    def leave(self) -> None:
        self.is_alive = False
        errors = self.world.table.leave((self.member_id, self.instance))
        assert errors[0] in (0, UNKNOWN, FENCED)


class World:
    """The group, its clients, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.table = Table(self.random.choice([0, 3000]), 1000)
        # With the short one, static members may miss a rebalance and still be members.
        self.rebalance_ms = self.random.choice([4_000, 30_000])
        self.clients: list[Client] = []
        self.events: list[tuple[int, int, Client | None, Callable[[], Any]]] = []
        self.calls: list[tuple[Client, Call, Callable[[dict[str, Any]], None]]] = []
        self.sequence = 0
        self.deaths = 0
        self.identities: dict[str, str] = {}
        self.leaders: dict[tuple[int, int], str] = {}
        self.end_of_trouble_ms = self.table.now_ms + TROUBLE_MS
        for _ in range(CLIENTS // 2):
            self.clients.append(Client(self, None))
        self.at(0, None, self.trouble)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def at(self, ms: int, client: Client | None, action: Callable[[], Any]) -> None:
        self.sequence += 1
        heappush(self.events, (self.table.now_ms + ms, self.sequence, client, action))

    def after(self, client: Client, action: Callable[[], Any], ms: int = 0) -> None:
        """Once the network has had its time."""
        self.at(ms + self.random.randint(1, DELAY_MS_MAX), client, action)

    def expect(
        self, client: Client, call: Call, on_answer: Callable[[dict[str, Any]], None]
    ) -> None:
        self.calls.append((client, call, on_answer))

    def run(self, until_ms: int) -> None:
        """One event after the other, the group's own timers among them."""
        while True:
            moment = min(self.table.group.wake_ms, self.events[0][0] if self.events else until_ms)
            if moment > until_ms:
                break
            self.table.wait(max(moment - self.table.now_ms, 0))
            self.deliver()
            if not self.events or self.events[0][0] > self.table.now_ms:
                if moment == until_ms:
                    break
                continue
            _, _, client, action = heappop(self.events)
            if client is None:
                action()
            elif client.hangs_until_ms > moment:
                self.at(client.hangs_until_ms - moment, client, action)
            elif client.is_alive:
                action()
            self.deliver()
        self.table.wait(until_ms - self.table.now_ms)

    def deliver(self) -> None:
        waiting = []
        for row in self.calls:
            client, call, on_answer = row
            if not call.answers:
                waiting.append(row)
                continue
            (body,) = call.answers
            body["deaths"] = self.deaths
            self.after(client, lambda on_answer=on_answer, body=body: on_answer(body))
        self.calls = waiting
        group = self.table.group
        assert (group.leader_id in group.members) == bool(group.members)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def check_leader(self, deaths: int, generation: int, leader: str) -> None:
        """The successor of one that died may give a number again, as nobody had stored it."""
        identity = self.identities.get(leader, leader)
        for member in self.table.group.members.values():
            if member.member_id == leader:
                identity = member.instance_id or leader
        self.identities.setdefault(leader, identity)
        known = self.leaders.setdefault((deaths, generation), identity)
        assert known == identity, f"generation {generation} has two leaders"

    def share(self, generation: int, identity: str) -> bytes:
        return f"{generation} {identity}".encode()

    # ── trouble ─────────────────────────────────────────────────────────────────────────────────

    def trouble(self) -> None:
        if self.table.now_ms >= self.end_of_trouble_ms:
            self.table.storage_error = 0
            return
        random = self.random
        alive = [client for client in self.clients if client.is_alive]
        self.table.storage_error = 0
        kind = random.random()
        if not alive or (kind < 0.5 and len(alive) < CLIENTS):
            instance = f"i{random.randrange(20)}" if random.random() < 0.2 else None
            # Of two with one name, whichever came last.
            self.clients.append(Client(self, instance))
        elif kind < 0.65:
            random.choice(alive).leave()
        elif kind < 0.75:
            random.choice(alive).is_alive = False
        elif kind < 0.95:
            client = random.choice(alive)
            client.hangs_until_ms = self.table.now_ms + random.randint(1, 4 * SESSION_MS)
        elif kind < 0.98:
            self.table.storage_error = error_codes.NOT_CONTROLLER
        else:
            self.kill_coordinator()
        self.deliver()
        self.at(random.choice([1, 50, 1000, 1000, 5000]), None, self.trouble)

    def kill_coordinator(self) -> None:
        old = self.table
        self.deaths += 1
        self.table = Table(0, 1000)
        self.table.ids, self.table.now_ms, self.table.stored = old.ids, old.now_ms, old.stored
        if old.stored:
            self.table.group.replay(old.stored[-1])
            self.table.run(self.table.group.on_loaded(self.table.now_ms))
        if self.table.group.leader_id is not None:
            generation = self.table.group.generation_id
            self.check_leader(self.deaths, generation, self.table.group.leader_id)
        for client, _, _ in self.calls:
            self.after(client, client.join, RETRY_MS)
        self.calls = []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_clients_and_their_trouble(seed: int) -> None:
    world = World(seed)
    world.run(world.end_of_trouble_ms)
    for client in world.clients:
        client.hangs_until_ms = 0
    world.run(world.end_of_trouble_ms + QUIET_MS)
    group = world.table.group
    alive = [client for client in world.clients if client.is_alive]
    assert len(world.clients) > CLIENTS
    assert group.generation_id > 10
    assert group.state == STABLE
    assert sorted(group.members) == sorted(client.member_id for client in alive)
    assert {client.generation for client in alive} == {group.generation_id}
    assert all(client.is_stable for client in alive)
