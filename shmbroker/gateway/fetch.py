"""Fetch (key 1): read record batches from a partition's log.

Versions: 4-18.
Where: the network worker decodes, the I/O worker of the connection's port looks the slices up, the
network worker sends them from the segment files.
Version notes: 5 log start offset; 7 fetch sessions (KIP-227); 9 current leader epoch (KIP-320); 11
rack and preferred replica (KIP-392); 12 flexible, diverging epoch (KIP-595); 13 topic ids
(KIP-516); 15 replica state replaces the replica id; 16 node endpoints (KIP-951); 18 high watermark
of the follower.

Rules of this file:
* Followers are siblings and read over the rings: whoever claims to be a replica is none (6).
* The answer's bytes are put together in `gateway.fetch_answer`.
* Sessions live in this worker (`gateway.fetch_session`). A client stays on its connection, so it
  stays on its worker; one that comes back elsewhere is told FETCH_SESSION_ID_NOT_FOUND, and begins
  anew.
* A client that waits in a session sends the same bytes each time, but for correlation id and
  epoch; one that reads a single partition without a session the same but for correlation id and
  offset. They are remembered with what they mean, and not decoded again. What is larger is walked
  (`gateway.fetch_rows`).
"""

from __future__ import annotations

import os
from struct import Struct

from shmbroker.apis.table import FETCH
from shmbroker.errors import ProtocolFault
from shmbroker.gateway import fetch_rows
from shmbroker.gateway.fetch_answer import (
    HEAD,
    INT,
    PARTITION_V4,
    PARTITION_V5,
    FetchAnswer,
    named,
    no_aborted,
)
from shmbroker.gateway.fetch_rows import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from shmbroker.gateway.fetch_session import (
    KEPT_MIN,
    PARAMETERS,
    SESSION_IDS,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
    next_epoch,
)
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.recogniser import TopicMeaning, key_of
from shmbroker.ids import ZERO_UUID, partition_key
from shmbroker.ipc.operation_layout import (
    CANCEL,
    READ,
    READ_ABORTED,
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_FLAG_SESSION,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
    TOKEN,
    UNKNOWN_SESSION,
)
from shmbroker.known import Known
from shmbroker.metadata.topic_names import TOPIC_NAME_CHARACTERS_MAX
from shmbroker.security.acls import CLUSTER, CLUSTER_ACTION, CLUSTER_NAME, TOPIC
from shmbroker.security.acls import READ as READ_RIGHT
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_request_header, response_header
from shmbroker.wire.primitives import array_head, uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping
    from typing import Any

    from shmbroker.apis.contexts import RequestContext
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_answer import Answer
    from shmbroker.gateway.fetch_rows import Asked
    from shmbroker.gateway.quotas import Throttle
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import TopicImage

    Wanted = dict[tuple[str | bytes, int], tuple[bytes, Answer]]
    """What a session is made of: by topic and partition, `PARAMETERS` and the answer."""

API_KEY, NAME, VERSION_MIN, VERSION_MAX, VERSION_MIN_ADVERTISED = FETCH

_SESSION = Struct(">ii")

ANSWER_BYTES = 16
"""The size of an answer without partitions."""
ROW_BYTES = 40
"""The size of a partition in it, without its records."""

READ_PARTITIONS_MAX = SESSION_PARTITIONS_MAX
"""Partitions looked up for one request; those behind are answered without records this time."""

NEW_SESSION = 0
NO_SESSION = -1
"""Session epochs of requests that name all their partitions."""

_ENDS = {
    version: bytes(8 if version < 11 else 10) if version < FLEXIBLE_FROM else b"\1\1\1\0"
    for version in range(SESSIONS_FROM, VERSION_MAX + 1)
}
"""What is behind the session epoch where nothing changes: no topics, none forgotten, no rack."""

REPEATED_BYTES_MIN = 40
REPEATED_BYTES_MAX = 512
"""Longer frames are not looked at: any with one partition is shorter, but for long names."""


def _bytes_behind_offset(version: int) -> int:
    """Where there is one partition, nothing forgotten, no rack and no tagged field."""
    if version >= FLEXIBLE_FROM:
        return 4 + 8 + 4 + 5  # last fetched epoch, log start, max bytes; five times nothing
    return 4 + (8 if version >= 5 else 0) + (4 if version >= 7 else 0) + (2 if version >= 11 else 0)


_OFFSET_FROM_END = {
    version: _bytes_behind_offset(version) + 8 for version in range(VERSION_MIN, VERSION_MAX + 1)
}
_OFFSET = Struct(">q")
_KNOWN_READ = Struct("<Q24s32sq16s")
"""Token; the rest of READ_HEAD; READ_PARTITION up to its offset; the offset; what follows."""
assert _KNOWN_READ.size == READ_HEAD.size + READ_PARTITION.size

KNOWN_MAX = 1024
"""Requests of one partition that are remembered for all connections."""
CORRELATION_ID_BYTES = 4
TOPICS_MAX = 256
"""Topics whose partitions' keys are kept."""
_UNKNOWN_PARTITION = error_codes.UNKNOWN_TOPIC_OR_PARTITION
_pack_row = READ_PARTITION.pack


class KnownFetch(TopicMeaning):
    """What the bytes around correlation id and offset mean; of one topic, as it was then."""

    __slots__ = ("after", "answer_end", "answer_head", "answer_middle", "before", "client_id",
                 "head", "index", "isolation", "name", "topic_id")  # fmt: skip
    after: bytes
    answer_end: bytes
    """What an answer has behind the records, what stands before the partition's numbers (all but
    the frame's size and the correlation id), what stands between those and the records' length."""
    answer_head: bytes
    answer_middle: bytes
    before: bytes
    client_id: bytes | None
    head: bytes
    index: int
    isolation: int
    name: str
    topic_id: bytes


class FetchRequest(Request):
    """`topics`: per topic name, id and answers [index, error, hw, lso, start, …].

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
    """In a session."""
    session: FetchSession | None
    topics: list[tuple[str, bytes, list[Answer]]]
    wanted: Wanted | None


class Limits:
    """What a request says besides its partitions."""

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


class FetchApi:
    """The network worker's side of Fetch. `place`: of how many workers it is which, from 0."""

    def __init__(
        self, worker: RequestContext, place: int = 0, workers: int = 1, guests: int = 0
    ) -> None:
        """guests: so many gateways besides have places, too. Each gives out ids of its own."""
        self.worker = worker
        self.known: Known[tuple[Hashable, bytes], KnownFetch] = Known(KNOWN_MAX)
        """By the scope of the connection and the bytes that stay the same."""
        self._keys: Known[bytes, list[bytes]] = Known(TOPICS_MAX)
        ids = SESSION_IDS // (workers + guests)
        self.sessions = FetchSessions(
            range(place * ids, (place + 1) * ids),
            int.from_bytes(os.urandom(4), "big"),
            -(-worker.config["max.incremental.fetch.session.cache.slots"] // workers),
            on_removed=self._on_removed,
        )

    def submit(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Start one Fetch; False if the ring has no room: then nothing was done."""
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise ProtocolFault(f"Fetch version {version}")
        if version >= SESSIONS_FROM and buffer.endswith(_ENDS[version], start, end):
            session = self._repeating(connection, buffer, start, end, version)
            if session is not None:
                return self._read_session(connection, session, session.repeated, correlation_id)
        same = b""
        if REPEATED_BYTES_MIN <= end - start <= REPEATED_BYTES_MAX:
            offset_at = end - _OFFSET_FROM_END[version]
            same = key_of(buffer, start, offset_at) + buffer[offset_at + 8 : end]
            known = self.known.get((connection.scope, same))
            image = self.worker.image
            if known is not None and (known.image is image or known.holds(image)):
                peer = self.worker.io_peer(connection)
                if peer is not None:
                    offset = _OFFSET.unpack_from(buffer, offset_at)[0]
                    return self._send_known(
                        connection, peer, known, offset, version, correlation_id
                    )
        view = memoryview(buffer)[start:end]
        _, _, _, client_id, body_at = parse_request_header(view, 0, end - start)
        request = FetchRequest(connection, API_KEY, version, correlation_id)
        request.client_id = client_id
        request.known = request.session = request.wanted = None
        body = None
        if end - start > REPEATED_BYTES_MAX:
            body = fetch_rows.walk(buffer, start + body_at, end, version)
        if body is None:
            decoded = codec.decode_request("Fetch", version, view, body_at)
            body = fetch_rows.of_body(decoded, version)
            if (
                same
                and body.session_epoch == NO_SESSION
                and len(body.topics) == 1 == len(body.topics[0][2])
            ):
                self._remember(request, decoded, body, same, view[body_at:])
        view.release()
        request.isolation = body.isolation
        if version >= SESSIONS_FROM and body.session_epoch != NO_SESSION:
            if body.session_epoch != NEW_SESSION:
                return self._submit_incremental(request, body, buffer, start, end)
            request.wanted = {} if body.replica_id < 0 else None
        if version >= SESSIONS_FROM and body.session_id:
            old = self.sessions.get(body.session_id, connection.scope)
            if old is not None:
                self.sessions.remove(old)
                connection.session = None
        return self._submit_full(request, body)

    def _submit_full(self, request: FetchRequest, body: Asked) -> bool:
        """A request that names all its partitions. With `wanted` it gets a session."""
        worker = self.worker
        version = request.api_version
        request.topics = topics = []
        request.asked = asked = []
        isolation, wanted = request.isolation, request.wanted
        is_client = body.replica_id < 0
        peer = worker.io_peer(request.connection) if is_client else None
        by_id = version >= TOPIC_IDS_FROM
        entries: list[bytes] = []
        for name, topic_id, rows in body.topics:
            if not rows:
                continue
            answers: list[Answer] = []
            topics.append((name, topic_id, answers))
            image = worker.topic_of({"name": name, "topic_id": topic_id}, by_id)
            is_forbidden = image is not None or not by_id or not is_client
            if is_forbidden:
                known_name = image.name if image is not None else name
                is_forbidden = not self._may_read(request.connection, known_name, not is_client)
            if wanted is not None and len(name) > TOPIC_NAME_CHARACTERS_MAX:
                wanted = request.wanted = None  # no name that could be; nor is it worth the room
            refused, count, keys = error_codes.NONE, 0, []
            if isolation not in (0, 1):
                refused = error_codes.UNKNOWN_SERVER_ERROR
            elif is_forbidden:
                refused = error_codes.TOPIC_AUTHORIZATION_FAILED
            elif image is None:
                refused = error_codes.UNKNOWN_TOPIC_ID if by_id else _UNKNOWN_PARTITION
            else:
                count = len(image.partitions)
                keys = self._keys_of(image)
            for index, epoch, offset, last_fetched_epoch, max_bytes in rows:
                answer: Answer = [index, refused, -1, -1, -1, None, 0, -1, -1, None]
                answers.append(answer)
                if wanted is not None:
                    parameters = PARAMETERS.pack(max_bytes, epoch, last_fetched_epoch, offset)
                    wanted[topic_id if by_id else name, index] = (parameters, answer)
                if refused:
                    continue
                if not 0 <= index < count:
                    answer[1] = _UNKNOWN_PARTITION
                elif peer is None:
                    answer[1] = error_codes.NOT_LEADER_OR_FOLLOWER
                elif len(entries) < READ_PARTITIONS_MAX:
                    asked.append(answer)
                    entries.append(
                        _pack_row(keys[index], max_bytes, epoch, last_fetched_epoch, offset, -1, -1)
                    )
        if peer is None or not entries:
            self._finish(request)
            request.connection.inflight.append(request)
            return True
        limits = Limits(body, request.client_id, worker.fetch_bytes_max)
        head = limits.pack_head(worker.token + 1, len(entries))
        return self._send(request, peer, limits, head + b"".join(entries))

    def _send(self, request: FetchRequest, peer: Peer, limits: Limits, read: bytes) -> bool:
        """Send a READ with the next token; False if the ring has no room."""
        worker = self.worker
        token = worker.token + 1
        if request.connection.throttle is not None:
            read = _bounded(request.connection.throttle, limits.client_id, read)
        if not peer.try_send(READ, read):
            return False
        worker.token = token
        request.tokens = [token]
        request.peer = peer
        worker.pending[token] = request
        request.connection.inflight.append(request)
        return True

    def _keys_of(self, image: TopicImage) -> list[bytes]:
        """The keys on the rings of a topic's partitions, and perhaps of more."""
        keys = self._keys.get(image.topic_id)
        if keys is None or len(keys) < len(image.partitions):
            count = len(image.partitions)
            keys = [partition_key(image.topic_id, index) for index in range(count)]
            self._keys.keep(image.topic_id, keys)
        return keys

    # ── single partitions, again and again ──────────────────────────────────────────────────────

    def _remember(
        self,
        request: FetchRequest,
        decoded: dict[str, Any],
        body: Asked,
        same: bytes,
        encoded: memoryview,
    ) -> None:
        """Note what the same bytes with another offset will mean."""
        version = request.api_version
        topic = decoded["topics"][0]
        name, topic_id, rows = body.topics[0]
        index, epoch, offset, last_fetched_epoch, max_bytes = rows[0]
        worker = self.worker
        image = worker.topic_of(topic, version >= TOPIC_IDS_FROM)
        if (
            image is None
            or not 0 <= index < len(image.partitions)
            or not self._may_read(request.connection, image.name)
            or body.isolation not in (0, 1)
            or body.replica_id >= 0
            or body.session_id
            or decoded["rack_id"]
            or body.forgotten
            or codec.encode("FetchRequest", version, decoded) != encoded
        ):
            return
        limits = Limits(body, request.client_id, worker.fetch_bytes_max)
        known = KnownFetch()
        known.client_id = request.client_id
        known.isolation = limits.isolation
        known.image = worker.image
        known.topic_image = image
        known.name = name
        known.topic_id = topic_id
        known.index = index
        known.head = limits.pack_head(0, 1)[TOKEN.size :]
        key = partition_key(image.topic_id, index)
        entry = _pack_row(key, max_bytes, epoch, last_fetched_epoch, offset, -1, -1)
        known.before, known.after = entry[:32], entry[40:]
        is_flexible = version >= FLEXIBLE_FROM
        known.answer_head = b"".join(
            (
                response_header(API_KEY, version, 0)[CORRELATION_ID_BYTES:],
                HEAD.pack(0, 0, 0) if version >= SESSIONS_FROM else b"\0\0\0\0",
                array_head(1, is_flexible),
                named(name, topic_id, version),
                array_head(1, is_flexible),
            )
        )
        known.answer_middle = no_aborted(known.isolation, version)
        known.answer_end = b"\0\0\0" if is_flexible else b""
        self.known.keep((request.connection.scope, same), known)

    def _send_known(
        self,
        connection: Connection,
        peer: Peer,
        known: KnownFetch,
        offset: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        worker = self.worker
        token = worker.token + 1
        read = _KNOWN_READ.pack(token, known.head, known.before, offset, known.after)
        if connection.throttle is not None:
            read = _bounded(connection.throttle, known.client_id, read)
        if not peer.try_send(READ, read):
            return False
        worker.token = token
        request = FetchRequest(connection, API_KEY, version, correlation_id)
        request.client_id = known.client_id
        request.isolation = known.isolation
        request.known = known
        request.session = request.wanted = None
        answer = [known.index, 0, -1, -1, -1, None, 0, -1, -1, None]
        request.asked = [answer]
        request.topics = [(known.name, known.topic_id, request.asked)]
        request.tokens = [token]
        request.peer = peer
        worker.pending[token] = request
        connection.inflight.append(request)
        return True

    # ── sessions ────────────────────────────────────────────────────────────────────────────────

    def _repeating(
        self, connection: Connection, buffer: bytearray, start: int, end: int, version: int
    ) -> FetchSession | None:
        """The session whose client has sent the very same before, but for the epoch."""
        epoch_at = end - len(_ENDS[version]) - 4
        if end - start < REPEATED_BYTES_MIN:
            return None
        session_id, epoch = _SESSION.unpack_from(buffer, epoch_at - 4)
        session = self.sessions.get(session_id, connection.scope)
        if session is None or session.epoch != epoch:
            return None
        repeated = session.repeated
        if (
            repeated is None
            or repeated.version != version
            or repeated.prefix != buffer[start + 8 : epoch_at]
        ):
            return None
        return session

    def _submit_incremental(
        self, request: FetchRequest, body: Asked, buffer: bytearray, start: int, end: int
    ) -> bool:
        """A request that says what has changed."""
        version = request.api_version
        connection = request.connection
        by_id = version >= TOPIC_IDS_FROM
        session = self.sessions.get(body.session_id, connection.scope)
        if session is None or body.replica_id >= 0:
            self._answer_top(request, error_codes.FETCH_SESSION_ID_NOT_FOUND)
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
            if is_long or (changed and not self.sessions.can_grow(session, len(changed))):
                self.sessions.remove(session)
                error = error_codes.FETCH_SESSION_ID_NOT_FOUND
        if error:
            self._answer_top(request, error)
            connection.inflight.append(request)
            return True
        session.change(changed, body.forgotten)
        if not session.partitions:
            if not self._submit_full(request, body):
                return False
            self.sessions.remove(session)
            connection.session = None
            return True
        limits = Limits(body, request.client_id, self.worker.fetch_bytes_max)
        limits.version = version
        session.repeated = None
        end_bytes = _ENDS[version]
        if not changed and not body.forgotten and buffer.endswith(end_bytes, start, end):
            epoch_at = end - len(end_bytes) - 4
            if _SESSION.unpack_from(buffer, epoch_at - 4) == (session.id, session.epoch):
                limits.prefix = bytes(buffer[start + 8 : epoch_at])
                session.repeated = limits
        return self._read_session(connection, session, limits, request.correlation_id)

    def _read_session(
        self, connection: Connection, session: FetchSession, limits: Limits, correlation_id: int
    ) -> bool:
        """Ask for what the session has now."""
        worker = self.worker
        image = worker.image
        connection.session = session
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
        peer = worker.io_peer(connection)
        error = error_codes.NONE
        if limits.isolation not in (0, 1):
            error = error_codes.UNKNOWN_SERVER_ERROR
        elif peer is None:
            error = error_codes.NOT_LEADER_OR_FOLLOWER
        is_kept = len(session.partitions) >= KEPT_MIN
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
            head = limits.pack_head(worker.token + 1, count, flags, number)
            if not self._send(request, peer, limits, head + payload):
                return False
            if is_kept:
                session.on_asked(host, request.asked)
            self.sessions.on_request(session, int(worker.now() * 1000))
        else:
            self.sessions.on_request(session, int(worker.now() * 1000))
            self.on_failed(request, error)
            connection.inflight.append(request)
        return True

    def _ask_for_all(self, request: FetchRequest, session: FetchSession, peer: Peer) -> None:
        """The broker does not keep the session, or no more: name all its partitions."""
        worker = self.worker
        request.asked, payload = session.asked()
        worker.token = token = worker.token + 1
        flags = READ_FLAG_SESSION | READ_FLAG_NEW
        head = request.limits.pack_head(token, len(request.asked), flags, session.id)
        if request.connection.throttle is not None:
            head = _bounded(request.connection.throttle, request.client_id, head)
        peer.send(READ, head + payload)
        session.on_asked((peer, peer.incarnation), request.asked)
        request.tokens = [token]
        worker.pending[token] = request

    def _on_removed(self, session: FetchSession) -> None:
        """It has ended: the broker that keeps it need not."""
        if session.host is not None:
            peer, incarnation = session.host
            if peer.incarnation == incarnation:
                flags = READ_FLAG_SESSION | READ_FLAG_NEW
                peer.send(READ, READ_HEAD.pack(0, 0, 0, 0, 0, flags, 0, session.id))

    def _locator(
        self, connection: Connection, session: FetchSession
    ) -> Callable[[tuple[Any, int]], bytes | int]:
        """Where a partition of the session is by the image of now, or an error code."""
        image = self.worker.image
        unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        topics: Mapping[Any, TopicImage] = image.topics_by_name
        no_topic = unknown
        if session.uses_topic_ids:
            topics, no_topic = image.topics_by_id, error_codes.UNKNOWN_TOPIC_ID

        def locate(key: tuple[Any, int]) -> bytes | int:
            topic = topics.get(key[0])
            if topic is None:
                is_known = session.uses_topic_ids or self._may_read(connection, key[0])
                return no_topic if is_known else error_codes.TOPIC_AUTHORIZATION_FAILED
            if not self._may_read(connection, topic.name):
                return error_codes.TOPIC_AUTHORIZATION_FAILED
            if not 0 <= key[1] < len(topic.partitions):
                return unknown
            return partition_key(topic.topic_id, key[1])

        return locate

    def _may_read(self, connection: Connection, topic: str, as_replica: bool = False) -> bool:
        guard = self.worker.guard
        if guard is None:
            return True
        if as_replica:
            return guard.may(connection, NAME, CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        return guard.may(connection, NAME, READ_RIGHT, TOPIC, topic)

    def _settle(self, request: FetchRequest, session: FetchSession) -> bool:
        """List what the session's client is told, and remember that it was."""
        if session.epoch != request.epoch:
            # Somebody else went on with the session while this request waited.
            self._answer_top(request, error_codes.INVALID_FETCH_SESSION_EPOCH, session.id)
            return False
        request.topics = topics = []
        last = None
        for key, answer in self._told(request, session):
            session.on_told(key, answer[1], answer[2], answer[4], answer[6] > 0)
            if key[0] != last:
                last = key[0]
                answers: list[Answer] = []
                topics.append(
                    ("", last, answers) if session.uses_topic_ids else (last, ZERO_UUID, answers)
                )
            answers.append(answer)
        session.is_in_step = session.host is not None
        return True

    def _told(
        self, request: FetchRequest, session: FetchSession
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Partitions and their answers; those that can't be read come last, as in Kafka."""
        asked = request.asked
        for which, answer in request.found.items():
            yield asked[which], answer
        for key, error in session.errors.items():
            yield key, [key[1], error, -1, -1, -1, None, 0, -1, -1, None]

    def _create_session(self, request: FetchRequest, wanted: Wanted) -> int:
        """Keep what a full request has asked for; the session's id, 0 if there is no room."""
        session = self.sessions.try_create(
            request.connection.scope,
            request.api_version >= TOPIC_IDS_FROM,
            (
                (key, parameters, answer[1], answer[2], answer[4])
                for key, (parameters, answer) in wanted.items()
            ),
            len(wanted),
            int(self.worker.now() * 1000),
        )
        request.connection.session = session
        return session.id if session is not None else 0

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def cancel(self, request: FetchRequest, token: int) -> None:
        """The client is gone: nobody waits for this read."""
        assert request.peer is not None
        request.peer.send(CANCEL, TOKEN.pack(token))

    def on_read_done(
        self, request: FetchRequest, peer: Peer, data: memoryview, index: int
    ) -> list[int]:
        """Complete the request from a READ_DONE entry.

        Returns the file ids whose descriptors are not here; none when the answer is complete. The
        files that were found are kept, so that a call after the missing ones came gets on.
        """
        missing: list[int] = []
        _, count, aborted_count = READ_DONE_HEAD.unpack_from(data, index)
        if count == UNKNOWN_SESSION and request.session is not None:
            self._ask_for_all(request, request.session, peer)
            return missing
        at = index + READ_DONE_HEAD.size
        if (
            request.known is not None
            and count == 1
            and not aborted_count
            and self._has_answered_known(request, request.known, data, at)
        ):
            return missing
        files = self.worker.files[peer.slot]
        aborted_at = at + count * READ_SLICE.size
        inline_at = aborted_at + aborted_count * READ_ABORTED.size
        asked = request.asked
        found = request.found if request.session is not None else None
        for _ in range(count):
            (
                error, which, length, high_watermark, stable, log_start,
                file_id, position, diverging_epoch, _, diverging_end,
            ) = READ_SLICE.unpack_from(data, at)  # fmt: skip
            at += READ_SLICE.size
            if found is None:
                answer = asked[which]
            else:
                answer = found.get(which)
                if answer is None:
                    found[which] = answer = [asked[which][1], 0, -1, -1, -1, None, 0, -1, -1, None]
            answer[1] = error
            answer[2] = high_watermark
            answer[3] = stable
            answer[4] = log_start
            if length and answer[5] is None:
                answer[6] = length
                if file_id == 0:
                    start = inline_at + position
                    answer[5] = bytes(data[start : start + length])
                elif (file := files.find(file_id)) is not None:
                    answer[5] = (file, position)
                else:
                    missing.append(file_id)
            if diverging_epoch >= 0:
                answer[7] = diverging_epoch
                answer[8] = diverging_end
        if not missing:
            if aborted_count:
                answers = asked if found is None else found
                for place in range(aborted_at, inline_at, READ_ABORTED.size):
                    which, producer_id, first_offset = READ_ABORTED.unpack_from(data, place)
                    answer = answers[which]
                    if answer[9] is None:
                        answer[9] = []
                    answer[9].append((producer_id, first_offset))
            self._finish(request)
        return missing

    def _has_answered_known(
        self, request: FetchRequest, known: KnownFetch, data: memoryview, at: int
    ) -> bool:
        """The usual answer to a request that was recognised: few records, or none, in one piece.
        False where it is not that: then `_finish` builds it, to the same bytes."""
        (
            error, _, length, high_watermark, stable, log_start,
            file_id, position, diverging_epoch, _, _,
        ) = READ_SLICE.unpack_from(data, at)  # fmt: skip
        if error or file_id or diverging_epoch >= 0 or request.connection.throttle is not None:
            return False
        version = request.api_version
        start = at + READ_SLICE.size + position
        numbers = (known.index, 0, high_watermark, stable, log_start)
        parts = (
            known.answer_head,
            PARTITION_V5.pack(*numbers) if version >= 5 else PARTITION_V4.pack(*numbers[:4]),
            known.answer_middle,
            uvarint(length + 1) if version >= FLEXIBLE_FROM else INT.pack(length),
            data[start : start + length],
            known.answer_end,
        )
        size = CORRELATION_ID_BYTES + sum(map(len, parts))
        request.response = [b"".join((_SESSION.pack(size, request.correlation_id), *parts))]
        return True

    def on_failed(self, request: FetchRequest, error_code: int) -> None:
        """The I/O worker died: every partition that it was asked for gets this error."""
        if request.session is not None:
            request.found = {
                which: [key[1], error_code, -1, -1, -1, None, 0, -1, -1, None]
                for which, key in enumerate(request.asked)
            }
        else:
            for answer in request.asked:
                answer[1] = error_code
                answer[5], answer[6] = None, 0
        self._finish(request)

    # ── answer ──────────────────────────────────────────────────────────────────────────────────

    def _answer_top(
        self,
        request: FetchRequest,
        error_code: int,
        session_id: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        body = codec.encode(
            "FetchResponse",
            request.api_version,
            {
                "throttle_time_ms": throttle_time_ms,
                "error_code": error_code,
                "session_id": session_id,
                "responses": [],
            },
        )
        header = response_header(API_KEY, request.api_version, request.correlation_id)
        request.response = [INT.pack(len(header) + len(body)) + header + body]

    def _answer_throttled(self, request: FetchRequest, throttle_ms: int) -> None:
        """The client is over a quota: it gets nothing, and no session that it has not yet."""
        session = request.session
        if session is None:
            self._answer_top(request, error_codes.NONE, 0, throttle_ms)
        elif session.epoch != request.epoch:
            error = error_codes.INVALID_FETCH_SESSION_EPOCH
            self._answer_top(request, error, session.id, throttle_ms)
        else:
            self._answer_top(request, error_codes.NONE, session.id, throttle_ms)

    def _finish(self, request: FetchRequest) -> None:
        """All slices are known: settle its session, and make the answer."""
        session_id = 0
        session = request.session
        throttle = request.connection.throttle
        if throttle is not None and (
            throttle_ms := throttle.use_fetch(request, _answer_bytes(request))
        ):
            self._answer_throttled(request, throttle_ms)
            return
        if session is not None:
            if not self._settle(request, session):
                return
            session_id = session.id
        elif request.wanted is not None:
            session_id = self._create_session(request, request.wanted)
        made = FetchAnswer(self.worker, request.connection, request.api_version)
        request.response = made.parts(
            request.topics, request.isolation, session_id, request.correlation_id
        )


def _answer_bytes(request: FetchRequest) -> int:
    """About as many as its answer has: what each partition takes besides its records is a guess."""
    lengths: list[int]
    if request.session is not None:  # then only what has changed is told
        lengths = [answer[6] for answer in request.found.values() if answer[6] or answer[1]]
    else:
        lengths = [answer[6] for _, _, answers in request.topics for answer in answers]
    return ANSWER_BYTES + ROW_BYTES * len(lengths) + sum(lengths)


def _bounded(throttle: Throttle, client_id: bytes | None, read: bytes) -> bytes:
    """A READ that asks for no more bytes than a quota ever lets through at once."""
    token, max_wait_ms, min_bytes, max_bytes, *rest = READ_HEAD.unpack_from(read)
    max_bytes = min(max_bytes, throttle.fetch_bytes_most(client_id))
    head = READ_HEAD.pack(token, max_wait_ms, min(min_bytes, max_bytes), max_bytes, *rest)
    return head + read[READ_HEAD.size :]
