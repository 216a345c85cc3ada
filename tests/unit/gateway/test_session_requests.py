"""What a fetch session makes of a request: which are refused, which are known by their bytes, and
what the client has been told."""

from typing import Any

import pytest

from shmbroker.gateway import fetch_session
from shmbroker.gateway.fetch_session import (
    KNOWN,
    KNOWN_AT,
    PARAMETERS,
    FetchSession,
    FetchSessions,
)
from shmbroker.ipc.operation_layout import READ_DONE_HEAD, READ_HEAD, READ_SLICE
from shmbroker.wire import codec, error_codes
from tests.support.fetch_gateway import TOPIC_ID, FetchGateway

COUNT = 3


class Gateway(FetchGateway):
    """With a client of a small session."""

    def __init__(self, version: int = 12) -> None:
        super().__init__(COUNT)
        self.version = version
        self.session_id = self.epoch = 0

    def send(
        self, offsets: dict[int, int] | None = None, client_id: str = "c", **more: Any
    ) -> dict[str, Any] | None:
        """A Fetch of the session; the answer, if there is one at once."""
        version = self.version
        rows = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1000}
            for index, offset in (offsets or {}).items()
        ]
        name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
        body = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 5000,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [name | {"partitions": rows}] if rows else [],
            "forgotten_topics_data": [],
        }
        if version < 15:
            body["replica_id"] = -1
        assert self.submit(version, codec.encode("FetchRequest", version, body | more), client_id)
        (request,) = self.connection.inflight
        if request.response is None:
            return None
        self.connection.inflight.clear()
        return self.decoded(request)

    def decoded(self, request: Any) -> dict[str, Any]:
        frame = memoryview(b"".join(request.response))
        start = 9 if self.version >= 12 else 8
        return codec.decode_all("FetchResponse", self.version, frame, start)

    def read(self) -> tuple[Any, ...]:
        """The head of the one READ since the last call, without its token."""
        (payload,) = self.peer.sent
        self.peer.sent.clear()
        head: tuple[Any, ...] = READ_HEAD.unpack_from(payload)
        return head[1:]

    def answer(self, *told: tuple[int, int, int]) -> dict[str, Any]:
        """READ_DONE of place, error and high watermark; what the client gets."""
        (request,) = self.connection.inflight
        request = self.pending.pop(request.token)
        data = READ_DONE_HEAD.pack(0, len(told), 0) + b"".join(
            READ_SLICE.pack(error, which, 0, end, end, 0, 0, 0, -1, 0, -1)
            for which, error, end in told
        )
        peer: Any = self.peer
        assert self.api.on_read_done(request, peer, memoryview(data), 0) == []
        self.connection.inflight.clear()
        answer = self.decoded(request)
        self.session_id, self.epoch = answer["session_id"], self.epoch + 1
        return answer

    def begin(self) -> None:
        """A session, and a request in it that has nothing new."""
        assert self.send(dict.fromkeys(range(COUNT), 0)) is None
        self.read()
        self.answer()
        assert self.session_id
        assert self.send() is None
        self.read()
        self.answer()


# ── refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [7, 12, 13, 18])
@pytest.mark.parametrize("change", ["nothing", "a partition"])
@pytest.mark.parametrize("ahead", [-1, 1])
def test_another_epoch_is_refused_and_the_session_goes_on(
    version: int, change: str, ahead: int
) -> None:
    gateway = Gateway(version)
    gateway.begin()
    right = gateway.epoch
    offsets = {1: 7} if change == "a partition" else {}
    gateway.epoch = right + ahead
    answer = gateway.send(offsets)
    assert answer is not None
    assert answer["error_code"] == error_codes.INVALID_FETCH_SESSION_EPOCH
    assert not gateway.peer.sent
    gateway.epoch = right
    assert gateway.send(offsets) is None


@pytest.mark.parametrize("change", ["nothing", "a partition"])
@pytest.mark.parametrize("why", ["another session", "another broker", "a follower"])
def test_a_session_that_is_not_the_clients_is_not_found(change: str, why: str) -> None:
    gateway = Gateway()
    gateway.begin()
    more = {}
    if why == "another session":
        gateway.session_id += 1
    elif why == "another broker":
        gateway.connection.scope = 2
    else:
        more["replica_id"] = 0
    answer = gateway.send({1: 7} if change == "a partition" else {}, **more)
    assert answer is not None
    assert answer["error_code"] == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert not gateway.peer.sent


@pytest.mark.parametrize(("version", "other"), [(12, 13), (13, 12)])
def test_names_and_ids_of_topics_are_not_mixed_in_a_session(version: int, other: int) -> None:
    gateway = Gateway(version)
    gateway.begin()
    gateway.version = other
    answer = gateway.send({1: 7})
    assert answer is not None
    assert answer["error_code"] == error_codes.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_for_which_there_is_no_room_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()
    gateway.begin()
    monkeypatch.setattr(fetch_session, "SESSION_PARTITIONS_MAX", COUNT)
    for _ in range(2):
        answer = gateway.send({COUNT + 1: 0})
        assert answer is not None
        assert answer["error_code"] == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert not gateway.peer.sent


# ── known by their bytes ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
@pytest.mark.parametrize(
    ("more", "place", "asked"),
    [
        ({"max_wait_ms": 700}, 0, 700),
        ({"min_bytes": 9}, 1, 9),
        ({"max_bytes": 6000}, 2, 6000),
        ({"isolation_level": 1}, 3, 1),
    ],
)
def test_what_else_is_asked_for_in_a_session_makes_a_difference(
    version: int, more: dict[str, int], place: int, asked: int
) -> None:
    gateway = Gateway(version)
    gateway.begin()
    for _ in range(2):
        assert gateway.send() is None
        plain = gateway.read()
        gateway.answer()
        assert gateway.send(**more) is None
        other = gateway.read()
        gateway.answer()
        assert other[place] == asked != plain[place]
        assert other[:place] + other[place + 1 :] == plain[:place] + plain[place + 1 :]


def test_a_repeated_request_is_of_the_client_that_sends_it() -> None:
    gateway = Gateway()
    gateway.begin()
    for client_id in ("c", "d", "d", "c"):
        assert gateway.send(client_id=client_id) is None
        (request,) = gateway.connection.inflight
        assert request.client_id == client_id.encode()
        gateway.read()
        gateway.answer()


# ── told ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_client_knows_goes_along_with_the_next_read() -> None:
    gateway = Gateway()
    gateway.begin()
    session: FetchSession = gateway.connection.session
    for error, end, known in ((0, 44, 44), (error_codes.OFFSET_OUT_OF_RANGE, 50, -1), (0, 7, 7)):
        assert gateway.send() is None
        gateway.read()
        gateway.answer((1, error, end))
        assert KNOWN.unpack_from(session.partitions["t", 1], KNOWN_AT)[0] == known
    assert list(session.partitions) == [("t", index) for index in range(COUNT)]


def test_who_has_given_records_comes_last_next_time() -> None:
    """As in Kafka: else the first partitions fill every answer."""
    sessions = FetchSessions(range(100, 200), 5, 3)
    parameters = PARAMETERS.pack(1 << 20, -1, -1, 7)
    rows = ((("t", index), parameters, 0, 3, 0) for index in range(COUNT))
    session = sessions.try_create(1, False, rows, COUNT, 0)
    assert session is not None
    session.resolve(list(session.partitions), lambda key: bytes(19) + bytes([key[1]]))
    assert [key[1] for key in session.asked()[0]] == [0, 1, 2]
    session.on_told(("t", 0), 0, 9, 0, True)
    keys, payload = session.asked()
    assert [key[1] for key in keys] == [1, 2, 0]
    assert payload.endswith(KNOWN.pack(9, 0))
    session.on_told(("t", 1), 0, 8, 0, False)
    keys, payload = session.asked()
    assert [key[1] for key in keys] == [1, 2, 0]
    assert payload.startswith(bytes(19) + b"\x01" + parameters + KNOWN.pack(8, 0))
