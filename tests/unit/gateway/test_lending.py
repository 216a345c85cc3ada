"""Quiet connections are lent to another gateway: which ones, when, and what goes along."""

import select
import socket

import pytest

from shmbroker.gateway import lending
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.guests import ROOM, WINDOW_S
from shmbroker.gateway.lending import INFLIGHT_FEW, LOOK_S, OTHER_S, QUIET_LOOKS, SESSIONS_S, SOON_S
from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD, TOKEN
from shmbroker.ipc.passage import Passage
from shmbroker.kernels import native
from shmbroker.wire import codec
from shmbroker.wire.error_codes import FETCH_SESSION_ID_NOT_FOUND, NONE, NOT_LEADER_OR_FOLLOWER
from shmbroker.wire.frame import request_frame
from tests.support.family_memory import TOPIC
from tests.unit.gateway.two_gateways import (
    BODIES,
    FETCH,
    HEARTBEAT,
    METADATA,
    PRODUCE,
    Two,
    fetch_body,
    two,
)

__all__ = ["two"]


def test_a_quiet_connection_is_answered_by_its_host(two: Two) -> None:
    two.become_quiet()
    assert two.guests.present and two.open == 1
    for _ in range(3):
        by, answer = two.ask(PRODUCE)
        assert by is two.host
        [topic] = answer["responses"]  # type: ignore[misc]
        assert topic["partition_responses"][0]["base_offset"] == 42


def test_none_is_lent_while_the_host_has_no_room(two: Two) -> None:
    for _ in range(20):
        two.ask(PRODUCE)
        two.rest(LOOK_S / 10)
        two.work(LOOK_S)  # of one process and the other: the room that is left is too little
        two.turns()
    assert not two.is_lent and two.room < 1000 * ROOM / 2


def test_none_is_lent_that_says_nothing_or_has_many_requests_under_way(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "is_straight", lambda _connection: False)
    two.rest(WINDOW_S)
    for _ in range(10):
        two.rest(LOOK_S)
        two.turns()
    assert not two.is_lent
    for _ in range(10):
        for _ in range(INFLIGHT_FEW + 1):
            two.send(PRODUCE)
        two.turns()
        two.rest(LOOK_S)
        two.turns()
        assert two.serve(two.home) == INFLIGHT_FEW + 1
        two.turns()
        for _ in range(INFLIGHT_FEW + 1):
            two.home.answer(*PRODUCE)
    assert not two.is_lent


def test_none_is_lent_that_came_as_the_worker_looked_and_says_nothing(two: Two) -> None:
    two.rest(WINDOW_S)
    two.home.client.close()
    two.turns()
    two.rest(LOOK_S)
    two.home.client = socket.create_connection(two.home.listening.getsockname())
    for _ in range(4):
        two.turns()  # it is accepted in the first one, at whose end is the look
        two.rest(LOOK_S)
    two.turns()
    assert two.home.gateway.loop.connections and not two.is_lent


def test_who_has_just_come_is_lent_sooner(two: Two) -> None:
    two.home.client.close()
    two.rest(WINDOW_S)
    two.turns()
    two.home.client = socket.create_connection(two.home.listening.getsockname())
    two.turns()
    for _ in range(QUIET_LOOKS + 1):
        two.ask(PRODUCE)
        two.rest(SOON_S)
        two.turns()
    assert two.is_lent and SOON_S * (QUIET_LOOKS + 1) < LOOK_S
    assert two.ask(PRODUCE)[0] is two.host


def test_it_goes_only_between_two_requests(two: Two) -> None:
    two.rest(WINDOW_S)
    for _ in range(10 * QUIET_LOOKS):
        two.send(PRODUCE)
        two.rest(LOOK_S)
        two.turns()
        assert not two.is_lent  # the answer is awaited from this gateway's broker
        assert two.serve(two.home) == 1
        two.home.gateway.turn(two.home.poller.poll(0))
        two.home.answer(*PRODUCE)
        if two.is_lent:
            break
    assert two.is_lent and two.ask(PRODUCE)[0] is two.host


@pytest.mark.parametrize("error", [NONE, NOT_LEADER_OR_FOLLOWER])
def test_it_stays_while_it_may_be_closed_for_what_gets_no_answer(two: Two, error: int) -> None:
    """Closed while it was lent, it came home without its socket, and this gateway died of it."""
    two.rest(WINDOW_S)
    for _ in range(10 * QUIET_LOOKS):
        two.send(PRODUCE, BODIES["Produce"] | {"acks": 0})
        two.rest(LOOK_S)
        two.turns()
        assert not two.is_lent
        assert two.serve(two.home) == 1
        two.home.gateway.turn(two.home.poller.poll(0))
        if two.is_lent:
            break
    two.turns()
    assert two.is_lent
    two.send(PRODUCE, BODIES["Produce"] | {"acks": 0})
    two.send(METADATA)
    two.turns()
    assert two.is_lent, "its host knows not yet whether to close it"
    [(_, payload)] = two.host.taken()
    token = TOKEN.unpack_from(payload)[0]
    two.host.reply(APPENDED, APPENDED_HEAD.pack(token, error, 0, 0, -1, -1, -1))
    two.turns()
    if error:
        assert two.home.client.recv(1) == b"" and not two.lender.away
    else:
        assert two.home.answer(*METADATA)["topics"] == [] and not two.is_lent


def test_what_was_read_of_the_next_frame_comes_along(two: Two) -> None:
    two.become_quiet()
    metadata = codec.encode("MetadataRequest", 12, BODIES["Metadata"])
    produce = codec.encode("ProduceRequest", 9, BODIES["Produce"])
    frames = request_frame(3, 12, 7, "c", metadata) + request_frame(0, 9, 7, "c", produce)
    two.home.client.sendall(frames[:-5])
    two.turns()
    assert two.home.answer(*METADATA)["brokers"]
    two.home.client.sendall(frames[-5:])
    two.turns()
    assert two.serve(two.home) == 1
    two.turns()
    assert two.home.answer(*PRODUCE)["responses"]


def test_a_fetch_session_goes_along_both_ways(two: Two) -> None:
    two.rest(WINDOW_S)
    by, answer = two.ask(FETCH, fetch_body(0, 0, names=True))
    session = answer["session_id"]
    assert by is two.home and session
    epoch = 1
    for _ in range(QUIET_LOOKS + 2):
        two.rest(LOOK_S)
        two.turns()
        by, answer = two.ask(FETCH, fetch_body(int(str(session)), epoch, names=False))
        assert (answer["error_code"], answer["session_id"]) == (0, session)
        epoch += 1
    assert by is two.host
    assert not two.home.gateway.fetch.sessions.sessions
    two.ask(METADATA)
    by, answer = two.ask(FETCH, fetch_body(int(str(session)), epoch, names=False))
    assert by is two.home and (answer["error_code"], answer["session_id"]) == (0, session)
    assert not two.host.gateway.fetch.sessions.sessions


def test_a_connection_with_several_fetch_sessions_stays(two: Two) -> None:
    """One of them went along, and the others were not found where they were asked for."""
    two.rest(WINDOW_S)
    sessions = [
        int(str(two.ask(FETCH, fetch_body(0, 0, names=True))[1]["session_id"])) for _ in range(2)
    ]
    for epoch in range(1, 2 * QUIET_LOOKS + 3):
        for session in sessions:
            two.rest(OTHER_S + LOOK_S)
            two.turns()
            by, answer = two.ask(FETCH, fetch_body(session, epoch, names=False))
            assert (answer["error_code"], answer["session_id"]) == (NONE, session)
            assert by is two.home
    first = 2 * QUIET_LOOKS + 3
    for epoch in range(first, first + QUIET_LOOKS + 4):
        assert not two.ask(FETCH, fetch_body(sessions[0], epoch, names=False))[1]["error_code"]
        two.rest(SESSIONS_S if epoch == first else LOOK_S)
        two.turns()
    assert two.is_lent, "it uses one alone"


def test_a_session_that_has_become_large_does_not_keep_its_client_away(two: Two) -> None:
    """It was too much for a message: the client was never answered. It is told to begin anew."""
    two.become_quiet()
    body = fetch_body(0, 0, names=True)
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body["topics"] = [
        {"topic": TOPIC, "partitions": [row | {"partition": index} for index in range(1000)]}
    ]
    by, answer = two.ask(FETCH, body)
    session = int(str(answer["session_id"]))
    assert by is two.host and session
    assert two.ask(METADATA)[1]["brokers"] and not two.is_lent
    assert not two.host.gateway.fetch.sessions.sessions
    _, answer = two.ask(FETCH, fetch_body(session, 1, names=False))
    assert answer["error_code"] == FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(("partitions_max", "is_lent"), [(1, True), (0, False)])
def test_a_session_of_many_partitions_stays(
    two: Two, monkeypatch: pytest.MonkeyPatch, partitions_max: int, is_lent: bool
) -> None:
    monkeypatch.setattr(lending, "SESSION_PARTITIONS_MAX", partitions_max)
    two.rest(WINDOW_S)
    _, answer = two.ask(FETCH, fetch_body(0, 0, names=True))
    session = int(str(answer["session_id"]))
    for epoch in range(1, QUIET_LOOKS + 3):
        two.rest(LOOK_S)
        two.turns()
        two.ask(FETCH, fetch_body(session, epoch, names=False))
    assert two.is_lent == is_lent


def test_who_asks_for_other_things_stays(two: Two) -> None:
    two.rest(WINDOW_S)
    for _ in range(10):
        for api in (METADATA, PRODUCE, PRODUCE):
            two.ask(api)
            two.rest(OTHER_S / 4)
            two.turns()
        assert not two.is_lent


def test_who_only_heartbeats_and_is_answered_at_once_stays(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = codec.encode("HeartbeatResponse", HEARTBEAT[1], {"error_code": 0})

    def repeat(
        connection: Connection, _key: int, _version: int, buffer: bytearray, start: int, _end: int
    ) -> None:
        body = bytes(buffer[start + 4 : start + 8]) + b"\0" + answer
        connection.out.append(len(body).to_bytes(4, "big") + body)

    monkeypatch.setattr(two.home.gateway.plain.standing, "repeat", repeat)
    body: dict[str, object] = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    two.rest(WINDOW_S)
    for _ in range(10):
        assert two.ask(HEARTBEAT, body)[1]["error_code"] == 0
        two.rest(OTHER_S + LOOK_S)
        two.turns()
        assert not two.is_lent


def test_a_network_worker_that_stays_awake_lends_only_who_goes_the_straight_way(two: Two) -> None:
    two.rest(WINDOW_S)
    epoch = session = 0
    for _ in range(20):
        _, answer = two.ask(FETCH, fetch_body(session, epoch, names=not epoch))
        session, epoch = int(str(answer["session_id"])), epoch + 1
        two.rest(LOOK_S)
        two.home_s += LOOK_S * 0.9
        two.turns()
        assert not two.is_lent
    for _ in range(QUIET_LOOKS + 2):
        two.ask(PRODUCE)
        two.rest(LOOK_S)
        two.home_s += LOOK_S * 0.9
        two.turns()
    assert two.is_lent is (native is not None)


@pytest.mark.skipif(native is None, reason="without the compiled kernels")
def test_who_has_much_in_flight_is_read_no_more_until_it_can_be_lent(two: Two) -> None:
    two.rest(WINDOW_S)
    two.ask(PRODUCE)
    sent = answered = 0
    for _ in range(10 * QUIET_LOOKS):
        for _ in range(2):
            two.send(PRODUCE)
            sent += 1
        two.rest(LOOK_S)
        two.turns()
        if two.is_lent:
            break
        assert two.serve(two.home) <= 2
        two.turns()
        while answered < sent and select.select([two.home.client], [], [], 0)[0]:
            two.home.answer(*PRODUCE)
            answered += 1
    assert two.is_lent
    two.serve(two.host)
    two.turns()
    while answered < sent:
        assert two.home.answer(*PRODUCE)["responses"]
        answered += 1
    assert not two.lender.muted and two.ask(PRODUCE)[0] is two.host


@pytest.mark.skipif(native is None, reason="without the compiled kernels")
def test_who_can_not_be_lent_after_all_is_read_again_at_once(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.rest(WINDOW_S)
    two.ask(PRODUCE)
    monkeypatch.setattr(Passage, "send", lambda *_message: False)
    was_muted = False
    for _ in range(4 * QUIET_LOOKS):
        for _ in range(2):
            two.send(PRODUCE)
        two.rest(LOOK_S)
        two.home.gateway.turn(two.home.poller.poll(0))
        was_muted |= bool(two.lender.muted)
        for _ in range(2):  # what came while it was muted is asked for behind the first answers
            two.serve(two.home)
            two.home.gateway.turn(two.home.poller.poll(0))
        for _ in range(2):
            assert two.home.answer(*PRODUCE)["responses"]
        assert not two.lender.muted
    assert was_muted and not two.is_lent
