"""What is shown, and how keys change it. Pure: keys are names, and a screen is so many lines.

1 … 6, Tab     views                     /      filter: words that rows must have; Enter, Esc
< >, r         sort by another column,   Space  pause, and go on
               the other way round       + -    look more often, less often
arrows, PgUp, PgDn, Home, End  scroll    q      quit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shmbroker.cli.top.views import VIEWS, View, ViewRow

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
LEFT, RIGHT, TAB, BACK_TAB, ENTER, ESCAPE = "left", "right", "tab", "back tab", "enter", "escape"
BACKSPACE, INTERRUPT = "backspace", "interrupt"

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Sorting:
    """How one view is sorted."""

    column: int
    is_reversed: bool


@dataclass
class State:
    """What the person at the keys has chosen."""

    interval_s: float = 1.0
    view: int = 0
    is_paused: bool = False
    is_over: bool = False
    is_typing: bool = False
    """A filter is typed."""
    filter: str = ""
    at: int = 0
    """The first row that is shown."""
    page: int = 1
    """Rows on the screen; who draws says so."""
    sortings: list[Sorting] = field(
        default_factory=lambda: [Sorting(view.sorted_by, view.is_reversed) for view in VIEWS]
    )

    @property
    def shown(self) -> View:
        """The view."""
        return VIEWS[self.view]

    @property
    def sorting(self) -> Sorting:
        """The column that the view is sorted by."""
        return self.sortings[self.view]

    def on_key(self, key: str) -> None:
        """A key was pressed: a character, or one of the names above."""
        if key == INTERRUPT:
            self.is_over = True
        elif self.is_typing:
            self._on_typed(key)
        elif key in _MOVES:
            self._move(key)
        elif key.isdigit() and 0 < int(key) <= len(VIEWS):
            self._turn_to(int(key) - 1)
        elif key in (TAB, BACK_TAB):
            self._turn_to((self.view + (1 if key == TAB else -1)) % len(VIEWS))
        elif key in (">", ".", RIGHT, "<", ",", LEFT):
            self._sort_by(self.sorting.column + (1 if key in (">", ".", RIGHT) else -1))
        elif key == "r":
            self.sorting.is_reversed = not self.sorting.is_reversed
        elif key == "/":
            self.is_typing = True
            self.filter = ""
            self.at = 0
        elif key == ESCAPE:
            self.filter = ""
            self.at = 0
        elif key == " ":
            self.is_paused = not self.is_paused
        elif key in "+=-":
            self._look_every(-1 if key in "+=" else 1)
        elif key in "qQ":
            self.is_over = True

    def choose(self, rows: Sequence[ViewRow]) -> list[ViewRow]:
        """The rows that the filter lets through, sorted."""
        words = self.filter.lower().split()
        found = [
            row
            for row in rows
            if all(any(each in cell.text.lower() for cell in row.cells) for each in words)
        ]
        sorting = self.sorting
        found.sort(key=lambda row: row.cells[0].key if isinstance(row.cells[0].key, str) else "")
        found.sort(key=lambda row: row.cells[sorting.column].key, reverse=sorting.is_reversed)
        return found

    def window(self, rows: Sequence[ViewRow], page: int) -> Sequence[ViewRow]:
        """The rows that fit on the screen from where it was scrolled to."""
        self.page = max(1, page)
        self.at = max(0, min(self.at, len(rows) - self.page))
        return rows[self.at : self.at + self.page]

    def _on_typed(self, key: str) -> None:
        if key == ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing = False
            self.filter = ""
        elif key == BACKSPACE:
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move(self, key: str) -> None:
        if key == HOME:
            self.at = 0
        elif key == END:
            self.at = 1 << 60  # `window` knows better
        else:
            self.at = max(0, self.at + _MOVES[key] * (self.page if key in _PAGES else 1))

    def _turn_to(self, view: int) -> None:
        self.view = view
        self.at = 0

    def _sort_by(self, column: int) -> None:
        columns = self.shown.columns
        self.sorting.column = column % len(columns)
        self.sorting.is_reversed = columns[self.sorting.column].is_number

    def _look_every(self, step: int) -> None:
        nearest = min(
            range(len(INTERVALS_S)), key=lambda place: abs(INTERVALS_S[place] - self.interval_s)
        )
        self.interval_s = INTERVALS_S[max(0, min(nearest + step, len(INTERVALS_S) - 1))]


_MOVES = {UP: -1, DOWN: 1, PAGE_UP: -1, PAGE_DOWN: 1, HOME: 0, END: 0}
_PAGES = (PAGE_UP, PAGE_DOWN)
