"""ListOffsets of a leader that does not know its high watermark yet (KIP-207)."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import list_offsets
from shmbroker.broker.tier_port import NoTier
from shmbroker.ids import partition_key
from shmbroker.log.config import LogConfig
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.wire import error_codes
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
    worker = SimpleNamespace(
        image=SimpleNamespace(
            topics_by_name={"t": SimpleNamespace(topic_id=TOPIC_ID, partitions=[None])}
        ),
        partitions=Partitions({partition_key(TOPIC_ID, 0): partition}),
        tiering=NoTier(),
    )
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"isolation_level": 0, "topics": [{"name": "t", "partitions": [asked]}]}
    steps = list_offsets.answer(worker, SimpleNamespace(api_version=version), body)
    answer = finish(steps)
    (row,) = answer["topics"][0]["partitions"]
    return row.get("error_code", 0), row["offset"]


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
