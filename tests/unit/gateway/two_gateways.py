"""Two gateways over two brokers: one of a network worker, one that takes its guests."""

import socket
from collections.abc import Iterator

import pytest

from shmbroker.gateway.guests import WINDOW_S, Guests
from shmbroker.gateway.lending import LOOK_S, QUIET_LOOKS, Lender
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
from shmbroker.shm.counters import OPEN_CONNECTIONS
from shmbroker.shm.guest_marks import MARKS
from shmbroker.shm.rings import Rings
from shmbroker.shm.words import WORD_BYTES, words_of
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
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
