"""A gateway with one broker, on memory of its own: the test is the broker and the client."""

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shmbroker.gateway.gateway import Gateway
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.ports import Brokers, Siblings
from shmbroker.gateway.tls_context import load
from shmbroker.ipc.member import FamilyMember
from shmbroker.ipc.passed_files import FileTable
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listeners import ListenerConfig
from shmbroker.shm import latencies, quota_counts
from shmbroker.shm.address_counts import AddressCounts, table_bytes
from shmbroker.shm.counters import (
    AHEAD_ENDS,
    ANNOUNCEMENTS_WORD,
    INCARNATION,
    STATE,
    STATE_RUNNING,
    Counters,
    layout_size,
)
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.latencies import Latencies
from shmbroker.shm.quota_counts import QuotaCounts
from shmbroker.shm.words import words_of
from shmbroker.wire import codec
from shmbroker.wire.frame import parse_response_header, request_frame
from tests.support.family_memory import (
    BROKER_ID,
    RING_BYTES,
    FarEnd,
    Link,
    VirtualClock,
    registration,
    topic,
)

SUPERVISOR, GATEWAY, BROKER = 0, 1, 2
"""Slots."""


class GatewayFamily:
    """Broker 1 leads the only partition of topic `t`; one client is connected."""

    def __init__(
        self,
        *settings: str,
        listener: ListenerConfig | None = None,
        do_aside: Callable[[Callable[[], None]], None] = lambda work: work(),
        ring_size: int = RING_BYTES,
    ) -> None:
        self.counters = Counters(memoryview(bytearray(layout_size(3))), 3)
        words = self.words = self.counters.words
        at = self.counters.at
        self.ahead_ends = self.counters.word(BROKER, AHEAD_ENDS)
        words[at(GATEWAY, INCARNATION)] = words[at(BROKER, INCARNATION)] = 1
        words[at(BROKER, STATE)] = STATE_RUNNING
        words[self.counters.acknowledgement(GATEWAY, BROKER)] = 1
        asleep = words_of(memoryview(bytearray(24)))
        self.eventfds = [make_eventfd() for _ in range(3)]
        self.doorbells = [Doorbell(fd, asleep, at) for at, fd in enumerate(self.eventfds)]
        self.broker = FarEnd(BROKER, "io-worker", BROKER_ID, self.doorbells[BROKER], ring_size)
        peer = self.peer = self.broker.peer
        member = FamilyMember(
            GATEWAY, self.counters, self.doorbells[GATEWAY], self.doorbells[SUPERVISOR], [peer]
        )
        self.passing, passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed.setblocking(False)
        self._passed = passed
        self.files = {BROKER: FileTable(passed)}
        self.clock = VirtualClock()
        self.link = Link(words)
        self.latencies = memoryview(bytearray(latencies.table_bytes()))
        self.poller = select.epoll()
        self.listening = socket.create_server(("127.0.0.1", 0))
        config = BrokerConfig.load(assignments=settings)
        made = Listener(self.listening, BROKER_ID, False, listener or config.listeners[0])
        if made.config.has_tls:
            made.tls = load(config, made.config)
        self.gateway = Gateway(
            self.clock,
            member,
            config,
            self.link,
            self.poller,
            [made],
            Brokers({BROKER_ID: peer}, self.files, {}, {peer.slot: self.ahead_ends}),
            Siblings(
                0,
                {},
                AddressCounts(memoryview(bytearray(table_bytes())), {}),
                QuotaCounts(memoryview(bytearray(quota_counts.table_bytes(11)))),
            ),
            latencies=Latencies(self.latencies),
            do_aside=do_aside,
        )
        words[ANNOUNCEMENTS_WORD] = 1
        self.link.commit(registration(), *topic())
        assert self.gateway.may_begin()
        self.gateway.begin()
        self.client = socket.create_connection(self.listening.getsockname())
        self.client.settimeout(10)
        self.turn()
        assert self.gateway.loop.connections

    def close(self) -> None:
        self.gateway.close()
        self.poller.close()
        for each in (self.client, self.listening, self.passing, self._passed):
            each.close()
        for fd in self.eventfds:
            os.close(fd)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> float:
        """One, with what the sockets have; waits for a socket where there is nothing else to do."""
        return self.gateway.turn(self.poller.poll(0 if self.gateway.has_news() else 10))

    def quiet_turn(self) -> float:
        """One without events."""
        return self.gateway.turn([])

    # ── the client ──────────────────────────────────────────────────────────────────────────────

    def ask(self, key: int, version: int, name: str, body: dict[str, Any]) -> None:
        """Send a request, and take the turn that starts it."""
        encoded = codec.encode(f"{name}Request", version, body)
        self.client.sendall(request_frame(key, version, 7, "client", encoded))
        self.turn()

    def answer(self, key: int, version: int, name: str) -> dict[str, Any]:
        """The next answer; its correlation id is the one that was asked with."""
        size = int.from_bytes(self.receive(4), "big")
        frame = self.receive(size)
        correlation_id, at = parse_response_header(key, version, frame)
        assert correlation_id == 7
        body, _ = codec.decode(f"{name}Response", version, frame[at:])
        return body

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.client.recv(size - len(data))
            assert piece, "the gateway closed the connection"
            data += piece
        return data

    # ── the broker ──────────────────────────────────────────────────────────────────────────────

    def taken(self) -> list[tuple[int, bytes]]:
        """The operations that the gateway has published."""
        return self.broker.taken()

    def reply(self, operation: int, payload: bytes) -> None:
        self.broker.send(operation, payload)

    def die(self) -> None:
        """The supervisor says that the broker is dead."""
        at = self.counters.at
        self.words[at(BROKER, STATE)] = 0
        self.words[at(BROKER, INCARNATION)] += 1
        self.words[ANNOUNCEMENTS_WORD] += 1


@contextmanager
def gateway_family(*settings: str, **more: Any) -> Iterator[GatewayFamily]:
    made = GatewayFamily(*settings, **more)
    try:
        yield made
    finally:
        made.close()
