"""What clients have used of their quotas in the last seconds: counted by each network worker in a
table of its own, and read by all. The sum over the tables is what a quota goes by.

at      size  field    stored by  meaning
0x0000     …  entries             `entry_bytes(windows)` each, ENTRIES of them

Entry
+0x00     8  key      owner      of what is counted together, 0: never used
+0x08     8  last_ms  owner      when it was counted last
+0x10     …  windows             0x18 bytes each, one more than is measured

Window
+0x00     8  start_ms  owner     0: never used
+0x08     8  last_ms   owner     when something was added last
+0x10     8  amount    owner     bytes, nanoseconds or pieces

A window takes what comes within its length from its start on; then the oldest one begins again. One
counts as long as anything was added to it in the time that is measured (KIP-13, Kafka's
SampledStat): so with one worker the rates are Kafka's to the millisecond, and with several they
differ only as far as their windows begin at other times. Times are of the monotonic clock, which
all processes share.

A key has its entry in one of PROBES places, chosen by its hash. Where all are taken, the one that
was idle for the longest time begins again: its client has used nothing then. A table outlives its
process, so that who kills a network worker gains nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shmbroker.shm.words import WORD_BYTES, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ENTRIES = 1024
"""The entries of one table, if they take no more than BYTES_MAX."""
BYTES_MAX = 4 << 20
PROBES = 8

THROTTLE_MS_MAX = (1 << 31) - 1
"""The longest throttle time that fits into an answer."""

LAST = 1
WINDOWS = 2
_START, _WINDOW_LAST, _AMOUNT = range(3)
_WINDOW_WORDS = 3


class Windows(NamedTuple):
    """What is measured: so many windows of this length (`quota.window.num`, …)."""

    number: int
    length_ms: int

    @property
    def span_ms(self) -> int:
        """How long anything counts."""
        return self.number * self.length_ms

    def elapsed_ms(self, since_oldest_ms: int) -> int:
        """The time that a sum is divided by: at least all windows but the one that is filling, so
        that what has just begun has no huge rate (Kafka's Rate)."""
        missing = self.number - 1 - since_oldest_ms // self.length_ms
        return max(1, since_oldest_ms + max(0, missing) * self.length_ms)


BY_DEFAULT = Windows(11, 1000)


def whole_ms(throttle_ms: float) -> int:
    """A throttle time in whole milliseconds, as far as an answer can say it."""
    return math.floor(min(throttle_ms + 0.5, THROTTLE_MS_MAX))


class Used(NamedTuple):
    """What was used together with what is recorded now."""

    amount: int
    elapsed_ms: int

    def throttle_ms(self, bound: float) -> int:
        """How long nothing may follow, so that the rate is within the bound again, as far as an
        answer can say it; 0: it is."""
        excess = self.amount / (self.elapsed_ms / 1000) - bound
        if not excess > 0:
            return 0
        return whole_ms(excess / bound * self.elapsed_ms)


def entry_bytes(windows: int) -> int:
    """Bytes of one entry: whole cache lines."""
    return -(-(WINDOWS + _WINDOW_WORDS * (windows + 1)) * WORD_BYTES // 64) * 64


def entries(windows: int) -> int:
    """How many a table has."""
    return max(PROBES, min(ENTRIES, BYTES_MAX // entry_bytes(windows)))


def table_bytes(windows: int) -> int:
    """Bytes of one table."""
    return entries(windows) * entry_bytes(windows)


class QuotaCounts:
    """One worker's side: what it has counted, and sums over all."""

    __slots__ = ("_count", "_current", "_entry_words", "_others", "_slots", "_words", "windows")

    def __init__(
        self,
        own: memoryview,
        others: Iterable[memoryview] = (),
        windows: Windows = BY_DEFAULT,
    ) -> None:
        """`others`: the tables of the other workers."""
        size = table_bytes(windows.number)
        self.windows = windows
        self._words = words_of(own[:size])
        self._others = [words_of(view[:size]) for view in others]
        self._entry_words = entry_bytes(windows.number) // WORD_BYTES
        self._count = entries(windows.number)
        self._slots = windows.number + 1
        self._current: dict[int, int] = {}
        """The window that is filling, by the place of its entry."""

    def record(self, key: int, amount: int, now_ms: int) -> Used:
        """Count it, and see what was used in all, here and at the other workers."""
        words = self._words
        at = self._own_entry(key)
        words[at + LAST] = now_ms
        window = self._window(at, now_ms)
        words[window + _WINDOW_LAST] = now_ms
        words[window + _AMOUNT] += amount
        return self.used(key, now_ms)

    def take_back(self, key: int, amount: int, now_ms: int) -> None:
        """What was recorded at this very time did not happen."""
        window = self._window(self._own_entry(key), now_ms)
        self._words[window + _AMOUNT] -= min(amount, self._words[window + _AMOUNT])

    def used(self, key: int, now_ms: int) -> Used:
        """What was used so far."""
        total, oldest_ms = 0, now_ms
        for words in (self._words, *self._others):
            at = self._find(words, key)
            if at >= 0:
                more, start_ms = self._sum(words, at, now_ms)
                total += more
                oldest_ms = min(oldest_ms, start_ms)
        return Used(total, self.windows.elapsed_ms(max(0, now_ms - oldest_ms)))

    def _sum(self, words: memoryview, at: int, now_ms: int) -> tuple[int, int]:
        """What an entry has, and since when; nothing since now if it has none."""
        rows = words[at + WINDOWS : at + WINDOWS + self._slots * _WINDOW_WORDS].tolist()
        horizon_ms = now_ms - self.windows.span_ms
        total, oldest_ms = 0, now_ms
        for start_ms, last_ms, amount in zip(
            rows[::_WINDOW_WORDS], rows[1::_WINDOW_WORDS], rows[2::_WINDOW_WORDS], strict=True
        ):
            if start_ms and last_ms > horizon_ms:
                total += amount
                if start_ms < oldest_ms:
                    oldest_ms = start_ms
        return total, oldest_ms

    def _window(self, at: int, now_ms: int) -> int:
        """The place of the window that takes what comes now."""
        words = self._words
        current = self._current.get(at)
        if current is None:
            starts = [words[at + WINDOWS + n * _WINDOW_WORDS] for n in range(self._slots)]
            current = starts.index(max(starts))  # a predecessor's
        place = at + WINDOWS + current * _WINDOW_WORDS
        start_ms = words[place]
        if not start_ms or now_ms - start_ms >= self.windows.length_ms:
            if start_ms:
                current = (current + 1) % self._slots
                place = at + WINDOWS + current * _WINDOW_WORDS
            words[place + _AMOUNT] = 0  # before its start: nobody counts an old amount as a new one
            words[place + _WINDOW_LAST] = now_ms
            words[place + _START] = now_ms
        self._current[at] = current
        return place

    def _places(self, key: int) -> list[int]:
        first = key % self._count
        return [(first + n) % self._count * self._entry_words for n in range(PROBES)]

    def _find(self, words: memoryview, key: int) -> int:
        for at in self._places(key):
            if words[at] == key:
                return at
        return -1

    def _own_entry(self, key: int) -> int:
        """The entry of this key, else one that is made of an unused one or the idlest."""
        words = self._words
        at = self._find(words, key)
        if at >= 0:
            return at
        at = min(self._places(key), key=lambda place: words[place + LAST])
        words[at] = 0
        for place in range(at + LAST, at + self._entry_words):
            words[place] = 0
        self._current.pop(at, None)
        words[at] = key
        return at
