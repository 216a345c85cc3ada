"""What `consume` says and asks for, before and beside the records."""

import re
from types import SimpleNamespace
from typing import Any

import click
import pytest

from shmbroker.cli import consume, consume_readers
from shmbroker.cli.consume_loop import READ_COMMITTED, Bounds, Notes
from shmbroker.cli.consume_readers import GroupReader, outside, partitions_of
from shmbroker.cli.outcome import CommandFault

FIRSTS = {("t", 0): 0, ("t", 1): 3, ("t", 2): 7}
LASTS = {("t", 0): 5, ("t", 1): 9, ("t", 2): 7}


OUTSIDE = {
    (7, False): ["offset 7 is beyond the end of t-0 (offsets 0 to 4): waiting for new records"],
    (99, True): [
        "offset 99 is beyond the end of t-0 (offsets 0 to 4), t-1 (offsets 3 to 8) and "
        "t-2 (empty, next offset 7): nothing to read there"
    ],
    (4, False): [
        "offset 4 is not in t-2 (empty, next offset 7) any more: beginning at the first that is"
    ],
    (6, True): [
        "offset 6 is beyond the end of t-0 (offsets 0 to 4): nothing to read there",
        "offset 6 is not in t-2 (empty, next offset 7) any more: beginning at the first that is",
    ],
}


@pytest.mark.parametrize(("case", "said"), OUTSIDE.items(), ids=str)
def test_offset_outside_the_log_is_told(case: tuple[int, bool], said: list[str]) -> None:
    number, is_ending = case
    assert list(outside(number, FIRSTS, LASTS, is_ending)) == said


def test_nothing_is_said_of_an_offset_in_the_log_or_at_its_end() -> None:
    assert list(outside(4, {("t", 0): 0}, {("t", 0): 5}, False)) == []
    assert list(outside(5, {("t", 0): 0}, {("t", 0): 5}, False)) == []
    assert list(outside(0, {("t", 0): 0}, {("t", 0): 0}, True)) == []


def test_many_partitions_are_counted() -> None:
    firsts = {("t", number): 0 for number in range(50)}
    (text,) = outside(9, firsts, firsts, False)
    assert text.count("t-") == consume_readers.RANGES_MAX
    assert "and 47 more: waiting" in text


def test_partitions_that_are_not_there_are_named() -> None:
    known = {"t": SimpleNamespace(partitions={0: None, 1: None})}
    assert partitions_of(known, "t") == [("t", 0), ("t", 1)]
    assert partitions_of(known, "t", (1,)) == [("t", 1)]
    with pytest.raises(CommandFault, match="t has no partition 2, only 0 to 1"):
        partitions_of(known, "t", (2,))
    with pytest.raises(CommandFault, match="there is no topic x"):
        partitions_of(known, "x")


def group_reader(
    words: tuple[str, ...], known: list[str], notes: Notes, is_ending: bool = False
) -> Any:
    """A member whose client library knows these topics."""
    cluster: Any = SimpleNamespace(security="PLAINTEXT", servers="h:1")
    bounds = Bounds(is_ending, None, None, READ_COMMITTED)
    reader = GroupReader(cluster, words, "g", "earliest", bounds, lambda _: b"", notes)
    topics = dict.fromkeys(known, SimpleNamespace())
    reader.consumer = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=topics))
    return reader


TALKATIVE = Notes(is_wanted=True, is_talkative=True)
QUIET = Notes(is_wanted=False, is_talkative=False)


def test_group_says_once_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    reader = group_reader(("t",), ["t"], TALKATIVE)
    for _ in range(20):
        reader.idle()
    (line,) = capsys.readouterr().err.splitlines()
    assert "waiting for group g" in line
    assert "group.initial.rebalance.delay.ms" in line
    reader._assigned(None, [SimpleNamespace(topic="t", partition=0)])
    reader._assigned(None, [])
    assert capsys.readouterr().err.splitlines() == [
        "shmbroker: group g gave us t-0",
        "shmbroker: group g gave us no partition: others have them",
    ]


def test_group_says_nothing_when_partitions_come_soon_or_nobody_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader = group_reader(("t",), ["t"], Notes(is_wanted=True, is_talkative=False))
    for _ in range(20):
        reader.idle()
    reader = group_reader(("t",), ["t"], TALKATIVE)
    reader.is_assigned = True
    for _ in range(20):
        reader.idle()
    assert capsys.readouterr().err == ""


def test_group_subscribes_to_names_and_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    known = ["flights", "flags", "x"]
    assert group_reader(("fl*", "x", "^f.*s$"), known, QUIET)._subscription() == [
        "^fl.*$",
        "x",
        "^f.*s$",
    ]
    assert group_reader(("y*",), known, TALKATIVE)._subscription() == ["^y.*$"]
    assert "no topic matches y* yet; waiting for one" in capsys.readouterr().err
    for words, is_ending in ((("y",), False), (("y*",), True)):
        with pytest.raises(CommandFault, match=f"there is no topic {re.escape(words[0])}"):
            group_reader(words, known, QUIET, is_ending)._subscription()
    with pytest.raises(click.UsageError, match="expressions of group members lack"):
        group_reader((r"^f\d",), known, QUIET)._subscription()


@pytest.mark.parametrize(
    "forms", [("%s", True, False, None), ("%s", False, False, ":"), (None, True, True, None)]
)
def test_one_form_of_output(forms: tuple[str | None, bool, bool, str | None]) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        consume._writer(*forms, r"\n", False)
