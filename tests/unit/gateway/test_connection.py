"""What a connection still holds of its answers."""

import socket
from types import SimpleNamespace

from shmbroker.gateway.connection import Connection
from shmbroker.ipc.passed_files import FileSlice


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
