"""What paths answer, hostile requests among them; the family is made of memory alone."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.console.access import TOKEN_HEADER, Access, HttpRequest
from shmbroker.console.answers import EventStream, HttpAnswer
from shmbroker.console.api import Console
from shmbroker.console.record_pages import STREAMS_MAX
from shmbroker.console.server import HEADERS, page_files
from shmbroker.metadata.image import MetadataImage
from shmbroker.observe.about import About
from shmbroker.observe.snapshot import Group, Groups, Lag, Partition, Replica, Snapshot, Topic
from shmbroker.settings.broker_config import BrokerConfig
from tests.support.examples import examples
from tests.unit.console.test_history import image, partition
from tests.unit.observe import families

TOKEN = "t"
HOSTILE = "<img src=x onerror=alert(1)>"
NOWHERE = dict.fromkeys(families.DIRECTORIES, ("127.0.0.1", 1))


class Memory:
    """Looks at a family of memory, with one topic and one group whose names are hostile."""

    def __init__(self) -> None:
        self.about = About(
            "9.9", "c", "/nowhere", 1, 1.0, 1, [], [], families.DIRECTORIES, NOWHERE, None
        )
        rows = [
            Partition(0, [Replica(1, 9, 0, 100)], [1], 1, 0, False, 2, 9, 100, 1, 5),
            Partition(
                1, [Replica(1, 9, 0, 1), Replica(2, 3, 6, 1)], [1], 1, 0, False, 0, 9, 1, 1, 0
            ),
            Partition(
                2, [Replica(2, None, None, None)], [], -1, 0, False, None, None, None, None, 0
            ),
        ]
        self.topics = [Topic("t", "id", False, 1, rows), Topic(HOSTILE, "id2", False, 1, [])]
        lags = [Lag("t", 0, 4, 9), Lag("gone", 0, 4, None)]
        self.groups = Groups(0.5, 0, [Group(HOSTILE, "classic", "empty", 0, 1, lags)])

    @property
    def image(self) -> MetadataImage:
        return image(t=partition(1, 1))

    def follow(self) -> None:
        pass

    def look(self, are_groups_wanted: bool = True) -> Snapshot:
        found = families.snapshot(families.family(), None, self.topics, self.groups)
        return replace(found, reasons_not_ready=("io-worker-1 is silent",))


CONSOLE = Console(
    Memory(),
    BrokerConfig.load(assignments=["log.retention.hours=7"]),
    Access([], TOKEN, True),
    page_files(),
)


def ask(path: str, **query: str) -> tuple[int, Any]:
    answer = CONSOLE.answer(HttpRequest("GET", path, query, {"host": "localhost"}))
    assert isinstance(answer, HttpAnswer)
    assert answer.content_type == "application/json"
    assert b"<" not in answer.body or answer.body.isascii()
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "query", "status", "reason"),
    [
        ("/api/nothing", {}, 404, "no such page"),
        ("/etc/passwd", {}, 404, "no such page"),
        ("/static/../access.py", {}, 404, "no such page"),
        ("/static/%2e%2e/access.py", {}, 404, "no such page"),
        ("/api/topic", {}, 400, "1 to 1000 characters"),
        ("/api/topic", {"topic": "x" * 1001}, 400, "1 to 1000 characters"),
        ("/api/topic", {"topic": "nowhere"}, 400, "there is no topic nowhere"),
        ("/api/group", {"name": "nobody"}, 404, "there is no group nobody"),
        ("/api/messages", {"topic": "t", "partition": "-1"}, 400, "partition is a number"),
        ("/api/messages", {"topic": "t", "partition": "٣"}, 400, "partition is a number"),
        ("/api/messages", {"topic": "t", "count": "9" * 20}, 400, "count is a number"),
        ("/api/messages", {"topic": "t", "from": "x"}, 400, "from is"),
        ("/api/messages", {"topic": "t", "at": "0:x"}, 400, "0:x is not PARTITION:OFFSET"),
        ("/api/messages", {"topic": "t", "at": "0:-1"}, 400, "is not PARTITION:OFFSET"),
        ("/api/messages", {"topic": "t", "time": "now"}, 400, "time is a number"),
        ("/api/message", {"topic": "t", "partition": "1"}, 400, "by partition and offset"),
        ("/api/search", {"topic": "t"}, 400, "text has 1 to"),
        ("/api/search", {"topic": "t", "text": "x", "in": "all"}, 400, "in is one of"),
        ("/api/search", {"topic": "t", "text": "xyz", "hex": "1"}, 400, "no bytes in hex"),
        ("/api/messages", {"topic": "t"}, 502, "No broker at"),
        ("/api/tail", {"topic": "t"}, 502, "No broker at"),
        ("/api/settings", {"topic": "nowhere"}, 404, "there is no topic"),
        ("/api/settings", {"broker": "9"}, 404, "there is no broker 9"),
    ],
)
def test_what_can_not_be_answered_is_told(
    path: str, query: dict[str, str], status: int, reason: str
) -> None:
    got, body = ask(path, **query)
    assert got == status
    assert reason in body["error"]


def test_streams_that_do_not_open_are_not_counted() -> None:
    for _ in range(3 * STREAMS_MAX):
        assert ask("/api/tail", topic="t")[0] == 502


def test_streams_are_counted_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        partitions = (0,)

        def tail(self, text: bytes) -> Iterator[Any]:
            yield from ()

        def close(self) -> None:
            pass

    monkeypatch.setattr(CONSOLE.records, "open", lambda _request: Quiet())
    request = HttpRequest("GET", "/api/tail", {"topic": "t"}, {"host": "localhost"})
    streams = [CONSOLE.answer(request) for _ in range(STREAMS_MAX)]
    assert all(isinstance(each, EventStream) for each in streams)
    assert ask("/api/tail", topic="t")[0] == 503
    for stream in streams:
        assert isinstance(stream, EventStream)
        assert list(stream.events) == [("opened", {"partitions": 1})]
        stream.close()
    assert isinstance(CONSOLE.answer(request), EventStream)


def test_snapshot_sums_topics_up() -> None:
    status, found = ask("/api/snapshot")
    assert status == 200
    topic = found["topics"][0]
    assert (topic["records"], topic["without_leader"], topic["under_replicated"]) == (18, 1, 1)
    assert found["topics"][1]["name"] == HOSTILE
    assert found["lag"] == 5
    assert found["reasons_not_ready"] == ["io-worker-1 is silent"]
    assert {each["title"] for each in found["processes"]} >= {"supervisor", "io-worker-1"}


def test_topic_groups_and_faults() -> None:
    _, topic = ask("/api/topic", topic="t")
    assert [each["end_offset"] for each in topic["partitions"]] == [9, 9, None]
    assert topic["groups"] == [HOSTILE]
    _, groups = ask("/api/groups")
    (group,) = groups["groups"]
    assert (group["name"], group["lag"]) == (HOSTILE, 5)
    assert group["history"][-1][1] == 5
    _, faults = ask("/api/faults")
    wrong = {each["partition"]: each["wrong"] for each in faults["partitions"]}
    assert wrong == {1: "a replica is not in sync", 2: "no leader"}


def test_settings_say_where_they_are_from() -> None:
    _, found = ask("/api/settings", topic="t")
    rows = {each["name"]: each for each in found["settings"]}
    assert rows["retention.ms"]["from"] == "file or flag"
    assert rows["retention.ms"]["value"] == str(7 * 3600 * 1000)
    assert rows["segment.bytes"]["from"] == "default"
    assert "segment is rolled" in rows["segment.bytes"]["documentation"]
    _, found = ask("/api/settings", broker="2")
    rows = {each["name"]: each for each in found["settings"]}
    assert rows["broker.id"]["value"] == "2"
    assert not rows["shmbroker.console"]["is_dynamic"]


def write(path: str, body: object, raw: bytes | None = None) -> tuple[int, Any]:
    headers = {
        "host": "localhost",
        "origin": "http://localhost",
        "content-type": "application/json",
        TOKEN_HEADER: TOKEN,
    }
    data = json.dumps(body).encode() if raw is None else raw
    answer = CONSOLE.answer(HttpRequest("POST", f"/api/write/{path}", {}, headers, data))
    assert isinstance(answer, HttpAnswer)
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("produce", [], "no JSON object"),
        ("produce", {}, "topic is missing"),
        ("produce", {"topic": 1, "confirm": 1}, "topic is missing"),
        ("produce", {"topic": "t"}, "confirm must repeat topic"),
        ("produce", {"topic": "t", "confirm": "u"}, "confirm must repeat topic"),
        ("produce", {"topic": "t", "confirm": "t", "key": 1}, "key is text or null"),
        ("produce", {"topic": "t", "confirm": "t", "key": "\ud800"}, "key is no text"),
        (
            "produce",
            {"topic": "t", "confirm": "t", "value": "x" * (1 << 21)},
            "value has more than",
        ),
        ("produce", {"topic": "t", "confirm": "t", "headers": {}}, "headers are a list"),
        ("produce", {"topic": "t", "confirm": "t", "headers": [["a"]]}, "a name and a value"),
        ("produce", {"topic": "t", "confirm": "t", "headers": [[None, "a"]]}, "has a name"),
        ("delete-topic", {"topic": "t", "confirm": ""}, "confirm must repeat topic"),
        (
            "delete-topic",
            {"topic": "__consumer_offsets", "confirm": "__consumer_offsets"},
            "belongs",
        ),
        ("reset-offsets", {"group": "g", "confirm": "g"}, "topic is missing"),
        ("reset-offsets", {"group": "g", "confirm": "g", "topic": "t", "to": "x"}, "to is one of"),
        (
            "reset-offsets",
            {"group": "g", "confirm": "g", "topic": "t", "to": "offset", "value": "1"},
            "needs a value",
        ),
        (
            "reset-offsets",
            {"group": "g", "confirm": "g", "topic": "t", "to": "time", "value": -1},
            "needs a value",
        ),
    ],
)
def test_changes_that_are_not_whole_are_refused(path: str, body: object, reason: str) -> None:
    status, found = write(path, body)
    assert status == 400
    assert reason in found["error"]


@pytest.mark.parametrize("raw", [b"", b"\xff", b"{", b"[" * 100_000])
def test_bodies_that_are_not_json_are_refused(raw: bytes) -> None:
    assert write("produce", None, raw)[0] == 400


def test_other_changes_are_not_there() -> None:
    assert write("format-disk", {})[0] == 404


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["/api/topic", "/api/group", "/api/settings", "/api/message", "/api/messages"]),
    st.dictionaries(
        st.sampled_from(["topic", "name", "broker", "partition", "offset", "at", "time", "count"]),
        st.text(max_size=20),
    ),
)
def test_any_parameters_are_answered(path: str, query: dict[str, str]) -> None:
    assert ask(path, **query)[0] in (200, 400, 404, 502)


def test_page_runs_its_own_files_only() -> None:
    page = CONSOLE.answer(HttpRequest("GET", "/", {}, {"host": "localhost"}))
    assert isinstance(page, HttpAnswer)
    policy = dict(HEADERS)["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    text = page.body.decode()
    assert "<script>" not in text and "style=" not in text and " onclick" not in text
    for path, file in page_files().items():
        assert b"innerHTML" not in file.body, path
        assert b"http://" not in file.body.replace(b"http://www.w3.org/", b""), path
        assert b"https://" not in file.body, path


def test_files_are_sent_once() -> None:
    path = "/static/app.js"
    first = CONSOLE.answer(HttpRequest("GET", path, {}, {"host": "localhost"}))
    assert isinstance(first, HttpAnswer)
    tag = dict(first.headers)["ETag"]
    again = HttpRequest("GET", path, {}, {"host": "localhost", "if-none-match": tag})
    second = CONSOLE.answer(again)
    assert isinstance(second, HttpAnswer)
    assert (second.status, second.body) == (304, b"")
