"""Ports that somebody else holds open: connections wait during a restart, and none is refused."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shmbroker.processes.supervisor import EXIT_CONFIG
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient

TOPIC = "waiting"
LAUNCH = """
import os, sys
passed, *words = sys.argv[1:]
passed = [os.dup2(int(fd), 100 + at) for at, fd in enumerate(passed.split(","))]
for at, fd in enumerate(passed):
    os.dup2(fd, 3 + at)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(passed))}
os.execv(sys.executable, [sys.executable, "-m", "shmbroker", "serve", *words])
"""


class Manager:
    """Holds ports, and starts families that it passes them to."""

    def __init__(self, count: int) -> None:
        self.ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]

    def start(self, data: Path, *words: str) -> subprocess.Popen[str]:
        fds = [port.fileno() for port in self.ports]
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCH, ",".join(map(str, fds)), "--data", str(data), *words],
            pass_fds=fds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def address(self, which: int) -> str:
        host, port = self.ports[which].getsockname()
        return f"{host}:{port}"


@pytest.mark.parametrize("replicas", [1, 2])
def test_connections_wait_for_the_next_family(tmp_path: Path, replicas: int) -> None:
    manager = Manager(replicas)
    first = manager.start(tmp_path, "--replicas", str(replicas))
    assert first.stdout is not None
    ready = first.stdout.readline()
    for number in range(replicas):
        assert f"{manager.address(number)} (broker {number + 1})" in ready
    with RawClient(manager.address(0)) as client:
        client.create_topic(TOPIC)
    first.terminate()
    first.communicate(timeout=60)
    assert first.returncode == 0
    waiting = [RawClient(manager.address(number)) for number in range(replicas)]
    second = manager.start(tmp_path, "--replicas", str(replicas))
    (topic,) = waiting[-1].ask("Metadata", 9, {"topics": [{"name": TOPIC}]})["topics"]
    leader = waiting[topic["partitions"][0]["leader_id"] - 1]
    assert leader.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
    assert read_values(leader, TOPIC, 0) == [b"1"]
    for client in waiting:
        client.close()
    second.terminate()
    second.communicate(timeout=60)


def test_port_that_contradicts_the_settings_is_refused(tmp_path: Path) -> None:
    manager = Manager(1)
    refused = manager.start(tmp_path, "--port", "1")
    said, _ = refused.communicate(timeout=60)
    assert refused.returncode == EXIT_CONFIG
    assert "systemctl edit shmbroker.socket" in said
