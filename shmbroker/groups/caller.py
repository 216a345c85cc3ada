"""The caller that waits for an answer of a group coordinator."""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Caller(Protocol):
    """A request that is answered now or later, an `ipc.operation_adapter.Call` as a rule."""

    @property
    def api_version(self) -> int:
        """The version of the request, and so of its answer."""

    def reply(self, body: dict[str, Any]) -> None:
        """Send the answer."""


class HeldCaller(Protocol):
    """One whose answer may be held back and sent with what was granted along with it."""

    def reply(self, body: dict[str, Any], grant: tuple[int, int] | None = None) -> None:
        """Send the answer. grant: (word, value) of `shm.standing`."""
