"""Marks of guests: whether a connection that is lent to another process is between two requests.

Each pair of an I/O worker and a network worker has MARKS words of an anonymous mapping, one for
each connection that the one may have lent to the other (`gateway.lending`, `gateway.guests`):

   at      size  field   stored by  meaning
   0x0000     8  mark    see below  0: between two requests; 1: something is read, or not yet
                                    answered
   …             the next mark

A mark has one storing process at a time. As it lends a connection, the network worker stores 0,
before the message that lends it is sent. From then on the I/O worker stores: 1 before it reads
anything of the connection (the kernel of the straight way does so, too), 0 when all of it is
answered. The network worker loads it when the I/O worker is dead: where it is 0 nothing is lost,
and the connection goes on at home.
"""

import mmap
from collections.abc import Iterable

from shmbroker.shm.words import WORD_BYTES, words_of

MARKS = 1024
"""The most guests that one I/O worker may have of one network worker."""

Pair = tuple[int, int]
"""The slots of an I/O worker and of a network worker."""


def make_marks(pairs: Iterable[Pair]) -> dict[Pair, memoryview]:
    """The marks of each pair, all 0; to be made before the first fork."""
    found = list(pairs)
    pages = MARKS * WORD_BYTES * max(len(found), 1)
    words = words_of(memoryview(mmap.mmap(-1, pages)))
    return {pair: words[MARKS * which : MARKS * (which + 1)] for which, pair in enumerate(found)}
