"""Who shall read what: balanced, complete, sticky."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.groups.consumer.assignors import ASSIGNORS, range_, uniform
from tests.support.examples import examples
from tests.support.work import bytecodes_of

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
TOPICS = (A, B, C, b"d" * 16)


def sizes(found: dict[str, Any]) -> dict[str, int]:
    return {each: sum(map(len, rows.values())) for each, rows in found.items()}


def flat(found: dict[str, Any]) -> dict[str, set[tuple[bytes, int]]]:
    return {each: {(t, p) for t, ps in rows.items() for p in ps} for each, rows in found.items()}


def test_uniform_gives_everybody_the_same_number() -> None:
    everything = frozenset({A, B})
    found = uniform(dict.fromkeys("xyz", everything), {A: 4, B: 3}, {}, {})
    assert sorted(sizes(found).values()) == [2, 2, 3]


def test_uniform_moves_no_more_than_a_newcomer_gets() -> None:
    before = uniform(dict.fromkeys("xy", frozenset({A})), {A: 6}, {}, {})
    after = uniform(dict.fromkeys("xyz", frozenset({A})), {A: 6}, before, {})
    assert sizes(after) == {"x": 2, "y": 2, "z": 2}
    assert all(flat(after)[each] <= flat(before)[each] for each in "xy")


def test_uniform_leaves_the_extra_partition_where_it_is() -> None:
    before = {"x": {A: frozenset({0})}, "y": {A: frozenset({1, 2})}}
    assert uniform(dict.fromkeys("xy", frozenset({A})), {A: 3}, before, {}) == before


def test_uniform_takes_back_topics_that_nobody_wants_any_more() -> None:
    before = {"x": {A: frozenset({0}), B: frozenset({0})}}
    assert uniform({"x": frozenset({B})}, {B: 1}, before, {}) == {"x": {B: frozenset({0})}}


def test_uniform_levels_those_with_different_subscriptions() -> None:
    subscriptions = {"x": frozenset({A}), "y": frozenset({A, B}), "z": frozenset({B})}
    found = uniform(subscriptions, {A: 4, B: 2}, {}, {})
    assert sizes(found) == {"x": 2, "y": 2, "z": 2} or sizes(found) == {"x": 3, "y": 1, "z": 2}
    assert B not in found["x"] and A not in found["z"]


def test_range_cuts_topics_alike() -> None:
    found = range_(dict.fromkeys("xyz", frozenset({A, B})), {A: 4, B: 4}, {}, {})
    assert found["x"] == {A: frozenset({0, 1}), B: frozenset({0, 1})}
    assert found["y"] == {A: frozenset({2}), B: frozenset({2})}
    assert found["z"] == {A: frozenset({3}), B: frozenset({3})}


def test_range_goes_by_instance_ids_before_member_ids() -> None:
    subscriptions = dict.fromkeys(("a", "b", "c"), frozenset({A}))
    found = range_(subscriptions, {A: 3}, {}, {"c": "1", "b": "2"})
    assert [found[each] for each in "cba"] == [{A: frozenset({each})} for each in range(3)]


def test_more_members_than_partitions() -> None:
    for assign in ASSIGNORS.values():
        found = assign(dict.fromkeys("xyz", frozenset({A})), {A: 1}, {}, {})
        assert sorted(sizes(found).values()) == [0, 0, 1]


def test_nobody_and_nothing() -> None:
    for assign in ASSIGNORS.values():
        assert assign({}, {}, {}, {}) == {}
        assert assign({"x": frozenset()}, {}, {"x": {A: frozenset({0})}}, {}) == {"x": {}}


SUBSCRIPTIONS = st.dictionaries(
    st.text("xyz", min_size=1, max_size=3), st.frozensets(st.sampled_from(TOPICS)), max_size=8
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(sorted(ASSIGNORS)),
    st.lists(SUBSCRIPTIONS, min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_everything_is_with_one_of_its_subscribers(
    name: str, steps: list[dict[str, frozenset[bytes]]], counts: list[int]
) -> None:
    found: dict[str, Any] = {}
    for subscriptions in steps:
        wanted = frozenset().union(*subscriptions.values())
        topics = {each: count for each, count in zip(TOPICS, counts, strict=True) if each in wanted}
        found = ASSIGNORS[name](subscriptions, topics, found, {})
        assert found.keys() == subscriptions.keys()
        given_out = [row for rows in flat(found).values() for row in rows]
        assert sorted(given_out) == sorted((t, p) for t, n in topics.items() for p in range(n))
        for each, rows in found.items():
            assert rows.keys() <= subscriptions[each]
            assert all(rows.values())
        if len(set(subscriptions.values())) == 1:
            spread = sizes(found).values()
            assert name == "range" or max(spread) - min(spread) <= 1
        if name == "uniform":
            assert ASSIGNORS[name](subscriptions, topics, found, {}) == found, "not at rest"


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 19))
def test_a_uniform_group_that_loses_a_member_moves_only_what_it_had(
    members: int, partitions: int, gone: int
) -> None:
    names = [f"m{each}" for each in range(members + 1)]
    before = uniform(dict.fromkeys(names, frozenset({A})), {A: partitions}, {}, {})
    del names[gone % len(names)]
    after = uniform(dict.fromkeys(names, frozenset({A})), {A: partitions}, before, {})
    moved = sum(len(flat(before)[each] - flat(after)[each]) for each in names)
    assert moved == 0


@pytest.mark.parametrize("assign", ASSIGNORS.values())
@pytest.mark.parametrize("missing", [0, 1])
def test_twice_the_topics_are_twice_the_work(assign: Any, missing: int) -> None:
    """A member comes that wants all topics of another (but for `missing`)."""

    def work(count: int) -> int:
        topics = [number.to_bytes(16, "big") for number in range(count)]
        subscriptions = {"x": frozenset(topics), "y": frozenset(topics[missing:])}
        previous = {"x": {each: frozenset({0, 1}) for each in topics}}
        counts = dict.fromkeys(topics, 2)
        return bytecodes_of(lambda: assign(subscriptions, counts, previous, {}))

    assert work(400) < 2.2 * work(200)
