"""Closed loops over many connections, with requests that were built beforehand.

Sockets        the connections, and one buffer for what comes back
in_turn        one request at a time, on the next connection each
all_at_once    one request in flight on every connection

Frames go out in turn, so that a load may name as many groups or partitions as it likes. The time of
a request is from its send to its whole answer.
"""

import itertools
import resource
import socket
import time
from collections.abc import Callable, Sequence
from select import EPOLLIN, epoll
from typing import Any

from perf import driver

Look = Callable[[memoryview], None]
"""Looks at an answer, without its size; raises `Refused` for one with an error."""


class Sockets:
    """Connections to one address. The answers are small: of 64 KiB at most."""

    def __init__(self, address: str, count: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.first = driver.Connection(address)
        self.all = [self.first.socket]
        host, port = address.rsplit(":", 1)
        for _ in range(count - 1):
            made = socket.create_connection((host, int(port)), 30)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(None)
            self.all.append(made)
        self.view = memoryview(bytearray(1 << 16))

    def take(self, sock: Any) -> memoryview:
        """One small answer, without its size; valid until the next call."""
        view = self.view
        filled = sock.recv_into(view)
        while filled < 4 or filled < 4 + int.from_bytes(view[:4], "big"):
            got = sock.recv_into(view[filled:])
            if not got:
                raise driver.Refused("the broker closed the connection")
            filled += got
        return view[4:filled]

    def close(self) -> None:
        for sock in self.all:
            sock.close()


def in_turn(
    sockets: Sockets, frames: Sequence[bytes], look: Look, seconds: float
) -> tuple[list[float], float]:
    """One request at a time; the next goes out on the next connection, with the next frame:
    (the time of each, seconds in all)."""
    now, take, all_of_them = time.perf_counter, sockets.take, sockets.all
    times: list[float] = []
    begin = end = now()
    count = 0
    while end - begin < seconds:
        sock = all_of_them[count % len(all_of_them)]
        frame = frames[count % len(frames)]
        sent = now()
        sock.sendall(frame)
        look(take(sock))
        end = now()
        times.append(end - sent)
        count += 1
    return times, end - begin


def all_at_once(
    sockets: Sockets, frames: Sequence[bytes], look: Look, seconds: float
) -> tuple[list[float], float]:
    """Each connection sends the next frame when it has its answer; the result as `in_turn`."""
    now, take = time.perf_counter, sockets.take
    by_fd = {sock.fileno(): sock for sock in sockets.all}
    turn = itertools.cycle(frames)
    times: list[float] = []
    sent: dict[int, float] = {}
    with epoll() as poller:
        begin = now()
        for fd, sock in by_fd.items():
            poller.register(fd, EPOLLIN)
            sent[fd] = now()
            sock.sendall(next(turn))
        waiting = len(by_fd)
        while waiting:
            for fd, _ in poller.poll():
                sock = by_fd[fd]
                look(take(sock))
                moment = now()
                times.append(moment - sent[fd])
                if moment - begin < seconds:
                    sent[fd] = moment
                    sock.sendall(next(turn))
                else:
                    waiting -= 1
        return times, now() - begin


def produces(topic: str) -> Look:
    """Looks at the error code of an answer to Produce."""
    at = driver.produce_error_at(topic)

    def look(answer: memoryview) -> None:
        if answer[at] or answer[at + 1]:
            raise driver.Refused(f"Produce answered {bytes(answer)!r}")

    return look
