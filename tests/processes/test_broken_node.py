"""One node of three is broken, emptied or gone: the other two serve, say so, and take it back."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.processes.supervisor import EXIT_CONFIG
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, leader_of, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

FLAGS = ("--replicas", "3", "--controllers", "3")
TOPIC = "three"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of three brokers that were killed, with a topic on all of them."""
    data = tmp_path_factory.mktemp("made")
    with Broker(*FLAGS, data=data) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, 3)
        produce(broker.address, b"before")
        broker.kill()
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data", ignore=shutil.ignore_patterns("*.sock")))


def produce(address: str, value: bytes) -> None:
    """One record into each partition, acknowledged by a majority."""
    for partition in range(3):
        leader = wait_until(lambda partition=partition: leader_of(address, TOPIC, partition), "one")
        with RawClient(leader, 30) as client:
            answer = client.produce(TOPIC, batch_now(value), partition=partition, acks=-1)
            assert answer["error_code"] == 0, answer


def written(data: Path) -> dict[str, bytes]:
    """All that lies in the nodes' directories."""
    return {
        str(path.relative_to(data)): path.read_bytes() if path.is_file() else b""
        for path in data.rglob("*")
        if path.parts[len(data.parts)].startswith("node-")
    }


def assert_refused(data: Path, *flags: str) -> str:
    """A start that ends with a configuration fault and leaves the nodes as they were: its words."""
    before = written(data)
    command = [sys.executable, "-m", "shmbroker", "serve", "--data", str(data), "--port", "0"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (EXIT_CONFIG, 1), done.stderr
    assert written(data) == before
    return done.stderr


def test_starts_that_are_refused_change_nothing(data: Path, tmp_path: Path) -> None:
    said = assert_refused(data, "--replicas", "1")
    assert "--io-workers 3" in said
    with Broker(data=tmp_path / "other", port=0) as taken:
        # Another number of controllers, and then no port.
        flags = ("--io-workers", "3", "--controllers", "1", "--port", str(taken.port))
        assert "in use" in assert_refused(data, *flags)
        assert taken.stop() == 0
    shutil.rmtree(data / "node-2")
    shutil.copytree(tmp_path / "other" / "node-1", data / "node-2")
    (data / "node-1" / META_PROPERTIES).unlink()
    said = assert_refused(data, *FLAGS)
    for number in (2, 3):
        (line,) = (
            line
            for line in (data / f"node-{number}" / META_PROPERTIES).read_text().splitlines()
            if line.startswith("cluster.id=")
        )
        assert line.removeprefix("cluster.id=") in said


def test_emptied_node_joins_its_cluster_again(data: Path) -> None:
    identity = (data / "node-2" / META_PROPERTIES).read_text()
    (cluster,) = (line for line in identity.splitlines() if line.startswith("cluster.id="))
    shutil.rmtree(data / "node-1")
    with Broker(*FLAGS, data=data) as broker:
        assert cluster in (data / "node-1" / META_PROPERTIES).read_text()
        assert "controller 1 had no metadata" in broker.log
        produce(broker.address, b"after")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """What systemd was told so far, each time it is called."""
    address = tmp_path / "notify"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))

        def told() -> str:
            try:
                while True:
                    heard.append(manager.recv(4096).decode())
            except BlockingIOError:
                return "\n".join(heard)

        yield told


def test_broken_node_is_said_and_tried_again_while_the_others_serve(
    data: Path, told: Callable[[], str]
) -> None:
    node = data / "node-2"
    whole = (node / META_PROPERTIES).read_text()
    (node / META_PROPERTIES).write_text("nothing that helps\n")
    with Broker(*FLAGS, data=data) as broker:
        (ready,) = (line for line in broker.log.splitlines() if "ready on" in line)
        assert "(broker 1)" in ready
        assert "(broker 2)" not in ready
        assert "(broker 3)" in ready
        for title in ("io-worker-2", "controller-2"):
            (first, *_) = (line for line in broker.log.splitlines() if f"{title} can't" in line)
            assert str(node / META_PROPERTIES) in first, "the reason is in the line"
            assert f"without {title}: {node}" in ready
        with RawClient(broker.address) as client:
            body = {"topics": [], "allow_auto_topic_creation": False}
            brokers = client.ask("Metadata", 9, body)["brokers"]
        assert [each["node_id"] for each in brokers] == [1, 3]
        lacking = ready.partition("; without ")[2]
        wait_until(lambda: lacking in told().partition("READY=1")[2], "STATUS= with the same")
        command = [sys.executable, "-m", "shmbroker", "status", "-b", broker.address]
        status = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "1 controller is not there (2)" in status.stdout + status.stderr
        assert "1 broker is fenced (2)" in status.stdout + status.stderr
        produce(broker.address, b"without 2")
        (node / META_PROPERTIES).write_text(whole)
        for title in ("io-worker-2", "controller-2"):
            wait_until(lambda title=title: f"{title} could boot now" in broker.log, title)

        # And now it goes while everybody runs.
        node.rename(data / "elsewhere")
        os.kill(broker.children()["controller-2"], signal.SIGKILL)
        gone = f"{node / META_PROPERTIES} is missing"
        wait_until(lambda: broker.log.count(f"can't boot, next try in 2 s: {gone}") == 1, "a try")
        assert "Traceback" not in broker.log
        with RawClient(broker.address, 30) as client:
            client.create_topic("later")
        (data / "elsewhere").rename(node)
        wait_until(lambda: broker.log.count("controller-2 could boot now") == 2, "controller 2")
        produce(broker.address, b"all three")
        for partition in range(3):
            leader = leader_of(broker.address, TOPIC, partition)
            with RawClient(leader) as client:
                assert read_values(client, TOPIC, partition) == [
                    b"before",
                    b"without 2",
                    b"all three",
                ]
        assert broker.stop() == 0
