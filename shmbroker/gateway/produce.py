"""Produce (key 0): append record batches.

Versions: 3-13, advertised from 0 (librdkafka compresses with gzip and lz4 only if it is).
Where: the network worker decodes, the I/O worker of the connection's port appends.
Version notes: 5 log start offset; 7 zstd; 8 record errors; 9 flexible; 10 CurrentLeader and
NodeEndpoints tags (KIP-951); 12 implicit add to a transaction (KIP-890); 13 topic ids (KIP-516).

Rules of this file:
* One APPEND for each partition; the request is answered when each has its APPENDED. Small batches
  of a plain request go together, as APPEND_MANY (`produce_many`).
* A client sends the same bytes again and again between the correlation id and the records: client
  id, acks, timeout, topic, partition. `FastProduce` keeps them, with what they mean; a request that
  repeats them for its only partition needs no decoding.
* A partition named twice in one request is stored twice, in the order of the request.
* A length under 14 or a magic over 2 in any batch fails the whole request with CORRUPT_MESSAGE and
  stores nothing, as Kafka does.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.apis.table import PRODUCE
from shmbroker.errors import ProtocolFault
from shmbroker.gateway import produce_many
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.produce_many import PLACE, RESULT, ManyProduce, Walked, pack, put_stored
from shmbroker.gateway.recogniser import TopicMeaning, key_of
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_BATCH_AT,
    APPEND_CONSTANT,
    APPEND_FLAG_ADDS,
    APPEND_FLAG_ADMIN_CLIENT,
    APPEND_FLAG_NO_ABORTABLE,
    APPEND_FLAG_NO_ZSTD,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_MANY,
    APPEND_MANY_HEAD,
    APPEND_PART,
    APPEND_ROW_PARTS,
    APPENDED_ROW,
    NAME_LENGTH,
)
from shmbroker.ipc.peer import Peer
from shmbroker.kernels import native
from shmbroker.known import Known
from shmbroker.records.batch import split_frame
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.security.acls import TOPIC, TRANSACTIONAL_ID, WRITE
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_request_header, response_header
from shmbroker.wire.primitives import uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from typing import Any

    from shmbroker.apis.contexts import RequestContext
    from shmbroker.gateway.connection import Connection, Meaning

    Detail = tuple[str | None, Sequence[tuple[int, str]]]
    """Why a batch is refused, and which records of it for what."""

API_KEY, NAME, VERSION_MIN, VERSION_MAX, VERSION_MIN_ADVERTISED = PRODUCE
FLEXIBLE_FROM = 9

CONSTANT_BYTES = APPEND_CONSTANT.size - 4
_HEAD = Struct(f"<Q{CONSTANT_BYTES}sI")
_INT = Struct(">i")
_BATCH_LENGTH_AT = 8
_MAGIC_AT = 16
_ATTRIBUTES_AT = ATTRIBUTES_POSITION + 1
KNOWN_MAX = 4096
"""Kinds of requests that a worker remembers for all connections."""

FAST_ENDS_MAX = 4
"""Lengths of the constant bytes that a connection looks for: one for each topic name, mostly."""

_REQUEST_END = b"\0\0\0"

TOGETHER_MAX = 25
"""So many batches in one APPEND_MANY,"""
TOGETHER_BYTES_MAX = 64 * 1024
"""and about so many bytes. A batch of more goes alone."""
BATCH_WEIGHS = 4 * 1024
"""How many bytes more would take the I/O worker as long as another batch."""
SMALL_BYTES_MAX = 32 * 1024
"""Who sends more at once is not lent (`gateway.lending`): a segment stores that another way."""
ACKS_ALL = -1
ADMIN_CLIENT = b"__admin_client"


class FastProduce(TopicMeaning):
    """What the constant bytes of one-partition requests mean; of one topic, as it was then."""

    __slots__ = (
        "acks",
        "answer",
        "answer_head",
        "answer_size",
        "answer_tail",
        "batch_at",
        "constant",
        "first",
        "head",
        "is_flexible",
        "key",
        "lent_bytes_max",
        "named",
        "partition_key",
        "peer",
        "prefix",
        "prefix_end",
        "straight",
        "topic",
        "version",
    )
    acks: int
    answer: Struct
    answer_head: bytes
    answer_size: int
    answer_tail: bytes
    batch_at: int
    constant: bytes
    first: bytes
    head: Struct
    is_flexible: bool
    key: int
    lent_bytes_max: int
    """Who sends more is not lent: nobody whose acks wait for replicas."""
    named: bytes
    partition_key: bytes
    peer: Peer
    prefix: bytes
    prefix_end: int
    straight: Meaning | None
    """What `kernels/straight.c` knows of it; None where it must not serve that."""
    topic: dict[str, Any]
    version: int


class ProduceRequest(Request):
    """`topics`: of a general request, with their answers so far; `answers`: those that are not
    known yet, by the token of their APPEND."""

    __slots__ = ("acks", "answers", "fast", "many", "topics")
    acks: int
    answers: dict[int, dict[str, Any]]
    fast: FastProduce | None
    many: ManyProduce | None
    topics: list[dict[str, Any]]


class ProduceApi:
    """The network worker's side of Produce."""

    def __init__(self, worker: RequestContext) -> None:
        self.worker = worker
        self.known: Known[tuple[Hashable, bytes], FastProduce] = Known(KNOWN_MAX)
        """By the scope of the connection and the bytes up to the size of the records."""

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
        fast = connection.fast_produce
        if fast is not None and (
            not buffer.startswith(fast.prefix, start + 8)
            or not buffer.startswith(fast.first, start)
        ):
            fast = self.recall(connection, buffer, start)
        if fast is not None and (fast.image is self.worker.image or fast.holds(self.worker.image)):
            at = start + fast.prefix_end
            if fast.is_flexible:
                length, batch_at = _uvarint(buffer, at, end)
                length -= 1
                fits = batch_at + length + 3 == end and buffer.endswith(_REQUEST_END, end - 3, end)
            else:
                length = _INT.unpack_from(buffer, at)[0] if at + 4 <= end else -1
                batch_at = at + 4
                fits = batch_at + length == end
            peer = fast.peer
            if (
                fits
                and length >= 61
                and length <= peer.writer.payload_bytes_max - fast.batch_at
                and buffer[batch_at + _MAGIC_AT] == 2
                and peer.incarnation
                and _INT.unpack_from(buffer, batch_at + _BATCH_LENGTH_AT)[0] >= 49
            ):
                writer = peer.writer
                index = -1 if peer.backlog else writer.claim(APPEND, fast.batch_at + length)
                if index < 0:
                    return False
                worker = self.worker
                worker.token = token = worker.token + 1
                worker.append_bytes = length
                if length > fast.lent_bytes_max:
                    connection.asked_other_at = connection.last_active
                data = writer.data
                fast.head.pack_into(data, index, token, fast.constant, length, fast.named)
                index += fast.batch_at
                data[index : index + length] = memoryview(buffer)[batch_at : batch_at + length]
                peer.unpublished = True
                request = ProduceRequest(connection, 0, version, correlation_id)
                request.fast = fast
                request.peer = peer
                request.acks = fast.acks
                worker.pending[token] = request
                if fast.acks:
                    connection.inflight.append(request)
                return True
        return self._submit_any(connection, buffer, start, end, version, correlation_id)

    def recall(self, connection: Connection, buffer: bytearray, start: int) -> FastProduce | None:
        """What other requests than the last have taught; a client takes turns with partitions."""
        scope = connection.scope
        for prefix_end in connection.fast_ends:
            found = self.known.get((scope, key_of(buffer, start, start + prefix_end)))
            if found is not None:
                connection.fast_produce = found
                return found
        return None

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
        if version >= produce_many.VERSION_MIN:
            walked = produce_many.walk(view, body_at, end - start, version)
            if walked is not None:
                request = ProduceRequest(connection, API_KEY, version, correlation_id)
                request.client_id = client_id
                is_started = self._submit_many(request, walked, view)
                if is_started is not None:
                    return is_started
        body = codec.decode_request("Produce", version, view, body_at)
        worker = self.worker
        peer = worker.io_peer(connection)
        request = ProduceRequest(connection, API_KEY, version, correlation_id)
        request.client_id = client_id
        request.fast = request.many = None
        request.peer = peer
        request.acks = acks = body["acks"]
        is_admin = client_id == ADMIN_CLIENT
        request.topics, appends = self._judge_each(request, body, is_admin)
        topics = request.topics
        flags, named = _said_of_all(body, version, is_admin)
        if appends and peer is not None:
            needed = sum(len(records) + len(named) + 128 for _, _, records in appends)
            if not _has_room(peer, needed):
                return False
            worker.append_bytes = needed + len(appends) * BATCH_WEIGHS
            if needed > SMALL_BYTES_MAX:
                connection.asked_other_at = connection.last_active
        request.pending = len(appends)
        request.answers = {}
        timeout_ms = max(0, body["timeout_ms"])
        for answer, key, records in appends:
            assert peer is not None, "without it there is no append"
            worker.token = token = worker.token + 1
            constant = APPEND_CONSTANT.pack(acks, flags, timeout_ms, key, 0)[:CONSTANT_BYTES]
            _send_batch(peer, token, constant, named, records)
            worker.pending[token] = request
            request.answers[token] = answer
        if acks:
            connection.inflight.append(request)
        if not appends:
            self._finish(request)
        elif (
            peer
            and len(topics) == 1
            and len(appends) == 1
            and len(topics[0]["partition_responses"]) == 1
        ):
            records_at = end - start - len(appends[0][2]) - (3 if version >= FLEXIBLE_FROM else 0)
            self._learn(
                connection, view, records_at, version, acks, peer, topics[0], constant, named
            )
        view.release()
        return True

    def _judge_each(
        self, request: ProduceRequest, body: dict[str, Any], is_admin: bool
    ) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], bytes, memoryview]]]:
        """Topics of the answer, filled in where something is refused; and the batches that may be
        stored, each with its row of the answer and its partition's key."""
        worker, connection, version = self.worker, request.connection, request.api_version
        topics: list[dict[str, Any]] = []
        appends: list[tuple[dict[str, Any], bytes, memoryview]] = []
        refusal, errors = self._judge(body, version)
        guard = worker.guard
        if (
            guard is not None
            and not refusal
            and body["transactional_id"] is not None
            and _has_transactional(body)
            and not guard.may(connection, NAME, WRITE, TRANSACTIONAL_ID, body["transactional_id"])
        ):
            refusal = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        form_errors = iter(errors)
        for topic in body["topic_data"]:
            if not topic["partition_data"]:
                continue
            answers: list[dict[str, Any]] = []
            topics.append(
                {
                    "name": topic["name"],
                    "topic_id": topic["topic_id"],
                    "partition_responses": answers,
                }
            )
            image = worker.topic_of(topic, version >= 13)
            name = image.name if image is not None else topic["name"]
            is_forbidden = (
                guard is not None and name and not guard.may(connection, NAME, WRITE, TOPIC, name)
            )
            for partition in topic["partition_data"]:
                records = partition["records"]
                answer = {"index": partition["index"], "base_offset": -1, "log_append_time_ms": -1}
                answers.append(answer)
                form_error = next(form_errors, 0)
                if refusal:
                    answer["error_code"] = refusal
                    if refusal != error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                        answer["error_message"] = error_codes.message_of(refusal)
                elif is_forbidden:
                    answer["error_code"] = error_codes.TOPIC_AUTHORIZATION_FAILED
                elif image is None:
                    answer["error_code"] = (
                        error_codes.UNKNOWN_TOPIC_ID
                        if version >= 13
                        else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    )
                elif not 0 <= partition["index"] < len(image.partitions):
                    answer["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                elif form_error:
                    answer["error_code"] = form_error
                elif not -1 <= request.acks <= 1:
                    answer["error_code"] = error_codes.INVALID_REQUIRED_ACKS
                elif image.is_internal and not is_admin:
                    answer["error_code"] = error_codes.INVALID_TOPIC_EXCEPTION
                elif request.peer is None:
                    answer["error_code"] = error_codes.NOT_LEADER_OR_FOLLOWER
                else:
                    answer["error_code"] = error_codes.NONE
                    key = partition_key(image.topic_id, partition["index"])
                    appends.append((answer, key, records))
        return topics, appends

    def _submit_many(
        self, request: ProduceRequest, walked: Walked, view: memoryview
    ) -> bool | None:
        """A plain request of several batches, all of which its client may write; as `submit`. None:
        it is none, and nothing was done."""
        worker, connection = self.worker, request.connection
        version = request.api_version
        peer = worker.io_peer(connection)
        guard = worker.guard
        if peer is None or not -1 <= walked.acks <= 1 or request.client_id == ADMIN_CLIENT:
            return None
        if len(walked.topics) == 1 and walked.topics[0].batches == 1:
            return None  # it is learnt
        images = []
        needed = 0
        for topic in walked.topics:
            image = worker.topic_of(
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
        if not _has_room(peer, needed):
            return False
        many = request.many = ManyProduce(walked, worker.token + 1)
        request.fast = None
        request.peer = peer
        request.acks = walked.acks
        request.pending = count = len(many.results) // RESULT
        worker.append_bytes = needed + count * BATCH_WEIGHS
        if needed > SMALL_BYTES_MAX:
            connection.asked_other_at = connection.last_active
        tokens = range(many.first_token, many.first_token + count)
        worker.token += count
        worker.pending.update(dict.fromkeys(tokens, request))
        if request.acks:
            connection.inflight.append(request)
        topics = [
            (image.topic_id, topic.places)
            for image, topic in zip(images, walked.topics, strict=True)
        ]
        _send_batches(peer, many.first_token, walked, topics, view)
        return True

    def _judge(self, body: dict[str, Any], version: int) -> tuple[int, list[int]]:
        """(the error code that every partition of the request gets, or 0; each one's own).

        By the form of the records alone, which Kafka looks at before anything else.
        """
        is_transactional = body["transactional_id"] is not None
        errors: list[int] = []
        for topic in body["topic_data"]:
            for partition in topic["partition_data"]:
                records = partition["records"]
                error = error_codes.INVALID_RECORD
                if records is not None:
                    error, _ = split_frame(records, 0, len(records))
                    if error == error_codes.CORRUPT_MESSAGE:
                        return error, errors
                if not error:
                    attributes = records[_ATTRIBUTES_AT]
                    if attributes & TRANSACTIONAL_BIT and not is_transactional:
                        return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors
                    if version < 7 and attributes & COMPRESSION_MASK == ZSTD:
                        error = error_codes.UNSUPPORTED_COMPRESSION_TYPE
                errors.append(error)
        return 0, errors

    def _learn(
        self,
        connection: Connection,
        view: memoryview,
        records_at: int,
        version: int,
        acks: int,
        peer: Peer,
        topic: dict[str, Any],
        constant: bytes,
        named: bytes,
    ) -> None:
        """Keep what this request's constant bytes mean, for those that repeat them."""
        is_flexible = version >= FLEXIBLE_FROM
        record_bytes = len(view) - records_at - (3 if is_flexible else 0)
        size = uvarint(record_bytes + 1) if is_flexible else _INT.pack(record_bytes)
        prefix_end = records_at - len(size)
        if view[prefix_end:records_at] != size or (is_flexible and view[-3:] != _REQUEST_END):
            return  # something lies behind the records
        partition = topic["partition_responses"][0]
        fast = FastProduce()
        fast.first = bytes(view[:4])
        fast.prefix = bytes(view[8:prefix_end])
        fast.prefix_end = prefix_end
        fast.is_flexible = is_flexible
        fast.version = version
        fast.acks = acks
        fast.constant = constant
        fast.named = named
        fast.head = Struct(f"{_HEAD.format}{len(named)}s")
        fast.batch_at = fast.head.size
        fast.peer = peer
        fast.image = image = self.worker.image
        fast.topic_image = (
            image.topics_by_id.get(topic["topic_id"]) or image.topics_by_name[topic["name"]]
        )
        fast.topic = {"name": topic["name"], "topic_id": topic["topic_id"]}
        fast.key = partition["index"]
        # The answer, encoded once around its four moving fields.
        marker = 0x7BADC0DE7BADC0DE
        probe = {"index": partition["index"], "error_code": 0x7E7E, "base_offset": marker}
        probe |= {"log_append_time_ms": marker, "log_start_offset": marker}
        body = codec.encode(
            "ProduceResponse",
            version,
            {"responses": [fast.topic | {"partition_responses": [probe]}]},
        )
        moving = Struct(">hqqq" if version >= 5 else ">hqq")
        at = body.index(moving.pack(*([0x7E7E] + [marker] * (3 if version >= 5 else 2))))
        head = response_header(API_KEY, version, 0)[4:] + body[:at]
        tail = body[at + moving.size :]
        fast.answer = Struct(f">ii{len(head)}s{moving.format[1:]}{len(tail)}s")
        fast.answer_size = fast.answer.size - 4
        fast.answer_head = head
        fast.answer_tail = tail
        fast.partition_key = partition_key(fast.topic_image.topic_id, fast.key)
        fast.straight = None
        replicas = fast.topic_image.partitions[fast.key].replicas
        is_answered_at_once = acks == 1 or (acks == ACKS_ALL and len(replicas) == 1)
        fast.lent_bytes_max = SMALL_BYTES_MAX if is_answered_at_once or not acks else 0
        if native is not None and is_answered_at_once and not named:
            fast.straight = (
                fast.first, fast.prefix, constant, head, tail, is_flexible, version >= 5,
            )  # fmt: skip
        connection.fast_produce = fast
        self.known.keep((connection.scope, fast.first + fast.prefix), fast)
        ends = connection.fast_ends
        if prefix_end in ends:
            ends.remove(prefix_end)
        ends.insert(0, prefix_end)
        del ends[FAST_ENDS_MAX:]

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
                if fast.version >= 5:
                    request.response = [
                        fast.answer.pack(
                            fast.answer_size, request.correlation_id, fast.answer_head,
                            0, base_offset, append_time_ms, log_start_offset, fast.answer_tail,
                        )
                    ]  # fmt: skip
                else:
                    request.response = [
                        fast.answer.pack(
                            fast.answer_size, request.correlation_id, fast.answer_head,
                            0, base_offset, append_time_ms, fast.answer_tail,
                        )
                    ]  # fmt: skip
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
        """Some batches of a walked request were stored, the first of that entry with the token
        `first`; packed: an APPENDED_ROW each."""
        many = request.many
        assert many is not None, "who else sends an APPEND_MANY"
        pop = self.worker.pending.pop
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
        if version >= 10:
            self.worker.add_leader_hints(
                request.connection, topics, "partition_responses", "index", body
            )
        encoded = codec.encode_response("Produce", version, body)
        header = response_header(API_KEY, version, request.correlation_id)
        request.response = [_INT.pack(len(header) + len(encoded)) + header + encoded]

    def _close_unanswered(self, request: ProduceRequest, error_code: int) -> None:
        self.worker.close_connection(
            request.connection, f"acks=0 produce failed: {error_codes.name_of(error_code)}"
        )


def _note_answered(request: ProduceRequest) -> None:
    """It gets no answer, but it has taken its time."""
    connection = request.connection
    connection.answered.append(
        (API_KEY, request.received, API_KEY, request.received, 1, connection.traffic.monotonic())
    )


def _has_room(peer: Peer, needed: int) -> bool:
    """Whether all of a request's batches fit, or the ring is empty and takes them as it drains."""
    if peer.backlog:
        return False
    return peer.writer.free_bytes() >= min(needed + 4096, peer.capacity_bytes)


def _said_of_all(body: dict[str, Any], version: int, is_admin: bool) -> tuple[int, bytes]:
    """What each batch of a request is appended with: flags, and the transactional id as `_named`
    packs it."""
    flags = 0 if version >= 7 else APPEND_FLAG_NO_ZSTD
    if is_admin:
        flags |= APPEND_FLAG_ADMIN_CLIENT
    if body["transactional_id"] is None:
        return flags, b""
    flags |= APPEND_FLAG_TRANSACTIONAL | (APPEND_FLAG_ADDS if version >= 12 else 0)
    if version < 11:
        flags |= APPEND_FLAG_NO_ABORTABLE
    return flags, _named(body["transactional_id"])


def _named(transactional_id: str) -> bytes:
    """A transactional id as it stands before a batch."""
    encoded = transactional_id.encode()
    return NAME_LENGTH.pack(len(encoded)) + encoded


def _send_batch(peer: Peer, token: int, constant: bytes, named: bytes, records: memoryview) -> None:
    """One batch to the ring, in parts if it is larger than an entry may be."""
    length = len(records)
    largest = peer.writer.payload_bytes_max - APPEND_BATCH_AT - len(named)
    if length > largest:
        flags = int.from_bytes(constant[2:4], "little") | APPEND_FLAG_PARTS
        constant = constant[:2] + flags.to_bytes(2, "little") + constant[4:]
        at = 0
        head = token.to_bytes(8, "little")
        while length - at > largest:
            peer.send(APPEND_PART, head, records[at : at + largest])
            at += largest
        records = records[at:]
    peer.send(APPEND, _HEAD.pack(token, constant, length) + named, records)


def _send_batches(
    peer: Peer,
    token: int,
    walked: Walked,
    topics: list[tuple[bytes, memoryview]],
    view: memoryview,
) -> None:
    """Batches to the ring: (topic id, places) of each topic, small ones together. What is written
    is published before more is: the I/O worker begins meanwhile."""
    timeout_ms = max(0, walked.timeout_ms)
    writer = peer.writer
    left = sum(len(places) for _, places in topics) // PLACE
    pieces: list[tuple[bytes, memoryview, int, int]] = []
    """The entry that is being put together: topic id, places, first and how many."""
    count = total = 0

    def send() -> None:
        nonlocal token, count, total
        if not count:
            return
        head = APPEND_MANY_HEAD.pack(token, walked.acks, 0, timeout_ms, count, 0)
        size = len(head) + total
        place = -1 if peer.backlog else writer.claim(APPEND_MANY, size)
        data: memoryview | bytearray = writer.data if place >= 0 else bytearray(size)
        to = max(place, 0)
        data[to : to + len(head)] = head
        to += len(head)
        for topic_id, places, first, batches in pieces:
            to = pack(data, to, view, places, first, batches, topic_id)
        if place < 0:
            peer.send(APPEND_MANY, bytes(data))
        elif left:
            peer.publish()
        else:
            peer.unpublished = True
        token += count
        pieces.clear()
        count = total = 0

    for topic_id, places in topics:
        first = 0
        for n, size in enumerate(places[2::PLACE].tolist()):
            if size > TOGETHER_BYTES_MAX or count == TOGETHER_MAX or total > TOGETHER_BYTES_MAX:
                if n > first:
                    pieces.append((topic_id, places, first, n - first))
                send()
                first = n
            left -= 1
            if size > TOGETHER_BYTES_MAX:
                key = partition_key(topic_id, places[n * PLACE])
                constant = APPEND_CONSTANT.pack(walked.acks, 0, timeout_ms, key, 0)
                position = places[n * PLACE + 1]
                _send_batch(
                    peer, token, constant[:CONSTANT_BYTES], b"", view[position : position + size]
                )
                token += 1
                first = n + 1
                continue
            count += 1
            total += APPEND_ROW_PARTS.size + size
        if first * PLACE < len(places):
            pieces.append((topic_id, places, first, len(places) // PLACE - first))
    send()


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


def _has_transactional(body: dict[str, Any]) -> bool:
    """Whether a request has a batch of a transaction: only then its transactional id counts."""
    return any(
        partition["records"] and partition["records"][_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
        for topic in body["topic_data"]
        for partition in topic["partition_data"]
    )
