"""The terminal: keys without Enter, a screen that is given back, a frame in one write.

Rules of this file:
* A frame overwrites the one before, line by line, from the upper left corner: nothing is erased
  first, so nothing flickers. Terminals that know synchronized updates show it at once.
* Whatever ends us, the terminal is as it was before.
* Signals only leave a note: SIGWINCH and SIGTERM end a wait.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from shmbroker.cli.top.state import (
    BACK_TAB,
    BACKSPACE,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    INTERRUPT,
    LEFT,
    PAGE_DOWN,
    PAGE_UP,
    RIGHT,
    TAB,
    UP,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
END_LINE = "\x1b[K"
READ_BYTES = 1024
SIZE = (80, 24)
"""Columns and rows where the terminal does not say."""

_SEQUENCES = {
    "[A": UP, "[B": DOWN, "[C": RIGHT, "[D": LEFT, "OA": UP, "OB": DOWN, "OC": RIGHT, "OD": LEFT,
    "[5~": PAGE_UP, "[6~": PAGE_DOWN, "[H": HOME, "[F": END, "OH": HOME, "OF": END,
    "[1~": HOME, "[4~": END, "[7~": HOME, "[8~": END, "[Z": BACK_TAB,
}  # fmt: skip
"""What terminals send behind an Escape."""
_CONTROLS = {"\t": TAB, "\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\b": BACKSPACE}


def keys_of(text: str) -> Iterator[str]:
    """The keys that were pressed for a terminal to send this; sequences that we don't know are
    left out."""
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter in ("\x03", "\x04"):
            yield INTERRUPT
        elif letter in _CONTROLS:
            yield _CONTROLS[letter]
        elif letter != "\x1b":
            yield letter
        elif at == len(text) or text[at] not in "[O":
            yield ESCAPE
        else:
            end = at + 1
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            if key := _SEQUENCES.get(text[at : end + 1]):
                yield key
            at = end + 1


class Terminal:
    """`with Terminal() as terminal: …`"""

    def __enter__(self) -> Terminal:
        self._fd = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._fd)
        self._signals_read, self._signals_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_terminated = False
        self._handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP)
        }
        self._wakeup = signal.set_wakeup_fd(self._signals_write, warn_on_full_buffer=False)
        tty.setcbreak(self._fd)
        self._write(ENTER_SCREEN)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _fault: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        try:
            self._write(LEAVE_SCREEN)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal is gone
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._signals_read)
        os.close(self._signals_write)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.is_terminated |= number != signal.SIGWINCH

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as of now."""
        # Not shutil's, which goes by $COLUMNS: that stays as it was when the window changes.
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return SIZE
        return found.columns or SIZE[0], found.lines or SIZE[1]

    def draw(self, lines: Sequence[str]) -> None:
        """Draw a frame."""
        _, height = self.size
        body = "\n".join(line + END_LINE for line in lines[:height])
        self._write(BEGIN_FRAME + body + END_FRAME)

    def keys(self, wait_s: float) -> list[str]:
        """The keys that come within so long; [] as well when the size has changed, or the time is
        over. A terminal that is gone is an INTERRUPT."""
        ready, _, _ = select.select([self._fd, self._signals_read], [], [], max(0.0, wait_s))
        if self._signals_read in ready:
            os.read(self._signals_read, READ_BYTES)
        if self._fd not in ready:
            return []
        raw = os.read(self._fd, READ_BYTES)
        return list(keys_of(raw.decode(errors="replace"))) if raw else [INTERRUPT]

    def _write(self, text: str) -> None:
        raw = memoryview(text.encode(errors="replace"))
        while raw:
            raw = raw[os.write(sys.stdout.fileno(), raw) :]
