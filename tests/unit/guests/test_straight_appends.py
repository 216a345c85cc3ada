"""Batches that a guest's gateway appends by itself, and those that it leaves to the rings."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway.inflight import Request
from shmbroker.gateway.produce_known import SMALL_BYTES_MAX
from shmbroker.guests.straight_appends import BYTES_MIN, StraightAppends
from shmbroker.ids import partition_key
from shmbroker.wire import error_codes as e
from shmbroker.wire.api_keys import PRODUCE
from tests.support.raw_client import batch_of
from tests.unit.broker.test_group_commit import FSYNC, NOW_MS, Worker, worker

__all__ = ["worker"]

BATCH = batch_of(b"v" * BYTES_MIN, timestamp=NOW_MS)
BEFORE = b"a frame begins"
CORRELATION_ID = 77
END_WORD = 64
"""More words than the end of the metadata log needs."""


class One:
    """A guest, its gateway, and the broker beside, which leads one partition."""

    def __init__(self, worker: Worker, **settings: str) -> None:
        self.worker = worker
        self.partition = worker.open("t", **settings)
        image = SimpleNamespace(offset=0)
        broker: Any = SimpleNamespace(
            image=image,
            partitions=worker.store.partitions,
            appender=worker.appender,
            look_at_clocks=lambda: None,
            purgatory=SimpleNamespace(watched={self.partition.key}),
        )
        self.broker = broker
        self.gateway: Any = SimpleNamespace(
            image=image, words=[0] * END_WORD, token=5, pending={}, now=lambda: 1.0
        )
        self.connection: Any = SimpleNamespace(
            inflight=deque(),
            unanswered=0,
            last_active=0.0,
            asked_large_at=-1.0,
            throttle=None,
            out=deque(),
            answered=[],
            traffic=SimpleNamespace(monotonic=lambda: 2.0),
        )
        self.fast: Any = SimpleNamespace(
            acks=1, flags=0, timeout_ms=1000, named=b"", version=9, peer="the broker",
            partition_key=partition_key(self.partition.topic_id, 0),
            answered=lambda *numbers: numbers,
        )  # fmt: skip
        peer: Any = worker.peer
        self.noted: list[Any] = []
        guests: Any = SimpleNamespace(note_usual=self.noted.append)
        self.appends = StraightAppends(self.gateway, broker, guests, peer)

    def append(self, batch: bytes = BATCH) -> bool:
        buffer = bytearray(BEFORE + batch + b"what comes behind")
        return self.appends(
            self.connection, self.fast, buffer, len(BEFORE), len(batch), CORRELATION_ID
        )


def test_what_is_stored_is_answered_at_once(worker: Worker) -> None:
    one = One(worker)
    for number in range(3):
        one.connection.last_active = float(number // 2)
        assert one.append()
        assert one.connection.out.pop() == (CORRELATION_ID, number, -1, 0)
    log = one.partition.log
    assert log.log_end_offset == 3 and worker.appender.batches_in == 3
    assert one.partition in worker.appender.appended
    assert not one.gateway.pending and not one.connection.inflight and not worker.answered()
    assert [row[0] for row in one.connection.answered] == [PRODUCE] * 3
    assert one.noted == [one.connection] * 2  # reads


def test_what_is_refused_is_answered_as_any_other(worker: Worker) -> None:
    one = One(worker)
    one.partition.is_leader = False
    assert one.append()
    ((token, error, _),) = worker.answered()
    assert error == e.NOT_LEADER_OR_FOLLOWER and not one.connection.out
    request: Request = one.gateway.pending[token]
    assert [request] == list(one.connection.inflight)
    assert (request.api_key, request.correlation_id) == (PRODUCE, CORRELATION_ID)


def test_what_waits_for_the_disk_is_answered_when_that_has_it(worker: Worker) -> None:
    one = One(worker, **FSYNC)
    assert one.append() and not one.connection.out and not worker.answered()
    [token] = one.gateway.pending
    worker.appender.acks.group_commit.start()
    worker.finish_job()
    assert worker.answered() == [(token, e.NONE, 0)]


@pytest.mark.parametrize("is_watched", [True, False])
def test_what_the_kernel_may_take_next_is_left_to_the_rings(
    worker: Worker, is_watched: bool
) -> None:
    one = One(worker)
    if not is_watched:
        one.broker.purgatory.watched.clear()
    for size in (BYTES_MIN, SMALL_BYTES_MAX - 100, SMALL_BYTES_MAX):
        batch = batch_of(b"v" * size, timestamp=NOW_MS)
        assert one.append(batch) is (is_watched or len(batch) > SMALL_BYTES_MAX)


def test_small_batches_are_left_to_the_rings(worker: Worker) -> None:
    one = One(worker)
    for size in range(BYTES_MIN - 100, BYTES_MIN):
        batch = batch_of(b"v" * size, timestamp=NOW_MS)
        assert one.append(batch) is (len(batch) >= BYTES_MIN)


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("connection", "inflight", deque([None])),
        ("connection", "unanswered", 1),
        ("connection", "throttle", object()),
        ("fast", "acks", 0),
        ("fast", "named", b"transaction"),
        ("gateway", "image", SimpleNamespace(offset=0)),
        ("gateway", "words", [1] * END_WORD),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_the_rings(worker: Worker, of: str, name: str, value: Any) -> None:
    one = One(worker)
    setattr(getattr(one, of), name, value)
    assert not one.append()
    assert one.partition.log.log_end_offset == 0 and one.gateway.token == 5
    assert not one.gateway.pending and not one.connection.out
