"""What `shmbroker.testing` makes go wrong, as a client sees it."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmbroker.testing import Broker, proxy
from shmbroker.wire import error_codes
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, produce_body

TOPIC = "t"


@pytest.fixture(scope="module")
def started() -> Iterator[Broker]:
    with Broker("--io-workers", "2", faults=True) as broker:
        broker.create_topic(TOPIC, partitions=2, retention_ms="-1")
        yield broker


@pytest.fixture
def broker(started: Broker) -> Iterator[Broker]:
    yield started
    started.calm()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(address_of_leader(broker)) as connected:
        yield connected


def address_of_leader(broker: Broker) -> str:
    """Of partition 0, as the broker's own answers name it."""
    with RawClient(broker.address) as client:
        found = client.ask("Metadata", 9, {"topics": [{"name": TOPIC}]})
    leader = found["topics"][0]["partitions"][0]["leader_id"]
    (row,) = (row for row in found["brokers"] if row["node_id"] == leader)
    return f"{row['host']}:{row['port']}"


def produced(client: RawClient, value: bytes = b"v") -> tuple[int, int]:
    row = client.produce(TOPIC, batch_now(value))
    return row["error_code"], row["base_offset"]


def test_answers_name_the_proxy_and_never_the_broker(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        rows = client.ask("Metadata", 9, {"topics": None})["brokers"]
        row = client.ask("FindCoordinator", 3, {"key": "g", "key_type": 0})
    own = {broker.port, broker.port + 1}
    ports = {row["port"] for row in rows}
    assert len(ports) == 2
    assert not ports & own
    assert int(broker.address.rpartition(":")[2]) in ports
    assert row["error_code"] or row["port"] in ports


def test_failed_requests_are_not_done_and_the_next_one_is(
    broker: Broker, client: RawClient
) -> None:
    _, before = produced(client)
    broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    broker.fail_next("produce", error_codes.CORRUPT_MESSAGE)
    assert [produced(client)[0] for _ in range(3)] == [6, 6, 2]
    assert produced(client) == (0, before + 1)


def test_failed_answer_keeps_the_order_of_the_requests(broker: Broker, client: RawClient) -> None:
    broker.delay("Produce", 50)
    broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    client.send("Produce", 9, produce_body(TOPIC, batch_now(b"v")))
    client.send("Metadata", 9, {"topics": [{"name": TOPIC}]})
    assert client.receive("Produce", 9)["responses"]
    topics = client.receive("Metadata", 9)["topics"]
    assert [topic["error_code"] for topic in topics] == [error_codes.LEADER_NOT_AVAILABLE]


def test_connection_ends_where_that_is_the_fault(broker: Broker, client: RawClient) -> None:
    broker.fail_next("Metadata", None)
    client.send("Metadata", 9, {"topics": None})
    assert client.is_closed_by_broker()
    with RawClient(broker.address) as again:
        assert again.ask("Metadata", 9, {"topics": None})["brokers"]


def test_connection_ends_where_the_answer_has_no_place_for_an_error(
    broker: Broker, client: RawClient
) -> None:
    broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    client.send("Metadata", 9, {"topics": None})
    assert client.is_closed_by_broker()


def test_unanswered_produce_that_fails_ends_the_connection(
    broker: Broker, client: RawClient
) -> None:
    broker.fail_next("Produce", "CORRUPT_MESSAGE")
    client.send("Produce", 9, produce_body(TOPIC, batch_now(b"v"), acks=0))
    assert client.is_closed_by_broker()


def test_unanswered_produce_passes(broker: Broker, client: RawClient) -> None:
    _, before = produced(client)
    client.send("Produce", 9, produce_body(TOPIC, batch_now(b"v"), acks=0))
    assert produced(client) == (0, before + 2)


def test_delayed_answer_comes_behind_one_that_was_asked_for_later(
    broker: Broker, client: RawClient
) -> None:
    came: list[str] = []
    with (
        broker.delay("Produce", 500),
        RawClient(broker.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        late = pool.submit(lambda: (produced(client)[0], came.append("produced")))
        other.ask("Metadata", 9, {"topics": None})
        came.append("told")
        assert late.result()[0] == 0
    assert came == ["told", "produced"]


def test_full_disk_refuses_what_is_produced_until_it_ends(
    broker: Broker, client: RawClient
) -> None:
    with broker.disk_full():
        assert produced(client)[0] == error_codes.KAFKA_STORAGE_ERROR
        assert client.ask("Metadata", 9, {"topics": None})["topics"]
    assert produced(client)[0] == 0


def test_calm_ends_everything(broker: Broker, client: RawClient) -> None:
    broker.disk_full()
    broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=9)
    broker.pause()
    broker.calm()
    assert produced(client)[0] == 0


def test_killed_process_is_replaced(broker: Broker) -> None:
    before = broker.children()["network-worker-1"]
    broker.kill("network-worker-1")
    assert broker.children().get("network-worker-1") != before


def test_paused_process_stands_still_until_the_end(broker: Broker) -> None:
    def state(pid: int) -> str:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]

    pid = broker.children()["io-worker-1"]
    with broker.pause("io-worker-1"):
        assert state(pid) == "T"
    assert state(pid) != "T"


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda broker: broker.fail_next("Prodce", 6), "Kafka has no API Prodce; did you mean"),
        (lambda broker: broker.fail_next("Produce", "NOT_LEADER"), "did you mean not_leader_or"),
        (lambda broker: broker.delay(4711, 1), "Kafka has no API 4711"),
    ],
)
def test_unknown_word_is_refused_with_the_nearest(broker: Broker, wrong: object, told: str) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=told):
        wrong(broker)


def test_process_that_is_not_there_is_refused_with_those_that_are(broker: Broker) -> None:
    with pytest.raises(LookupError, match=r"no process io-worker-9; there are .*io-worker-1"):
        broker.kill("io-worker-9")


@pytest.mark.parametrize("flags", [("--no-such-flag",), ("--io-workers", "none")])
def test_broker_that_does_not_start_leaves_no_directory(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises((RuntimeError, ValueError)):
        Broker(*flags)
    assert os.listdir(tmp_path) == []


def test_broker_whose_proxy_does_not_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def fail(ports: range) -> None:
        started.append(ports[0])
        raise OSError("no proxy")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(proxy, "Proxy", fail)
    with pytest.raises(OSError, match="no proxy"):
        Broker(faults=True)
    assert os.listdir(tmp_path) == []
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", started[0]))


def test_broker_without_a_proxy_says_how_to_get_one() -> None:
    with Broker() as broker, pytest.raises(RuntimeError, match="faults=True"):
        broker.disk_full()


def test_whole_family_that_was_killed_comes_back_with_its_records() -> None:
    with Broker(faults=True) as broker:
        broker.create_topic(TOPIC)
        with RawClient(broker.address) as client:
            assert produced(client) == (0, 0)
        address = broker.address
        broker.kill()
        broker.start()
        assert broker.address == address
        with RawClient(broker.address) as client:
            assert produced(client) == (0, 1)


def test_family_ends_with_the_process_that_started_it() -> None:
    program = (
        "import os; from shmbroker.testing import Broker; broker = Broker();"
        "print(broker.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    try:
        pidfd = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    with os.fdopen(pidfd):
        assert select.select([pidfd], [], [], 30)[0]
