"""Meanings that are kept by their bytes, so many at most: requests that come again and again."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Meaning = TypeVar("Meaning")


class Known(dict[Key, Meaning], Generic[Key, Meaning]):
    """Meanings by key; a lookup is a dict's. What was kept first goes first."""

    def __init__(self, count_max: int) -> None:
        super().__init__()
        self._count_max = count_max

    def keep(self, key: Key, meaning: Meaning) -> None:
        """Remember it, in the place of the oldest where there is no more room."""
        if len(self) >= self._count_max and key not in self:
            del self[next(iter(self))]
        self[key] = meaning
