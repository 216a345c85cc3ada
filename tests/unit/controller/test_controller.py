"""Turns of controllers: who leads, what is published, who is answered when, and how one ends."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.controller.tell_log_ends import HAS
from shmbroker.controller.controller import REST_S, STOP_WAIT_S
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum import LEADER
from shmbroker.controller.requests import APPLY_WAIT_S
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    EXECUTE_FLAG_BY_USE,
    EXECUTE_FLAG_PARTS,
    EXECUTE_PART,
    EXECUTED_FLAG_CLOSE,
    EXECUTED_FLAG_NOT_EXECUTED,
    TOKEN,
)
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import QUORUM_STATE
from shmbroker.shm.counters import (
    DISK,
    DISK_IS_FULL,
    LIVENESS_NS,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
    STATE_STOPPING,
)
from shmbroker.wire.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    NOT_CONTROLLER,
)
from tests.support.controller_family import ControllerFamily

CREATE_TOPICS = (19, 7, "CreateTopics")
THREE = (1, 2, 3)

Make = Callable[..., ControllerFamily]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ControllerFamily] = []

    def make(brokers: int = 1, controllers: int = 1, **settings: str) -> ControllerFamily:
        made.append(ControllerFamily(tmp_path, brokers, controllers, **settings))
        return made[-1]

    yield make
    for family in made:
        family.close()


def topic(name: str, *, partitions: int = 1, replicas: int = 1) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas}


def create(*topics: dict[str, Any]) -> dict[str, Any]:
    return {"topics": list(topics), "timeout_ms": 1000, "validate_only": False}


def at_work(family: ControllerFamily) -> int:
    """Register all brokers with the active controller, which there soon is; its id."""
    active = family.until(family.active)
    for number in family.brokers:
        asked = family.register(number, of=active.number)
        assert family.until(asked.answer)["error_code"] == 0
    family.apply()
    family.until(lambda: not active.brokers.pending())
    return int(active.number)


def all_of(family: ControllerFamily) -> list[Any]:
    return list(family.controllers.values())


def leaders(family: ControllerFamily, name: str, of: int) -> list[int]:
    """Of a topic's partitions, as a controller knows them."""
    image = family.controllers[of].follower.image
    return [partition.leader_id for partition in image.topics_by_name[name].partitions]


# ── one controller ──────────────────────────────────────────────────────────────────────────────


def test_the_only_voter_is_active_before_its_first_turn_and_rests_in_it(make: Make) -> None:
    family = make()
    assert family.counters.metadata_leader() == (1, 1, True)
    committed = family.controllers[1].voter.committed_offset
    assert family.words[METADATA_END_OFFSET_WORD] == committed > 0
    assert family.words[family.counters.at(family.slots[1], STATE)] == STATE_RUNNING
    assert family.controllers[1].turn() == REST_S


def test_a_turn_with_work_is_followed_by_another_at_once(make: Make) -> None:
    family = make()
    asked = family.register(1)
    assert family.controllers[1].turn() == 0.0
    assert asked.answer() == {
        "throttle_time_ms": 0,
        "error_code": 0,
        "broker_epoch": family.controllers[1].follower.image.brokers[1].broker_epoch,
    }
    assert family.controllers[1].turn() > 0.0


def test_a_decision_is_published_at_once_and_answered_when_all_have_applied_it(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    before = family.words[METADATA_END_OFFSET_WORD]
    asked = family.ask(*CREATE_TOPICS, create(topic("t")))
    family.turn()
    assert family.words[METADATA_END_OFFSET_WORD] > before
    family.apply(1)
    family.turn()
    assert asked.answer() is None
    family.apply(2)
    family.turn()
    assert [row["name"] for row in asked.answer()["topics"]] == ["t"]


def test_brokers_that_apply_nothing_are_waited_for_up_to_a_minute(make: Make) -> None:
    family = make()
    at_work(family)
    asked = family.ask(*CREATE_TOPICS, create(topic("t")))
    family.turn()
    family.clock.sleep(APPLY_WAIT_S - 1)
    family.sign()
    family.turn()
    assert asked.answer() is None
    family.clock.sleep(1)
    family.sign()
    family.turn()
    assert asked.answer()["topics"][0]["error_code"] == 0


def test_a_broker_that_hangs_keeps_nobody_waiting(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    asked = family.ask(*CREATE_TOPICS, create(topic("t", replicas=2)))
    family.turn()
    family.apply(1)
    for _ in range(300):
        family.sign(2)
        family.clock.sleep(0.1)
        family.turn()
        family.apply(1)
    assert family.controllers[1].brokers.hanging == {2}
    assert asked.answer()["topics"][0]["error_code"] == 0
    assert leaders(family, "t", 1) == [1]
    family.until(lambda: not family.controllers[1].brokers.hanging)
    assert not family.controllers[1].follower.image.brokers[2].is_fenced


def test_the_silence_of_a_standstill_is_nobodys_death(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    family.clock.sleep(3600)
    family.turn()
    assert not family.controllers[1].brokers.hanging


def test_a_broker_that_dies_is_fenced_in_the_turn_that_sees_it(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    (was,) = leaders(family, "t", 1)
    family.die(was)
    family.turn()
    assert leaders(family, "t", 1) == [3 - was]
    assert family.controllers[1].follower.image.brokers[was].is_fenced


def test_a_broker_without_copies_elsewhere_is_not_fenced_when_it_dies(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t"))).answer, 90)
    family.die(1)
    family.turn()
    assert not family.controllers[1].follower.image.brokers[1].is_fenced


def test_others_lead_what_a_broker_without_room_leads(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    (was,) = leaders(family, "t", 1)
    family.words[family.counters.at(family.brokers[was], DISK)] = DISK_IS_FULL
    family.until(lambda: leaders(family, "t", 1) == [3 - was])


def test_a_long_request_takes_a_step_a_turn_and_others_come_between(make: Make) -> None:
    family = make()
    at_work(family)
    many = [topic(f"t{at}", partitions=100) for at in range(30)]
    asked = family.ask(*CREATE_TOPICS, create(*many))
    family.turn()
    first = len(family.controllers[1].follower.image.topics_by_name)
    assert 0 < first < 30
    short = family.ask(46, 0, "ListPartitionReassignments", {"timeout_ms": 1, "topics": None})
    family.turn()
    assert short.answer() is not None and asked.answer() is None


def test_one_topic_of_very_many_partitions_takes_turns_and_others_come_between(make: Make) -> None:
    family = make()
    at_work(family)
    committed = family.controllers[1].voter.committed_offset
    asked = family.ask(*CREATE_TOPICS, create(topic("large", partitions=10_000)))
    turns = 0
    while family.words[METADATA_END_OFFSET_WORD] < committed + 10_000:
        others = family.ask(*CREATE_TOPICS, create(topic(f"t{turns}")), flags=EXECUTE_FLAG_BY_USE)
        assert family.controllers[1].turn() == 0
        assert f"t{turns}" in family.controllers[1].follower.image.topics_by_name
        assert asked.answer() is None and others.answer() is None
        turns += 1
        assert turns < 1000
    assert turns > 5 and len(leaders(family, "large", 1)) == 10_000
    family.apply()
    family.turn()
    assert asked.answer()["topics"][0]["num_partitions"] == 10_000


def test_the_answer_about_very_many_topics_has_them_in_their_order(make: Make) -> None:
    family = make()
    at_work(family)
    image = lambda: family.controllers[1].follower.image  # noqa: E731
    many = [topic(f"t{at}", partitions=4) for at in range(300)]
    bad = [topic("no good"), topic("t7", partitions=4)]  # the latter twice
    asked = family.ask(19, 4, "CreateTopics", create(*many, *bad))
    family.turn()
    assert 0 < len(image().topics_by_name) < 299
    while len(image().topics_by_name) < 299:
        family.turn()
    family.apply()
    while asked.flags() is None:
        family.turn()
    rows = asked.answer()["topics"]
    names = [*(row["name"] for row in many), "no good"]
    assert [row["name"] for row in rows] == names
    refused = {row["name"]: row["error_code"] for row in rows if row["error_code"]}
    assert refused == {"t7": INVALID_REQUEST, "no good": INVALID_TOPIC_EXCEPTION}


def test_very_many_topics_that_somebody_uses_are_created_in_turns(make: Make) -> None:
    family = make(num_partitions="3")
    at_work(family)
    names = [f"t{at}" for at in range(550)]
    asked = family.ask(*CREATE_TOPICS, create(*map(topic, names)), flags=EXECUTE_FLAG_BY_USE)
    family.turn()
    assert 0 < len(family.controllers[1].follower.image.topics_by_name) <= 2 * 250
    family.turn()
    assert set(names) == set(family.controllers[1].follower.image.topics_by_name)
    family.apply()
    family.turn()
    assert asked.answer() == {"throttle_time_ms": 0, "topics": []}


def test_the_vote_that_is_lost_between_two_steps_ends_a_request(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    controller = family.controllers[number]
    asked = family.ask(*CREATE_TOPICS, create(topic("large", partitions=10_000)), of=number)
    controller.turn()
    assert asked.flags() is None
    controller.voter.resign()
    family.until(lambda: asked.flags() is not None)
    assert asked.answer()["topics"][0]["error_code"] == NOT_CONTROLLER
    family.until(family.active)
    assert all(
        "large" not in each.follower.image.topics_by_name for each in family.controllers.values()
    )


def test_topics_that_somebody_uses_are_created_with_the_defaults(make: Make) -> None:
    family = make(num_partitions="3")
    at_work(family)
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), flags=EXECUTE_FLAG_BY_USE)
    family.turn()
    family.apply()
    family.turn()
    assert asked.answer() == {"throttle_time_ms": 0, "topics": []}
    assert len(leaders(family, "t", 1)) == 3


def test_brokers_that_sleep_are_woken_by_a_decision(make: Make) -> None:
    family = make()
    at_work(family)
    family.doorbells[family.brokers[1]].say_sleeping()
    family.ask(*CREATE_TOPICS, create(topic("t")))
    family.turn()
    assert os.eventfd_read(family.eventfds[family.brokers[1]]) == 1


def test_every_turn_leaves_a_sign_of_life(make: Make) -> None:
    family = make()
    liveness = family.counters.at(family.slots[1], LIVENESS_NS)
    for _ in range(3):
        family.clock.sleep(1)
        family.controllers[1].turn()
        assert family.words[liveness] == int(family.clock.now * 1e9)


def test_what_one_broker_changes_the_others_read_in_the_same_turn(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    image = family.controllers[1].follower.image
    at = image.topics_by_name["t"].partitions[0]
    leader = at.leader_id
    epoch = image.brokers[leader].broker_epoch
    row = {
        "partition_index": 0,
        "leader_epoch": at.leader_epoch,
        "new_isr_with_epochs": [{"broker_id": leader, "broker_epoch": epoch}],
        "leader_recovery_state": 0,
        "partition_epoch": at.partition_epoch,
    }
    topics = [{"topic_id": image.topics_by_name["t"].topic_id, "partitions": [row]}]
    body = {"broker_id": leader, "broker_epoch": epoch, "topics": topics}
    asked = family.ask(56, 3, "AlterPartition", body, broker=leader)
    before = family.words[METADATA_END_OFFSET_WORD]
    family.controllers[1].turn()
    assert family.words[METADATA_END_OFFSET_WORD] == before + 1
    assert asked.answer()["topics"][0]["partitions"][0]["isr"] == [leader]


def test_a_broker_may_stop_when_all_know_who_leads_in_its_place(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    (was,) = leaders(family, "t", 1)
    epoch = family.controllers[1].follower.image.brokers[was].broker_epoch
    body = {"broker_id": was, "broker_epoch": epoch, "want_shut_down": True}
    asked = family.ask(63, 1, "BrokerHeartbeat", body, broker=was)
    family.turn()
    assert leaders(family, "t", 1) == [3 - was]
    assert asked.answer() is None
    family.apply()
    family.turn()
    assert asked.answer()["should_shut_down"]


def test_half_a_request_is_forgotten_with_the_broker_that_has_sent_it(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    token = family.next_token()
    family.ends[2, 1].send(EXECUTE_PART, TOKEN.pack(token) + b"half a request")
    family.turn()
    family.die(2)
    family.turn()
    family.succeed(2)
    parts = EXECUTE_FLAG_PARTS
    body = {"timeout_ms": 1, "topics": None}
    asked = family.ask(46, 0, "ListPartitionReassignments", body, broker=2, flags=parts)
    family.turn()
    assert asked.answer()["error_code"] == 0


def test_a_broker_in_doubt_serves_in_the_turn_in_which_all_is_known(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    family.end(1)
    family = make(brokers=2)
    controller = family.controllers[1]
    for number in family.brokers:
        family.register(number)
        controller.turn()
    image = controller.follower.image
    assert all(broker.is_fenced for broker in image.brokers.values())
    for number in family.brokers:
        tell_ends(family, number, image.brokers[number].broker_epoch)
    assert not any(broker.is_fenced for broker in controller.follower.image.brokers.values())
    assert leaders(family, "t", 1) == [2]


def test_a_broker_waits_for_room_where_the_disk_is_full_and_that_is_said_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    family.end(1)
    family = make(brokers=3)
    controller = family.controllers[1]

    def refuse(*_: Any) -> int:
        raise DiskFullFault("no room")

    monkeypatch.setattr(controller.voter, "append", refuse)
    with caplog.at_level("ERROR"):
        for _ in range(2):
            asked = family.register(1)
            controller.turn()
            assert asked.answer()["error_code"] == NOT_CONTROLLER
        assert [line for line in caplog.messages if "has to wait" in line] == [
            "no room; broker 1 has to wait"
        ]
    unknown = family.register(3)
    controller.turn()  # nobody knows it: it is asked again, and the controller goes on
    assert unknown.flags() == EXECUTED_FLAG_CLOSE


class FullDisk:
    """The disk of a controller, which refuses whatever is larger than `room` while it is full."""

    def __init__(self, family: ControllerFamily, patch: pytest.MonkeyPatch) -> None:
        voter = family.controllers[1].voter
        self._append = voter.append
        self.room: int | None = 0
        """Records in a batch; None: as many as there are."""
        patch.setattr(voter, "append", self._take)

    def _take(self, records: list[Any], *more: Any) -> int:
        if self.room is not None and len(records) > self.room:
            raise DiskFullFault("no room")
        return self._append(records, *more)


def replicated(make: Make) -> ControllerFamily:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    return family


def is_fenced(family: ControllerFamily, number: int) -> bool:
    return bool(family.controllers[1].follower.image.brokers[number].is_fenced)


def tell_ends(family: ControllerFamily, number: int, epoch: int) -> None:
    """A broker tells that its log of the topic "t" is as long as its id."""
    image = family.controllers[1].follower.image
    row = {"partition_index": 0, "state": HAS, "leader_epoch": -1, "last_epoch": 0, "epochs": []}
    rows = [row | {"end_offset": number}]
    topics = [{"topic_id": image.topics_by_name["t"].topic_id, "partitions": rows}]
    body = {"broker_id": number, "broker_epoch": epoch, "is_last": True, "topics": topics}
    family.ask(20007, 0, "TellLogEnds", body, broker=number)
    family.controllers[1].turn()


def test_who_died_while_the_disk_was_full_is_fenced_when_there_is_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = replicated(make)
    (was,) = leaders(family, "t", 1)
    disk = FullDisk(family, monkeypatch)
    family.die(was)
    family.turn()
    assert leaders(family, "t", 1) == [was]
    disk.room = None
    family.until(lambda: leaders(family, "t", 1) == [3 - was])


def test_who_hangs_no_more_while_the_disk_is_full_serves_when_there_is_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = replicated(make)
    for _ in range(300):
        family.sign(2)
        family.clock.sleep(0.1)
        family.turn()
    assert is_fenced(family, 2)
    disk = FullDisk(family, monkeypatch)
    for _ in range(3):
        family.clock.sleep(1)
        family.sign()
        family.turn()
    assert is_fenced(family, 2)
    disk.room = None
    family.until(lambda: not is_fenced(family, 2))


def test_what_was_to_be_settled_while_the_disk_is_full_is_settled_when_there_is_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(make).end(1)
    family = make(brokers=2)
    for number in family.brokers:
        family.register(number)
        family.controllers[1].turn()
    disk = FullDisk(family, monkeypatch)
    for number in family.brokers:
        tell_ends(family, number, family.controllers[1].follower.image.brokers[number].broker_epoch)
    assert is_fenced(family, 1) and is_fenced(family, 2)
    disk.room = None
    family.until(lambda: not is_fenced(family, 1) and not is_fenced(family, 2))
    assert leaders(family, "t", 1) == [2]


def test_a_broker_whose_registration_had_room_but_not_its_return_serves_in_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = replicated(make)
    (was,) = leaders(family, "t", 1)
    disk = FullDisk(family, monkeypatch)
    family.die(was)
    family.turn()
    disk.room = 1
    family.succeed(was)
    asked = family.register(was)
    family.controllers[1].turn()
    assert is_fenced(family, was)
    disk.room = None
    tell_ends(family, was, asked.answer()["broker_epoch"])
    assert family.until(lambda: not is_fenced(family, was))


def test_a_full_disk_fails_a_request_and_ends_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = make()
    at_work(family)
    controller = family.controllers[1]

    def refuse(*_: Any) -> int:
        raise DiskFullFault("no room")

    monkeypatch.setattr(controller.voter, "append", refuse)
    asked = family.ask(*CREATE_TOPICS, create(topic("t")))
    family.turn()
    assert asked.answer()["topics"][0]["error_code"] == KAFKA_STORAGE_ERROR


def test_a_fault_of_the_disk_ends_the_turn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    family = make()
    at_work(family)

    def fail(*_: Any) -> int:
        raise StorageFault("gone")

    monkeypatch.setattr(family.controllers[1].voter, "append", fail)
    family.ask(*CREATE_TOPICS, create(topic("t")))
    with pytest.raises(StorageFault, match="gone"):
        family.controllers[1].turn()


def test_after_a_fault_of_the_disk_nothing_is_decided_any_more(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second fdatasync may say that all is well, though the pages are gone."""
    family = make()
    at_work(family)
    voter = family.controllers[1].voter
    committed = voter.committed_offset
    flushes: list[None] = []

    def fail_once(_: MetadataLog) -> None:
        flushes.append(None)
        if len(flushes) == 1:
            raise StorageFault("gone")

    monkeypatch.setattr(MetadataLog, "flush", fail_once)
    for name in ("t", "u"):
        family.ask(*CREATE_TOPICS, create(topic(name)))
    with pytest.raises(StorageFault, match="gone"):
        family.controllers[1].turn()
    assert len(flushes) == 1 and voter.committed_offset == committed


def test_after_a_fault_while_the_others_are_waited_for_nothing_is_decided_any_more(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what is to be sent to another voter can't be read: the decision may be committed."""
    family = make()
    at_work(family)
    voter = family.controllers[1].voter
    monkeypatch.setattr(voter.quorum, "on_flushed", lambda _: None)  # others are waited for
    monkeypatch.setattr(voter, "links", SimpleNamespace(wait=lambda _: None))
    turns: list[None] = []

    def fail_once() -> bool:
        turns.append(None)
        raise StorageFault("gone")

    records = [("NoOpRecord", 0, {})]
    monkeypatch.setattr(voter, "_send", lambda: None)
    monkeypatch.setattr(voter, "turn", fail_once)
    for _ in range(2):
        with pytest.raises(StorageFault, match="gone"):
            voter.append(records, 0)
    assert len(turns) == 1


def test_a_successor_knows_what_was_decided_and_who_died_meanwhile(make: Make) -> None:
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    (was,) = leaders(family, "t", 1)
    family.end(1)
    family.die(was)
    family.start(1)
    assert family.counters.metadata_leader() == (2, 1, True)
    assert leaders(family, "t", 1) == [3 - was]


def test_only_who_has_served_in_this_family_has_all_after_its_death(make: Make) -> None:
    """The page cache has what it wrote; another family may be another start of the machine."""
    family = make(brokers=2)
    at_work(family)
    family.until(family.ask(*CREATE_TOPICS, create(topic("t", replicas=2))).answer, 90)
    family.end(1)
    family = make(brokers=2)
    family.until(family.register(1).answer)
    brokers = family.controllers[1].follower.image.brokers
    assert brokers[1].is_fenced, "it may lack something"
    family.until(family.register(2, previous_epoch=brokers[2].broker_epoch).answer)
    assert not family.controllers[1].follower.image.brokers[2].is_fenced, "it stopped cleanly"
    family.apply()
    family.die(1)
    family.turn()
    family.succeed(1)
    family.until(family.register(1).answer)
    assert not family.controllers[1].follower.image.brokers[1].is_fenced


def test_the_only_voter_stops_at_once(make: Make) -> None:
    family = make()
    controller = family.controllers[1]
    controller.must_stop = True
    assert controller.turn() == 0.0
    assert controller.is_over
    assert family.words[family.counters.at(family.slots[1], STATE)] == STATE_STOPPING


# ── three of them ───────────────────────────────────────────────────────────────────────────────


def test_three_elect_one_and_the_others_have_what_it_decides(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    asked = family.ask(*CREATE_TOPICS, create(topic("t", replicas=3)), of=number)
    family.until(lambda: family.apply() or asked.answer())
    assert asked.answer()["topics"][0]["error_code"] == 0
    family.until(lambda: all("t" in one.follower.image.topics_by_name for one in all_of(family)))
    assert [one.active is not None for one in all_of(family)].count(True) == 1


def test_who_is_not_active_says_that_it_did_nothing(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    other = next(one for one in THREE if one != number)
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), of=other)
    family.turn()
    assert asked.answer() is None and asked.flags() == EXECUTED_FLAG_NOT_EXECUTED


def test_another_takes_over_from_one_that_dies(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    epoch = family.counters.metadata_leader()[0]
    family.until(family.ask(*CREATE_TOPICS, create(topic("t")), of=number).answer, 90)
    family.end(number)
    successor = family.until(lambda: family.active() if family.active() is not None else None)
    assert successor.number != number
    assert family.counters.metadata_leader()[0] > epoch
    assert "t" in successor.follower.image.topics_by_name


def test_who_hung_under_a_predecessor_serves_again_under_its_successor(make: Make) -> None:
    family = make(controllers=3, brokers=3)
    number = at_work(family)
    created = family.ask(*CREATE_TOPICS, create(topic("t", replicas=3)), of=number)
    family.until(lambda: family.apply() or created.answer())
    active = family.controllers[number]
    for _ in range(300):
        family.sign(2)
        family.clock.sleep(0.1)
        family.turn()
    assert active.follower.image.brokers[2].is_fenced
    family.end(number)
    successor = family.until(family.active)
    assert successor.number != number and successor.follower.image.brokers[2].is_fenced
    family.until(lambda: not successor.follower.image.brokers[2].is_fenced)


def test_a_death_among_the_voters_is_acted_on_at_once(make: Make) -> None:
    family = make(controllers=3, brokers=3)
    number = at_work(family)
    begin = family.clock.now
    family.end(number)
    family.until(family.active)
    silence_s = family.config["controller.quorum.fetch.timeout.ms"] / 1000
    assert family.clock.now - begin < silence_s


def test_who_waits_for_a_majority_leaves_signs_of_life(make: Make) -> None:
    family = make(controllers=3, brokers=3)
    number = at_work(family)
    liveness = family.counters.at(family.slots[number], LIVENESS_NS)
    seen: list[int] = []
    run = family.wires.let_others_run

    def watch(node_id: int, timeout_s: float) -> None:
        if node_id == number and len(seen) < 5:  # the others are slow
            family.clock.sleep(0.2)
            seen.append(family.words[liveness])
        else:
            run(node_id, timeout_s)

    family.wires.let_others_run = watch
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), of=number)
    family.until(lambda: family.apply() or asked.answer())
    assert len(seen) == 5 and seen == sorted(set(seen))


def test_one_that_wakes_up_stores_nothing_over_a_later_leader(make: Make) -> None:
    family = make(controllers=3, brokers=3)
    controller = family.controllers[at_work(family)]
    later = controller.active_epoch + 1
    family.counters.store_metadata_leader(later, 9)
    family.words[METADATA_END_OFFSET_WORD] = 5
    controller.publish_committed()
    assert family.counters.metadata_leader() == (later, 9, True)
    assert family.words[METADATA_END_OFFSET_WORD] == 5


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("are_others_damaged", [False, True])
def test_a_successor_that_has_lost_its_log_does_not_vote_before_it_has_it(
    make: Make, is_lost: bool, are_others_damaged: bool
) -> None:
    family = make(controllers=3, brokers=3)
    epoch = family.controllers[at_work(family)].voter.epoch
    family.until(lambda: all(one.voter.committed_offset > 3 for one in all_of(family)))
    family.end(2)
    if is_lost:
        shutil.rmtree(family.config.metadata_directory(2))
    for number in (1, 3) if are_others_damaged else ():
        Path(family.config.metadata_directory(number), QUORUM_STATE).write_text("{}")
    quorum = family.start(2).voter.quorum
    known = 0 if is_lost and are_others_damaged else epoch
    assert (quorum.must_catch_up, quorum.epoch) == (is_lost, known)
    family.until(lambda: not family.controllers[2].voter.quorum.must_catch_up)


def test_one_that_lost_the_vote_disowns_it_and_answers_nobody(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    controller = family.controllers[number]
    controller.voter.resign()
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), of=number)
    controller.turn()
    assert controller.active is None
    assert not family.counters.metadata_leader()[2]
    assert asked.answer() is None and asked.flags() == EXECUTED_FLAG_NOT_EXECUTED
    assert family.until(family.active).number in THREE


def test_a_request_that_the_vote_is_lost_under_is_answered_not_controller(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    controller = family.controllers[number]
    for other in THREE:  # nobody hears it any more: it can't commit
        if other != number:
            family.end(other)
    family.wires.let_others_run = lambda _node_id, timeout_s: family.clock.sleep(timeout_s)
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), of=number)
    controller.turn()
    assert asked.answer()["topics"][0]["error_code"] == NOT_CONTROLLER
    controller.turn()
    assert controller.active is None


def test_a_leader_that_stops_hands_over_when_the_others_have_all(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    controller = family.controllers[at_work(family)]
    controller.must_stop = True
    end_offset = controller.voter.log_end_offset
    family.until(lambda: controller.is_over, STOP_WAIT_S / 2)
    assert controller.voter.quorum.state != LEADER
    others = [one for one in all_of(family) if one is not controller]
    assert all(one.voter.log_end_offset >= end_offset for one in others)


def test_a_voter_that_stops_takes_no_requests_and_waits_for_the_others_a_while(make: Make) -> None:
    family = make(brokers=3, controllers=3)
    number = at_work(family)
    controller = family.controllers[number]
    for other in THREE:  # they run, but hear nothing
        if other != number:
            family.controllers.pop(other).close()
    controller.voter.log.append(controller.voter.epoch, [feature()], 0)
    controller.must_stop = True
    begin = family.clock.now
    asked = family.ask(*CREATE_TOPICS, create(topic("t")), of=number)
    assert not controller.has_news()
    while not controller.is_over:
        family.clock.sleep(controller.turn() or 0.01)
    assert STOP_WAIT_S <= family.clock.now - begin < STOP_WAIT_S + 1
    assert asked.answer() is None and asked.flags() is None


def feature() -> Any:
    return "FeatureLevelRecord", 0, {"name": "metadata.version", "feature_level": 1}
