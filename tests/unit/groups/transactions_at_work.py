"""A transaction coordinator over real logs, with the markers that it has sent and not got back."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups.transactions.coordinator import TransactionCoordinator
from shmbroker.groups.transactions.endings import Markers
from shmbroker.groups.transactions.transaction import STATE_NAMES, Transaction
from shmbroker.replica.follower import Follower
from shmbroker.settings.broker_config import BrokerConfig
from tests.unit.groups.led_partitions import led_partitions

START_MS = 1_000_000
DAY_MS = 86_400_000


class Answer:
    """What an operation is told; it must be told once."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Transaction | None]] = []

    def __call__(self, error: int, known: Transaction | None) -> None:
        self.told.append((error, known))

    @property
    def is_waiting(self) -> bool:
        assert len(self.told) <= 1
        return not self.told

    @property
    def error(self) -> int:
        assert len(self.told) == 1, self.told
        return self.told[0][0]

    @property
    def known(self) -> Transaction:
        assert self.error == 0
        known = self.told[0][1]
        assert known is not None
        return known


class Call:
    """Who waits for a whole answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def reply(self, body: dict[str, Any], grant: tuple[int, int] | None = None) -> None:
        self.bodies.append(body)


class Broker:
    """`restart` has another coordinator read the logs."""

    def __init__(
        self, directory: Path, partitions: int = 1, version: int = 2, **settings: str
    ) -> None:
        self.now_ms = START_MS
        self.wall_ahead_ms = 0
        """What the wall clock shows more than the steady one."""
        self.version = version
        self.settings = settings
        self.ids = itertools.count(100)
        self.sent: list[Markers] = []
        self.appended: list[int] = []
        self.partitions = led_partitions(directory, "__transaction_state", partitions)
        self.restart()

    def restart(self, is_patient: bool = True) -> None:
        self.sent = []
        self.transactions = TransactionCoordinator(
            BrokerConfig(self.settings),
            lambda: self.now_ms + self.wall_ahead_ms,
            lambda: self.now_ms,
            lambda: next(self.ids, None),
            lambda: self.version,
            lambda partition: self.appended.append(partition.partition),
            self.sent.append,
        )
        for partition in self.partitions:
            self.transactions.on_partition(partition, len(self.partitions))
        while self.transactions.loading and is_patient:
            self.transactions.run_due()

    def replicate_slowly(self) -> None:
        """A follower that counts and is not there yet."""
        for partition in self.partitions:
            follower = Follower(2)
            follower.log_end_offset = partition.log.log_end_offset
            partition.replicas = partition.in_sync_replicas = (1, 2)
            partition.followers = {2: follower}
            partition.count_in_sync()

    def catch_up(self) -> None:
        """The follower has everything."""
        for partition in self.partitions:
            for follower in partition.followers.values():
                follower.log_end_offset = partition.log.log_end_offset
            if partition.advance_high_watermark():
                self.transactions.on_high_watermark(partition)

    def wait(self, ms: int) -> None:
        """Let time pass, with every timer at its time."""
        end = self.now_ms + ms
        while self.transactions.wake_ms <= end:
            self.now_ms = max(self.now_ms, self.transactions.wake_ms)
            self.transactions.run_due()
        self.now_ms = end

    def mark(self) -> list[Markers]:
        """All markers on their way are written."""
        sent, self.sent[:] = list(self.sent), []
        for markers in sent:
            self.transactions.endings.on_marked(markers)
        return sent

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def init(
        self, name: str = "x", producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000
    ) -> Answer:
        answer = Answer()
        self.transactions.requests.init_producer_id(name, producer_id, epoch, timeout_ms, answer)
        return answer

    def add(
        self,
        known: Transaction,
        *partitions: tuple[str, int],
        name: str = "x",
        epoch: int | None = None,
        version: int = 2,
    ) -> Answer:
        answer = Answer()
        epoch = known.producer_epoch if epoch is None else epoch
        self.transactions.requests.add_partitions(
            name, known.producer_id, epoch, partitions or [("t", 0)], version, answer
        )
        return answer

    def end(
        self,
        known: Transaction,
        is_commit: bool = True,
        *,
        name: str = "x",
        epoch: int | None = None,
        version: int = 2,
    ) -> Answer:
        answer = Answer()
        epoch = known.producer_epoch if epoch is None else epoch
        self.transactions.requests.end(name, known.producer_id, epoch, is_commit, version, answer)
        return answer

    def state(self, name: str = "x") -> Transaction | int:
        error, known = self.transactions.describe(name)
        return error if known is None else known


def state_of(broker: Broker, name: str = "x") -> str:
    known = broker.state(name)
    assert isinstance(known, Transaction), known
    return STATE_NAMES[known.state]


def open_one(broker: Broker, name: str = "x", *partitions: tuple[str, int]) -> Transaction:
    return broker.add(broker.init(name).known, *partitions, name=name).known


def assert_counts(broker: Broker) -> None:
    """What is counted by state is what is there."""
    expected = [0] * len(STATE_NAMES)
    for shard in broker.transactions.shards.values():
        for entry in shard.entries.values():
            expected[entry.known.state] += 1
    assert broker.transactions.states() == expected


Make = Callable[..., Broker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Broker] = []

    def one(*arguments: Any, **settings: Any) -> Broker:
        made.append(Broker(tmp_path, *arguments, **settings))
        return made[-1]

    yield one
    for broker in made:
        assert_counts(broker)


@pytest.fixture
def broker(make: Make) -> Broker:
    return make()
