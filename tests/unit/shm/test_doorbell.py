"""The doorbell with a real eventfd and epoll, and between two processes."""

import os
import select

import pytest

from shmbroker.shm.doorbell import EPOLL_EVENTS, Doorbell, make_eventfd
from shmbroker.shm.region import Region
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes
from shmbroker.shm.words import words_of

LONG_SECONDS = 20
"""Only a lost wake-up takes that long."""


@pytest.fixture
def words():
    return words_of(memoryview(bytearray(64)))


@pytest.fixture
def bell(words):
    """One process's doorbell as both sides see it, and the epoll of its owner."""
    eventfd = make_eventfd()
    with select.epoll() as epoll:
        epoll.register(eventfd, EPOLL_EVENTS)
        yield Doorbell(eventfd, words, 2), Doorbell(eventfd, words, 2), epoll
    os.close(eventfd)


def is_rung(epoll):
    return bool(epoll.poll(0))


def test_only_a_sleeper_is_rung(bell):
    owner, ringer, epoll = bell
    ringer.ring_if_sleeping()
    assert not is_rung(epoll)
    owner.say_sleeping()
    ringer.ring_if_sleeping()
    assert is_rung(epoll)
    owner.awake()
    ringer.ring_if_sleeping()
    assert not is_rung(epoll)


def test_a_sleep_is_rung_once_by_each_and_every_sleep_anew(bell, words):
    owner, ringer, epoll = bell
    other = Doorbell(owner.eventfd, words, 2)
    for _ in range(3):
        owner.say_sleeping()
        ringer.ring_if_sleeping()
        assert is_rung(epoll)
        ringer.ring_if_sleeping()
        assert not is_rung(epoll)
        other.ring_if_sleeping()
        assert is_rung(epoll)
        owner.awake()


def test_each_write_is_an_event_although_nobody_reads_the_counter(bell):
    _, ringer, epoll = bell
    for _ in range(3):
        ringer.ring()
        assert is_rung(epoll)
        assert not is_rung(epoll)


def test_awake_twice_and_sleeping_twice_are_harmless(bell):
    owner, ringer, epoll = bell
    owner.awake()
    ringer.ring_if_sleeping()
    assert not is_rung(epoll)
    owner.say_sleeping()
    ringer.ring_if_sleeping()
    owner.say_sleeping()
    assert is_rung(epoll)
    ringer.ring_if_sleeping()
    assert is_rung(epoll)


@pytest.mark.parametrize("died_asleep", [True, False])
def test_the_first_sleep_of_a_successor_is_rung(bell, words, died_asleep):
    owner, ringer, epoll = bell
    owner.say_sleeping()
    ringer.ring_if_sleeping()
    if not died_asleep:
        owner.awake()
    assert is_rung(epoll)
    successor = Doorbell(owner.eventfd, words, 2)
    successor.awake()
    ringer.ring_if_sleeping()
    assert not is_rung(epoll)
    successor.say_sleeping()
    ringer.ring_if_sleeping()
    assert is_rung(epoll)


def test_two_processes_that_sleep_after_each_entry_lose_no_wake_up():
    rounds = 3_000
    capacity_bytes = 1024
    part = ring_bytes(capacity_bytes)
    region = Region.create(f"shmbroker-test-{os.getpid()}-bells", 2 * part + 4096)
    rings = [region.view[:part], region.view[part : 2 * part]]
    for view in rings:
        create_ring(view)
    words = words_of(region.view[2 * part :])
    eventfds = [make_eventfd(), make_eventfd()]

    def play(side, begins):
        writer = RingWriter(*parts_of_ring(rings[side]))
        reader = RingReader(*parts_of_ring(rings[1 - side]))
        own = Doorbell(eventfds[side], words, 16 * side)
        other = Doorbell(eventfds[1 - side], words, 16 * (1 - side))
        with select.epoll() as epoll:
            epoll.register(own.eventfd, EPOLL_EVENTS)
            for number in range(1, rounds + 1):
                for sends in (begins, not begins):
                    if sends:
                        assert writer.claim(number, 0) >= 0
                        writer.publish()
                        other.ring_if_sleeping()
                        continue
                    while not reader.poll():
                        own.say_sleeping()
                        if not reader.poll():
                            assert epoll.poll(LONG_SECONDS), "lost a wake-up"
                        own.awake()
                    assert reader.next() == (number, (number - 1) * 8 % capacity_bytes + 8, 0)
                    reader.release()

    child = os.fork()
    if child == 0:
        status = 1
        try:
            play(1, begins=False)
            status = 0
        finally:
            os._exit(status)
    play(0, begins=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for eventfd in eventfds:
        os.close(eventfd)
