"""Rates over windows: against a list model of Kafka's SampledStat and Rate, and over workers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.shm.quota_counts import (
    BY_DEFAULT,
    PROBES,
    QuotaCounts,
    Used,
    Windows,
    entries,
    entry_bytes,
    table_bytes,
)
from tests.support.examples import examples

KEY = 12345
T0 = 1_000_000


def tables(count: int, windows: Windows = BY_DEFAULT) -> list[QuotaCounts]:
    views = [memoryview(bytearray(table_bytes(windows.number))) for _ in range(count)]
    return [
        QuotaCounts(view, [other for other in views if other is not view], windows)
        for view in views
    ]


class Model:
    """One sensor as a list of [start, last, amount], the newest last."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.samples: list[list[int]] = []

    def record(self, amount: int, now: int) -> tuple[int, int]:
        if not self.samples or now - self.samples[-1][0] >= self.windows.length_ms:
            self.samples.append([now, now, 0])
            del self.samples[: -self.windows.number - 1]
        self.samples[-1][1] = now
        self.samples[-1][2] += amount
        span = self.windows.number * self.windows.length_ms
        alive = [sample for sample in self.samples if now - sample[1] < span]
        elapsed = now - min(sample[0] for sample in alive)
        whole = elapsed // self.windows.length_ms
        elapsed += max(0, self.windows.number - 1 - whole) * self.windows.length_ms
        return sum(sample[2] for sample in alive), max(1, elapsed)


steps = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1 << 40)), max_size=60)


@given(steps, st.integers(1, 13), st.sampled_from([1000, 2000, 3]))
@settings(max_examples=examples(150), deadline=None)
def test_one_worker_measures_what_the_model_does(
    steps: list[tuple[int, int]], count: int, length_ms: int
) -> None:
    windows = Windows(count, length_ms)
    (counts,) = tables(1, windows)
    model = Model(windows)
    now = T0
    for pause_ms, amount in steps:
        now += pause_ms
        assert counts.record(KEY, amount, now) == model.record(amount, now)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 100)), max_size=50)
)
@settings(max_examples=examples(50), deadline=None)
def test_several_workers_see_all_that_any_of_them_counted_lately(
    steps: list[tuple[int, int, int]],
) -> None:
    workers = tables(4)
    now = T0
    recorded: list[tuple[int, int]] = []
    for who, pause_ms, amount in steps:
        now += pause_ms
        recorded.append((now, amount))
        used = workers[who].record(KEY, amount, now)
        sure = sum(amount for at, amount in recorded if now - at < 10_000)
        maybe = sum(amount for at, amount in recorded if now - at < 12_000)
        assert sure <= used.amount <= maybe
        assert 10_000 <= used.elapsed_ms <= 12_999
        assert all(worker.used(KEY, now) == used for worker in workers)


def test_what_was_used_long_ago_counts_no_more() -> None:
    (counts,) = tables(1)
    counts.record(KEY, 7, T0)
    assert counts.used(KEY, T0 + 10_999).amount == 7
    assert counts.used(KEY, T0 + 11_000) == Used(0, 10_000)


def test_keys_are_counted_apart_and_taken_back() -> None:
    (counts,) = tables(1)
    counts.record(KEY, 7, T0)
    counts.record(KEY + 1, 9, T0)
    counts.take_back(KEY, 5, T0)
    assert counts.used(KEY, T0).amount == 2
    assert counts.used(KEY + 1, T0).amount == 9


def test_a_successor_goes_on_where_its_predecessor_ended() -> None:
    view = memoryview(bytearray(table_bytes(11)))
    counts = QuotaCounts(view)
    for second in range(5):
        counts.record(KEY, 10, T0 + second * 1000)
    successor = QuotaCounts(view)
    assert successor.record(KEY, 1, T0 + 4500) == (51, 10_500)
    assert successor.record(KEY, 1, T0 + 5000).amount == 52


def test_of_too_many_keys_the_idlest_begins_anew() -> None:
    (counts,) = tables(1)
    keys = [KEY + n * entries(11) for n in range(PROBES + 1)]  # all in the same places
    for n, key in enumerate(keys[:-1]):
        counts.record(key, 100, T0 + n)
    counts.record(keys[0], 1, T0 + 50)
    assert counts.record(keys[-1], 5, T0 + 60).amount == 5
    assert counts.used(keys[0], T0 + 60).amount == 101
    assert counts.used(keys[2], T0 + 60).amount == 100
    assert counts.record(keys[1], 3, T0 + 61).amount == 3, "it was the idlest"


@pytest.mark.parametrize(("amount", "bound"), [(3 << 20, 1.0), (1, 5e-324), (1 << 60, 1e-300)])
def test_a_throttle_time_fits_into_an_answer(amount: int, bound: float) -> None:
    assert Used(amount, 1000).throttle_ms(bound) == (1 << 31) - 1


def test_throttle_is_the_time_after_which_the_rate_is_within_the_bound() -> None:
    assert Used(10_000, 10_000).throttle_ms(1000.0) == 0
    assert Used(20_000, 10_000).throttle_ms(1000.0) == 10_000
    assert Used(10_500, 10_000).throttle_ms(1000.0) == 500
    assert Used(1 << 60, 10_000).throttle_ms(float("inf")) == 0
    assert Used(1 << 60, 10_000).throttle_ms(float("nan")) == 0


@pytest.mark.parametrize(
    ("pause_ms", "waits", "told"),
    [
        (0, False, [0, 0, 0, 0, 2150, 4580]),
        (0, True, [0, 0, 0, 0, 2150, 4430]),  # less by 150 ms of a window
        (125, False, [0, 0, 0, 0, 1650, 3955]),
        (500, False, [0, 0, 0, 0, 2150, 4080]),
        (1000, False, [0, 0, 0, 0, 2150, 4580]),
        (3000, False, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_who_is_over_its_rate_is_told_more_each_time(
    pause_ms: int, waits: bool, told: list[int]
) -> None:
    """Requests of 2,430 bytes at 1,000 a second: over ten whole seconds and what the one of now
    has gone on, as Kafka counts."""
    (counts,) = tables(1)
    now, found = T0, []
    for _ in told:
        found.append(counts.record(KEY, 2430, now).throttle_ms(1000.0))
        now += pause_ms + (found[-1] if waits else 0)
    assert found == told


def test_tables_of_many_windows_stay_small() -> None:
    assert table_bytes(11) == 1024 * 320
    assert entry_bytes(11) == 320
    for count in (1, 11, 100, 5000):
        assert table_bytes(count) <= max(4 << 20, PROBES * entry_bytes(count))
