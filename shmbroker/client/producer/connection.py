"""One socket to a leader that never blocks: Produce requests out, answers in.

Requests are answered in their order; at most `REQUESTS_MAX` wait for their answer. The batches are
sent from where they were encoded: a frame is a list of buffers, of which only the heads are made
here.

   frame size | api key, version, correlation id | client id | tags
   transactional id, if any | acks | timeout | topics:
     name | partitions:
       index | size + 1 | the batch | tags

Source: Kafka's Produce, version 9.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

from shmbroker.client.addresses import Address
from shmbroker.client.connection import CONNECT_S_MAX, connect
from shmbroker.client.producer.delivery import Batch, PartitionQueue
from shmbroker.client.security import OPEN, Security
from shmbroker.client.versions import PLAIN
from shmbroker.wire import frame
from shmbroker.wire.api_keys import PRODUCE
from shmbroker.wire.primitives import compact_string, uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


VERSION = PLAIN[PRODUCE]
REQUESTS_MAX = 5
"""The most requests in flight, as Kafka's `max.in.flight.requests.per.connection` has it for
idempotent producers."""

ANSWER_BYTES_MAX = 64 << 20
_PARTS_MAX = 64
"""Buffers handed to one sendmsg; the kernel takes 1024."""

_RECEIVE_BYTES = 256 << 10
_ACKS_AND_TIMEOUT = Struct(">hi")
_INDEX = Struct(">i")
_NO_TAGS = b"\x00"

Sent = list[tuple[PartitionQueue, Batch]]


class SentRequest:
    """Batches that went out together."""

    __slots__ = ("batches", "sent_s")

    def __init__(self, batches: Sent, sent_s: float) -> None:
        self.batches = batches
        self.sent_s = sent_s


class LeaderConnection:
    """Towards one broker; OSError or ProtocolFault: it has ended, `requests` were not answered."""

    def __init__(
        self,
        broker_id: int,
        address: Address,
        client_id: str,
        transactional_id: str | None = None,
        security: Security = OPEN,
    ) -> None:
        self.broker_id = broker_id
        self._connection = connect(address, CONNECT_S_MAX, client_id, security=security)
        self.socket = self._connection.socket
        self.socket.setblocking(False)
        self.requests: deque[SentRequest] = deque()
        self._exchange = self._connection.exchange
        self._transactional_id = (
            b"\x00" if transactional_id is None else compact_string(transactional_id)
        )
        self._out: deque[memoryview] = deque()
        self._in = bytearray()

    def close(self) -> None:
        self.socket.close()

    @property
    def is_writing(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._out)

    def can_send(self) -> bool:
        """Whether there is room for another request; none while the session waits to be renewed."""
        if self._connection.renew_s is not None and self.requests and self._connection.is_due():
            return False
        return len(self.requests) < REQUESTS_MAX

    def send(self, batches: Sent, acks: int, timeout_ms: int, now_s: float) -> None:
        """Put sealed batches on their way, in a session that is renewed where that is due."""
        if self._connection.renew_s is not None and not self.requests and not self._out:
            self._renew()
        correlation_id = self._exchange.next_id(PRODUCE, VERSION, is_answered=acks != 0)
        head = self._transactional_id + _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
        self._out += _frame(correlation_id, self._exchange.client_id, head, batches)
        self.requests.append(SentRequest(batches, now_s))
        self.on_writable()

    def _renew(self) -> None:
        """Renew the session where that is due; that is waited for, as a connection is."""
        if self._connection.is_due():
            self.socket.settimeout(CONNECT_S_MAX)
            self._connection.authenticate()
            self.socket.setblocking(False)

    def on_writable(self) -> None:
        """Give the socket what it takes."""
        out = self._out
        while out:
            parts = [out[i] for i in range(min(len(out), _PARTS_MAX))]
            try:
                sent = self.socket.sendmsg(parts)
            except BlockingIOError:
                return
            while out and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = out[0][sent:]

    def on_readable(self) -> list[tuple[SentRequest, Message]]:
        """The answers that are there, with what they answer."""
        while True:
            try:
                part = self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            if not part:
                raise ConnectionError(f"{self._exchange.name} closed the connection")
            self._in += part
            if len(part) < _RECEIVE_BYTES:
                break
        answers = []
        position = 0
        while len(self._in) - position >= 4:
            size = frame.frame_size(self._in, position, ANSWER_BYTES_MAX)
            if len(self._in) - position < 4 + size:
                break
            content = bytes(self._in[position + 4 : position + 4 + size])
            position += 4 + size
            answer = self._exchange.answer(content)
            answers.append((self.requests.popleft(), answer))
        del self._in[:position]
        return answers


def _frame(
    correlation_id: int, client_id: str, before_topics: bytes, batches: Sent
) -> list[memoryview]:
    """A Produce request as buffers."""
    by_topic: dict[str, Sent] = {}
    for queue, batch in batches:
        by_topic.setdefault(queue.topic, []).append((queue, batch))
    parts: list[bytes | memoryview] = []
    head = [before_topics, uvarint(len(by_topic) + 1)]
    for topic, of_topic in by_topic.items():
        head += (compact_string(topic), uvarint(len(of_topic) + 1))
        for queue, batch in of_topic:
            sealed = batch.frame
            assert sealed is not None
            head += (_INDEX.pack(queue.partition), uvarint(len(sealed) + 1))
            parts += (b"".join(head), sealed)
            head = [_NO_TAGS]
        head.append(_NO_TAGS)
    parts.append(b"".join((*head, _NO_TAGS)))
    # Without a body first, for its header; the size is that of all parts.
    start = frame.request_frame(PRODUCE, VERSION, correlation_id, client_id, b"")[4:]
    size = len(start) + sum(map(len, parts))
    parts[0] = b"".join((frame.FRAME_SIZE.pack(size), start, parts[0]))
    return [memoryview(part) for part in parts]
