"""ListOffsets of a leader that does not know its high watermark yet (KIP-207)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import list_offsets
from shmbroker.broker.tier_port import NoTier
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.log.config import LogConfig
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.wire import error_codes
from tests.support.family_memory import VirtualClock
from tests.support.steps import finish

TOPIC_ID = bytes(15) + b"\x07"
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NONE = 0
NOT_AVAILABLE = error_codes.OFFSET_NOT_AVAILABLE


class Log:
    """Ten records, at the times 100, 101 … 109."""

    log_start_offset = local_start_offset = 2
    log_end_offset = 10
    leader_epochs = SimpleNamespace(epoch_at=lambda offset: 3)
    producers = None
    config = LogConfig({})


def offset_for_timestamp(log: Log, timestamp: int) -> tuple[int, int] | None:
    offset = max(timestamp - 100, 0)
    return (100 + offset, offset) if offset < 10 else None


@pytest.fixture(autouse=True)
def looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times are not in batches."""
    monkeypatch.setattr(list_offsets, "offset_for_timestamp", offset_for_timestamp)
    monkeypatch.setattr(list_offsets, "max_timestamp", lambda log: (109, 9))


def ask(high_watermark: int, epoch_start: int, timestamp: int, version: int) -> tuple[int, int]:
    """(error code, offset)."""
    log: Any = Log()
    partition = Partition(partition_key(TOPIC_ID, 0), "t", TOPIC_ID, 0, log)
    partition.is_leader = True
    partition.leader_epoch = 4
    partition.high_watermark = high_watermark
    partition.epoch_start_offset = epoch_start
    answer = finish(steps_of(partition, timestamp, SimpleNamespace(api_version=version), NoTier()))
    (row,) = answer["topics"][0]["partitions"]
    return row.get("error_code", 0), row["offset"]


def steps_of(
    partition: Partition, timestamp: int, call: Any, tiering: Any, on_storage_fault: Any = None
) -> Any:
    """The steps of the API for one partition."""
    worker: Any = SimpleNamespace(
        image=SimpleNamespace(
            topics_by_name={"t": SimpleNamespace(topic_id=TOPIC_ID, partitions=[None])}
        ),
        partitions=Partitions({partition_key(TOPIC_ID, 0): partition}),
        tiering=tiering,
        clock=VirtualClock(),
        on_storage_fault=on_storage_fault,
    )
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"isolation_level": 0, "topics": [{"name": "t", "partitions": [asked]}]}
    return list_offsets.answer(worker, call, body)


@pytest.mark.parametrize(
    ("timestamp", "behind", "caught_up"),
    [
        (LATEST, (NOT_AVAILABLE, -1), (NONE, 8)),
        (EARLIEST, (NONE, 2), (NONE, 2)),
        (MAX_TIMESTAMP, (NOT_AVAILABLE, -1), (NONE, -1)),
        (107, (NONE, 7), (NONE, 7)),
        (108, (NOT_AVAILABLE, -1), (NONE, -1)),  # there, but not committed
        (200, (NOT_AVAILABLE, -1), (NONE, -1)),
    ],
)
def test_what_may_go_back_is_not_told(
    timestamp: int, behind: tuple[int, int], caught_up: tuple[int, int]
) -> None:
    assert ask(8, 9, timestamp, 7) == behind
    assert ask(8, 8, timestamp, 7) == caught_up
    assert ask(8, 0, timestamp, 7) == caught_up


@pytest.mark.parametrize("version", range(1, 12))
def test_the_error_is_one_that_the_client_knows(version: int) -> None:
    code = error_codes.LEADER_NOT_AVAILABLE if version < 5 else NOT_AVAILABLE
    assert ask(8, 9, LATEST, version) == ask(8, 9, 108, version) == (code, -1)


class LateTier:
    """A store whose list is on its way; its record 1 has the time 500."""

    def __init__(self) -> None:
        self.is_loaded = False
        self.waiting: list[Callable[[int, int, int], None]] = []

    def is_older_here(self, _: Partition, timestamp: int) -> bool:
        return not self.is_loaded or timestamp <= 500

    def max_timestamp(self, _: Partition) -> int:
        return 500 if self.is_loaded else -1

    def find_time(self, _: Partition, __: int, on_done: Callable[[int, int, int], None]) -> None:
        self.waiting.append(on_done)


@pytest.mark.parametrize("error", [NONE, error_codes.REQUEST_TIMED_OUT])
def test_largest_timestamp_waits_until_it_is_known_what_the_store_has(error: int) -> None:
    log: Any = Log()
    partition = Partition(partition_key(TOPIC_ID, 0), "t", TOPIC_ID, 0, log)
    partition.is_leader, partition.high_watermark = True, 10
    replies: list[dict[str, Any]] = []
    tier = LateTier()
    call = SimpleNamespace(api_version=7, reply=replies.append)
    assert finish(steps_of(partition, MAX_TIMESTAMP, call, tier)) is None
    tier.is_loaded = True
    tier.waiting.pop()(error, -1, -1)
    if not error:
        assert not replies
        tier.waiting.pop()(NONE, 500, 1)
    (row,) = replies[0]["topics"][0]["partitions"]
    assert not tier.waiting
    found = row.get("error_code", NONE), row["timestamp"], row["offset"]
    assert found == ((error, -1, -1) if error else (NONE, 500, 1))


def test_a_disk_that_refuses_after_the_store_had_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: Any = Log()
    partition = Partition(partition_key(TOPIC_ID, 0), "t", TOPIC_ID, 0, log)
    partition.is_leader, partition.high_watermark = True, 10
    fault = StorageFault("no", "t-0")

    def refuse(*_: object) -> None:
        raise fault

    monkeypatch.setattr(list_offsets, "offset_for_timestamp", refuse)
    replies: list[dict[str, Any]] = []
    faults: list[StorageFault] = []
    tier = LateTier()
    call = SimpleNamespace(api_version=7, reply=replies.append)
    steps = steps_of(partition, 200, call, tier, lambda _, found: faults.append(found))
    assert finish(steps) is None
    tier.waiting.pop()(NONE, -1, -1)
    (row,) = replies[0]["topics"][0]["partitions"]
    assert row["error_code"] == error_codes.KAFKA_STORAGE_ERROR and faults == [fault]
