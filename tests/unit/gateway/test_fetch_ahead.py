"""Fetches that are answered from what was told before, to the bytes that a READ would give."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmbroker.gateway import fetch
from shmbroker.gateway.fetch_ahead import ASKED_MAX, AWAITED_TURNS, TOLD_S
from shmbroker.ipc.operation_layout import (
    READ_AHEAD_HEAD,
    READ_AHEAD_ROW,
    READ_DONE_HEAD,
    READ_FLAG_AHEAD,
    READ_HEAD,
    READ_SLICE,
)
from shmbroker.ipc.passed_files import FileSlice, OpenFile
from shmbroker.wire import codec
from tests.support.fetch_gateway import TOPIC_ID, FetchGateway, FetchPeer

VERSIONS = range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1)
FILE_ID = 9
LENGTH = 50_000
CONTENT = os.urandom(10 * LENGTH)
HIGH, STABLE, START, ENDS = 900, 800, 70, 5
SLICES = (3, 5, 8, 9)
"""The offsets that are told after a read of offset 0; a slice of LENGTH bytes each."""


class Files(dict[int, OpenFile]):
    find = dict.get


class Gateway(FetchGateway):
    def __init__(self) -> None:
        super().__init__(1)
        self.ahead_ends[FetchPeer.slot][0] = ENDS
        with tempfile.TemporaryFile() as file:
            file.write(CONTENT)
            file.flush()
            self.files[FetchPeer.slot] = Files({FILE_ID: OpenFile(os.dup(file.fileno()))})

    def ask(self, offset: int, version: int = 12, **more: Any) -> bool:
        """Whether the broker is asked; its READ, or the answer, is taken by `answer`."""
        row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": LENGTH}
        name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
        body = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20}
        body |= {"topics": [name | {"partitions": [row]}], "replica_id": -1, "session_epoch": -1}
        if version >= 15:
            del body["replica_id"]
        if version < 7:
            del body["session_epoch"]
        before = len(self.peer.sent)
        assert self.submit(version, codec.encode("FetchRequest", version, body | more))
        return len(self.peer.sent) > before

    def answer(self, place: int = 0, high: int = HIGH) -> bytes:
        """The bytes of the answer to the last request; a READ gets the slice at that place."""
        request = self.connection.inflight.pop()
        if request.response is None:
            numbers = high, STABLE, START, FILE_ID, place * LENGTH
            slice_ = READ_SLICE.pack(0, 0, LENGTH, *numbers, -1, 4, -1)
            entry = memoryview(READ_DONE_HEAD.pack(1, 1, 0) + slice_)
            assert self.api.on_read_done(request, self.peer, entry, 0) == []
        parts = []
        for part in request.response:
            if type(part) is FileSlice:
                assert part.length == LENGTH
                part = os.pread(part.file.fd, part.length, part.position)
            parts.append(bytes(part))
        return b"".join(parts)

    def flags(self) -> int:
        """Of the last READ."""
        return READ_HEAD.unpack_from(self.peer.sent[-1])[5]

    def tell(self, ends: int = ENDS, token: int | None = None) -> None:
        """What the broker tells behind its last READ_DONE."""
        token = self.token if token is None else token
        head = READ_AHEAD_HEAD.pack(token, ends, FILE_ID, HIGH, STABLE, START)
        rows = [
            READ_AHEAD_ROW.pack(offset, place * LENGTH, LENGTH, 0)
            for place, offset in enumerate(SLICES, 1)
        ]
        entry = memoryview(b"--" + head + b"".join(rows))
        self.api.ahead.on_read_ahead(self.peer, entry, 2, len(entry) - 2)  # type: ignore[arg-type]

    def read_on(self, version: int = 12) -> None:
        """Until it asks for what follows, and is told."""
        for is_ahead in (False, False, True):
            assert self.ask(0, version)
            assert bool(self.flags() & READ_FLAG_AHEAD) is is_ahead
            self.answer()
        self.tell()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.files.clear()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_a_read(gateway: Gateway, version: int) -> None:
    gateway.read_on(version)
    told = []
    for place, offset in enumerate(SLICES, 1):
        assert not gateway.ask(offset, version)
        told.append(gateway.answer())
        assert CONTENT[place * LENGTH :][:LENGTH] in told[-1]
    assert gateway.connection.ahead is None
    for place, (offset, before) in enumerate(zip(SLICES, told, strict=True), 1):
        assert gateway.ask(offset, version)
        assert gateway.answer(place) == before
        gateway.api.known.clear()
        assert gateway.ask(offset, version)  # decoded
        assert gateway.answer(place) == before


def test_slices_before_the_offset_are_left_out(gateway: Gateway) -> None:
    gateway.read_on()
    assert not gateway.ask(SLICES[2])
    assert CONTENT[3 * LENGTH :][:LENGTH] in gateway.answer()
    assert not gateway.ask(SLICES[3])
    assert gateway.ask(SLICES[3])  # once


def test_what_the_broker_answers_later_is_newer_than_what_it_has_told(gateway: Gateway) -> None:
    gateway.read_on()
    gateway.connection.ahead = None
    assert gateway.ask(0)  # the next request comes before it was told,
    gateway.answer()
    assert gateway.ask(SLICES[0])
    gateway.tell(token=gateway.token - 1)
    answered = gateway.answer(1, HIGH + 7)  # and its answer behind what was told
    assert (HIGH + 7).to_bytes(8, "big") in answered
    assert not gateway.ask(SLICES[1])
    assert (HIGH + 7).to_bytes(8, "big") in gateway.answer()


@pytest.mark.parametrize("more", [{"session_epoch": 0}, {"min_bytes": 2}])
def test_what_was_told_before_another_read_is_not_used_after_it(
    gateway: Gateway, more: dict[str, int]
) -> None:
    gateway.ask(0, **more)
    gateway.answer()
    gateway.read_on()
    gateway.connection.ahead = None
    assert gateway.ask(0)
    gateway.answer()
    assert gateway.ask(0, **more)
    gateway.tell(token=gateway.token - 1)
    gateway.answer(0, HIGH + 7)
    assert gateway.ask(SLICES[0])


def _is_ended(gateway: Gateway) -> None:
    gateway.ahead_ends[FetchPeer.slot][0] += 1


def _is_late(gateway: Gateway) -> None:
    gateway.connection.last_active += TOLD_S


def _has_a_quota(gateway: Gateway) -> None:
    class Throttle:
        @staticmethod
        def fetch_bytes_most(_client_id: bytes | None) -> int:
            return LENGTH

    gateway.connection.throttle = Throttle()


def _file_is_gone(gateway: Gateway) -> None:
    gateway.files[FetchPeer.slot].clear()


def _asks_another_broker(gateway: Gateway) -> None:
    gateway.peer.slot = 5
    gateway.ahead_ends[5] = [ENDS]
    gateway.files[5] = gateway.files[FetchPeer.slot]


@pytest.mark.parametrize(
    "change",
    [
        _is_ended,
        _is_late,
        _has_a_quota,
        _file_is_gone,
        _asks_another_broker,
    ],
)
def test_who_is_not_answered_from_it(gateway: Gateway, change: Callable[[Gateway], None]) -> None:
    gateway.read_on()
    assert not gateway.ask(SLICES[0])
    change(gateway)
    assert gateway.ask(SLICES[1])
    assert gateway.connection.ahead is None


def test_it_ends_with_the_topic_as_it_was(gateway: Gateway) -> None:
    gateway.read_on()
    gateway.make_image()
    assert gateway.ask(SLICES[0])  # decoded
    assert gateway.ask(SLICES[0])
    assert gateway.connection.ahead is None


@pytest.mark.parametrize("offset", [0, 4, 10])
def test_another_offset_ends_it(gateway: Gateway, offset: int) -> None:
    gateway.read_on()
    assert gateway.ask(offset)
    assert gateway.connection.ahead is None


def test_another_kind_of_request_is_not_answered_from_it(gateway: Gateway) -> None:
    for _ in range(2):
        gateway.ask(0, isolation_level=1)
    gateway.read_on()
    assert gateway.ask(SLICES[0], isolation_level=1)


def test_what_is_told_to_nobody(gateway: Gateway) -> None:
    gateway.read_on()
    gateway.connection.ahead = None
    gateway.tell(token=12345)  # nobody has asked
    assert gateway.connection.ahead is None
    assert gateway.ask(0)
    gateway.connection.is_closed = True
    gateway.tell()
    assert gateway.connection.ahead is None
    assert not gateway.api.ahead.asked


def test_those_who_ask_are_bounded(gateway: Gateway) -> None:
    gateway.read_on()
    for _ in range(ASKED_MAX + 10):
        gateway.ask(0)
    assert len(gateway.api.ahead.asked) == ASKED_MAX


def test_the_rings_are_looked_at_first_for_a_few_turns(gateway: Gateway) -> None:
    gateway.read_on()
    assert gateway.api.ahead.awaited_turns == AWAITED_TURNS
    gateway.api.ahead.awaited_turns = 0
    assert not gateway.ask(SLICES[0])
    assert not gateway.api.ahead.awaited_turns  # it has asked nobody


def test_small_answers_ask_for_nothing_more(gateway: Gateway) -> None:
    gateway.read_on()
    assert gateway.ask(0)
    request = gateway.connection.inflight.pop()
    few = READ_SLICE.pack(0, 0, 3, HIGH, STABLE, START, 0, 0, -1, 4, -1) + b"few"
    entry = memoryview(READ_DONE_HEAD.pack(1, 1, 0) + few)
    gateway.api.on_read_done(request, gateway.peer, entry, 0)  # type: ignore[arg-type]
    assert gateway.ask(3) and not gateway.flags() & READ_FLAG_AHEAD


def test_who_can_not_be_ended_is_not_asked(gateway: Gateway) -> None:
    gateway.ahead_ends.clear()
    for _ in range(3):
        assert gateway.ask(0) and not gateway.flags() & READ_FLAG_AHEAD
        gateway.answer()
    assert not gateway.api.ahead.asked
