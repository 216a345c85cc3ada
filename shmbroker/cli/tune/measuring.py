"""Measures a host: what parts cost alone, and brokers with candidate settings, in alternation.

Each candidate has a broker of its own in a temporary directory, on a free port of the loopback
address; the settings of now have one, too. They take turns, load by load, so whatever else the
machine does strikes all of them, and a round's ratio is of two neighbours in time.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from shmbroker import clock, tcp
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.tune.advice import ADVISED, NETWORK_WORKERS, candidates
from shmbroker.cli.tune.facts import (
    LARGE,
    LOADS,
    MANY,
    SMALL,
    Candidate,
    Costs,
    System,
    Trial,
    TuneFacts,
)
from shmbroker.client.connection import Exchange
from shmbroker.crc32c import crc32c
from shmbroker.observe.kernel import usage
from shmbroker.processes.limits import network_workers
from shmbroker.records.batch import encode_batch
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.testing.broker import Broker
from shmbroker.wire.api_keys import PRODUCE

PARTS_SHARE = 0.2
"""The share of the time for what is measured alone."""
ROUND_S = 0.1
WARM_UP_S = 0.1
ROUND_BYTES_MAX = 32 << 20
"""What a round of a trial appends at most."""
ROUNDS_LEAST = 3
TOPIC = "tune"
PARTITIONS = 4
VERSION = 9
CHUNK_BYTES = 1 << 20
DISK_BYTES = 64 << 20
WAKES = 300
SHAPES = {SMALL: (100, 1, 1), MANY: (100, 4, 16), LARGE: (256 << 10, 4, 4)}
"""Load → bytes of a batch, connections, requests in flight on each."""
_ECHO = """
import os, sys
mine, theirs = map(int, sys.argv[1:])
while True:
    if os.eventfd_read(mine) > 1:
        break
    os.eventfd_write(theirs, 1)
"""


def measure(
    directory: Path, config: BrokerConfig, seconds: float, say: Callable[[str], None]
) -> TuneFacts:
    """All facts, in about so many seconds; temporary files are in `directory`."""
    facts = TuneFacts(system=system(directory), settings=settings_of(config))
    begin = clock.monotonic()
    try:
        home = Path(tempfile.mkdtemp(prefix="shmbroker-tune-", dir=directory))
    except OSError as fault:
        raise CommandFault(
            f"{directory} can't be written to: {fault.strerror}; name another by --data"
        ) from None
    try:
        say("wake-ups, memory, checksums, the disk")
        facts.costs = parts(home)
        with ExitStack() as opened:
            rest = max(seconds * (1 - PARTS_SHARE), seconds - (clock.monotonic() - begin))
            _try_all(facts, home, rest, opened, say)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return facts


def settings_of(config: BrokerConfig) -> dict[str, str]:
    """The settings that may be advised, as a start would have them."""
    found = {name: str(config[name]) for name in ADVISED}
    found[NETWORK_WORKERS] = str(network_workers(config[NETWORK_WORKERS]))
    return found


# ── the host ────────────────────────────────────────────────────────────────────────────────────


def system(directory: Path) -> System:
    """What the kernel is told."""
    from shmbroker.cli.doctor.gather_host import host

    found = host(Path("/"))
    disk = disk_of(directory)
    read_ahead = None
    if disk is not None:
        with suppress(OSError, ValueError):
            text = Path(f"/sys/block/{disk}/queue/read_ahead_kb").read_text(encoding="ascii")
            read_ahead = int(text)
    return System(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=found.memory_bytes,
        dirty_ratio=found.dirty_ratio,
        dirty_bytes=found.dirty_bytes,
        huge_pages=found.huge_pages,
        somaxconn=found.backlog_max,
        open_files=found.open_files_max,
        read_ahead_kb=read_ahead,
        disk=disk,
    )


def disk_of(directory: Path) -> str | None:
    """The whole disk under a directory, by its name in /sys/block; None: there is no one."""
    try:
        number = os.stat(directory).st_dev
        place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
    except OSError:
        return None
    for each in (place, place.parent):  # a partition lies below its disk
        if (Path("/sys/block") / each.name).exists():
            return each.name
    return None


def parts(home: Path) -> Costs:
    """What is measured alone."""
    found = Costs()
    with suppress(OSError):
        found.wake_us = _wake_us()
    source, target = bytearray(16 << 20), bytearray(16 << 20)
    found.copy_rate = len(source) / _best(lambda: target.__setitem__(slice(None), source))
    found.crc_rate = len(source) / _best(lambda: crc32c(source))
    with suppress(OSError):
        _disk(home / "disk", found)
    return found


def _best(act: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of some times."""
    took = []
    for _ in range(times):
        begin = clock.monotonic()
        act()
        took.append(clock.monotonic() - begin)
    return max(min(took), 1e-9)


def _wake_us() -> float:
    """Half of the way to another process, asleep at an eventfd, and back."""
    mine, theirs = os.eventfd(0), os.eventfd(0)
    try:
        words = [sys.executable, "-S", "-c", _ECHO, str(theirs), str(mine)]
        with subprocess.Popen(words, pass_fds=(mine, theirs)) as echo:
            try:
                times = []
                for _ in range(WAKES):
                    begin = clock.monotonic()
                    os.eventfd_write(theirs, 1)
                    if not select.select([mine], [], [], 10)[0]:
                        raise TimeoutError("nobody echoes")
                    os.eventfd_read(mine)
                    times.append(clock.monotonic() - begin)
            finally:
                echo.kill()
        return median(times) / 2 * 1e6
    finally:
        os.close(mine)
        os.close(theirs)


def _disk(path: Path, found: Costs) -> None:
    chunk = os.urandom(CHUNK_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        begin = clock.monotonic()
        for _ in range(DISK_BYTES // CHUNK_BYTES):
            os.write(fd, chunk)
        os.fdatasync(fd)
        found.write_rate = DISK_BYTES / (clock.monotonic() - begin)
        times = []
        for _ in range(20):
            begin = clock.monotonic()
            os.write(fd, chunk[:4096])
            os.fdatasync(fd)
            times.append(clock.monotonic() - begin)
        found.flush_us = median(times) * 1e6
        # Sequential means twice the read-ahead of the device.
        rates: dict[int, list[float]] = {os.POSIX_FADV_NORMAL: [], os.POSIX_FADV_SEQUENTIAL: []}
        for _ in range(3):
            for advice, each in rates.items():
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(fd, 0, 0, advice)
                begin = clock.monotonic()
                for at in range(0, DISK_BYTES, CHUNK_BYTES):
                    os.pread(fd, CHUNK_BYTES, at)
                each.append(DISK_BYTES / (clock.monotonic() - begin))
        found.cold_read_rate = median(rates[os.POSIX_FADV_NORMAL])
        found.ahead_read_rate = median(rates[os.POSIX_FADV_SEQUENTIAL])
    finally:
        os.close(fd)
        path.unlink()


# ── trials ──────────────────────────────────────────────────────────────────────────────────────


class Tried:
    """A candidate's broker, and the connections of each load."""

    def __init__(self, candidate: Candidate, settings: dict[str, str], data: Path) -> None:
        self.trial = Trial(candidate)
        self.data = data
        flags = [
            word
            for name, value in (settings | candidate.settings).items()
            for word in ("--set", f"{name}={value}")
        ]
        if candidate.pins:
            flags += ["--set", "shmbroker.share.core=false"]
        try:
            self.broker = Broker(*flags, data=data)
        except RuntimeError as fault:
            last = str(fault).strip().splitlines()[-1]
            raise CommandFault(
                f"A broker with {candidate.name} did not start ({last}); `shmbroker doctor` says "
                "what is wrong on this host"
            ) from None

    def prepare(self) -> None:
        self.broker.create_topic(TOPIC, PARTITIONS)
        if self.trial.candidate.pins:
            pin(self.broker.children())
        self.loads = {load: Load(self.broker, *SHAPES[load]) for load in LOADS}

    def workers_cpu_s(self) -> dict[str, float]:
        """Seconds of CPU that the workers have used, by role."""
        found: dict[str, float] = {}
        for title, pid in self.broker.children().items():
            used = usage(pid)
            role = title.rpartition("-")[0]
            if used is not None:
                found[role] = found.get(role, 0.0) + used.cpu_user_s + used.cpu_system_s
        return found


def pin(children: dict[str, int]) -> None:
    """Pin each worker to a core of its own, as far as there are some: I/O workers from the first
    core on, network workers from the last."""
    cores = sorted(os.sched_getaffinity(0))
    places = {"io-worker": cores, "network-worker": cores[::-1]}
    for role, order in places.items():
        workers = sorted(title for title in children if title.startswith(role))
        for place, title in enumerate(workers):
            with suppress(ProcessLookupError, PermissionError):
                os.sched_setaffinity(children[title], {order[place % len(order)]})


def _try_all(
    facts: TuneFacts, home: Path, seconds: float, opened: ExitStack, say: Callable[[str], None]
) -> None:
    """Try the settings of now and all candidates, round after round."""
    deadline = clock.monotonic() + seconds
    settings = dict(facts.settings, **{"log.retention.bytes": str(64 << 20)})
    wanted = [Candidate("the settings of now"), *candidates(facts.system.cores, facts.settings)]
    tried = []
    for number, candidate in enumerate(wanted):
        say(f"a broker with {candidate.name}")
        each = Tried(candidate, settings, home / str(number))
        opened.callback(each.broker.stop)
        tried.append(each)
    for each in tried:
        each.prepare()
        for load in LOADS:
            each.loads[load].run(WARM_UP_S)
    facts.baseline = tried[0].trial
    facts.trials = [each.trial for each in tried[1:]]
    rounds, spent, requests = 0, dict[str, float](), 0
    while rounds < ROUNDS_LEAST or clock.monotonic() < deadline:
        rounds += 1
        left = max(0.0, deadline - clock.monotonic())
        say(f"round {rounds} of {len(tried)} brokers, {left:.0f} s left")
        order = tried[rounds % len(tried) :] + tried[: rounds % len(tried)]
        for load in LOADS:
            for each in order:
                before = each.workers_cpu_s() if load == MANY and each is tried[0] else {}
                count, took = each.loads[load].run(ROUND_S)
                each.trial.rates[load].append(count / took)
                if before:
                    requests += count
                    for role, cpu in each.workers_cpu_s().items():
                        spent[role] = spent.get(role, 0.0) + cpu - before.get(role, 0.0)
    facts.cpu_us = {role: cpu / requests * 1e6 for role, cpu in spent.items()}


class Load:
    """Connections that each keep so many requests in flight: Produce of one batch."""

    def __init__(self, broker: Broker, size: int, connections: int, depth: int) -> None:
        self.depth = depth
        self.batches_max = max(ROUND_BYTES_MAX // size, connections * depth)
        batch = encode_batch([(clock.now_ms(), None, os.urandom(size), ())])
        self.sockets: list[tuple[socket.socket, bytes]] = []
        for number in range(connections):
            connected = socket.create_connection(("127.0.0.1", broker.port), 10)
            tcp.tune(connected)
            body = {
                "acks": 1,
                "timeout_ms": 10_000,
                "topic_data": [
                    {
                        "name": TOPIC,
                        "partition_data": [{"index": number % PARTITIONS, "records": batch}],
                    }
                ],
            }
            frame = Exchange("tune", "tune").request(PRODUCE, VERSION, body)
            self.sockets.append((connected, frame))
        # Correlation id, tags, topics, name, partitions, partition index.
        self.error_at = 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        """A partition has none for a moment after its topic was made."""
        deadline = clock.monotonic() + 10
        for connected, frame in self.sockets:
            while True:
                connected.sendall(frame)
                error = self._error(next(self._answers(connected)))
                if not error:
                    break
                if clock.monotonic() > deadline:
                    raise CommandFault(
                        f"A broker on trial refuses a batch (error {error}); `shmbroker doctor` "
                        "says what is wrong on this host"
                    )

    def _error(self, answer: bytes) -> int:
        return int.from_bytes(answer[self.error_at : self.error_at + 2], "big", signed=True)

    @staticmethod
    def _answers(connected: socket.socket) -> Iterator[bytes]:
        """Whole answers, as they come."""
        kept = b""
        while True:
            got = connected.recv(1 << 16)
            if not got:
                raise CommandFault("A broker on trial has ended; look at `dmesg` for the reason")
            kept += got
            while len(kept) >= 4:
                end = 4 + int.from_bytes(kept[:4], "big")
                if len(kept) < end:
                    break
                yield kept[4:end]
                kept = kept[end:]

    def run(self, seconds: float) -> tuple[int, float]:
        """Send requests for so long: (requests answered, seconds)."""
        with _polling(self.sockets) as (poller, by_fd):
            begin = clock.monotonic()
            end = begin + seconds
            started = done = 0
            for connected, frame in self.sockets:
                for _ in range(self.depth):
                    connected.sendall(frame)
                    started += 1
            while done < started:
                for fd, _ in poller.poll(10):
                    connected, frame = by_fd[fd]
                    got = connected.recv(1 << 16)
                    answers = self._whole(connected, got)
                    done += answers
                    if clock.monotonic() < end and started < self.batches_max:
                        for _ in range(answers):
                            connected.sendall(frame)
                        started += answers
            return done, clock.monotonic() - begin

    def _whole(self, connected: socket.socket, got: bytes) -> int:
        """How many answers begin in what came; the rest of the last one is read. ProduceResponses
        of one partition are all as long."""
        while True:
            count = at = 0
            while len(got) - at >= 4:
                at += 4 + int.from_bytes(got[at : at + 4], "big")
                count += 1
            if got and at == len(got):
                return count
            more = connected.recv(1 << 16)
            if not more:
                raise CommandFault("A broker on trial has ended; look at `dmesg` for the reason")
            got += more


@contextmanager
def _polling(
    sockets: list[tuple[socket.socket, bytes]],
) -> Iterator[tuple[select.epoll, dict[int, tuple[socket.socket, bytes]]]]:
    poller = select.epoll()
    try:
        for connected, _ in sockets:
            poller.register(connected.fileno(), select.EPOLLIN)
        yield poller, {pair[0].fileno(): pair for pair in sockets}
    finally:
        poller.close()
