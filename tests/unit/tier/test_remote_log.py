"""What is in the store of a partition, by table and against a plain model of offsets."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.tier.remote_log import ABSENT, RemoteLog, RemoteSegment


def copy(base: int, end: int, size: int = 100, newest: int = 0, epoch: int = 0) -> RemoteSegment:
    return RemoteSegment(base, end, epoch, size, newest)


def local(*bounds: int, size: int = 100) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(base_offset=base, end_offset=end, size=size)
        for base, end in itertools.pairwise(bounds)
    ]


def test_empty_store_has_no_ends():
    log = RemoteLog()
    assert (log.start_offset, log.end_offset) == (ABSENT, ABSENT)
    assert log.find(0) is None
    assert log.covered_end(7) == 7
    assert log.max_timestamp(0, 100) == ABSENT


@pytest.mark.parametrize(
    ("offset", "base"),
    [(0, 0), (9, 0), (10, 10), (19, 10), (20, 30), (29, 30), (39, 30), (40, None)],
)
def test_offset_finds_its_segment_or_the_next_behind_a_gap(offset, base):
    found = RemoteLog([copy(10, 20), copy(0, 10), copy(30, 40)]).find(offset)
    assert (found.base_offset if found else None) == base


def test_overlapping_copies_of_two_leaders_are_one_log():
    log = RemoteLog([copy(0, 10), copy(5, 15, epoch=1), copy(15, 20, epoch=1)])
    assert [log.find(offset).base_offset for offset in (0, 9, 10, 14, 15)] == [0, 0, 5, 5, 15]
    assert log.covered_end(0) == 20


def test_copy_within_another_is_left_out():
    log = RemoteLog([copy(0, 20)])
    log.add(copy(5, 10))
    assert log.segments == [copy(0, 20)]
    log.add(copy(0, 30))
    assert log.segments == [copy(0, 30)]


def test_a_copy_within_another_is_deleted_with_it():
    log = RemoteLog([copy(0, 20), copy(5, 10), copy(0, 20, epoch=1)])
    log.add(copy(0, 30))
    log.add(copy(0, 30, size=7))  # the same objects once more
    assert sorted(log.ended_by(29)) == [copy(0, 20), copy(0, 20, epoch=1), copy(5, 10)]
    gone = log.ended_by(30)
    assert len(gone) == 4
    log.remove(gone)
    assert log.ended_by(30) == []


def test_offsets_are_found_in_what_has_come_and_no_more_in_what_has_gone():
    log = RemoteLog([copy(0, 10), copy(10, 20)])
    log.add(copy(20, 30))
    log.damaged = [copy(5, 10, epoch=1), copy(20, 30, epoch=1)]
    assert (log.find(25), log.covered_end(0)) == (copy(20, 30), 30)
    log.remove([copy(0, 10), copy(5, 10, epoch=1)])
    assert (log.find(15), log.find(25)) == (copy(10, 20), copy(20, 30))
    assert (log.find(5), log.start_offset) == (copy(10, 20), 10)
    assert log.damaged == [copy(20, 30, epoch=1)]
    log.add(copy(30, 40))
    assert [log.find(offset) for offset in (29, 30)] == [copy(20, 30), copy(30, 40)]
    assert log.gaps(0, 50) == [(0, 10), (40, 50)]
    log.remove([copy(10, 20), copy(20, 30)])
    assert (log.find(35), log.covered_end(30)) == (copy(30, 40), 40)


def test_a_transaction_is_looked_for_in_what_ends_behind_an_offset():
    first, second = (copy(base, base + 10)._replace(has_aborted=True) for base in (0, 20))
    log = RemoteLog([first, copy(10, 20), second])
    assert log.with_aborted(9) == [first, second]
    assert log.with_aborted(10) == [second]
    assert log.begins_at(9) == 0
    assert log.begins_at(10) == 10
    assert log.begins_at(30) == ABSENT


@pytest.mark.parametrize(
    ("copies", "bounds", "start", "count"),
    [
        ([], (0, 10, 20), 0, 0),
        ([(0, 10)], (0, 10, 20), 0, 1),
        ([(0, 10), (10, 20)], (0, 10, 20), 0, 2),
        ([(0, 10), (20, 30)], (10, 20, 30), 10, 0),  # the first here is not there
        ([(0, 12)], (0, 10, 20), 0, 1),  # another leader rolled elsewhere
        ([(5, 10)], (0, 10, 20), 5, 1),  # DeleteRecords up to 5
        ([(0, 100)], (30, 40, 50), 30, 2),
    ],
)
def test_local_segments_are_covered_from_the_first_on(copies, bounds, start, count):
    log = RemoteLog([copy(*one) for one in copies])
    assert log.count_covered(local(*bounds), start) == count


def test_segment_that_holds_nothing_needs_no_copy():
    segments = local(0, 10, 20, 30)
    segments[1].size = 0
    log = RemoteLog([copy(0, 10), copy(20, 30)])
    assert log.count_covered(segments, 0) == 3


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ((-1, -1), 0),
        ((500, -1), 10),  # newest 400: too old; newest 600: not
        ((300, -1), 20),
        ((0, -1), 25),  # all copies, but only up to what is local
        ((-1, 350), 10),  # 4 * 100 + 50: one too many
        ((-1, 349), 10),
        ((-1, 250), 20),
        ((-1, 0), 25),
    ],
)
def test_total_retention_takes_the_oldest_copies(limits, end):
    log = RemoteLog([copy(0, 10, newest=400), copy(10, 20, newest=600), copy(20, 30, newest=900)])
    assert log.expired_end(0, 25, 150, 1000, limits) == end


def test_copies_of_what_is_still_local_count_once():
    """Else a log would be cut although it is not too large."""
    log = RemoteLog([copy(0, 10), copy(10, 20), copy(20, 30), copy(30, 40)])
    assert log.expired_end(0, 20, 200, 1000, (-1, 301)) == 0
    assert log.expired_end(0, 20, 200, 1000, (-1, 300)) == 10


def test_retention_stops_at_the_first_that_stays():
    log = RemoteLog([copy(0, 10, newest=900), copy(10, 20, newest=100)])
    assert log.expired_end(0, 30, 0, 1000, (500, -1)) == 0


def test_lookup_by_time_takes_the_first_that_may_have_it():
    log = RemoteLog([copy(0, 10, newest=5), copy(10, 20, newest=50), copy(20, 30, newest=20)])
    assert log.newer_than(6, 0, 30) == copy(10, 20, newest=50)
    assert log.newer_than(6, 20, 30) == copy(20, 30, newest=20)
    assert log.newer_than(5, 0, 30) == copy(0, 10, newest=5)
    assert log.newer_than(5, 10, 30) == copy(10, 20, newest=50)
    assert log.newer_than(6, 20, 20) is None
    assert log.newer_than(51, 0, 30) is None
    assert log.max_timestamp(0, 30) == 50
    assert [log.max_timestamp(*at) for at in ((0, 10), (20, 30), (0, 11), (19, 30))] == [
        5, 20, 50, 50
    ]  # fmt: skip
    assert log.ended_by(19) == [copy(0, 10, newest=5)]


bounds = st.tuples(st.integers(0, 40), st.integers(1, 15))


@given(st.lists(bounds, max_size=12), st.integers(0, 60), st.data())
def test_model_of_single_offsets(pairs, start, data):
    log = RemoteLog()
    there: set[int] = set()
    for base, length in pairs:
        log.add(copy(base, base + length))
        there |= set(range(base, base + length))
    if pairs and data.draw(st.booleans()):
        gone = data.draw(st.sampled_from(log.segments))
        log.remove([gone])
        there = {o for one in log.segments for o in range(one.base_offset, one.end_offset)}
    ends = [segment.end_offset for segment in log.segments]
    assert ends == sorted(set(ends))
    for offset in range(70):
        found = log.find(offset)
        following = sorted(one for one in there if one >= offset)
        if not following:
            assert found is None
        else:
            first = following[0]
            assert found.base_offset <= first < found.end_offset
    covered = start
    while covered in there:
        covered += 1
    assert log.covered_end(start) == covered
