"""Whether somebody who calls others silent was awake himself all the time."""


class Attention:
    """Notices that the one who looks now and then was stopped himself.

    On a machine that stood still everybody was silent, and their silence counts from its return on.

    away_s: one who has not looked for so long was not let run, and the others perhaps neither.
    """

    def __init__(self, timeout_s: float, away_s: float) -> None:
        self._timeout_s = timeout_s
        self._away_s = away_s
        self._looked = self._since = 0.0

    def awake_since(self, now: float) -> float:
        """Look, at `now` (monotonic seconds); since when there was no break."""
        if now > self._looked + self._away_s:
            self._since = now
        self._looked = now
        return self._since

    def is_enough(self, now: float) -> bool:
        """Look; whether that has gone on for the timeout."""
        return now >= self.awake_since(now) + self._timeout_s
