"""A doorbell: wakes a process that sleeps in epoll because another has work for it.

Each process has one, for all of its rings: an eventfd, and a word that says whether it sleeps.
Everyone else rings it after publishing, or after releasing room that may be waited for.

The sleeper, each turn                     The ringer, each time
  1  say_sleeping   store the word           5  publish        store a tail (or a head)
  2                 fence                    6  ring_if_…      fence
  3  poll again     load every tail          7                 load the word
  4  epoll, unless 3 found something         8                 write the eventfd if it sleeps
     awake          store the word

The two fences are what it is about. Without them 3 may be done before 1 is visible and 7 before 5
is: each side sees the other's old state, nobody rings, and the entry lies there until something
else wakes the sleeper. With them one of the two always sees the other.

The word counts the changes between awake and asleep: odd while it sleeps. So a ringer knows
whether it has rung for *this* sleep and leaves out the system call for what it publishes before
the sleeper has got up; the sleeper looks at its rings after every sleep anyway. A successor goes on
counting where the dead process stopped, so that no sleep of it looks like one already rung for.

What the eventfd does. Each write adds to its counter and wakes the one that waits. Registered
edge-triggered, every write is one event, however large the counter already is: so nobody ever
reads it, which saves a call for each wake-up (the counter is full after 2**64 - 2 writes). A write
that comes late, when the sleeper is already up, makes its next sleep end at once: harmless.
"""

import os
from os import eventfd_write
from select import EPOLLET, EPOLLIN

from shmbroker.shm.words import fence

EPOLL_EVENTS = EPOLLIN | EPOLLET
"""How the sleeper registers the eventfd with its epoll."""


def make_eventfd() -> int:
    """An eventfd for one doorbell; made before the fork, inherited by all."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Doorbell:
    """One process's doorbell, as seen by it or by one that rings; the word lies at words[index]."""

    __slots__ = ("_index", "_rung", "_words", "eventfd")

    def __init__(self, eventfd: int, words: memoryview, index: int) -> None:
        self.eventfd = eventfd
        self._words = words
        self._index = index
        self._rung = 0  # the sleep that we last rang for; no sleep is 0

    def say_sleeping(self) -> None:
        """About to sleep: the caller polls all its rings once more, then sleeps in one epoll."""
        words = self._words
        words[self._index] = words[self._index] + 1 | 1
        fence()

    def awake(self) -> None:
        """Note that this side is up again: nobody needs to ring. The caller polls its rings after
        this."""
        words = self._words
        words[self._index] = words[self._index] + 1 & -2

    def ring_if_sleeping(self) -> None:
        """Wake the sleeper if it says that it sleeps and we have not rung for this sleep."""
        fence()
        state = self._words[self._index]
        if state & 1 and state != self._rung:
            self._rung = state
            eventfd_write(self.eventfd, 1)

    def ring(self) -> None:
        """Wake the sleeper in any case."""
        eventfd_write(self.eventfd, 1)
