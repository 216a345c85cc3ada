"""Signs of life from within work that takes long, and what that work is.

The main loop of a child leaves a sign in every turn (`processes.child`); the watchdog ends a child
that leaves none for some seconds. So:

* who works for seconds in one turn calls `sign` now and then;
* who waits in one call until the disk has something, says so with `waiting_for_disk`: a successor
  would wait as long, so the watchdog lets it be;
* what others may wait for has a name, `at_work`: a stop says what it waits for.

One for the process, as the switch of `log.residency`: those who work are many calls below whoever
has the words in shared memory. Only the main thread is heard, since it is the one that may hang.
Where nobody listens (tools, tests, the supervisor) nothing happens.

The word in shared memory:   how much is left << 16 | WAITS_FOR_DISK | one of WORKS
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING = 0
OPENING = 1
FLUSHING = 2
ANSWERING = 3
CATCHING_UP = 4
HANDING_OVER = 5
WORKS = (
    # as a stop says it: "waiting for io-worker-1: " …
    "",
    "opening logs",
    "making logs durable",
    "answering requests in flight",
    "letting the other controllers have what it has",
    "handing over what it leads",
)
WAITS_FOR_DISK = 1 << 15
LEFT_SHIFT = 16
_CODE_MASK = WAITS_FOR_DISK - 1
_LEFT_MAX = (1 << 40) - 1

_leave: Callable[[], None] | None = None
_store: Callable[[int], None] | None = None
_listens_to = 0
_word = 0


def attach(leave: Callable[[], None] | None, store: Callable[[int], None] | None) -> None:
    """Set who hears of signs: `leave` is called for each sign, `store` with the word when it
    changes."""
    global _leave, _store, _listens_to, _word
    _leave, _store, _listens_to, _word = leave, store, threading.get_ident(), 0


def sign() -> None:
    """Give a sign that work goes on, though no turn has ended."""
    if _leave is not None and threading.get_ident() == _listens_to:
        _leave()


def at_work(code: int, left: int = 0) -> None:
    """One of WORKS goes on from here, so much of it is left; a sign as well. NOTHING ends it."""
    if _store is not None and threading.get_ident() == _listens_to:
        _set(min(left, _LEFT_MAX) << LEFT_SHIFT | _word & WAITS_FOR_DISK | code)
    sign()


@contextmanager
def waiting_for_disk() -> Iterator[None]:
    """Within, one call waits until the disk has something. The calls, not what leads to them: who
    loops in here is never found."""
    if _store is None or threading.get_ident() != _listens_to or _word & WAITS_FOR_DISK:
        yield
        return
    _set(_word | WAITS_FOR_DISK)
    try:
        yield
    finally:
        _set(_word & ~WAITS_FOR_DISK)
        sign()


def describe(word: int) -> str:
    """What a child's word says, for people; empty for nothing."""
    code, left = word & _CODE_MASK, word >> LEFT_SHIFT
    name = WORKS[code] if code < len(WORKS) else ""
    return f"{name}, {left} left" if name and left else name


def _set(word: int) -> None:
    global _word
    _word = word
    if _store is not None:
        _store(word)
