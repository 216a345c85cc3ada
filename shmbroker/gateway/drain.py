"""The end of a network worker: how long it waits for requests in flight and for its clients."""

DRAIN_S = 5.0
"""How long a network worker lets requests in flight take, and clients read their answers."""
STALLED_S = 1.0
"""How long it waits while no client reads anything: one that has stalled holds up nothing."""


class Drain:
    """A network worker's part of the stop."""

    def __init__(self, now: float) -> None:
        self._deadline = now + DRAIN_S
        self._moved = now
        self._unsent_bytes = -1

    def is_over(self, now: float, requests: int, unsent_bytes: int) -> bool:
        """Whether to go: so many requests wait for their results, so much of answers is unread."""
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._moved = unsent_bytes, now
        return (
            not (requests or unsent_bytes)
            or now > self._deadline
            or (not requests and now > self._moved + STALLED_S)
        )
