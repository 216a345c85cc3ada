"""Requests of a voter to others that have no answer yet: one at a time to each of them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.controller.raft.quorum_messages import Request


class _Asked:
    """A request to a voter that has no answer yet."""

    __slots__ = ("deadline", "message", "request_id")

    def __init__(self, request_id: int, message: Request, deadline: int) -> None:
        self.request_id = request_id
        self.message = message
        self.deadline = deadline


class VoterRequests:
    """The voters that are asked something, and when others may be asked again."""

    __slots__ = ("_asked", "_next_request_id", "retry_at")

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self.retry_at: dict[int, int] = {}
        self._next_request_id = 1

    def may_ask(self, now: int, voter: int) -> bool:
        """Whether a voter may be asked something: it owes no answer, and has had its rest."""
        return voter not in self._asked and now >= self.retry_at.get(voter, 0)

    def note(self, voter: int, message: Request, deadline: int) -> int:
        """A voter is asked; the id of the request."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self._asked[voter] = _Asked(request_id, message, deadline)
        return request_id

    def take(self, voter: int, request_id: int) -> Request | None:
        """The request that has its answer, or will have none; None: nobody waits for that."""
        asked = self._asked.get(voter)
        if asked is None or asked.request_id != request_id:
            return None
        del self._asked[voter]
        return asked.message

    def give_up(self, voter: int) -> bool:
        """Wait for a voter no more; whether it owed an answer."""
        return self._asked.pop(voter, None) is not None

    def clear(self) -> None:
        """Wait for nobody, and let nobody rest."""
        self._asked.clear()
        self.retry_at.clear()

    def drop_late(self, now: int) -> None:
        """Wait no more for answers that have had their time."""
        for voter, asked in list(self._asked.items()):
            if now >= asked.deadline:
                del self._asked[voter]

    def drop_rested(self, now: int) -> None:
        """Forget whose rest is over."""
        self.retry_at = {voter: at for voter, at in self.retry_at.items() if at > now}

    def deadlines(self) -> list[int]:
        """When an answer is late, or a rest is over."""
        return [*(asked.deadline for asked in self._asked.values()), *self.retry_at.values()]
