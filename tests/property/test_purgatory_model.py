"""The purgatory against a plain model: whatever happens, each operation ends once, and in time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shmbroker.purgatory import HEAP_BYPASS, DelayedOperation, Purgatory
from tests.support.examples import examples

pytestmark = pytest.mark.thorough

KEYS = st.integers(0, 4)


class AtLeast(DelayedOperation):
    """Waits until the levels of its keys add up to a number."""

    def __init__(self, levels, keys, threshold, deadline_ms):
        super().__init__()
        self.levels = levels
        self.keys = keys
        self.threshold = threshold
        self.deadline_ms = deadline_ms
        self.ends = []

    def is_reached(self):
        return sum(self.levels[key] for key in set(self.keys)) >= self.threshold

    def try_complete(self):
        if not self.is_reached():
            return False
        self.is_done = True
        self.ends.append("completed")
        return True

    def on_expire(self):
        self.ends.append("expired")


class PurgatoryMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.purgatory = Purgatory()
        self.levels = [0] * 5
        self.now_ms = 0
        self.waiting = []
        self.ended = []
        self.cancelled = []

    @rule(keys=st.lists(KEYS, max_size=4), more=st.integers(1, 30), wait_ms=st.integers(0, 50))
    def watch(self, keys, more, wait_ms):
        level = sum(self.levels[key] for key in set(keys))
        operation = AtLeast(self.levels, keys, level + more, self.now_ms + wait_ms)
        self.purgatory.watch(operation, keys, operation.deadline_ms)
        self.waiting.append(operation)

    @rule(key=KEYS, count=st.integers(1, 20))
    def raise_level(self, key, count):
        self.levels[key] += count
        complete = [op for op in self.waiting if key in op.keys and op.is_reached()]
        assert self.purgatory.check(key) == len(complete)
        self._end(complete, "completed")

    @rule(elapsed_ms=st.integers(0, 30))
    def let_time_pass(self, elapsed_ms):
        self.now_ms += elapsed_ms
        due = [op for op in self.waiting if op.deadline_ms <= self.now_ms]
        expired = self.purgatory.expire(self.now_ms)
        assert expired == sorted(due, key=lambda op: op.deadline_ms)  # sorted keeps their order
        self._end(due, "expired")

    @rule(index=st.integers(0, 1000))
    def cancel(self, index):
        if self.waiting:
            operation = self.waiting.pop(index % len(self.waiting))
            assert self.purgatory.cancel(operation)
            self.cancelled.append(operation)

    @rule(key=KEYS)
    def drop(self, key):
        dropped = [op for op in self.waiting if key in op.keys]
        assert self.purgatory.drop_where(lambda op: key in op.keys) == len(dropped)
        self.waiting = [op for op in self.waiting if op not in dropped]
        self.cancelled += dropped

    def _end(self, operations, how):
        for operation in operations:
            self.waiting.remove(operation)
            self.ended.append((operation, how))

    @invariant()
    def each_ended_once(self):
        assert all(op.ends == [how] for op, how in self.ended)
        assert not any(op.ends for op in self.waiting + self.cancelled)

    @invariant()
    def the_next_deadline_is_the_smallest(self):
        smallest = min((op.deadline_ms for op in self.waiting), default=None)
        assert self.purgatory.next_deadline() == smallest

    @invariant()
    def nothing_is_kept_of_the_ended(self):
        expected = {}
        for operation in self.waiting:
            for key in operation.keys:
                expected.setdefault(key, {})[operation] = None
        assert self.purgatory.watched == expected
        assert len(self.purgatory) == len(self.waiting)
        assert len(self.purgatory._heap) <= max(HEAP_BYPASS, 2 * len(self.waiting)) + 1


TestPurgatory = PurgatoryMachine.TestCase
TestPurgatory.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
