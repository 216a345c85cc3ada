"""Questions of one process to others: EXECUTE goes out, and who asked is told the EXECUTED.

Rules of this file:
* A token is used once in the life of a process. An answer whose token is not there belongs to one
  that is dead.
* An answer that did not come from where it should is a body with an error code alone:
  NETWORK_EXCEPTION where nothing was done, UNKNOWN_SERVER_ERROR where the other side failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmbroker.ipc.operation_layout import EXECUTED_FLAG_CLOSE, EXECUTED_FLAG_NOT_EXECUTED
from shmbroker.ipc.operation_proxy import PartialResults, try_execute
from shmbroker.ipc.peer import Peer
from shmbroker.wire import codec, error_codes

OnAnswer = Callable[[dict[str, Any]], None]
"""What is told the body of the answer."""


class Asking:
    """What one process has asked and not been answered yet."""

    def __init__(self, first_token: int) -> None:
        self.token = first_token
        self._asked: dict[int, tuple[Peer, str, int, OnAnswer]] = {}
        """What is asked, by token: whom, what, in which version, and who is told the answer."""
        self.partial = PartialResults()

    def new_token(self) -> int:
        """A token that this process has not used."""
        self.token += 1
        return self.token

    def ask(
        self,
        peer: Peer,
        api_key: int,
        name: str,
        version: int,
        body: dict[str, Any],
        on_answer: OnAnswer,
    ) -> bool:
        """Have `peer` answer a request; False while its ring has no room."""
        token = self.new_token()
        encoded = codec.encode(name + "Request", version, body)
        if not try_execute(peer, token, api_key, version, b"", encoded):
            return False
        self._asked[token] = (peer, name, version, on_answer)
        return True

    def on_executed_part(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One EXECUTED_PART entry."""
        self.partial.add(peer, data, index, length)

    def on_executed(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One EXECUTED entry: tell who asked."""
        token, flags, body = self.partial.finish(peer, data, index, length)
        row = self._asked.pop(token, None)
        if row is None:
            return
        _, name, version, on_answer = row
        if flags & EXECUTED_FLAG_NOT_EXECUTED:
            on_answer({"error_code": error_codes.NETWORK_EXCEPTION})
        elif flags & EXECUTED_FLAG_CLOSE:
            on_answer({"error_code": error_codes.UNKNOWN_SERVER_ERROR})
        else:
            on_answer(codec.decode(name + "Response", version, body)[0])

    def fail(self, peer: Peer, error_code: int) -> None:
        """Tell those who asked a peer that answers no more an error: what was asked may have been
        done."""
        for on_answer in self.forget(peer):
            on_answer({"error_code": error_code})

    def forget(self, peer: Peer) -> list[OnAnswer]:
        """Drop what was asked of a peer that answers no more, and return those who waited: it may
        have been done."""
        self.partial.drop_peer(peer)
        gone = [token for token, row in self._asked.items() if row[0] is peer]
        return [self._asked.pop(token)[3] for token in gone]
