"""The position table: where each log ends, kept for the successor of a killed I/O worker.

One table for each I/O worker, which alone stores into it; its siblings read the high watermarks of
what they take over from it. The page cache survives the worker, and with it every batch below the
position stored here. Lost with the family: then the logs are scanned from their recovery points, as
after a power cut. A partition without an entry is scanned too, so a full table costs time and
nothing else.

at      size  field          meaning
0x0000     8  slots_used     entries from here on were never allocated
0x0080     …  entries        128 bytes each

Entry
+0x00     20  key            topic id (16 bytes) and partition, as `ids.partition_key` packs them
+0x18      8  is_used        1 from the time that the key is whole; 0 is free
+0x20      8  selected       word within the entry where the valid copy begins: 8 or 12;
                             0 is nothing stored yet
+0x28      8  high_watermark of a partition with several replicas, for its next leader
+0x30      8  read_bytes     bytes of batches that clients were answered with, to be shown
+0x40     32  copy           segment base offset, position, end offset, spare
+0x60     32  other copy     the same

A store writes the copy that is not selected, then the one word that selects it. Stores are seen in
their order (`words`), so whenever the worker is killed, the selected copy is whole: the new one or
the one before. The log behind may be ahead of it by the batches of the last append, never behind:
the worker stores here after it has appended.
"""

from shmbroker.shm.words import WORD_BYTES, words_of

HEADER_BYTES = 0x80
ENTRY_BYTES = 0x80
KEY_BYTES = 20

SLOTS_USED_WORD = 0

# Words within an entry.
IS_USED = 0x18 // WORD_BYTES
SELECTED = 0x20 // WORD_BYTES
HIGH_WATERMARK = 0x28 // WORD_BYTES
READ_BYTES = 0x30 // WORD_BYTES
COPY = 0x40 // WORD_BYTES
OTHER_COPY = 0x60 // WORD_BYTES

_ENTRY_WORDS = ENTRY_BYTES // WORD_BYTES
_FIRST_WORD = HEADER_BYTES // WORD_BYTES
_TOGGLE = COPY ^ OTHER_COPY


def table_bytes(entries: int) -> int:
    """Bytes of a table for that many partitions."""
    return HEADER_BYTES + entries * ENTRY_BYTES


class PositionTable:
    """The table over a view of zeroed bytes, or over what the worker before left there."""

    __slots__ = ("_free", "_slots", "_view", "entries", "words")

    def __init__(self, view: memoryview, entries: int) -> None:
        assert len(view) >= table_bytes(entries), "too small for the position table"
        self._view = view
        self.words = words_of(view)
        self.entries = entries
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []
        for slot in range(self.words[SLOTS_USED_WORD]):
            if self.words[_word_of(slot) + IS_USED]:
                self._slots[self._key(slot)] = slot
            else:
                self._free.append(slot)

    def find(self, key: bytes) -> int | None:
        """The slot of a partition; None if it has none."""
        return self._slots.get(key)

    def allocate(self, key: bytes) -> int | None:
        """A slot for a partition that has none, nothing stored in it; None if the table is full."""
        assert len(key) == KEY_BYTES and key not in self._slots
        words = self.words
        if self._free:
            slot = self._free.pop()
        elif (slot := words[SLOTS_USED_WORD]) < self.entries:
            words[SLOTS_USED_WORD] = slot + 1
        else:
            return None
        word = _word_of(slot)
        words[word + SELECTED] = 0
        words[word + HIGH_WATERMARK] = 0
        words[word + READ_BYTES] = 0
        self._view[word * WORD_BYTES : word * WORD_BYTES + KEY_BYTES] = key
        words[word + IS_USED] = 1
        self._slots[key] = slot
        return slot

    def free(self, slot: int) -> None:
        """The partition is no longer here."""
        self.words[_word_of(slot) + IS_USED] = 0
        del self._slots[self._key(slot)]
        self._free.append(slot)

    def load(self, slot: int) -> tuple[int, int, int] | None:
        """Segment base offset, position in that segment and end offset, as last stored; or None."""
        word = _word_of(slot)
        selected = self.words[word + SELECTED]
        if not selected:
            return None
        base_offset, position, end_offset = self.words[word + selected : word + selected + 3]
        return base_offset, position, end_offset

    def store(self, slot: int, base_offset: int, position: int, end_offset: int) -> None:
        """Store as `PositionSlot.store` does, for a caller that stores once."""
        PositionSlot(self, slot).store(base_offset, position, end_offset)

    def high_watermark(self, key: bytes) -> int:
        """The high watermark that was last stored for a partition; 0 if none was."""
        slot = self._slots.get(key)
        return 0 if slot is None else self.words[_word_of(slot) + HIGH_WATERMARK]

    def add_read_bytes(self, key: bytes, count: int) -> None:
        """Clients were answered with so many more bytes of a partition."""
        slot = self._slots.get(key)
        if slot is not None:
            self.words[_word_of(slot) + READ_BYTES] += count

    def _key(self, slot: int) -> bytes:
        at = _word_of(slot) * WORD_BYTES
        return bytes(self._view[at : at + KEY_BYTES])


class SiblingPositions:
    """A sibling's table, read while its owner stores into it.

    Where a partition's entry is, is remembered, and compared with what lies there. One that is not
    found is looked for again after `may_look_again`: a look at all entries takes milliseconds.
    """

    __slots__ = ("_entries", "_may_look", "_view", "_words")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._words = words_of(view)
        self._entries: dict[bytes, int] = {}
        self._may_look = True

    def may_look_again(self) -> None:
        """Partitions may have come."""
        self._may_look = True

    def end_offset(self, key: bytes) -> int | None:
        """Where a partition's log ends there; None if it has no entry that is known."""
        words = self._words
        entry = self._find(key)
        if entry is None or not (selected := words[entry + SELECTED]):
            return None
        return words[entry + selected + 2]

    def load(self, key: bytes) -> tuple[int, int, int] | None:
        """Load as `PositionTable.load` does. What its owner stores meanwhile may be seen in parts:
        this is for who shows it, not for who goes by it."""
        words = self._words
        entry = self._find(key)
        if entry is None or not (selected := words[entry + SELECTED]):
            return None
        base_offset, position, end_offset = words[entry + selected : entry + selected + 3]
        return base_offset, position, end_offset

    def high_watermark(self, key: bytes) -> int:
        """The high watermark that was last stored for a partition; 0 if none was."""
        entry = self._find(key)
        return 0 if entry is None else self._words[entry + HIGH_WATERMARK]

    def read_bytes(self, key: bytes) -> int | None:
        """What clients were answered with of a partition; None if it has no entry."""
        entry = self._find(key)
        return None if entry is None else self._words[entry + READ_BYTES]

    def _find(self, key: bytes) -> int | None:
        entry = self._entries.get(key)
        if entry is not None:
            at = entry * WORD_BYTES
            if self._words[entry + IS_USED] and self._view[at : at + KEY_BYTES] == key:
                return entry
            del self._entries[key]  # it has gone; that is known once for each
        elif not self._may_look:
            return None
        self._may_look = False
        words, view = self._words, self._view
        self._entries.clear()
        for slot in range(words[SLOTS_USED_WORD]):
            entry = _word_of(slot)
            if words[entry + IS_USED]:
                at = entry * WORD_BYTES
                self._entries[bytes(view[at : at + KEY_BYTES])] = entry
        return self._entries.get(key)


class PositionSlot:
    """One partition's place in the table; the log keeps it and stores after each append."""

    __slots__ = ("_entry", "_selected", "_selector", "_words")

    def __init__(self, table: PositionTable, slot: int) -> None:
        self._words = table.words
        self._entry = _word_of(slot)
        self._selector = self._entry + SELECTED
        self._selected = self._words[self._selector] or OTHER_COPY

    def store(self, base_offset: int, position: int, end_offset: int) -> None:
        """Store where the log ends now: its active segment, the bytes in that, its end offset."""
        words = self._words
        self._selected = selected = self._selected ^ _TOGGLE
        copy = self._entry + selected
        words[copy] = base_offset
        words[copy + 1] = position
        words[copy + 2] = end_offset
        words[self._selector] = selected  # after the copy: makes it the one that counts

    def store_high_watermark(self, high_watermark: int) -> None:
        """Store how far the in-sync replicas are."""
        self._words[self._entry + HIGH_WATERMARK] = high_watermark


def _word_of(slot: int) -> int:
    return _FIRST_WORD + slot * _ENTRY_WORDS
