"""The HTTP side of the console: bytes to requests, answers and events to bytes.

Rules of this file:
* A thread for each connection, THREADS_MAX of them, one request each; who comes then is closed at
  once. A request has to be there within REQUEST_S, its body has BODY_MAX bytes at most, and a
  client that does not read for CLIENT_S is closed.
* Every answer has HEADERS: the page runs no script and loads no style but its own files, nobody
  frames it, and no text can become markup (Trusted Types).
* What a request is for, and whether it may, is `api` and `access`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from shmbroker import clock
from shmbroker.console.access import HttpRequest
from shmbroker.console.answers import EventStream, HttpAnswer, refused
from shmbroker.console.api import Console
from shmbroker.metrics.server import Accepted, BoundedHandler, BoundedServer

THREADS_MAX = 32
REQUEST_S = 10.0
BODY_MAX = 3 << 20
PARAMETERS_MAX = 20
STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def page_files(root: Path = STATIC) -> dict[str, HttpAnswer]:
    """The files of the page by their paths; each is read once, here."""
    found = {}
    for file in sorted(root.iterdir()):
        if file.suffix not in TYPES:
            continue
        body = file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        headers = (("ETag", tag), ("Cache-Control", "no-cache"))
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        found[path] = HttpAnswer(200, TYPES[file.suffix], body, headers)
    return found


class ConsoleServer(BoundedServer):
    """Answers on a socket that listens already."""

    def __init__(self, listening: socket.socket, console: Console) -> None:
        super().__init__(listening, ConsoleHandler, THREADS_MAX)
        self.console = console
        self._waiting: dict[Accepted, float] = {}
        self._waiting_lock = threading.Lock()

    def process_request_thread(self, request: Accepted, client_address: object) -> None:
        """The thread's life; its request has REQUEST_S to come."""
        with self._waiting_lock:
            self._waiting[request] = clock.monotonic() + REQUEST_S
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)

    def has_asked(self, request: Accepted) -> None:
        """The whole request is there."""
        with self._waiting_lock:
            self._waiting.pop(request, None)

    def end_overdue(self, now_s: float) -> None:
        """Close who has taken too long to ask; to be called now and then."""
        with self._waiting_lock:
            late = [request for request, until_s in self._waiting.items() if now_s > until_s]
        for request in late:
            assert isinstance(request, socket.socket)
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has gone by itself


class ConsoleHandler(BoundedHandler):
    """One connection."""

    server: ConsoleServer

    def do_GET(self) -> None:
        """Answer."""
        self._answer(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Read the body, then answer."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self._send(refused(411, "the length of the body is missing"))
        elif int(length) > BODY_MAX:
            self._send(refused(413, f"the body has more than {BODY_MAX} bytes"))
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.server.has_asked(self.request)
        request = self._parse(body)
        if request is None:
            self._send(refused(400, "this is no request"))
            return
        answer = self.server.console.answer(request)
        if isinstance(answer, HttpAnswer):
            self._send(answer)
        else:
            self._stream(answer)

    def _parse(self, body: bytes) -> HttpRequest | None:
        path, _, query = self.path.partition("?")
        if not path.startswith("/"):
            return None
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX, errors="strict"
            )
            path = unquote(path, errors="strict")
        except ValueError:
            return None
        headers = {
            name.lower(): ", ".join(self.headers.get_all(name, ())) for name in set(self.headers)
        }
        return HttpRequest(self.command, path, dict(pairs), headers, body)

    def _head(self, status: int, content_type: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        for name, value in (*HEADERS, *more):
            self.send_header(name, value)

    def _send(self, answer: HttpAnswer) -> None:
        more = answer.headers or (("Cache-Control", "no-store"),)
        self._head(answer.status, answer.content_type, *more)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _stream(self, stream: EventStream) -> None:
        try:
            self._head(200, "text/event-stream", ("Cache-Control", "no-store"))
            self.end_headers()
            if self.command != "HEAD":
                self._send_events(stream.events)
        finally:
            stream.close()

    def _send_events(self, events: Iterator[tuple[str, object]]) -> None:
        for name, value in events:
            text = json.dumps(value, separators=(",", ":"))
            self.wfile.write(f"event: {name}\ndata: {text}\n\n".encode())
        self.wfile.write(b"event: end\ndata: {}\n\n")
