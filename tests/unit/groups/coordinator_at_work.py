"""A coordinator of groups over real logs, with members that do as a test says."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups.coordinator import GroupCoordinator
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import START_MS, Call
from tests.unit.groups.led_partitions import led_partitions

NOT_COORDINATOR = error_codes.NOT_COORDINATOR
LOADING = error_codes.COORDINATOR_LOAD_IN_PROGRESS
SUBSCRIBED_TO_T = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
MINUTE_MS = 60_000
RETENTION_MS = 10080 * MINUTE_MS


class Broker:
    """A coordinator over real logs; `restarted` has another one read them."""

    def __init__(self, directory: Path, partitions: int = 1, **settings: str) -> None:
        self.now_ms = START_MS
        self.wall_ahead_ms = 0
        """What the wall clock shows more than the steady one."""
        self.appended: list[int] = []
        self.standing: Any = None
        self.grant: tuple[int, int] | None = None
        self.settings = {"group.initial.rebalance.delay.ms": "0"} | settings
        ids = itertools.count()
        self.partitions = led_partitions(directory, "__consumer_offsets", partitions)
        self.make_id = lambda prefix: f"{prefix}-{next(ids)}"
        self.restart()

    def restart(self, is_patient: bool = True) -> None:
        self.groups = GroupCoordinator(
            BrokerConfig(self.settings),
            lambda: self.now_ms + self.wall_ahead_ms,
            lambda: self.now_ms,
            self.make_id,
            lambda partition: self.appended.append(partition.partition),
            self.standing,
        )
        for partition in self.partitions:
            self.groups.on_partition(partition, len(self.partitions))
        while self.groups.loading and is_patient:
            self.groups.run_due()

    def wait(self, ms: int) -> None:
        end = self.now_ms + ms
        while self.groups.wake_ms <= end:
            self.now_ms = max(self.now_ms, self.groups.wake_ms)
            self.groups.run_due()
        self.now_ms = end

    def join(self, group: str = "g", member: str = "", **more: Any) -> Call:
        call = Call()
        call.api_version = 3
        body = {
            "group_id": group,
            "member_id": member,
            "group_instance_id": None,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIBED_TO_T}],
        } | more
        self.groups.classics.join(call, body, "client", "/host")
        return call

    def sync(
        self,
        member: str,
        group: str = "g",
        generation: int = 1,
        assignments: list[dict[str, Any]] | None = None,
    ) -> Call:
        """assignments: None: "mine" for the member."""
        if assignments is None:
            assignments = [{"member_id": member, "assignment": b"mine"}]
        call = Call()
        body = {
            "group_id": group,
            "member_id": member,
            "group_instance_id": None,
            "generation_id": generation,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": assignments,
        }
        self.groups.classics.sync(call, body)
        return call

    def stable(self, group: str = "g", **more: Any) -> str:
        call = self.join(group, **more)
        self.wait(0)
        member = call.answer["member_id"]
        assert self.sync(member, group, call.answer["generation_id"]).answer["error_code"] == 0
        return member

    def heartbeat(self, member: str, group: str = "g", generation: int = 1) -> int:
        error, self.grant = self.groups.classics.heartbeat(
            {
                "group_id": group,
                "member_id": member,
                "group_instance_id": None,
                "generation_id": generation,
            }
        )
        return error

    def commit(
        self,
        offset: int = 5,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        member: str = "",
        generation: int = -1,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
    ) -> int:
        body = {
            "group_id": group,
            "member_id": member,
            "group_instance_id": None,
            "generation_id_or_member_epoch": generation,
            "retention_time_ms": retention_ms,
        }
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": 3,
            "committed_metadata": metadata,
        }
        (error,) = self.groups.offsets.commit(body, version, [(topic, bytes(16), row)])
        return error

    def committed(self, group: str = "g", require_stable: bool = False) -> dict[Any, Any]:
        """(topic, partition) to offset or error code."""
        error, topics = self.groups.offsets.fetch(group, None, require_stable)
        assert error == 0
        return {
            (topic, partition): row[0] if row is not None else code
            for topic, rows in topics
            for partition, code, row in rows
        }

    def names(self) -> set[str]:
        return {group.group_id for group in self.groups.list_groups(set(), set())[1]}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    for partition in made.partitions:
        partition.log.close(clean=False)
