"""Anomalies in a history of transactions that append to lists and read them, as Elle finds them.

A list is a partition; who appends a value to it writes a record; a read is what a read_committed
reader had seen from the start of the list on. Every value is appended once.

    G0    transactions that have written before one another: a cycle of ww edges
    G1a   an aborted read: a value of a transaction that was not committed
    G1b   an intermediate read: some of what a transaction has appended to a list, not all of it
    G1c   transactions that follow from one another: a cycle of ww and wr edges

    ww    a → b: b's value comes behind a's in a list
    wr    a → b: b has read a value of a

Rules of this file:
* Pure: a history in, what is wrong with it out.
* Kafka lets transactions of several producers write to the same partitions at the same time, and
  promises nothing of their order there. Those of one transactional id come one after the other,
  over all of its producers. So ww edges are drawn within a `session` only.
* Whether a transaction was committed may be unknown to who began it. Whoever has read a value of it
  knows; then all of it must be there.

Source: Adya, Liskov, O'Neil, "Generalized Isolation Level Definitions" (2000); Kingsbury, Alvaro,
"Elle" (2020).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class Transaction(NamedTuple):
    """One of a history."""

    name: str
    session: str
    """Whose transactions come one after the other: the transactional id."""
    appended: Mapping[Any, Sequence[Any]]
    """By list, what it has appended, in order."""
    read: Mapping[Any, Sequence[Any]]
    """By list, all that it held when this read it."""
    is_committed: bool | None
    """As its client was told; None if it was not."""


def anomalies(history: Sequence[Transaction]) -> list[str]:
    """What is wrong with it, in words; a read alone is a transaction that has appended nothing."""
    lists, found = _lists(history)
    writers = {
        (key, value): one for one in history for key, own in one.appended.items() for value in own
    }
    found += _strange(lists, writers)
    found += _aborted(lists, writers)
    found += _intermediate(history, writers)
    edges: dict[str, dict[str, str]] = {one.name: {} for one in history}
    _add_writes(edges, lists, writers)
    cycle = _cycle(edges)
    if cycle:
        return [*found, f"G0: {cycle}"]
    _add_reads(edges, history, writers)
    cycle = _cycle(edges)
    return [*found, f"G1c: {cycle}"] if cycle else found


Lists = dict[Hashable, Sequence[Hashable]]
Writers = dict[tuple[Hashable, Hashable], Transaction]


def _lists(history: Iterable[Transaction]) -> tuple[Lists, list[str]]:
    """Each list as the longest read has it; reads that do not fit."""
    longest: Lists = {}
    for one in history:
        for key, values in one.read.items():
            if len(values) > len(longest.get(key, ())):
                longest[key] = values
    found = [
        f"{one.name} has read {key} in an order that others have not"
        for one in history
        for key, values in one.read.items()
        if list(values) != list(longest.get(key, ())[: len(values)])
    ]
    return longest, found


def _strange(lists: Lists, writers: Writers) -> Iterator[str]:
    for key, values in lists.items():
        if len(set(values)) < len(values):
            yield f"{key} holds a value twice"
        for value in values:
            if (key, value) not in writers:
                yield f"{key} holds {value}, which nobody has written"


def _aborted(lists: Lists, writers: Writers) -> Iterator[str]:
    for key, values in lists.items():
        for value in values:
            writer = writers.get((key, value))
            if writer is not None and writer.is_committed is False:
                yield f"G1a: {key} holds {value} of {writer.name}, which was aborted"


def _intermediate(history: Iterable[Transaction], writers: Writers) -> Iterator[str]:
    for one in history:
        for key, values in one.read.items():
            known = set(values)
            seen = [writers[key, value] for value in values if (key, value) in writers]
            for writer in {each.name: each for each in seen}.values():
                missing = [value for value in writer.appended[key] if value not in known]
                if missing and writer is not one:
                    yield f"G1b: {one.name} has read {key} without {missing} of {writer.name}"


def _add_writes(edges: dict[str, dict[str, str]], lists: Lists, writers: Writers) -> None:
    for key, values in lists.items():
        newest: dict[str, Transaction] = {}
        for value in values:
            writer = writers.get((key, value))
            if writer is None:
                continue
            before = newest.get(writer.session)
            if before is not None and before is not writer:
                edges[before.name][writer.name] = f"ww {key}"
            newest[writer.session] = writer


def _add_reads(
    edges: dict[str, dict[str, str]], history: Iterable[Transaction], writers: Writers
) -> None:
    for one in history:
        for key, values in one.read.items():
            for value in values:
                writer = writers.get((key, value))
                if writer is not None and writer is not one:
                    edges[writer.name].setdefault(one.name, f"wr {key}")


def _cycle(edges: dict[str, dict[str, str]]) -> str:
    """A cycle, as one line; "" if there is none."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        on_path: set[str] = set()
        left: list[tuple[str, Iterator[str]]] = []
        if start not in done:
            left.append((start, iter(edges[start])))
            path.append(start)
            on_path.add(start)
        while left:
            name, following = left[-1]
            after = next(following, None)
            if after is None:
                left.pop()
                path.pop()
                on_path.discard(name)
                done.add(name)
            elif after in on_path:
                ring = [*path[path.index(after) :], after]
                steps = [f" -{edges[a][b]}→ {b}" for a, b in pairwise(ring)]
                return ring[0] + "".join(steps)
            elif after not in done:
                left.append((after, iter(edges[after])))
                path.append(after)
                on_path.add(after)
    return ""
