"""A ring in shared memory: one writing process, one reading process, entries in between.

at       size  field           stored by  meaning
0x0000      8  magic           creator    b"SHMRING1"
0x0008      8  capacity_bytes  creator    of the data area; a power of two
0x0010      8  incarnation     resetter   +1 each time the ring was emptied for a successor
0x0018      8  stamp           writer     monotonic ns of a publish that is measured; most are not
0x0080      8  tail_position   writer     bytes published so far
0x0100      8  head_position   reader     bytes released so far
0x1000      …  data            writer     entries

Each moving word has 128 bytes to itself: two cache lines, as processors fetch them in pairs.
Positions only grow until a reset; index = position % capacity_bytes.
Lost with the family: nothing here is ever needed to recover a log.

Entry, aligned to 8; never wraps around the end of the data area:
+0       4  length     of the payload in bytes
+4       4  operation  what the entry is, the caller's number; 0 is padding up to the end
+8       …  payload    `length` bytes, then up to 7 bytes of no meaning

An entry takes at most a quarter of the ring, so that with its padding it always fits into an
empty one, and several are under way at a time.

Example: empty ring, operation 1, payload b"hello"
0x1000: 05 00 00 00 01 00 00 00    length 5, operation 1
0x1008: 68 65 6c 6c 6f -- -- --    "hello"
tail_position goes from 0 to 16, last of all
"""

from shmbroker.shm.words import WORD_BYTES, words_of

MAGIC = int.from_bytes(b"SHMRING1", "little")

HEADER_BYTES = 0x1000
ENTRY_HEADER_BYTES = 8
CAPACITY_BYTES_MIN = 32
"""Four entries without payload; tests use it."""

# Indexes into the words of the ring.
MAGIC_WORD = 0x0000 // WORD_BYTES
CAPACITY_WORD = 0x0008 // WORD_BYTES
INCARNATION_WORD = 0x0010 // WORD_BYTES
STAMP_WORD = 0x0018 // WORD_BYTES
TAIL_WORD = 0x0080 // WORD_BYTES
HEAD_WORD = 0x0100 // WORD_BYTES
DATA_WORD = 0x1000 // WORD_BYTES


def ring_bytes(capacity_bytes: int) -> int:
    """The room that a ring takes in a region."""
    return HEADER_BYTES + capacity_bytes


def payload_bytes_max(capacity_bytes: int) -> int:
    """The largest payload of one entry."""
    return capacity_bytes // 4 - ENTRY_HEADER_BYTES


def create_ring(view: memoryview) -> None:
    """Lay out an empty ring over zeroed bytes, at a multiple of 8, before any end is made of it."""
    capacity_bytes = len(view) - HEADER_BYTES
    assert capacity_bytes >= CAPACITY_BYTES_MIN, "too small for a ring"
    assert capacity_bytes & (capacity_bytes - 1) == 0, "a ring's capacity is a power of two"
    words = words_of(view)
    words[CAPACITY_WORD] = capacity_bytes
    words[MAGIC_WORD] = MAGIC


def parts_of_ring(view: memoryview) -> tuple[memoryview, memoryview]:
    """What both ends are made of: the words of the whole ring, the bytes of its data area."""
    return words_of(view), view[HEADER_BYTES:]
