"""A broker with a console, records of all kinds in it, and a browser to look at it with.

The browser is Debian's headless Chromium, driven by playwright; `browser` skips with the reason
where one of them is missing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.console.access import TOKEN_HEADER
from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import Broker, free_ports
from tests.support.raw_client import RawClient

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ANSWER_S = 20
HOSTILE = b"<img src=x onerror=\"document.title='taken'\">"
"""Were it taken for markup, it would run."""


class Shown(Broker):
    """A broker with a console."""

    def __init__(self, *flags: str, data: Path | None = None) -> None:
        self.console_port = free_ports(1)
        super().__init__("--console", f"127.0.0.1:{self.console_port}", *flags, data=data)

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.console_port}/"

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of GET, or of POST if there is a body."""
        connection = HTTPConnection("127.0.0.1", self.console_port, timeout=ANSWER_S)
        try:
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def change(self, path: str, body: object) -> tuple[int, Any]:
        """A change as the page asks for it."""
        _, session = self.ask("/api/session")
        headers = {
            "Origin": self.page.rstrip("/"),
            "Content-Type": "application/json",
            TOKEN_HEADER: session["token"],
        }
        return self.ask(f"/api/write/{path}", body, **headers)

    def events(
        self, path: str, until: str, on_progress: Callable[[Any], None] = lambda _: None
    ) -> list[tuple[str, Any]]:
        """Server-sent events, up to the first of this name."""
        connection = HTTPConnection("127.0.0.1", self.console_port, timeout=ANSWER_S)
        found: list[tuple[str, Any]] = []
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            name = ""
            for line in answer:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data":
                    found.append((name, json.loads(rest)))
                    if name == until:
                        break
                    if name == "progress":
                        on_progress(found[-1][1])
        finally:
            connection.close()
        return found


def fill(client: RawClient, topic: str) -> None:
    """300 records in three partitions: JSON with keys, and of the other kinds some."""
    client.create_topic(topic, 3)
    now = clock.now_ms()
    for partition in range(3):
        records: list[tuple[int, bytes | None, bytes, list[tuple[bytes, bytes | None]]]] = [
            (
                now - 60_000 + 3 * number + partition,
                b"sensor-%d" % partition,
                json.dumps(
                    {"id": 12345678901234567890, "reading": number, "unit": "°C", "ok": True},
                    ensure_ascii=False,
                ).encode(),
                [(b"trace", b"%032x" % number)],
            )
            for number in range(98)
        ]
        records += [
            (now - 50_000, HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)]),
            (now - 49_000, None, bytes(range(256)), []),
        ]
        batch = encode_batch(records, codec=partition)
        assert client.produce(topic, batch, partition)["error_code"] == 0


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield launched
        finally:
            launched.close()
