"""Connections with TLS in the turns of an event loop: requests, files and ends of them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shmbroker.gateway import tls_connection
from shmbroker.ipc import passed_files
from shmbroker.ipc.passed_files import ColdSlice, FileSlice, OpenFile
from shmbroker.log.residency import CANT_SAY
from tests.unit.gateway.tls_desk import Client, Desk, answer, desk, frame

__all__ = ["desk"]


def test_request_and_answer(desk: Desk) -> None:
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    assert desk.service.bodies == [frame(10)[4:]]
    answer(desk, desk.service.requests[0], b"an ", b"answer")
    desk.until(lambda: client.got == b"an answer")
    assert client.tls is not None and client.tls.version() == "TLSv1.3"


SIZES = [
    [0, 1, 100],
    [16_000, 17_000, 3, 40_000, 5],
    [130_000, 10, 131_072, 262_144, 1, 300_000],
    [900_000, 20, 900_001, 70_000],
    [3_000_000, 40, 2_500_000],
]


def served(desk: Desk, clients: list[Client], count: int) -> None:
    """Until each has so many answers; whatever is asked is answered."""

    def is_done() -> bool:
        for request in desk.service.requests:
            if request.response is None:
                answer(desk, request, b"!")
        return all(len(client.got) == count for client in clients)

    desk.until(is_done)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_frames_of_any_size_arrive_whole_and_in_order(desk: Desk, sizes: list[int]) -> None:
    frames = [frame(size, n) for n, size in enumerate(sizes)]
    clients = [desk.client() for _ in range(2)]
    for client in clients:
        client.to_send += b"".join(frames)
    served(desk, clients, len(sizes))
    for connection in desk.loop.connections.values():
        mine = [
            body
            for body, request in zip(desk.service.bodies, desk.service.requests, strict=True)
            if request.connection is connection
        ]
        assert mine == [one[4:] for one in frames]
    assert desk.service.faults == []
    assert desk.loop.memory.used == 0


def test_while_memory_is_short_what_lies_whole_is_served(tmp_path: Path) -> None:
    desk = Desk(tmp_path, memory=1 << 20)
    desk.step_s = 1e-6  # nobody is slow
    try:
        holder = desk.client()
        large = frame(700_000)
        holder.to_send += large[:600_000]
        desk.until(lambda: desk.loop.memory.is_short)
        others = [desk.client() for _ in range(4)]
        small = [frame(size) for size in (5, 9_000, 0, 7_000, 16_000, 3)]
        for client in others:
            client.to_send += b"".join(small)
        served(desk, others, len(small))
        assert desk.loop.memory.is_short and holder.got == b""
        waiting = desk.client()
        waiting.to_send += frame(400_000)
        desk.until(lambda: desk.loop.memory.waiting)
        holder.to_send += large[600_000:]
        served(desk, [holder, waiting], 1)
        assert {large[4:], frame(400_000)[4:]} <= set(desk.service.bodies)
        assert {body for body in desk.service.bodies if len(body) < 20_000} == {
            one[4:] for one in small
        }
        assert desk.service.faults == []
        assert desk.loop.memory.used == 0
    finally:
        desk.close()


@pytest.mark.parametrize("receive_bytes", [0, 40_000])
def test_answers_of_bytes_and_files_arrive_as_they_are(
    desk: Desk, tmp_path: Path, receive_bytes: int
) -> None:
    data = Random(1).randbytes(3_000_000)
    (tmp_path / "log").write_bytes(data)
    client = desk.client(receive_bytes=receive_bytes)
    client.to_send += frame(10) * 2
    desk.until(lambda: len(desk.service.requests) == 2)
    file = OpenFile(os.open(tmp_path / "log", os.O_RDONLY))
    head, tail = bytes(range(100)), b"t" * 200_000
    parts = [
        [head, FileSlice(file, 5, 2_000_000), head, FileSlice(file, 7, 65_536), tail],
        [FileSlice(file, 0, len(data))],
    ]
    for request, those in zip(desk.service.requests, parts, strict=True):
        answer(desk, request, *those)
    expected = head + data[5:2_000_005] + head + data[7 : 7 + 65_536] + tail + data
    desk.until(lambda: len(client.got) >= len(expected))
    assert client.got == expected
    assert desk.loop.traffic.sent_file_bytes == 2_000_000 + 65_536 + len(data)
    assert desk.loop.traffic.sent_bytes > len(expected)
    (connection,) = desk.loop.connections.values()
    assert not connection.wants_write and connection.unsent_bytes() == 0


def test_what_is_not_in_the_page_cache_is_waited_for_by_its_connection_alone(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100_000)
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    cold = [BlockingIOError, BlockingIOError]
    asked: list[int] = []
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and offset >= 50_000 and cold:
            raise cold.pop()
        if flags == os.RWF_NOWAIT and offset < 50_000:
            buffers = [buffers[0][: 50_000 - offset]]
        return read(fd, buffers, offset)  # tmpfs takes no flags

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    monkeypatch.setattr(passed_files, "will_need", lambda _fd, at, _size: asked.append(at))
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 0, 100_000)
    answer(desk, desk.service.requests[0], slice_)
    (connection,) = desk.loop.cold
    assert connection.is_cold and asked == [50_000, 50_000]
    desk.loop.retry_cold()
    desk.until(lambda: client.got == b"x" * 100_000)


@pytest.mark.parametrize("fault", [*CANT_SAY, 5])
def test_a_file_system_that_can_not_say_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(fault, "no")
        return read(fd, buffers, offset)

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 1, 2)
    room = memoryview(bytearray(10))
    if fault in CANT_SAY:
        assert slice_.read_into(room) == 2
        assert bytes(room[:2]) == b"bc" and slice_.length == 0
    else:
        with pytest.raises(OSError, match="no"):
            slice_.read_into(room)


def test_a_slice_that_stays_cold_is_read_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return read(fd, buffers, offset)

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 0, 3)
    room = memoryview(bytearray(10))
    for _ in range(passed_files.COLD_RETRIES_MAX):
        with pytest.raises(ColdSlice):
            slice_.read_into(room)
    assert slice_.read_into(room) == 3


def test_a_client_that_ends_its_side_gets_what_it_has_asked_for(desk: Desk) -> None:
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    assert client.tls is not None
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()  # close_notify, and waits for ours
    client.send_sealed()
    (connection,) = desk.loop.connections.values()
    desk.until(lambda: connection.is_ended)
    assert desk.service.closed == []
    answer(desk, desk.service.requests[0], b"late")
    assert desk.service.closed == [""]
    client.receive()
    assert client.tls.read(10) == b"late"
    with pytest.raises(ssl.SSLZeroReturnError):
        client.tls.read(10)  # our close_notify


def test_bytes_that_nobody_has_encrypted_end_their_connection(desk: Desk) -> None:
    client, other = desk.client(), desk.client()
    for each in (client, other):
        each.to_send += frame(10)
    desk.until(lambda: len(desk.service.requests) == 2)
    client.socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    desk.clients.remove(client)
    desk.until(lambda: desk.service.faults)
    (fault,) = desk.service.faults
    assert fault.startswith("its TLS can't be understood: decryption failed or bad record mac")
    assert len(desk.loop.connections) == 1


def test_records_of_a_byte_are_read_a_share_at_a_time(desk: Desk) -> None:
    """Nobody makes a turn long by them, and none is forgotten."""
    client = desk.client()
    whole = frame(tls_connection.RECORDS_PER_READ * 3)
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)  # the handshake is done on both sides
    answer(desk, desk.service.requests.pop(), b"!")
    desk.until(lambda: client.got == b"!")
    desk.service.bodies.clear()
    assert client.tls is not None
    for byte in whole:
        client.tls.write(bytes([byte]))
    client.send_sealed()
    desk.until(lambda: desk.service.requests)
    assert desk.service.bodies == [whole[4:]]
