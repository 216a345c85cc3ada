"""What the store knows of what lies before an offset: asked for by followers that begin there."""

from __future__ import annotations

from shmbroker.log.truncation import StateAt
from shmbroker.wire.api_keys import TIER_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.broker.tier_port import OnState
    from shmbroker.broker.tiering.remotes import Remote, RemoteTable


class States:
    """Asks for states. Every question is answered, with None where the answer can't be had now."""

    def __init__(self, table: RemoteTable) -> None:
        self.table = table
        self._waiting: list[OnState] = []

    def find(self, remote: Remote, offset: int, on_state: OnState) -> None:
        """Ask for what was known where the copy with `offset` ends."""

        def on_answer(body: dict[str, Any]) -> None:
            self._waiting.remove(on_state)
            if body["error_code"] or body["offset"] < 0:
                on_state(None)
                return
            epochs = [(entry["epoch"], entry["start_offset"]) for entry in body["epochs"]]
            on_state(StateAt(body["offset"], epochs, body["snapshot"] or None))

        body = remote.name() | {"offset": offset}
        if self.table.ask(TIER_STATE, "TierState", body, on_answer):
            self._waiting.append(on_state)
        else:
            on_state(None)

    def on_tier_lost(self) -> None:
        """Nothing that was asked for comes."""
        waiting, self._waiting = self._waiting, []
        for on_state in waiting:
            on_state(None)
