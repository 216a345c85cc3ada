"""The console of a real family: records, searches, tails, changes; deaths; a page in a browser."""

import os
import signal
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.console.record_pages import STREAMS_MAX
from shmbroker.records.batch import encode_batch
from tests.support.console_family import HOSTILE, Shown, browser, fill
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "seen"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    data = tmp_path_factory.mktemp("console")
    with Shown("--console-writes", "--network-workers", "1", data=data) as broker:
        with RawClient(broker.address) as client:
            fill(client, TOPIC)
        wait_until(lambda: is_up(broker), "the console")
        yield broker


def is_up(broker: Shown) -> bool:
    try:
        return broker.ask("/api/session")[0] == 200
    except OSError:
        return False


def places(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found["records"]]


@pytest.mark.parametrize("partition", ["", "&partition=1"])
@pytest.mark.parametrize("is_back", [True, False])
def test_pages_go_through_every_record_once(family: Shown, partition: str, is_back: bool) -> None:
    start = "from=latest&direction=back" if is_back else "from=earliest"
    seen: list[tuple[int, int]] = []
    for _ in range(20):
        query = f"/api/messages?topic={TOPIC}{partition}&count=37&{start}"
        status, found = family.ask(query)
        assert status == 200, found
        if not found["records"]:
            break
        seen += places(found)
        start = f"at={found['following']}" + ("&direction=back" if is_back else "")
    chosen = [1] if partition else [0, 1, 2]
    assert sorted(seen) == [(one, offset) for one in chosen for offset in range(100)]
    for one in chosen:
        offsets = [offset for number, offset in seen if number == one]
        assert offsets == sorted(offsets, reverse=is_back), "each partition stays in its order"


def test_page_begins_at_an_offset_or_a_time(family: Shown) -> None:
    _, found = family.ask(f"/api/messages?topic={TOPIC}&at=2:40&count=2")
    assert places(found) == [(2, 40), (2, 41)]
    moment = found["records"][0]["timestamp"]
    _, found = family.ask(f"/api/messages?topic={TOPIC}&partition=2&time={moment}&count=1")
    assert places(found) == [(2, 40)]
    _, found = family.ask(f"/api/messages?topic={TOPIC}&at=2:99999")
    assert places(found) == []


def test_fields_are_shown_as_they_are(family: Shown) -> None:
    _, found = family.ask(f"/api/message?topic={TOPIC}&partition=2&offset=98")
    text = HOSTILE.decode()
    assert found["key"]["text"] == found["value"]["text"] == text
    assert found["headers"][0][0]["text"] == text
    _, found = family.ask(f"/api/message?topic={TOPIC}&partition=0&offset=99")
    assert found["key"] == {"kind": "null"}
    assert bytes.fromhex(found["value"]["hex"]) == bytes(range(256))
    assert family.ask(f"/api/message?topic={TOPIC}&partition=0&offset=100")[0] == 404


def test_search_tells_what_it_finds_and_how_far_it_is(family: Shown) -> None:
    path = f"/api/search?topic={TOPIC}&text=READING%22:%2042&from=earliest"
    events = family.events(path, "end")
    found = [(row["partition"], row["offset"]) for name, row in events if name == "record"]
    assert sorted(found) == [(0, 42), (1, 42), (2, 42)]
    progress = [row for name, row in events if name == "progress"][-1]
    assert (progress["ended"], progress["share"], progress["records"]) == ("done", 1.0, 300)


def test_search_goes_on_where_it_ended(family: Shown) -> None:
    path = f"/api/search?topic={TOPIC}&text=reading&in=value&count=200"
    first = family.events(f"{path}&from=earliest", "end")
    told = [row for name, row in first if name == "progress"][-1]
    assert told["ended"] == "found"
    second = family.events(f"{path}&at={told['following']}", "end")
    assert [row for name, row in second if name == "progress"][-1]["ended"] == "done"
    rows = [row for name, row in first + second if name == "record"]
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == 3 * 98


def test_tail_shows_what_is_appended_from_now_on(family: Shown) -> None:
    with RawClient(family.address) as client:
        client.create_topic("tailed", 2)
        is_open = threading.Event()
        found: list[tuple[str, Any]] = []

        def append() -> None:
            while not is_open.wait(0.05):
                batch = encode_batch([(clock.now_ms(), b"k", b"come now", [])])
                client.produce("tailed", batch, 1)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            found = family.events("/api/tail?topic=tailed&text=NOW", "record")
        finally:
            is_open.set()
            thread.join()
    assert found[0] == ("opened", {"partitions": 2})
    assert found[-1][1]["value"]["text"] == "come now"


def test_tail_outlives_the_death_of_a_leader(family: Shown) -> None:
    with RawClient(family.address) as client:
        client.create_topic("outlived", 1)
    wait_until(lambda: family.ask("/api/topic?topic=outlived")[0] == 200, "the topic")
    turns = iter(range(100))

    def on_progress(_row: Any) -> None:
        turn = next(turns)
        if turn == 0:
            family.kill("io-worker-1")
        if turn > 0:
            wait_until(lambda: _try_append(family, "outlived"), "the successor")

    found = family.events("/api/tail?topic=outlived", "record", on_progress)
    assert found[-1][1]["value"]["text"] == "after it"


def _try_append(family: Shown, topic: str) -> bool:
    try:
        with RawClient(family.address) as client:
            batch = encode_batch([(clock.now_ms(), None, b"after it", [])])
            return bool(client.produce(topic, batch)["error_code"] == 0)
    except OSError:
        return False


def test_batches_that_blow_up_are_bounded_and_said(family: Shown) -> None:
    """Of 500 KB each they are 40 MB plain; what is beside them is shown."""
    with RawClient(family.address) as client:
        client.create_topic("bombs", 1)
        wait_until(lambda: family.ask("/api/topic?topic=bombs")[0] == 200, "the topic")
        bomb = encode_batch([(clock.now_ms(), None, os.urandom(500_000) * 80, [])], codec=4)
        for batch in (bomb, encode_batch([(clock.now_ms(), None, b"harmless", [])]), bomb):
            assert client.produce("bombs", batch)["error_code"] == 0
    status, found = family.ask("/api/messages?topic=bombs&from=earliest")
    assert status == 200
    assert places(found) == [(0, 1)]
    assert found["left_out"] == 2


def test_streams_whose_clients_never_read_end(family: Shown) -> None:
    for _ in range(2 * STREAMS_MAX):
        connection = HTTPConnection("127.0.0.1", family.console_port, timeout=10)
        connection.request("HEAD", f"/api/tail?topic={TOPIC}")
        assert connection.getresponse().status == 200
        connection.close()
    assert family.events(f"/api/tail?topic={TOPIC}", "opened")


def test_record_is_produced_where_its_key_belongs(family: Shown) -> None:
    body = {"topic": "written", "confirm": "written", "key": "k", "value": "v"}
    with RawClient(family.address) as client:
        client.create_topic("written", 3)
        wait_until(lambda: family.ask("/api/topic?topic=written")[0] == 200, "the topic")
        rows = [["trace", "1"], ["none", None]]
        status, told = family.change("produce", body | {"headers": rows})
        assert status == 200, told
    _, found = family.ask(
        f"/api/message?topic=written&partition={told['partition']}&offset={told['offset']}"
    )
    assert (found["key"]["text"], found["value"]["text"]) == ("k", "v")
    assert [value["kind"] for _, value in found["headers"]] == ["text", "null"]
    status, told = family.change("produce", body | {"partition": 9})
    assert (status, told["error"]) == (400, "topic written has no partition 9")


def test_offsets_are_moved_when_it_is_said_twice(family: Shown) -> None:
    body = {"group": "movers", "confirm": "movers", "topic": TOPIC, "to": "offset", "value": 30}
    expected = {"plan": [{"partition": one, "offset": 30} for one in range(3)]}
    assert family.change("reset-offsets", body) == (200, expected)
    with RawClient(family.address) as client:
        assert committed(client, "movers") == {}, "it was shown only"
        wait_until(
            lambda: family.change("reset-offsets", body | {"execute": True})[0] == 200, "the move"
        )
        assert committed(client, "movers") == {0: 30, 1: 30, 2: 30}


def committed(client: RawClient, group: str) -> dict[int, int]:
    """The offsets of a group, once its coordinator answers."""
    client.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})
    body = {"groups": [{"group_id": group, "topics": None}], "require_stable": False}

    def answered() -> dict[str, Any] | None:
        row: dict[str, Any] = client.ask("OffsetFetch", 8, body)["groups"][0]
        return None if row["error_code"] else row

    rows = wait_until(answered, "the coordinator")["topics"]
    return {
        row["partition_index"]: row["committed_offset"]
        for topic in rows
        for row in topic["partitions"]
    }


def test_topic_is_deleted_by_its_name(family: Shown) -> None:
    with RawClient(family.address) as client:
        client.create_topic("doomed", 1)
    wait_until(lambda: family.ask("/api/topic?topic=doomed")[0] == 200, "the topic")
    assert family.change("delete-topic", {"topic": "doomed", "confirm": "dooomed"})[0] == 400
    assert family.change("delete-topic", {"topic": "doomed", "confirm": "doomed"})[0] == 200
    wait_until(lambda: family.ask("/api/topic?topic=doomed")[0] == 400, "its end")


def test_questions_make_no_topics(family: Shown) -> None:
    for path in ("/api/topic", "/api/messages", "/api/tail", "/api/search"):
        assert family.ask(f"{path}?topic=nowhere&text=x")[0] == 400
    body = {"topic": "nowhere", "confirm": "nowhere", "value": "v"}
    assert family.change("produce", body)[0] == 502
    _, found = family.ask("/api/snapshot")
    assert "nowhere" not in {topic["name"] for topic in found["topics"]}


def test_without_the_flag_nothing_can_be_changed_and_a_dead_one_is_replaced(
    tmp_path: Path,
) -> None:
    with Shown("--network-workers", "1", data=tmp_path) as broker:
        wait_until(lambda: is_up(broker), "the console")
        status, session = broker.ask("/api/session")
        assert (session["may_write"], session["token"]) == (False, "")
        body = {"topic": TOPIC, "confirm": TOPIC}
        status, told = broker.change("delete-topic", body)
        assert status == 403 and "--console-writes" in told["error"]
        before = broker.children()
        os.kill(before["console-1"], signal.SIGKILL)
        wait_until(lambda: is_up(broker), "its successor")
        after = broker.children()
        assert after.pop("console-1") != before.pop("console-1")
        assert after == before, "nobody else has noticed"
        broker.kill("io-worker-1")

        def told_of() -> bool:
            _, faults = broker.ask("/api/faults")
            whats = [each["what"] for each in faults["events"]]
            return "io-worker-1 has died and is replaced" in whats

        wait_until(told_of, "the event")
        assert broker.stop() == 0


PAGES = {
    "#/": "text=network-worker-1",
    "#/topics": f"a[data-row={TOPIC}]",
    f"#/topics/{TOPIC}": "text=Topic id",
    f"#/topics/{TOPIC}/messages": "details.record",
    "#/groups": "text=of",
    "#/settings": "text=log.retention.ms",
    f"#/settings?topic={TOPIC}": "text=retention.ms",
    "#/faults": "h1:has-text('Faults')",
}


def test_page_in_a_browser(family: Shown) -> None:
    """Every page in both colour schemes and 400 pixels wide, the keys, hostile records, a tail:
    nothing is complained of, and nothing of a record runs."""
    with browser() as launched:
        complaints: list[str] = []
        grounds = set()
        for scheme, width in (("light", 1200), ("dark", 400)):
            context = launched.new_context(
                color_scheme=scheme, viewport={"width": width, "height": 800}
            )
            context.set_default_timeout(20_000)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            for path, sign in PAGES.items():
                page.goto(family.page + path)
                page.locator(sign).first.wait_for(state="attached")
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{path} is {wide} pixels wider than {width}"
            color = "getComputedStyle(document.body).backgroundColor"
            grounds.add(page.evaluate(color))
            page.keyboard.press("Escape")
            page.keyboard.press("t")  # as the system has it, then light, then dark
            page.keyboard.press("t")
            assert page.evaluate(color) == "rgb(16, 21, 19)"
            if scheme == "light":
                use(page, family)
            context.close()
        assert grounds == {"rgb(247, 248, 247)", "rgb(16, 21, 19)"}
        assert complaints == []


def use(page: Any, family: Shown) -> None:
    """What a person does by keyboard."""
    page.goto(family.page + "#/")
    brokers = page.locator("[aria-label=Brokers]")
    brokers.focus()
    for _ in range(2):
        with page.expect_response("**/api/snapshot"):
            pass
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "Brokers", "what is shown anew keeps the focus"
    page.keyboard.press("?")
    page.locator("#help").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.locator(f"a[data-row={TOPIC}]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type(TOPIC)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("text=Topic id").wait_for()
    page.goto(f"{family.page}#/topics/{TOPIC}/messages?partition=0&offset=98")
    page.locator("details.record").nth(1).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    inside = page.locator("details[open] .inside")
    inside.locator("pre").first.wait_for()
    assert HOSTILE.decode() in inside.inner_text()
    assert page.title().startswith(TOPIC), "what is in a record did not run"
    page.goto(f"{family.page}#/topics/{TOPIC}/messages?text=12345678901234567890")
    page.locator("text=50 found").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    inside.locator("pre").first.wait_for()
    assert "12345678901234567890" in inside.inner_text(), "no digit is lost"
    with RawClient(family.address) as client:
        client.create_topic("watched", 2)
        wait_until(lambda: family.ask("/api/topic?topic=watched")[0] == 200, "the topic")
        page.goto(f"{family.page}#/topics/watched/messages")
        page.locator("text=No records").wait_for()
        page.keyboard.press("l")
        page.locator("text=Live:").wait_for()
        batch = encode_batch([(clock.now_ms(), b"k", b"while you look", [])])
        assert client.produce("watched", batch, 1)["error_code"] == 0
        page.locator("text=while you look").wait_for()
        page.keyboard.press("l")
        page.locator("text=Stopped").wait_for()
