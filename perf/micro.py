#!/usr/bin/env python3
"""What each step of a small produce costs by itself, in µs, beside its budget.

    perf/micro.py [--repeats 50]

The steps are those of "Produce" in ARCHITECTURE.md, their budgets those of perf/README.md. Both
processes' code runs here in one, over a real ring, a real log in a temporary directory and a real
socket; nobody sleeps, so no doorbell is written. What is shown is the best of the repeats, each
over 200 requests: what the step costs where nothing comes in between. The sum is therefore less
than what `perf/produce` sees, which has turns, wake-ups and cold caches in it.
"""

import argparse
import itertools
import re
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import driver
from shmbroker.broker.append import Appender
from shmbroker.broker.append_runs import AppendRuns
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.produce import ProduceApi
from shmbroker.gateway.results import Results
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import APPEND, APPEND_BATCH_AT, APPENDED, APPENDED_HEAD
from shmbroker.ipc.peer import Peer
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import check_batch
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import broker_layers, effective_topic_configs
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes
from shmbroker.shm.rings import Rings
from shmbroker.shm.words import words_of

COUNT = 200
"""Requests in each repeat: fewer than a connection may have in flight."""

STEPS = {
    "P1": "epoll, recv",
    "P2": "frame, order, constant bytes, request",
    "P3": "claim, copy of the batch into the ring",
    "P4": "publish, look at the sleeper's flag",
    "P5": "poll, next",
    "P6": "check_batch: header, CRC-32C",
    "P7": "PartitionLog.append: copy, stamp, index",
    "P8": "partition, acks, timestamps, high watermark",
    "P9": "result claimed and packed",
    "P10": "result, token, answer encoded",
    "P11": "order, send",
}
RUN = "P5 to P9"
"""Those, where the kernel does them for a run of entries."""
NEVER_S = 1e9

VALUE_BYTES = 100

TOPIC, TOPIC_ID = "micro", bytes(15) + b"\x07"
RING_BYTES = 8 << 20
BUDGET_ROW = re.compile(r"^\| (P\d+) \|.*\| (\d+\.\d) \|$", re.MULTILINE)

now = time.perf_counter


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    budget = {step: float(us) for step, us in BUDGET_ROW.findall(readme())}
    cost = measure(options.repeats)
    print(f"{'step':<4} {'':<46} {'µs':>6} {'budget':>7}")
    for step, name in STEPS.items():
        over = "  over" if cost[step] > budget[step] else ""
        print(f"{step:<4} {name:<46} {cost[step]:>6.2f} {budget[step]:>7.1f}{over}")
    print(f"{'':<4} {'all':<46} {sum(cost[step] for step in STEPS):>6.2f} ", end="")
    print(f"{sum(budget.values()):>7.1f}")
    if RUN in cost:
        print(f"{RUN} in a run of the kernel: {cost[RUN]:.2f} µs for each")


def measure(repeats: int) -> dict[str, float]:
    """What each step costs, in µs."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        family = Family(directory)
        for _ in range(repeats + 1):
            for what, seconds in family.requests().items():
                best[what] = min(best.get(what, seconds), seconds)
        family.log.close(clean=True)
    best = {what: seconds for what, seconds in best.items() if seconds < NEVER_S}
    cost = {what: seconds / COUNT * 1e6 for what, seconds in best.items()}
    # What can only be run together with others is what is left of them.
    cost["P2"] = cost.pop("P2 and P3") - cost["P3"]
    cost["P8"] = cost.pop("P6 to P9") - cost["P6"] - cost["P7"] - cost["P9"]
    return cost


def readme() -> str:
    return (Path(__file__).resolve().parent / "README.md").read_text()


class Family:
    """A network worker's and an I/O worker's parts, with what they need of their processes."""

    def __init__(self, directory: str) -> None:
        self.client, self.connection = connect()
        self.batch = driver.batch_of(1, VALUE_BYTES)
        self.frame = driver.produce_frame(TOPIC, self.batch, 1)
        to_io, to_network = ring(), ring()
        # I/O worker
        config = LogConfig(
            effective_topic_configs({}, broker_layers(BrokerConfig.load(None, (), ()), {}, {}))
        )
        self.log = PartitionLog.open(
            directory + "/micro-0", config, file_ids=itertools.count(1), now_ms=1
        )
        partition = Partition(b"", TOPIC, TOPIC_ID, 0, self.log)
        image: Any = SimpleNamespace(
            leader_id=1,
            leader_epoch=0,
            partition_epoch=0,
            replicas=(1,),
            in_sync_replicas=(1,),
            leader_recovery_state=0,
        )
        partition.on_leadership(1, image)
        self.now_ms = time.time_ns() // 1_000_000
        partitions = EveryKey(partition)
        self.appender = Appender(
            partitions,
            lambda: self.now_ms,
            lambda *_: None,
            lambda *_: None,
            lambda: self.now_ms,
        )
        self.runs = AppendRuns(self.appender)
        self.network_peer = peer(0, to_network, to_io)
        # Network worker
        self.io_peer = peer(1, to_io, to_network)
        gateway: Any = SimpleNamespace(
            token=0,
            guard=None,
            pending={},
            image=SimpleNamespace(
                offset=0,
                security=None,
                topics_by_id={},
                topics_by_name={
                    TOPIC: SimpleNamespace(
                        name=TOPIC,
                        topic_id=TOPIC_ID,
                        partitions=(SimpleNamespace(replicas=(1,)),),
                        is_internal=False,
                    )
                },
            ),
            io_peer=lambda _connection: self.io_peer,
            # What Results.take looks at besides
            member=SimpleNamespace(
                words=words_of(memoryview(bytearray(4096))),
                announcements=0,
                peers=[self.io_peer],
                rings=Rings([self.io_peer.reader]),
            ),
            touched=set(),
            loop=SimpleNamespace(flush=lambda _connection: None),
        )
        self.gateway = gateway
        gateway.topic_of = lambda topic, _by_id: gateway.image.topics_by_name[topic["name"]]
        gateway.produce = ProduceApi(gateway)
        self.results = Results(gateway)
        service = SimpleNamespace(submits={0: gateway.produce.submit}, now=now)
        self.loop = EventLoop(service, 100 << 20, 64 << 20, select.epoll())
        self.connection.submits = service.submits
        self.loop.connections[self.connection.fd] = self.connection
        self.loop.poller.register(self.connection.fd, select.EPOLLIN)

    def requests(self) -> dict[str, float]:
        """COUNT requests from the socket to the socket: the seconds of each step."""
        size = len(self.frame)
        found: dict[str, float] = {}
        self.client.sendall(self.frame * COUNT)
        found["P1"] = timed(self.receive, size)
        found["P2 and P3"] = timed(self.take_frames, size)
        found["P3"] = timed(self.claim_and_copy)
        found["P4"] = timed(self.publish)
        found[RUN] = self.append_run()
        taken: list[tuple[int, int, int]] = []
        found["P5"] = timed(self.take_entries, taken)
        assert len(taken) == COUNT, "not every request is on the ring"
        data = self.network_peer.reader.data
        found["P6"] = timed(check_all, data, taken)
        end = self.log.log_end_offset
        found["P7"] = timed(self.append_all, data, taken)
        found["P9"] = timed(self.pack_results)
        found["P6 to P9"] = timed(self.on_append_all, data, taken)
        assert self.log.log_end_offset == end + 2 * COUNT, "not appended"
        self.network_peer.reader.release()
        self.network_peer.publish()
        found["P10"] = timed(self.results.take)
        requests = list(self.connection.inflight)
        assert len(requests) == COUNT and all(request.response for request in requests)
        self.connection.inflight.clear()
        found["P11"] = timed(self.send_all, requests)
        self.client.recv(1 << 20)
        return found

    def receive(self, size: int) -> None:
        poll, recv_into = self.loop.poller.poll, self.connection.socket.recv_into
        view = memoryview(bytearray(size))
        for _ in range(COUNT):
            poll(0)
            recv_into(view)

    def take_frames(self, size: int) -> None:
        take_frames, connection = self.loop.take_frames, self.connection
        buffer = bytearray(self.frame)
        for _ in range(COUNT):
            take_frames(connection, buffer, 0, size)

    def claim_and_copy(self) -> None:
        writer, batch = self.io_peer.writer, self.batch
        claim, data, length = writer.claim, writer.data, len(batch)
        tail, limit = writer._tail, writer._limit
        for _ in range(COUNT):
            index = claim(APPEND, APPEND_BATCH_AT + length) + APPEND_BATCH_AT
            data[index : index + length] = memoryview(batch)
        # As if they had not been: the ring holds the entries of `take_frames`.
        writer._tail, writer._limit = tail, limit

    def publish(self) -> None:
        publish = self.io_peer.publish
        for _ in range(COUNT):
            publish()

    def append_run(self) -> float:
        """Seconds of the kernel for all entries, which are there again afterwards; NEVER_S if it
        stops before the last, as it does now and then, or is not there."""
        reader, writer = self.network_peer.reader, self.network_peer.writer
        reader.poll()
        writer.claim(APPENDED, 0)  # so that it knows how much room there is
        head, tail = reader._head, writer._tail
        begin = time.perf_counter()
        count = self.runs.take_plain(self.network_peer, COUNT, 1 << 30)
        seconds = time.perf_counter() - begin
        reader._head, writer._tail = head, tail - 8
        return seconds if count == COUNT else NEVER_S

    def take_entries(self, taken: list[tuple[int, int, int]]) -> None:
        reader = self.network_peer.reader
        reader.poll()
        while (entry := reader.next()) is not None:
            taken.append(entry)

    def append_all(self, data: memoryview, taken: list[tuple[int, int, int]]) -> None:
        append, at_ms = self.log.append, self.now_ms
        for _, index, length in taken:
            batch = data[index + APPEND_BATCH_AT : index + length]
            append(batch, 0, at_ms, 0, at_ms)
            batch.release()

    def on_append_all(self, data: memoryview, taken: list[tuple[int, int, int]]) -> None:
        on_append, origin = self.appender.on_append, self.network_peer
        for _, index, length in taken:
            on_append(origin, data, index, length)

    def pack_results(self) -> None:
        writer = self.network_peer.writer
        tail, limit = writer._tail, writer._limit
        for token in range(COUNT):
            APPENDED_HEAD.pack_into(
                writer.data, writer.claim(APPENDED, 40), token, 0, 0, -1, 0, -1, 0
            )
        writer._tail, writer._limit = tail, limit

    def send_all(self, requests: list[Any]) -> None:
        inflight, flush, connection = self.connection.inflight, self.loop.flush, self.connection
        for request in requests:
            inflight.append(request)
            flush(connection)
        connection.answered.clear()  # a gateway does at the end of each turn


class EveryKey(Partitions):
    """All partitions are this one."""

    def __init__(self, partition: Partition) -> None:
        super().__init__({partition_key(TOPIC_ID, 0): partition})
        self.partition = partition

    def get(self, _key: bytes, _default: Any = None) -> Partition:
        return self.partition


def timed(run: Callable[..., Any], *arguments: Any) -> float:
    begin = now()
    run(*arguments)
    return now() - begin


def check_all(data: memoryview, taken: list[tuple[int, int, int]]) -> None:
    for _, index, length in taken:
        error, _ = check_batch(data, index + APPEND_BATCH_AT, index + length, 1 << 20)
        assert not error


def connect() -> tuple[socket.socket, Connection]:
    """A client's socket and the connection behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    accepted.setblocking(False)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener: Any = SimpleNamespace(broker_id=1, is_control=False)
    return client, Connection(accepted, listener, now(), {})


def ring() -> memoryview:
    view = memoryview(bytearray(ring_bytes(RING_BYTES)))
    create_ring(view)
    return view


def peer(number: int, writes: memoryview, reads: memoryview) -> Peer:
    """One end of a pair of rings, reaching a process that is awake."""
    words = words_of(memoryview(bytearray(8)))
    made = Peer(
        number,
        "",
        number,
        RingWriter(*parts_of_ring(writes)),
        RingReader(*parts_of_ring(reads)),
        Doorbell(make_eventfd(), words, 0),
    )
    made.incarnation = 1
    return made


if __name__ == "__main__":
    main()
