"""Turns of a broker: what it begins with, none longer than it should be, and when it may sleep."""

import gc
import os
from collections.abc import Callable, Iterator
from errno import EIO, EMFILE, EROFS
from pathlib import Path
from typing import Any

import pytest

from shmbroker.apis.controller.tell_log_ends import LACKS
from shmbroker.broker import leaving
from shmbroker.broker.boot import Boot
from shmbroker.broker.disk_reserve import Space
from shmbroker.broker.intake import TAKE_S
from shmbroker.broker.placement import APPLY_S
from shmbroker.broker.replicated import MARKER_TIMEOUT_MS
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    EXECUTE,
    EXECUTE_HEAD,
    EXECUTED,
    EXECUTED_HEAD,
    READ,
    READ_DONE,
    READ_HEAD,
    READ_PARTITION,
)
from shmbroker.log.checkpoints import RECOVERY_POINT, Offsets, write_offsets
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.log.partition_log import PartitionLog
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.processes.turns_with_guests import has_work, rest_until
from shmbroker.purgatory import DelayedOperation
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    DISK,
    DISK_HAS_FAILED,
    DISK_HAS_ROOM,
    DISK_IS_FULL,
    INCARNATION,
    METADATA_APPLIED,
    STATE,
    STATE_RUNNING,
    STATE_STOPPING,
)
from shmbroker.shm.latencies import STAGE_APPEND, STAGE_RING, read_table
from shmbroker.wire import codec
from shmbroker.wire.api_keys import BROKER_HEARTBEAT, OFFSET_COMMIT
from shmbroker.wire.error_codes import (
    KAFKA_STORAGE_ERROR,
    NOT_CONTROLLER,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)
from tests.support.broker_family import BROKER, CONTROLLER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC, TOPIC_ID, registration, topic
from tests.support.raw_client import batch_of

TAKES_S = 0.0005
"""What an append to a new log takes, and to open or to delete one."""
BATCH = batch_of(b"value")
KEY = partition_key(TOPIC_ID, 0)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[BrokerFamily]:
    with broker_family(tmp_path) as made:
        yield made


def slow(family: BrokerFamily, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but it takes time."""

    def slowly(*arguments: Any) -> Any:
        family.clock.now += TAKES_S
        return work(*arguments)

    return slowly


def topic_of(count: int) -> list[tuple[str, int, dict[str, Any]]]:
    """A topic of many partitions in place of `topic`."""
    named, (kind, version, partition) = topic()
    return [named, *((kind, version, partition | {"partition_id": at}) for at in range(count))]


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


def test_a_topic_of_thousands_of_partitions_is_deleted_in_steps(family: BrokerFamily) -> None:
    many = 100
    family.boot(*topic_of(many))
    broker = family.broker
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    broker.store.delete = slow(family, broker.store.delete)  # type: ignore[method-assign]
    opened = broker.store.open
    order: list[int] = []

    def noting(*arguments: Any) -> Any:
        order.append(len(broker.partitions))
        return opened(*arguments)

    broker.store.open = noting  # type: ignore[method-assign]
    named, (kind, version, partition) = topic()
    again = {"topic_id": b"new" + bytes(13)}
    family.link.commit(
        ("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}),
        (named[0], named[1], named[2] | again),
        (kind, version, partition | again),
    )
    turns = 0
    while broker.placement.has_work or not turns:
        begin = family.clock.now
        is_gone = not broker.placement.to_drop
        assert family.words[applied] < broker.link.follower.image.offset or is_gone or not turns
        family.append(turns, partition_key(b"new" + bytes(13), 0), BATCH)
        broker.turn()
        assert family.clock.now - begin < 3 * APPLY_S
        turns += 1
    assert turns > many * TAKES_S / APPLY_S / 3
    assert order == [0]  # the new one of that name, when the old one's directories had gone
    assert list(broker.partitions) == [partition_key(b"new" + bytes(13), 0)]
    assert family.words[applied] == broker.image.offset


def test_much_metadata_is_read_a_step_in_each_turn(family: BrokerFamily) -> None:
    family.boot(*topic())
    broker, link = family.broker, family.link
    link.steps_left = 3
    link.commit(("TopicRecord", 0, {"name": "new", "topic_id": b"n" * 16}))
    for steps_left in (2, 1, 0):
        family.append(steps_left, KEY, BATCH)  # it looks at the metadata before and after
        broker.turn()
        assert link.steps_left == steps_left and broker.has_news()
        assert [token for token, *_ in family.appended()] == [steps_left]
        assert "new" not in broker.image.topics_by_name
    broker.turn()
    assert "new" in broker.image.topics_by_name and not broker.has_news()


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


def test_a_full_disk_refuses_appends_until_there_is_room(family: BrokerFamily) -> None:
    family.boot(*topic())
    word = family.counters.at(BROKER, DISK)
    for space, is_full in [(Space(1 << 40, 0), True), (Space(1 << 40, 1 << 39), False)]:
        family.space = space
        family.clock.now += 2
        family.broker.turn()
        assert family.words[word] == (DISK_IS_FULL if is_full else DISK_HAS_ROOM)
        family.append(1, KEY, BATCH)
        family.broker.turn()
        ((_, error_code, _),) = family.appended()
        assert bool(error_code) == is_full


def test_what_can_not_be_made_ready_ahead_is_told_and_ends_nothing(
    family: BrokerFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.boot(*topic())
    told: list[Any] = []
    partition = family.broker.partitions[KEY]
    fault = StorageFault("too many open files")

    def refuse(*_: Any) -> bool:
        raise fault

    monkeypatch.setattr(PartitionLog, "populate_step", refuse)
    monkeypatch.setattr(family.broker.appender, "on_storage_fault", lambda *what: told.append(what))
    count = 0
    while not told:
        family.append(count, KEY, batch_of(bytes(10_000)))
        family.broker.turn()
        count += 1
    assert told == [(partition, fault)]
    assert family.appended() == [(token, 0, token) for token in range(count)]


def test_a_disk_that_failed_is_shown_where_its_room_can_not_be_looked_at(
    family: BrokerFamily,
) -> None:
    family.boot(*topic())
    word = family.counters.at(BROKER, DISK)
    family.space = OSError(EIO, "Input/output error")
    for is_fenced in (False, True):
        if is_fenced:
            family.broker.store.fence(OSError(EIO, "Input/output error"))
        family.clock.now += 2
        family.broker.turn()
        assert family.words[word] == (DISK_HAS_FAILED if is_fenced else DISK_HAS_ROOM)


def look_at_the_disk(family: BrokerFamily) -> list[str]:
    """Let the broker look; the files that it syncs."""
    family.clock.now += 2
    family.broker.turn()
    jobs = [os.readlink(f"/proc/self/fd/{fd}") for fds, _ in family.flusher.jobs for fd in fds]
    family.broker.turn()
    return [os.path.basename(path) for path in jobs]


def test_a_file_system_that_has_given_up_takes_the_log_directory_offline(
    family: BrokerFamily,
) -> None:
    """Its mapped files take what is stored all the same, and it does not call itself read-only."""
    family.boot(*topic())
    look_at_the_disk(family)
    family.append(1, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == [(1, 0, 0)]
    family.flusher.fault = OSError(EROFS, "Read-only file system")
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert family.broker.store.is_fenced
    assert family.words[family.counters.at(BROKER, DISK)] == DISK_HAS_FAILED
    family.append(2, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == [(2, KAFKA_STORAGE_ERROR, -1)]


def test_the_disk_is_probed_after_appends_and_faults_alone(family: BrokerFamily) -> None:
    """A device of an idle broker may sleep."""
    family.boot(*topic())
    look_at_the_disk(family)
    assert look_at_the_disk(family) == []
    family.append(1, KEY, BATCH)
    family.broker.turn()
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert look_at_the_disk(family) == []
    fault = StorageFault("can't write")
    family.broker.on_storage_fault(family.broker.partitions[KEY], fault)
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert look_at_the_disk(family) == []
    assert not family.broker.store.is_fenced


@pytest.mark.parametrize("refused, is_fenced", [(EIO, True), (EMFILE, False)])
def test_a_probe_whose_file_can_not_be_opened_tells_of_the_disk_alone(
    family: BrokerFamily, monkeypatch: pytest.MonkeyPatch, refused: int, is_fenced: bool
) -> None:
    family.boot(*topic())
    look_at_the_disk(family)
    family.append(1, KEY, BATCH)
    family.broker.turn()

    def refuse(*_: Any) -> int:
        raise OSError(refused, os.strerror(refused))

    family.clock.now += 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        family.broker.turn()
    assert family.broker.store.is_fenced == is_fenced


def test_a_commit_is_answered_when_the_disk_has_it(tmp_path: Path) -> None:
    """With one replica and with several: nothing else would have the group's records flushed."""
    (_, version, named), partition = topic()
    named = {**named, "name": "__consumer_offsets"}
    row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    body = {"group_id": "g", "topics": [{"name": "__consumer_offsets", "partitions": [row]}]}
    encoded = codec.encode("OffsetCommitRequest", 7, body)
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(("TopicRecord", version, named), partition)
        family.gateway.send(EXECUTE, EXECUTE_HEAD.pack(1, OFFSET_COMMIT, 7, 0, 0, 0) + encoded)
        family.broker.turn()
        assert family.flusher.jobs and not family.gateway.taken()
        family.broker.turn()
        ((operation, payload),) = family.gateway.taken()
        assert operation == EXECUTED
        answer, _ = codec.decode("OffsetCommitResponse", 7, payload[EXECUTED_HEAD.size :])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def test_what_a_coordinator_lets_in_goes_to_the_disk_in_the_same_turn(tmp_path: Path) -> None:
    """The answer to a question comes in the turn that asks it, where this broker coordinates."""
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(*topic())
        partition = family.broker.partitions[KEY]
        assert not family.flusher.jobs

        def on_answer(_error: int) -> None:
            family.broker.acks.group_commit.want(partition)

        family.broker.exchange.verify(partition, "x", 7, 0, True, on_answer)
        family.broker.turn()
        assert family.flusher.jobs


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


@pytest.mark.parametrize(
    "had, checkpoint, is_lost",
    [
        (None, {}, False),
        (None, {("other", 0): 7}, False),
        (None, {(TOPIC, 0): 0}, True),
        ([], {}, False),
        ([KEY], {}, True),
    ],
)
def test_a_log_that_was_not_here_before_is_not_lost(
    tmp_path: Path, had: list[bytes] | None, checkpoint: Offsets, is_lost: bool
) -> None:
    """The process before tells, or a checkpoint from before the end of the whole family."""
    named, (kind, version, partition) = topic()
    row = partition | {"replicas": [1, 2], "directories": [b"d" * 16] * 2, "leader_epoch": 1}
    write_offsets(str(tmp_path / RECOVERY_POINT), checkpoint)
    with broker_family(tmp_path, had=had) as family:
        family.boot(named, (kind, version, row))
        partition = family.broker.partitions[KEY]
        assert partition.lost_below == (0 if is_lost else -1)
        # Found before the controller let it serve, and told all the same: else it would lead.
        waiting = family.broker.replication.log_ends.waiting
        assert waiting == ({partition: LACKS} if is_lost else {})


def test_what_a_follower_had_not_on_its_disk_is_flushed_when_it_leads(tmp_path: Path) -> None:
    """Else no ack that waits for it would ever be given, until the next append."""
    named, (kind, version, row) = topic()
    row |= {"replicas": [1, 2], "leader": 2, "isr": [1, 2], "directories": [b"d" * 16] * 2}
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(named, (kind, version, row))
        partition = family.broker.partitions[KEY]
        partition.log.append(memoryview(BATCH), 0, 0, 0, 0)
        change = {"topic_id": TOPIC_ID, "partition_id": 0, "leader": 1, "isr": [1]}
        family.link.commit(("PartitionChangeRecord", 2, change))
        family.broker.turn()
        family.broker.turn()
        assert partition.is_leader
        assert partition.high_watermark == partition.log.log_end_offset == 1


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


def test_a_deleted_partition_is_freed_without_the_garbage_collector(
    family: BrokerFamily,
) -> None:
    """Which looks at what has lived for long once in millions of objects."""
    family.boot(*topic())
    family.append(1, KEY, BATCH)
    family.broker.turn()
    family.gateway.taken()
    directory = family.broker.partitions[KEY].log.directory
    gc.collect()
    gc.disable()
    try:
        family.link.commit(("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}))
        family.broker.turn()
        family.broker.turn()
        assert not family.broker.partitions
        logs = [each for each in gc.get_objects() if isinstance(each, PartitionLog)]
        assert not [log for log in logs if log.directory == directory]
    finally:
        gc.enable()


def test_a_log_that_is_due_is_made_when_a_client_asks_for_it(family: BrokerFamily) -> None:
    """A large topic is there for its creator before all of its logs are."""
    family.boot()
    broker = family.broker
    many = 400
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    family.link.commit(*topic_of(many))
    broker.turn()
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    assert family.words[applied] == broker.image.offset
    assert len(broker.partitions) < many / 2
    last = partition_key(TOPIC_ID, many - 1)
    family.append(1, last, BATCH)
    family.append(2, partition_key(TOPIC_ID, many), BATCH)
    broker.intake.take(TAKE_S)
    broker.publish()
    assert family.appended() == [(1, 0, 0), (2, NOT_LEADER_OR_FOLLOWER, -1)]
    assert last in broker.partitions and len(broker.partitions) < many / 2
    while broker.placement.has_work:
        broker.turn()
    assert len(broker.partitions) == many and not broker.placement.due
    assert broker.partitions[last].log.log_end_offset == 1


def test_a_topic_that_is_deleted_before_its_logs_were_made_is_never_made(
    family: BrokerFamily,
) -> None:
    family.boot()
    broker = family.broker
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    family.link.commit(*topic_of(400))
    broker.turn()
    family.link.commit(("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}))
    broker.turn()
    family.append(1, partition_key(TOPIC_ID, 399), BATCH)
    while broker.placement.has_work:
        broker.turn()
    assert not broker.partitions and not broker.placement.due


@pytest.mark.parametrize(("name", "may_wait"), [(TOPIC, True), (OFFSETS_TOPIC, False)])
def test_groups_are_here_before_their_topic_is(
    family: BrokerFamily, name: str, may_wait: bool
) -> None:
    """Nobody asks for the log of a coordinator by its name: it would stay due until its turn."""
    family.boot()
    broker = family.broker
    broker.store.open = slow(family, broker.store.open)  # type: ignore[method-assign]
    (kind, version, row), *partitions = topic_of(100)
    family.link.commit((kind, version, row | {"name": name}), *partitions)
    broker.turn()
    assert broker.placement.has_work
    applied = family.counters.at(BROKER, METADATA_APPLIED)
    assert (family.words[applied] == broker.image.offset) is may_wait
    while broker.placement.has_work:
        broker.turn()
    assert family.words[applied] == broker.image.offset


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
