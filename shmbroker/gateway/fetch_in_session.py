"""Fetch in a session: requests that name what has changed, answers that tell what has.

    the client's request                     what happens
    the same bytes but for the epoch         submit_repeated ─┐
    partitions that are new, changed,                         ├► one READ of what the session has
      no longer wanted                       submit_changes ──┘
    names all, and wants a session           fetch, then `create` with the answer

Rules of this file:
* Sessions live in this worker (`fetch_session`, which is pure). A client stays on its connection,
  so it stays on its worker; one that comes back elsewhere is told FETCH_SESSION_ID_NOT_FOUND, and
  begins another session.
* A client that waits in a session sends the same bytes each time, but for correlation id and
  epoch. The session keeps what they mean, and they are not decoded again.
* What a client is told is noted in its session when the answer is made, and not before.
* The broker keeps the partitions of a large session, too: a READ then names those that have
  changed, as long as that broker is told of all else.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.apis.table import FETCH
from shmbroker.gateway.fetch_answer import (
    A_ERROR,
    A_HIGH_WATERMARK,
    A_LENGTH,
    A_LOG_START_OFFSET,
    FetchAnswer,
    new_answer,
    size_about,
)
from shmbroker.gateway.fetch_request import (
    API_KEY,
    REPEATED_BYTES_MIN,
    FetchRequest,
    Limits,
    bounded,
    may_read,
)
from shmbroker.gateway.fetch_rows import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from shmbroker.gateway.fetch_session import PARAMETERS, next_epoch
from shmbroker.ids import ZERO_UUID, partition_key
from shmbroker.ipc.operation_layout import READ, READ_FLAG_NEW, READ_FLAG_SESSION, READ_HEAD
from shmbroker.metadata.topic_names import TOPIC_NAME_CHARACTERS_MAX
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_answer import Answer, Topics
    from shmbroker.gateway.fetch_request import Wanted
    from shmbroker.gateway.fetch_rows import Asked
    from shmbroker.gateway.fetch_session import FetchSession, FetchSessions, Key
    from shmbroker.gateway.ports import RequestContext
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import TopicImage

_ID_AND_EPOCH = Struct(">ii")

NOTHING_CHANGES = {
    version: bytes(8 if version < 11 else 10) if version < FLEXIBLE_FROM else b"\1\1\1\0"
    for version in range(SESSIONS_FROM, FETCH.VERSION_MAX + 1)
}
"""What is behind the session epoch where nothing changes: no topics, none forgotten, no rack."""


class SessionFetches:
    """The requests of one worker's sessions."""

    def __init__(self, gateway: RequestContext, sessions: FetchSessions) -> None:
        self._gateway = gateway
        self._sessions = sessions

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def submit_repeated(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool | None:
        """Start a request that ends as NOTHING_CHANGES; False if the ring has no room. None unless
        the session's client has sent the very same before, but for the epoch."""
        epoch_at = end - len(NOTHING_CHANGES[version]) - 4
        if end - start < REPEATED_BYTES_MIN:
            return None
        session_id, epoch = _ID_AND_EPOCH.unpack_from(buffer, epoch_at - 4)
        session = self._sessions.get(session_id, connection.scope)
        if session is None or session.epoch != epoch:
            return None
        repeated = session.repeated
        if (
            repeated is None
            or repeated.version != version
            or repeated.prefix != buffer[start + 8 : epoch_at]
        ):
            return None
        self._use(connection, session)
        return self.read(connection, session, repeated, correlation_id)

    def submit_changes(
        self, request: FetchRequest, body: Asked, buffer: bytearray, start: int, end: int
    ) -> bool | None:
        """Start a request that says what has changed; False if the ring has no room. None where
        that leaves no partition in the session: then it is a full request, and the session ends."""
        version = request.api_version
        connection = request.connection
        by_id = version >= TOPIC_IDS_FROM
        session = self._sessions.get(body.session_id, connection.scope)
        if session is None or body.replica_id >= 0:
            request.answer_top(error_codes.FETCH_SESSION_ID_NOT_FOUND)
            connection.inflight.append(request)
            return True
        error = 0
        if session.epoch != body.session_epoch:
            error = error_codes.INVALID_FETCH_SESSION_EPOCH
        elif session.uses_topic_ids != by_id:
            error = error_codes.FETCH_SESSION_TOPIC_ID_ERROR
        else:
            changed = [
                (
                    (topic_id if by_id else name, index),
                    PARAMETERS.pack(max_bytes, epoch, last_fetched_epoch, offset),
                )
                for name, topic_id, rows in body.topics
                for index, epoch, offset, last_fetched_epoch, max_bytes in rows
            ]
            is_long = any(len(name) > TOPIC_NAME_CHARACTERS_MAX for name, _, _ in body.topics)
            if is_long or not self._sessions.has_room(session, changed):
                self._sessions.remove(session)
                error = error_codes.FETCH_SESSION_ID_NOT_FOUND
        if error:
            request.answer_top(error)
            connection.inflight.append(request)
            return True
        session.change(changed, body.forgotten)
        if not session.partitions:
            return None
        limits = Limits(body, request.client_id, self._gateway.fetch_bytes_max)
        limits.version = version
        session.repeated = None
        end_bytes = NOTHING_CHANGES[version]
        if not changed and not body.forgotten and buffer.endswith(end_bytes, start, end):
            epoch_at = end - len(end_bytes) - 4
            if _ID_AND_EPOCH.unpack_from(buffer, epoch_at - 4) == (session.id, session.epoch):
                limits.prefix = bytes(buffer[start + 8 : epoch_at])
                session.repeated = limits
        self._use(connection, session)
        return self.read(connection, session, limits, request.correlation_id)

    def read(
        self, connection: Connection, session: FetchSession, limits: Limits, correlation_id: int
    ) -> bool:
        """Ask for what the session has now; False if the ring has no room."""
        gateway = self._gateway
        image = gateway.image
        if session.image is not image:
            session.resolve(list(session.partitions), self._locator(connection, session))
            session.image = image
        elif session.unresolved:
            session.resolve(session.unresolved, self._locator(connection, session))
        request = FetchRequest(connection, API_KEY, limits.version, correlation_id)
        request.client_id = limits.client_id
        request.isolation = limits.isolation
        request.known = None
        request.session = session
        request.epoch = next_epoch(session.epoch)
        request.wanted = None
        request.found = {}
        request.limits = limits
        peer = gateway.io_peer(connection)
        error = error_codes.NONE
        if limits.isolation not in (0, 1):
            error = error_codes.UNKNOWN_SERVER_ERROR
        elif peer is None:
            error = error_codes.NOT_LEADER_OR_FOLLOWER
        is_kept = session.is_large
        if not is_kept and session.host is not None:  # it has become small
            end_at_broker(session)
        host = (peer, peer.incarnation) if peer is not None else None
        if is_kept and session.is_in_step and session.host == host:
            request.asked = session.asked_last
            entries = session.asked_since()
            count, payload, flags = len(entries), b"".join(entries), READ_FLAG_SESSION
        else:
            request.asked, payload = session.asked()
            count, flags = len(request.asked), READ_FLAG_SESSION | READ_FLAG_NEW if is_kept else 0
        if request.asked and peer is not None and not error:
            number = session.id if is_kept else 0
            head = limits.pack_head(gateway.token + 1, count, flags, number)
            if not request.try_send(gateway, peer, head + payload):
                return False
            if is_kept:
                session.on_asked(host, request.asked)
            self._sessions.on_request(session, int(gateway.now() * 1000))
        else:
            self._sessions.on_request(session, int(gateway.now() * 1000))
            request.fail(error)
            self.finish(request, session, has_failed=True)
            connection.inflight.append(request)
        return True

    def _locator(
        self, connection: Connection, session: FetchSession
    ) -> Callable[[Key], bytes | int]:
        """Where a partition of the session is by the image of now, or an error code."""
        image, guard = self._gateway.image, self._gateway.guard
        unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        topics: Mapping[Any, TopicImage] = image.topics_by_name
        no_topic = unknown
        if session.uses_topic_ids:
            topics, no_topic = image.topics_by_id, error_codes.UNKNOWN_TOPIC_ID

        def locate(key: Key) -> bytes | int:
            topic = topics.get(key[0])
            if topic is None:
                is_known = isinstance(key[0], bytes) or may_read(guard, connection, key[0])
                return no_topic if is_known else error_codes.TOPIC_AUTHORIZATION_FAILED
            if not may_read(guard, connection, topic.name):
                return error_codes.TOPIC_AUTHORIZATION_FAILED
            if not 0 <= key[1] < len(topic.partitions):
                return unknown
            return partition_key(topic.topic_id, key[1])

        return locate

    def ask_for_all(self, request: FetchRequest, session: FetchSession, peer: Peer) -> None:
        """The broker does not keep the session, or no more: name all its partitions."""
        gateway = self._gateway
        request.asked, payload = session.asked()
        gateway.token = token = gateway.token + 1
        flags = READ_FLAG_SESSION | READ_FLAG_NEW
        head = request.limits.pack_head(token, len(request.asked), flags, session.id)
        if request.connection.throttle is not None:
            head = bounded(request.connection.throttle, request.client_id, head)
        peer.send(READ, head + payload)
        session.on_asked((peer, peer.incarnation), request.asked)
        request.token = token
        gateway.pending[token] = request

    # ── answers ─────────────────────────────────────────────────────────────────────────────────

    def finish(
        self, request: FetchRequest, session: FetchSession, *, has_failed: bool = False
    ) -> None:
        """All slices are known: tell what the client does not know yet. has_failed: the broker has
        not told it, and knows nothing of it."""
        connection = request.connection
        throttle = connection.throttle
        session_id = session.id if session.kept_rows is None else 0
        # Whether somebody else went on with the session while this request waited.
        is_stale = session.epoch != request.epoch
        error = error_codes.INVALID_FETCH_SESSION_EPOCH if is_stale else error_codes.NONE
        if throttle is not None:
            # Only what has changed is told.
            lengths = [
                answer[A_LENGTH]
                for answer in request.found.values()
                if answer[A_LENGTH] or answer[A_ERROR]
            ]
            if session.kept_rows is not None:
                lengths += [0] * (len(session.partitions) - len(lengths))
            if throttle_ms := throttle.use_fetch(request, size_about(lengths)):
                request.answer_top(error, session_id, throttle_ms)
                return
        if is_stale:
            request.answer_top(error, session_id)
            return
        topics: Topics = _settle(request, session)
        untold = None
        if session.kept_rows is not None:
            topics, untold = session.kept_rows.beside(topics)
        session.is_in_step = session.host is not None and not has_failed
        made = FetchAnswer(self._gateway, connection, request.api_version)
        request.response = made.parts(
            topics, request.isolation, session_id, request.correlation_id, untold
        )

    # ── beginnings and ends ─────────────────────────────────────────────────────────────────────

    def create(self, request: FetchRequest, wanted: Wanted) -> int:
        """Keep what a full request has asked for; the session's id, 0 if there is no room."""
        session = self._sessions.try_create(
            request.connection.scope,
            request.api_version >= TOPIC_IDS_FROM,
            (
                (
                    key,
                    parameters,
                    answer[A_ERROR],
                    answer[A_HIGH_WATERMARK],
                    answer[A_LOG_START_OFFSET],
                )
                for key, (parameters, answer) in wanted.items()
            ),
            len(wanted),
            int(self._gateway.now() * 1000),
        )
        if session is None:
            request.connection.session = None
            return 0
        self._use(request.connection, session)
        return session.id

    def _use(self, connection: Connection, session: FetchSession) -> None:
        """Note that a connection uses this session now."""
        before = connection.session
        if before is session:
            return
        if before is not None and before.id in self._sessions.sessions:
            connection.changed_session_at = self._gateway.now()
        connection.session = session

    def end(self, connection: Connection, session_id: int) -> None:
        """The client asks without it from now on."""
        session = self._sessions.get(session_id, connection.scope)
        if session is not None:
            self._sessions.remove(session)
            if connection.session is session:
                connection.session = None


def end_at_broker(session: FetchSession) -> None:
    """The broker that keeps a session need not any more."""
    if session.host is not None:
        (peer, incarnation), session.host = session.host, None
        if peer.incarnation == incarnation:
            flags = READ_FLAG_SESSION | READ_FLAG_NEW
            peer.send(READ, READ_HEAD.pack(0, 0, 0, 0, 0, flags, 0, session.id))


def _settle(request: FetchRequest, session: FetchSession) -> list[tuple[str, bytes, list[Answer]]]:
    """What the session's client is told, by topic; from now on it knows."""
    topics = []
    last = None
    for key, answer in _told(request, session):
        session.on_told(
            key,
            answer[A_ERROR],
            answer[A_HIGH_WATERMARK],
            answer[A_LOG_START_OFFSET],
            answer[A_LENGTH] > 0,
        )
        if key[0] != last:
            last = key[0]
            answers: list[Answer] = []
            topics.append(
                ("", last, answers) if isinstance(last, bytes) else (last, ZERO_UUID, answers)
            )
        answers.append(answer)
    return topics


def _told(request: FetchRequest, session: FetchSession) -> Iterator[tuple[Key, Answer]]:
    """Partitions and their answers; those that can't be read come last, as in Kafka."""
    asked = request.asked
    for which, answer in request.found.items():
        yield asked[which], answer
    for key, error in session.errors.items():
        yield key, new_answer(key[1], error)
