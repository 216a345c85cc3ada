"""Many connections, large announcements, slow readers: memory stays bounded, others are served."""

import resource
import select
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice, product

import pytest

from shmbroker import clock
from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import Broker
from shmbroker.wire import api_keys
from shmbroker.wire.primitives import uvarint
from tests.processes.hostile import TOPIC, Besieged
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body, key_of, produce_body
from tests.support.waiting import wait_until

MIB = 1 << 20
GROWTH_BYTES_MAX = 64 * MIB
CONNECTIONS = 1000


@pytest.fixture(scope="module")
def besieged() -> Iterator[Besieged]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with Broker() as broker:
            yield Besieged(broker)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def announced(size: int, key: int = 0, version: int = 9) -> bytes:
    """The beginning of a frame of that size."""
    return struct.pack(">ihhih", size, key, version, 7, -1) + b"\0\0\0\x01\0\0\x03\xe8"


def test_a_thousand_connections_are_served(besieged: Besieged) -> None:
    before = besieged.memory_bytes()
    with besieged.quiet(), ExitStack() as stack:
        clients = [stack.enter_context(besieged.client()) for _ in range(CONNECTIONS)]
        for client in clients:
            client.send("ApiVersions", 0, {})
        for client in clients:
            assert client.receive("ApiVersions", 0)["error_code"] == 0
        besieged.serves()
        assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX // 2


@pytest.mark.parametrize("count", [20, 800])
def test_announced_frames_take_no_memory(besieged: Besieged, count: int) -> None:
    before = besieged.memory_bytes()
    with besieged.quiet(), ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(besieged.client())
            client.socket.sendall(announced(100 * MIB))
        besieged.serves()
        assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX


def test_frames_that_really_come_are_bounded_together() -> None:
    """Thirty connections push the first 16 MiB of a frame of 100 MiB, as far as they are taken."""
    chunk = bytes(256 * 1024)
    with Broker() as broker, ExitStack() as stack:
        besieged = Besieged(broker)
        before = besieged.memory_bytes()
        left = {}
        for _ in range(30):
            client = stack.enter_context(besieged.client())
            client.socket.sendall(announced(100 * MIB))
            client.socket.setblocking(False)
            left[client.socket] = 16 * MIB
        pushed = peak = 0
        deadline = clock.monotonic() + 4
        while left and clock.monotonic() < deadline:
            for sender in select.select([], list(left), [], 0.2)[1]:
                try:
                    sent = sender.send(chunk[: left[sender]])
                except BlockingIOError:
                    continue
                except ConnectionError:  # closed, so that the others come to an end
                    sent = left[sender]
                pushed += sent
                left[sender] -= sent
                if left[sender] == 0:
                    del left[sender]
            peak = max(peak, besieged.memory_bytes() - before)
            besieged.serves()
        assert pushed > 2 * GROWTH_BYTES_MAX, "pushed too little to prove anything"
        assert peak < GROWTH_BYTES_MAX


def test_half_frames_are_bounded_together_however_small() -> None:
    """A thousand connections with 59 KB of a frame each: large requests are served beside them,
    and all the memory goes back."""
    with Broker("--set", f"queued.max.request.bytes={8 * MIB}") as broker, ExitStack() as stack:
        besieged = Besieged(broker)
        large = batch_now(bytes(200_000))
        for _ in range(8):
            assert besieged.bystander.produce(TOPIC, large)["error_code"] == 0
        before = besieged.memory_bytes()
        for _ in range(CONNECTIONS):
            slow = stack.enter_context(besieged.client())
            slow.socket.sendall(announced(MIB).ljust(59_000, b"x"))
        for _ in range(8):
            assert besieged.bystander.produce(TOPIC, large)["error_code"] == 0
            assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX // 2

        def told() -> int:
            return sum("a slow frame while others wait" in line for line in broker.lines)

        wait_until(told, "the slowest are closed")
        stack.close()
        wait_until(lambda: besieged.memory_bytes() - before < 12 * MIB, "memory given back")
        assert told() < CONNECTIONS // 10


def test_only_produce_may_be_large(besieged: Besieged) -> None:
    with besieged.quiet() as expected, besieged.client() as client:
        client.socket.sendall(announced(2 * MIB, key_of("Metadata")))
        expected.closed(client, "frame of 2097152 bytes for api key 3")


def distinct(count: int) -> list[bytes]:
    """As many names of three letters."""
    letters = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [bytes(name) for name in islice(product(letters, repeat=3), count)]


SMALL_THINGS = {
    "Metadata": (4, b"", b"\0\x03", 200_000, b"\0"),
    "CreateTopics": (2, b"", b"\0\x03", 50_000, b"\0\0\x03\xe8\x01"),
    "FindCoordinator": (4, b"\x09", b"\x04", 200_000, b"\0"),
    "Produce": (3, b"\xff\xff\0\x01\0\0\x03\xe8", b"\0\x03", 60_000, b""),
}
"""Version, what comes before the elements, what before each name, how many make a MiB, what comes
after."""
BEHIND_NAME = {
    "CreateTopics": struct.pack(">ihii", 1, 1, 0, 0),
    "Produce": struct.pack(">iii", 1, 0, -1),
}


def small_things(api: str, count_max: int) -> tuple[int, bytes]:
    """(how many there are, the frame)"""
    version, start, before_name, count, end = SMALL_THINGS[api]
    count = min(count, count_max)
    behind = BEHIND_NAME.get(api, b"")
    names = [before_name + name + behind for name in distinct(count)]
    is_flexible = api_keys.is_flexible(key_of(api), version)
    tags = b"\0" if is_flexible else b""
    header = struct.pack(">hhih", key_of(api), version, 7, -1) + tags
    length = uvarint(count + 1) if is_flexible else struct.pack(">i", count)
    content = header + start + length + b"".join(names) + end
    return count, struct.pack(">i", len(content)) + content


@pytest.mark.parametrize("api", SMALL_THINGS)
def test_thousands_of_small_things(besieged: Besieged, api: str) -> None:
    count, frame = small_things(api, 9000)
    before = besieged.memory_bytes()
    with besieged.quiet(), besieged.client(60) as client:
        client.socket.sendall(frame)
        assert len(client.receive_frame()) > count
        besieged.serves()
        assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.parametrize("api", SMALL_THINGS)
def test_a_million_bytes_of_small_things_are_not_read(besieged: Besieged, api: str) -> None:
    _, frame = small_things(api, 200_000)
    with besieged.quiet() as expected, besieged.client(60) as client:
        client.socket.sendall(frame)
        expected.closed(client, "more elements than are allowed")
        besieged.serves()


def test_a_large_batch_is_refused_while_others_are_served(besieged: Besieged) -> None:
    before = besieged.memory_bytes()
    with besieged.quiet(), besieged.client() as client:
        client.send("Produce", 9, produce_body("bystander", batch_now(bytes(20 * MIB))))
        besieged.serves()
        answer = client.receive("Produce", 9)["responses"][0]["partition_responses"][0]
        assert answer["error_code"] == 10
        # The connection is still good.
        assert client.ask("ApiVersions", 0, {})["error_code"] == 0
    wait_until(lambda: besieged.memory_bytes() - before < GROWTH_BYTES_MAX, "memory given back")


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_a_bomb_for_a_compacted_topic_is_not_unpacked(besieged: Besieged, codec: str) -> None:
    """Keys are looked at on compacted topics, so batches are unpacked: never beyond a bound."""
    number = ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    record = [(1_700_000_000_000, b"key", bytes(150 * MIB), [])]
    bomb = encode_batch(record, codec=number)
    topic = f"compacted-{codec}"
    with besieged.quiet(), besieged.client(60) as client:
        client.create_topic(topic, cleanup_policy="compact", max_message_bytes="20000000")
        before = besieged.memory_bytes()
        answer = client.produce(topic, bomb)
        assert answer["error_code"] == 10
        assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX
        assert client.produce(topic, encode_batch([(0, b"k", b"v", [])]))["error_code"] == 0


def test_requests_over_a_ring_entry_are_answered_in_order(besieged: Besieged) -> None:
    names = [f"{which:04}-" + "n" * 240 for which in range(500)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    body = {"topics": topics, "timeout_ms": 10_000, "validate_only": True}
    with besieged.quiet(), besieged.client() as client:
        for version in (2, 7):
            client.send("CreateTopics", version, body)
        for version in (2, 7):
            rows = client.receive("CreateTopics", version)["topics"]
            assert [(row["name"], row["error_code"]) for row in rows] == [(n, 0) for n in names]


def test_many_topics_made_on_use(besieged: Besieged) -> None:
    names = [f"{which:03}-" + "u" * 240 for which in range(300)]
    body = {"topics": [{"name": name} for name in names]}
    with besieged.quiet(), besieged.client(60) as client:
        answer = client.ask("Metadata", 5, body)
        assert {row["error_code"] for row in answer["topics"]} <= {0, 3, 5}
        answer = client.ask("Metadata", 5, body)
        assert [(row["name"], row["error_code"]) for row in answer["topics"]] == [
            (name, 0) for name in names
        ]


def test_readers_that_never_read_take_no_memory(besieged: Besieged) -> None:
    topic = "unread"
    with besieged.quiet(), ExitStack() as stack:
        producer = stack.enter_context(besieged.client())
        producer.create_topic(topic)
        for _ in range(4):
            assert producer.produce(topic, batch_now(bytes(MIB // 2)))["error_code"] == 0
        before = besieged.memory_bytes()
        for _ in range(40):
            reader = stack.enter_context(besieged.client())
            reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(50):
                reader.send("Fetch", 12, fetch_body(topic, 0, max_bytes=4 * MIB))
            for _ in range(50):
                reader.send("Metadata", 1, {"topics": None})
        besieged.serves()
        assert besieged.memory_bytes() - before < GROWTH_BYTES_MAX // 2


def test_clients_that_leave_in_the_middle_are_forgotten(besieged: Besieged) -> None:
    """Waiting fetches, unanswered produces and half frames of clients that are gone."""
    topic = "left"
    with besieged.quiet(), besieged.client() as client:
        client.create_topic(topic)
        batch = batch_now(b"x" * 1000)
        for which in range(100):
            leaving = besieged.client()
            leaving.send("Fetch", 12, fetch_body(topic, 10**9 if which % 3 else 0, 0, 30_000))
            for _ in range(which % 5):
                leaving.send("Produce", 9, produce_body(topic, batch))
            leaving.send("ListOffsets", 5, {"replica_id": -1})
            if which % 2:
                leaving.socket.sendall(announced(100 * MIB))
            if which % 4 == 0:
                reset = struct.pack("ii", 1, 0)
                leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            leaving.close()
        assert client.produce(topic, batch)["error_code"] == 0
        assert len(RawClient(besieged.address).fetch(topic, 0)["records"]) > 0


def test_two_frames_that_need_all_the_memory_do_not_wait_for_each_other() -> None:
    batch = batch_now(bytes(30 * MIB))
    with Broker("--network-workers", "1") as broker:
        clients = [RawClient(broker.address) for _ in range(2)]
        clients[0].create_topic("large")
        with ThreadPoolExecutor() as threads:
            sent = [threads.submit(client.produce, "large", batch) for client in clients]
        faults = [each.exception() for each in sent]
        assert any(fault is None for fault in faults), faults
        assert clients[faults.index(None)].produce("large", batch)["error_code"] == 10
        for client in clients:
            client.close()
