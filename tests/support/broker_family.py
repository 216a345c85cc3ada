"""A broker with one gateway, on memory of its own: the test is gateway and controller."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmbroker.broker.boot import Boot
from shmbroker.broker.broker import Broker
from shmbroker.broker.disk_reserve import Space
from shmbroker.broker.flusher import OnFlushed
from shmbroker.broker.leaving import Leaving
from shmbroker.broker.ports import Disk, Peers, Tables
from shmbroker.ipc.member import FamilyMember
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_HEAD,
    APPENDED,
    APPENDED_HEAD,
    EXECUTE,
    EXECUTE_HEAD,
    EXECUTED,
    EXECUTED_HEAD,
)
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.meta_properties import MetaProperties, write_meta_properties
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    INCARNATION,
    STATE,
    STATE_RUNNING,
    Counters,
    layout_size,
)
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.latencies import Latencies
from shmbroker.shm.latencies import table_bytes as latencies_bytes
from shmbroker.shm.positions import PositionTable, table_bytes
from shmbroker.shm.standing import StandingAnswers
from shmbroker.shm.standing import table_bytes as standing_bytes
from shmbroker.shm.words import words_of
from shmbroker.wire import codec
from shmbroker.wire.api_keys import BROKER_REGISTRATION
from tests.support.family_memory import (
    BROKER_EPOCH,
    BROKER_ID,
    DIRECTORY_ID,
    FarEnd,
    Link,
    VirtualClock,
    registration,
)

SUPERVISOR, GATEWAY, BROKER, CONTROLLER = range(4)
"""Slots."""
POSITIONS = 8192
CLUSTER = "cluster"


class InlineFlusher:
    """`Flushing` without a thread: done when it is asked what is done."""

    def __init__(self) -> None:
        self.jobs: list[tuple[list[int], OnFlushed]] = []
        self.fault: OSError | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs)

    @property
    def waiting(self) -> int:
        return len(self.jobs)

    def took_us(self) -> list[int]:
        return []

    def submit(self, fds: list[int], on_done: OnFlushed, /) -> None:
        self.jobs.append((fds, on_done))

    def finished(self) -> list[Any]:
        jobs, self.jobs = self.jobs, []
        for fds, _ in jobs:
            for fd in fds:
                os.close(fd)
        return [lambda on_done=on_done: on_done(self.fault) for _, on_done in jobs]

    def stop(self) -> None:
        pass


class BrokerFamily:
    """Broker 1, registered once `boot` has returned; nothing is placed on it yet."""

    def __init__(self, root: Path, *settings: str, had: Sequence[bytes] | None = None) -> None:
        """had: the partitions that the process before had opened, if there was one."""
        self.latencies = memoryview(bytearray(latencies_bytes()))
        self.counters = Counters(memoryview(bytearray(layout_size(4))), 4)
        words = self.words = self.counters.words
        at = self.counters.at
        for slot in (GATEWAY, BROKER, CONTROLLER):
            words[at(slot, INCARNATION)] = 1
        for slot in (GATEWAY, CONTROLLER):
            words[at(slot, STATE)] = STATE_RUNNING
            words[self.counters.acknowledgement(BROKER, slot)] = 1
        positions = PositionTable(memoryview(bytearray(table_bytes(POSITIONS))), POSITIONS)
        if had is not None:
            words[at(BROKER, INCARNATION)] = 2
        for key in had or ():
            place = positions.allocate(key)
            assert place is not None
            positions.store(place, 0, 0, 0)
        asleep = words_of(memoryview(bytearray(32)))
        self.eventfds = [make_eventfd() for _ in range(4)]
        doorbells = [Doorbell(fd, asleep, at) for at, fd in enumerate(self.eventfds)]
        self.gateway = FarEnd(GATEWAY, "network-worker", 1, doorbells[GATEWAY])
        self.controller = FarEnd(CONTROLLER, "controller", 1, doorbells[CONTROLLER])
        self.member = FamilyMember(
            BROKER,
            self.counters,
            doorbells[BROKER],
            doorbells[SUPERVISOR],
            [self.gateway.peer, self.controller.peer],
        )
        self.passing, self.passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.clock = VirtualClock()
        self.link = Link(words)
        self.link.controller = self.controller.peer
        self.flusher = InlineFlusher()
        self.space: Space | OSError = Space(1 << 40, 1 << 39)
        write_meta_properties(
            str(root / "meta.properties"), MetaProperties(BROKER_ID, CLUSTER, DIRECTORY_ID)
        )
        directory = LogDirectory.open(str(root), BROKER_ID, CLUSTER)
        self.broker = Broker(
            self.clock,
            self.member,
            BrokerConfig.load(assignments=settings),
            BROKER_ID,
            ("h", 9),
            self.link,
            Peers([self.gateway.peer], {}, None, None, {}, {GATEWAY: self.passing}, lambda: None),
            Disk(directory, self.flusher, self._look_at_space, str(root / "tier-cache")),
            Tables(
                positions,
                StandingAnswers(
                    memoryview(bytearray(standing_bytes())), 1, self.clock.monotonic_ns
                ),
                {},
                Latencies(self.latencies),
            ),
        )
        words[ANNOUNCEMENTS_WORD] = 1

    def _look_at_space(self) -> Space:
        if isinstance(self.space, OSError):
            raise self.space
        return self.space

    def boot(self, *rows: tuple[str, int, dict[str, Any]]) -> None:
        """Register, with `rows` behind the registration in the metadata log."""
        begin = Boot(self.broker).run()
        next(begin)
        ((key, token),) = self.asked()
        assert key == BROKER_REGISTRATION
        self.link.commit(registration(), *rows)
        self.answer(token, "BrokerRegistration", 4, {"broker_epoch": BROKER_EPOCH})
        for _ in begin:
            self.clock.now += 0.01

    def close(self) -> None:
        Leaving(self.broker).close()
        self.passing.close()
        self.passed.close()
        for fd in self.eventfds:
            os.close(fd)

    # ── the controller ──────────────────────────────────────────────────────────────────────────

    def asked(self) -> list[tuple[int, int]]:
        """What the controller is asked now: (API key, token)."""
        entries = self.controller.taken()
        assert all(operation == EXECUTE for operation, _ in entries)
        heads = [EXECUTE_HEAD.unpack_from(payload) for _, payload in entries]
        return [(head[1], head[0]) for head in heads]

    def answer(self, token: int, name: str, version: int, body: dict[str, Any]) -> None:
        encoded = codec.encode(f"{name}Response", version, body)
        self.controller.send(EXECUTED, EXECUTED_HEAD.pack(token, 0, 0) + encoded)

    # ── the gateway ─────────────────────────────────────────────────────────────────────────────

    def append(self, token: int, key: bytes, batch: bytes, acks: int = -1) -> None:
        """Publish an APPEND of one batch."""
        head = APPEND_HEAD.pack(token, acks, 0, 30_000, key, len(batch))
        self.gateway.send(APPEND, head + batch)

    def appended(self) -> list[tuple[int, int, int]]:
        """The answers to appends since the last time: (token, error code, base offset)."""
        heads = [
            APPENDED_HEAD.unpack_from(payload)
            for operation, payload in self.gateway.taken()
            if operation == APPENDED
        ]
        return [(head[0], head[1], head[4]) for head in heads]


@contextmanager
def broker_family(
    root: Path, *settings: str, had: Sequence[bytes] | None = None
) -> Iterator[BrokerFamily]:
    made = BrokerFamily(root, *settings, had=had)
    try:
        yield made
    finally:
        made.close()
