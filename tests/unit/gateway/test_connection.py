"""What a connection still holds of its answers."""

import os
import socket
from types import SimpleNamespace

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.ipc import passed_files
from shmbroker.ipc.passed_files import ColdSlice, FileSlice, OpenFile


def test_unsent_bytes_shrink_as_the_client_reads():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, SimpleNamespace(broker_id=1, is_control=False), 0.0, {})
        assert connection.unsent_bytes() == 0
        connection.out.extend([b"head", memoryview(bytes(1 << 20)), FileSlice(None, 7, 100)])
        assert connection.unsent_bytes() == 4 + (1 << 20) + 100
        assert not connection.send()
        before = connection.unsent_bytes()
        assert before < 4 + (1 << 20) + 100
        assert not connection.send()
        assert connection.unsent_bytes() == before
        theirs.recv(1 << 20)
        assert not connection.send()
        assert connection.unsent_bytes() < before


def test_small_slices_go_with_what_stands_around_them_and_large_ones_by_themselves(tmp_path):
    content = bytes(range(256)) * 1024
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = OpenFile(os.open(path, os.O_RDONLY))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        connection = Connection(ours, SimpleNamespace(broker_id=1, is_control=False), 0.0, {})
        expected = b""
        for number in range(40):
            at, length = number * 1000, 60_000 if number % 9 == 5 else 10 + number * 800
            connection.out.extend([b"head %d" % number, FileSlice(file, at, length)])
            expected += b"head %d" % number + content[at : at + length]
        got, is_sent = b"", False
        while len(got) < len(expected):
            is_sent = is_sent or connection.send()
            got += theirs.recv(1 << 20)
        assert got == expected
        assert not connection.out
    assert connection.traffic.sent_bytes == len(expected)
    assert 0 < connection.traffic.sent_file_bytes <= 5 * 60_000


def test_what_was_just_written_is_not_looked_for_in_the_page_cache_the_first_time(
    tmp_path, monkeypatch
):
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))
    slice_ = FileSlice(OpenFile(os.open(path, os.O_RDONLY)), 0, 100, is_hot=True)
    monkeypatch.setattr(passed_files, "is_cold", lambda *_of: True)
    slice_.warm(100)
    with pytest.raises(ColdSlice):
        slice_.warm(100)
