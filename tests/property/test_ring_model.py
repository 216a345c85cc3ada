"""A ring against a list: any order of claims, publishes, polls, releases, aborts and successors."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes
from tests.support.examples import examples

pytestmark = pytest.mark.thorough


class RingMachine(RuleBasedStateMachine):
    """Entries are in three lists: claimed, published and not taken, taken and not released."""

    @initialize(capacity_bytes=st.sampled_from([32, 64, 256, 1024]))
    def make(self, capacity_bytes):
        self.view = memoryview(bytearray(ring_bytes(capacity_bytes)))
        create_ring(self.view)
        self.writer = RingWriter(*parts_of_ring(self.view))
        self.reader = RingReader(*parts_of_ring(self.view))
        self.capacity_bytes = capacity_bytes
        self.claimed, self.published, self.taken = [], [], []
        self.polled = 0

    @rule(operation=st.integers(1, 2**32 - 1), part=st.floats(0, 1), seed=st.integers(0, 2**32))
    def claim(self, operation, part, seed):
        length = int(part * self.writer.payload_bytes_max)
        entry_bytes = (length + 15) // 8 * 8
        free_bytes = self.writer.free_bytes()
        index = self.writer.claim(operation, length)
        if index < 0:
            assert free_bytes < 2 * entry_bytes  # with padding of less than an entry
            assert self.writer.free_bytes() == free_bytes
            return
        assert index % 8 == 0
        payload = random.Random(seed).randbytes(length)
        self.writer.data[index : index + length] = payload
        self.claimed.append((operation, payload))

    @rule()
    def publish(self):
        self.writer.publish()
        self.published += self.claimed
        self.claimed = []

    @rule()
    def abort(self):
        self.writer.abort()
        self.claimed = []

    @rule()
    def poll(self):
        assert self.reader.poll() == bool(self.published)
        self.polled = len(self.published)

    @rule(count=st.integers(1, 8))
    def take(self, count):
        for _ in range(count):
            entry = self.reader.next()
            if self.polled == 0:
                assert entry is None
                return
            operation, index, length = entry
            expected = self.published.pop(0)
            self.polled -= 1
            self.taken.append((expected, index))
            assert (operation, length) == (expected[0], len(expected[1]))

    @rule()
    def release(self):
        for (_, payload), index in self.taken:  # nothing was written over it meanwhile
            assert self.reader.data[index : index + len(payload)] == payload
        self.reader.release()
        self.taken = []
        if not self.published and not self.claimed:
            assert self.writer.free_bytes() == self.capacity_bytes

    @rule()
    def replace_the_writer(self):
        self.writer = RingWriter(*parts_of_ring(self.view))
        self.claimed = []

    @rule()
    def replace_the_reader(self):
        self.reader = RingReader(*parts_of_ring(self.view))
        self.published = [entry for entry, _ in self.taken] + self.published
        self.taken = []
        self.polled = 0

    @precondition(lambda self: self.published)
    @rule(by_writer=st.booleans())
    def reset(self, by_writer):
        if by_writer:
            self.writer.reset()
            self.reader = RingReader(*parts_of_ring(self.view))
        else:
            self.reader.reset()
            self.writer = RingWriter(*parts_of_ring(self.view))
        self.claimed, self.published, self.taken = [], [], []
        self.polled = 0

    @invariant()
    def room_is_accounted_for(self):
        if hasattr(self, "writer"):
            entries = self.claimed + self.published + [entry for entry, _ in self.taken]
            used_bytes = sum((len(payload) + 15) // 8 * 8 for _, payload in entries)
            assert 0 <= self.writer.free_bytes() <= self.capacity_bytes - used_bytes


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
