"""The HTTP side: /metrics, /healthz, /readyz.

    /metrics   every series, as Prometheus text or OpenMetrics, whichever is asked for
    /healthz   200 while the family lives: this process ends with the supervisor
    /readyz    200 when it is ready to serve; else 503, and a line for each reason

Rules of this file:
* A thread for each request, THREADS_MAX of them; who comes then is closed at once. A client that
  neither asks nor reads for CLIENT_S is closed.
* Requests are read as far as http.server bounds them, and nothing of them goes into an answer.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

logger = logging.getLogger(__name__)

THREADS_MAX = 8
CLIENT_S = 10.0
TEXT = "text/plain; charset=utf-8"
Accepted = socket.socket | tuple[bytes, socket.socket]
"""An accepted connection, as socketserver has it: a datagram is the second; there are none."""
_ROOT = b"""shmbroker
/metrics  series for Prometheus
/healthz  200 while it lives
/readyz   200 while it is ready to serve
"""


class Pages(NamedTuple):
    """What the paths show."""

    metrics: Callable[[str], tuple[bytes, str]]
    """The Accept header to text and content type."""
    reasons_not_ready: Callable[[], list[str]]


class BoundedServer(ThreadingHTTPServer):
    """Answers on a socket that listens already, with so many threads."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listening: socket.socket, handler: type[BoundedHandler], threads_max: int
    ) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._places = threading.BoundedSemaphore(threads_max)

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()

    def process_request(self, request: Accepted, client_address: object) -> None:
        """Serve a request in a thread, if there is one left, else close its connection."""
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # the kernel has no thread for it
                self._places.release()
                raise
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Accepted, client_address: object) -> None:
        """The thread's life."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is nobody's fault; the rest has its line in the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("a request over HTTP failed")


class BoundedHandler(BaseHTTPRequestHandler):
    """One connection, of one request."""

    server_version = "shmbroker"
    sys_version = ""
    timeout = CLIENT_S

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: a line for each request is not wanted."""


class MetricsServer(BoundedServer):
    """Shows these pages."""

    def __init__(self, listening: socket.socket, pages: Pages) -> None:
        super().__init__(listening, MetricsHandler, THREADS_MAX)
        self.pages = pages


class MetricsHandler(BoundedHandler):
    """One connection."""

    server: MetricsServer

    def do_GET(self) -> None:
        """Answer, or 404."""
        path = self.path.partition("?")[0]
        pages = self.server.pages
        if path == "/metrics":
            self._send(200, *pages.metrics(self.headers.get("Accept", "")))
        elif path == "/healthz":
            self._send(200, b"ok\n", TEXT)
        elif path == "/readyz":
            reasons = pages.reasons_not_ready()
            text = "\n".join(reasons or ["ready"]) + "\n"
            self._send(503 if reasons else 200, text.encode(), TEXT)
        elif path == "/":
            self._send(200, _ROOT, TEXT)
        else:
            self._send(404, b"not found\n", TEXT)

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
