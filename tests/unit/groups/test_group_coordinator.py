"""The groups of one broker: found by partition, stored in its log, loaded from it, expired."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.classic.answers import described
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.coordinator import GroupCoordinator
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.offset_store import NO_EXPIRY
from shmbroker.groups.removal import REMOVALS_PER_STEP
from shmbroker.groups.timers import TIDY_FROM
from shmbroker.ids import ZERO_UUID
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.purgatory import NEVER_MS
from shmbroker.records.batch import control_batch, encode_batch, iterate_batches
from shmbroker.records.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, LOG_OVERHEAD
from shmbroker.replica.partition import Partition
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import START_MS, Call

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
        file_ids = itertools.count(1)
        self.partitions = []
        for index in range(partitions):
            path = directory / f"__consumer_offsets-{index}"
            path.mkdir()
            config = LogConfig(effective_topic_configs({}, ()))
            log = PartitionLog.open(str(path), config, file_ids=file_ids)
            partition = Partition(b"", "__consumer_offsets", b"", index, log)
            partition.is_leader = True
            partition.leader_epoch = 1
            partition.replicas = partition.in_sync_replicas = (1,)
            self.partitions.append(partition)
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

    def sync(self, member: str, group: str = "g", generation: int = 1) -> Call:
        call = Call()
        body = {
            "group_id": group,
            "member_id": member,
            "group_instance_id": None,
            "generation_id": generation,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": [{"member_id": member, "assignment": b"mine"}],
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


# ── whose group ───────────────────────────────────────────────────────────────────────────────────


def test_only_groups_of_partitions_led_here_are_served(tmp_path: Path) -> None:
    broker = Broker(tmp_path, partitions=3)
    broker.groups.on_partition_gone(1)
    for number in range(30):
        group = f"group-{number}"
        wanted = NOT_COORDINATOR if group_partition(group, 3) == 1 else 0
        assert broker.commit(group=group) == wanted
        call = broker.join(group)
        if wanted:
            assert call.answer["error_code"] == wanted
            assert broker.groups.describe(group) == (wanted, None)
            assert broker.groups.removal.delete(group) == wanted
            assert broker.groups.classics.leave(group, [("m", None)]) == (wanted, [])
            assert broker.groups.offsets.delete_offsets(group, []) == (wanted, [])
            assert broker.groups.offsets.fetch(group, None, False)[0] == wanted
            assert broker.sync("m", group).answer["error_code"] == wanted
            assert broker.heartbeat("m", group) == wanted


def test_a_broker_without_the_topic_coordinates_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path, partitions=0)
    assert broker.commit() == NOT_COORDINATOR
    assert broker.groups.list_groups(set(), set()) == (0, [])


def test_groups_wait_for_partitions_that_are_being_opened(tmp_path: Path) -> None:
    for partitions in (0, 3):
        directory = tmp_path / str(partitions)
        directory.mkdir()
        broker = Broker(directory, partitions)
        for index in range(partitions):
            broker.groups.on_partition_gone(index)
        broker.groups.is_opening = True
        assert broker.commit() == LOADING
        assert broker.heartbeat("m") == 0
        assert broker.groups.list_groups(set(), set()) == (LOADING, [])
        broker.groups.is_opening = False
        assert broker.commit() == NOT_COORDINATOR


def test_a_group_needs_a_name_except_for_offsets(broker: Broker) -> None:
    nameless = error_codes.INVALID_GROUP_ID
    assert broker.join("").answer["error_code"] == nameless
    assert broker.sync("m", "").answer["error_code"] == nameless
    assert broker.heartbeat("m", "") == nameless
    assert broker.groups.classics.leave("", [])[0] == nameless
    assert broker.groups.offsets.delete_offsets("", [])[0] == nameless
    assert broker.commit(group="") == 0
    assert broker.committed("") == {("t", 0): 5}
    assert broker.groups.removal.delete("") == 0


@pytest.mark.parametrize(
    ("session_ms", "is_allowed"),
    [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)],
)
def test_a_session_has_its_limits(broker: Broker, session_ms: int, is_allowed: bool) -> None:
    call = broker.join(session_timeout_ms=session_ms)
    broker.wait(0)
    wanted = 0 if is_allowed else error_codes.INVALID_SESSION_TIMEOUT
    assert call.answer["error_code"] == wanted


def test_nobody_is_known_in_a_group_that_there_is_not(broker: Broker) -> None:
    unknown = error_codes.UNKNOWN_MEMBER_ID
    assert broker.join(member="ghost").answer["error_code"] == unknown
    assert broker.sync("ghost").answer["error_code"] == unknown
    assert broker.heartbeat("ghost") == unknown
    leaving = [("ghost", None), ("", "i")]
    assert broker.groups.classics.leave("g", leaving) == (0, [unknown, unknown])
    assert broker.commit(generation=1) == error_codes.GROUP_ID_NOT_FOUND
    assert broker.commit(generation=1, version=8) == error_codes.ILLEGAL_GENERATION
    assert broker.groups.describe("g") == (0, None)
    assert broker.names() == set()


def test_a_group_that_could_not_begin_leaves_nothing(broker: Broker) -> None:
    assert broker.join(protocols=[]).answer["error_code"] != 0
    assert broker.commit(metadata="x" * 4097) == error_codes.OFFSET_METADATA_TOO_LARGE
    assert broker.names() == set()
    assert broker.appended == []


# ── what survives ─────────────────────────────────────────────────────────────────────────────────


def test_members_and_offsets_survive_the_coordinator(broker: Broker) -> None:
    member = broker.stable()
    broker.commit(7, member=member, generation=1)
    broker.commit(9, partition=3, member=member, generation=1, metadata="note")
    broker.commit(1, group="simple", topic="u")
    before = described(broker.groups.groups["g"])
    broker.restart()
    assert described(broker.groups.groups["g"]) == before
    assert broker.committed() == {("t", 0): 7, ("t", 3): 9}
    assert broker.committed("simple") == {("u", 0): 1}
    assert broker.names() == {"g", "simple"}
    _, [(_, [(_, _, row)])] = broker.groups.offsets.fetch("g", [("t", [3])], False)
    assert row == (9, 3, "note", START_MS, -1, bytes(16))
    assert broker.heartbeat(member) == 0
    broker.wait(10_000)
    assert broker.heartbeat(member) == error_codes.UNKNOWN_MEMBER_ID
    broker.restart()
    group = broker.groups.groups["g"]
    assert (group.state, group.generation_id) == ("Empty", 2)


def test_the_last_commit_counts(broker: Broker) -> None:
    for offset in (5, 3, 8, 6):
        broker.commit(offset)
    assert broker.committed() == {("t", 0): 6}
    broker.restart()
    assert broker.committed() == {("t", 0): 6}


def test_what_was_deleted_stays_deleted(broker: Broker) -> None:
    broker.commit(1)
    broker.commit(2, partition=1)
    broker.commit(3, group="other")
    assert broker.groups.offsets.delete_offsets("g", [("t", 0), ("u", 9)]) == (0, [0, 0])
    assert broker.groups.removal.delete("other") == 0
    for _ in range(2):
        assert broker.committed() == {("t", 1): 2}
        assert broker.committed("other") == {}
        assert broker.names() == {"g"}
        broker.restart()


def test_a_log_of_many_chunks_is_loaded_over_several_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "CHUNK_BYTES", 1000)
    member = broker.stable("other")
    for number in range(100):
        broker.commit(number, partition=number % 7)
    broker.restart(is_patient=False)
    turns = 0
    while broker.groups.loading:
        assert broker.groups.wake_ms == 0
        assert broker.commit() == LOADING
        assert broker.join().answer["error_code"] == LOADING
        assert broker.groups.list_groups(set(), set()) == (LOADING, [])
        assert broker.heartbeat(member, "other") == 0, "nobody need rejoin for this"
        broker.groups.run_due()
        turns += 1
    assert turns > 5
    assert broker.committed() == {("t", index): 93 + (index + 5) % 7 for index in range(7)}
    assert broker.heartbeat(member, "other") == 0


def test_transactional_offsets_count_with_their_marker(broker: Broker) -> None:
    def write(offset: int, partition: int, producer_id: int) -> None:
        value = group_log.offset_value((offset, -1, "", START_MS, NO_EXPIRY, ZERO_UUID))
        record = group_log.offset_key("g", "t", partition), value
        append(
            encode_batch(
                [(START_MS, *record, ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )

    def append(batch: bytes) -> None:
        broker.partitions[0].log.append(memoryview(batch), 0, START_MS, 1, START_MS)

    def end(producer_id: int, kind: int) -> None:
        append(
            control_batch(
                kind, b"\0\0\0\0\0\0", timestamp=START_MS, producer_id=producer_id, producer_epoch=0
            )
        )

    broker.commit(1, partition=0)
    write(10, 0, 71)
    write(20, 1, 72)
    write(30, 2, 73)
    write(40, 3, 71)
    broker.commit(2, partition=3)
    end(71, CONTROL_COMMIT)
    end(72, CONTROL_ABORT)
    broker.restart()
    assert broker.committed() == {("t", 0): 10, ("t", 3): 2}
    unstable = error_codes.UNSTABLE_OFFSET_COMMIT
    _, [(_, rows)] = broker.groups.offsets.fetch("g", [("t", [2, 1])], True)
    assert rows == [(2, unstable, None), (1, 0, None)]


def test_records_of_other_kinds_and_damage_are_passed_over(broker: Broker) -> None:
    records = [
        (b"\0\3\0\1g", b"\0\0"),
        (b"\x7f\0", b""),
        (b"\0", b"\0\0"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\1short"),
    ]
    assert group_log.append(broker.partitions[0], records, START_MS) == 0
    broker.commit(4)
    broker.restart()
    assert broker.committed() == {("t", 0): 4}


def test_a_log_that_cannot_be_read_is_not_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.commit()

    def fail(*_: Any) -> None:
        raise StorageFault("no")

    monkeypatch.setattr(PartitionLog, "read", fail)
    broker.restart()
    assert broker.commit() == NOT_COORDINATOR
    assert broker.groups.wake_ms == NEVER_MS


# ── storing ───────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_stored_is_not_there(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.commit(1)

    def fail(*_: Any) -> None:
        raise StorageFault("full")

    call = broker.join()
    broker.wait(0)
    with monkeypatch.context() as context:
        context.setattr(PartitionLog, "append", fail)
        assert broker.commit(2, group="h") == NOT_COORDINATOR
        assert broker.sync(call.answer["member_id"]).answer["error_code"] == NOT_COORDINATOR
        assert broker.groups.offsets.delete_offsets("g", [("u", 0)]) == (0, [0])
    assert broker.committed() == {("t", 0): 1}
    assert broker.names() == {"g"}
    again = broker.join(member=call.answer["member_id"])
    assert again.answer["generation_id"] == 2
    assert broker.sync(call.answer["member_id"], generation=2).answer["assignment"] == b"mine"


def test_every_append_is_told_to_whoever_reads(broker: Broker) -> None:
    broker.commit()
    assert broker.appended == [0]
    assert broker.partitions[0].high_watermark == broker.partitions[0].log.log_end_offset == 1


def test_more_offsets_than_a_batch_may_hold_go_in_several(broker: Broker) -> None:
    broker.partitions[0].message_bytes_max = 4000
    for number in range(200):
        broker.commit(number, partition=number)
    offsets = broker.groups.offsets
    assert offsets.delete_offsets("g", [("t", each) for each in range(200)]) == (0, [0] * 200)
    log = broker.partitions[0].log
    data = log.active.read_bytes(0, log.active.size)
    sizes = [header[1] + LOG_OVERHEAD for _, header in iterate_batches(data)]
    assert len(sizes) > 201
    assert max(sizes) <= 4000
    assert broker.commit(metadata="x" * 4000) == error_codes.UNKNOWN_SERVER_ERROR


def test_too_few_in_sync_replicas_take_no_commit(broker: Broker) -> None:
    partition = broker.partitions[0]
    partition.replicas, partition.min_in_sync_replicas = (1, 2, 3), 2
    partition.count_in_sync()
    assert broker.commit() == error_codes.COORDINATOR_NOT_AVAILABLE


def test_who_waits_is_sent_away_when_the_partition_goes(broker: Broker) -> None:
    broker.stable()
    waiting = broker.join()
    assert waiting.answer is None
    broker.partitions[0].is_leader = False
    assert broker.commit() == NOT_COORDINATOR
    broker.groups.on_partition(broker.partitions[0], 1)
    assert waiting.answer["error_code"] == NOT_COORDINATOR
    assert broker.names() == set()
    broker.wait(60_000)


# ── expiry and deletion ───────────────────────────────────────────────────────────────────────────


def test_offsets_of_a_simple_group_expire_by_their_age(broker: Broker) -> None:
    broker.commit(1)
    broker.wait(RETENTION_MS // 2)
    broker.commit(2, partition=1)
    broker.wait(RETENTION_MS // 2 + 2 * MINUTE_MS * 10)
    assert broker.committed() == {("t", 1): 2}
    broker.wait(RETENTION_MS)
    assert broker.names() == set()
    broker.restart()
    assert broker.names() == set()


def test_offsets_of_a_live_group_stay(broker: Broker) -> None:
    member = broker.stable(session_timeout_ms=1_800_000)
    broker.commit(1, member=member, generation=1)
    broker.commit(2, topic="unread", member=member, generation=1)
    for _ in range(RETENTION_MS // 1_700_000 + 10):
        broker.wait(1_700_000)
        assert broker.heartbeat(member) == 0
    assert broker.committed() == {("t", 0): 1}
    broker.groups.classics.leave("g", [(member, None)])
    broker.wait(RETENTION_MS - 1)
    assert broker.committed() == {("t", 0): 1}, "counted from when it became empty"
    broker.wait(20 * MINUTE_MS)
    assert broker.names() == set()


def test_a_commit_may_bring_its_own_time(broker: Broker) -> None:
    broker.commit(1, retention_ms=5 * MINUTE_MS, version=2)
    broker.restart()
    broker.wait(10 * MINUTE_MS)
    assert broker.names() == set()


def test_only_empty_groups_are_deleted(broker: Broker) -> None:
    member = broker.stable()
    assert broker.groups.removal.delete("g") == error_codes.NON_EMPTY_GROUP
    broker.groups.classics.leave("g", [(member, None)])
    assert broker.groups.removal.delete("g") == 0
    assert broker.groups.removal.delete("g") == error_codes.GROUP_ID_NOT_FOUND


def test_offsets_that_are_in_use_are_not_deleted(broker: Broker) -> None:
    member = broker.stable()
    broker.commit(1, member=member, generation=1)
    broker.commit(2, topic="u", member=member, generation=1)
    refused = error_codes.GROUP_SUBSCRIBED_TO_TOPIC
    assert broker.groups.offsets.delete_offsets("g", [("t", 0), ("u", 0)]) == (0, [refused, 0])
    assert broker.committed() == {("t", 0): 1}
    assert broker.groups.offsets.delete_offsets("x", [])[0] == error_codes.GROUP_ID_NOT_FOUND
    broker.stable("connect", protocol_type="connect")
    assert broker.groups.offsets.delete_offsets("connect", [])[0] == error_codes.NON_EMPTY_GROUP


def test_offsets_of_a_deleted_topic_go_with_it(broker: Broker) -> None:
    broker.commit(1)
    broker.commit(2, topic="u")
    broker.commit(3, group="h")
    broker.groups.on_topics_deleted({"t"})
    for _ in range(2):
        assert broker.committed() == {("u", 0): 2}
        assert broker.committed("h") == {}
        broker.restart()


def test_tombstones_of_many_offsets_of_a_deleted_topic_come_in_steps(broker: Broker) -> None:
    many = 4 * REMOVALS_PER_STEP
    for at in range(many):
        broker.commit(at, "gh"[at % 2], partition=at // 2)
    broker.commit(7, topic="u")
    log = broker.partitions[0].log
    begin = before = log.log_end_offset
    broker.groups.on_topics_deleted({"t"})
    assert broker.committed() == {("u", 0): 7} and broker.committed("h") == {}
    steps = 0
    while broker.groups.wake_ms == 0:
        if not steps:
            broker.commit(8)  # there is a topic of that name again, and this offset is of it
        before = log.log_end_offset
        broker.groups.run_due()
        assert log.log_end_offset - before <= REMOVALS_PER_STEP
        steps += 1
    assert steps == many // REMOVALS_PER_STEP - 1  # the first is taken at once
    assert log.log_end_offset - begin == many  # a tombstone for all but one, and its commit
    for _ in range(2):
        assert broker.committed() == {("t", 0): 8, ("u", 0): 7}
        assert broker.committed("h") == {}
        broker.restart()


def test_groups_are_listed_by_state_and_type(broker: Broker) -> None:
    broker.stable()
    broker.commit(group="simple")

    def found(states: set[str], types: set[str]) -> set[str]:
        return {group.group_id for group in broker.groups.list_groups(states, types)[1]}

    assert found(set(), set()) == {"g", "simple"}
    assert found({"stable"}, set()) == {"g"}
    assert found({"empty", "dead"}, {"classic", "share"}) == {"simple"}
    assert found(set(), {"consumer"}) == set()


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_timer_that_is_due_again_at_once_waits_for_the_next_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stable()
    turns = []

    def on_time(group: ClassicGroup, now_ms: int) -> list[Any]:
        turns.append(now_ms)
        group.wake_ms = now_ms
        return []

    monkeypatch.setattr(ClassicGroup, "on_time", on_time)
    broker.now_ms += 10_000
    for count in (1, 2, 3):
        broker.groups.run_due()
        assert len(turns) == count


def test_names_of_all_lengths_are_served(broker: Broker) -> None:
    name = "n" * 32_767
    member = broker.stable(name)
    assert broker.commit(group=name, member=member, generation=1) == 0
    broker.restart()
    assert broker.heartbeat(member, name) == 0
    assert broker.committed(name) == {("t", 0): 5}


@pytest.mark.parametrize("retention_ms", [-(2**63), -2, 0, 2**63 - 1])
def test_any_retention_time_is_stored(broker: Broker, retention_ms: int) -> None:
    assert broker.commit(retention_ms=retention_ms, version=2) == 0
    broker.restart()
    assert broker.committed() == {("t", 0): 5}
    broker.wait(10 * MINUTE_MS)
    assert (broker.names() == {"g"}) is (retention_ms > 0)


def test_heartbeats_leave_no_timers_behind(broker: Broker) -> None:
    members = [(f"g{number}", broker.stable(f"g{number}")) for number in range(20)]
    timers = len(broker.groups.table.timers)
    for _ in range(50):
        broker.wait(3000)
        assert all(broker.heartbeat(member, group) == 0 for group, member in members)
    assert len(broker.groups.table.timers) <= timers


def test_timers_of_groups_that_are_gone_do_not_pile_up(broker: Broker) -> None:
    timers = broker.groups.table.timers
    members = [(f"g{number}", broker.stable(f"g{number}")) for number in range(20)]
    for _ in range(2 * TIDY_FROM // len(members)):
        broker.groups.on_partition_gone(0)
        broker.groups.on_partition(broker.partitions[0], 1)
        broker.wait(1)
    assert len(timers) <= TIDY_FROM
    assert all(broker.heartbeat(member, group) == 0 for group, member in members)
    broker.wait(10 * MINUTE_MS)
    gone = error_codes.UNKNOWN_MEMBER_ID
    assert all(broker.heartbeat(member, group) == gone for group, member in members)


HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize("jump_ms", (-HOUR_MS, HOUR_MS))
def test_a_jump_of_the_wall_clock_ends_no_session_and_prolongs_none(
    broker: Broker, jump_ms: int
) -> None:
    member = broker.stable()
    broker.wall_ahead_ms += jump_ms
    broker.wait(9_000)
    assert broker.heartbeat(member) == 0
    broker.wait(9_000)
    assert broker.groups.groups["g"].members
    broker.wait(1_001)
    assert not broker.groups.groups["g"].members


@pytest.mark.parametrize("jump_ms", (-HOUR_MS, HOUR_MS))
def test_a_group_that_is_empty_keeps_its_offsets_over_jumps_and_coordinators(
    broker: Broker, jump_ms: int
) -> None:
    """The stamps in its records are the wall clock's, its own time is not."""
    member = broker.stable()
    broker.commit(5, member=member, generation=1)
    broker.groups.classics.leave("g", [(member, None)])
    group = broker.groups.groups["g"]
    emptied_ms = broker.now_ms
    assert group.state == "Empty" and group.state_since_ms == emptied_ms
    broker.wall_ahead_ms += jump_ms
    broker.restart()
    group = broker.groups.groups["g"]
    assert group.state_since_ms + broker.wall_ahead_ms == emptied_ms
    broker.wait(RETENTION_MS - max(jump_ms, 0) - HOUR_MS)
    assert broker.groups.groups["g"].owner.store.of_group("g")
    broker.wait(3 * HOUR_MS)
    assert "g" not in broker.groups.groups
