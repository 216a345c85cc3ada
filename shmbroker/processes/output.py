"""stdout and stderr of a family: where they are closed, full or read by nobody, it serves on.

* A closed one is opened on /dev/null before anything else is opened: a socket or a segment that got
  number 1 or 2 would be written to by every print.
* One whose reader is gone becomes /dev/null. What a full disk does not take is left out.
"""

import logging
import os
import sys
from typing import TextIO


class Handler(logging.StreamHandler[TextIO]):
    """Lines to stderr; one that can't be written is left out."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            flush()
        else:
            super().handleError(record)


def open_closed() -> None:
    """Give 0, 1 and 2 something to be, where whoever started us closed them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def say(text: str, stream: TextIO) -> None:
    """One line, if it can be written."""
    try:
        print(text, file=stream)
    except OSError:
        pass
    flush()


def flush() -> None:
    """Before a fork, and before an end that does without it: nothing is to be written twice."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            # What is in its buffer goes the same way; else the interpreter complains at its end.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()
        except OSError:
            pass
