"""Turns of a broker: what it begins with, none longer than it should be, and when it may sleep."""

from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker import leaving
from shmbroker.broker.boot import Boot
from shmbroker.broker.intake import TAKE_S
from shmbroker.broker.replicated import MARKER_TIMEOUT_MS
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import READ, READ_DONE, READ_HEAD, READ_PARTITION
from shmbroker.processes.turns_with_guests import has_work, rest_until
from shmbroker.purgatory import DelayedOperation
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    INCARNATION,
    METADATA_APPLIED,
    STATE,
    STATE_RUNNING,
    STATE_STOPPING,
)
from shmbroker.shm.latencies import STAGE_APPEND, STAGE_RING, read_table
from shmbroker.wire.api_keys import BROKER_HEARTBEAT
from shmbroker.wire.error_codes import NOT_CONTROLLER, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from tests.support.broker_family import BROKER, CONTROLLER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC_ID, registration, topic
from tests.unit.broker.broker_turns import BATCH, KEY, TAKES_S, family, slow, topic_of

__all__ = ["family"]


def test_it_runs_once_it_has_opened_what_the_metadata_says(family: BrokerFamily) -> None:
    begin = Boot(family.broker).run()
    assert next(begin) > 0 and next(begin) > 0
    ((_, token),) = family.asked()  # once, though it has looked twice
    family.link.commit(registration(), *topic_of(3))
    family.answer(token, "BrokerRegistration", 4, {"broker_epoch": 5})
    words, at = family.words, family.counters.at
    assert words[at(BROKER, STATE)] != STATE_RUNNING
    assert list(begin) == []
    assert words[at(BROKER, STATE)] == STATE_RUNNING
    assert len(family.broker.partitions) == 3
    assert words[at(BROKER, METADATA_APPLIED)] == family.broker.image.offset == 5


def test_it_does_not_run_while_there_is_something_to_open(family: BrokerFamily) -> None:
    many = 100
    broker = family.broker
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    begin = Boot(broker).run()
    next(begin)
    ((_, token),) = family.asked()
    family.link.commit(registration(), *topic_of(many))
    family.answer(token, "BrokerRegistration", 4, {"broker_epoch": 5})
    words, at = family.words, family.counters.at
    state, applied = at(BROKER, STATE), at(BROKER, METADATA_APPLIED)
    for _ in begin:
        has_all = len(broker.partitions) == many
        assert has_all or not (words[applied] or words[state] == STATE_RUNNING)
    assert words[applied] and words[state] == STATE_RUNNING


def test_another_controller_is_asked_where_the_first_is_none_any_more(family: BrokerFamily) -> None:
    begin = Boot(family.broker).run()
    next(begin)
    for _ in range(2):
        ((_, token),) = family.asked()
        family.answer(token, "BrokerRegistration", 4, {"error_code": NOT_CONTROLLER})
        next(begin)
        next(begin)
    assert family.asked()


def test_a_broker_that_is_refused_ends(family: BrokerFamily) -> None:
    begin = Boot(family.broker).run()
    next(begin)
    ((_, token),) = family.asked()
    family.answer(token, "BrokerRegistration", 4, {"error_code": 1})
    with pytest.raises(StorageFault, match="refused"):
        next(begin)
    begin.close()


def test_an_append_is_answered_in_its_turn(family: BrokerFamily) -> None:
    family.boot(*topic())
    family.append(7, KEY, BATCH)
    family.append(8, KEY, BATCH)
    assert family.broker.turn() >= 0
    assert family.appended() == [(7, 0, 0), (8, 0, 1)]


def test_a_turn_is_put_off_while_no_sibling_waits_for_it(family: BrokerFamily) -> None:
    family.boot(*topic())
    broker = family.broker
    while broker.turn() == 0:
        pass
    partition = broker.partitions[KEY]
    for broker.replication.is_alone, may_wait in ((True, True), (False, False)):
        family.append(7, KEY, BATCH)
        assert broker.may_wait() is may_wait  # somebody has sent something
        broker.intake.take()
        assert list(broker.acks.appended) == [partition]
        assert broker.may_wait()
        partition.followed_rows.append(None)  # type: ignore[arg-type]
        assert broker.may_wait() is may_wait  # somebody follows what was appended
        partition.followed_rows.clear()
        for key in (b"another", KEY):
            broker.purgatory.watched[key] = {}
            assert broker.may_wait() is (key != KEY)  # somebody waits for it
        broker.purgatory.watched.clear()
        broker.acks.appended.clear()


def test_a_turn_is_left_out_only_where_it_would_find_nothing(family: BrokerFamily) -> None:
    family.boot(*topic())
    broker = family.broker
    while broker.turn() == 0:
        pass
    assert not has_work(broker)
    family.append(7, KEY, BATCH)
    assert has_work(broker)
    while broker.turn() == 0:
        pass
    assert not has_work(broker)
    broker.look_at_clocks()
    now_ms = broker.steady_ms()
    assert rest_until(broker, now_ms / 1000 + 2) == pytest.approx(2)
    broker.purgatory.watch(DelayedOperation(), [KEY], now_ms + 500)
    assert rest_until(broker, now_ms / 1000 + 2) == pytest.approx(0.5)
    assert rest_until(broker, now_ms / 1000 - 2) > 0


def test_appends_of_one_peer_end_a_turn(family: BrokerFamily) -> None:
    many = 200
    family.boot(*topic())
    appender = family.broker.appender
    appender.on_append = slow(family, appender.on_append)  # type: ignore[method-assign]
    runs = family.broker.append_runs
    take_plain = runs.take_plain

    def take_slowly(*arguments: Any) -> int:
        taken = take_plain(*arguments)
        family.clock.now += taken * TAKES_S
        return taken

    runs.take_plain = take_slowly  # type: ignore[method-assign]
    for token in range(many):
        family.append(token, KEY, BATCH)
    turns, answered = 0, 0
    while answered < many:
        begin = family.clock.now
        rest = family.broker.turn()
        assert family.clock.now - begin < 4 * TAKE_S
        answered += len(family.appended())
        assert rest == 0 or answered == many  # it does not sleep on what is left
        turns += 1
    assert turns > many * TAKES_S / TAKE_S / 4
    for token in range(many):
        family.append(token, KEY, BATCH)
    family.broker.intake.take(leaving.TAKE_S)
    family.broker.publish()
    assert len(family.appended()) == many  # at the end all is taken


def test_what_came_while_it_was_awake_is_not_slept_on(family: BrokerFamily) -> None:
    broker, link = family.broker, family.link
    next(Boot(broker).run())
    assert not broker.has_news()
    family.words[ANNOUNCEMENTS_WORD] += 1
    assert broker.has_news()  # somebody has died or come
    family.words[ANNOUNCEMENTS_WORD] -= 1
    link.commit(registration())
    assert not broker.has_news()  # it waits for its registration, and follows nothing before
    family.boot()
    while broker.turn() == 0:
        pass
    assert not broker.has_news()
    link.commit(*topic())
    assert broker.has_news()
    while broker.turn() == 0:
        pass
    assert not broker.has_news()
    family.append(1, KEY, BATCH)
    assert broker.has_news()


@pytest.mark.parametrize("seconds", (-3600, 3600))
def test_a_read_waits_as_long_as_it_says_though_the_wall_clock_jumps(
    family: BrokerFamily, seconds: int
) -> None:
    family.boot(*topic())
    asked = READ_PARTITION.pack(KEY, 1000, -1, -1, 0, -1, -1)
    family.gateway.send(READ, READ_HEAD.pack(1, 500, 1, 1 << 20, 0, 0, 1, 0) + asked)
    family.broker.turn()
    family.clock.wall_ahead_s += seconds
    for passed, is_answered in [(0.4, False), (0.2, True)]:
        family.clock.now += passed
        family.broker.turn()
        answers = [operation for operation, _ in family.gateway.taken()]
        assert answers == ([READ_DONE] if is_answered else [])


def test_a_marker_that_is_not_replicated_is_given_up_in_time(family: BrokerFamily) -> None:
    """By the clock that waits go by: the wall clock's time would be decades ahead."""
    family.boot(*topic())
    partition = family.broker.partitions[KEY]
    told: list[int] = []
    family.broker.when_replicated(partition, partition.high_watermark + 1, told.append)
    for passed, expected in [(MARKER_TIMEOUT_MS - 1, []), (2, [REQUEST_TIMED_OUT])]:
        family.clock.now += passed / 1000
        family.broker.turn()
        assert told == expected


def test_acks_that_can_not_come_from_a_leader_that_is_none_any_more_are_refused(
    family: BrokerFamily,
) -> None:
    named, (kind, version, row) = topic()
    row |= {"replicas": [1, 2], "isr": [1, 2], "directories": [b"d" * 16] * 2}
    family.boot(named, (kind, version, row))
    family.append(1, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == [], "it waits for its follower"
    change = {"topic_id": TOPIC_ID, "partition_id": 0, "leader": 2}
    family.link.commit(("PartitionChangeRecord", 2, change))
    family.broker.turn()
    family.broker.turn()
    assert family.appended() == [(1, NOT_LEADER_OR_FOLLOWER, -1)]


def test_questions_to_a_controller_that_died_are_answered(family: BrokerFamily) -> None:
    family.boot()
    family.asked()
    answers: list[dict[str, Any]] = []
    registration = family.broker.registration
    assert registration.ask(BROKER_HEARTBEAT, "BrokerHeartbeat", 1, {}, answers.append)
    family.words[family.counters.at(CONTROLLER, STATE)] = 0
    family.words[family.counters.at(CONTROLLER, INCARNATION)] += 1
    family.words[ANNOUNCEMENTS_WORD] += 1
    family.broker.turn()
    assert answers == [{"error_code": NOT_CONTROLLER}]


def test_a_broker_that_closes_has_answered_what_was_asked(tmp_path: Path) -> None:
    with broker_family(tmp_path) as family:
        family.boot(*topic())
        family.append(1, KEY, BATCH)
    assert family.appended() == [(1, 0, 0)]
    assert family.words[family.counters.at(BROKER, STATE)] == STATE_STOPPING


def test_stamped_operations_are_measured_until_their_results_are_stamped(
    family: BrokerFamily,
) -> None:
    family.boot(*topic())
    family.gateway.writer.stamp(family.clock.monotonic_ns())
    family.append(1, KEY, BATCH, acks=1)
    family.clock.now += 0.0003
    family.broker.turn()
    assert family.gateway.reader.poll() and family.gateway.reader.stamped()
    family.appended()
    family.append(2, KEY, BATCH, acks=1)
    family.clock.now += 2.0
    family.broker.turn()
    assert family.gateway.reader.poll() and not family.gateway.reader.stamped()
    family.clock.now += 2.0
    family.broker.turn()
    found = read_table(family.latencies)
    assert abs(found[STAGE_RING][0] - 300) <= 1
    assert sum(found[STAGE_RING][1]) == sum(found[STAGE_APPEND][1]) == 1
