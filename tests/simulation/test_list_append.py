"""The checker of list-append histories finds what it names, and nothing in good ones."""

import pytest

from tests.simulation.family.list_append import Transaction, anomalies


def wrote(
    name: str,
    appended: dict[str, list[int]],
    *,
    session: str = "",
    read: dict[str, list[int]] | None = None,
    is_committed: bool | None = True,
) -> Transaction:
    return Transaction(name, session or name, appended, read or {}, is_committed)


def saw(**lists: list[int]) -> Transaction:
    return Transaction(f"reader of {sorted(lists)}", "", {}, lists, True)


A_AND_B = [wrote("t1", {"a": [1, 2], "b": [3]}), wrote("t2", {"a": [4]})]

GOOD = {
    "nothing": [],
    "all of it": [*A_AND_B, saw(a=[1, 2, 4], b=[3])],
    "the other way round": [*A_AND_B, saw(a=[4, 1, 2])],
    "one partition before the other": [*A_AND_B, saw(a=[1, 2])],
    "interleaved": [*A_AND_B, saw(a=[1, 4, 2])],
    "aborted, and not seen": [wrote("t1", {"a": [1]}, is_committed=False), saw(a=[])],
    "unknown, and not seen": [wrote("t1", {"a": [1]}, is_committed=None), saw(a=[])],
    "unknown, and seen": [wrote("t1", {"a": [1, 2]}, is_committed=None), saw(a=[1, 2])],
    "several producers in any order": [
        wrote("t1", {"a": [1], "b": [1]}),
        wrote("t2", {"a": [2], "b": [2]}),
        saw(a=[1, 2], b=[2, 1]),
    ],
    "one of its own is not read": [
        wrote("t1", {"a": [1]}),
        wrote("t2", {"a": [2, 3]}, read={"a": [1]}),
        saw(a=[1, 2, 3]),
    ],
    "one after the other in a session": [
        wrote("t1", {"a": [1], "b": [1]}, session="s"),
        wrote("t2", {"a": [2], "b": [2]}, session="s"),
        saw(a=[1, 2], b=[1, 2]),
    ],
    "a chain of reads": [
        wrote("t1", {"a": [1]}),
        wrote("t2", {"b": [1]}, read={"a": [1]}),
        wrote("t3", {"c": [1]}, read={"b": [1]}),
        saw(c=[1]),
    ],
}

BAD = {
    "G0: t1 -ww a→ t2 -ww b→ t1": [
        wrote("t1", {"a": [1], "b": [1]}, session="s"),
        wrote("t2", {"a": [2], "b": [2]}, session="s"),
        saw(a=[1, 2], b=[2, 1]),
    ],
    "G1a: a holds 1 of t1, which was aborted": [
        wrote("t1", {"a": [1]}, is_committed=False),
        saw(a=[1]),
    ],
    "G1b: reader of ['a'] has read a without [2] of t1": [*A_AND_B, saw(a=[1, 4])],
    "G1b: t3 has read a without [2] of t1": [
        *A_AND_B,
        wrote("t3", {"b": [5]}, read={"a": [1]}),
        saw(a=[1, 2, 4]),
    ],
    "G1b: reader of ['a'] has read a without [1] of t1": [
        wrote("t1", {"a": [1, 2]}, is_committed=None),
        saw(a=[2]),
    ],
    "G1c: t1 -wr a→ t2 -wr b→ t1": [
        wrote("t1", {"a": [1]}, read={"b": [1]}),
        wrote("t2", {"b": [1]}, read={"a": [1]}),
    ],
    "G1c: t1 -ww a→ t2 -wr b→ t1": [
        wrote("t1", {"a": [1]}, session="s", read={"b": [1]}),
        wrote("t2", {"a": [2], "b": [1]}, session="s"),
        saw(a=[1, 2]),
    ],
    "a holds a value twice": [wrote("t1", {"a": [1]}), saw(a=[1, 1])],
    "a holds 2, which nobody has written": [wrote("t1", {"a": [1]}), saw(a=[1, 2])],
    "reader of ['a'] has read a in an order that others have not": [
        *A_AND_B,
        saw(a=[4, 1, 2]),
        saw(a=[1, 2]),
    ],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_a_good_history_has_no_anomaly(history: list[Transaction]) -> None:
    assert anomalies(history) == []


@pytest.mark.parametrize(("said", "history"), BAD.items(), ids=BAD)
def test_an_anomaly_is_found_and_named(said: str, history: list[Transaction]) -> None:
    assert anomalies(history) == [said]


def test_long_histories_are_gone_through_without_recursion() -> None:
    many = [wrote(f"t{n}", {"a": [n]}, session="s") for n in range(20_000)]
    assert anomalies([*many, saw(a=list(range(20_000)))]) == []
