"""Guests that end, and hosts and network workers that end or are full while they have them."""

import gc
import os
import socket

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.guests import AGAIN_S, WINDOW_S
from shmbroker.gateway.lending import LOOK_S, QUIET_LOOKS
from shmbroker.ipc.passage import Passage
from shmbroker.wire import codec
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from shmbroker.wire.frame import parse_response_header, request_frame
from tests.support.family_memory import BROKER_ID
from tests.unit.gateway.two_gateways import (
    BODIES,
    FETCH,
    HOME_SLOT,
    METADATA,
    PRODUCE,
    Two,
    fetch_body,
    two,
)

__all__ = ["two"]


def test_the_end_of_a_guest_is_told(two: Two) -> None:
    two.become_quiet()
    two.home.client.close()
    two.turns()
    assert not two.lender.away and not two.guests.present and two.open == 0
    two.home.client = socket.create_connection(two.home.listening.getsockname())


@pytest.mark.parametrize(("is_ended", "left"), [(True, 0), (False, 1)])
def test_a_guest_that_left_is_freed_at_once(two: Two, is_ended: bool, left: int) -> None:
    """left: at home."""
    two.become_quiet()
    two.ask(PRODUCE)
    gc.collect()
    gc.disable()
    try:
        others = connections() - 2  # those that other tests have left
        if is_ended:
            two.home.client.close()
        else:
            two.guests.send_all()
        two.turns()
        assert not two.guests.present
        assert connections() == others + left
    finally:
        gc.enable()
    if is_ended:
        two.home.client = socket.create_connection(two.home.listening.getsockname())


def connections() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


def test_a_guest_between_two_requests_outlives_its_host(two: Two) -> None:
    two.become_quiet()
    two.ask(PRODUCE)
    two.home.die()
    two.home.gateway.turn([])
    assert not two.is_lent and two.open == 1
    two.send(PRODUCE)
    two.home.gateway.turn(two.home.poller.poll(10))
    [topic] = two.home.answer(*PRODUCE)["responses"]
    assert topic["partition_responses"][0]["error_code"] == NOT_LEADER_OR_FOLLOWER


def test_a_guest_whose_request_was_read_ends_with_its_host(two: Two) -> None:
    two.become_quiet()
    two.send(PRODUCE)
    two.host.gateway.turn(two.host.poller.poll(10))
    for connection in two.guests.present:  # the host's end is closed as it dies
        connection.close()
    two.home.die()
    two.home.gateway.turn([])
    assert not two.is_lent and two.open == 0
    assert two.home.client.recv(1) == b""


def test_the_guests_of_a_network_worker_end_with_it(two: Two) -> None:
    two.become_quiet()
    two.guests.on_lender_lost(HOME_SLOT)
    assert not two.guests.present and not two.host.gateway.loop.connections
    two.turns()
    assert two.is_lent  # nothing is said to a process that is dead


def test_what_a_network_worker_lent_as_it_died_is_not_taken(two: Two) -> None:
    """It would go home to the successor, under a number that this one has given to another."""
    while not two.is_lent:
        two.ask(PRODUCE)
        two.rest(LOOK_S)
        two.home.gateway.turn(two.home.poller.poll(0))
    two.guests.on_lender_lost(HOME_SLOT)
    two.host.gateway.turn(two.host.poller.poll(0))
    assert not two.guests.present and not two.host.gateway.loop.connections


def test_the_successor_of_a_network_worker_is_not_told_of_its_guests(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.become_quiet()
    with monkeypatch.context() as patched:
        patched.setattr(Passage, "send", lambda *_message: False)  # it has no room
        two.home.client.close()
        two.host.gateway.turn(two.host.poller.poll(10))
    two.guests.on_lender_lost(HOME_SLOT)
    two.turns()
    assert not two.guests.present and two.is_lent
    two.home.client = socket.create_connection(two.home.listening.getsockname())


def test_a_host_that_ends_sends_everybody_home(two: Two) -> None:
    two.become_quiet()
    two.guests.close()
    two.turns()
    assert not two.is_lent and two.room == 0
    two.rest(100 * LOOK_S)
    assert two.room == 0
    assert two.ask(PRODUCE)[0] is two.home


def test_a_frame_of_who_left_meanwhile_harms_nobody(two: Two) -> None:
    two.become_quiet()
    key, version, name = METADATA
    encoded = codec.encode(f"{name}Request", version, BODIES[name])
    frame = request_frame(key, version, 7, "client", encoded)
    two.home.client.sendall(frame)
    two.home.client.shutdown(socket.SHUT_WR)
    two.turns()
    size = int.from_bytes(two.home.receive(4), "big")
    assert parse_response_header(key, version, two.home.receive(size))[0] == 7
    two.turns()
    assert two.home.client.recv(1) == b"" and two.open == 0


def test_who_has_closed_its_sending_side_is_answered_all_that_it_asked_for(two: Two) -> None:
    """What a guest may not ask waited behind its Fetch, and ended it unanswered."""
    two.become_quiet()
    two.send(FETCH, fetch_body(0, -1, names=True))
    two.send(METADATA)
    two.turns()
    two.home.client.shutdown(socket.SHUT_WR)
    two.turns()
    assert two.serve(two.host) == 1
    two.turns()
    assert two.home.answer(*FETCH)["responses"]
    assert two.home.answer(*METADATA)["brokers"]
    two.turns()
    assert two.home.client.recv(1) == b"" and two.open == 0


def test_the_guests_of_a_broker_that_is_fenced_end(two: Two) -> None:
    two.become_quiet()
    two.lender.on_broker_fenced(BROKER_ID)
    assert two.home.client.recv(1) == b""
    two.turns()
    assert not two.guests.present and not two.lender.away and two.open == 0


def test_a_host_that_is_full_gives_it_back_and_says_that_it_has_no_room(two: Two) -> None:
    two.rest(WINDOW_S)
    assert two.room
    two.guests.count_max = 0
    for _ in range(2 * QUIET_LOOKS):
        by, _ = two.ask(PRODUCE)
        assert by is two.home
        two.home.clock.now += LOOK_S
        two.turns()
    assert two.lender.stays and not two.is_lent and two.open == 1
    two.rest(WINDOW_S)
    assert two.room == 0


def test_a_host_gives_back_what_came_as_it_ends_once_there_is_room_to_say_so(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could not say at once was never said: nobody served the connection any more."""
    while not two.is_lent:
        two.ask(PRODUCE)
        two.rest(LOOK_S)
        two.home.gateway.turn(two.home.poller.poll(0))
    two.guests.close()
    with monkeypatch.context() as patched:
        patched.setattr(Passage, "send", lambda *_message: False)
        rest = two.host.gateway.turn(two.host.poller.poll(10))
    assert rest <= AGAIN_S, "nothing else would wake it"
    two.turns()
    assert not two.is_lent and not two.guests.present and two.open == 1
    assert two.ask(PRODUCE)[0] is two.home


def test_a_host_without_descriptors_gives_it_back(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    passage = two.at_host
    receive = Passage.receive

    def without(each: Passage) -> tuple[tuple[object, ...], list[int]] | None:
        found = receive(each)
        if each is not passage or found is None:
            return found
        for descriptor in found[1]:
            os.close(descriptor)
        return found[0], []

    monkeypatch.setattr(Passage, "receive", without)
    two.rest(WINDOW_S)
    for _ in range(2 * QUIET_LOOKS):
        by, _ = two.ask(PRODUCE)
        assert by is two.home
        two.rest(LOOK_S)
        two.turns()
    assert two.lender.stays and not two.is_lent and two.open == 1


def test_it_ends_where_what_was_read_of_it_is_lost(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.become_quiet()
    send = Passage.send
    monkeypatch.setattr(Passage, "send", lambda each, message, _fds=(): send(each, message))
    two.send(METADATA)
    two.turns()
    assert two.home.client.recv(1) == b""
    assert not two.guests.present and not two.lender.away and two.open == 0
