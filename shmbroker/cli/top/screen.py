"""Draws: lines of a screen out of a state and rows, by rich.

A screen is WIDTH columns and HEIGHT lines at most: four lines of head, the views, a table, and a
line of keys. Columns that have no room are left out from the right, but for the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shmbroker.cli.top.state import State
from shmbroker.cli.top.views import BAD, GOOD, PLAIN, VIEWS, WARN, Column, Line, ViewRow

STYLES = {PLAIN: "", GOOD: "green", WARN: "yellow", BAD: "bold red"}
FIRST_WIDTH_LEAST = 16
KEYS = "1-6 view <> sort r turn / filter space pause +- speed q quit"
_GAP = 1


class Drawer:
    """Makes lines; `stream` says what the terminal can do (colours, NO_COLOR)."""

    def __init__(self, stream: IO[str], is_terminal: bool) -> None:
        self._console = Console(
            file=stream,
            force_terminal=is_terminal,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            no_color=None if is_terminal else True,
        )

    def screen(
        self,
        state: State,
        above: Sequence[Line],
        all_rows: Sequence[ViewRow],
        width: int,
        height: int,
        notice: str = "",
    ) -> list[str]:
        """A whole screen: `above` the table the head, in it what the state lets through of the
        view's rows; `notice`: said instead of the first line."""
        lines = [_line(each) for each in above]
        if notice:
            lines[0] = Text(notice, style=STYLES[BAD])
        lines.append(_tabs(state))
        rows = state.choose(all_rows)
        shown = state.window(rows, height - len(lines) - 2)
        table = self.table(state, shown, width)
        return self._text(lines, width) + table + self._text([_foot(state, len(rows))], width)

    def table(self, state: State, rows: Sequence[ViewRow], width: int) -> list[str]:
        """The columns' names and these rows."""
        columns = state.shown.columns
        widths = [
            max([len(column.name), *(len(row.cells[number].text) for row in rows)])
            for number, column in enumerate(columns)
        ]
        kept = _fitting(columns, widths, width)
        table = Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), expand=False, header_style=""
        )
        spare = width - sum(widths[number] + _GAP for number in kept[1:])
        for number in kept:
            column = columns[number]
            is_sorted = number == state.sorting.column
            table.add_column(
                Text(column.name, style="bold reverse" if is_sorted else "bold"),
                justify="right" if column.is_number else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=min(widths[number], width) if number else None,
                max_width=None if number else max(1, spare - _GAP),
            )
        for row in rows:
            cells = [row.cells[number].text for number in kept]
            table.add_row(*(Text(cell) for cell in cells), style=STYLES[row.mood])
        console = self._console
        console.width = width
        with console.capture() as captured:
            console.print(table, end="")
        return captured.get().rstrip("\n").split("\n")

    def _text(self, lines: Sequence[Text], width: int) -> list[str]:
        found = []
        self._console.width = width
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            with self._console.capture() as captured:
                self._console.print(line, end="", no_wrap=True)
            found.append(captured.get().rstrip("\n"))
        return found


def _line(line: Line) -> Text:
    return Text(line.text, style=STYLES[line.mood])


def _tabs(state: State) -> Text:
    text = Text()
    for number, view in enumerate(VIEWS):
        label = f" {number + 1} {view.name} "
        text.append(label, style="reverse" if number == state.view else "dim")
    if state.filter or state.is_typing:
        text.append(f" /{state.filter}{'_' if state.is_typing else ''}", style="bold")
    return text


def _foot(state: State, count: int) -> Text:
    shown = f"{state.at + 1}-{min(state.at + state.page, count)} of {count}" if count else "none"
    how = "paused" if state.is_paused else f"every {state.interval_s:g}s"
    text = Text(f"{shown}, {how}  ", style="bold" if state.is_paused else "")
    return text.append(KEYS, style="dim")


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The columns that have room; the first may be cut down to FIRST_WIDTH_LEAST."""
    kept, used = [0], min(widths[0], FIRST_WIDTH_LEAST) + _GAP
    for number in range(1, len(columns)):
        used += widths[number] + _GAP
        if used - _GAP > width:
            break
        kept.append(number)
    return kept
