"""An election that a voter stands in, pre-vote or vote: who has answered what."""

from __future__ import annotations


class Election:
    """The votes, counted."""

    __slots__ = ("_refused", "_voters", "granted", "unreachable")

    def __init__(self, node_id: int, voters: tuple[int, ...]) -> None:
        self._voters = voters
        self.granted = {node_id}
        self._refused: set[int] = set()
        self.unreachable: set[int] = set()
        """The voters that could not be asked."""

    def is_open(self, voter: int) -> bool:
        """Whether a voter has not answered yet."""
        return voter not in self.granted and voter not in self._refused

    def count(self, voter: int, is_granted: bool) -> None:
        """A voter has answered."""
        (self.granted if is_granted else self._refused).add(voter)
        self.unreachable.discard(voter)

    @property
    def is_won(self) -> bool:
        """Whether a majority is for it."""
        return len(self.granted) >= self._majority

    @property
    def is_lost(self) -> bool:
        """Whether somebody has refused, and nobody is left who could make it a majority."""
        left = len(self._voters) - len(self._refused | self.unreachable)
        return bool(self._refused) and left < self._majority

    @property
    def _majority(self) -> int:
        return len(self._voters) // 2 + 1
