"""The answer to DeleteRecords, which waits for all live replicas: when, and with what."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.replicated import LIVE_BROKERS, ReplicationWaits
from shmbroker.purgatory import Purgatory
from shmbroker.replica.follower import Follower
from shmbroker.replica.partition import Partition
from shmbroker.wire.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)

KEY = bytes(20)


class Waiting:
    """Broker 1 leads a log that begins at 5, brokers 2 and 3 follow; what is told of it."""

    def __init__(self) -> None:
        self.fenced: set[int] = set()
        self.eligible: tuple[int, ...] = ()
        self.purgatory = Purgatory()
        self.waits = ReplicationWaits(self.purgatory, lambda: 1000, self)
        self.told: list[tuple[int, int]] = []
        log: Any = SimpleNamespace(
            log_end_offset=9, log_start_offset=5, producers=None, config=CONFIG
        )
        self.partition = Partition(KEY, "t", bytes(16), 0, log)
        self.partition.is_leader = True
        self.partition.followers = {number: Follower(number) for number in (2, 3)}

    @property
    def image(self) -> Any:
        brokers = {
            number: SimpleNamespace(broker_id=number, is_fenced=number in self.fenced)
            for number in (1, 2, 3)
        }
        topic = SimpleNamespace(
            partitions=[SimpleNamespace(eligible_leader_replicas=self.eligible)]
        )
        return SimpleNamespace(brokers=brokers, topics_by_id={bytes(16): topic})

    def begins(self, **starts: int) -> None:
        for number, start in starts.items():
            self.partition.followers[int(number[1:])].log_start_offset = start
        self.purgatory.check(KEY)

    def wait(self, offset: int = 5, timeout_ms: int = 100) -> None:
        self.waits.wait_deleted(
            self.partition, offset, timeout_ms, lambda *what: self.told.append(what)
        )


CONFIG: Any = SimpleNamespace(
    max_message_bytes=1, is_compacted=False, message_timestamp_before_max_ms=0,
    message_timestamp_after_max_ms=0, is_log_append_time=False, is_validated=False,
    segment_bytes=1, min_insync_replicas=1, is_fsync=False, flush_messages=1,
    leader_throttled_replicas="", follower_throttled_replicas="",
)  # fmt: skip


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_the_last_live_replica_that_begins_there_ends_it(waiting: Waiting) -> None:
    waiting.begins(b2=0, b3=0)
    waiting.wait()
    waiting.begins(b2=6)
    assert waiting.told == []
    waiting.begins(b3=5)
    assert waiting.told == [(NONE, 5)]
    assert not len(waiting.purgatory)


def test_replicas_that_begin_there_already_are_not_waited_for(waiting: Waiting) -> None:
    waiting.begins(b2=4, b3=4)
    waiting.wait(offset=3)
    assert waiting.told == [(NONE, 4)]


def test_one_that_dies_counts_no_more(waiting: Waiting) -> None:
    waiting.begins(b3=5)
    waiting.wait()
    waiting.purgatory.check(LIVE_BROKERS)
    assert waiting.told == []
    waiting.fenced.add(2)
    waiting.purgatory.check(LIVE_BROKERS)
    assert waiting.told == [(NONE, 5)]


def test_one_that_is_dead_and_may_lead_counts(waiting: Waiting) -> None:
    waiting.begins(b3=5)
    waiting.fenced.add(2)
    waiting.eligible = (2,)
    waiting.wait()
    assert waiting.told == []
    waiting.begins(b2=5)
    assert waiting.told == [(NONE, 5)]


def test_in_time_or_the_low_watermark_as_it_was(waiting: Waiting) -> None:
    waiting.begins(b2=2, b3=1)
    waiting.wait()
    waiting.begins(b3=5)
    waiting.purgatory.expire(1099)
    assert waiting.told == []
    waiting.purgatory.expire(1100)
    assert waiting.told == [(REQUEST_TIMED_OUT, 1)]


@pytest.mark.parametrize(
    "is_offline, error", [(False, NOT_LEADER_OR_FOLLOWER), (True, KAFKA_STORAGE_ERROR)]
)
def test_who_leads_no_more_can_not_tell(waiting: Waiting, is_offline: bool, error: int) -> None:
    waiting.wait()
    if is_offline:
        waiting.partition.take_offline()
    else:
        waiting.partition.is_leader = False
    waiting.purgatory.check(KEY)
    assert waiting.told == [(error, -1)]
