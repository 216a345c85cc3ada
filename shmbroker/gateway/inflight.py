"""A request in flight: from its frame until its answer is handed to the socket.

Rules of this file:
* `response` is None until the answer is complete; then it is a list of parts: bytes, or file slices
  (`ipc.passed_files.FileSlice`). An empty list means that no answer is sent (acks=0).
* Answers leave in request order; the connection's queue sees to that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.ipc.peer import Peer


class Request:
    """One request. `finish` is what the worker calls when a result for its token arrives."""

    __slots__ = (
        "api_key",
        "api_version",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "finish",
        "peer",
        "pending",
        "received",
        "response",
        "state",
        "tokens",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
    ) -> None:
        self.connection = connection
        self.received = connection.last_active
        """When its bytes were read, by the monotonic clock of that turn."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id: bytes | None = None
        self.response: list[Any] | None = None
        self.finish: Callable[..., None] | None = None
        self.peer: Peer | None = None
        self.pending = 0
        self.state: Any = None
        self.tokens: list[int] | None = None
        self.body: Any = None
