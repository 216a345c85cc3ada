"""The standing answers: what a network worker may say again without asking the I/O worker.

A heartbeat in a quiet group has one answer, and 10,000 members ask for it every three seconds. With
such an answer the I/O worker *grants* an entry: the one that got it may give the same answer to the
same bytes, as long as the entry holds the value of the grant, and leaves the time at which it did.
The I/O worker withdraws the grant before it tells anybody of whatever has changed.

One table for each I/O worker.

at      size  field    stored by         meaning
0x0000     …  entries                    16 bytes each

Entry
+0x00     8  value    I/O worker        of the present grant; no value is given twice, 0 is none
+0x08     8  used_ns  network workers   monotonic clock at the last answer given from it

Two words of one line, as a process that looks at one stores the other. `used_ns` is the one word
that has more than one storing process: each stores the time, so whichever is last is right. A grant
is used in the moment of its withdrawal at most: the answer is one that was given just before.
Values begin with the incarnation of the worker, so a grant of its predecessor counts for nothing;
until the successor has cleared the table, members are told what was true when it died.
"""

from __future__ import annotations

from shmbroker.shm.words import WORD_BYTES, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENTRIES = 32768
"""Members that are answered this way; others are asked for one by one."""

_ENTRY_WORDS = 2
USED_NS = 1
_INCARNATION_SHIFT = 40


def table_bytes(entries: int = ENTRIES) -> int:
    """Bytes of a table with that many entries."""
    return entries * _ENTRY_WORDS * WORD_BYTES


class StandingAnswers:
    """The I/O worker's side: grant, withdraw, and when an entry was used."""

    __slots__ = ("_free", "_next_value", "_now_ns", "words")

    def __init__(self, view: memoryview, incarnation: int, now_ns: Callable[[], int]) -> None:
        """now_ns: the monotonic clock, by which the network workers tell when they used one."""
        if incarnation > 1:
            view[:] = bytes(len(view))
        self._now_ns = now_ns
        self.words = words_of(view)
        self._free = list(range(len(self.words) - _ENTRY_WORDS, -1, -_ENTRY_WORDS))
        self._next_value = (incarnation << _INCARNATION_SHIFT) + 1

    def grant(self) -> tuple[int, int] | None:
        """(word, value) of a new grant, used just now; None if there is no free entry."""
        if not self._free:
            return None
        word = self._free.pop()
        value = self._next_value
        self._next_value = value + 1
        self.words[word + USED_NS] = self._now_ns()
        self.words[word] = value
        return word, value

    def value(self, word: int) -> int:
        """The value of the grant that has this word."""
        return self.words[word]

    def withdraw(self, word: int) -> None:
        """Withdraw an answer: nobody may give it from the entry any more, which is free."""
        self.words[word] = 0
        self._free.append(word)

    def idle_ms(self, word: int) -> int:
        """Milliseconds since the answer was last given."""
        return max(0, self._now_ns() - self.words[word + USED_NS]) // 1_000_000
