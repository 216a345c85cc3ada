"""Control words: 8 aligned bytes that one process stores and another loads while it does.

Rules
* A word is stored through the "Q" view that `words_of` gives, never with struct.pack_into:
  CPython's packer clears its target before it writes, so another process sees a zero that nobody
  stored (one load in 120 did in a test; through the view none of 15 million). Through the view a
  store is one 8-byte move, and a load is one too.
* A word has one storing process. There is no compare-and-swap in Python, and no lock either: a
  process killed with a lock in its hand would keep it.
* What a word announces is stored before it, and loaded after it.

What the processor does to that. x86 keeps stores in program order, loads in program order, and
no store overtakes an older load: data, then the word that publishes it, needs nothing more. The
one thing that it does reorder is a load that overtakes an *older store to another word*, as the
store waits in the core's store buffer. Two processes that each store their own word and then load
the other's can thus both see the old value; between such a store and such a load belongs a
`fence()`. Doorbells are the place where that matters. Measured with two processes, 2.6 % of three
million tight races were missed by both sides without it, none of six million with it.

Elsewhere (ARM) the stores themselves may be seen out of order, and nothing here would hold:
`require_total_store_order` refuses to run there.
"""

import os
from _thread import allocate_lock

from shmbroker.errors import ConfigFault

WORD_BYTES = 8

_lock = allocate_lock()
_acquire = _lock.acquire
_release = _lock.release


def words_of(view: memoryview) -> memoryview:
    """The 8-byte words of a view of bytes that begins at a multiple of 8 within its region."""
    return view.cast("Q")


def fence() -> None:
    """Make every older store visible to other processes before any younger load.

    An uncontended lock is taken by one LOCK-prefixed instruction, which empties the store buffer;
    nothing else in CPython does that without a system call. The lock guards nothing and is this
    process's own. Not for signal handlers: one that comes between the two calls would wait for
    ever.
    """
    _acquire()
    _release()


def require_total_store_order() -> None:
    """ConfigFault on a processor where other stores than the above may be reordered."""
    machine = os.uname().machine
    if machine != "x86_64":
        raise ConfigFault(
            f"This machine is {machine}: the shared memory rings rely on the store order of "
            "x86-64, so run it on an x86-64 host."
        )
