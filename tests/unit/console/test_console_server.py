"""The HTTP side of the console: headers of answers, and requests that are none."""

import socket
from collections.abc import Iterator

import pytest

from shmbroker import clock
from shmbroker.console.server import BODY_MAX, HEADERS, REQUEST_S, ConsoleServer
from tests.support.waiting import wait_until
from tests.unit.console.test_api import CONSOLE


@pytest.fixture
def served() -> Iterator[ConsoleServer]:
    made = ConsoleServer(socket.create_server(("127.0.0.1", 0)), CONSOLE)
    made.start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: ConsoleServer, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(server.socket.getsockname(), 10) as connection:
        connection.sendall(raw)
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    return int(lines[0].split()[1]), dict(each.split(": ", 1) for each in lines[1:]), body


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /api/topic?topic=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (
            b"GET /?"
            + b"&".join(b"%d=1" % n for n in range(30))
            + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        (b"GET /static/../access.py HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"POST /api/write/produce HTTP/1.1\r\nHost: localhost\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 411),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            411,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (BODY_MAX + 1),
            413,
        ),
        (
            b"POST /api/write/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
            403,
        ),
    ],
)
def test_request_has_its_status(served: ConsoleServer, raw: bytes, status: int) -> None:
    assert ask(served, raw)[0] == status


@pytest.mark.parametrize("path", [b"/", b"/api/snapshot", b"/api/nothing", b"/static/app.js"])
def test_every_answer_has_the_headers(served: ConsoleServer, path: bytes) -> None:
    _, headers, _ = ask(served, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for name, value in HEADERS:
        assert headers[name] == value
    assert headers["Cache-Control"] in ("no-store", "no-cache")


def test_who_takes_too_long_to_ask_is_closed(served: ConsoleServer) -> None:
    with socket.create_connection(served.socket.getsockname(), 10) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: local")

        def is_closed() -> bool:
            served.end_overdue(clock.monotonic() + REQUEST_S + 1)
            slow.settimeout(0.01)
            try:
                return slow.recv(1) == b""
            except TimeoutError:
                return False

        wait_until(is_closed, "its end")


def test_who_asks_in_time_is_not_closed(served: ConsoleServer) -> None:
    served.end_overdue(clock.monotonic() + REQUEST_S + 1)
    assert ask(served, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200
