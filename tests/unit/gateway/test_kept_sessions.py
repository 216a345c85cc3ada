"""Large fetch sessions are kept by the broker: what a READ names, and when it names all."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway import fetch_session
from shmbroker.gateway.fetch_session import KEPT_MIN
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_FLAG_SESSION,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
    UNKNOWN_SESSION,
)
from shmbroker.wire import codec, error_codes
from tests.support.fetch_gateway import TOPIC_ID, FetchGateway

VERSION = 12
COUNT = KEPT_MIN + 4
DELTA, WHOLE = READ_FLAG_SESSION, READ_FLAG_SESSION | READ_FLAG_NEW


class Gateway(FetchGateway):
    """With a client that has a session."""

    def __init__(self) -> None:
        super().__init__(COUNT)
        self.session_id = self.epoch = 0

    def send(self, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> None:
        """A Fetch of the session."""
        rows = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1000}
            for index, offset in offsets.items()
        ]
        body = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [{"topic": "t", "partitions": rows}] if rows else [],
            "forgotten_topics_data": [{"topic": "t", "partitions": forgotten}] if forgotten else [],
        }
        assert self.submit(VERSION, codec.encode("FetchRequest", VERSION, body))

    def read(self) -> tuple[int, dict[int, tuple[int, int]]]:
        """The one READ since the last call: its flags, and for each partition that it names offset
        and known high watermark."""
        (payload,) = self.peer.sent
        self.peer.sent.clear()
        _, _, _, _, _, flags, count, number = READ_HEAD.unpack_from(payload)
        rows = list(READ_PARTITION.iter_unpack(payload[READ_HEAD.size :]))
        assert len(rows) == count
        assert number == (self.session_id if flags & READ_FLAG_SESSION else 0)
        keys = {partition_key(TOPIC_ID, index): index for index in range(COUNT)}
        return flags, {keys[row[0]]: (row[4], row[5]) for row in rows}

    def answer(self, *told: tuple[int, int, int], count: int | None = None) -> dict[str, Any]:
        """READ_DONE of place, error and high watermark; what the client gets."""
        (request,) = self.connection.inflight
        request = self.pending.pop(request.token)
        data = READ_DONE_HEAD.pack(0, len(told) if count is None else count, 0) + b"".join(
            READ_SLICE.pack(error, which, 0, end, end, 0, 0, 0, -1, 0, -1)
            for which, error, end in told
        )
        peer: Any = self.peer
        assert self.api.on_read_done(request, peer, memoryview(data), 0) == []
        if request.response is None:
            return {}
        self.connection.inflight.clear()
        answer = codec.decode_all(
            "FetchResponse", VERSION, memoryview(b"".join(request.response)), 9
        )
        self.session_id, self.epoch = answer["session_id"], self.epoch + 1
        return answer

    def begin(self) -> None:
        """A session, of which the broker has been told."""
        self.send(dict.fromkeys(range(COUNT), 0))
        assert self.read()[0] == 0  # it is not known yet whether it will be a session
        self.answer()
        self.send({})
        flags, rows = self.read()
        assert (flags, len(rows)) == (WHOLE, COUNT)
        self.answer()


def test_a_read_names_what_the_client_has_changed() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send({3: 5, 7: 6})
    flags, rows = gateway.read()
    assert flags == DELTA
    assert {index: offset for index, (offset, _) in rows.items()} == {3: 5, 7: 6}
    gateway.answer()
    gateway.send({})
    assert gateway.read() == (DELTA, {})


def test_a_full_session_goes_on_when_its_own_partitions_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_session, "SESSION_PARTITIONS_MAX", COUNT)
    gateway = Gateway()
    gateway.begin()
    gateway.send(dict.fromkeys(range(COUNT), 5))
    flags, rows = gateway.read()
    assert flags == DELTA
    assert len(rows) == COUNT


def test_slices_are_of_those_that_were_named_when_all_were() -> None:
    gateway = Gateway()
    gateway.begin()
    for place in (2, 5, 2):
        gateway.send({})
        gateway.read()
        (topic,) = gateway.answer((place, 0, 9 + place))["responses"]
        assert [row["partition_index"] for row in topic["partitions"]] == [place]


@pytest.mark.parametrize("change", ["forgotten", "added", "the image", "the process", "unsettled"])
def test_what_is_more_than_a_change_names_all(change: str) -> None:
    gateway = Gateway()
    gateway.begin()
    if change == "forgotten":
        gateway.send({}, (2,))
        flags, rows = gateway.read()
        assert (flags, sorted(rows)) == (WHOLE, [each for each in range(COUNT) if each != 2])
        gateway.answer()
        gateway.send({2: 0})
    elif change == "added":
        gateway.send({}, (2,))
        gateway.read()
        gateway.answer()
        gateway.send({2: 4})
    elif change == "the image":
        topic = SimpleNamespace(name="t", topic_id=bytes(16), partitions=[0] * COUNT)
        gateway.image = SimpleNamespace(topics_by_name={"t": topic}, topics_by_id={}, security=None)
        gateway.send({})
        payload = gateway.peer.sent.pop()
        assert READ_HEAD.unpack_from(payload)[5:7] == (WHOLE, COUNT)
        return
    elif change == "the process":
        gateway.peer.incarnation = 2
        gateway.send({})
    else:
        gateway.send({})
        gateway.read()
        session = gateway.connection.session
        session.epoch += 1  # somebody else has gone on with it
        answer = gateway.answer((2, 0, 9))
        assert answer["error_code"] == error_codes.INVALID_FETCH_SESSION_EPOCH
        gateway.epoch, gateway.session_id = session.epoch, session.id
        gateway.send({})
    flags, rows = gateway.read()
    assert (flags, len(rows)) == (WHOLE, COUNT)


def test_a_session_that_the_broker_does_not_keep_is_named_whole_and_answered_once() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send({4: 8})
    assert gateway.read()[0] == DELTA
    assert gateway.answer(count=UNKNOWN_SESSION) == {}
    flags, rows = gateway.read()
    assert (flags, len(rows), rows[4][0]) == (WHOLE, COUNT, 8)
    (topic,) = gateway.answer((4, 0, 11))["responses"]
    assert [row["partition_index"] for row in topic["partitions"]] == [4]
    gateway.send({})
    assert gateway.read() == (DELTA, {})


def test_a_partition_that_can_not_be_read_is_not_named() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send({COUNT + 1: 0})
    flags, rows = gateway.read()
    assert (flags, len(rows)) == (WHOLE, COUNT)
    (topic,) = gateway.answer()["responses"]
    assert [row["error_code"] for row in topic["partitions"]] == [
        error_codes.UNKNOWN_TOPIC_OR_PARTITION
    ]
    gateway.send({COUNT + 1: 3})
    assert gateway.read() == (DELTA, {})


def test_the_end_of_a_session_is_told() -> None:
    gateway = Gateway()
    gateway.begin()
    ended, gateway.epoch = gateway.session_id, -1
    gateway.send({0: 0})
    end, full = gateway.peer.sent
    assert READ_HEAD.unpack(end) == (0, 0, 0, 0, 0, WHOLE, 0, ended)
    assert READ_HEAD.unpack_from(full)[5] == 0


def test_small_sessions_name_all_each_time() -> None:
    gateway = Gateway()
    gateway.send(dict.fromkeys(range(KEPT_MIN - 1), 0))
    gateway.read()
    gateway.answer()
    for _ in range(2):
        gateway.send({})
        flags, rows = gateway.read()
        assert (flags, len(rows)) == (0, KEPT_MIN - 1)
        gateway.answer()


def test_an_answer_that_the_broker_has_not_given_names_all() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send({})
    gateway.read()
    (request,) = gateway.connection.inflight
    gateway.api.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
    gateway.connection.inflight.clear()
    gateway.epoch += 1
    gateway.send({})
    flags, rows = gateway.read()
    assert (flags, len(rows)) == (WHOLE, COUNT)
    assert {known for _, known in rows.values()} == {-1}


def test_a_session_that_becomes_small_is_kept_no_more() -> None:
    gateway = Gateway()
    gateway.begin()
    gateway.send({}, tuple(range(5)))
    end = gateway.peer.sent.pop(0)
    assert READ_HEAD.unpack(end) == (0, 0, 0, 0, 0, WHOLE, 0, gateway.session_id)
    flags, rows = gateway.read()
    assert (flags, sorted(rows)) == (0, list(range(5, COUNT)))
    gateway.answer()
    for offset in (3, 4):
        gateway.send({7: offset})
        assert gateway.read()[0] == 0
        gateway.answer()
    gateway.send(dict.fromkeys(range(5), 0))
    flags, rows = gateway.read()
    assert (flags, len(rows), rows[7][0]) == (WHOLE, COUNT, 4)
