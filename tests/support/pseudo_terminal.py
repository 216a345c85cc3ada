"""A program on a terminal of our own: what it shows, keys that are pressed, the window's size."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
from collections.abc import Callable, Sequence
from typing import cast

from tests.support.waiting import wait_until

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WAIT_S = 30.0


class PseudoTerminal:
    """Runs `words`. `begin` and `end` are what the program writes around a frame."""

    def __init__(
        self, words: Sequence[str], begin: str, end: str, columns: int, lines: int
    ) -> None:
        self._frame = re.compile(re.escape(begin) + "(.*?)" + re.escape(end), re.DOTALL)
        self.text = ""
        """All that it has written."""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(words[0], list(words))
        self.resize(columns, lines)
        self._status: int | None = None

    def resize(self, columns: int, lines: int) -> None:
        """As if somebody had pulled at the window."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def attributes(self) -> list[object]:
        """How the terminal is set."""
        return list(termios.tcgetattr(self._fd))

    def frame(self) -> list[str]:
        """The lines of the last whole frame, without colours; [] before the first."""
        self._read(0.0)
        frames = self._frame.findall(self.text)
        return ANSI.sub("", frames[-1]).split("\r\n") if frames else []

    def wait(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """The first frame of which this holds."""

        def shown() -> str:
            frame = "\n".join(self.frame())
            return f"a frame with {what}:\n{frame}\n{self.text[-500:]!r}"

        def fitting() -> list[str]:
            frame = self.frame()
            return frame if frame and condition(frame) else []

        return cast(list[str], wait_until(fitting, shown, WAIT_S, 0.1))

    def ended(self) -> int:
        """Its exit status, once it has ended."""

        def status() -> int | None:
            self._read(0.1)
            if self._status is None:
                pid, end = os.waitpid(self.pid, os.WNOHANG)
                self._status = os.waitstatus_to_exitcode(end) if pid else None
            return self._status

        wait_until(lambda: status() is not None, lambda: f"its end: {self.text[-500:]!r}", WAIT_S)
        self._read(0.1)
        assert self._status is not None
        return self._status

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _read(self, wait_s: float) -> None:
        while select.select([self._fd], [], [], wait_s)[0]:
            try:
                raw = os.read(self._fd, 1 << 16)
            except OSError:  # the program has closed its end
                return
            if not raw:
                return
            self.text += raw.decode(errors="replace")
            wait_s = 0.0
