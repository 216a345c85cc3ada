"""Where `group reset-offsets` moves a group to: the option that says it, and the offset."""

from typing import Any

import click
import pytest

from shmbroker.cli.group_reset import Goal, goal_of

NOW_MS = 1_800_000_000_000
NONE = {
    "to_earliest": False,
    "to_latest": False,
    "to_datetime": None,
    "by_duration": None,
    "to_current": False,
    "to_offset": None,
    "shift_by": None,
}


@pytest.mark.parametrize(
    ("option", "value", "number"),
    [
        ("to_offset", 0, 0),
        ("to_offset", 7, 7),
        ("shift_by", 0, 0),
        ("shift_by", -5, -5),
        ("to_datetime", "1234", 1234),
        ("by_duration", "2s", NOW_MS - 2000),
        ("by_duration", "99999d", 0),
    ],
)
def test_one_option_is_the_goal(option: str, value: Any, number: int) -> None:
    assert goal_of(NONE | {option: value}, NOW_MS) == Goal(option, number)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"to_earliest": True, "to_latest": True},
        {"to_current": True, "to_offset": 0},
        {"to_datetime": "soon"},
        {"by_duration": "long"},
    ],
)
def test_other_than_one_option_and_words_that_mean_nothing_are_refused(
    options: dict[str, Any],
) -> None:
    with pytest.raises(click.UsageError):
        goal_of(NONE | options, NOW_MS)


@pytest.mark.parametrize(
    ("goal", "committed", "since", "offset"),
    [
        (Goal("to_earliest"), 50, -1, 10),
        (Goal("to_latest"), 50, -1, 90),
        (Goal("to_current"), 50, -1, 50),
        (Goal("to_current"), 5, -1, 10),
        (Goal("to_current"), None, -1, 90),
        (Goal("to_datetime", 1), 50, 40, 40),
        (Goal("by_duration", 1), 50, -1, 90),
        (Goal("to_offset", 0), None, -1, 10),
        (Goal("to_offset", 95), None, -1, 90),
        (Goal("shift_by", -20), 50, -1, 30),
        (Goal("shift_by", 60), 50, -1, 90),
        (Goal("shift_by", 0), None, -1, None),
    ],
)
def test_an_offset_goes_there_within_what_the_log_holds(
    goal: Goal, committed: int | None, since: int, offset: int | None
) -> None:
    assert goal.offset(committed, 10, 90, since) == offset
