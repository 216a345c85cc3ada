"""Answers about committed offsets, put together as Kafka puts them together.

What is refused before a coordinator sees it comes first, under each topic once; then what the
coordinator was asked, a row for each that the request has. Where both are there, those of one
topic become one. A topic without partitions is told only if there is no such topic.

Source: Kafka's OffsetCommitResponse.Builder, and those of TxnOffsetCommit and OffsetDelete.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]


class OffsetRows:
    """The topics of one answer."""

    __slots__ = ("_asked", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Any, Row] = {}
        """The refused rows, by the topic's id or its name."""
        self._asked: list[tuple[Any, Row]] = []

    def add(
        self, key: object, head: Row, refused: list[Row], asked: list[Row], is_known: bool
    ) -> None:
        """Add one topic of the request, with the rows of its partitions; `head` has its name."""
        if refused or not is_known:
            row = self._refused.setdefault(key, head | {"partitions": []})
            row["partitions"] += refused
        if asked:
            self._asked.append((key, head | {"partitions": asked}))

    def topics(self) -> list[Row]:
        """The topics of the answer, in order."""
        if not self._refused:
            return [row for _, row in self._asked]
        for key, row in self._asked:
            known = self._refused.setdefault(key, row)
            if known is not row:
                known["partitions"] += row["partitions"]
        self._asked.clear()
        return list(self._refused.values())
