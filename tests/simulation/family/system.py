"""The operating system that a simulated family runs on: what `clock`, `os`, `select`, `socket` and
shared memory are while a seed is simulated.

    clock        the scheduler's time; the wall clock may jump
    os           files are those of `SimulatedDisk`; chance is the seed's
    select       an epoll is a real one, whose `poll` gives the baton back
    socket       real sockets without a wire: Unix sockets that look like TCP, known by their owner
    shm.region   memory of this process
    fdatasync    of the flusher: done a while later, without a thread
    threads      of the tier process: greenlets that end with it

Real code runs on it unchanged, so what it gets is close to what Linux gives: edges of eventfds,
short sends, descriptors that are passed, pages shared by map and file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from shmbroker import clock, signs
from shmbroker.broker import append_runs, read
from shmbroker.broker.tiering import tiering
from shmbroker.broker.tiering.pieces import Pieces
from shmbroker.broker.tiering.remotes import RemoteTable
from shmbroker.gateway import fetch_known, fetch_session
from shmbroker.gateway.connection import Connection
from shmbroker.groups.transactions import transaction
from shmbroker.guests import straight_appends
from shmbroker.ipc import core
from shmbroker.log import closing, residency
from shmbroker.processes import guest_gateway, io_worker, network_worker, shared_resources
from shmbroker.replica.partition import Partition
from shmbroker.tier import store_mark, store_workers, transfer
from tests.simulation.family.disk import SimulatedDisk
from tests.simulation.family.scheduler import Event, Scheduler
from tests.simulation.family.threads import Threads

FLUSH_S = (0.0001, 0.003)
SLOW_FLUSH_S = 0.3
SLOW_FLUSHES = 0.02

REAL_EPOLL = select.epoll
REAL_MONOTONIC, REAL_TIME_NS, REAL_SLEEP = clock.monotonic, clock.time_ns, clock.sleep
REAL_SOCKET = socket.socket


class System:
    """What the processes of one simulated family run on."""

    def __init__(self, scheduler: Scheduler, root: str) -> None:
        self.scheduler = scheduler
        self.disk = SimulatedDisk(root, scheduler.call, self.own)
        self.threads = Threads(scheduler)
        self.slow_flushes = SLOW_FLUSHES
        self.kept_min = fetch_session.KEPT_MIN
        self.reads_ahead = False
        """Every slice is sent from its file, and its reader may be told those behind it."""
        self.producer_epoch_last = transaction.EPOCH_LAST
        """Of a transactional producer; a low one, and producer ids are used up."""
        self.piece_bytes = transfer.FETCH_BYTES
        """What is fetched at once from a remote store,"""
        self.cache_bytes = 1 << 30
        """and what a broker keeps of it."""
        self.has_kernel = True
        """For small plain batches; without it each store into a map is a moment to be killed in."""
        self.owned: dict[str, list[Any]] = {}
        """What is closed when a process ends, by its title: sockets, epolls and maps."""

    def own(self, what: Any) -> None:
        """The running process has it."""
        current = self.scheduler.current
        if current is not None:
            self.owned.setdefault(current.title, []).append(what)

    def release(self, title: str) -> None:
        """A process has ended: the kernel closes what it had."""
        for what in self.owned.pop(title, []):
            try:
                what.close()
            except BufferError:
                pass  # a view of the map is still there
        residency.allow_waiting()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All that is in this block, and imports of it, is on this system."""
        scheduler = self.scheduler
        patches = [
            mock.patch.multiple(
                clock,
                monotonic=self._monotonic,
                monotonic_ns=lambda: int(self._monotonic() * 1e9),
                time_ns=self._time_ns,
                now_ms=lambda: self._time_ns() // 1_000_000,
                sleep=self._sleep,
                worked_s=lambda: 0.0,
            ),
            mock.patch.object(os, "urandom", scheduler.random.randbytes),
            mock.patch.object(signal, "signal", lambda number, handler: None),
            mock.patch.multiple(signs, _leave=None, _store=None, attach=lambda leave, store: None),
            mock.patch.object(select, "epoll", lambda: Epoll(self)),
            mock.patch.object(socket, "socket", _socket_class(self)),
            mock.patch.object(shared_resources, "Region", Memory),
            mock.patch.object(shared_resources, "RESULT_RING_BYTES", 64 << 10),
            mock.patch.object(shared_resources, "POSITION_ENTRIES", 64),
            mock.patch.object(io_worker, "Flusher", lambda eventfd: Flusher(self, eventfd)),
            mock.patch.multiple(store_workers, threading=self.threads, queue=self.threads),
            mock.patch.object(store_mark, "Lock", self.threads.Lock),
            mock.patch.object(transfer, "FETCH_BYTES", self.piece_bytes),
            mock.patch.object(tiering, "Pieces", self._pieces),
            mock.patch.object(closing, "FEW", 1 << 30),
            mock.patch.object(transaction, "EPOCH_LAST", self.producer_epoch_last),
            mock.patch.object(fetch_session, "KEPT_MIN", self.kept_min),
            mock.patch.object(core, "LOOK_S", 1.0),
            mock.patch.object(core, "sched_yield", lambda: None),
            mock.patch.multiple(guest_gateway, RING_BYTES=64 << 10, RESULT_RING_BYTES=64 << 10),
            mock.patch.object(guest_gateway, "give_back_freed", lambda: None),
            mock.patch.object(straight_appends, "BYTES_MIN", 0),
            mock.patch.object(network_worker, "keep_large_apart", lambda: None),
            mock.patch.object(network_worker, "give_back_freed", lambda: None),
            # A set of them is walked in the same order in each run of a seed.
            mock.patch.object(Partition, "__hash__", _hash_of_partition),
            mock.patch.object(Connection, "__hash__", _hash_of_connection),
        ]
        if self.reads_ahead:
            patches.append(mock.patch.object(read, "INLINE_SLICE_BYTES", 0))
            patches.append(mock.patch.object(fetch_known, "INLINE_BYTES", 0))
        if not self.has_kernel:
            patches.append(mock.patch.multiple(append_runs, append_plain=None, append_rows=None))
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            stack.enter_context(self.disk.recording())
            try:
                yield
            finally:
                scheduler.close()
                for title in list(self.owned):
                    self.release(title)
                self.disk.close()

    def _pieces(self, table: RemoteTable, root: str, incarnation: int, _bytes_max: int) -> Pieces:
        return Pieces(table, root, incarnation, self.cache_bytes)

    def _monotonic(self) -> float:
        if self.scheduler.is_stranger():
            return REAL_MONOTONIC()
        self.scheduler.call()
        return self.scheduler.now

    def _time_ns(self) -> int:
        if self.scheduler.is_stranger():
            return REAL_TIME_NS()
        self.scheduler.call()
        return int((self.scheduler.now + self.scheduler.wall_ahead_s) * 1e9)

    def _sleep(self, seconds: float, /) -> None:
        if self.scheduler.is_stranger():
            REAL_SLEEP(seconds)
        elif (current := self.scheduler.current) is not None:
            current.sleep(seconds)


def _hash_of_partition(partition: Partition) -> int:
    return int.from_bytes(partition.key[-8:], "big") >> 1


def _hash_of_connection(connection: Connection) -> int:
    return int(connection.client.rpartition(":")[2] or 0)


class Epoll:
    """An epoll whose `poll` is where a process sleeps."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._epoll = epoll = REAL_EPOLL()
        self.register, self.unregister, self.modify = epoll.register, epoll.unregister, epoll.modify
        self.fileno, self.close = epoll.fileno, epoll.close
        system.own(epoll)

    def poll(self, timeout: float = -1, maxevents: int = -1) -> list[Event]:
        scheduler = self._system.scheduler
        scheduler.call()
        if timeout == 0 or scheduler.current is None:
            return self._epoll.poll(0)
        scheduler.current.sleep(timeout, self._epoll)
        events = dict(scheduler_events(scheduler, self._epoll))
        return list(events.items())


def scheduler_events(scheduler: Scheduler, epoll: select.epoll) -> list[Event]:
    """What it was woken for, and what has come since."""
    assert scheduler.current is not None
    return scheduler.current.events + epoll.poll(0)


class Flusher:
    """What `io_worker.Flusher` does, some time later and without a thread."""

    def __init__(self, system: System, eventfd: int) -> None:
        self._system = system
        self._eventfd = eventfd
        self._owner = system.scheduler.current
        self._pending: list[Callable[[], None]] = []
        self._finished: list[Callable[[], None]] = []
        self._free_at = 0.0
        self._took_us: list[int] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._pending or self._finished)

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._finished)

    def took_us(self) -> list[int]:
        took, self._took_us = self._took_us, []
        return took

    def submit(self, fds: list[int], on_done: Callable[[OSError | None], None]) -> None:
        scheduler = self._system.scheduler
        random = scheduler.random
        is_slow = random.random() < self._system.slow_flushes
        takes = SLOW_FLUSH_S if is_slow else random.uniform(*FLUSH_S)
        self._free_at = max(self._free_at, scheduler.now) + takes
        self._took_us.append(int(takes * 1e6))

        def done() -> None:
            if self._owner is not None and not self._owner.is_alive:
                return
            self._pending.remove(done)
            fault = None
            for fd in fds:
                try:
                    os.fdatasync(fd)
                except OSError as error:
                    fault = error
                os.close(fd)
            self._finished.append(lambda: on_done(fault))
            os.eventfd_write(self._eventfd, 1)

        self._pending.append(done)
        scheduler.after(self._free_at - scheduler.now, done)

    def finished(self) -> list[Callable[[], None]]:
        found, self._finished = self._finished, []
        return found

    def stop(self) -> None:
        while self._pending:
            clock.sleep(0.001)


class Memory:
    """A region of this process's own memory, zeroed."""

    def __init__(self, size_bytes: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size_bytes))

    @classmethod
    def create(cls, _name: str, size_bytes: int) -> Memory:
        return cls(size_bytes)


# ── sockets ─────────────────────────────────────────────────────────────────────────────────────


def _socket_class(system: System) -> type[socket.socket]:
    class OwnedSocket(REAL_SOCKET):
        """A socket that is closed when the process ends that made it."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            system.own(self)

    return OwnedSocket


class Listening(REAL_SOCKET):
    """Listens on a Unix socket without a path, and says that it is a TCP port."""

    family = socket.AF_INET

    def __init__(self, system: System, port: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._system = system
        self._port = port
        self._accepted = 40_000
        self.bind("")
        self.listen(128)
        self.path: bytes = super().getsockname()

    def accept(self) -> tuple[socket.socket, Any]:
        self._system.scheduler.call()
        accept: Callable[[], tuple[int, Any]] = super()._accept  # type: ignore[misc]
        fd, _ = accept()
        accepted = Accepted(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._system.own(accepted)
        self._accepted += 1
        return accepted, ("127.0.0.1", self._accepted)

    def getsockname(self) -> Any:
        return "127.0.0.1", self._port


class Accepted(REAL_SOCKET):
    """A connection that says that it is a TCP one."""

    family = socket.AF_INET

    def getsockname(self) -> Any:
        return "127.0.0.1", 0

    def getpeername(self) -> Any:
        return "another host", 0

    def setsockopt(self, *_arguments: Any) -> None:
        pass
