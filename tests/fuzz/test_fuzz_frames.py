"""The frame path against a model: bytes in any pieces, answers at any time, rings that are full.

A stream of requests, cut anywhere, goes through a real event loop over a socket pair. The service
behind it is a stand-in: it takes a request or says that there is no room, and completes what it has
in any order. Whatever happens: each request is started once and whole, in order and not before its
turn, however short memory is; answers come in request order; garbage closes the connection after
what came before it; and nothing is held of a connection that is gone.

FUZZ_SEEDS=first-last runs other seeds than the usual ones.
"""

import os
import random
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.gateway.arriving import Sender
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.poller import EPOLLIN
from tests.support.loop_service import LoopService

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
KEYS = (PRODUCE, PRODUCE, PRODUCE, FETCH, METADATA, API_VERSIONS)
FRAME_BYTES_MAX = 3 << 20
BUFFER_BYTES_MAX = 1 << 20


def seeds() -> range:
    first, _, last = os.environ.get("FUZZ_SEEDS", "0-149").partition("-")
    return range(int(first), int(last) + 1)


class Service(LoopService):
    """Takes requests as the worker does. `pending` waits for `complete`."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.submits = dict.fromkeys(KEYS, self._take)
        self.started: list[bytes] = []
        self.pending: list[Request] = []
        self.closed: list[tuple[str, bool]] = []

    def _take(
        self, connection: Connection, buffer: bytearray, start: int, end: int, *_: int
    ) -> bool:
        if self.chance.random() < 0.1:
            return False  # no room in the ring
        content = bytes(buffer[start:end])
        key, version, correlation_id = struct.unpack_from(">hhi", content)
        waiting = [request.api_key for request in connection.inflight]
        if key == PRODUCE:
            assert all(other == PRODUCE for other in waiting[1:])
            assert waiting[:1] in ([], [PRODUCE], [FETCH])
        else:
            assert waiting == [], "started before its turn"
        self.started.append(content)
        request = Request(connection, key, version, correlation_id)
        if key == PRODUCE and version == 0:
            return True  # wants no answer
        connection.inflight.append(request)
        if key in (METADATA, API_VERSIONS):
            self.answer(request)
        else:
            self.pending.append(request)
        return True

    def answer(self, request: Request) -> None:
        filler = bytes(self.chance.choice((0, 10, 5000)))
        request.response = [struct.pack(">ii", 4 + len(filler), request.correlation_id), filler]

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self.closed.append((reason, is_fault))


class Play:
    """One stream through one connection."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.frames = [self.frame(number) for number in range(chance.randint(1, 40))]
        self.garbage = b""
        if chance.random() < 0.5:
            self.garbage = chance.choice(
                (
                    struct.pack(">ihhi", -1, 0, 0, 0),
                    struct.pack(">ihhi", 9, 18, 0, 0),
                    struct.pack(">i", FRAME_BYTES_MAX + 1),
                    struct.pack(">ihhih", 10, 77, 0, 0, -1),
                    struct.pack(">ihhih", 2 << 20, METADATA, 0, 0, -1),
                )
            )
        self.service = Service(chance)
        self.loop = EventLoop(self.service, FRAME_BYTES_MAX, BUFFER_BYTES_MAX, select.epoll())
        self.client, accepted = socket.socketpair()
        self.client.setblocking(False)
        accepted.setblocking(False)
        self.connection = Connection(
            accepted, Listener(accepted, 1, False), 1.0, self.service.submits
        )
        self.loop.connections[self.connection.fd] = self.connection
        self.loop.poller.register(self.connection.fd, EPOLLIN)
        self.other = Sender()
        """Another connection, which holds most of the memory for a while; it can't pay for it."""
        self.other.is_blocked = True
        if chance.random() < 0.5:
            memory = self.loop.memory
            memory.hold(self.other, memory.usual - chance.choice((0, 5000, 200_000)), 1.0)  # type: ignore[type-var, arg-type]
        self.stream = memoryview(b"".join(self.frames) + self.garbage)
        self.received = bytearray()

    def frame(self, number: int) -> bytes:
        chance = self.chance
        key = chance.choice(KEYS)
        sizes = (0, 1, 30, 3000) + ((200_000, 2_500_000) if key == PRODUCE else ())
        body = chance.randbytes(chance.choices(sizes, (5, 5, 5, 3, 1, 1)[: len(sizes)])[0])
        content = struct.pack(">hhih", key, chance.randint(0, 3), number, -1) + body
        return struct.pack(">i", len(content)) + content

    def run(self) -> None:
        """Turns, until nothing moves any more."""
        still = 0
        while still < 30:
            moved = self.send() + self.receive()
            self.loop.handle(self.loop.poller.poll(0))
            if self.service.pending and self.chance.random() < 0.5:
                which = self.chance.randrange(len(self.service.pending))
                request = self.service.pending.pop(which)
                self.service.answer(request)
                self.loop.flush(self.connection)
                moved += 1
            self.loop.resume_blocked()
            if self.other.room and (still > 20 or self.chance.random() < 0.05):
                self.loop.memory.release(self.other)  # type: ignore[arg-type]
                moved += 1
            self.loop.feed_starved()
            still = 0 if moved else still + 1

    def send(self) -> int:
        count = self.chance.choice((1, 3, 14, 100, 5000, 300_000))
        try:
            sent = self.client.send(self.stream[:count]) if self.stream else 0
        except OSError:
            return 0
        self.stream = self.stream[sent:]
        return sent

    def receive(self) -> int:
        try:
            data = self.client.recv(1 << 20)
        except OSError:
            return 0
        self.received += data
        return len(data)

    def answered(self) -> Iterator[int]:
        at = 0
        while at + 8 <= len(self.received):
            size, correlation_id = struct.unpack_from(">ii", self.received, at)
            at += 4 + size
            yield correlation_id
        assert at == len(self.received), "half an answer"


def wants_answer(frame: bytes) -> bool:
    key, version = struct.unpack_from(">hh", frame, 4)
    return not (key == PRODUCE and version == 0)


@pytest.mark.parametrize("seed", seeds())
def test_frames_in_any_pieces(seed: int) -> None:
    play = Play(seed)
    play.run()
    service = play.service
    assert service.started == [frame[4:] for frame in play.frames]
    wanted = [number for number, frame in enumerate(play.frames) if wants_answer(frame)]
    answered = list(play.answered())
    if play.garbage:
        assert [is_fault for _, is_fault in service.closed] == [True]
        assert answered == wanted[: len(answered)], "out of order"
    else:
        assert service.closed == []
        assert answered == wanted
        play.client.close()
        play.loop.handle(play.loop.poller.poll(1))
        assert [is_fault for _, is_fault in service.closed] == [False]
    assert play.loop.memory.used == 0
    assert play.loop.connections == {}
    play.client.close()
    play.loop.poller.close()


def test_the_model_sees_a_fault(monkeypatch: Any) -> None:
    """The test can fail: a loop that forgets to hold back is found out."""
    monkeypatch.setattr("shmbroker.gateway.event_loop.PRODUCE", METADATA)
    with pytest.raises(AssertionError):
        for seed in range(20):
            Play(seed).run()
