"""A group with its clock, and members that keep what they are answered: for tests of the group."""

from typing import Any

from shmbroker.groups.classic.effects import Effect, Reply, StoreAssigned
from shmbroker.groups.classic.group import ClassicGroup, ClassicSettings
from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.joining import on_join
from shmbroker.groups.classic.syncing import on_sync

START_MS = 1_000_000
NO_SHARD: Any = None
"""A group does not look at the partition that it belongs to."""
SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Call:
    """A parked request; `answers` must end with exactly one."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []

    def reply(self, body: dict[str, Any]) -> None:
        self.answers.append(body)

    @property
    def answer(self) -> dict[str, Any] | None:
        assert len(self.answers) <= 1
        return self.answers[0] if self.answers else None


def code(call: Call) -> int:
    """The error that a call was answered with; 0: none."""
    assert call.answer is not None
    error_code: int = call.answer["error_code"]
    return error_code


class Table:
    """A group and the log it stores to; `now_ms` is moved by `wait`."""

    def __init__(self, delay_ms: int = 0, size_max: int = 100) -> None:
        self.ids = 0
        self.now_ms = START_MS
        self.stored: list[dict[str, Any]] = []
        self.storage_error = 0
        settings = ClassicSettings(delay_ms, size_max)
        self.group = ClassicGroup("group", settings, self.make_id, START_MS, NO_SHARD)

    def successor(self, size_max: int = 100) -> "Table":
        """The group as another coordinator loads it."""
        table = Table(size_max=size_max)
        table.group.replay(self.stored[-1])
        table.run(table.group.on_loaded(table.now_ms))
        return table

    def make_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                effect.call.reply(effect.body)
                continue
            if not self.storage_error:
                assignments = effect.assignments if isinstance(effect, StoreAssigned) else None
                self.stored.append(value_of(self.group, assignments))
            self.run(self.group.on_stored(effect, self.storage_error, self.now_ms))

    def wait(self, ms: int) -> None:
        """Let time pass, with every timer at its time."""
        end = self.now_ms + ms
        while self.group.wake_ms <= end:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self.run(self.group.on_time(self.now_ms))
        self.now_ms = end

    def join_two(self, **more: Any) -> tuple[str, str]:
        """Two members join: the leader, and the other."""
        calls = [self.join(**more) for _ in range(2)]
        self.wait(100)
        leader: str = calls[0].answer["leader"]
        [follower] = {each.answer["member_id"] for each in calls} - {leader}
        return leader, follower

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        version: int = 3,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Call:
        """Version 3 by default: new members are in without being given an id first."""
        call = Call()
        body = {
            "member_id": member_id,
            "group_instance_id": instance,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": rebalance_ms,
            "protocol_type": protocol_type,
            "protocols": [{"name": name, "metadata": data} for name, data in protocols],
        }
        self.run(
            on_join(
                self.group, call, body, version, "client", "/host", self.now_ms, lambda more: True
            )
        )
        return call

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        generation: int | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Call:
        call = Call()
        rows = [{"member_id": each, "assignment": a} for each, a in (assignments or {}).items()]
        self.run(
            on_sync(
                self.group,
                call,
                member_id,
                instance,
                self.group.generation_id if generation is None else generation,
                protocol_type,
                protocol_name,
                rows,
            )
        )
        return call

    def heartbeat(
        self, member_id: str, instance: str | None = None, generation: int | None = None
    ) -> int:
        known = self.group.generation_id
        return self.group.on_heartbeat(
            member_id, instance, known if generation is None else generation, self.now_ms
        )

    def leave(self, *leaving: tuple[str, str | None]) -> list[int]:
        errors, effects = self.group.on_leave(list(leaving), self.now_ms)
        self.run(effects)
        return errors

    def commit(self, member_id: str = "", generation: int = -1, instance: str | None = None) -> int:
        return self.group.on_commit(member_id, instance, generation, self.now_ms)

    def stable(self, count: int, **more: Any) -> list[str]:
        """A stable group of so many members, the leader first."""
        calls = [self.join(**more) for _ in range(count)]
        self.wait(100)
        ids = [call.answer["member_id"] for call in calls]
        leader = self.group.leader_id
        ids.sort(key=lambda each: each != leader)
        syncs = [self.sync(each, {i: i.encode() for i in ids}) for each in reversed(ids)]
        assert all(sync.answer["error_code"] == 0 for sync in syncs)
        assert self.group.state == "Stable"
        return ids


def static_group(table: Table, *instances: str) -> list[str]:
    """A stable group of static members: their ids, in the order of their instances."""
    calls = [table.join(instance=each) for each in instances]
    table.wait(100)
    ids = [call.answer["member_id"] for call in calls if call.answer]
    leader = table.group.leader_id
    for each in sorted(ids, key=lambda each: each == leader):
        table.sync(each, {i: i.encode() for i in ids})
    assert table.group.state == "Stable"
    return ids
