"""Load with little CPU of its own: requests built beforehand, one socket, hardly a look at answers.

What is measured is the broker, so the client must not be what limits it: a round sends one and the
same request again and again, keeping `depth` of them in flight, and looks at nothing of an answer
but its error code (and, for Fetch, the size of the records). The time of a request is from its
send to the moment when its whole answer is here.

Versions: Produce 9 and ListOffsets 6, as flexible as today's clients; Fetch 11, whose answer has
all its fields at fixed places.
"""

import os
import socket
import ssl
import time
from collections import deque
from struct import Struct
from typing import Any

from shmbroker.client.connection import Exchange
from shmbroker.records.batch import encode_batch
from shmbroker.wire.api_keys import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
)

PRODUCE_VERSION = 9
FETCH_VERSION = 11

BUFFER_BYTES = 20 << 20
"""More than the largest answer: 16 MiB of records and what stands around them."""

TLS = "ssl://"

FIRST_OFFSET = 1
"""Offset 0 of each topic is the record that `create_topic` tries its leader with."""

MADE_TOGETHER = 5000
"""Partitions that one request makes: Kafka has a limit of 10,000, be it one more or less."""

LEADER_WAIT_S = 15.0
"""How long a topic that was just created may go without a leader."""

_SIZE = Struct(">i")
_FETCH_FIXED = Struct(">ihqqqi")
"""Partition index, error code, high watermark, last stable offset, log start offset, and the number
of aborted transactions (none without read_committed)."""


class Refused(Exception):
    """The broker answered with an error code, or closed the connection."""


def _tls() -> ssl.SSLContext:
    """A client that takes any certificate: who is there is not the question here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Connection:
    """One socket and one buffer for its answers; over TLS where the address begins with ssl://."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix(TLS).rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Blocking for good: a timeout would cost a poll for each call.
        self.socket.settimeout(None)
        if address.startswith(TLS):
            self.socket = _tls().wrap_socket(self.socket)
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answers(self) -> list[memoryview]:
        """At least one whole answer, without its size; valid until the next call."""
        view, unpack = self.view, _SIZE.unpack_from
        found: list[memoryview] = []
        filled = self.filled
        while not found:
            got = self.socket.recv_into(view[filled:])
            if not got:
                raise Refused("the broker closed the connection")
            filled += got
            at = 0
            while filled - at >= 4:
                end = at + 4 + unpack(view, at)[0]
                if end > filled:
                    break
                found.append(view[at + 4 : end])
                at = end
        self.filled = filled - at
        if self.filled:
            # The beginning of another answer: it is moved to the front, so `found` must be copies.
            found = [memoryview(bytes(answer)) for answer in found]
            view[: self.filled] = bytes(view[at:filled])
        return found

    def answer(self) -> memoryview:
        """The one answer that is due."""
        (found,) = self.answers()
        return found

    def ask(self, key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """One request, encoded and decoded in full: for what is not measured."""
        self.socket.sendall(frame_of(key, version, body))
        return answer_in(key, version, bytes(self.answer()))


def frame_of(key: int, version: int, body: dict[str, Any]) -> bytes:
    """A request that can be sent again and again: its correlation id is always 1."""
    return _exchange().request(key, version, body)


def answer_in(key: int, version: int, content: bytes) -> dict[str, Any]:
    """The decoded answer to such a request."""
    exchange = _exchange()
    exchange.next_id(key, version)
    return exchange.answer(content)


def _exchange() -> Exchange:
    return Exchange("the broker", "perf")


# ── topics ──────────────────────────────────────────────────────────────────────────────────────


def create_topic(
    address: str, name: str, replicas: list[int] | None = None, **configs: str
) -> None:
    """A topic of one partition whose leader takes batches when this returns. `replicas`: the
    brokers that hold it, the first leads; else one, whichever. `configs`: Kafka's settings, with
    underscores for dots."""
    with Connection(address) as connection:
        make_topic(connection, name, 1, replication_factor=1, replicas=replicas, **configs)
        deadline = time.monotonic() + LEADER_WAIT_S
        while True:
            answer = connection.ask(PRODUCE, PRODUCE_VERSION, produce_body(name, batch_of(1, 1), 1))
            error = answer["responses"][0]["partition_responses"][0]["error_code"]
            if not error:
                return
            if time.monotonic() > deadline:
                raise Refused(f"error {error} for the first batch of {name}")
            time.sleep(0.02)


def make_topic(
    connection: Connection,
    name: str,
    partitions: int = 1,
    *,
    replication_factor: int = 1,
    replicas: list[int] | None = None,
    **configs: str,
) -> None:
    """A topic, whose leaders may not know it yet. The rest as `create_topic`; replicas: of its only
    partition."""
    configs.setdefault("file_delete_delay_ms", "1000")
    topic = {
        "name": name,
        "num_partitions": -1 if replicas else partitions,
        "replication_factor": -1 if replicas else replication_factor,
        "assignments": [{"partition_index": 0, "broker_ids": replicas}] if replicas else [],
        "configs": [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ],
    }
    if partitions > MADE_TOGETHER:
        topic["num_partitions"] = MADE_TOGETHER
    answer = connection.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 60_000})
    if answer["topics"][0]["error_code"]:
        raise Refused(str(answer["topics"][0]))
    for count in range(2 * MADE_TOGETHER, partitions + MADE_TOGETHER, MADE_TOGETHER):
        more = {"name": name, "count": min(count, partitions), "assignments": None}
        body = {"topics": [more], "timeout_ms": 60_000, "validate_only": False}
        result = connection.ask(CREATE_PARTITIONS, 3, body)["results"][0]
        if result["error_code"]:
            raise Refused(str(result))


def delete_topic(address: str, name: str) -> None:
    with Connection(address) as connection:
        body = {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": 10_000}
        connection.ask(DELETE_TOPICS, 6, body)


def end_offset(address: str, topic: str) -> int:
    """The log end offset of partition 0."""
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    with Connection(address) as connection:
        answer = connection.ask(LIST_OFFSETS, 6, body)
    return int(answer["topics"][0]["partitions"][0]["offset"])


# ── requests ────────────────────────────────────────────────────────────────────────────────────


def batch_of(records: int, value_bytes: int) -> bytes:
    """A plain batch of records without keys, their create time now, no producer id."""
    value = os.urandom(value_bytes)
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([(now_ms, None, value, ())] * records)


def produce_body(topic: str, batch: bytes, acks: int) -> dict[str, Any]:
    partition = {"index": 0, "records": batch}
    return {
        "acks": acks,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }


def produce_frame(topic: str, batch: bytes, acks: int) -> bytes:
    return frame_of(PRODUCE, PRODUCE_VERSION, produce_body(topic, batch, acks))


def produce_error_at(topic: str) -> int:
    """Where the error code is in the answer to such a frame."""
    # Correlation id, tags, topics, name, partitions, partition index.
    return 4 + 1 + 1 + 1 + len(topic) + 1 + 4


def fetch_frame(topic: str, offset: int, max_bytes: int, wait_ms: int) -> bytes:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    body = {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    return frame_of(FETCH, FETCH_VERSION, body)


class FetchAnswers:
    """Reads a Fetch 11 answer of one partition: everything is at a place that the name tells."""

    def __init__(self, topic: str) -> None:
        # Correlation id, throttle time, error, session id, topics, name, partitions.
        self.at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4

    def look(self, answer: memoryview) -> tuple[int, int]:
        """(bytes of records, high watermark)"""
        _, error, high_watermark, _, _, aborted = _FETCH_FIXED.unpack_from(answer, self.at)
        if error or aborted > 0:
            raise Refused(f"Fetch answered error {error}")
        size = _SIZE.unpack_from(answer, self.at + _FETCH_FIXED.size + 4)[0]
        return size, high_watermark


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────


def produce_round(
    connection: Connection, topic: str, frame: bytes, depth: int, seconds: float, requests_max: int
) -> list[float]:
    """Send `frame` for so long or so often; the time of each request, in seconds."""
    now, send = time.perf_counter, connection.socket.sendall
    error_at = produce_error_at(topic)
    times: list[float] = []
    sent: deque[float] = deque()
    depth = started = min(depth, requests_max)
    deadline = now() + seconds
    for _ in range(depth):
        sent.append(now())
        send(frame)
    while sent:
        answers = connection.answers()
        done = now()
        for answer in answers:
            times.append(done - sent.popleft())
            if answer[error_at] or answer[error_at + 1]:
                raise Refused(f"Produce answered {bytes(answer)!r}")
            if done < deadline and started < requests_max:
                started += 1
                sent.append(now())
                send(frame)
    return times


def fetch_round(
    connection: Connection,
    topic: str,
    batch_bytes: int,
    batch_records: int,
    max_bytes: int,
    seconds: float,
) -> tuple[list[float], int]:
    """Read a partition of equal batches round and round: (times, bytes of whole batches)."""
    now, send = time.perf_counter, connection.socket.sendall
    answers = FetchAnswers(topic)
    frames: dict[int, bytes] = {}
    times: list[float] = []
    total = 0
    offset = FIRST_OFFSET
    deadline = now() + seconds
    while now() < deadline:
        frame = frames.get(offset)
        if frame is None:
            frame = frames[offset] = fetch_frame(topic, offset, max_bytes, 500)
        begin = now()
        send(frame)
        size, high_watermark = answers.look(connection.answer())
        times.append(now() - begin)
        # A batch that is cut off at the end of an answer comes again with the next one.
        whole = size // batch_bytes
        total += whole * batch_bytes
        offset += whole * batch_records
        if offset >= high_watermark:
            offset = FIRST_OFFSET
    return times, total


def end_to_end_round(address: str, topic: str, acks: int, seconds: float) -> list[float]:
    """From a Produce of 100 bytes until a Fetch that waited for it is answered."""
    now = time.perf_counter
    answers = FetchAnswers(topic)
    frame = produce_frame(topic, batch_of(1, 100), acks)
    times: list[float] = []
    with Connection(address) as sender, Connection(address) as reader:
        offset = end_offset(address, topic)
        deadline = now() + seconds
        while now() < deadline:
            reader.socket.sendall(fetch_frame(topic, offset, 1 << 20, 500))
            time.sleep(0.001)  # until it waits in the broker
            begin = now()
            sender.socket.sendall(frame)
            while not answers.look(reader.answer())[0]:
                reader.socket.sendall(fetch_frame(topic, offset, 1 << 20, 500))
            times.append(now() - begin)
            sender.answer()
            offset += 1
    return times


def percentiles(times: list[float]) -> dict[str, int]:
    """p50, p99 and p99.9 in µs."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        f"{name}_us": round(ordered[min(last, int(len(ordered) * share))] * 1e6)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }
