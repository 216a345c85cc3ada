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
* Sessions are declined: every answer has session id 0 and lists every partition that was asked.
* Records are empty, never null; aborted transactions are null unless read_committed was asked.
* Several small slices are read and sent with the answer's own bytes; a large one by sendfile.
"""

from struct import Struct
from typing import Any

from shmbroker.errors import ProtocolFault
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    CANCEL,
    READ,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
    TOKEN,
)
from shmbroker.network.file_send import INLINE_BYTES, FileSlice
from shmbroker.network.inflight import Request
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_request_header, response_header
from shmbroker.wire.primitives import uvarint

API_KEY = 1
VERSION_MIN = 4
VERSION_MAX = 18
VERSION_MIN_ADVERTISED = 4
FLEXIBLE_FROM = 12

_INT = Struct(">i")
_HEAD = Struct(">ihi")
_PARTITION_V4 = Struct(">ihqq")
_PARTITION_V5 = Struct(">ihqqq")

READ_PARTITIONS_MAX = 8000
"""Partitions looked up for one request; those behind are answered without records this time."""


class FetchRequest(Request):
    """`topics`: per topic the wire identity and its answers [index, error, hw, lso, start, …]."""

    __slots__ = ("asked", "isolation", "read_slot", "topics")


class FetchApi:
    """The network worker's side of Fetch."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def submit(
        self,
        connection: Any,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Start one Fetch; False if the ring has no room."""
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise ProtocolFault(f"Fetch version {version}")
        view = memoryview(buffer)[start:end]
        _, _, _, client_id, body_at = parse_request_header(view, 0, end - start)
        body, _ = codec.decode("FetchRequest", version, view, body_at)
        view.release()
        worker = self.worker
        request = FetchRequest(connection, API_KEY, version, correlation_id)
        request.client_id = client_id
        request.topics = topics = []
        request.isolation = isolation = body["isolation_level"]
        request.asked = asked = []
        if version >= 7 and body["session_epoch"] not in (0, -1):
            self._answer_top(request, error_codes.FETCH_SESSION_ID_NOT_FOUND)
            connection.inflight.append(request)
            return True
        replica_id = body["replica_id"] if version < 15 else body["replica_state"]["replica_id"]
        peer = worker.io_peer(connection) if replica_id < 0 else None
        entries: list[bytes] = []
        pack = READ_PARTITION.pack
        for topic in body["topics"]:
            if not topic["partitions"]:
                continue
            answers: list[list[Any]] = []
            topics.append((topic["topic"], topic["topic_id"], answers))
            image = worker.topic_of(
                {"name": topic["topic"], "topic_id": topic["topic_id"]}, version >= 13
            )
            for partition in topic["partitions"]:
                index = partition["partition"]
                answer = [index, 0, -1, -1, -1, None, 0, -1, -1]
                answers.append(answer)
                if isolation not in (0, 1):
                    answer[1] = error_codes.UNKNOWN_SERVER_ERROR
                elif image is None:
                    answer[1] = (
                        error_codes.UNKNOWN_TOPIC_ID
                        if version >= 13
                        else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    )
                elif not 0 <= index < len(image.partitions):
                    answer[1] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                elif peer is None:
                    answer[1] = error_codes.NOT_LEADER_OR_FOLLOWER
                elif len(entries) < READ_PARTITIONS_MAX:
                    asked.append(answer)
                    entries.append(
                        pack(
                            partition_key(image.topic_id, index),
                            partition["partition_max_bytes"],
                            partition["current_leader_epoch"],
                            partition["last_fetched_epoch"],
                            partition["fetch_offset"],
                        )
                    )
        if not entries:
            self._finish(request)
            connection.inflight.append(request)
            return True
        worker.token = token = worker.token + 1
        head = READ_HEAD.pack(
            token,
            max(0, body["max_wait_ms"]),
            max(0, body["min_bytes"]),
            max(0, min(body["max_bytes"], worker.fetch_bytes_max)),
            isolation,
            0,
            len(entries),
            0,
        )
        if not peer.try_send(READ, head + b"".join(entries)):
            worker.token = token - 1
            return False
        request.tokens = [token]
        request.peer = peer
        worker.pending[token] = request
        connection.inflight.append(request)
        return True

    def cancel(self, request: FetchRequest, token: int) -> None:
        """The client is gone: nobody waits for this read."""
        request.peer.send(CANCEL, TOKEN.pack(token))

    def on_read_done(
        self, request: FetchRequest, peer: Any, data: memoryview, index: int
    ) -> list[int]:
        """Complete the request from a READ_DONE entry.

        Returns the file ids whose descriptors are not here; none when the answer is complete. The
        files that were found are kept, so that a call after the missing ones came gets on.
        """
        missing: list[int] = []
        count = READ_DONE_HEAD.unpack_from(data, index)[1]
        at = index + READ_DONE_HEAD.size
        files = self.worker.files[peer.slot]
        inline_at = at + count * READ_SLICE.size
        for answer in request.asked[:count]:
            (
                error, _, length, high_watermark, stable, log_start,
                file_id, position, diverging_epoch, _, diverging_end,
            ) = READ_SLICE.unpack_from(data, at)  # fmt: skip
            at += READ_SLICE.size
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
            self._finish(request)
        return missing

    def on_failed(self, request: FetchRequest, error_code: int) -> None:
        """The I/O worker died: every partition that it was asked for gets this error."""
        for answer in request.asked:
            answer[1] = error_code
            answer[5], answer[6] = None, 0
        self._finish(request)

    # ── answer ──────────────────────────────────────────────────────────────────────────────────

    def _answer_top(self, request: FetchRequest, error_code: int) -> None:
        body = codec.encode(
            "FetchResponse", request.api_version, {"error_code": error_code, "responses": []}
        )
        header = response_header(API_KEY, request.api_version, request.correlation_id)
        request.response = [_INT.pack(len(header) + len(body)) + header + body]

    def _finish(self, request: FetchRequest) -> None:
        """Build the answer around the slices."""
        version = request.api_version
        is_flexible = version >= FLEXIBLE_FROM
        parts: list[Any] = []
        add = parts.append
        pieces: list[bytes] = [b""]
        piece = pieces.append
        size = 0
        total = sum(answer[6] for _, _, answers in request.topics for answer in answers)
        is_inline = total <= INLINE_BYTES
        if version >= 7:
            piece(_HEAD.pack(0, 0, 0))
        else:
            piece(b"\0\0\0\0")
        piece(_array_head(len(request.topics), is_flexible))
        hints = None
        aborted = b"\xff\xff\xff\xff" if request.isolation == 0 else b"\0\0\0\0"
        if is_flexible:
            aborted = b"\0" if request.isolation == 0 else b"\x01"
        middle = aborted + (b"\xff\xff\xff\xff" if version >= 11 else b"")
        for name, topic_id, answers in request.topics:
            if version >= 13:
                piece(topic_id)
            else:
                encoded = name.encode()
                if is_flexible:
                    piece(uvarint(len(encoded) + 1) + encoded)
                else:
                    piece(len(encoded).to_bytes(2, "big") + encoded)
            piece(_array_head(len(answers), is_flexible))
            for index, error, high, stable, log_start, where, length, epoch, end in answers:
                if version >= 5:
                    piece(_PARTITION_V5.pack(index, error, high, stable, log_start))
                else:
                    piece(_PARTITION_V4.pack(index, error, high, stable))
                piece(middle)
                piece(uvarint(length + 1) if is_flexible else _INT.pack(length))
                if type(where) is bytes:
                    piece(where)
                elif length:
                    file, position = where
                    part = FileSlice(file, position, length)
                    data = part.try_read() if is_inline else None
                    if data is not None:
                        piece(data)
                    else:
                        joined = b"".join(pieces)
                        size += len(joined) + length
                        add(joined)
                        add(part)
                        pieces.clear()
                if is_flexible:
                    tags = b"\0"
                    if epoch >= 0:
                        tagged = _INT.pack(epoch) + end.to_bytes(8, "big", signed=True) + b"\0"
                        tags = b"\x01\x00" + uvarint(len(tagged)) + tagged
                    if version >= 16 and error in _LEADER_ERRORS:
                        hint = self.worker.leader_hint(name, topic_id, index)
                        if hint is not None:
                            hints = hints or set()
                            hints.add(hint[0])
                            tagged = _INT.pack(hint[0]) + _INT.pack(hint[1]) + b"\0"
                            count = 1 + (tags != b"\0")
                            tags = (
                                uvarint(count) + tags[1:] + b"\x01" + uvarint(len(tagged)) + tagged
                            )
                    piece(tags)
            if is_flexible:
                piece(b"\0")
        if is_flexible:
            piece(self._node_endpoints(hints) if version >= 16 and hints else b"\0")
        joined = b"".join(pieces)
        size += len(joined)
        add(joined)
        header = response_header(API_KEY, version, request.correlation_id)
        parts[0] = _INT.pack(size + len(header)) + header + parts[0]
        request.response = parts

    def _node_endpoints(self, leaders: set[int]) -> bytes:
        """The top-level tagged field 0: where the leaders named above are (KIP-951)."""
        nodes = self.worker.node_endpoints(leaders)
        body = bytearray(uvarint(len(nodes) + 1))
        for node_id, host, port, rack in nodes:
            encoded = host.encode()
            body += _INT.pack(node_id) + uvarint(len(encoded) + 1) + encoded + _INT.pack(port)
            if rack is None:
                body += b"\0"
            else:
                body += uvarint(len(rack.encode()) + 1) + rack.encode()
            body += b"\0"
        return b"\x01\x00" + uvarint(len(body)) + bytes(body)


_LEADER_ERRORS = frozenset((error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH))


def _array_head(count: int, is_flexible: bool) -> bytes:
    return uvarint(count + 1) if is_flexible else _INT.pack(count)
