"""Descriptors on their way to those who read the files."""

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.file_passing import FilePassing
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import DROP_FILE, TOKEN
from shmbroker.ipc.passed_files import FileTable

SLOT = 3
COUNT = 2000
"""More than a socket pair has room for."""


def test_a_full_socket_pair_is_tried_once_until_somebody_takes_from_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = os.open("/dev/null", os.O_RDONLY)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        rung: list[int] = []
        peer: Any = SimpleNamespace(
            slot=SLOT, doorbell=SimpleNamespace(ring_if_sleeping=lambda: rung.append(1))
        )
        passing = FilePassing({SLOT: peer}, {SLOT: ours}, lambda _: None)
        table = FileTable(theirs, COUNT)
        for file_id in range(1, COUNT + 1):
            segment: Any = SimpleNamespace(file_id=file_id, fd=fd)
            passing.pass_file(peer, segment)
        left = len(passing.waiting)
        assert 0 < left < COUNT
        passing.pass_waiting()
        assert (len(passing.waiting), rung) == (left, [])
        while passing.waiting:
            table.receive()
            passing.pass_waiting()
            assert len(passing.waiting) < left
            left = len(passing.waiting)
        assert rung
        assert all(table.find(file_id) for file_id in range(1, COUNT + 1))
    os.close(fd)


class Segment:
    """Of a file that can't be opened for a while."""

    file_id = 7

    def __init__(self) -> None:
        self.is_refused = True

    @property
    def fd(self) -> int:
        if self.is_refused:
            raise StorageFault("too many open files", "0.log")
        return 0


def test_a_file_that_can_not_be_opened_is_not_named_and_passed_the_next_time() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        peer: Any = SimpleNamespace(slot=SLOT)
        passing = FilePassing({SLOT: peer}, {SLOT: ours}, lambda _: None)
        table = FileTable(theirs, COUNT)
        segment: Any = Segment()
        with pytest.raises(StorageFault):
            passing.pass_file(peer, segment)
        segment.is_refused = False
        passing.pass_file(peer, segment)
        assert table.find(segment.file_id)


def test_who_asks_again_for_a_file_that_can_not_be_opened_is_told_that_it_is_gone() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sent: list[Any] = []
        faults: list[str] = []
        peer: Any = SimpleNamespace(slot=SLOT, send=lambda *what: sent.append(what))
        passing = FilePassing({SLOT: peer}, {SLOT: ours}, lambda fault: faults.append(fault.path))
        segment: Any = Segment()
        segment.is_refused = False
        passing.pass_file(peer, segment)
        segment.is_refused = True
        passing.pass_again(peer, segment.file_id)
        assert sent == [(DROP_FILE, TOKEN.pack(segment.file_id))]
        assert faults == ["0.log"]
