"""Bytes that are no request: the connection is closed with one line in the log, and that is all."""

import random
import struct
from collections.abc import Iterator

import pytest

from shmbroker.testing.broker import Broker
from shmbroker.wire import api_keys
from shmbroker.wire.frame import FRAME_SIZE
from tests.processes.hostile import Besieged
from tests.processes.wire_cases import SMALLEST, smallest, versions
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, key_of, produce_body


@pytest.fixture(scope="module")
def besieged() -> Iterator[Besieged]:
    # Every line, also those that are only counted when there are many.
    with Broker("--set", "shmbroker.logger.levels=shmbroker.gateway=DEBUG") as broker:
        yield Besieged(broker)


def framed(content: bytes) -> bytes:
    return FRAME_SIZE.pack(len(content)) + content


def header(key: int, version: int) -> bytes:
    tags = b"\0" if key in api_keys.TABLE and api_keys.is_flexible(key, version) else b""
    return struct.pack(">hhih", key, version, 7, -1) + tags


OPENINGS = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "it speaks HTTP, but this is a port"),
    "HTTP, short": (b"POST /\r\n", "it speaks HTTP, but this is a port"),
    "TLS": (
        bytes.fromhex("16030102000100 01fc0303") + bytes(500),
        "it speaks TLS, but this listener does not: the client needs the port of one that does",
    ),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", "frame of 1397966893 bytes"),
    "Redis": (b"*1\r\n$4\r\nPING\r\n", "frame of 707857674 bytes"),
    "zeros": (bytes(64), "frame of 0 bytes"),
    "ones": (b"\xff" * 64, "frame of -1 bytes"),
    "negative": (struct.pack(">i", -(2**31)), "frame of -2147483648 bytes"),
    "too large": (struct.pack(">i", (100 << 20) + 1), "frame of 104857601 bytes"),
    "size 9": (struct.pack(">i", 9) + bytes(9), "frame of 9 bytes"),
    "unknown key": (framed(header(93, 0)), "unknown api key 93"),
    "negative key": (framed(header(-1, 0)), "unknown api key -1"),
    "removed key": (framed(header(4, 0)), "unknown api key 4"),
    "inner key": (framed(header(62, 0)), "unknown api key 62"),
    "our own key": (framed(header(20000, 0) + b"\0\0\0\1\1\0"), "unknown api key 20000"),
    "old version": (framed(header(1, 3)), "Fetch version 3"),
    "new version": (framed(header(3, 14)), "Metadata version 14"),
    "new version, forwarded": (framed(header(19, 8)), "CreateTopics version 8"),
    "client id cut off": (framed(struct.pack(">hhih", 18, 0, 7, 900)), "truncated"),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_an_opening_that_is_no_request_closes_the_connection(besieged: Besieged, name: str) -> None:
    data, reason = OPENINGS[name]
    with besieged.quiet() as expected, besieged.client() as client:
        client.socket.sendall(data)
        expected.closed(client, reason)


@pytest.mark.parametrize("api", SMALLEST)
def test_a_body_that_is_cut_off_closes_the_connection(besieged: Besieged, api: str) -> None:
    served = versions(api)
    with besieged.quiet() as expected:
        for version in {served[0], served[-1]}:
            content = header(key_of(api), version) + smallest(api, version)
            for end in range(len(header(key_of(api), version)), len(content)):
                with besieged.client() as client:
                    client.socket.sendall(framed(content[:end]))
                    expected.closed(client)


@pytest.mark.parametrize("api", SMALLEST)
def test_lengths_that_lie_are_answered_or_closed(besieged: Besieged, api: str) -> None:
    """Every place of a body, overwritten with large lengths: nothing is allocated for them."""
    served = versions(api)
    before = besieged.memory_bytes()
    for version in {served[0], served[-1]}:
        start = header(key_of(api), version)
        body = smallest(api, version)
        for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"):
            for at in range(len(body)):
                with besieged.client() as client:
                    lying = (body[:at] + lie + body[at + len(lie) :])[: max(len(body), at + 5)]
                    client.socket.sendall(framed(start + lying))
                    assert_answered_or_closed(client)
    besieged.serves()
    assert besieged.memory_bytes() - before < 16 << 20


def assert_answered_or_closed(client: RawClient) -> None:
    """A TimeoutError if the broker does neither."""
    try:
        client.receive_frame()
    except ConnectionError:
        pass


def test_random_frames_are_answered_or_closed(besieged: Besieged) -> None:
    chance = random.Random(20260)
    keys = [key_of(api) for api in SMALLEST]
    for _ in range(400):
        key = chance.choice(keys)
        start = header(key, chance.randint(0, 14))
        body = chance.randbytes(chance.choice((0, 3, 20, 200, 5000)))
        with besieged.client() as client:
            # A second request, as the first may be a Produce that wants no answer.
            client.socket.sendall(framed(start + body) + framed(header(18, 0)))
            assert_answered_or_closed(client)
    besieged.serves()


def test_requests_one_byte_at_a_time_are_answered(besieged: Besieged) -> None:
    with besieged.quiet(), besieged.client() as client:
        batch = batch_now(b"drop by drop")
        frame = bytearray()
        for api, version, body in (
            ("ApiVersions", 0, {}),
            ("Produce", 9, produce_body("bystander", batch)),
            ("Metadata", 1, {"topics": []}),
        ):
            tap = Tap()
            client.socket, socket = tap, client.socket
            client.send(api, version, body)
            client.socket = socket
            frame += tap.data
        for byte in frame:
            client.socket.sendall(bytes((byte,)))
        assert client.receive("ApiVersions", 0)["error_code"] == 0
        answer = client.receive("Produce", 9)["responses"][0]["partition_responses"][0]
        assert answer["error_code"] == 0
        besieged.produced += 1
        assert client.receive("Metadata", 1)["brokers"][0]["node_id"] == 1


class Tap:
    """Stands in for a socket, and keeps what is sent."""

    def __init__(self) -> None:
        self.data = b""

    def sendall(self, data: bytes) -> None:
        self.data += data


def test_what_was_asked_before_the_garbage_is_answered(besieged: Besieged) -> None:
    with besieged.quiet() as expected, besieged.client() as client:
        client.socket.sendall(framed(header(18, 0)) * 3 + b"\xff" * 20)
        for _ in range(3):
            client.receive("ApiVersions", 0)
        expected.closed(client, "frame of -1 bytes")


def test_bytes_behind_the_records_do_not_confuse_the_next_request(besieged: Besieged) -> None:
    """A connection remembers what its requests look like; only what really repeats is taken so."""
    for version in (3, 8, 9, 13):
        topic = f"behind-{version}"
        with besieged.quiet(), besieged.client() as client:
            topic_id = client.create_topic(topic)
            body = produce_body(topic, batch_now(b"one"))
            if version == 13:
                del body["topic_data"][0]["name"]
                body["topic_data"][0]["topic_id"] = topic_id
            tap = Tap()
            client.socket, socket = tap, client.socket
            client.send("Produce", version, body)
            client.socket = socket
            endings = (b"", b"\0\0\0\0", b"\0\0\0\0", b"more", b"", b"\0", b"")
            for offset, more in enumerate(endings):
                client.socket.sendall(framed(tap.data[4:] + more))
                answer = client.receive("Produce", version)["responses"][0]
                assert answer["partition_responses"][0]["base_offset"] == offset, more


def test_half_frames_are_closed_after_a_while(besieged: Besieged) -> None:
    request = framed(header(18, 0))
    halves = [request[:1], request[:4], request[:9], request[:-1], request + request[:6]]
    halves.append(struct.pack(">i", 100 << 20) + header(0, 9))
    with besieged.quiet() as expected:
        clients = [besieged.client(30) for _ in halves]
        for client, half in zip(clients, halves, strict=True):
            client.socket.sendall(half)
        clients[4].receive("ApiVersions", 0)
        for client in clients:
            expected.closed(client, "half a frame that has not moved for over 10 s")
