"""A replica begins to lead: with what any leader before has told, alone or not."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.append import Appender
from shmbroker.broker.replication.replication import Replication
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.shm.positions import PositionSlot, PositionTable, SiblingPositions, table_bytes
from tests.support.leadership import leadership

TOPIC_ID = bytes(15) + b"\x07"
KEY = TOPIC_ID + bytes(4)
REPLICAS = (1, 2, 3)
TOLD = 4
"""What broker 2 has told, which led."""
KNOWN = 3
"""What broker 1 has heard of it: its log ends at 5."""


class Taking:
    """Broker 1, whose process has just begun, and the table of broker 2."""

    def __init__(self, directory: Path) -> None:
        log = PartitionLog.open(str(directory), LogConfig(), file_ids=itertools.count(1))
        batch = encode_batch([(1, None, b"v", ())] * 5)
        log.append(memoryview(batch), 4, 1, 1, 1)
        self.partition = Partition(KEY, "t", TOPIC_ID, 0, log)
        self.partition.known_high_watermark = KNOWN
        partitions = Partitions({KEY: self.partition})
        memory = memoryview(bytearray(table_bytes(8)))
        self.table = PositionTable(memory, 8)
        peer: Any = SimpleNamespace(
            slot=2,
            number=2,
            send=lambda *sent: self.sent.append(sent),
            doorbell=SimpleNamespace(ring_if_sleeping=lambda: None),
        )
        self.peer = peer
        self.sent: list[Any] = []
        nothing: Any = lambda *_, **__: False  # noqa: E731
        self.replication = Replication(
            1,
            Appender(partitions, lambda: 1, nothing, nothing, lambda: 1),
            {2: (peer, nothing)},
            {2: SiblingPositions(memory)},
            1000,
            awake=nothing,
            new_token=nothing,
            pass_file=nothing,
            note_gap=nothing,
            raise_log_start=nothing,
            flush=nothing,
            find_state=nothing,
            ask=nothing,
            tell=nothing,
            on_decided=nothing,
            on_high_watermark=nothing,
            on_log_start=nothing,
        )
        slot = self.table.allocate(KEY)
        assert slot is not None
        self.slot = slot
        PositionSlot(self.table, slot).store_high_watermark(TOLD)

    def on_leader(
        self,
        leader: int,
        epoch: int,
        replicas: tuple[int, ...] = REPLICAS,
        in_sync: tuple[int, ...] = (1, 3),
    ) -> int:
        """Who leads now; the high watermark here."""
        image = leadership(epoch, leader, replicas, in_sync)
        self.replication.on_leadership(self.partition, image)
        return self.partition.high_watermark


@pytest.fixture
def taking(tmp_path: Path) -> Taking:
    (tmp_path / "t-0").mkdir()
    return Taking(tmp_path / "t-0")


def test_who_has_followed_asks_the_leader_before(taking: Taking) -> None:
    assert taking.on_leader(2, 1) == KNOWN
    assert taking.on_leader(1, 2) == TOLD


def test_who_begins_as_leader_asks_all(taking: Taking) -> None:
    """Its process was dead when the other one told that, and when it died, too."""
    assert taking.on_leader(1, 2) == TOLD


def test_who_was_held_back_asks_all(taking: Taking) -> None:
    taking.partition.leads_from_epoch = 3
    assert taking.on_leader(1, 2) == KNOWN
    assert taking.on_leader(1, 3) == TOLD


def test_who_takes_over_from_one_that_was_moved_away_knows_that_it_may_be_behind(
    taking: Taking,
) -> None:
    """That one has applied it first, so nothing is left of what it had told: ListOffsets refuses
    the end (KIP-207), and Fetch tells the one that is known, as in Apache Kafka."""
    taking.on_leader(2, 1)
    taking.table.free(taking.slot)
    assert taking.on_leader(1, 2, (1, 3)) == KNOWN
    assert taking.partition.is_high_watermark_behind


def test_an_ack_is_given_when_the_replicas_that_it_waits_for_go(taking: Taking) -> None:
    """The partition is moved to this broker alone."""
    taking.on_leader(1, 2)
    delayed = taking.replication.delayed
    delayed.add((taking.peer, 7, taking.partition, 4, 1, 5, 1 << 60))
    assert taking.on_leader(1, 3, (1,), (1,)) == 5
    assert len(taking.sent) == 1 and not len(delayed)


def test_who_is_left_alone_follows_no_more(taking: Taking) -> None:
    taking.on_leader(2, 1)
    rows = taking.replication.fetcher.links[2].rows
    assert len(rows) == 1
    taking.on_leader(1, 2, (1,), (1,))
    assert not rows
