"""stdout and stderr of a family: where they are closed, full or read by nobody, it serves on.

* A closed one is opened on /dev/null before anything else is opened: a socket or a segment that got
  number 1 or 2 would be written to by every print.
* One whose reader is gone becomes /dev/null. What a full disk does not take is left out.
"""

import logging
import os
import sys
from contextlib import suppress
from typing import TextIO


class StderrHandler(logging.StreamHandler[TextIO]):
    """Lines to stderr; one that can't be written is left out."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            flush()
        else:
            super().handleError(record)


def open_closed() -> None:
    """Give 0, 1 and 2 something to be, where the process that started us closed them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def say(text: str, stream: TextIO) -> None:
    """Write a line, if it can be written."""
    with suppress(OSError):
        print(text, file=stream)
    flush()


def flush() -> None:
    """Flush before a fork, and before an end that does without it: nothing is to be written
    twice."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as fault:
            with suppress(OSError):
                _leave_out(stream, is_unread=isinstance(fault, BrokenPipeError))


def _leave_out(stream: TextIO, is_unread: bool) -> None:
    """Empty its buffer, which nobody takes: else the interpreter complains at its end, and exits
    with 120."""
    number = stream.fileno()
    before = os.dup(number)
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
        stream.flush()
        if not is_unread:  # a disk may have room again
            os.dup2(before, number)
    finally:
        os.close(before)
