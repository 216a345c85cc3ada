"""One Fetch on its way: what is kept of it until its answer is made, and the READ that it becomes.

    fetch             a request that names all its partitions, and what each READ has found
    fetch_known       a request of one partition, recognised by its bytes
    fetch_in_session  a request that names what has changed

All three make a `FetchRequest` each time, and send one READ for it.

Rules of this file:
* Where the ring has no room for a READ, nothing was done.
* No READ asks for more than `fetch.max.bytes`, nor for more than the client's quota lets through.
"""

from __future__ import annotations

from shmbroker.apis.table import FETCH
from shmbroker.gateway.fetch_answer import A_ERROR, A_LENGTH, A_RECORDS, new_answer
from shmbroker.gateway.inflight import Request
from shmbroker.ipc.operation_layout import READ, READ_HEAD
from shmbroker.security.acls import CLUSTER, CLUSTER_ACTION, CLUSTER_NAME, TOPIC
from shmbroker.security.acls import READ as READ_RIGHT
from shmbroker.wire import codec
from shmbroker.wire.frame import response_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_answer import Answer
    from shmbroker.gateway.fetch_known import KnownFetch
    from shmbroker.gateway.fetch_rows import Asked
    from shmbroker.gateway.fetch_session import FetchSession
    from shmbroker.gateway.guard import Guard
    from shmbroker.gateway.ports import RequestContext
    from shmbroker.gateway.quotas import Throttle
    from shmbroker.ipc.peer import Peer

    Wanted = dict[tuple[str | bytes, int], tuple[bytes, Answer]]
    """What a session is made of: by topic and partition, `PARAMETERS` and the answer."""

API_KEY, NAME = FETCH.API_KEY, FETCH.NAME

REPEATED_BYTES_MIN = 40
"""Shorter frames are not compared with those before: none is that asks for a partition."""


class FetchRequest(Request):
    """A Fetch and what was found for it. `topics`: per topic its name, id and Answers.

    `asked`: what the slices of the READ_DONE belong to: these answers, or in a session the keys of
    its partitions; `found` then has the answers, by their place in `asked`.
    """

    __slots__ = ("asked", "epoch", "found", "isolation", "known", "limits", "session", "topics",
                 "wanted")  # fmt: skip
    asked: list[Any]
    epoch: int
    found: dict[int, Answer]
    isolation: int
    known: KnownFetch | None
    """What its bytes were recognised as."""
    limits: Limits
    """The limits of a request in a session."""
    session: FetchSession | None
    topics: list[tuple[str, bytes, list[Answer]]]
    wanted: Wanted | None

    def try_send(self, gateway: RequestContext, peer: Peer, read: bytes) -> bool:
        """Send its READ, which has the next token; False if the ring has no room."""
        token = gateway.token + 1
        connection = self.connection
        if connection.throttle is not None:
            read = bounded(connection.throttle, self.client_id, read)
        if not peer.try_send(READ, read):
            return False
        gateway.token = token
        self.token = token
        self.peer = peer
        gateway.pending[token] = self
        connection.inflight.append(self)
        return True

    def fail(self, error_code: int) -> None:
        """Every partition that was asked for gets this error."""
        if self.session is not None:
            self.found = {
                which: new_answer(key[1], error_code) for which, key in enumerate(self.asked)
            }
        else:
            for answer in self.asked:
                answer[A_ERROR] = error_code
                answer[A_RECORDS], answer[A_LENGTH] = None, 0

    def answer_top(self, error_code: int, session_id: int = 0, throttle_time_ms: int = 0) -> None:
        """Answer without a word on partitions."""
        body = codec.encode(
            "FetchResponse",
            self.api_version,
            {
                "throttle_time_ms": throttle_time_ms,
                "error_code": error_code,
                "session_id": session_id,
                "responses": [],
            },
        )
        self.response = [response_frame(API_KEY, self.api_version, self.correlation_id, body)]


class Limits:
    """What a request says besides its partitions. `prefix` and `version` are set where a session
    keeps it: the bytes before the session epoch, and how to read them."""

    __slots__ = ("client_id", "isolation", "max_bytes", "max_wait_ms", "min_bytes", "prefix",
                 "version")  # fmt: skip
    prefix: bytes
    version: int

    def __init__(self, body: Asked, client_id: bytes | None, bytes_max: int) -> None:
        self.max_wait_ms = max(0, body.max_wait_ms)
        self.max_bytes = max(0, min(body.max_bytes, bytes_max))
        self.min_bytes = max(0, min(body.min_bytes, self.max_bytes))
        self.isolation = body.isolation
        self.client_id = client_id

    def pack_head(self, token: int, count: int, flags: int = 0, session_id: int = 0) -> bytes:
        """The READ_HEAD for so many partitions."""
        return READ_HEAD.pack(
            token,
            self.max_wait_ms,
            self.min_bytes,
            self.max_bytes,
            self.isolation,
            flags,
            count,
            session_id,
        )


def bounded(throttle: Throttle, client_id: bytes | None, read: bytes) -> bytes:
    """A READ that asks for no more bytes than a quota ever lets through at once."""
    token, max_wait_ms, min_bytes, max_bytes, *rest = READ_HEAD.unpack_from(read)
    max_bytes = min(max_bytes, throttle.fetch_bytes_most(client_id))
    head = READ_HEAD.pack(token, max_wait_ms, min(min_bytes, max_bytes), max_bytes, *rest)
    return head + read[READ_HEAD.size :]


def may_read(
    guard: Guard | None, connection: Connection, topic: str, as_replica: bool = False
) -> bool:
    """Whether the client has the right to a topic's records."""
    if guard is None:
        return True
    if as_replica:
        return guard.may(connection, NAME, CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    return guard.may(connection, NAME, READ_RIGHT, TOPIC, topic)
