"""One broker to put the wire cases to, ours or Apache Kafka, and its answers in comparable form.

Every name that a case makes carries the run's prefix, so that runs on one Kafka don't meet. An
answer becomes a small tree: fields that have their default are left out; what differs from run to
run (topic ids, ports, times, sizes of disks, the prefix) gives way to a word that says what it is.
No answer is "closed" if the broker ended the connection, "silence" if it said nothing for a second.
"""

import itertools
import os
import zlib
from typing import Any

from shmbroker.records.batch import iterate_batches
from shmbroker.wire import api_keys, codec, schema
from shmbroker.wire.frame import parse_response_header
from tests.support.raw_client import RawClient, key_of
from tests.support.waiting import wait_until

SILENCE_S = 1.0
ANSWER_S = 30.0
_runs = itertools.count()

CLOSED = "closed"
SILENCE = "silence"


class Side:
    """`ask` and `send_raw` make a connection for each request: no case holds up the next."""

    def __init__(self, address: str, *, keeps_texts: bool = False) -> None:
        self.address = address
        self.keeps_texts = keeps_texts
        self.prefix = f"w{os.getpid()}x{next(_runs)}-"
        self.topics: dict[str, bytes] = {}

    # ── what cases use ──────────────────────────────────────────────────────────────────────────

    def name(self, short: str) -> str:
        """A topic's name in this run."""
        return self.prefix + short

    def topic(self, short: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until its partitions have a leader that serves."""
        name = self.name(short)
        with RawClient(self.address, ANSWER_S) as client:
            self.topics[name] = client.create_topic(name, partitions, **configs)
            body = {
                "replica_id": -1,
                "topics": [
                    {
                        "name": name,
                        "partitions": [
                            {"partition_index": index, "timestamp": -1}
                            for index in range(partitions)
                        ],
                    }
                ],
            }

            def errors() -> list[int]:
                rows = client.ask("ListOffsets", 5, body)["topics"][0]["partitions"]
                return [row["error_code"] for row in rows]

            wait_until(lambda: not any(errors()), lambda: f"leaders of {name}: {errors()}")
        return name

    def learn(self, name: str) -> bytes:
        """The id of a topic that a case has created itself."""
        with RawClient(self.address, ANSWER_S) as client:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            found = client.ask("Metadata", 12, body)["topics"][0]
        self.topics[name] = found["topic_id"]
        return found["topic_id"]

    def ask(
        self,
        api: str,
        version: int,
        body: dict[str, Any],
        *,
        client_id: str | None = "wire",
        is_silent: bool = False,
    ) -> Any:
        """The comparable answer to one request on a connection of its own."""
        with RawClient(self.address, SILENCE_S if is_silent else ANSWER_S) as client:
            try:
                client.send(api, version, body, client_id)
                return self.comparable(api, version, client.receive(api, version))
            except TimeoutError:
                return SILENCE
            except ConnectionError:
                return CLOSED

    def ask_bytes(self, api: str, version: int, body: bytes, *, is_silent: bool = False) -> Any:
        """The same for a body that no codec makes."""
        key = key_of(api)
        tags = b"\0" if api_keys.is_flexible(key, version) else b""
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
        content = header + b"\0\0\0\x07\xff\xff" + tags + body
        frame = self.send_raw(len(content).to_bytes(4, "big") + content, is_silent=is_silent)
        if isinstance(frame, str):
            return frame
        if api == "ApiVersions" and not 0 <= version <= 4:
            version = 0
        _, at = parse_response_header(key, version, frame)
        return self.comparable(api, version, codec.decode_all(api + "Response", version, frame, at))

    def send_raw(self, data: bytes, *, is_silent: bool = False) -> bytes | str:
        """The content of the frame that answers these bytes, or CLOSED or SILENCE."""
        with RawClient(self.address, SILENCE_S if is_silent else ANSWER_S) as client:
            try:
                client.socket.sendall(data)
                return client.receive_frame()
            except TimeoutError:
                return SILENCE
            except ConnectionError:
                return CLOSED

    # ── comparable answers ──────────────────────────────────────────────────────────────────────

    def comparable(self, api: str, version: int, answer: dict[str, Any]) -> Any:
        """The answer without what differs from run to run."""
        return self._struct(schema.message(api + "Response").fields, answer)

    def _struct(self, fields: list[schema.Field], value: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for field in fields:
            item = value[field.name]
            if item == field.default:
                continue
            if field.type == "{}" and item is not None:
                if field.is_array:
                    item = [self._struct(field.fields, nested) for nested in item]
                    if field.name in _IN_ANY_ORDER:
                        item.sort(key=_IN_ANY_ORDER[field.name])
                else:
                    item = self._struct(field.fields, item)
                    if not item:
                        continue
            found[field.name] = self._word(field.name, item)
        return found

    def _word(self, name: str, value: Any) -> Any:
        if name == "topic_id":
            for topic, topic_id in self.topics.items():
                if topic_id == value:
                    return f"id of {self._short(topic)}"
            return "some id"
        if name in _WORDS:
            return _WORDS[name]
        if name in ("host", "port") and value not in ("", -1):
            return name
        if name in ("total_bytes", "usable_bytes", "producer_id", "log_append_time_ms"):
            return "some" if value > 0 or name == "producer_id" else value
        if name.endswith("error_message") and value and not self.keeps_texts:
            return "text"
        if name in _ASSIGNMENTS and isinstance(value, memoryview | bytes) and len(value) > 0:
            embedded = codec.decode("ConsumerProtocolAssignment", 1, bytes(value), 2)[0]
            return self._struct(schema.message("ConsumerProtocolAssignment").fields, embedded)
        if isinstance(value, memoryview | bytes):
            return self._records(bytes(value))
        if isinstance(value, str):
            return self._short(value)
        if isinstance(value, list):
            return [self._word("", item) if not isinstance(item, dict) else item for item in value]
        return value

    def _short(self, text: str) -> str:
        return text.replace(self.prefix, "")

    def _records(self, data: bytes) -> str:
        """What batches, and a sum over them. One that is cut off at the end counts for nothing."""
        whole = 0
        batches = []
        for position, header in iterate_batches(data):
            whole = position + header[1] + 12
            batches.append(f"{header[0]}-{header[0] + header[6]}@{header[2]}")
        return f"{' '.join(batches)} crc {zlib.crc32(data[:whole]):08x}" if batches else "empty"


_WORDS = {
    "cluster_id": "the cluster",
    "log_dir": "the directory",
    "session_id": "some session",
}

_ASSIGNMENTS = ("assignment", "member_assignment")
"""What classic consumers are given, in their own format."""

_IN_ANY_ORDER = {
    "partitions": lambda row: row.get("partition_index", 0),
    "partition_responses": lambda row: row.get("index", 0),
}
"""Kafka answers these in the order of a hash map (a Fetch's partitions have no such key)."""
