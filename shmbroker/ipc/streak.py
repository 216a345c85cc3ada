"""Whether it pays to stay awake for what comes next.

One that has just answered may sleep, and be woken some microseconds later for the same client's
next request: on a core that has gone to rest meanwhile that takes longer than the request. So it
looks for a while first, as long as something came most of the last times: a look in vain costs more
than a wake-up that was spared.
"""

WEIGHT = 1 / 8
"""How much the last time counts beside all before it."""
SHARE_MIN = 0.7
"""Looking is not tried each time where something came in a smaller share of the times."""
TRIED_AGAIN = 32
"""One of so many times is tried then."""


class Streak:
    """How often looking has paid for one process."""

    __slots__ = ("_left_out", "_share")

    def __init__(self) -> None:
        self._share = 1.0
        self._left_out = 0

    def pays(self) -> bool:
        """Whether to look now; what came of it is for `note`."""
        if self._share >= SHARE_MIN:
            return True
        self._left_out += 1
        if self._left_out < TRIED_AGAIN:
            return False
        self._left_out = 0
        return True

    def note(self, has_come: bool) -> None:
        """Note whether something came while it looked."""
        self._share += (has_come - self._share) * WEIGHT
