"""A broker family's outside, for tests of the Spark source: real segment files in a directory, and
a thread that answers what the driver asks, on a TCP port and on the control socket.

Watermarks, ids, errors and listed files are plain attributes, so that tests can make them wrong.
"""

import os
import socket
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

from shmbroker.ids import random_uuid, uuid_text
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import name_of
from tests.support.record_batches import Row, batch

SERVED = {18: (0, 4), 3: (0, 13), 2: (1, 11), 35: (1, 4), 1: (4, 18), 10: (0, 6), 8: (2, 10)}


@dataclass
class FakePartition:
    """One partition: its directory and what is listed of it."""

    directory: Path
    topic_id: bytes
    log_start_offset: int = 0
    high_watermark: int = 0
    segments: list[dict] = field(default_factory=list)
    remote: list[dict] = field(default_factory=list)
    """Segments that a leader serves, and doesn't list as files of its own."""
    local_start_offset: int | None = None
    """What is before it is in no file; None: that of the first segment listed."""
    error: int = 0
    tail: int = 0
    """Bytes of a batch that no longer fits, at the end of a Fetch answer, as a leader may send."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def append(self, rows: list[Row], roll: bool = False, **more: int) -> None:
        """One more batch, indexed; every file has a tail of zeros as if allocated ahead."""
        data = batch(self.high_watermark, rows, **more)
        if roll or not self.segments:
            path = self.directory / f"{self.high_watermark:020}.log"
            path.write_bytes(b"")
            path.with_suffix(".index").write_bytes(b"")
            self.segments.append(
                {
                    "file_name": path.name,
                    "inode": path.stat().st_ino,
                    "base_offset": self.high_watermark,
                    "valid_bytes": 0,
                    "max_timestamp": 0,
                }
            )
        segment = self.segments[-1]
        path = self.directory / segment["file_name"]
        position = segment["valid_bytes"]
        self.high_watermark += rows[-1][0] + 1
        segment["end_offset"] = self.high_watermark
        segment["valid_bytes"] = position + len(data)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data + bytes(512))
        if position:
            entry = struct.pack(">ii", self.high_watermark - 1 - segment["base_offset"], position)
            index = path.with_suffix(".index")
            filled = index.read_bytes().rstrip(b"\0")
            filled += bytes(-len(filled) % len(entry))  # an entry may end in zeros of its own
            index.write_bytes(filled + entry + bytes(64))

    def local_start(self) -> int:
        """The first offset that a file of its own may have."""
        if self.local_start_offset is not None:
            return self.local_start_offset
        first = self.segments[0]["base_offset"] if self.segments else self.high_watermark
        return max(first, self.log_start_offset)

    def fetched(self, offset: int, size: int) -> bytes:
        """The batches from the one with `offset` on, one at least, as a leader answers a Fetch."""
        found = b""
        for segment in [*self.remote, *self.segments]:
            data = (self.directory / segment["file_name"]).read_bytes()[: segment["valid_bytes"]]
            at = 0
            while at < len(data):
                base, length = struct.unpack_from(">qi", data, at)
                (delta,) = struct.unpack_from(">i", data, at + 23)
                batch = data[at : at + 12 + length]
                at += len(batch)
                if base + delta >= offset and base < self.high_watermark:
                    if found and len(found) + len(batch) > size:
                        return found + batch[: self.tail]
                    found += batch
        return found

    def fill(self, count: int, batches: int = 1, text: str = "v", **more: int) -> None:
        """`count` records in each of `batches` batches; their values tell their offsets."""
        for _ in range(batches):
            first = self.high_watermark
            rows = [
                (i, 1000 + first + i, b"k", f"{text}{first + i}".encode(), []) for i in range(count)
            ]
            self.append(rows, **more)


def _read(reader, size: int) -> bytes:
    """The bytes, or none at the connection's end, of whatever kind."""
    try:
        return reader.read(size)
    except OSError:
        return b""


class FakeFamily:
    """Answers for one broker, id 1; use it as a context manager."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.topics: dict[str, tuple[bytes, dict[int, FakePartition]]] = {}
        self.asked: list[str] = []
        self.commits: list[tuple[str, str, int, int]] = []
        self.commit_error = 0
        self.on_ask = lambda _name: None
        self.log_dir = str(data / "node-1")
        (data / "node-1").mkdir(parents=True)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.control = socket.socket(socket.AF_UNIX)
        directory = os.open(data, os.O_PATH)
        self.control.bind(f"/proc/self/fd/{directory}/control.sock")
        os.close(directory)
        self.control.listen()
        self.address = f"127.0.0.1:{self.tcp.getsockname()[1]}"
        self.threads: list[threading.Thread] = []
        self.open: list[socket.socket] = [self.tcp, self.control]

    def __enter__(self) -> "FakeFamily":
        for listener in (self.tcp, self.control):
            self._start(self._accept, listener)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        for thread in self.threads:
            thread.join()

    def create(self, topic: str, partitions: int = 1) -> dict[int, FakePartition]:
        """A topic, or one of that name anew."""
        topic_id = random_uuid()
        made = {}
        for index in range(partitions):
            directory = self.data / "node-1" / f"{topic}-{index}"
            for old in directory.glob("*"):
                old.unlink()
            directory.mkdir(exist_ok=True)
            text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
            (directory / "partition.metadata").write_text(text)
            made[index] = FakePartition(directory, topic_id)
        self.topics[topic] = (topic_id, made)
        return made

    def drop_connections(self) -> None:
        """As if the process that holds them had died."""
        for each in self.open[2:]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _start(self, target, argument) -> None:
        thread = threading.Thread(target=target, args=(argument,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while size := _read(reader, 4):
                content = reader.read(int.from_bytes(size, "big"))
                key, version, correlation_id, _, at = frame.parse_request_header(
                    content, 0, len(content)
                )
                name = name_of(key)
                body = codec.decode_all(f"{name}Request", version, content, at)
                self.asked.append(name)
                self.on_ask(name)
                answer = getattr(self, f"_{name}")(body)
                answer = codec.encode(f"{name}Response", version, answer)
                try:
                    connection.sendall(frame.response_frame(key, version, correlation_id, answer))
                except OSError:
                    return

    def _ApiVersions(self, body: dict) -> dict:
        assert body["client_software_name"]
        assert body["client_software_version"]
        keys = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in SERVED.items()
        ]
        return {"api_keys": keys}

    def _Metadata(self, body: dict) -> dict:
        assert not body["allow_auto_topic_creation"]
        names = self.topics if body["topics"] is None else [t["name"] for t in body["topics"]]
        topics = []
        for name in names:
            if name not in self.topics:
                topics.append({"name": name, "error_code": 3})
                continue
            topic_id, partitions = self.topics[name]
            listed = [{"partition_index": p, "leader_id": 1} for p in partitions]
            topics.append({"name": name, "topic_id": topic_id, "partitions": listed})
        port = int(self.address.rpartition(":")[2])
        return {"brokers": [{"node_id": 1, "host": "127.0.0.1", "port": port}], "topics": topics}

    def _ListOffsets(self, body: dict) -> dict:
        topics = []
        for topic in body["topics"]:
            found = []
            for p in topic["partitions"]:
                partition = self.topics[topic["name"]][1][p["partition_index"]]
                # record at offset n has timestamp 1000 + n
                offset = max(p["timestamp"] - 1000, partition.log_start_offset)
                if offset >= partition.high_watermark:
                    offset = -1
                if p["timestamp"] == -2:
                    offset = partition.log_start_offset
                if p["timestamp"] == -1:
                    offset = partition.high_watermark
                found.append(
                    {
                        "partition_index": p["partition_index"],
                        "offset": offset,
                        "error_code": partition.error,
                    }
                )
            topics.append({"name": topic["name"], "partitions": found})
        return {"topics": topics}

    def _DescribeLogDirs(self, body: dict) -> dict:
        topics = []
        for topic in body["topics"]:
            made = self.topics[topic["topic"]][1]
            sizes = [
                {
                    "partition_index": p,
                    "partition_size": sum(s["valid_bytes"] for s in made[p].segments),
                }
                for p in topic["partitions"]
            ]
            topics.append({"name": topic["topic"], "partitions": sizes})
        return {"results": [{"log_dir": self.log_dir, "topics": topics}]}

    def _FindCoordinator(self, body: dict) -> dict:
        port = int(self.address.rpartition(":")[2])
        found = {"key": body["coordinator_keys"][0], "node_id": 1, "host": "127.0.0.1"}
        return {"coordinators": [found | {"port": port}]}

    def _OffsetCommit(self, body: dict) -> dict:
        topics = []
        for topic in body["topics"]:
            answers = []
            for p in topic["partitions"]:
                if not self.commit_error:
                    commit = (topic["name"], p["partition_index"], p["committed_offset"])
                    self.commits.append((body["group_id"], *commit))
                answers.append(
                    {"partition_index": p["partition_index"], "error_code": self.commit_error}
                )
            topics.append({"name": topic["name"], "partitions": answers})
        return {"topics": topics}

    def _Fetch(self, body: dict) -> dict:
        by_id = dict(self.topics.values())
        (topic,) = body["topics"]
        (asked,) = topic["partitions"]
        partition = by_id.get(topic["topic_id"], {}).get(asked["partition"])
        answer = {"partition_index": asked["partition"]}
        if partition is None:
            answer["error_code"] = 100
        elif partition.error:
            answer["error_code"] = partition.error
        elif not partition.log_start_offset <= asked["fetch_offset"] <= partition.high_watermark:
            answer["error_code"] = 1
        else:
            answer |= {
                "high_watermark": partition.high_watermark,
                "log_start_offset": partition.log_start_offset,
                "records": partition.fetched(asked["fetch_offset"], asked["partition_max_bytes"]),
            }
            if body["isolation_level"]:
                answer["aborted_transactions"] = [
                    {"producer_id": pid, "first_offset": first}
                    for pid, first, last in partition.aborted
                    if last >= asked["fetch_offset"]
                ]
        return {"responses": [{"topic_id": topic["topic_id"], "partitions": [answer]}]}

    def _ListSegments(self, body: dict) -> dict:
        assert body["broker_id"] == 1
        by_id = dict(self.topics.values())
        found = []
        for topic in body["topics"]:
            for index in (asked["partition"] for asked in topic["partitions"]):
                partition = by_id.get(topic["topic_id"], {}).get(index)
                answer = {"topic_id": topic["topic_id"], "partition": index, "error_code": 100}
                if partition is not None:
                    answer |= {
                        "error_code": partition.error,
                        "log_start_offset": partition.log_start_offset,
                        "local_log_start_offset": partition.local_start(),
                        "high_watermark": partition.high_watermark,
                        "last_stable_offset": partition.high_watermark,
                        "directory": str(partition.directory),
                        "segments": partition.segments,
                    }
                found.append(answer)
        return {"partitions": found}
