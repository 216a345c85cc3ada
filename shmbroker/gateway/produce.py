"""Produce (key 0): append record batches.

Versions: 3-13, advertised from 0 (librdkafka compresses with gzip and lz4 only if it is).
Where: the network worker decodes, the I/O worker of the connection's port appends.
Version notes: 5 log start offset; 7 zstd; 8 record errors; 9 flexible; 10 CurrentLeader and
NodeEndpoints tags (KIP-951); 12 implicit add to a transaction (KIP-890); 13 topic ids (KIP-516).

   submit ─┬─ A  bytes that came before ────────────► one claim on the ring     produce_known
           ├─ B  plain, of several batches ─ walk ──► APPEND_MANY               produce_many
           └─ C  any other ─ decode ─ judge ────────► an APPEND each            produce_judging
                                                             │                  produce_sending
   on_appended, on_appended_many ◄────── results ◄───────────┘

Rules of this file:
* One APPEND for each partition; the request is answered when each has its APPENDED. Small batches
  of a plain request go together, as APPEND_MANY.
* A request whose batches find no room on the ring is not begun, and tried again later.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.apis.table import PRODUCE
from shmbroker.errors import ProtocolFault
from shmbroker.gateway import produce_many
from shmbroker.gateway.connection import LENT_BYTES_MAX
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.produce_judging import judge
from shmbroker.gateway.produce_known import REQUEST_END, SMALL_BYTES_MAX, FastProduce, KnownProduces
from shmbroker.gateway.produce_many import (
    FLEXIBLE_FROM,
    LEADERS_FROM,
    PLACE,
    RESULT,
    ManyProduce,
    Walked,
    put_stored,
)
from shmbroker.gateway.produce_sending import (
    CONSTANT_BYTES,
    has_room,
    said_of_all,
    send_batch,
    send_batches,
)
from shmbroker.ipc.operation_layout import APPEND, APPEND_CONSTANT, APPENDED_ROW
from shmbroker.records.batch_layout import (
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
)
from shmbroker.security.acls import TOPIC, WRITE
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_request_header, response_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.ports import RequestContext

    AppendHere = Callable[[Connection, FastProduce, bytearray, int, int, int], bool]
    """Takes a batch, or gives False: buffer, where the batch begins, its bytes, correlation id."""
    Detail = tuple[str | None, Sequence[tuple[int, str]]]
    """Why a batch is refused, and which records of it for what."""

API_KEY, NAME, VERSION_MIN, VERSION_MAX, VERSION_MIN_ADVERTISED = PRODUCE

_INT = Struct(">i")
_BATCH_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
"""What the length of a batch says at least: the rest of its header."""
BATCH_WEIGHS = 4 * 1024
"""How many bytes more would take the I/O worker as long as another batch."""
ADMIN_CLIENT = b"__admin_client"


class ProduceRequest(Request):
    """A Produce in flight.

    topics: of a general request, with their answers so far; answers: those that are not known yet,
    by the token of their APPEND.
    """

    __slots__ = ("acks", "answers", "fast", "many", "topics")
    acks: int
    answers: dict[int, dict[str, Any]]
    fast: FastProduce | None
    many: ManyProduce | None
    topics: list[dict[str, Any]]


class ProduceApi:
    """The network worker's side of Produce."""

    def __init__(self, gateway: RequestContext) -> None:
        self.gateway = gateway
        self.known = KnownProduces()
        self._recall = self.known.recall
        self.append_here: AppendHere | None = None
        """What is asked first to take a batch of known bytes: see `guests.straight_appends`."""

    # ── request ─────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Start one Produce whose frame (without its size) is buffer[start:end].

        False if the ring has no room; then nothing was done and the caller tries again.
        """
        # A
        fast = connection.fast_produce
        if fast is not None and (
            not buffer.startswith(fast.prefix, start + 8)
            or not buffer.startswith(fast.first, start)
        ):
            fast = self._recall(connection, buffer, start)
        if fast is not None and (
            fast.image is self.gateway.image or fast.holds(self.gateway.image)
        ):
            at = start + fast.prefix_end
            if fast.is_flexible:
                length, batch_at = _uvarint(buffer, at, end)
                length -= 1
                fits = batch_at + length + 3 == end and buffer.endswith(REQUEST_END, end - 3, end)
            else:
                length = _INT.unpack_from(buffer, at)[0] if at + 4 <= end else -1
                batch_at = at + 4
                fits = batch_at + length == end
            peer = fast.peer
            if (
                fits
                and length >= HEADER_SIZE
                and length <= peer.writer.payload_bytes_max - fast.batch_at
                and buffer[batch_at + MAGIC_POSITION] == MAGIC
                and peer.incarnation
                and _INT.unpack_from(buffer, batch_at + LENGTH_POSITION)[0] >= _BATCH_LENGTH_MIN
            ):
                writer = peer.writer
                append_here = self.append_here
                if append_here is not None and append_here(
                    connection, fast, buffer, batch_at, length, correlation_id
                ):
                    return True
                index = -1 if peer.backlog else writer.claim(APPEND, fast.batch_at + length)
                if index < 0:
                    return False
                gateway = self.gateway
                gateway.token = token = gateway.token + 1
                gateway.append_bytes = length
                if length > SMALL_BYTES_MAX:
                    connection.asked_large_at = connection.last_active
                if length > fast.lent_bytes_max:
                    connection.asked_other_at = connection.last_active
                data = writer.data
                fast.head.pack_into(data, index, token, fast.constant, length, fast.named)
                index += fast.batch_at
                data[index : index + length] = memoryview(buffer)[batch_at : batch_at + length]
                peer.outbox[peer] = None
                request = ProduceRequest(connection, 0, version, correlation_id)
                request.fast = fast
                request.peer = peer
                request.acks = fast.acks
                gateway.pending[token] = request
                if fast.acks:
                    connection.inflight.append(request)
                else:
                    connection.unanswered += 1
                return True
        return self._submit_any(connection, buffer, start, end, version, correlation_id)

    def _submit_any(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """A request of any shape."""
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise ProtocolFault(f"Produce version {version}")
        view = memoryview(buffer)[start:end]
        _, _, _, client_id, body_at = parse_request_header(view, 0, end - start)
        # B
        if version >= produce_many.VERSION_MIN:
            walked = produce_many.walk(view, body_at, end - start, version)
            if walked is not None:
                request = ProduceRequest(connection, API_KEY, version, correlation_id)
                request.client_id = client_id
                is_started = self._submit_many(request, walked, view)
                if is_started is not None:
                    return is_started
        # C
        body = codec.decode_request("Produce", version, view, body_at)
        gateway = self.gateway
        peer = gateway.io_peer(connection)
        request = ProduceRequest(connection, API_KEY, version, correlation_id)
        request.client_id = client_id
        request.fast = request.many = None
        request.peer = peer
        request.acks = acks = body["acks"]
        is_admin = client_id == ADMIN_CLIENT
        request.topics, appends = judge(gateway, request, body, is_admin)
        topics = request.topics
        flags, named = said_of_all(body, version, is_admin)
        if appends and peer is not None:
            needed = sum(len(records) + len(named) + 128 for _, _, records in appends)
            if not has_room(peer, needed):
                return False
            gateway.append_bytes = needed + len(appends) * BATCH_WEIGHS
            _note_size(connection, needed)
        request.pending = len(appends)
        request.answers = {}
        timeout_ms = max(0, body["timeout_ms"])
        for answer, key, records in appends:
            assert peer is not None, "without it there is no append"
            gateway.token = token = gateway.token + 1
            constant = APPEND_CONSTANT.pack(acks, flags, timeout_ms, key, 0)[:CONSTANT_BYTES]
            send_batch(peer, token, constant, named, records)
            gateway.pending[token] = request
            request.answers[token] = answer
        if acks:
            connection.inflight.append(request)
        else:
            connection.unanswered += 1
        if not appends:
            self._finish(request)
        elif (
            peer
            and len(topics) == 1
            and len(appends) == 1
            and len(topics[0]["partition_responses"]) == 1
        ):
            records_at = end - start - len(appends[0][2]) - (3 if version >= FLEXIBLE_FROM else 0)
            self.known.learn(request, gateway.image, view, records_at, constant, named)
        view.release()
        return True

    def _submit_many(
        self, request: ProduceRequest, walked: Walked, view: memoryview
    ) -> bool | None:
        """A plain request of several batches, all of which its client may write; as `submit`. None:
        it is none, and nothing was done."""
        gateway, connection = self.gateway, request.connection
        version = request.api_version
        peer = gateway.io_peer(connection)
        guard = gateway.guard
        if peer is None or not -1 <= walked.acks <= 1 or request.client_id == ADMIN_CLIENT:
            return None
        if len(walked.topics) == 1 and walked.topics[0].batches == 1:
            return None  # it is learnt
        images = []
        needed = 0
        for topic in walked.topics:
            image = gateway.topic_of(
                {"name": topic.name, "topic_id": topic.topic_id},
                version >= produce_many.TOPIC_IDS_FROM,
            )
            if image is None or image.is_internal:
                return None
            if guard is not None and not guard.lets(connection, WRITE, TOPIC, image.name):
                return None
            indexes = topic.places[::PLACE].tolist()
            if min(indexes) < 0 or max(indexes) >= len(image.partitions):
                return None
            needed += sum(topic.places[2::PLACE].tolist()) + 128 * len(indexes)
            images.append(image)
        if not has_room(peer, needed):
            return False
        many = request.many = ManyProduce(walked, gateway.token + 1)
        request.fast = None
        request.peer = peer
        request.acks = walked.acks
        request.pending = count = len(many.results) // RESULT
        gateway.append_bytes = needed + count * BATCH_WEIGHS
        _note_size(connection, needed)
        tokens = range(many.first_token, many.first_token + count)
        gateway.token += count
        gateway.pending.update(dict.fromkeys(tokens, request))
        if request.acks:
            connection.inflight.append(request)
        else:
            connection.unanswered += 1
        topics = [
            (image.topic_id, topic.places)
            for image, topic in zip(images, walked.topics, strict=True)
        ]
        send_batches(peer, many.first_token, walked, topics, view)
        return True

    # ── result ──────────────────────────────────────────────────────────────────────────────────

    def on_appended(
        self,
        request: ProduceRequest,
        token: int,
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        detail: Detail | None,
    ) -> None:
        """One partition has its result; `detail`: why it is an error, and of which records."""
        fast = request.fast
        if fast is not None:
            if request.acks == 0:
                _note_answered(request)
                if error_code:
                    self._close_unanswered(request, error_code)
                return
            if error_code == 0:
                request.response = [
                    fast.answered(
                        request.correlation_id, base_offset, append_time_ms, log_start_offset
                    )
                ]
                return
            answer: dict[str, Any] = {"index": fast.key}
            request.topics = [fast.topic | {"partition_responses": [answer]}]
            request.pending = 1
        elif (many := request.many) is not None:
            n = token - many.first_token
            if error_code:
                many.errors[n] = error_code, detail
            many.put(n, base_offset, append_time_ms, log_start_offset)
            request.pending -= 1
            if request.pending == 0:
                self._finish_many(request, many)
            return
        else:
            answer = request.answers.pop(token)
        answer["error_code"] = error_code
        answer["base_offset"] = base_offset
        answer["log_append_time_ms"] = append_time_ms
        answer["log_start_offset"] = log_start_offset
        if detail is not None:
            answer["error_message"], errors = detail
            answer["record_errors"] = [
                {"batch_index": index, "batch_index_error_message": text} for index, text in errors
            ]
        request.pending -= 1
        if request.pending == 0:
            self._finish(request)

    def on_appended_many(self, request: ProduceRequest, first: int, packed: memoryview) -> None:
        """Note that some batches of a walked request were stored, the first of that entry with the
        token `first`; packed: an APPENDED_ROW each."""
        many = request.many
        assert many is not None, "who else sends an APPEND_MANY"
        pop = self.gateway.pending.pop
        for which, _, _ in APPENDED_ROW.iter_unpack(packed):
            pop(first + which, None)
        put_stored(many.results, first - many.first_token, packed)
        request.pending -= len(packed) // APPENDED_ROW.size
        if request.pending == 0:
            self._finish_many(request, many)

    def _finish_many(self, request: ProduceRequest, many: ManyProduce) -> None:
        """Encode the answer of a walked request."""
        if many.errors or request.acks == 0:
            request.topics = produce_many.answers_of(many)
            self._finish(request)
        else:
            request.answer(produce_many.encode_answer(many, request.api_version))

    def _finish(self, request: ProduceRequest) -> None:
        """Encode the answer of a general request."""
        topics = request.topics
        if request.acks == 0:
            _note_answered(request)
            for topic in topics:
                for answer in topic["partition_responses"]:
                    if answer["error_code"]:
                        self._close_unanswered(request, answer["error_code"])
                        return
            return
        version = request.api_version
        body: dict[str, Any] = {"responses": topics}
        if version >= LEADERS_FROM:
            self.gateway.add_leader_hints(
                request.connection, topics, "partition_responses", "index", body
            )
        encoded = codec.encode_response("Produce", version, body)
        header = response_header(API_KEY, version, request.correlation_id)
        request.response = [_INT.pack(len(header) + len(encoded)) + header + encoded]

    def _close_unanswered(self, request: ProduceRequest, error_code: int) -> None:
        self.gateway.close_connection(
            request.connection, f"acks=0 produce failed: {error_codes.name_of(error_code)}"
        )


def begin_known(
    gateway: RequestContext,
    connection: Connection,
    fast: FastProduce,
    token: int,
    correlation_id: int,
) -> None:
    """Note that a Produce of known bytes is under way, whose batch has come to the log: its result
    has that token."""
    request = ProduceRequest(connection, API_KEY, fast.version, correlation_id)
    request.fast = fast
    request.peer = fast.peer
    request.acks = fast.acks
    request.token = token
    gateway.pending[token] = request
    connection.inflight.append(request)


def _note_size(connection: Connection, size: int) -> None:
    """Note what a request of so many bytes says of its client, for who lends it."""
    if size > SMALL_BYTES_MAX:
        connection.asked_large_at = connection.last_active
    if size > LENT_BYTES_MAX:
        connection.asked_other_at = connection.last_active


def _note_answered(request: ProduceRequest) -> None:
    """Note a request that gets no answer, but has taken its time."""
    connection = request.connection
    connection.unanswered -= 1
    connection.answered.append(
        (API_KEY, request.received, API_KEY, request.received, 1, connection.traffic.monotonic())
    )


def _uvarint(buffer: bytearray, at: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes and the position behind it; (0, end) if cut off."""
    value = shift = 0
    while at < end and shift < 35:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, end
