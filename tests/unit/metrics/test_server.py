"""The HTTP side: paths, statuses, and clients that hold on."""

import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from shmbroker.metrics.server import THREADS_MAX, MetricsServer, Pages
from tests.support.waiting import wait_until


class Served:
    """A server on a port of its own."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.accepts: list[str] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = self.listening.getsockname()
        self.server = MetricsServer(self.listening, Pages(self.metrics, lambda: self.reasons))
        self.server.start()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepts.append(accept)
        return b"a 1\n", "text/fake"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        connection = HTTPConnection(*self.address, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_paths_are_answered(served: Served) -> None:
    assert served.ask("/metrics?x=1", Accept="a/b") == (200, "text/fake", b"a 1\n")
    assert served.accepts == ["a/b"]
    assert served.ask("/healthz")[::2] == (200, b"ok\n")
    assert served.ask("/readyz")[::2] == (200, b"ready\n")
    served.reasons = ["this", "that"]
    assert served.ask("/readyz")[::2] == (503, b"this\nthat\n")
    assert served.ask("/etc/passwd")[0] == 404
    assert served.ask("/metrics", "HEAD") == (200, "text/fake", b"")
    assert served.ask("/metrics", "POST")[0] == 501


def test_clients_that_say_nothing_hold_up_as_many_as_there_are_threads(served: Served) -> None:
    silent = [socket.create_connection(served.address) for _ in range(THREADS_MAX)]
    late = socket.create_connection(served.address)
    late.settimeout(10)
    assert late.recv(1) == b"", "it is closed at once"
    silent.pop().close()

    def answers() -> bool:
        try:
            return served.ask("/healthz")[0] == 200
        except OSError:
            return False

    wait_until(answers, "a thread that is free again")
    for each in (*silent, late):
        each.close()


def test_a_thread_that_can_not_be_started_takes_no_place(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def start(thread: threading.Thread) -> None:
        tried.append(thread)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as starved:
        starved.setattr(threading.Thread, "start", start)
        for _ in range(THREADS_MAX + 1):
            with socket.create_connection(served.address) as refused:
                refused.settimeout(10)
                assert refused.recv(1) == b"", "it is closed at once"
    assert len(tried) == THREADS_MAX + 1
    assert served.ask("/healthz")[0] == 200
