"""How a command ends: its exit status, and one sentence on stderr when it failed.

   0    done; also when the reader of our output stops reading
   1    failed: the sentence says why, and what to do
   2    wrong usage: an unknown word, a value that can't be meant (click's own number); of `status`
        also: no broker runs
   3    of `status`: something is there, and can't be told of
   130  Ctrl-C; 143 SIGTERM while producing or consuming

No traceback is shown for what a user, a file, a disk or a cluster did; one of ours is a bug.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from shmbroker import extras
from shmbroker.errors import Fault, one_line, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

EXIT_FAILED = 1
EXIT_WRONG_USAGE = 2
EXIT_NOT_RUNNING = 2
EXIT_NOT_TOLD = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class CommandFault(Fault):
    """A command can't do what it was asked; the message is one sentence, with the fix."""


HINTS = {
    "UNKNOWN_TOPIC_OR_PART": "`shmbroker topic list` shows what is there",
    "TOPIC_ALREADY_EXISTS": "--if-not-exists leaves it as it is",
    "NON_EMPTY_GROUP": "stop its members first",
    "GROUP_ID_NOT_FOUND": "`shmbroker group list` shows what is there",
    "_TIMED_OUT": "does the cluster answer under the addresses that it advertises?",
    "_TIMED_OUT_QUEUE": "does the cluster answer under the addresses that it advertises?",
}
"""What to do about an error, by its name."""
UNKNOWN_SETTING = "Unknown topic config name: "


def sentence(error: Any) -> str:
    """A client library's KafkaError in words; what it was about stands before."""
    text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")
    hint = HINTS.get(error.name()) or _setting_meant(text)
    return f"{text} ({error.name().removeprefix('_')})" + (f"; {hint}" if hint else "")


def _setting_meant(text: str) -> str:
    """What to do about a setting that a broker does not know, in Kafka's words; or ""."""
    _, is_unknown, name = text.partition(UNKNOWN_SETTING)
    if not is_unknown:
        return ""
    from shmbroker.cli.hints import meant
    from shmbroker.settings.table import TOPIC_SETTINGS

    return meant(name, TOPIC_SETTINGS, 1) or "`shmbroker config explain` lists them"


def say(text: str) -> None:
    """Write a line to stderr, with the command's name before it."""
    lines = map(one_line, plain(text).split("\n"))
    click.echo("shmbroker: " + "\n".join(lines), err=True)


def leave_on_sigterm() -> None:
    """SIGTERM ends the command in order: what was sent is delivered, a group is left."""
    import signal

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))


def binary(stream: Any) -> Any:
    """The bytes of stdin or stdout; CommandFault if our parent closed it."""
    if stream is None:
        raise CommandFault("stdin or stdout is closed; nothing can go through it")
    return stream.buffer


class CommandEnding:
    """`with CommandEnding(): …` turns what may go wrong into a sentence and an exit status."""

    def __enter__(self) -> CommandEnding:
        if sys.stdout is not None and isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
            # PYTHONUNBUFFERED: a disk that is nearly full would take a part of a write, unsaid
            out = sys.stdout
            sys.stdout = open(
                out.fileno(), "w", encoding=out.encoding, errors=out.errors, closefd=False
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if fault is None:
            try:
                if sys.stdout is not None:  # as it is where our parent closed it
                    sys.stdout.flush()
            except BrokenPipeError:
                _leave_pipe()
            except OSError as full:
                _fail_by(full)
        elif isinstance(fault, BrokenPipeError):
            _leave_pipe()
        elif isinstance(fault, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        elif isinstance(fault, Fault):
            say(str(fault))
            sys.exit(EXIT_FAILED)
        elif isinstance(fault, ImportError) and (lacking := extras.missing(fault, _command())):
            say(str(lacking))
            sys.exit(EXIT_FAILED)
        elif isinstance(fault, OSError):
            _fail_by(fault)
        elif isinstance(fault, UnicodeEncodeError) and _is_typed(fault.object):
            say(f"{fault.object} is no text in UTF-8, as names are")
            sys.exit(EXIT_WRONG_USAGE)
        elif _is_kafka_exception(fault):
            say(sentence(fault.args[0]))
            sys.exit(EXIT_FAILED)


def _command() -> str:
    """The command that was given, as a sentence has it."""
    word = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return f"`shmbroker {word}`" if word else "this"


def _is_typed(text: str) -> bool:
    """Whether this stands on the command line, with bytes that are no UTF-8 in it."""
    return any(text in word for word in sys.argv[1:])


def _fail_by(fault: OSError) -> None:
    """Say what the system has refused: a file, or to write what stdout still holds."""
    what = fault.filename or ""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        what = what or "stdout can't be written"
        _drop_output()
    say(f"{what}: {fault.strerror or fault}".removeprefix(": "))
    sys.exit(EXIT_FAILED)


def _leave_pipe() -> None:
    _drop_output()
    sys.exit(0)


def _drop_output() -> None:
    # The interpreter flushes once more on its way out, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _is_kafka_exception(fault: BaseException) -> bool:
    library = sys.modules.get("confluent_kafka")
    return library is not None and isinstance(fault, library.KafkaException)
