"""A passage carries messages with descriptors, whole or not at all."""

import os
from collections.abc import Iterator

import pytest

from shmbroker.ipc.passage import MESSAGE_BYTES_MAX, Passage, make_pair


@pytest.fixture
def ends() -> Iterator[tuple[Passage, Passage]]:
    pair = make_pair()
    yield Passage(pair[0]), Passage(pair[1])
    for end in pair:
        end.close()


def test_values_and_descriptors_arrive_together_and_in_order(ends: tuple[Passage, Passage]) -> None:
    here, there = ends
    read, write = os.pipe()
    message = 1, "name", b"\0\xff", None, (("t", 0), -1)
    assert here.send(message, [read, write]) and here.send((2,))
    os.close(read)
    os.close(write)
    found = there.receive()
    assert found is not None and found[0] == message
    there_read, there_write = found[1]
    os.write(there_write, b"x")
    assert os.read(there_read, 2) == b"x"
    assert not os.get_inheritable(there_read)
    assert there.receive() == ((2,), [])
    assert there.receive() is None
    os.close(there_read)
    os.close(there_write)


def test_what_does_not_fit_is_refused(ends: tuple[Passage, Passage]) -> None:
    here, there = ends
    assert not here.send((bytes(MESSAGE_BYTES_MAX),))
    assert there.receive() is None
    sent = 0
    while here.send((bytes(1 << 14),)):
        sent += 1
    assert sent
    for _ in range(sent):
        assert there.receive() is not None
    assert there.receive() is None and here.send((1,))


def test_descriptors_of_what_is_forgotten_are_closed(ends: tuple[Passage, Passage]) -> None:
    here, there = ends
    read, write = os.pipe()
    assert here.send((1,), [write]) and here.send((2,))
    os.close(write)
    there.drain()
    assert os.read(read, 1) == b""  # nobody writes any more
    assert there.receive() is None
    os.close(read)


def test_nobody_at_the_other_end(ends: tuple[Passage, Passage]) -> None:
    here, there = ends
    there._socket.close()
    assert not here.send((1,))
    assert here.receive() is None
