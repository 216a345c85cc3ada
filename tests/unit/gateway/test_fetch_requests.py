"""Requests that are recognised by their bytes mean what they mean when they are decoded."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway import fetch
from shmbroker.gateway.fetch_answer import LENT_BYTES_MAX, FetchAnswer
from shmbroker.ipc.operation_layout import (
    READ_ABORTED,
    READ_DONE_HEAD,
    READ_SLICE,
    TOKEN,
)
from shmbroker.wire import codec
from shmbroker.wire.frame import parse_response_header, request_frame
from tests.support.fetch_gateway import TOPIC_ID, FetchGateway, FetchPeer

VERSIONS = range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1)


class Peer(FetchPeer):
    """What is sent is compared, whatever its token."""

    def send(self, operation: int, payload: bytes) -> None:
        super().send(operation, payload[TOKEN.size :])


class Gateway(FetchGateway):
    """Of two partitions."""

    def __init__(self) -> None:
        super().__init__(2)
        self.peer = Peer()

    def is_remembered(self, version: int, *bodies: bytes) -> bool:
        """Whether the second is recognised; both mean the same as if decoded."""
        fresh = Gateway()
        for body in bodies:
            assert self.submit(version, body)
            request = self.connection.inflight.pop()
            fresh.api.known.clear()
            assert fresh.submit(version, body)
            decoded = fresh.connection.inflight.pop()
            assert self.peer.sent == fresh.peer.sent
            assert request.topics == decoded.topics
            assert request.asked == decoded.asked == [request.topics[0][2][0]]
            assert request.isolation == decoded.isolation
            assert request.client_id == decoded.client_id == b"c"
            assert self.pending[request.token] is request
            self.peer.sent.clear()
            fresh.peer.sent.clear()
        return len(self.api.known) == 1


def encoded(version: int, offset: int, row: dict[str, Any] | None = None, **more: Any) -> bytes:
    row = {"partition": 1, "fetch_offset": offset, "partition_max_bytes": 1000} | (row or {})
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    body = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 5000,
        "topics": [name | {"partitions": [row]}],
    }
    if version < 15:
        body["replica_id"] = -1
    if version >= 7:
        body["session_epoch"] = -1
    return codec.encode("FetchRequest", version, body | more)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_offset_is_recognised(version: int) -> None:
    gateway = Gateway()
    bodies = [encoded(version, offset) for offset in (0, 1, -1, 2**40, 2**63 - 1)]
    assert gateway.is_remembered(version, *bodies)
    assert len(gateway.api.known) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_what_else_differs_makes_a_difference(version: int) -> None:
    gateway = Gateway()
    rows: list[dict[str, Any]] = [{"partition_max_bytes": 1001}, {"partition": 0}]
    if version >= 9:
        rows.append({"current_leader_epoch": 3})
    if version >= 12:
        rows.append({"last_fetched_epoch": 3})
    for count, row in enumerate(rows, 1):
        for offset in (4, 5):
            gateway.is_remembered(version, encoded(version, offset, row))
        assert len(gateway.api.known) == count
    gateway.is_remembered(version, encoded(version, 4, isolation_level=1))
    gateway.is_remembered(version, encoded(version, 4, max_wait_ms=1))
    assert len(gateway.api.known) == len(rows) + 2


@pytest.mark.parametrize("version", [11, 12, 18])
def test_other_shapes_are_decoded_each_time(version: int) -> None:
    gateway = Gateway()
    assert not gateway.is_remembered(version, encoded(version, 0, rack_id="r"))
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    forgotten = [name | {"partitions": [1]}]
    assert not gateway.is_remembered(version, encoded(version, 0, forgotten_topics_data=forgotten))
    if version >= 12:
        with_a_tag = encoded(version, 0)[:-1] + b"\x01\x40\x01x"
        assert not gateway.is_remembered(version, with_a_tag)


def test_a_topic_that_is_made_anew_is_looked_up_again() -> None:
    gateway = Gateway()
    assert gateway.submit(12, encoded(12, 0)) and gateway.submit(12, encoded(12, 1))
    gateway.make_image(TOPIC_ID[::-1])
    assert gateway.submit(12, encoded(12, 2))
    assert TOPIC_ID in gateway.peer.sent[1]
    assert TOPIC_ID[::-1] in gateway.peer.sent[2]


def test_a_full_ring_leaves_everything_as_it_was() -> None:
    gateway = Gateway()
    assert gateway.submit(12, encoded(12, 0))
    gateway.peer.has_room = False
    assert not gateway.submit(12, encoded(12, 1))
    assert (gateway.token, len(gateway.connection.inflight), len(gateway.pending)) == (1, 1, 1)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "KNOWN_MAX", 5)
    gateway = Gateway()
    for wait in range(20):
        gateway.submit(12, encoded(12, 0, max_wait_ms=wait))
        assert 1 <= len(gateway.api.known) <= 5


@pytest.mark.parametrize("size", range(10, 60))
def test_short_frames_are_refused_as_such(size: int) -> None:
    from shmbroker.errors import ProtocolFault

    gateway = Gateway()
    for version in VERSIONS:
        frame = bytearray(request_frame(1, version, 77, "c", encoded(version, 0)))
        if len(frame) <= size + 4:
            continue
        del frame[size + 4 :]
        with pytest.raises(ProtocolFault):
            gateway.api.submit(gateway.connection, frame, 4, len(frame), version, 77)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────


def read_done(*rows: tuple[int, bytes, int], aborted: bool = False) -> memoryview:
    """A READ_DONE entry. rows: error, records, diverging epoch."""
    inline = b"".join(records for _, records, _ in rows)
    slices, at = [], 0
    for which, (error, records, diverging) in enumerate(rows):
        slices.append(
            READ_SLICE.pack(
                error, which, len(records), 90, 80, 70, 0, at, diverging, 3, diverging * 2
            )
        )
        at += len(records)
    ended = [READ_ABORTED.pack(0, 5, 6)] if aborted else []
    head = READ_DONE_HEAD.pack(1, len(rows), len(ended))
    return memoryview(b"".join((head, *slices, *ended, inline)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_the_answer_to_a_recognised_request_has_the_bytes_of_any(
    version: int, isolation: int
) -> None:
    gateway = Gateway()
    body = encoded(version, 7, isolation_level=isolation)
    for entry in (
        read_done((0, b"", -1)),
        read_done((0, b"records", -1)),
        read_done((0, bytes(2000), -1)),
        read_done((6, b"", -1)),
        read_done((0, b"", 2)),
        read_done((0, b"records", -1), aborted=isolation == 1),
    ):
        answers = []
        gateway.api.known.clear()
        for is_known in (False, True):
            assert gateway.submit(version, body)
            request = gateway.connection.inflight.pop()
            assert (request.known is not None) is is_known
            assert gateway.api.on_read_done(request, gateway.peer, entry, 0) == []
            answers.append(b"".join(request.response))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_many_partitions_are_asked_for_as_the_codec_would(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    rows = [
        {"partition": index, "fetch_offset": index * 3, "partition_max_bytes": 9}
        for index in (*range(60), -1, 1)
    ]
    body = encoded(version, 0, topics=[name | {"partitions": rows}, name | {"partitions": []}])
    walks = fetch.fetch_rows.walk
    found = []
    for walk in (walks, lambda *_: None):
        monkeypatch.setattr(fetch.fetch_rows, "walk", walk)
        gateway = Gateway()
        gateway.image.topics_by_id[TOPIC_ID].partitions = [0] * 50
        assert gateway.submit(version, body)
        request = gateway.connection.inflight.pop()
        found.append((gateway.peer.sent, request.topics, request.asked, request.isolation))
    assert found[0] == found[1]
    assert len(found[0][2]) == 51


@pytest.mark.parametrize(("most", "asked"), [(3, 3), (4, 4), (5, 4)])
def test_so_many_partitions_are_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, most: int, asked: int
) -> None:
    """The others are answered as if they had nothing: their client asks again."""
    monkeypatch.setattr(fetch, "READ_PARTITIONS_MAX", most)
    rows = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 9} for p in range(4)]
    gateway = Gateway()
    gateway.image.topics_by_id[TOPIC_ID].partitions = [0] * 4
    assert gateway.submit(12, encoded(12, 0, topics=[{"topic": "t", "partitions": rows}]))
    assert len(gateway.connection.inflight.pop().asked) == asked


@pytest.mark.parametrize("epoch", [-1, 0, 3])
def test_where_logs_part_is_told_of_every_epoch(epoch: int) -> None:
    """The first epoch of all is 0."""
    row: Any = [0, 0, 5, 5, 0, None, 0, epoch, 7 if epoch >= 0 else -1, None]
    anyone: Any = None
    parts: Any = FetchAnswer(anyone, anyone, 12).parts([("t", TOPIC_ID, [row])], 0, 0, 7)
    frame = b"".join(parts)[4:]
    _, at = parse_response_header(1, 12, frame)
    body, _ = codec.decode("FetchResponse", 12, frame[at:])
    told = body["responses"][0]["partitions"][0]["diverging_epoch"]
    assert told == {"epoch": epoch, "end_offset": row[8]}


@pytest.mark.parametrize("more", [0, 1])
def test_who_gets_much_asks_for_what_no_guest_may(more: int) -> None:
    connection: Any = SimpleNamespace(asked_other_at=1.0, last_active=2.0)
    size = LENT_BYTES_MAX + more
    answer: Any = [0, 0, 5, 5, 0, bytes(size), size, -1, -1, None]
    gateway: Any = None
    FetchAnswer(gateway, connection, 12).parts([("t", TOPIC_ID, [answer])], 0, 0, 7)
    assert connection.asked_other_at == 1.0 + more
