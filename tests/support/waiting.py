"""Waits for conditions, not for times."""

from collections.abc import Callable
from typing import Any

from shmbroker import clock


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], object],
    timeout: float = 30.0,
    between: float = 0.01,
) -> Any:
    """The first true value of `condition`, asked every `between` seconds; AssertionError naming
    `what`, or what that says by then, if there is none."""
    deadline = clock.monotonic() + timeout
    while not (found := condition()):
        if clock.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:.0f} s for {what() if callable(what) else what}")
        clock.sleep(between)
    return found
