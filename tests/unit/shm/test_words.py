"""Control words between two real processes: no false values, and a fence that is one."""

import os
from types import SimpleNamespace

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.shm import words as words_module
from shmbroker.shm.region import Region
from shmbroker.shm.words import fence, require_total_store_order, words_of

PREFIX = f"shmbroker-test-{os.getpid()}-"
LAST = 2**64 - 1


@pytest.fixture
def words():
    region = Region.create(PREFIX + "words", 128 * 1024)
    words = words_of(region.view)
    yield words
    words.release()
    region.close()


def fork(function):
    """Run a function in a child; its exit status says whether it got to its end."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        function()
        status = 0
    finally:
        os._exit(status)


def exit_status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(words, index, value):
    """Until the other process, which takes microseconds, has come that far; bounded if it died."""
    for _ in range(10_000_000):
        if words[index] >= value:
            return
        os.sched_yield()
    raise AssertionError("the other process is gone")


def test_a_word_is_eight_bytes_little_endian():
    data = bytearray(16)
    words = words_of(memoryview(data))
    words[1] = 0x0102030405060708
    assert data == bytes(8) + bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert len(words) == 2


def test_a_load_sees_only_values_that_were_stored(words):
    values = (0x1111111111111111, LAST)
    words[0] = values[0]

    def store():
        for _ in range(100_000):
            words[0] = values[1]
            words[0] = values[0]
        words[16] = 1

    child = fork(store)
    loads = 0
    while not words[16]:
        assert words[0] in values
        loads += 1
    assert exit_status(child) == 0
    assert loads > 0


def test_of_two_processes_that_store_fence_and_load_one_sees_the_other(words):
    """The litmus test of the doorbell: both must not load the old value in the same round."""
    rounds = 5_000
    mine, theirs, my_step, their_step = 0, 16, 32, 48
    seen_by_me, seen_by_them = 64, 64 + rounds

    def race(own, other, own_step, other_step, seen):
        for number in range(rounds):
            words[own_step] = 2 * number + 1
            wait_for(words, other_step, 2 * number + 1)
            words[own] = number + 1
            fence()
            words[seen + number] = words[other]
            words[own_step] = 2 * number + 2
            wait_for(words, other_step, 2 * number + 2)

    child = fork(lambda: race(theirs, mine, their_step, my_step, seen_by_them))
    race(mine, theirs, my_step, their_step, seen_by_me)
    assert exit_status(child) == 0
    for number in range(rounds):
        assert number + 1 in (words[seen_by_me + number], words[seen_by_them + number])


def test_another_processor_is_refused(monkeypatch):
    require_total_store_order()
    monkeypatch.setattr(words_module.os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    with pytest.raises(ConfigFault, match="aarch64"):
        require_total_store_order()
