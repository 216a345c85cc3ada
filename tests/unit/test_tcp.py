"""How connections are set up, seen on the sockets."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from shmbroker import tcp


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(stack: ExitStack, client_host: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    """Both ends, with another congestion control than Reno where this system has one."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    address = listener.getsockname()
    client = stack.enter_context(socket.create_connection(address, source_address=(client_host, 0)))
    ends = client, stack.enter_context(listener.accept()[0])
    for end in ends:
        for name in (b"cubic", b"bbr"):
            with suppress(OSError):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    return ends


def congestion_control(end: socket.socket) -> str:
    name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def test_what_goes_to_the_same_host_is_not_paced(stack: ExitStack) -> None:
    for end in pair(stack):
        tcp.tune(end)
        assert congestion_control(end) == "reno"
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_goes_elsewhere_is_sent_as_the_system_is_told(stack: ExitStack) -> None:
    # another address of this host stands for another host
    for end in pair(stack, "127.0.0.2"):
        before = congestion_control(end)
        tcp.tune(end)
        assert congestion_control(end) == before
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_that_has_left_already_is_no_fault(stack: ExitStack) -> None:
    client, server = pair(stack)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()  # by a reset, as no time is left to linger
    tcp.tune(server)
