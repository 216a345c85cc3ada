"""Fetch (key 1): read record batches from a partition's log.

Versions: 4-18.
Where: the network worker decodes, the I/O worker of the connection's port looks the slices up, the
network worker sends them from the segment files.
Version notes: 5 log start offset; 7 fetch sessions (KIP-227); 9 current leader epoch (KIP-320); 11
rack and preferred replica (KIP-392); 12 flexible, diverging epoch (KIP-595); 13 topic ids
(KIP-516); 15 replica state replaces the replica id; 16 node endpoints (KIP-951); 18 high watermark
of the follower.

       a request                                 is taken by
    A  in a session, where nothing changes       `fetch_in_session`
    B  of one partition, known by its bytes      `fetch_known`; the answer may be (`fetch_ahead`)
    C  in a session, with changes                `fetch_in_session`
    D  any that names all its partitions         here: walked if large (`fetch_rows`), else decoded;
                                                 where they are many and the same each time, in a
                                                 session that is not told of (`fetch_implied`)

Rules of this file:
* Followers are siblings and read over the rings: a client that claims to be a replica is none (6).
* What a READ has found is noted here, wherever it was sent from; the answer's bytes are put
  together in `fetch_answer`.
"""

from __future__ import annotations

import os

from shmbroker.apis.table import FETCH
from shmbroker.errors import ProtocolFault
from shmbroker.gateway import fetch_rows
from shmbroker.gateway.fetch_ahead import FetchAhead
from shmbroker.gateway.fetch_answer import (
    A_ABORTED,
    A_DIVERGING_END,
    A_DIVERGING_EPOCH,
    A_ERROR,
    A_HIGH_WATERMARK,
    A_LAST_STABLE_OFFSET,
    A_LENGTH,
    A_LOG_START_OFFSET,
    A_RECORDS,
    FetchAnswer,
    size_about,
)
from shmbroker.gateway.fetch_implied import ImpliedSessions, is_large
from shmbroker.gateway.fetch_in_session import NOTHING_CHANGES, SessionFetches, end_at_broker
from shmbroker.gateway.fetch_known import (
    OFFSET,
    OFFSET_FROM_END,
    REPEATED_BYTES_MAX,
    KnownFetch,
    meaning_of,
)
from shmbroker.gateway.fetch_request import (
    REPEATED_BYTES_MIN,
    FetchRequest,
    Limits,
    may_read,
)
from shmbroker.gateway.fetch_rows import SESSIONS_FROM, TOPIC_IDS_FROM
from shmbroker.gateway.fetch_session import (
    PARAMETERS,
    SESSION_IDS,
    SESSION_PARTITIONS_MAX,
    FetchSessions,
)
from shmbroker.gateway.recogniser import forget_gone, key_of
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    CANCEL,
    READ_ABORTED,
    READ_DONE_HEAD,
    READ_PARTITION,
    READ_SLICE,
    TOKEN,
    UNKNOWN_SESSION,
)
from shmbroker.known import Known
from shmbroker.metadata.topic_names import TOPIC_NAME_CHARACTERS_MAX
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_request_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_answer import Answer
    from shmbroker.gateway.fetch_rows import Asked
    from shmbroker.gateway.ports import RequestContext
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import MetadataImage, TopicImage

    ReadHere = Callable[[Connection, KnownFetch, Peer, int, int, int], bool]
    """Takes a Fetch of known bytes, or gives False: its offset, version, correlation id."""

API_KEY, NAME, VERSION_MIN, VERSION_MAX, VERSION_MIN_ADVERTISED = FETCH

READ_PARTITIONS_MAX = SESSION_PARTITIONS_MAX
"""Partitions looked up for one request; those behind are answered without records this time."""

NEW_SESSION = 0
NO_SESSION = -1
"""Session epochs of requests that name all their partitions."""

KNOWN_MAX = 1024
"""Requests of one partition that are remembered for all connections."""
TOPICS_MAX = 256
"""Topics whose partitions' keys are kept."""
_UNKNOWN_PARTITION = error_codes.UNKNOWN_TOPIC_OR_PARTITION
_pack_row = READ_PARTITION.pack


class FetchApi:
    """The network worker's side of Fetch. `place`: its number among the `workers`, from 0."""

    def __init__(
        self, gateway: RequestContext, place: int = 0, workers: int = 1, guests: int = 0
    ) -> None:
        """guests: so many gateways besides have places, too. Each gives out ids of its own."""
        self.gateway = gateway
        self.known: Known[tuple[Hashable, bytes], KnownFetch] = Known(KNOWN_MAX)
        """Fetches that are known, by the scope of the connection and the bytes that stay the
        same."""
        self._keys: Known[bytes, list[bytes]] = Known(TOPICS_MAX)
        ids = SESSION_IDS // (workers + guests)
        mine = range(place * ids, (place + 1) * ids)
        self.sessions = FetchSessions(
            mine,
            int.from_bytes(os.urandom(4), "big"),
            -(-gateway.config["max.incremental.fetch.session.cache.slots"] // workers),
            on_removed=end_at_broker,
        )
        self._in_session = SessionFetches(gateway, self.sessions)
        self.implied = ImpliedSessions(
            gateway, range(SESSION_IDS + mine.start, SESSION_IDS + mine.stop)
        )
        self.ahead = FetchAhead(gateway)
        self.read_here: ReadHere | None = None
        """What is asked first about a Fetch of known bytes: see `guests.straight_reads`."""

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
        # A
        if version >= SESSIONS_FROM and buffer.endswith(NOTHING_CHANGES[version], start, end):
            is_taken = self._in_session.submit_repeated(
                connection, buffer, start, end, version, correlation_id
            )
            if is_taken is not None:
                return is_taken
        same = b""
        # B
        if REPEATED_BYTES_MIN <= end - start <= REPEATED_BYTES_MAX:
            offset_at = end - OFFSET_FROM_END[version]
            same = key_of(buffer, start, offset_at) + buffer[offset_at + 8 : end]
            known = self.known.get((connection.scope, same))
            image = self.gateway.image
            if known is not None and (known.image is image or known.holds(image)):
                peer = self.gateway.io_peer(connection)
                if peer is not None:
                    return self._submit_known(
                        connection,
                        known,
                        peer,
                        OFFSET.unpack_from(buffer, offset_at)[0],
                        version,
                        correlation_id,
                    )
        return self._submit_unknown(connection, buffer, start, end, version, correlation_id, same)

    def _submit_unknown(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
        same: bytes,
    ) -> bool:
        """A request that is walked or decoded. same: what it is to be known by, if it can be."""
        gateway = self.gateway
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
                known = meaning_of(gateway, request, body, decoded, view[body_at:])
                if known is not None:
                    self.known.keep((connection.scope, same), known)
        view.release()
        request.isolation = body.isolation
        if version >= SESSIONS_FROM and body.session_epoch != NO_SESSION:
            if body.session_epoch != NEW_SESSION:  # C
                is_taken = self._in_session.submit_changes(request, body, buffer, start, end)
                if is_taken is None:
                    is_taken = self._submit_full(request, body)
                    if is_taken:
                        self._in_session.end(connection, body.session_id)
                return is_taken
            request.wanted = {} if body.replica_id < 0 else None
        if version >= SESSIONS_FROM and body.session_id:
            self._in_session.end(connection, body.session_id)
        if body.session_epoch == NO_SESSION and body.replica_id < 0 and is_large(body):
            is_taken = self.implied.submit(request, body)
            if is_taken is not None:
                return is_taken
        return self._submit_full(request, body)  # D

    def _submit_known(
        self,
        connection: Connection,
        known: KnownFetch,
        peer: Peer,
        offset: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        read_here = self.read_here
        if read_here is not None and read_here(
            connection, known, peer, offset, version, correlation_id
        ):
            return True
        if connection.ahead is not None and self.ahead.has_answered(
            connection, known, peer, offset, version, correlation_id
        ):
            return True
        gateway = self.gateway
        asks = known.is_large and connection.throttle is None and peer.slot in gateway.ahead_ends
        if not known.try_send(gateway, connection, peer, offset, version, correlation_id, asks):
            return False
        if asks:
            self.ahead.ask(connection, known, gateway.token)
        return True

    def _submit_full(self, request: FetchRequest, body: Asked) -> bool:
        """A request that names all its partitions. With `wanted` it gets a session."""
        gateway = self.gateway
        version = request.api_version
        request.topics = topics = []
        request.asked = asked = []
        isolation, wanted = request.isolation, request.wanted
        is_client = body.replica_id < 0
        peer = gateway.io_peer(request.connection) if is_client else None
        by_id = version >= TOPIC_IDS_FROM
        entries: list[bytes] = []
        for name, topic_id, rows in body.topics:
            if not rows:
                continue
            answers: list[Answer] = []
            topics.append((name, topic_id, answers))
            image = gateway.topic_of({"name": name, "topic_id": topic_id}, by_id)
            is_forbidden = False
            if image is not None or not by_id or not is_client:
                known_name = image.name if image is not None else name
                is_forbidden = not may_read(
                    gateway.guard, request.connection, known_name, not is_client
                )
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
                # `new_answer`, without a call for each of thousands.
                answer: Answer = [index, refused, -1, -1, -1, None, 0, -1, -1, None]
                answers.append(answer)
                if wanted is not None:
                    parameters = PARAMETERS.pack(max_bytes, epoch, last_fetched_epoch, offset)
                    wanted[topic_id if by_id else name, index] = (parameters, answer)
                if refused:
                    continue
                if not 0 <= index < count:
                    answer[A_ERROR] = _UNKNOWN_PARTITION
                elif peer is None:
                    answer[A_ERROR] = error_codes.NOT_LEADER_OR_FOLLOWER
                elif len(entries) < READ_PARTITIONS_MAX:
                    asked.append(answer)
                    entries.append(
                        _pack_row(keys[index], max_bytes, epoch, last_fetched_epoch, offset, -1, -1)
                    )
        if peer is None or not entries:
            self._finish(request)
            request.connection.inflight.append(request)
            return True
        limits = Limits(body, request.client_id, gateway.fetch_bytes_max)
        head = limits.pack_head(gateway.token + 1, len(entries))
        return request.try_send(gateway, peer, head + b"".join(entries))

    def forget_gone(self, image: MetadataImage) -> None:
        """Drop what does not hold in this image; sessions are resolved again when they are used."""
        forget_gone(self.known, image)
        for topic_id in [one for one in self._keys if one not in image.topics_by_id]:
            del self._keys[topic_id]
        for sessions in (self.sessions, self.implied.sessions):
            for session in sessions.sessions.values():
                if session.image is not image:
                    session.image = None

    def _keys_of(self, image: TopicImage) -> list[bytes]:
        """The keys on the rings of a topic's partitions, and perhaps of more."""
        keys = self._keys.get(image.topic_id)
        if keys is None or len(keys) < len(image.partitions):
            count = len(image.partitions)
            keys = [partition_key(image.topic_id, index) for index in range(count)]
            self._keys.keep(image.topic_id, keys)
        return keys

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def cancel(self, request: FetchRequest, token: int) -> None:
        """The client is gone: nobody waits for this read."""
        assert request.peer is not None
        request.peer.send(CANCEL, TOKEN.pack(token))

    def on_read_done(
        self, request: FetchRequest, peer: Peer, data: memoryview, index: int
    ) -> list[int]:
        """Complete the request from a READ_DONE entry:

           A  of a session that the I/O worker does not know: it is asked for all again
           B  of a known request, with one slice (`fetch_known`)
           C  else slice by slice
           D  and, when every file is here, with the aborted transactions

        Returns the file ids whose descriptors are not here; none when the answer is complete. The
        files that were found are kept, so that a call after the missing ones came gets on.
        """
        missing: list[int] = []
        told = request.connection.ahead
        if told is not None and told.known is not request.known:
            request.connection.ahead = None  # it is older than this
        _, count, aborted_count = READ_DONE_HEAD.unpack_from(data, index)
        session = request.session
        if count == UNKNOWN_SESSION and session is not None:  # A
            self._in_session.ask_for_all(request, session, peer)
            return missing
        at = index + READ_DONE_HEAD.size
        # B
        if (
            request.known is not None
            and count == 1
            and not aborted_count
            and request.known.has_answered(request, data, at, self.gateway.files[peer.slot])
        ):
            return missing
        files = self.gateway.files[peer.slot]
        aborted_at = at + count * READ_SLICE.size
        inline_at = aborted_at + aborted_count * READ_ABORTED.size
        asked = request.asked
        found = request.found if session is not None else None
        for _ in range(count):  # C
            (
                error, which, length, high_watermark, stable, log_start,
                file_id, position, diverging_epoch, _, diverging_end,
            ) = READ_SLICE.unpack_from(data, at)  # fmt: skip
            at += READ_SLICE.size
            if found is None:
                answer = asked[which]
            else:
                answer = found.get(which)
                if answer is None:  # `new_answer`, as above
                    found[which] = answer = [asked[which][1], 0, -1, -1, -1, None, 0, -1, -1, None]
            answer[A_ERROR] = error
            answer[A_HIGH_WATERMARK] = high_watermark
            answer[A_LAST_STABLE_OFFSET] = stable
            answer[A_LOG_START_OFFSET] = log_start
            if length and answer[A_RECORDS] is None:
                answer[A_LENGTH] = length
                if file_id == 0:
                    start = inline_at + position
                    answer[A_RECORDS] = bytes(data[start : start + length])
                elif (file := files.find(file_id)) is not None:
                    answer[A_RECORDS] = (file, position)
                else:
                    missing.append(file_id)
            if diverging_epoch >= 0:
                answer[A_DIVERGING_EPOCH] = diverging_epoch
                answer[A_DIVERGING_END] = diverging_end
        if not missing:  # D
            if aborted_count:
                _add_aborted(asked if found is None else found, data, aborted_at, inline_at)
            if session is None:
                self._finish(request)
            else:
                self._in_session.finish(request, session)
        return missing

    def on_failed(self, request: FetchRequest, error_code: int) -> None:
        """The I/O worker died: every partition that it was asked for gets this error."""
        request.fail(error_code)
        if request.session is None:
            self._finish(request)
        else:
            self._in_session.finish(request, request.session, has_failed=True)

    def _finish(self, request: FetchRequest) -> None:
        """All slices are known: make the answer, and the session that the client wants."""
        throttle = request.connection.throttle
        if throttle is not None:
            lengths = [answer[A_LENGTH] for _, _, answers in request.topics for answer in answers]
            if throttle_ms := throttle.use_fetch(request, size_about(lengths)):
                request.answer_top(error_codes.NONE, throttle_time_ms=throttle_ms)
                return
        session_id = 0
        if request.wanted is not None:
            session_id = self._in_session.create(request, request.wanted)
        made = FetchAnswer(self.gateway, request.connection, request.api_version)
        request.response = made.parts(
            request.topics, request.isolation, session_id, request.correlation_id
        )


def _add_aborted(
    answers: list[Answer] | dict[int, Answer], data: memoryview, at: int, end: int
) -> None:
    """Add the aborted transactions in data[at:end] to the answers of their partitions."""
    for place in range(at, end, READ_ABORTED.size):
        which, producer_id, first_offset = READ_ABORTED.unpack_from(data, place)
        answer = answers[which]
        if answer[A_ABORTED] is None:
            answer[A_ABORTED] = []
        answer[A_ABORTED].append((producer_id, first_offset))
