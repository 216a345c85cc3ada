"""What has moved between two snapshots."""

from dataclasses import replace

import pytest

from shmbroker.observe.rates import Flow, Rates, between, quantile
from shmbroker.observe.snapshot import Group, Groups, Lag, Partition, Replica, Topic
from shmbroker.shm.counters import Tally
from shmbroker.shm.latencies import STAGE_APPEND, Latencies
from shmbroker.shm.ring import RingWriter
from shmbroker.shm.ring_layout import parts_of_ring
from tests.unit.observe.families import family, slot_of, snapshot

TOOK_S = 2.0


def row(end: int | None = 10, size: int | None = 100, segments: int = 1, read: int | None = 0):
    replicas = [Replica(1, end, 0, size)]
    return Partition(0, replicas, (1,), 1, 1, False, 0, end, size, segments, read)


def topic(*rows: Partition, topic_id: str = "id") -> Topic:
    return Topic("t", topic_id, False, 1, rows)


def rates(before: list[Topic], after: list[Topic]) -> Rates:
    made = family()
    first = snapshot(made, topics=before)
    second = snapshot(made, topics=after)
    return between(first, replace(second, monotonic_s=first.monotonic_s + TOOK_S))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([topic(row())], [topic(row(30, 400, 1, 50))], Flow(10, 150, 25)),
        ([topic(row())], [topic(row(30, 50, 1, 50))], Flow(10, None, 25)),  # retention
        ([topic(row(segments=3))], [topic(row(30, 400, 2))], Flow(10, None, 0)),
        ([topic(row(30))], [topic(row(10))], Flow(0, 0, 0)),  # a log that was cut
        ([], [topic(row(30, 400, 1, 50))], Flow(15, 200, 25)),  # it is new
        ([topic(row(), topic_id="old")], [topic(row(30, 400))], Flow(15, 200, 0)),
        ([topic(row(None, None, read=None))], [topic(row(30, 400, 1, 9))], Flow(0, None, 0)),
    ],
)
def test_what_goes_into_a_topic_and_out_of_it(
    before: list[Topic], after: list[Topic], expected: Flow
) -> None:
    found = rates(before, after)
    assert found.topics["t"] == found.partitions["t-0"] == expected
    assert found.interval_s == TOOK_S


def test_counters_and_latencies_are_those_that_have_come_since() -> None:
    made = family()
    worker = Tally(made.counters, slot_of(made, "network-worker-1"))
    broker = Tally(made.counters, slot_of(made, "io-worker-2"))
    worker.add("turns", 1000)
    broker.add("appended_bytes", 5000)
    owners = [Latencies(made.latencies[slot_of(made, f"network-worker-{n}")]) for n in (1, 2)]
    owners[0].of(0).add(100_000, times=50)
    owners[0].show()
    before = snapshot(made)
    worker.add("turns", 8)
    broker.add("appended_bytes", 600)
    for owner in owners:
        owner.of(0).add(3, times=2)
        owner.of(STAGE_APPEND).add(1, times=1)
        owner.show()
    (view,) = made.rings.values()
    writer = RingWriter(*parts_of_ring(view))
    writer.claim(1, 100)
    writer.publish()
    after = replace(snapshot(made), monotonic_s=before.monotonic_s + TOOK_S)
    found = between(before, after)
    assert found.processes["network-worker-1"].turns == 4
    assert found.processes["network-worker-1"].cpu_share is None  # there is no such process
    assert found.bytes_in == 300
    assert found.requests == 2
    assert [(each.name, each.is_stage, each.count) for each in found.timings] == [
        ("Produce", False, 2),
        ("append", True, 1),
    ]
    produce = found.timings[0]
    assert produce.mean_s == pytest.approx(3e-6)
    assert produce.half_s == pytest.approx(3e-6)
    assert produce.most_s == pytest.approx(4e-6)
    assert found.rings == {"network-worker-1 > io-worker-1": 56}


def test_groups_fall_behind_and_catch_up() -> None:
    def told(*lags: int) -> Groups:
        groups = [
            Group(f"g{number}", "classic", "stable", 1, 1, [Lag("t", 0, 0, lag)])
            for number, lag in enumerate(lags)
        ]
        return Groups(0.0, 0, groups)

    made = family()
    before = snapshot(made, groups=told(10, 20))
    after = replace(snapshot(made, groups=told(30, 4, 7)), monotonic_s=before.monotonic_s + TOOK_S)
    assert between(before, after).lags == {"g0": 10, "g1": -8}


@pytest.mark.parametrize(
    ("counts", "share", "expected_us"),
    [
        ([], 0.5, 0),
        ([0, 0], 0.5, 0),
        ([0, 0, 4], 0.5, 3),
        ([0, 0, 4], 1.0, 4),
        ([10], 0.99, 0.99),
        ([0, 99, 0, 1], 0.99, 2),
        ([0, 98, 0, 2], 0.99, 6),
    ],
)
def test_quantiles_lie_within_their_buckets(
    counts: list[int], share: float, expected_us: float
) -> None:
    assert quantile(counts, share) * 1e6 == pytest.approx(expected_us)
