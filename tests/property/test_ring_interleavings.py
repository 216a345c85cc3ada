"""Every interleaving of two processes on rings and doorbells, store buffers included.

The real code of `ring` and `doorbell` runs on `Stepping`, which stands for the words, the fence
and the eventfds, and lets one access through at a time. What a process does next follows from what
its loads answered so far, so a process is its list of answers: to take one more step, its program
is run again from the start with that list, up to the first access that has no answer yet. That
makes a state of both processes a plain value, and the states can be walked one by one.

The processor is x86 as `words` describes it: a store goes to the end of its process's store
buffer and reaches memory some time later, in order; a load takes the newest store of its own
buffer, else memory; a fence is done when the own buffer is empty. A write to an eventfd is no
fence here, although the kernel's is, so that nothing leans on it.

A state in which nobody can go on, and somebody is not finished, is a lost wake-up.
"""

from functools import lru_cache

import pytest

from shmbroker.shm import doorbell
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import (
    CAPACITY_WORD,
    DATA_WORD,
    MAGIC,
    MAGIC_WORD,
    create_ring,
    parts_of_ring,
    ring_bytes,
)

WRITER, READER = 0, 1
BELL_WORD = (48, 64)
"""Where each side says that it sleeps."""

NO_DATA = memoryview(b"")
LOAD, STORE, FENCE, RING, WAIT, END = range(6)


class NextStep(BaseException):
    """Where a program has come to, thrown through it to end this run of it."""

    def __init__(self, *step):
        self.step = step


class Stepping:
    """The words of a ring, the fence and the eventfds, for one run of one side's program."""

    def __init__(self, capacity_bytes, answers):
        self.constants = {MAGIC_WORD: MAGIC, CAPACITY_WORD: capacity_bytes}
        self.answers = iter(answers)

    def _step(self, *step):
        for answer in self.answers:
            return answer
        raise NextStep(*step)

    def __getitem__(self, index):
        if index in self.constants:
            return self.constants[index]
        return self._step(LOAD, index)

    def __setitem__(self, index, value):
        self._step(STORE, index, value)

    def fence(self):
        self._step(FENCE)

    def ring(self, side, _count):
        self._step(RING, side)

    def wait(self, side):
        self._step(WAIT, side)


def write(words, entries, entries_in_a_publish, payload_words):
    """The writing process: all entries, asleep whenever there is no room."""
    ring = RingWriter(words, NO_DATA)
    own = Doorbell(WRITER, words, BELL_WORD[WRITER])
    bell = Doorbell(READER, words, BELL_WORD[READER])
    for number in range(1, entries + 1):
        index = ring.claim(number, 8 * payload_words)
        while index < 0:
            ring.publish()
            bell.ring_if_sleeping()
            own.say_sleeping()
            index = ring.claim(number, 8 * payload_words)
            if index < 0:
                words.wait(WRITER)
                index = ring.claim(number, 8 * payload_words)
            own.awake()
        for word in range(payload_words):
            words[DATA_WORD + index // 8 + word] = 100 + number
        if number % entries_in_a_publish == 0 or number == entries:
            ring.publish()
            bell.ring_if_sleeping()


def read(words, entries, payload_words):
    """The reading process: until it has all entries, asleep whenever there is none."""
    ring = RingReader(words, NO_DATA)
    own = Doorbell(READER, words, BELL_WORD[READER])
    bell = Doorbell(WRITER, words, BELL_WORD[WRITER])
    taken = 0
    while taken < entries:
        if not ring.poll():
            own.say_sleeping()
            if not ring.poll():
                words.wait(READER)
                ring.poll()
            own.awake()
        while entry := ring.next():
            taken += 1
            operation, index, length = entry
            assert (operation, length) == (taken, 8 * payload_words)
            for word in range(payload_words):
                assert words[DATA_WORD + index // 8 + word] == 100 + taken
        ring.release()
        bell.ring_if_sleeping()


class Explorer:
    """Walks every state that two programs can get into."""

    def __init__(self, monkeypatch, capacity_bytes, programs, fenced=(WRITER, READER)):
        self.capacity_bytes = capacity_bytes
        self.programs = programs
        self.fenced = fenced
        self.next_step = lru_cache(maxsize=None)(self._next_step)
        monkeypatch.setattr(doorbell, "fence", lambda: self.words.fence())
        monkeypatch.setattr(doorbell, "eventfd_write", lambda *args: self.words.ring(*args))

    def _next_step(self, side, answers):
        self.words = Stepping(self.capacity_bytes, answers)
        try:
            self.programs[side](self.words)
        except NextStep as at:
            return at.step
        return (END,)

    def stuck_states(self):
        """Each reachable state that has no way on and is not the end of both, as their answers."""
        # A state: for each side its answers and its store buffer; memory; pending eventfd events.
        start = (((), ()), ((), ()), (), (False, False))
        start = self._settled(self._settled(start, WRITER), READER)
        seen = {start}
        todo = [start]
        stuck = []
        while todo:
            state = todo.pop()
            successors = list(self._successors(state))
            if not successors and not self._is_ended(state):
                stuck.append(state[0])
            for successor in successors:
                if successor not in seen:
                    seen.add(successor)
                    todo.append(successor)
        return stuck

    def _is_ended(self, state):
        return all(self.next_step(side, state[0][side]) == (END,) for side in (WRITER, READER))

    def _successors(self, state):
        answers, buffers, memory, events = state
        for side in (WRITER, READER):
            if buffers[side]:  # the oldest store reaches memory
                (index, value), *rest = buffers[side]
                stored = tuple(sorted({**dict(memory), index: value}.items()))
                yield self._settled(
                    (answers, _with(buffers, side, tuple(rest)), stored, events), side
                )
            step = self.next_step(side, answers[side])
            if step[0] == LOAD:
                answer = dict(memory).get(step[1], 0)
                for index, value in buffers[side]:
                    if index == step[1]:
                        answer = value
            elif step[0] == RING:
                answer = 0
                after = _with(events, step[1], True)
            elif step[0] == WAIT and events[side]:
                answer = 0
                after = _with(events, side, False)
            else:
                continue
            yield self._settled(
                (
                    _with(answers, side, (*answers[side], answer)),
                    buffers,
                    memory,
                    events if step[0] == LOAD else after,
                ),
                side,
            )

    def _settled(self, state, side):
        """The state after the side's next steps that the other can't tell from not yet taken:
        a store into the own buffer, and a fence over an empty one."""
        answers, buffers, memory, events = state
        mine, buffer = answers[side], buffers[side]
        while True:
            step = self.next_step(side, mine)
            if step[0] == STORE:
                buffer = (*buffer, step[1:])
            elif step[0] != FENCE or (buffer and side in self.fenced):
                return _with(answers, side, mine), _with(buffers, side, buffer), memory, events
            mine = (*mine, 0)


def _with(pair, side, value):
    return (value, pair[1]) if side == 0 else (pair[0], value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("capacity_bytes", "entries", "entries_in_a_publish", "payload_words"),
    [
        (32, 1, 1, 0),
        (32, 3, 1, 0),  # later publishes meet a sleep that was already rung for
        (32, 5, 5, 0),  # one more than there is room for
        (64, 2, 1, 1),
        (64, 5, 2, 1),
    ],
)
def test_in_every_interleaving_all_entries_arrive(
    monkeypatch, capacity_bytes, entries, entries_in_a_publish, payload_words
):
    programs = (
        lambda words: write(words, entries, entries_in_a_publish, payload_words),
        lambda words: read(words, entries, payload_words),
    )
    assert Explorer(monkeypatch, capacity_bytes, programs).stuck_states() == []


@pytest.mark.parametrize("fenced", [(), (WRITER,), (READER,)])
def test_without_both_fences_some_interleaving_loses_the_wake_up(monkeypatch, fenced):
    programs = (lambda words: write(words, 1, 1, 0), lambda words: read(words, 1, 0))
    assert Explorer(monkeypatch, 32, programs, fenced).stuck_states()


class Killed(BaseException):
    """The process is gone, and what it stored stays."""


class Deadly:
    """Words that kill whoever makes one access too many."""

    def __init__(self, words, accesses_left):
        self.words = words
        self.accesses_left = accesses_left

    def _access(self):
        if not self.accesses_left:
            raise Killed
        self.accesses_left -= 1

    def __getitem__(self, index):
        self._access()
        return self.words[index]

    def __setitem__(self, index, value):
        self._access()
        self.words[index] = value


def put(ring, number):
    index = ring.claim(number, 8)
    assert index >= 0
    ring.data[index : index + 8] = bytes([number] * 8)


def take(ring):
    taken = []
    ring.poll()
    while entry := ring.next():
        operation, index, length = entry
        assert bytes(ring.data[index : index + length]) == bytes([operation] * 8)
        taken.append(operation)
    return taken


def every_kill(program):
    """For each access of the program: a ring in which it was killed just before it.

    The ring begins with two entries taken and one there (number 3), so that the next but one
    wraps. Ends with the run that nobody killed.
    """
    for accesses in range(100):
        view = memoryview(bytearray(ring_bytes(64)))
        create_ring(view)
        words, data = parts_of_ring(view)
        writer, reader = RingWriter(words, data), RingReader(words, data)
        put(writer, 1)
        put(writer, 2)
        writer.publish()
        assert take(reader) == [1, 2]
        reader.release()
        writer.claim(3, 0)
        writer.abort()
        put(writer, 3)
        writer.publish()
        try:
            program(Deadly(words, accesses), data)
        except Killed:
            yield words, data
        else:
            yield words, data
            assert accesses > 5
            return
    raise AssertionError("never ended")


def write_three(words, data):
    ring = RingWriter(words, data)
    put(ring, 4)
    ring.publish()
    put(ring, 5)
    put(ring, 6)
    ring.publish()


def read_all(words, data):
    ring = RingReader(words, data)
    take(ring)
    ring.release()


def test_a_writer_killed_at_any_access_leaves_whole_entries_and_a_usable_ring():
    seen = set()
    for words, data in every_kill(write_three):
        reader = RingReader(words, data)
        taken = take(reader)
        assert taken in ([3], [3, 4], [3, 4, 5, 6])
        seen.add(len(taken))
        reader.reset()
        successor = RingWriter(words, data)
        put(successor, 7)
        successor.publish()
        assert take(reader) == [7]
    assert seen == {1, 2, 4}


def test_a_reader_killed_at_any_access_leaves_all_it_did_not_release_and_a_usable_ring():
    seen = set()
    for words, data in every_kill(read_all):
        left = take(RingReader(words, data))
        assert left in ([3], [])
        seen.add(len(left))
        writer = RingWriter(words, data)
        writer.reset()
        successor = RingReader(words, data)
        assert take(successor) == []
        put(writer, 7)
        writer.publish()
        assert take(successor) == [7]
    assert seen == {0, 1}
