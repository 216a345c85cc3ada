"""Descriptors on their way to those who read the files."""

import os
import socket
from types import SimpleNamespace
from typing import Any

from shmbroker.broker.file_passing import FilePassing
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
        passing = FilePassing({SLOT: peer}, {SLOT: ours})
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
