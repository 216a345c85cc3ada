"""Fetches that a guest's gateway looks up by itself: their answers are those of the usual way."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from shmbroker.broker.read import Reader
from shmbroker.broker.read_lookup import Lookup
from shmbroker.guests.straight_reads import GuestRead, StraightReads
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import CANCEL, READ, READ_COMMITTED, READ_DONE
from shmbroker.ipc.passed_files import pass_file
from shmbroker.purgatory import Purgatory
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec
from shmbroker.wire.api_keys import FETCH
from shmbroker.wire.frame import request_frame
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GatewayFamily
from tests.unit.broker.test_group_commit import NOW_MS, Worker

WAIT_MS = 500
SIZES = {"few": 10, "some": 5_000, "many": 40_000}


class Side:
    """A gateway with one client, and a log with its reader: beside it, or over the rings."""

    def __init__(self, directory: Path, is_straight: bool, isolation: int, version: int) -> None:
        self.isolation, self.version = isolation, version
        self.family = family = GatewayFamily()
        self.image = family.gateway.image.topics_by_name[TOPIC]
        self.worker = worker = Worker(directory)
        self.partition = worker.open(TOPIC)
        del worker.store.partitions[self.partition.key]
        self.partition.key = partition_key(self.image.topic_id, 0)
        worker.store.partitions[self.partition.key] = self.partition
        self.purgatory = Purgatory()
        self.now_ms = 1000
        self.passes = True
        self.answers: Any = SimpleNamespace(slot=9, writer=family.broker.writer, send=family.reply)
        self.answers.writer.payload_bytes_max = 1 << 14
        self.reader = Reader(
            Lookup(worker.store.partitions, self.steady_ms),
            self.purgatory,
            self.steady_ms,
            self._pass_file,
        )
        gateway = family.gateway
        if is_straight:
            broker: Any = SimpleNamespace(
                reader=self.reader, image=gateway.image, look_at_clocks=lambda: None,
                partitions=worker.store.partitions,
            )  # fmt: skip
            gateway.fetch.read_here = StraightReads(gateway, broker, self.answers)
        self.reads = self.told = 0
        """How many went over the ring, and how many were told at once what was appended."""
        self.tells_at_once = False

    def steady_ms(self) -> int:
        return self.now_ms

    def _pass_file(self, _peer: Any, segment: Any) -> None:
        if self.passes:
            pass_file(self.family.passing, segment.file_id, segment.fd)

    def close(self) -> None:
        self.family.close()
        self.partition.log.close(clean=False)
        self.worker.store.log_directory.close()

    def append(self, size: int) -> None:
        batch = memoryview(bytearray(encode_batch([(NOW_MS, None, bytes(size), ())])))
        self.partition.log.append(batch, 0, NOW_MS, 0, NOW_MS)
        self.partition.high_watermark = self.partition.log.log_end_offset
        for read in tuple(self.purgatory.watched.get(self.partition.key, ())):
            if self.tells_at_once and isinstance(read, GuestRead):
                self.told += read.has_answered_with_end(self.partition)
        self.family.gateway.touched.update(
            connection for connection in self.family.gateway.loop.connections.values()
        )
        self.purgatory.check(self.partition.key)

    def ask(self, offset: int) -> None:
        topic: dict[str, Any] = {"topic": TOPIC, "topic_id": self.image.topic_id}
        topic["partitions"] = [
            {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        ]
        body = {
            "max_wait_ms": WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20,
            "isolation_level": self.isolation, "session_epoch": -1, "topics": [topic],
        }  # fmt: skip
        encoded = codec.encode("FetchRequest", self.version, body)
        self.family.client.sendall(request_frame(FETCH, self.version, 7, "client", encoded))
        self.family.turn()
        self.take()

    def take(self) -> None:
        """What has come over the ring to the log's side."""
        for operation, payload in self.family.taken():
            self.reads += operation == READ
            if operation == READ:
                self.reader.on_read(self.answers, memoryview(payload), 0)
            elif operation == CANCEL:
                self.reader.on_cancel(self.answers, int.from_bytes(payload, "little"))

    def expire(self) -> None:
        self.now_ms += WAIT_MS
        self.purgatory.expire(self.now_ms)

    def answer(self) -> bytes:
        """The frame that its client gets now; b"": none."""
        family = self.family
        family.quiet_turn()
        family.client.setblocking(False)
        try:
            data = family.client.recv(1 << 20)
        except BlockingIOError:
            return b""
        finally:
            family.client.settimeout(10)
        whole = int.from_bytes(data[:4], "big") + 4
        frame = data + family.receive(whole - len(data))
        port = family.listening.getsockname()[1].to_bytes(4, "big")
        return frame.replace(port, b"port")  # each side has its own


class Both:
    """The same done to a gateway with a reader beside it, and to one with rings between."""

    def __init__(self, directory: Path, isolation: int = 0, version: int = 11) -> None:
        self.sides = [
            Side(directory / str(each), each, isolation, version) for each in (False, True)
        ]
        self.usual, self.straight = self.sides
        self.do("ask", 0)  # it becomes known
        self.do("expire")
        assert self.answer()
        self.straight.reads = 0

    def do(self, name: str, *arguments: Any) -> None:
        for side in self.sides:
            getattr(side, name)(*arguments)

    def answer(self) -> bytes:
        usual, straight = (side.answer() for side in self.sides)
        assert usual == straight
        return straight


@pytest.fixture(params=[(0, 4), (1, 11), (0, 12), (1, 16)], ids=str)
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(tmp_path, *request.param)
    yield made
    made.do("close")


@pytest.mark.parametrize("at_once", [False, True], ids=["in-its-turn", "at-once"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_who_waits_is_answered_as_over_the_rings(both: Both, size: int, at_once: bool) -> None:
    both.straight.tells_at_once = at_once
    for offset in range(3):
        both.do("ask", offset)
        assert both.answer() == b""
        both.do("append", size)
        assert len(both.answer()) > size
    straight = both.straight
    assert straight.told == 2 * at_once  # the first has no place yet
    assert straight.reads == 0 and not straight.family.gateway.pending
    assert not straight.reader.waiting and not straight.purgatory.waiting
    for name in ("served", "bytes_out", "bytes_of"):
        assert getattr(straight.reader, name) == getattr(both.usual.reader, name), name


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_what_is_there_is_given_at_once(both: Both, size: int) -> None:
    both.do("append", size)
    both.do("append", size)
    for offset in (0, 1, 0):
        both.do("ask", offset)
        assert len(both.answer()) > size * (2 - offset)
    assert both.straight.reads == 0


def test_who_may_not_have_it_all_is_not_told_at_once(both: Both) -> None:
    side = both.straight
    side.append(10)
    side.ask(0)
    assert side.answer()
    partition, log, watched = side.partition, side.partition.log, side.purgatory.watched
    side.ask(1)
    [read] = watched[partition.key]
    assert isinstance(read, GuestRead)
    batch = memoryview(bytearray(encode_batch([(NOW_MS, None, bytes(100), ())])))
    log.append(batch, 0, NOW_MS, 0, NOW_MS)
    assert not read.has_answered_with_end(partition)  # the high watermark has not moved
    partition.high_watermark = log.log_end_offset
    known, place = read.known, log.boundaries[1]
    for change, back in (
        (lambda: setattr(read, "max_bytes", 9), lambda: setattr(read, "max_bytes", 1 << 20)),
        (lambda: setattr(read, "min_bytes", 1 << 20), lambda: setattr(read, "min_bytes", 1)),
        (lambda: setattr(known, "row", (*known.row[:1], 9, *known.row[2:])), None),
        (lambda: setattr(known, "row", (*known.row[:1], 1 << 20, 7, -1)), None),
        (lambda: log.boundaries.pop(1), lambda: log.boundaries.update({1: place})),
        (lambda: setattr(log.active, "unjudged_bytes", 1 << 20), None),
    ):
        row = known.row
        change()
        assert not read.has_answered_with_end(partition)
        known.row = row
        if back is not None:
            back()
    log.active.unjudged_bytes = 0
    read.isolation = READ_COMMITTED
    with mock.patch.object(type(log.aborted), "__bool__", lambda _log: True):
        assert not read.has_answered_with_end(partition)  # it may have to be told of them
    assert read.has_answered_with_end(partition) and not watched
    assert not read.has_answered_with_end(partition)


def test_who_waits_in_vain_and_what_is_out_of_range(both: Both) -> None:
    both.do("ask", 0)
    both.do("expire")
    assert both.answer()
    both.do("ask", 7)
    assert both.answer()
    both.straight.worker.store.partitions.clear()
    both.usual.worker.store.partitions.clear()
    both.do("ask", 0)
    assert both.answer()


def test_a_file_that_is_not_here_yet_is_asked_for(both: Both) -> None:
    for side in both.sides:
        side.passes = False
    both.do("append", 40_000)
    both.do("ask", 0)
    assert both.answer() == b""
    assert both.straight.family.gateway.results.asked_files
    for side in both.sides:
        side.passes = True
        side._pass_file(None, side.partition.log.active)
    assert len(both.answer()) > 40_000


def test_who_leaves_is_answered_no_more(both: Both) -> None:
    straight = both.straight
    straight.ask(0)
    [read] = straight.reader.waiting.values()
    assert isinstance(read, GuestRead)
    loop = straight.family.gateway.loop
    [connection] = loop.connections.values()
    loop.close(connection, "")
    assert not straight.family.gateway.pending
    straight.append(10)  # before that is known here
    assert read.is_done
    straight.take()
    straight.family.quiet_turn()
    assert not straight.reader.waiting and not straight.purgatory.waiting


def test_what_is_no_longer_so_goes_over_the_rings(both: Both) -> None:
    gateway: Any = both.straight.family.gateway
    gateway.fetch.read_here._broker.image = None
    both.do("append", 40_000)
    both.do("ask", 0)
    assert both.answer() and both.straight.reads == 1


def test_a_read_that_is_answered_over_the_ring(both: Both) -> None:
    """So that the tests above compare two things."""
    both.do("append", 10)
    both.do("ask", 0)
    usual, straight = both.usual, both.straight
    assert usual.reads == 2 and straight.reads == 0
    assert usual.family.peer.reader.poll() and not straight.family.peer.reader.poll()
    assert usual.family.peer.reader.next()[0] == READ_DONE  # type: ignore[index]
