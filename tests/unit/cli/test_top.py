"""`shmbroker top` without a terminal: views, keys, and screens of every size."""

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("rich")

from rich.cells import cell_len

from shmbroker.cli import local_status
from shmbroker.cli.commands import main
from shmbroker.cli.numbers import bytes_text, short, span_text
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.top import state as keys
from shmbroker.cli.top.screen import Drawer
from shmbroker.cli.top.state import State
from shmbroker.cli.top.terminal import keys_of
from shmbroker.cli.top.views import (
    BAD,
    PLAIN,
    VIEWS,
    WARN,
    head,
    view_named,
    word,
)
from shmbroker.observe.rates import Rates, between
from shmbroker.observe.snapshot import Group, Groups, Lag, Partition, Replica, Snapshot, Topic
from shmbroker.shm.counters import (
    DISK,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    STATE,
    STATE_NONE,
    Tally,
)
from shmbroker.shm.latencies import Latencies
from tests.unit.observe.families import NOW_S, family, slot_of, snapshot, store

TOOK_S = 2.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WIDE = "名前" * 20 + "\x1b[2J\n"
"""A name that no topic can have, but a group."""


def row(
    number: int, leader: int = 1, in_sync: tuple[int, ...] = (1, 2), end: int = 90
) -> Partition:
    replicas = [Replica(1, end, 0, 1300), Replica(2, end - 20, 20, 1200)]
    return Partition(number, replicas, in_sync, leader, 1, False, 5, end, 1300 + end, 2, end * 10)


def topics(grown: int) -> list[Topic]:
    return [
        Topic("busy", "1", False, 1, [row(0, end=90 + 10 * grown), row(1, in_sync=(1,))]),
        Topic("idle", "2", False, 2, [row(0), row(1, -1, ())]),
        *(Topic(f"many-{n:02}", str(n + 3), False, 1, [row(0)]) for n in range(40)),
    ]


def looks() -> tuple[Snapshot, Rates]:
    """A family with some of everything."""
    made = family()
    lags = [Lag("busy", 0, 30, 90), Lag("busy", 1, 90, 90)]
    told = [Group("g", "classic", "empty", 0, 1, lags), Group(WIDE, "consumer", "stable", 2, 2, [])]
    store(made, "io-worker-2", DISK, DISK_IS_FULL)
    store(made, "io-worker-1", LIVENESS_NS, int((NOW_S - 8) * 1e9))
    store(made, "controller-2", STATE, STATE_NONE)
    store(made, "network-worker-1", INCARNATION, 3)
    before = snapshot(made, topics=topics(0), groups=Groups(1.0, 0, told))
    owner = Latencies(made.latencies[slot_of(made, "network-worker-1")])
    owner.of(0).add(3000, times=10)
    owner.show()
    Tally(made.counters, slot_of(made, "io-worker-1")).add("appended_bytes", 4096)
    after = snapshot(made, topics=topics(3), groups=Groups(1.0, 0, told))
    after = replace(after, monotonic_s=before.monotonic_s + TOOK_S)
    return after, between(before, after)


def table(name: str, column: str) -> list[tuple[str, str, str]]:
    """Of each row: its name, one column, and how it is meant."""
    view = VIEWS[view_named(name)]
    place = [each.name for each in view.columns].index(column)
    return [
        (found.cells[0].text, found.cells[place].text, found.mood) for found in view.rows(*looks())
    ]


@pytest.mark.parametrize(
    ("view", "column", "expected"),
    [
        ("processes", "RESTARTS", ("network-worker-1", "2", WARN)),
        ("processes", "SIGN", ("io-worker-1", "8s", BAD)),
        ("processes", "STATE", ("io-worker-2", "running, disk full", BAD)),
        ("processes", "SIGN", ("network-worker-2", "1s", PLAIN)),
        ("rings", "CAPACITY", ("network-worker-1", "4Ki", PLAIN)),
        ("topics", "RECORDS/S", ("busy", "15", WARN)),
        ("topics", "OUT/S", ("busy", "150", WARN)),
        ("topics", "OFFLINE", ("idle", "1", BAD)),
        ("topics", "IN/S", ("many-07", "0", PLAIN)),
        ("partitions", "REPLICAS", ("busy-1", "1,(2)", WARN)),
        ("partitions", "LEADER", ("idle-1", "-", BAD)),
        ("partitions", "LAG", ("busy-0", "20", PLAIN)),
        ("groups", "LAG", ("g", "60", WARN)),
        ("latencies", "COUNT/S", ("Produce", "5", PLAIN)),
        ("latencies", "MEAN", ("Produce", "3ms", PLAIN)),
    ],
)
def test_views_show_what_is_the_matter(
    view: str, column: str, expected: tuple[str, str, str]
) -> None:
    assert expected in table(view, column)


def test_numbers_in_words_are_sorted_as_numbers() -> None:
    names = ["t-10", "t-2", "t-1", "s2-10", "s10-1"]
    assert sorted(names, key=lambda name: word(name).key) == [
        "s2-10",
        "s10-1",
        "t-1",
        "t-2",
        "t-10",
    ]


def test_helpers_that_nobody_has_needed_are_left_out() -> None:
    made = family()
    store(made, "cleaner-1", STATE, STATE_NONE)
    store(made, "cleaner-1", 0, 0)  # its pid
    found = snapshot(made)
    titles = [row.cells[0].text for row in VIEWS[0].rows(found, between(found, found))]
    assert "cleaner-1" not in titles and "tier-1" in titles


def test_head_says_what_is_to_be_seen_at_once() -> None:
    lines = head(*looks())
    text = "\n".join(line.text for line in lines)
    assert "up 60s, controller 1, NOT READY: io-worker-1 gives no sign of life for 8 s" in text
    assert "in 2KiB/s" in text and "5 requests/s" in text
    assert "Produce p50 3.07ms" in text
    assert "42 topics, 44 partitions, 1 under-replicated, 1 without a leader" in text
    assert "2 groups, lag 60" in text
    assert lines[0].mood == lines[3].mood == BAD


@pytest.mark.parametrize("jump_ms", [50 * 365 * 86_400_000, -86_400_000])
def test_wall_clock_that_is_set_does_not_change_how_long_it_is_up(jump_ms: int) -> None:
    seen, rates = looks()
    seen = replace(seen, at_ms=seen.at_ms + jump_ms)
    assert ", up 60s, " in head(seen, rates)[0].text
    assert local_status.described(seen, 1)["up_s"] == 60


def drawn(drawer: Drawer, state: State, width: int, height: int) -> list[str]:
    seen = looks()
    return drawer.screen(state, head(*seen), state.shown.rows(*seen), width, height)


@pytest.mark.parametrize("view", range(len(VIEWS)))
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (20, 8), (1, 1)])
def test_screens_have_no_more_columns_and_lines_than_there_are(
    view: int, width: int, height: int
) -> None:
    drawer = Drawer(io.StringIO(), is_terminal=True)
    lines = drawn(drawer, State(view=view), width, height)
    assert all(cell_len(ANSI.sub("", line)) <= width for line in lines)
    if height >= 8:
        assert len(lines) <= height
    assert all(ANSI.sub("", line).isprintable() for line in lines)


def test_screen_of_the_usual_size() -> None:
    drawer = Drawer(io.StringIO(), is_terminal=True)
    lines = [ANSI.sub("", line) for line in drawn(drawer, State(view=2), 80, 24)]
    assert len(lines) == 24
    assert lines[4].startswith(" 1 processes  2 rings  3 topics ")
    assert lines[5].split()[:5] == ["TOPIC", "PARTS", "RECORDS/S", "IN/S", "OUT/S"]
    assert lines[6].split()[:5] == ["busy", "2", "15", "15", "150"]
    assert lines[-1].startswith("1-17 of 42, every 1s")


def press(*pressed: str, **given: Any) -> State:
    made = State(**given)
    for key in pressed:
        made.on_key(key)
    return made


def names(made: State, count: int = 3) -> list[str]:
    rows = made.choose(made.shown.rows(*looks()))
    return [row.cells[0].text for row in made.window(rows, count)]


def test_keys_choose_view_order_and_rows() -> None:
    assert press("3").shown.name == "topics"
    assert press(keys.TAB, keys.TAB, keys.BACK_TAB).shown.name == "rings"
    assert press(keys.BACK_TAB).shown.name == "latencies"
    assert press("9").shown.name == "processes"
    assert names(press("3")) == ["busy", "idle", "many-00"]
    assert names(press("3", "r")) == ["idle", "many-00", "many-01"]
    by_name = ("3", "<", "<", "<")
    assert names(press(*by_name)) == ["busy", "idle", "many-00"]
    assert names(press(*by_name, "r")) == ["many-39", "many-38", "many-37"]
    assert press("3", keys.RIGHT).sorting.column == 4
    assert press(*"3<<<<").sorting.column == len(VIEWS[2].columns) - 1
    assert press("3", ">", "1", "3").sorting.column == 4, "each view keeps its own"


def test_filter_is_typed() -> None:
    typed = press(*"3/Many-1", keys.BACKSPACE, "2", "q", keys.BACKSPACE)
    assert typed.is_typing and not typed.is_over
    assert names(typed) == ["many-20", "many-21", "many-22"]
    typed.on_key(keys.ENTER)
    assert not typed.is_typing and typed.filter == "Many-2"
    typed.on_key(keys.ESCAPE)
    assert names(typed) == ["busy", "idle", "many-00"]
    assert names(press(*"3/nothing like it")) == []


def test_rows_are_scrolled_as_far_as_there_are_some() -> None:
    made = press("3")
    assert names(made) == ["busy", "idle", "many-00"]
    for key, first in (
        (keys.DOWN, "idle"),
        (keys.PAGE_DOWN, "many-02"),
        (keys.UP, "many-01"),
        (keys.END, "many-37"),
        (keys.PAGE_DOWN, "many-37"),
        (keys.PAGE_UP, "many-34"),
        (keys.HOME, "busy"),
        (keys.UP, "busy"),
    ):
        made.on_key(key)
        assert names(made)[0] == first, key


def test_pause_speed_and_end() -> None:
    assert press(" ").is_paused and not press(" ", " ").is_paused
    assert press("+").interval_s == 0.5
    assert press(*"+" * 20).interval_s == keys.INTERVALS_S[0]
    assert press(*"-" * 20).interval_s == keys.INTERVALS_S[-1]
    assert press("-", interval_s=3.0).interval_s in keys.INTERVALS_S
    assert press("q").is_over
    assert press("/", "q", keys.INTERRUPT).is_over


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("q1", ["q", "1"]),
        ("\x1b[A\x1bOB", [keys.UP, keys.DOWN]),
        ("\x1b[5~\x1b[6~x", [keys.PAGE_UP, keys.PAGE_DOWN, "x"]),
        ("\x1b", [keys.ESCAPE]),
        ("\x1bq", [keys.ESCAPE, "q"]),
        ("\x1b[", []),
        ("\x1b[1;5Cq", ["q"]),
        ("\t\r\x7f\x03", [keys.TAB, keys.ENTER, keys.BACKSPACE, keys.INTERRUPT]),
        ("\x1b[Zü", [keys.BACK_TAB, "ü"]),
    ],
)
def test_what_terminals_send_is_read(sent: str, expected: list[str]) -> None:
    assert list(keys_of(sent)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (short(0), "0"), (short(999), "999"), (short(999.7), "1k"), (short(1234567), "1.23M"),
        (short(0.25), "0.25"), (short(-1500), "-1.5k"), (short(5e18), "5e+03P"),
        (bytes_text(1023), "0.999Ki"), (bytes_text(1 << 20), "1Mi"), (bytes_text(12.5), "12.5"),
        (span_text(0), "0us"), (span_text(0.0015), "1.5ms"), (span_text(12.34), "12.3s"),
        (span_text(125), "2m05s"), (span_text(3700), "1h01m"), (span_text(400000), "4d15h"),
    ],
)  # fmt: skip
def test_numbers_are_short(text: str, expected: str) -> None:
    assert text == expected


def test_usage() -> None:
    with pytest.raises(CommandFault, match="there is no view x; processes, rings"):
        view_named("x")
    for words, status, text in (
        (["--json"], 2, "--json goes with --once"),
        ([], 2, "top needs a terminal; --once prints one look"),
        (["--once", "--data", "/nowhere"], 1, "no broker runs on /nowhere"),
        (["--once", "--view", "nope"], 1, "there is no view nope"),
        (["--interval", "0"], 2, "0.0 is not in the range"),
    ):
        ran = CliRunner().invoke(main, ["top", *words])
        assert (ran.exit_code, text in ran.output) == (status, True), ran.output


def test_without_rich_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmbroker.cli.top.find_spec", lambda _name: None)
    ran = CliRunner().invoke(main, ["top", "--once"])
    assert ran.exit_code == 1
    assert "`shmbroker top` needs rich, which is not installed: pip install" in ran.output
    ran = CliRunner().invoke(main, ["top", "--once", "--json", "--data", "/nowhere"])
    assert "no broker runs on /nowhere" in ran.output


def test_snapshot_and_rates_are_json() -> None:
    from shmbroker.observe.snapshot import plain

    after, rates = looks()
    read = json.loads(json.dumps({"snapshot": plain(after), "rates": plain(rates)}))
    assert read["rates"]["topics"]["busy"]["records_in"] == 15
    assert read["rates"]["timings"][0]["name"] == "Produce"
