"""Log lines that a flood of clients may cause: a few at once, then a number now and then."""

import logging

LINES_MAX = 10
INTERVAL_S = 10.0


class SeldomLog:
    """Warnings by kind: in each interval the first few as they come, the others as one number."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[str, int] = {}
        self._interval_end = 0.0

    def warn(self, kind: str, line: str, now: float) -> None:
        """A line of that kind, for instance the reason of a refusal."""
        self.flush(now)
        if not self._said:
            self._interval_end = now + INTERVAL_S
        count = self._said[kind] = self._said.get(kind, 0) + 1
        if count <= LINES_MAX:
            self._logger.warning("%s", line)

    def flush(self, now: float) -> None:
        """Say how many were left out, once the interval is over; to be called now and then."""
        if not self._said or now < self._interval_end:
            return
        for kind, count in self._said.items():
            if count > LINES_MAX:
                self._logger.warning("%d more connections: %s", count - LINES_MAX, kind)
        self._said.clear()
