"""A process that is killed before one of its calls of the system, and no later one is done."""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest


class Killed(Exception):
    """It is dead."""


class Kill:
    """Whether it was killed."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.happened = False


@contextlib.contextmanager
def kill_after(
    steps: int, monkeypatch: pytest.MonkeyPatch, *calls: tuple[ModuleType, str]
) -> Iterator[Kill]:
    """Do so many of these calls, each given by module and name; the next one is the end of what is
    done here."""
    kill = Kill(steps)

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if not kill.left:
                raise Killed
            kill.left -= 1
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for module, name in calls:
            patch.setattr(module, name, counted(getattr(module, name)))
        try:
            yield kill
        except Killed:
            kill.happened = True
