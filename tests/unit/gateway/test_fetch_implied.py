"""Fetches that name the same partitions each time go on in a session that the client does not know
of: what a READ names then, and that the client is told of all."""

import copy
from typing import Any

import pytest

from shmbroker.gateway import fetch, fetch_implied
from shmbroker.gateway.fetch_session import EVICTION_MS, KEPT_MIN
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_FLAG_SESSION,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.wire import codec, error_codes
from tests.support.fetch_gateway import TOPIC_ID, FetchGateway

COUNT = KEPT_MIN + 4
DELTA, WHOLE = READ_FLAG_SESSION, READ_FLAG_SESSION | READ_FLAG_NEW
VERSIONS = (4, 7, 11, 12, 13, 18)
PLACES = {partition_key(TOPIC_ID, index): index for index in range(COUNT)}


class Gateway(FetchGateway):
    """With a client that names all that it reads in each Fetch."""

    def __init__(self, version: int = 12) -> None:
        super().__init__(COUNT)
        self.version = version
        self.offsets = dict.fromkeys(range(COUNT), 0)
        self.places = list(range(COUNT))
        """The partitions in the order of the last READ that named all."""
        self.others: list[str] = []
        """Topics that are not there, of which it names partition 0 before all else."""

    def send(self, first: int = 0, isolation: int = 0) -> bool:
        """A Fetch of all, from the partition `first` on."""
        version = self.version
        indexes = list(self.offsets)
        rows = [
            {"partition": index, "fetch_offset": self.offsets[index], "partition_max_bytes": 1000}
            for index in indexes[first:] + indexes[:first]
        ]
        name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
        body = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "isolation_level": isolation,
            "topics": [{"topic": other, "partitions": rows[:1]} for other in self.others]
            + [name | {"partitions": rows}],
        }
        if version < 15:
            body["replica_id"] = -1
        if version >= 7:
            body["session_epoch"] = fetch.NO_SESSION
        return self.submit(version, codec.encode("FetchRequest", version, body))

    def read(self) -> tuple[int, dict[int, int]]:
        """The one READ since the last call: its flags, and the offset of each partition that it
        names."""
        (payload,) = self.peer.sent
        self.peer.sent.clear()
        _, _, _, _, _, flags, count, _ = READ_HEAD.unpack_from(payload)
        rows = list(READ_PARTITION.iter_unpack(payload[READ_HEAD.size :]))
        assert len(rows) == count
        return flags, {PLACES[row[0]]: row[4] for row in rows}

    def answer(self, *told: tuple[int, int, int, bytes]) -> dict[int, dict[str, Any]]:
        """READ_DONE of partitions, errors, high watermarks and records; what the client is told."""
        (request,) = self.connection.inflight
        request = self.pending.pop(request.token)
        data = READ_DONE_HEAD.pack(0, len(told), 0)
        inline = b""
        for index, error, end, records in told:
            which = self.places.index(index)
            data += READ_SLICE.pack(
                error, which, len(records), end, end, 0, 0, len(inline), -1, 0, -1
            )
            inline += records
        peer: Any = self.peer
        assert self.api.on_read_done(request, peer, memoryview(data + inline), 0) == []
        self.connection.inflight.clear()
        frame = memoryview(b"".join(request.response))
        answer = codec.decode_all(
            "FetchResponse", self.version, frame, 9 if self.version >= 12 else 8
        )
        assert not answer.get("session_id") and not answer.get("error_code")
        topics = {row["topic"] or row["topic_id"]: row for row in answer["responses"]}
        assert len(topics) == len(answer["responses"])
        topic = topics.pop(TOPIC_ID if self.version >= 13 else "t")
        assert list(topics) == self.others
        rows = {row["partition_index"]: row for row in topic["partitions"]}
        assert len(rows) == len(topic["partitions"])
        return rows

    def begin(self) -> None:
        """The session, with its second request."""
        assert self.send()
        assert self.read()[0] == 0
        self.answer()
        assert self.send(3)
        flags, rows = self.read()
        assert (flags, len(rows)) == (WHOLE, COUNT)
        self.places = list(rows)
        self.answer(*[(index, 0, 10 + index, b"") for index in rows])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_read_names_what_has_changed_and_the_answer_tells_of_all(version: int) -> None:
    gateway = Gateway(version)
    gateway.begin()
    gateway.offsets[3] = 5
    assert gateway.send(7)
    assert gateway.read() == (DELTA, {3: 5})
    rows = gateway.answer((3, 0, 44, b"records"), (4, 0, 45, b""))
    assert sorted(rows) == list(range(COUNT))
    assert bytes(rows[3]["records"]) == b"records" and rows[3]["high_watermark"] == 44
    for index in set(range(COUNT)) - {3}:
        assert rows[index]["high_watermark"] == (45 if index == 4 else 10 + index)
        assert not rows[index]["records"] and not rows[index]["error_code"]


def test_records_are_told_once() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send()
    gateway.peer.sent.clear()
    gateway.answer((3, 0, 44, b"records"))
    gateway.offsets[3] = 44
    gateway.send()
    assert gateway.read() == (DELTA, {3: 44})
    rows = gateway.answer()
    assert not rows[3]["records"] and rows[3]["high_watermark"] == 44


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_told_once_whether_there_is_news_of_it_or_not(version: int) -> None:
    gateway = Gateway(version)
    gateway.begin()
    for end in (44, None, 45):
        gateway.send()
        rows = gateway.answer(*([] if end is None else [(3, 0, end, b"")]))
        assert sorted(rows) == list(range(COUNT)) and rows[3]["high_watermark"] == (end or 44)


def test_a_topic_with_records_and_with_an_error_is_told_once() -> None:
    gateway = Gateway()
    gateway.others = ["gone"]
    gateway.offsets[COUNT] = 0
    for told in ((), (), ((3, 0, 44, b"records"),)):
        gateway.send()
        rows = gateway.answer(*told)
        assert rows[COUNT]["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert bytes(rows[3]["records"]) == b"records" and len(rows) == COUNT + 1


def test_a_client_that_goes_back_is_read_from_there() -> None:
    gateway = Gateway()
    gateway.begin()
    for offset in (5, 0):
        gateway.offsets[3] = offset
        gateway.send()
        assert gateway.read() == (DELTA, {3: offset})
        gateway.answer()


def test_after_an_error_nothing_is_known() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send()
    gateway.peer.sent.clear()
    rows = gateway.answer((3, error_codes.OFFSET_OUT_OF_RANGE, -1, b""))
    assert rows[3]["error_code"] == error_codes.OFFSET_OUT_OF_RANGE
    gateway.send()
    gateway.peer.sent.clear()
    rows = gateway.answer((4, 0, 50, b""))
    assert (rows[3]["error_code"], rows[3]["high_watermark"]) == (0, -1)
    assert rows[4]["high_watermark"] == 50


@pytest.mark.parametrize("change", ["fewer", "more", "others", "isolation", "version", "twice"])
def test_what_else_is_asked_for_is_taken_whole(change: str) -> None:
    gateway = Gateway()
    gateway.begin()
    isolation = 0
    if change == "fewer":
        del gateway.offsets[3]
    elif change == "more":
        gateway.offsets[COUNT] = 0
    elif change == "others":
        del gateway.offsets[3]
        gateway.offsets[COUNT] = 0
    elif change == "isolation":
        isolation = 1
    elif change == "version":
        gateway.version = 11
    if change == "twice":
        row = {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [row] * COUNT}]
        body = {"max_wait_ms": 1, "min_bytes": 1, "session_epoch": -1, "topics": topics}
        assert gateway.submit(12, codec.encode("FetchRequest", 12, body))
    else:
        assert gateway.send(isolation=isolation)
    ended, read = gateway.peer.sent
    assert READ_HEAD.unpack_from(ended)[5:7] == (WHOLE, 0)
    assert READ_HEAD.unpack_from(read)[5] == 0
    assert not gateway.api.implied.sessions.sessions


def test_a_full_ring_loses_no_change() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.offsets[3] = 5
    gateway.peer.has_room = False
    assert not gateway.send()
    gateway.peer.has_room = True
    assert gateway.send()
    assert gateway.read() == (DELTA, {3: 5})


def test_a_topic_that_is_made_anew_is_looked_up_again() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.make_image(TOPIC_ID[::-1])
    gateway.send()
    (payload,) = gateway.peer.sent
    assert READ_HEAD.unpack_from(payload)[5] == WHOLE
    assert payload.count(TOPIC_ID[::-1]) == COUNT
    gateway.peer.sent.clear()
    rows = gateway.answer(*[(index, 0, 7, b"") for index in range(COUNT)])
    assert {row["high_watermark"] for row in rows.values()} == {7}


def test_a_partition_that_is_not_there_is_told_each_time() -> None:
    gateway = Gateway()
    gateway.offsets[COUNT] = 0
    for told in ((), (), ((2, 0, 7, b""),)):
        gateway.send()
        rows = gateway.answer(*told)
        assert rows[COUNT]["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert rows[2]["high_watermark"] == 7
    gateway.partitions += 1
    gateway.make_image()
    gateway.send()
    gateway.places.append(COUNT)
    assert gateway.answer((COUNT, 0, 9, b""))[COUNT]["high_watermark"] == 9


def test_few_partitions_have_no_session() -> None:
    gateway = Gateway()
    gateway.offsets = dict.fromkeys(range(KEPT_MIN - 1), 0)
    for _ in range(4):
        assert gateway.send()
        assert gateway.read()[0] == 0
        gateway.connection.inflight.clear()
    assert not gateway.api.implied.sessions.sessions


def test_it_ends_with_its_connection() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.api.implied.end(gateway.connection)
    (payload,) = gateway.peer.sent
    assert READ_HEAD.unpack_from(payload)[5:7] == (WHOLE, 0)
    gateway.api.implied.end(gateway.connection)
    assert len(gateway.peer.sent) == 1


def test_who_was_silent_makes_room_and_is_then_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_implied, "IMPLIED_MAX", 1)
    gateway = Gateway()
    gateway.begin()
    silent, gateway.connection = gateway.connection, copy.copy(gateway.connection)
    gateway.connection.scope = 2
    monkeypatch.setattr(gateway, "now", lambda: EVICTION_MS / 1000 + 1)
    gateway.send()
    gateway.peer.sent.clear()
    gateway.answer()
    gateway.send()
    ended, _ = gateway.peer.sent
    assert READ_HEAD.unpack_from(ended)[5:7] == (WHOLE, 0)
    gateway.peer.sent.clear()
    gateway.connection = silent
    gateway.send()
    assert gateway.read()[0] == 0


def test_where_there_is_no_room_requests_go_on_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_implied, "IMPLIED_PARTITIONS_MAX", COUNT - 1)
    gateway = Gateway()
    for _ in range(4):
        assert gateway.send()
        assert gateway.read()[0] == 0
        assert len(gateway.answer()) == COUNT
