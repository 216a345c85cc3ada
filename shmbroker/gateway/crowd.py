"""Whether heartbeats come in hundreds a second and nothing else does.

Each would wake the process for itself, which costs several times what its answer does; a short rest
lets some of them come together. Any other request that comes into such quiet waits for that rest at
most, and only the first one.
"""

PER_S = 400
WINDOW_S = 0.1
QUIET_S = 0.2
"""Standing answers per second that make a crowd, over this time, and how long nothing else may have
been asked for."""
REST_S = 0.020
"""The time between two turns that only repeat standing answers."""


class Crowd:
    """Looks at two counts, of standing answers given and of operations begun."""

    __slots__ = (
        "_busy_at",
        "_is_crowd",
        "_operations",
        "_repeated",
        "_window_repeated",
        "_window_start",
    )

    def __init__(self) -> None:
        self._repeated = self._window_repeated = self._operations = 0
        self._window_start = self._busy_at = 0.0
        self._is_crowd = False

    def rest_s(self, now: float, repeated: int, operations: int) -> float:
        """How long to rest in this turn, 0 for not at all; now: monotonic seconds."""
        if repeated == self._repeated:
            return 0.0
        self._repeated = repeated
        if operations != self._operations:
            self._operations = operations
            self._busy_at = now
        since = now - self._window_start
        if since >= WINDOW_S:
            self._is_crowd = repeated - self._window_repeated >= PER_S * since
            self._window_start = now
            self._window_repeated = repeated
        return REST_S if self._is_crowd and now - self._busy_at > QUIET_S else 0.0
