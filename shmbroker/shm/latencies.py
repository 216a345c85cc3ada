"""The latencies region: how long requests took, one table for each network worker and I/O worker.

Its owner counts in lists of its own, and stores them once a second: hot code pays for an addition,
and a killed process takes the counts of its last second with it. A successor goes on from what is
here.

at      size  field      meaning
0x0000     8  rows_used  rows from here on were never used
0x0080     …  rows       224 bytes each

Row
+0x00      8  key        an api key, or STAGES_FROM + one of the stages below
+0x08      8  sum_us     microseconds, of all that was counted
+0x10    208  buckets    26 counts: bucket n is of what took less than 2**n microseconds and not
                         less than half of that; the last one has the rest

A row's key is stored before rows_used. Each word may be seen older or newer than the one beside it:
a sum and its buckets may be a second apart.
"""

from array import array

from shmbroker.shm.words import WORD_BYTES, words_of

ROWS = 36
BUCKETS = 26
HEADER_BYTES = 0x80
ROW_BYTES = (2 + BUCKETS) * WORD_BYTES

ROWS_USED_WORD = 0
SUM = 1
BUCKET_0 = 2

STAGES_FROM = 1 << 20
STAGE_NETWORK = STAGES_FROM
"""Requests of a turn are read and their operations put on rings."""
STAGE_RING = STAGES_FROM + 1
"""An operation waits on its ring until the I/O worker takes it."""
STAGE_APPEND = STAGES_FROM + 2
"""An I/O worker's turn, from the first operation that it takes to its results on the ring."""
STAGE_ANSWER = STAGES_FROM + 3
"""A result waits on its ring until the network worker takes it."""
STAGE_PURGATORY = STAGES_FROM + 4
"""A read waits for bytes, or for its time to be over."""
STAGE_FLUSH = STAGES_FROM + 5
"""fdatasync of one file."""
SAMPLED = 16
"""One of so many turns of a gateway is followed through the first four stages."""
OTHERS = STAGES_FROM + 99
"""What has no row of its own, as the table is full."""

_ROW_WORDS = ROW_BYTES // WORD_BYTES
_FIRST_WORD = HEADER_BYTES // WORD_BYTES
_LENGTHS = 65
"""Bit lengths that a count of microseconds may have; those beyond the buckets are added up."""


def table_bytes() -> int:
    """Bytes of one process's table."""
    return HEADER_BYTES + ROWS * ROW_BYTES


class Histogram:
    """What one process has counted of one kind of thing: `counts[us.bit_length()] += 1`."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * _LENGTHS
        self.sum_us = 0

    def add(self, took_us: int, times: int = 1) -> None:
        """Count `times` that took so long each; less than nothing counts as nothing."""
        took_us = max(0, took_us)
        self.counts[took_us.bit_length()] += times
        self.sum_us += took_us * times


class Latencies:
    """The table of the process that owns it."""

    __slots__ = ("_shown", "_where", "_words", "histograms")

    def __init__(self, view: memoryview) -> None:
        """Begin over zeroed bytes, or what the process before has left there."""
        assert len(view) >= table_bytes(), "too small for the latencies"
        self._words = words = words_of(view)
        self.histograms: dict[int, Histogram] = {}
        self._where: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        for row in range(words[ROWS_USED_WORD]):
            at = _FIRST_WORD + row * _ROW_WORDS
            found = Histogram()
            found.sum_us = words[at + SUM]
            found.counts[:BUCKETS] = words[at + BUCKET_0 : at + BUCKET_0 + BUCKETS].tolist()
            self.histograms[words[at]] = found
            self._where[words[at]] = at

    def of(self, key: int) -> Histogram:
        """The histogram of a key; what has no room shares one."""
        found = self.histograms.get(key)
        if found is None:
            if len(self.histograms) >= ROWS - 1 and key != OTHERS:
                return self.of(OTHERS)
            found = self.histograms[key] = Histogram()
        return found

    def show(self) -> None:
        """Store what was counted since the last time."""
        words = self._words
        for key, histogram in self.histograms.items():
            counts = histogram.counts
            total = sum(counts)
            if self._shown.get(key) == total:
                continue
            self._shown[key] = total
            at = self._where.get(key)
            if at is None:
                row = words[ROWS_USED_WORD]
                at = self._where[key] = _FIRST_WORD + row * _ROW_WORDS
                words[at] = key
                words[ROWS_USED_WORD] = row + 1
            shown = counts[:BUCKETS]
            shown[-1] += sum(counts[BUCKETS:])
            words[at + SUM : at + BUCKET_0 + BUCKETS] = memoryview(
                array("Q", (histogram.sum_us, *shown))
            )


def read_table(view: memoryview) -> dict[int, tuple[int, list[int]]]:
    """{key: (microseconds in all, counts by bucket)}, while the owner stores into it."""
    words = words_of(view)
    found = {}
    for row in range(min(words[ROWS_USED_WORD], ROWS)):
        at = _FIRST_WORD + row * _ROW_WORDS
        counts = words[at + BUCKET_0 : at + BUCKET_0 + BUCKETS].tolist()
        found[words[at]] = (words[at + SUM], counts)
    return found
