"""What a check is, and what comes of it. Pure.

A check is a function from the facts to a `Result`, and lies in the module of its area. It reads no
file and asks nobody: `gather` did. So a test gives it a made-up host.

   ok        as it should be
   note      works, but could be better
   warning   will be in the way one day, or under load
   fault     is in the way now
   unknown   could not be looked at: there is no broker, no Spark, no right to read
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from shmbroker.cli.doctor.facts import Facts

OK = "ok"
NOTE = "note"
WARNING = "warning"
FAULT = "fault"
UNKNOWN = "unknown"
LEVELS = (FAULT, WARNING, NOTE, UNKNOWN, OK)
"""Worst first."""


class Result(NamedTuple):
    """What a check says."""

    level: str
    saw: str
    fix: str = ""
    """A command, or what to do in words."""


class Check(NamedTuple):
    """A row of the table."""

    area: str
    name: str
    about: str
    """What is looked at, for docs/doctor.md."""
    look: Callable[[Facts], Result]


class Finding(NamedTuple):
    """A check and its result."""

    check: Check
    result: Result


def findings(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """What all of them say, in their order."""
    return [Finding(check, check.look(facts)) for check in checks]


def ok(saw: str) -> Result:
    """Works as it should."""
    return Result(OK, saw)


def note(saw: str, fix: str) -> Result:
    """Works, but could be better."""
    return Result(NOTE, saw, fix)


def warning(saw: str, fix: str) -> Result:
    """Will be in the way one day, or under load."""
    return Result(WARNING, saw, fix)


def fault(saw: str, fix: str) -> Result:
    """Is in the way now."""
    return Result(FAULT, saw, fix)


def unknown(why: str) -> Result:
    """Could not be looked at."""
    return Result(UNKNOWN, why)


def mib(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def named(things: Iterable[object], most: int = 5) -> str:
    """The first of them, with commas."""
    texts = [str(thing) for thing in things]
    return ", ".join(texts[:most]) + (f", … ({len(texts)})" if len(texts) > most else "")
