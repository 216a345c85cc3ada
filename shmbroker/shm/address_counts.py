"""How many connections each address has open, counted by every network worker for the others.

One table for each network worker; the sum over the tables is what a limit goes by.

at      size  field    stored by  meaning
0x0000     …  buckets             0x100 bytes each, 16 entries

Entry
+0x00     8  key      owner      of the address, 0: never used
+0x08     8  count    owner      its open connections; 0: the entry is free

An address has its entry in one bucket, chosen by its key, so another worker finds it with one look
at 256 bytes. A count is stored before the sum is looked at, with a fence between: of two workers
that take the last two connections of an address at the same time, at least one sees both. A key is
stored before its count; a reader that comes just when an entry changes hands may take the count of
one address for another's, once.
One worker counts about 4,000 addresses at a time; beyond that some stay uncounted, as their buckets
are full.
"""

import socket
from collections.abc import Iterable

from shmbroker.shm.words import WORD_BYTES, fence, words_of

BUCKETS = 512
ENTRIES = 16
BUCKET_BYTES = 0x100
COUNT = 1

_ENTRY_WORDS = 2
_BUCKET_WORDS = BUCKET_BYTES // WORD_BYTES
_BUCKET_SHIFT = 64 - BUCKETS.bit_length() + 1
_SPREAD = 0x9E3779B97F4A7C15
_KEY_MAX = (1 << 63) - 1
_MAPPED = bytes(10) + b"\xff\xff"

assert ENTRIES * _ENTRY_WORDS == _BUCKET_WORDS


def table_bytes() -> int:
    """Bytes of one table."""
    return BUCKETS * BUCKET_BYTES


def packed_address(address: str) -> bytes:
    """An address's 4 or 16 bytes; IPv4 is the same by whatever socket it comes. OSError if it is
    none."""
    if ":" not in address:
        return socket.inet_pton(socket.AF_INET, address)
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed[12:] if packed.startswith(_MAPPED) else packed


class AddressCounts:
    """One worker's side: counts of its own, sums over all."""

    __slots__ = ("_others", "_places", "_words")

    def __init__(self, own: memoryview, others: dict[int, memoryview]) -> None:
        """`others`: the tables of the other workers, by slot."""
        own[:] = bytes(len(own))  # the connections of a predecessor are gone
        self._words = words_of(own)
        self._others = {slot: words_of(view) for slot, view in others.items()}
        self._places: dict[int, int] = {}
        """The index of an address's entry, by its key, while it has connections here."""

    def add(self, packed: bytes) -> None:
        """Count one more connection of this address."""
        key = _key(packed)
        words = self._words
        at = self._places.get(key)
        if at is None:
            at = self._free_entry(key)
            if at is None:
                return
            words[at] = key
            self._places[key] = at
        words[at + COUNT] += 1

    def remove(self, packed: bytes) -> None:
        """Count one connection less."""
        key = _key(packed)
        at = self._places.get(key)
        if at is None:
            return
        words = self._words
        words[at + COUNT] -= 1
        if not words[at + COUNT]:
            del self._places[key]

    def total(self, packed: bytes, running: Iterable[int]) -> int:
        """The address's connections here and at the other workers that run, by their slots."""
        key = _key(packed)
        at = self._places.get(key)
        found = self._words[at + COUNT] if at is not None else 0
        fence()
        start = _bucket(key)
        for slot in running:
            words = self._others[slot]
            bucket = words[start : start + _BUCKET_WORDS].tolist()
            keys = bucket[::_ENTRY_WORDS]
            if key in keys:
                found += bucket[keys.index(key) * _ENTRY_WORDS + COUNT]
        return found

    def _free_entry(self, key: int) -> int | None:
        """The entry that this key had, else one that nobody has; never two of one key."""
        words = self._words
        start = _bucket(key)
        free = None
        for at in range(start, start + _BUCKET_WORDS, _ENTRY_WORDS):
            if words[at] == key:
                return at
            if free is None and not words[at + COUNT]:
                free = at
        return free


def _key(packed: bytes) -> int:
    if len(packed) == 4:
        return int.from_bytes(packed, "big") + 1
    from hashlib import blake2b

    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "big") & _KEY_MAX or 1


def _bucket(key: int) -> int:
    return ((key * _SPREAD & (1 << 64) - 1) >> _BUCKET_SHIFT) * _BUCKET_WORDS
