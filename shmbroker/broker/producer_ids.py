"""Producer ids, from blocks that the controller gives a broker: no two producers get the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.asking import OnAnswer

AHEAD = 200
"""Ids left of the current block when the next one is asked for."""


class ProducerIds:
    """What one broker has of them. ask: sends an AllocateProducerIds request, and tells the answer;
    False while the controller can't be asked."""

    def __init__(self, ask: Callable[[OnAnswer], bool]) -> None:
        self._ask = ask
        self._ids = range(0)
        self._next: range | None = None
        self._is_asking = False
        self._waiting: list[Callable[[], None]] = []

    def fetch(self) -> None:
        """Ask for a block, unless that goes on already."""
        if not self._is_asking:
            self._is_asking = self._ask(self.on_answer)

    def take(self) -> int | None:
        """A producer id that nobody has; None until the controller has given a block."""
        ids = self._ids
        if not ids and self._next is not None:
            ids, self._next = self._next, None
        if len(ids) < AHEAD and self._next is None:
            self.fetch()
        if not ids:
            return None
        self._ids = ids[1:]
        return ids[0]

    def wait(self, on_here: Callable[[], None]) -> bool:
        """Call back when ids have come; False if there is nothing to wait for: ids are here, or
        nobody can be asked."""
        if self._ids or self._next is not None:
            return False
        self.fetch()
        if self._is_asking:
            self._waiting.append(on_here)
        return self._is_asking

    def on_answer(self, body: dict[str, Any]) -> None:
        """The controller's answer; those who waited look again."""
        self._is_asking = False
        if body["error_code"] == 0:
            start = body["producer_id_start"]
            self._next = range(start, start + body["producer_id_len"])
        waiting, self._waiting = self._waiting, []
        for on_here in waiting:
            on_here()
