"""The last offset of each key: what compaction remembers of the part that it has not seen yet.

Keys are known by a hash of 128 bits, made of many keys at once. A collision would lose a record, so
the hash is one about which that can be proved: for any two keys that are not the same, whatever
they are, it is met with a chance of about 2^-121, as the numbers that it multiplies by are random
and new for every map. (Source: NH of UMAC, RFC 4418; four lanes of it, each brought to 32 bits by a
random multiplier. Kafka's `SkimpyOffsetMap` takes MD5.)

   lane = sum over each 8 bytes of the key, as (low, high):
              (low + a[i] mod 2^32) * (high + b[i] mod 2^32)      mod 2^64
          + (length + a mod 2^32) * b
   hash = four times the upper 32 bits of lane * random odd number

Keys over LONG_KEY_BYTES are hashed one by one with BLAKE2b.

The table is open addressing with linear probing, 24 bytes a slot: hash (8 + 8), offset + 1 (0: the
slot is free). A whole block of keys goes in or is looked up at once: round k handles all those that
k slots before did not settle. It begins small and grows fourfold, up to the bytes allowed.
"""

import hashlib
import os

import numpy as np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

SLACK_BYTES = 8
"""Bytes that must follow the last key in the array that keys are taken from."""

LONG_KEY_BYTES = 256
SLOT_BYTES = 24
_SLOT_WORDS = 3
SLOTS_AT_FIRST = 1 << 14
LOAD_MAX = 0.7
"""Part of the slots that may be taken: linear probing then looks at six slots for a miss."""

_LANES = 4
_BLOCK_ROWS = 1 << 15
"""Keys handled at once, so that what is in between stays in the cache."""

_WORD_MASKS = np.array([(1 << 8 * left) - 1 for left in range(9)], np.uint64)
_HALF = np.uint64(32)


class KeyHash:
    """A hash function drawn at random. The same one must be asked for all keys of a map."""

    __slots__ = (
        "_add_high",
        "_add_low",
        "_length_add",
        "_length_multiply",
        "_mix",
        "_secret",
        "draws",
    )

    def __init__(self) -> None:
        words = LONG_KEY_BYTES // 8
        draw = np.frombuffer(os.urandom(8 * _LANES * words), np.uint32)
        self._add_low, self._add_high = draw.reshape(2, _LANES, words)
        rest = np.frombuffer(os.urandom(24 * _LANES), np.uint64).reshape(3, _LANES)
        self._length_add = rest[0].astype(np.uint32)
        self._length_multiply = (rest[1] >> _HALF) | np.uint64(1)
        self._mix = rest[2] | np.uint64(1)
        self._secret = os.urandom(32)
        lengths = (self._length_add.astype(np.uint64), self._length_multiply, self._mix)
        adds = (self._add_low.T.ravel(), self._add_high.T.ravel())
        self.draws = np.frombuffer(
            b"".join(part.tobytes() for part in (*adds, *lengths)), np.uint64
        )
        """All of them as the kernels take them."""

    def hash(self, raw: "Bytes", start: "Int64s", length: "Int64s") -> "Words":
        """Two words for each key raw[start : start + length]; SLACK_BYTES follow the last one."""
        count = len(start)
        hashes = np.empty((count, 2), np.uint64)
        words = np.ndarray((len(raw) - 7,), "V8", raw.data, strides=(1,))
        for low in range(0, count, _BLOCK_ROWS):
            part = slice(low, low + _BLOCK_ROWS)
            self._hash_block(words, start[part], length[part], hashes[part])
        for row in np.flatnonzero(length > LONG_KEY_BYTES).tolist():
            hashes[row] = self.hash_long(raw[start[row] : start[row] + length[row]].data)
        return hashes

    def hash_long(self, key: memoryview) -> "Words":
        """The two words of a key of more than LONG_KEY_BYTES."""
        digest = hashlib.blake2b(key, digest_size=16, key=self._secret).digest()
        return np.frombuffer(digest, np.uint64)

    def _hash_block(
        self, words: "NDArray[np.void]", start: "Int64s", length: "Int64s", hashes: "Words"
    ) -> None:
        size = length.astype(np.uint32)
        lanes = [
            (size + self._length_add[lane]).astype(np.uint64) * self._length_multiply[lane]
            for lane in range(_LANES)
        ]
        every = np.arange(0)
        shortest, longest = int(length.min()), min(int(length.max()), LONG_KEY_BYTES)
        for number, done in enumerate(range(0, longest, 8)):
            is_all = shortest > done
            rows = every if is_all else np.flatnonzero((length > done) & (length <= LONG_KEY_BYTES))
            at = start if is_all else start[rows]
            word = words[at + done].view(np.uint64)
            if shortest < done + 8:
                left = length if is_all else length[rows]
                word &= _WORD_MASKS.take(np.minimum(left - done, 8))
            low, high = word.astype(np.uint32), (word >> _HALF).astype(np.uint32)
            for lane in range(_LANES):
                product = (low + self._add_low[lane, number]).astype(np.uint64)
                product *= high + self._add_high[lane, number]
                if is_all:
                    lanes[lane] += product
                else:
                    lanes[lane][rows] += product
        for pair in (0, 1):
            upper = (lanes[2 * pair] * self._mix[2 * pair]) >> _HALF
            lower = (lanes[2 * pair + 1] * self._mix[2 * pair + 1]) >> _HALF
            hashes[:, pair] = (upper << _HALF) | lower


class KeyOffsets:
    """hash -> last offset; offsets are given in rising order."""

    __slots__ = ("_count_max", "_slots", "_slots_max", "count", "latest_offset", "table")

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(bytes_max // SLOT_BYTES, 2)
        self._make(min(SLOTS_AT_FIRST, self._slots_max))
        self.count = 0
        """Keys in it."""
        self.latest_offset = -1
        """The largest offset that was put, or noted as having no key."""

    def _make(self, slots: int) -> None:
        self._slots = slots
        self.table: Words = np.zeros(slots * _SLOT_WORDS, np.uint64)
        self._count_max = max(int(slots * LOAD_MAX), 1)

    def put(self, hashes: "Words", offsets: "Int64s") -> int:
        """Note offsets of keys, the smallest first; how many, fewer than all if it is full then."""
        done, rows = 0, len(offsets)
        while done < rows:
            room = self._count_max - self.count
            wanted = min(rows - done, _BLOCK_ROWS)
            if room < wanted and self._slots < self._slots_max:
                self._grow()
                continue
            # Filling the last few slots one at a time is not worth it.
            if room <= self._count_max >> 6:
                break
            part = slice(done, done + min(wanted, room))
            self._insert(hashes[part], offsets[part].astype(np.uint64) + np.uint64(1))
            done = part.stop
        if done:
            self.latest_offset = int(offsets[done - 1])
        return done

    def _grow(self) -> None:
        slots = self.table.reshape(-1, _SLOT_WORDS)
        taken = slots[slots[:, 2] != 0]
        self._make(min(self._slots * 4, self._slots_max))
        self.count = 0
        for low in range(0, len(taken), _BLOCK_ROWS):
            part = taken[low : low + _BLOCK_ROWS]
            self._insert(part[:, :2], part[:, 2])

    def _first_places(self, hashes: "Words") -> "Int64s":
        """Where in the table the slots begin that are looked at first."""
        slot = (hashes[:, 0] >> _HALF) * np.uint64(self._slots) >> _HALF
        return slot.astype(np.int64) * _SLOT_WORDS

    def _insert(self, hashes: "Words", values: "Words") -> None:
        table = self.table
        first, second = hashes[:, 0], hashes[:, 1]
        at = self._first_places(hashes)
        while len(at):
            free = np.flatnonzero(table.take(at + 2) == 0)
            if len(free):
                # All that want a slot write their row number into it. Whose is left has it.
                wanted, numbers = at[free] + 2, free.astype(np.uint64)
                table[wanted] = numbers
                winners = free[table.take(wanted) == numbers]
                won = at[winners]
                table[won] = first[winners]
                table[won + 1] = second[winners]
                table[won + 2] = values[winners]
                self.count += len(winners)
            is_same = (table.take(at) == first) & (table.take(at + 1) == second)
            # Of a key that comes more than once, the last assignment stands: the largest offset.
            table[at[is_same] + 2] = values[is_same]
            rest = np.flatnonzero(~is_same)
            at, first, second, values = (
                self._next(at[rest]),
                first[rest],
                second[rest],
                values[rest],
            )

    def _next(self, at: "Int64s") -> "Int64s":
        at += _SLOT_WORDS
        at[at == len(self.table)] = 0
        return at

    def get(self, hashes: "Words") -> "Int64s":
        """The last offset of each key; -1 for one that isn't there."""
        result = np.empty(len(hashes), np.int64)
        for low in range(0, len(hashes), _BLOCK_ROWS):
            part = slice(low, low + _BLOCK_ROWS)
            self._look_up(hashes[part], result[part])
        return result

    def _look_up(self, hashes: "Words", result: "Int64s") -> None:
        table = self.table
        first, second = hashes[:, 0], hashes[:, 1]
        at = self._first_places(hashes)
        rows = np.arange(len(at))
        while len(at):
            value = table.take(at + 2)
            is_same = (table.take(at) == first) & (table.take(at + 1) == second)
            is_settled = is_same | (value == 0)
            # A free slot holds 0: offset -1.
            result[rows[is_settled]] = value[is_settled].astype(np.int64) - 1
            rest = np.flatnonzero(~is_settled)
            at, first, second, rows = self._next(at[rest]), first[rest], second[rest], rows[rest]
