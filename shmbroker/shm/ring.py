"""The two ends of a ring: claim and publish on one side, poll and release on the other.

Rules
* One process writes, one reads; each end keeps its own position in itself and stores it into the
  ring for the other. Each loads the other's word only when it has to.
* Nobody waits here: `claim` answers -1 when there is no room.
* A payload is written between claim and publish, and read between next and release; after that
  its bytes belong to the other side. Keep no view of them.
* An end that is killed anywhere leaves a ring that the other can go on with: what was not
  published was never there, and what was not released is still there.

Who meets whom (the words are laid out in `ring_layout`)
  A  publish stores the tail   → poll loads it      before A: the entries, else garbage is read
  B  release stores the head   → claim loads it     before B: the last read of the payload, else
                                                    it is overwritten under the reader
Both are a store after other accesses, which x86 keeps in order (`words`); the fence that a
sleeping peer needs is the doorbell's business.

What a claim costs in room: the entry rounded up to 8, and padding of less than that where it
would wrap.
"""

from shmbroker.shm.ring_layout import (
    CAPACITY_WORD,
    DATA_WORD,
    HEAD_WORD,
    INCARNATION_WORD,
    MAGIC,
    MAGIC_WORD,
    STAMP_WORD,
    TAIL_WORD,
    payload_bytes_max,
)


class RingWriter:
    """The writing end. `data` is the data area that the indexes of `claim` point into."""

    __slots__ = (
        "_capacity_bytes",
        "_limit",
        "_mask",
        "_tail",
        "_words",
        "data",
        "payload_bytes_max",
        "refused",
    )

    def __init__(self, words: memoryview, data: memoryview) -> None:
        """`words` are those of the whole ring; tests pass one that stops at each access."""
        assert words[MAGIC_WORD] == MAGIC, "not a ring"
        self._words = words
        self.data = data
        self._capacity_bytes = words[CAPACITY_WORD]
        self._mask = self._capacity_bytes - 1
        self.payload_bytes_max = payload_bytes_max(self._capacity_bytes)
        self._tail = words[TAIL_WORD]
        # Up to here entries may be placed without another look: the end of the lap or of the
        # room, whichever comes first. 0 is always behind, so the next claim looks.
        self._limit = 0
        self.refused = 0
        """Claims for which there was no room."""

    def claim(self, operation: int, length: int) -> int:
        """The index in `data` where `length` bytes of payload go, or -1 when there is no room.

        `operation` is 1 to 2**32 - 1. Nothing is seen by the reader before `publish`.
        """
        tail = self._tail
        end = tail + (length + 15 & -8)
        if end > self._limit:
            return self._claim_after_a_look(operation, length)
        assert 0 <= length <= self.payload_bytes_max, "larger than an entry may be"
        index = tail & self._mask
        self._words[DATA_WORD + (index >> 3)] = operation << 32 | length
        self._tail = end
        return index + 8

    def _claim_after_a_look(self, operation: int, length: int) -> int:
        assert 0 <= length <= self.payload_bytes_max, "larger than an entry may be"
        tail = self._tail
        end = tail + (length + 15 & -8)
        head = self._words[HEAD_WORD]  # meets B
        assert head <= tail, "broken ring"
        room_end = head + self._capacity_bytes
        lap_end = (tail | self._mask) + 1
        if end > lap_end:
            if end + lap_end - tail > room_end:
                self.refused += 1
                return -1
            index = tail & self._mask
            self._words[DATA_WORD + (index >> 3)] = lap_end - tail - 8  # operation 0: padding
            self._tail = lap_end
            return self._claim_after_a_look(operation, length)
        if end > room_end:
            self.refused += 1
            return -1
        self._limit = min(room_end, lap_end)
        return self.claim(operation, length)

    def publish(self) -> None:
        """Show every entry claimed so far to the reader."""
        self._words[TAIL_WORD] = self._tail  # A

    def stamp(self, now_ns: int) -> None:
        """Have the reader measure how long the entries wait that are published next."""
        self._words[STAMP_WORD] = now_ns

    def abort(self) -> None:
        """Drop every entry claimed since the last publish."""
        self._tail = self._words[TAIL_WORD]
        self._limit = 0

    def free_bytes(self) -> int:
        """Room left, entry headers and padding included."""
        return self._words[HEAD_WORD] + self._capacity_bytes - self._tail

    def reset(self) -> None:
        """Empty the ring for a successor; only while the reader's process is dead."""
        _empty(self._words)
        self._tail = self._limit = 0


class RingReader:
    """The reading end. `data` is the data area that the indexes of `next` point into."""

    __slots__ = ("_capacity_bytes", "_head", "_mask", "_stamp", "_tail", "data", "words")

    def __init__(self, words: memoryview, data: memoryview) -> None:
        """`words` are those of the whole ring; tests pass one that stops at each access."""
        assert words[MAGIC_WORD] == MAGIC, "not a ring"
        self.words = words
        self.data = data
        self._capacity_bytes = words[CAPACITY_WORD]
        self._mask = self._capacity_bytes - 1
        self._head = self._tail = words[HEAD_WORD]
        self._stamp = words[STAMP_WORD]

    def poll(self) -> bool:
        """Look for entries once; whether `next` has any."""
        self._tail = tail = self.words[TAIL_WORD]  # meets A
        return tail != self._head

    def stamped(self) -> int:
        """The writer's stamp, if there is a new one since the last call; 0 else. After `poll`."""
        stamp = self.words[STAMP_WORD]
        if stamp == self._stamp:
            return 0
        self._stamp = stamp
        return stamp

    def next(self) -> tuple[int, int, int] | None:
        """The next entry of the last poll: operation, index in `data`, length; None at its end."""
        head = self._head
        tail = self._tail
        if head == tail:
            return None
        index = head & self._mask
        word = self.words[DATA_WORD + (index >> 3)]
        length = word & 0xFFFFFFFF
        self._head = end = head + (length + 15 & -8)
        assert end <= tail and index + length < self._capacity_bytes, "broken ring"
        if operation := word >> 32:
            return operation, index + 8, length
        return self.next()

    def release(self) -> None:
        """Give the room of every entry taken so far back to the writer."""
        self.words[HEAD_WORD] = self._head  # B

    def reset(self) -> None:
        """Empty the ring for a successor; only while the writer's process is dead."""
        _empty(self.words)
        self._head = self._tail = 0


def _empty(words: memoryview) -> None:
    # Killed in between, with the peer dead already, it leaves a ring with no living end: the
    # supervisor empties it before it starts the two successors.
    words[HEAD_WORD] = words[TAIL_WORD] = 0
    words[INCARNATION_WORD] += 1
