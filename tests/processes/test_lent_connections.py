"""Quiet connections are served by the I/O worker itself, and nobody sees where."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from shmbroker.gateway.connection import LENT_BYTES_MAX
from shmbroker.testing.broker import Broker
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body, produce_body
from tests.support.waiting import wait_until

TOPIC = "lent"


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets that a process has."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").rstrip("]"))
    return found


def served_end(client: socket.socket) -> str:
    """Inode of the broker's end of a connection."""
    here, there = (f"{address[1]:04X}" for address in (client.getsockname(), client.getpeername()))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *_rest, inode = line.split()[:10]
        if local.endswith(f":{there}") and remote.endswith(f":{here}"):
            return inode
    raise AssertionError("the connection has no other end")


def is_lent(broker: Broker, client: RawClient) -> bool:
    return served_end(client.socket) in sockets_of(broker.children()["io-worker-1"])


def become_quiet(broker: Broker, client: RawClient) -> None:
    def is_quiet() -> bool:
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
        return is_lent(broker, client)

    wait_until(is_quiet, "a connection to be lent", between=0.005)


def stays(broker: Broker, client: RawClient, serve: Callable[[], object]) -> None:
    """A lent connection still is when it was served: on a busy machine, in one of ten tries."""
    for _ in range(10):
        become_quiet(broker, client)
        serve()
        if is_lent(broker, client):
            return
    raise AssertionError("who is served comes home")


def test_a_quiet_connection_is_lent_and_comes_home_with_what_is_not_answered_there() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        become_quiet(broker, client)
        before = client.fetch(TOPIC, 0)["high_watermark"]
        assert client.produce(TOPIC, batch_now(b"2"))["base_offset"] == before
        assert client.ask("Metadata", 9, {"topics": []})["brokers"][0]["node_id"] == 1
        # It is answered at home, perhaps before its host has closed its descriptor.
        wait_until(lambda: not is_lent(broker, client), "the host to let go")
        assert client.produce(TOPIC, batch_now(b"3"))["base_offset"] == before + 1
        become_quiet(broker, client)
        assert broker.stop() == 0


def frames_of(topic: str, numbers: range) -> list[bytes]:
    """Produces with these correlation ids."""
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": batch_now(b"x")}]}]
    body = {"acks": 1, "timeout_ms": 1000, "topic_data": topics}
    encoded = codec.encode("ProduceRequest", 9, body)
    return [request_frame(0, 9, number, "much", encoded) for number in numbers]


def offsets_of(client: RawClient, numbers: range) -> list[int]:
    """The base offsets that Produces with these correlation ids are answered with."""
    offsets = []
    for number in numbers:
        answer = client.receive_frame()
        assert int.from_bytes(answer[:4], "big") == number
        found, _ = codec.decode("ProduceResponse", 9, answer, 5)
        [row] = found["responses"][0]["partition_responses"]
        assert row["error_code"] == 0
        offsets.append(row["base_offset"])
    return offsets


def send_many(client: RawClient, topic: str, numbers: range) -> list[int]:
    """So many Produces at once: the base offsets that are answered."""
    client.socket.sendall(b"".join(frames_of(topic, numbers)))
    return offsets_of(client, numbers)


def test_who_sends_many_small_batches_at_once_is_answered_in_order() -> None:
    """Also by a host that is too busy for it meanwhile."""
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        wait_until(
            lambda: send_many(client, TOPIC, range(64)) and is_lent(broker, client),
            "a connection with many in flight to be lent",
            between=0.005,
        )
        before = client.produce(TOPIC, batch_now(b"one"))["base_offset"] + 1
        for _ in range(20):
            numbers = range(1000)
            assert send_many(client, TOPIC, numbers) == [before + n for n in numbers]
            before += len(numbers)


def test_frames_that_come_in_pieces_are_put_together() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        random = Random(89)

        def serve() -> None:
            before = client.produce(TOPIC, batch_now(b"one"))["base_offset"] + 1
            for _ in range(30):
                numbers = range(200)
                frames = memoryview(b"".join(frames_of(TOPIC, numbers)))
                while frames:
                    size = random.choice((1, 3, 50, 1000, 20_000))
                    client.socket.sendall(frames[:size])
                    frames = frames[size:]
                assert offsets_of(client, numbers) == [before + n for n in numbers]
                before += len(numbers)

        stays(broker, client, serve)


def test_large_batches_are_appended_there_and_those_who_wait_get_them() -> None:
    with (
        Broker() as broker,
        RawClient(broker.address) as client,
        RawClient(broker.address) as reader,
    ):
        client.create_topic(TOPIC)
        random = Random(95)

        def serve() -> None:
            end = client.produce(TOPIC, batch_now(b"one"))["base_offset"] + 1
            for number in range(30):
                value = random.randbytes(random.choice((10, 40_000, 300_000, 1_000_000)))
                reader.send("Fetch", 12, fetch_body(TOPIC, end, 0, 10_000))
                answer = client.produce(TOPIC, batch_now(value), acks=(1, -1)[number % 2])
                assert (answer["error_code"], answer["base_offset"]) == (0, end)
                got = reader.receive("Fetch", 12)["responses"][0]["partitions"][0]
                assert got["high_watermark"] == end + 1 and value in bytes(got["records"])
                end += 1

        stays(broker, client, serve)


def test_who_waits_for_small_batches_gets_them_be_they_guests_or_not() -> None:
    """A reader without a session, one with, and one that names its rows in a way of its own each
    time. None of them waits for its time-out, which is longer than that of its socket."""
    with Broker() as broker, contextlib.ExitStack() as stack:
        client, *readers = (stack.enter_context(RawClient(broker.address)) for _ in range(4))
        client.create_topic(TOPIC)
        session = dict.fromkeys(("session_id", "session_epoch"), 0)

        def bodies(end: int, number: int) -> list[dict[str, Any]]:
            plain = fetch_body(TOPIC, end, 0, 60_000)
            return [plain, plain | session, fetch_body(TOPIC, end, 0, 60_000 + number)]

        def serve() -> None:
            end = client.produce(TOPIC, batch_now(b"one"))["base_offset"] + 1
            for number in range(60):
                for reader, body in zip(readers, bodies(end, number), strict=True):
                    reader.send("Fetch", 12, body)
                count, acks = number % 4 + 1, (1, -1)[number % 2]
                for _ in range(count):
                    client.send("Produce", 9, produce_body(TOPIC, batch_now(b"small"), acks=acks))
                told = []
                for reader in readers:
                    answer = reader.receive("Fetch", 12)
                    if reader is readers[1]:
                        session["session_id"] = answer["session_id"]
                        session["session_epoch"] += 1
                    [topic] = answer["responses"]
                    told.append(topic["partitions"][0]["records"])
                assert all(b"small" in bytes(records) for records in told)
                for _ in range(count):
                    [topic] = client.receive("Produce", 9)["responses"]
                    assert topic["partition_responses"][0]["base_offset"] == end
                    end += 1

        stays(broker, client, serve)


def test_batches_that_take_very_long_come_home() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, max_message_bytes=str(8 << 20))
        become_quiet(broker, client)

        def has_gone() -> bool:
            assert client.produce(TOPIC, batch_now(bytes(LENT_BYTES_MAX)))["error_code"] == 0
            return not is_lent(broker, client)

        wait_until(has_gone, "who sends very large batches to come home")


def test_who_takes_turns_with_partitions_goes_the_straight_way_with_each() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, 3)
        ends = [0, 0, 0]

        def serve() -> None:
            for turn in range(30):
                partition = turn % 3
                answer = client.produce(TOPIC, batch_now(b"turn"), partition=partition)
                assert answer["error_code"] == 0
                assert partition == 0 or answer["base_offset"] == ends[partition]
                ends[partition] = answer["base_offset"] + 1

        stays(broker, client, serve)


def test_a_guest_is_told_which_other_broker_leads() -> None:
    with Broker("--io-workers", "2") as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, 2)

        def leaders() -> dict[int, int]:
            answer = client.ask("Metadata", 9, {"topics": [{"name": TOPIC}]})
            rows = answer["topics"][0]["partitions"]
            return {row["partition_index"]: row["leader_id"] for row in rows}

        wait_until(lambda: sorted(leaders().values()) == [1, 2], "both brokers to lead")
        own, other = sorted((0, 1), key=lambda index: leaders()[index])

        def is_away() -> bool:
            answer = client.produce(TOPIC, batch_now(b"1"), own)
            return answer["error_code"] == 0 and is_lent(broker, client)

        wait_until(is_away, "a connection to be lent", between=0.005)
        body = produce_body(TOPIC, batch_now(b"2"), other)
        answer = client.ask("Produce", 10, body)
        [row] = answer["responses"][0]["partition_responses"]
        assert (row["error_code"], row["current_leader"]["leader_id"]) == (6, 2)
        assert [endpoint["node_id"] for endpoint in answer["node_endpoints"]] == [2]
        assert is_lent(broker, client)


def coordinator_error(client: RawClient) -> int:
    answer = client.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["lent"]})
    return int(answer["coordinators"][0]["error_code"])


def commit_error(client: RawClient, offset: int) -> int:
    row = {"partition_index": 0, "committed_offset": offset}
    body = {
        "group_id": "lent",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }
    answer = client.ask("OffsetCommit", 9, body)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def committed(client: RawClient) -> int:
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    groups = [{"group_id": "lent", "member_epoch": -1, "topics": topics}]
    answer = client.ask("OffsetFetch", 9, {"groups": groups, "require_stable": False})
    [row] = answer["groups"][0]["topics"][0]["partitions"]
    assert row["error_code"] == 0
    return int(row["committed_offset"])


def test_offsets_are_committed_and_fetched_the_straight_way() -> None:
    with (
        Broker() as broker,
        RawClient(broker.address) as client,
        RawClient(broker.address) as other,
    ):
        client.create_topic(TOPIC)
        wait_until(lambda: coordinator_error(client) == 0, "a coordinator")
        wait_until(lambda: commit_error(client, 0) == 0, "a commit")

        offsets = count()

        def are_away() -> bool:
            for offset in islice(offsets, 500):
                assert commit_error(client, offset) == 0
                assert committed(client) == committed(other) == offset
            return is_lent(broker, client) and is_lent(broker, other)

        wait_until(are_away, "connections that ask for offsets to be lent, and stay")


def test_a_guest_between_two_requests_outlives_an_io_worker() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        become_quiet(broker, client)
        before = broker.children()["io-worker-1"]
        os.kill(before, signal.SIGKILL)
        codes = set()

        def is_appended() -> bool:
            codes.add(client.produce(TOPIC, batch_now(b"again"))["error_code"])
            return 0 in codes

        wait_until(is_appended, "an append")
        assert codes <= {0, 6}
        assert broker.children()["io-worker-1"] != before
        become_quiet(broker, client)


def test_the_guests_of_a_network_worker_end_with_it() -> None:
    with Broker("--network-workers", "1") as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        become_quiet(broker, client)
        before = broker.children()["network-worker-1"]
        os.kill(before, signal.SIGKILL)
        assert client.socket.recv(1) == b""
        wait_until(
            lambda: broker.children().get("network-worker-1", before) != before, "a successor"
        )
        with RawClient(broker.address) as other:
            become_quiet(broker, other)
        assert broker.stop() == 0


def test_none_is_lent_where_settings_say_so() -> None:
    flags = ("--set", "shmbroker.lend.connections=false")
    lending, refusing = Broker(), Broker(*flags)
    with (
        lending,
        refusing,
        RawClient(lending.address) as quiet,
        RawClient(refusing.address) as client,
    ):
        for each in (quiet, client):
            each.create_topic(TOPIC)

        def both() -> bool:
            for _ in range(10):
                for one in (quiet, client):
                    assert one.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
            return is_lent(lending, quiet)

        wait_until(both, "the other family to lend its connection", between=0.005)
        assert not is_lent(refusing, client)
