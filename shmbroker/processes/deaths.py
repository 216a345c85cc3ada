"""How a slot's processes end, and how soon there is another one. Pure.

   it ended                                     the next one
   after it served, or by a signal, or full     at once, then more and more seldom (BACKOFF_S)
   before it served, and it can't boot          `boots.retry_s`, if the family goes on without it

`boots` says what becomes of a family whose processes can't boot.
"""

from shmbroker.processes import boots
from shmbroker.processes.child import EXIT_BOOT_FAULT, EXIT_TRY_AGAIN

BACKOFF_S = (0.0, 0.0, 0.1, 0.5, 1.0, 2.0)
"""The seconds before the n-th restart of a slot in a row; a child that lived STEADY_S starts a new
row."""
STEADY_S = 3.0


class Tries:
    """What has come, in a row, of the processes of one slot."""

    __slots__ = ("_crashes", "_failed_boots", "_restarts")

    def __init__(self) -> None:
        self._restarts = 0
        self._crashes = 0
        """Crashes before it served, in a row."""
        self._failed_boots = 0
        """Tries in a row that ended as it can't boot."""

    def count(self, role: str, code: int, has_served: bool, is_ready: bool) -> bool:
        """Count one that ended with this exit code (below 0: a signal); True: it can't boot.
        is_ready: the family serves."""
        if has_served:
            self._crashes = self._failed_boots = 0
        elif code > 0 and code != EXIT_TRY_AGAIN and role in boots.NEEDED:
            self._crashes += 1
        return (
            code == EXIT_BOOT_FAULT
            or self._crashes >= boots.CRASHES_MAX
            or (self._crashes > 0 and not is_ready)
        )

    def retry_s(self) -> float:
        """Count a try that failed; how soon there is another."""
        self._failed_boots += 1
        return boots.retry_s(self._failed_boots)

    def restart_s(self, lived_s: float) -> float:
        """Count one that could boot, and ended after so long; how soon there is another."""
        self._restarts = 0 if lived_s > STEADY_S else self._restarts + 1
        return BACKOFF_S[min(self._restarts, len(BACKOFF_S) - 1)]
