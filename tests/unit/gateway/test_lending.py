"""Quiet connections are guests of another gateway, and come home when they or it get loud."""

import gc
import os
import select
import socket
from collections.abc import Iterator

import pytest

from shmbroker.gateway import lending
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.fetch_ahead import ToldSlices
from shmbroker.gateway.guests import (
    AGAIN_S,
    BUSY_S,
    RESTS_S,
    ROOM,
    TIMES_FEW,
    USUAL_PER_S,
    WINDOW_S,
    Guests,
)
from shmbroker.gateway.lending import (
    INFLIGHT_FEW,
    LOOK_S,
    OTHER_S,
    QUIET_LOOKS,
    RESTING,
    SESSIONS_S,
    SOON_S,
    Lender,
)
from shmbroker.ipc.core import Core
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPENDED,
    APPENDED_HEAD,
    READ,
    READ_DONE,
    READ_DONE_HEAD,
    READ_SLICE,
    TOKEN,
)
from shmbroker.ipc.passage import Passage, make_pair
from shmbroker.kernels import native
from shmbroker.metadata.quota_image import quota_record
from shmbroker.shm.counters import OPEN_CONNECTIONS
from shmbroker.shm.guest_marks import MARKS
from shmbroker.shm.rings import Rings
from shmbroker.shm.words import WORD_BYTES, words_of
from shmbroker.wire import codec
from shmbroker.wire.error_codes import FETCH_SESSION_ID_NOT_FOUND, NONE, NOT_LEADER_OR_FOLLOWER
from shmbroker.wire.frame import parse_response_header, request_frame
from tests.support.family_memory import BROKER_ID, TOPIC
from tests.support.gateway_family import GATEWAY, GatewayFamily
from tests.support.raw_client import batch_of

PRODUCE, FETCH, METADATA = (0, 9, "Produce"), (1, 11, "Fetch"), (3, 12, "Metadata")
HEARTBEAT = 12, 4, "Heartbeat"
BATCH = batch_of(b"value")
HOME_SLOT = 1
GUESTS_MAX = 100
BODIES = {
    "Produce": {
        "acks": 1,
        "timeout_ms": 1000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": BATCH}]}],
    },
    "Metadata": {"topics": [], "allow_auto_topic_creation": False},
}


def fetch_body(session_id: int, epoch: int, *, names: bool) -> dict[str, object]:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    return {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 5000,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [{"topic": TOPIC, "partitions": [row]}] if names else [],
    }


class Two:
    """A network worker's gateway with a client, and one that it lends to."""

    def __init__(self, *settings: str) -> None:
        self.home, self.host = GatewayFamily(*settings), GatewayFamily()
        self.home.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host.client.close()
        self.host.gateway.turn(self.host.poller.poll(10))
        assert not self.host.gateway.loop.connections
        self.ends = make_pair()
        self.at_host = Passage(self.ends[0])
        self.marks = words_of(memoryview(bytearray(MARKS * WORD_BYTES)))
        self.room_word = memoryview(bytearray(8)).cast("q")
        self.home_s = self.host_s = 0.0
        self.host.link.number = self.home.link.number
        listener = next(iter(self.home.gateway.loop.acceptor.listeners.values()))
        self.guests = Guests(
            self.host.gateway,
            {HOME_SLOT: self.at_host},
            {HOME_SLOT: self.marks},
            [listener],
            self.room_word,
            [Core(self.host.clock.monotonic, Rings([]))],
            lambda: self.host_s,
            GUESTS_MAX,
        )
        self.host.gateway.lending = self.guests
        self.lender = Lender(
            self.home.gateway,
            {BROKER_ID: Passage(self.ends[1])},
            {BROKER_ID: self.marks},
            {BROKER_ID: self.room_word},
            lambda: self.home_s,
        )
        self.home.gateway.lending = self.lender

    @property
    def room(self) -> int:
        return self.room_word[0]

    def close(self) -> None:
        self.home.close()
        self.host.close()
        for end in self.ends:
            end.close()

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def rest(self, seconds: float) -> None:
        """Both sleep that long."""
        for family in (self.home, self.host):
            family.clock.now += seconds
        self.guests.rested(self.host.clock.now)
        self._judge()

    def work(self, seconds: float) -> None:
        """The host has no rest for so long."""
        for family in (self.home, self.host):
            family.clock.now += seconds
        self.host_s += seconds
        self.guests.stays_up(self.host.clock.now)
        self._judge()

    def _judge(self) -> None:
        if self.host.clock.now >= self.guests.next_look:
            self.guests.judge(self.host.clock.now)

    def turns(self) -> None:
        """Both take what has come; nobody waits."""
        for _ in range(3):
            for family in (self.home, self.host):
                family.gateway.turn(family.poller.poll(0))

    # ── the client ──────────────────────────────────────────────────────────────────────────────

    def send(self, api: tuple[int, int, str], body: dict[str, object] | None = None) -> None:
        key, version, name = api
        encoded = codec.encode(f"{name}Request", version, body or BODIES[name])
        self.home.client.sendall(request_frame(key, version, 7, "client", encoded))

    def serve(self, family: GatewayFamily) -> int:
        """Answer the appends and reads that a gateway has asked for: how many."""
        count = 0
        for operation, payload in family.taken():
            token = TOKEN.unpack_from(payload)[0]
            if operation == APPEND:
                family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 42, -1, 3))
            else:
                assert operation == READ
                slice_ = READ_SLICE.pack(0, 0, 0, 5, 5, 0, 0, 0, -1, 0, -1)
                family.reply(READ_DONE, READ_DONE_HEAD.pack(token, 1, 0) + slice_)
            count += 1
        return count

    def ask(
        self, api: tuple[int, int, str], body: dict[str, object] | None = None
    ) -> tuple[GatewayFamily | None, dict[str, object]]:
        """One request and its answer, and whose broker was asked for it."""
        self.send(api, body)
        self.turns()
        by = next((each for each in (self.home, self.host) if self.serve(each)), None)
        self.turns()
        return by, self.home.answer(*api)

    def become_quiet(self) -> None:
        """Ask for one thing at a time until it is lent."""
        self.rest(WINDOW_S)
        for _ in range(QUIET_LOOKS + 2):
            if self.is_lent:
                break
            self.ask(PRODUCE)
            self.rest(LOOK_S)
            self.turns()
        assert self.is_lent and not self.home.gateway.loop.connections

    @property
    def is_lent(self) -> bool:
        return self.lender.away == 1

    @property
    def open(self) -> int:
        at = self.home.counters.at(GATEWAY, OPEN_CONNECTIONS)
        return int(self.home.words[at])


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


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


def test_what_a_guest_may_not_ask_is_answered_at_home(two: Two) -> None:
    two.become_quiet()
    _, answer = two.ask(METADATA)
    assert [broker["node_id"] for broker in answer["brokers"]] == [BROKER_ID]  # type: ignore[union-attr, index]
    assert not two.is_lent and not two.guests.present
    assert len(two.home.gateway.loop.connections) == two.open == 1
    assert two.ask(PRODUCE)[0] is two.home


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


def test_a_guest_that_begins_another_fetch_session_goes_home(two: Two) -> None:
    two.become_quiet()
    for _ in range(2):
        by, _ = two.ask(FETCH, fetch_body(0, 0, names=True))
        assert by is two.host
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent


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


def test_guests_go_home_from_a_host_without_rest_and_stay_longer_each_time(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "is_straight", lambda _connection: False)
    stayed = []
    for _ in range(3):
        two.become_quiet()
        for _ in range(TIMES_FEW + 1):
            two.ask(FETCH, fetch_body(0, -1, names=True))
        two.work(BUSY_S * 1.5)
        two.turns()
        assert not two.is_lent and two.room >= RESTING
        began = two.home.clock.now
        while True:
            by, _ = two.ask(PRODUCE)
            if by is two.host:
                break
            two.rest(LOOK_S)
            two.turns()
        stayed.append(two.home.clock.now - began)
        two.ask(METADATA)
        two.rest(0.01)
        # the lender keeps it a while, too; nobody tests both at once
        two.lender.stays.clear()
    assert RESTS_S[0] <= stayed[0] < stayed[1] < stayed[2]


def test_a_loud_guest_is_read_no_more_and_goes_once_it_is_answered(two: Two) -> None:
    two.become_quiet()
    for _ in range(TIMES_FEW):
        two.ask(PRODUCE)
    two.send(PRODUCE)
    two.turns()
    two.work(BUSY_S * 1.5)
    two.send(PRODUCE)
    two.turns()
    assert two.is_lent and two.serve(two.host) == 1
    two.turns()
    assert not two.is_lent and two.serve(two.home) == 1
    two.turns()
    for _ in range(2):
        assert two.home.answer(*PRODUCE)["responses"]


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

    def repeat(connection: Connection, buffer: bytearray, start: int, *_more: object) -> None:
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


def test_when_quotas_come_guests_go_home(two: Two) -> None:
    two.become_quiet()
    two.host.gateway.quotas.is_active = True
    two.home.gateway.quotas.is_active = True
    two.ask(PRODUCE)
    two.turns()
    assert not two.is_lent and not two.guests.present
    [connection] = two.home.gateway.loop.connections.values()
    assert connection.throttle is not None, "it is charged like those that were at home"
    for _ in range(2 * QUIET_LOOKS):
        two.rest(LOOK_S)
        assert two.ask(PRODUCE)[0] is two.home


def test_who_was_to_be_lent_stays_when_quotas_come(two: Two) -> None:
    two.rest(WINDOW_S)
    for _ in range(QUIET_LOOKS + 2):
        two.rest(LOOK_S)
        two.send(PRODUCE)
        two.turns()
        if two.lender.to_lend:
            break
        two.serve(two.home)
        two.turns()
        two.home.answer(*PRODUCE)
    assert two.lender.to_lend and not two.is_lent, "it waits for its answer"
    two.home.link.commit(quota_record((("user", None),), "consumer_byte_rate", 1.0))
    two.home.quiet_turn()
    assert two.serve(two.home) == 1
    two.turns()
    assert two.home.answer(*PRODUCE)["responses"]
    assert not two.is_lent
    [connection] = two.home.gateway.loop.connections.values()
    assert not connection.is_muted
    two.home.link.commit(quota_record((("user", None),), "consumer_byte_rate", None))
    two.home.quiet_turn()
    assert connection.throttle is None, "it is not held to a quota that is gone"


def test_who_was_to_be_lent_is_muted_for_as_long_as_a_quota_says(two: Two) -> None:
    home = two.home
    [connection] = home.gateway.loop.connections.values()
    home.gateway.loop.mute(connection)
    two.lender.muted.add(connection)  # until what it waits for is answered
    home.link.commit(quota_record((("user", None),), "consumer_byte_rate", 1.0))
    home.quiet_turn()
    home.gateway.quotas.mute(connection, 10_000, "fetch")
    two.rest(LOOK_S)
    home.quiet_turn()
    assert connection.is_muted and not two.lender.muted
    two.rest(10)
    home.quiet_turn()
    assert not connection.is_muted


@pytest.mark.parametrize("knows_quota", [True, False])
@pytest.mark.parametrize("has_sent", [True, False])
def test_a_guest_that_a_quota_has_muted_stays_muted_at_home(
    two: Two, *, knows_quota: bool, has_sent: bool
) -> None:
    """It was read at once, as only its host knew how long it was to wait."""
    two.become_quiet()
    quota = quota_record((("user", None),), "producer_byte_rate", 1.0)
    two.send(PRODUCE)
    if has_sent:
        two.send(METADATA)
    two.host.gateway.turn(two.host.poller.poll(0))
    two.host.link.commit(quota)
    two.host.gateway.turn([])
    if knows_quota:
        two.home.link.commit(quota)
        two.home.quiet_turn()
    [guest] = two.guests.present
    two.host.gateway.quotas.mute(guest, 10_000, "produce")
    assert two.serve(two.host) == 1
    two.turns()
    assert not two.is_lent and two.home.answer(*PRODUCE)["responses"]
    [connection] = two.home.gateway.loop.connections.values()
    if not has_sent:
        two.send(METADATA)
    two.turns()
    assert connection.is_muted
    assert not select.select([two.home.client], [], [], 0)[0]
    two.rest(10)
    two.turns()
    assert not connection.is_muted
    assert two.home.answer(*METADATA)["brokers"]


def test_what_was_told_before_a_connection_was_lent_is_not_used_when_it_is_home(two: Two) -> None:
    two.become_quiet()
    [away] = two.lender.lent.values()
    away.connection.ahead = ToldSlices()
    two.guests.close()
    two.turns()
    assert not two.is_lent and away.connection.ahead is None


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


def test_who_asks_again_at_once_is_not_kept(two: Two) -> None:
    two.become_quiet()
    [guest] = two.guests.present
    for _ in range(int(USUAL_PER_S * WINDOW_S * 2)):  # as a client that waits for each answer
        two.guests.note_usual(guest)
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent and two.room >= RESTING


def test_who_goes_the_straight_way_is_kept_however_busy_that_is(two: Two) -> None:
    two.become_quiet()
    [guest] = two.guests.present
    for _ in range(10):
        two.guests.mark(guest)
        for _ in range(TIMES_FEW):
            two.guests.note_usual(guest)
        two.work(WINDOW_S)
        two.turns()
    assert two.is_lent


def test_who_asks_for_something_large_goes_home(two: Two) -> None:
    two.become_quiet()
    two.ask(PRODUCE)
    for family in (two.home, two.host):
        [fast] = family.gateway.produce.known.kept.values()
        fast.lent_bytes_max = len(BATCH) - 1
    two.rest(0.01)
    two.ask(PRODUCE)
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent
    two.rest(RESTS_S[0])
    for _ in range(2 * QUIET_LOOKS):
        two.rest(LOOK_S)
        assert two.ask(PRODUCE)[0] is two.home


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
