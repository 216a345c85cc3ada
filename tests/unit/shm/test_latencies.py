"""Histograms in shared memory: what was counted is seen, and a successor goes on from it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.shm.latencies import (
    BUCKETS,
    OTHERS,
    ROWS,
    STAGE_FLUSH,
    Latencies,
    read_table,
    table_bytes,
)

Counted = list[tuple[int, int]]
"""Keys and microseconds."""


@pytest.fixture
def view() -> memoryview:
    return memoryview(bytearray(table_bytes()))


def bucket(took_us: int) -> int:
    return min(max(0, took_us).bit_length(), BUCKETS - 1)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([0, 1, 3, STAGE_FLUSH]), st.integers(-5, 1 << 40)),
            max_size=30,
        ),
        max_size=4,
    )
)
def test_what_successors_have_counted_is_there_together(lives: list[Counted]) -> None:
    view = memoryview(bytearray(table_bytes()))
    counts: Counter[tuple[int, int]] = Counter()
    sums: Counter[int] = Counter()
    for life in lives:
        owner = Latencies(view)
        for key, took_us in life:
            owner.of(key).add(took_us)
            owner.show()
            counts[key, bucket(took_us)] += 1
            sums[key] += max(0, took_us)
    found = read_table(view)
    assert set(found) == {key for key, _ in counts}
    for key, (sum_us, buckets) in found.items():
        assert sum_us == sums[key]
        assert buckets == [counts[key, number] for number in range(BUCKETS)]


def test_nothing_is_seen_before_it_is_shown(view: memoryview) -> None:
    owner = Latencies(view)
    owner.of(3).add(10, times=4)
    assert read_table(view) == {}
    owner.show()
    sum_us, buckets = read_table(view)[3]
    assert (sum_us, sum(buckets), buckets[4]) == (40, 4, 4)


def test_keys_without_room_share_a_row(view: memoryview) -> None:
    owner = Latencies(view)
    for key in range(2 * ROWS):
        owner.of(key).add(1)
    owner.show()
    found = read_table(view)
    assert len(found) == ROWS
    assert sum(sum(buckets) for _, buckets in found.values()) == 2 * ROWS
    assert sum(found[OTHERS][1]) == ROWS + 1
