"""A synchronous Kafka client of one socket for tests: any API, any version, raw bytes as well."""

import socket
import struct
from typing import Any

from shmbroker.records.batch import encode_batch
from shmbroker.wire import api_keys, codec
from shmbroker.wire.frame import parse_response_header, request_frame


class RawClient:
    """`ask("Metadata", 12, {...})` sends one request and returns the decoded answer."""

    def __init__(self, address: str, timeout: float = 15.0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(
        self, name: str, version: int, body: dict[str, Any], client_id: str | None = "raw"
    ) -> int:
        """Send one request; its correlation id."""
        self.correlation_id += 1
        key = key_of(name)
        encoded = codec.encode(name + "Request", version, body)
        self.socket.sendall(request_frame(key, version, self.correlation_id, client_id, encoded))
        return self.correlation_id

    def receive_frame(self) -> bytes:
        """The content of the next answer; ConnectionError if the broker closed the connection."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def receive(self, name: str, version: int) -> dict[str, Any]:
        """The next answer, decoded; it must be the next one in order."""
        frame = self.receive_frame()
        _, at = parse_response_header(key_of(name), version, frame)
        return codec.decode_all(name + "Response", version, frame, at)

    def ask(self, name: str, version: int, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One request and its answer."""
        sent = self.send(name, version, body, **more)
        frame = self.receive_frame()
        got, at = parse_response_header(key_of(name), version, frame)
        assert got == sent, f"correlation id {got}, not {sent}"
        return codec.decode_all(name + "Response", version, frame, at)

    def is_closed_by_broker(self) -> bool:
        """Whether the broker ends the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts += part
        return bytes(parts)

    # ── what most tests need ────────────────────────────────────────────────────────────────────

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic; its id."""
        answer = self.ask(
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": -1,
                        "configs": [
                            {"name": key.replace("_", "."), "value": value}
                            for key, value in configs.items()
                        ],
                    }
                ],
                "timeout_ms": 10_000,
            },
        )
        topic = answer["topics"][0]
        assert topic["error_code"] == 0, topic
        topic_id: bytes = topic["topic_id"]
        return topic_id

    def produce(
        self, topic: str, batch: bytes | None, partition: int = 0, acks: int = -1, version: int = 9
    ) -> dict[str, Any]:
        """Produce one batch; the answer of its partition."""
        answer = self.ask("Produce", version, produce_body(topic, batch, partition, acks))
        row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return row

    def fetch(
        self, topic: str, offset: int, partition: int = 0, max_wait_ms: int = 0, **more: Any
    ) -> dict[str, Any]:
        """Fetch version 12 of one partition; the answer of it."""
        answer = self.ask("Fetch", 12, fetch_body(topic, offset, partition, max_wait_ms, **more))
        row: dict[str, Any] = answer["responses"][0]["partitions"][0]
        return row


def key_of(name: str) -> int:
    """The api key of a request's name."""
    return next(key for key, row in api_keys.TABLE.items() if row[0] == name)


def produce_body(
    topic: str, batch: bytes | None, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }


def fetch_body(
    topic: str,
    offset: int,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 50 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    }
                ],
            }
        ],
    }


def batch_of(*values: bytes, timestamp: int = 1_700_000_000_000, **more: Any) -> bytes:
    """A batch of records without keys."""
    return encode_batch([(timestamp, None, value, []) for value in values], **more)
