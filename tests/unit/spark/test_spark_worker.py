"""Spark's Python processes: what they are tuned by, seen on sockets like Spark's."""

import gc
import os
import pickle
import socket
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.spark import worker
from tests.support.waiting import wait_until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tcp_pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    jvm = stack.enter_context(socket.create_connection(listener.getsockname()))
    return jvm, stack.enter_context(listener.accept()[0])


def delays_acks(stream: socket.socket) -> bool:
    return not stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


class Sent(worker.Shipped):
    """As readers and writers are."""

    def __init__(self) -> None:
        self.options = {"topic": "t"}


def test_what_is_unpickled_has_the_jvm_acknowledged_at_once(stack: ExitStack) -> None:
    jvm, python = tcp_pair(stack)

    def answer() -> bool:
        jvm.sendall(b"?")
        python.sendall(python.recv(1))
        jvm.recv(1)
        return delays_acks(python)

    wait_until(answer, "a delayed ACK")  # a connection of questions and answers
    sent = pickle.loads(pickle.dumps(Sent()))
    assert sent.options == {"topic": "t"}
    assert not delays_acks(python)


def test_a_unix_socket_has_room(stack: ExitStack) -> None:
    python, jvm = socket.socketpair()
    stack.enter_context(python)
    stack.enter_context(jvm)
    before = python.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    with open("/proc/sys/net/core/wmem_max") as file:
        most = int(file.read())
    worker.tune_sockets()
    # the kernel doubles what it is asked for
    expected = max(before, 2 * min(most, 4 << 20))
    assert python.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == expected


def test_sockets_stay_open_and_other_descriptors_as_they_are(stack: ExitStack) -> None:
    jvm, python = tcp_pair(stack)
    datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    room = datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    worker.tune_sockets()
    jvm.sendall(b"after")
    assert python.recv(5) == b"after"
    assert datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == room


def test_two_tasks_take_what_is_imported_out_of_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[None] = []
    monkeypatch.setattr(worker, "_frozen", 0)
    monkeypatch.setattr(gc, "freeze", lambda: taken.append(None))
    for _ in range(4):
        worker.freeze()
    assert len(taken) == 2


def test_a_fault_of_ours_is_told_without_a_traceback_in_spark_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(worker._HIDE, raising=False)

    def fail(error: Exception) -> None:
        with pytest.raises(type(error)), worker.told_plainly():
            raise error

    monkeypatch.delitem(sys.modules, worker._WORKER, raising=False)
    fail(ConfigFault("no"))  # in a program of the user's
    assert worker._HIDE not in os.environ
    monkeypatch.setitem(sys.modules, worker._WORKER, types.ModuleType("worker_util"))
    fail(ValueError("a bug: its traceback is wanted"))
    assert worker._HIDE not in os.environ
    fail(ConfigFault("no"))
    assert os.environ.pop(worker._HIDE) == "1"


@pytest.mark.parametrize(
    ("error", "ends"), [(EOFError(), 1), (BrokenPipeError(), 1), (ValueError(), 0), (None, 0)]
)
def test_a_process_whose_jvm_is_gone_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, ends: int
) -> None:
    monkeypatch.setitem(sys.modules, worker._WORKER, types.ModuleType("worker_util"))
    left: list[int] = []
    monkeypatch.setattr(worker.os, "_exit", left.append)

    def runner() -> None:
        """As Spark's: the reader is stopped whatever has happened."""
        try:
            if error is not None:
                raise error
        finally:
            worker.leave_if_jvm_has()

    if error is None:
        runner()
    else:
        with pytest.raises(type(error)):
            runner()
    assert left == [0] * ends
