"""Each kind of anomaly of a pipeline is found, and none in a good one."""

import pytest

from tests.exactly_once import judging
from tests.exactly_once.records import Place, Record
from tests.exactly_once.topics import AUDIT, BUCKETS, IN, LATEST, OUT, SUMS

FED = {(IN, 0): [(0, "k0", "0"), (1, "k1", "0"), (2, "k0", "1")]}
GOOD = [(0, "k0", "0 t 0 3"), (1, "k1", "0 t 1 3"), (2, "k0", "1 t 2 3")]
AUDITED = [(0, "", "t 3")]
NEWEST = [(1, "k1", "0"), (2, "k0", "1")]


@pytest.mark.parametrize(
    ("out", "audit", "committed", "aborted", "names"),
    [
        (GOOD, AUDITED, ["t"], [], set()),
        (GOOD, AUDITED, [], [], set()),
        (GOOD, AUDITED, ["t"], ["t"], {"aborted"}),
        (GOOD, AUDITED, ["t", "u"], [], {"uncommitted"}),
        (GOOD, [], [], [], {"half"}),
        (GOOD, AUDITED * 2, [], [], {"repeated"}),
        (GOOD[:2], AUDITED, [], [], {"lost", "half"}),
        ([*GOOD, (4, "k1", "0 u 0 1")], [*AUDITED, (1, "", "u 1")], [], [], {"repeated"}),
        ([GOOD[2], GOOD[1], GOOD[0]], AUDITED, [], [], {"order", "half"}),
    ],
)
def test_a_pipeline_is_judged_by_each_rule(
    out: list[Record],
    audit: list[Record],
    committed: list[str],
    aborted: list[str],
    names: set[str],
) -> None:
    seen = {(OUT, 0): out, (AUDIT, 0): audit, (LATEST, 0): NEWEST}
    found = judging.of_pipeline(FED, seen, committed, aborted)
    assert {name for name, cases in found.items() if cases} == names


def test_what_is_compacted_ends_with_the_newest() -> None:
    seen = {(OUT, 0): GOOD, (AUDIT, 0): AUDITED, (LATEST, 0): NEWEST[:1]}
    assert judging.of_pipeline(FED, seen, [], [])["compacted"] == [("k0", ["1"], [])]
    live = {(LATEST, 0): [(0, "k0", "0"), *NEWEST]}
    assert not any(judging.of_readers(live, {(LATEST, 0): NEWEST}).values())
    assert any(judging.of_readers({(LATEST, 0): NEWEST}, live).values())


def test_what_streams_counts_is_judged() -> None:
    seen: dict[Place, list[Record]] = {
        (OUT, 0): FED[IN, 0],
        (SUMS, 0): [(0, "k0", "1 0"), (1, "k0", "2 1"), (2, "k1", "1 0")],
        (BUCKETS, 0): [(0, "b0", "1"), (1, "b0", "2")],
        (BUCKETS, 1): [(0, "b1", "1")],
    }
    assert judging.of_streams(FED, seen) == {}
    seen[SUMS, 0][1] = (1, "k0", "3 1")  # one was counted twice
    found = judging.of_streams(FED, seen)
    assert found == {"lost": [(SUMS, ("k0", "2 1"))], "repeated": [(SUMS, ("k0", "3 1"))]}


@pytest.mark.parametrize(
    ("live", "names"),
    [
        (GOOD, set()),
        (GOOD[:2], {"changed"}),
        ([GOOD[0], GOOD[0], *GOOD[1:]], {"changed", "not-monotonic"}),
        ([GOOD[0], (1, "k1", "of an aborted one"), GOOD[2]], {"changed"}),
    ],
)
def test_a_reader_is_judged_by_one_that_came_later(live: list[Record], names: set[str]) -> None:
    found = judging.of_readers({(OUT, 0): live}, {(OUT, 0): GOOD})
    assert {name for name, cases in found.items() if cases} == names
