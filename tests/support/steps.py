"""An answer that is made in steps, run to its end without a worker.

Its maker may rest after any step when the machine is busy, so a test cannot count on the number.
"""

from typing import Any

from shmbroker.ipc.operation_adapter import Steps

STEPS_MAX = 100_000


def finish(steps: Steps) -> Any:
    """Run all steps; return the answer (None: it comes later)."""
    return finish_counted(steps)[0]


def finish_counted(steps: Steps) -> tuple[Any, int]:
    """Run all steps; return the answer and how often it rested."""
    for count in range(STEPS_MAX):
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
    raise AssertionError(f"not at its end after {STEPS_MAX:,} steps")
