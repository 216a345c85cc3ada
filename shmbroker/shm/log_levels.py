"""The log levels region: at which level each logger of the family writes, and in which format.

Two have a say, each in words of its own: the supervisor stores what file and flags configure, the
active controller what clients have changed since (Kafka's BROKER_LOGGER). What was changed goes
before what is configured; a logger that has neither goes by the one above it.

at      size  field       stored by          meaning
0x0000     8  configured  supervisor         +1 after it has stored levels or the format
0x0080     8  changed     active controller  +1 after it has stored levels
0x0100     8  format      supervisor         index in `logs.FORMATS`
0x0180     …  loggers     …                  16 bytes each, as `logs.LOGGERS` has them

Logger
+0x00      8  configured  supervisor         0: none; else 1 + index in `logs.LEVELS`
+0x08      8  changed     active controller  the same

The process that stored rings the supervisor, which tells everybody as it tells of a death
(`shm.counters`): each process then calls `apply`. A change lasts as long as the family.
"""

from __future__ import annotations

from collections.abc import Mapping

from shmbroker import logs
from shmbroker.shm.words import WORD_BYTES, words_of

CONFIGURED_WORD = 0x0000 // WORD_BYTES
CHANGED_WORD = 0x0080 // WORD_BYTES
FORMAT_WORD = 0x0100 // WORD_BYTES
LOGGERS_WORD = 0x0180 // WORD_BYTES
LOGGER_WORDS = 0x10 // WORD_BYTES

_NAMES = tuple(logs.LEVELS)


def table_bytes() -> int:
    """Bytes of the region."""
    return (LOGGERS_WORD + LOGGER_WORDS * len(logs.LOGGERS)) * WORD_BYTES


class LogLevels:
    """The region, for all who store in it or go by it."""

    def __init__(self, view: memoryview) -> None:
        """Begin over zeroed bytes, before the fork."""
        self._words = words_of(view)
        self._seen = (0, 0)

    def configure(self, levels: Mapping[str, str], format_name: str) -> None:
        """Set what file and flags say, over the defaults. For the supervisor."""
        words = self._words
        levels = logs.DEFAULTS | dict(levels)
        for row, name in enumerate(logs.LOGGERS):
            words[_at(row)] = 1 + _NAMES.index(levels[name]) if name in levels else 0
        words[FORMAT_WORD] = logs.FORMATS.index(format_name)
        words[CONFIGURED_WORD] += 1

    def change(self, levels: Mapping[str, str | None]) -> None:
        """Set what a client wants; None takes a change back. For the active controller."""
        words = self._words
        for name, level in levels.items():
            at = _at(logs.LOGGERS.index(name)) + 1
            words[at] = 0 if level is None else 1 + _NAMES.index(level)
        words[CHANGED_WORD] += 1

    def effective(self) -> dict[str, str]:
        """The level that each logger goes by."""
        return logs.effective(self._given())

    def apply(self) -> None:
        """Go by what was stored, in this process; cheap when nothing was."""
        words = self._words
        stored = words[CONFIGURED_WORD], words[CHANGED_WORD]
        if stored != self._seen:
            self._seen = stored
            logs.set_format(logs.FORMATS[words[FORMAT_WORD]])
            logs.set_levels(self._given())

    def _given(self) -> dict[str, str]:
        words = self._words
        found = {}
        for row, name in enumerate(logs.LOGGERS):
            given = words[_at(row) + 1] or words[_at(row)]
            if given:
                found[name] = _NAMES[given - 1]
        return found


def _at(row: int) -> int:
    return LOGGERS_WORD + row * LOGGER_WORDS
