"""Reads of log files that may be told not to wait for the disk.

An I/O worker serves many clients one after the other, so it must not wait for a page of a cold
segment. Between `refuse_waiting` and `allow_waiting` a `read` of bytes that are not in the page
cache asks the kernel to read them in (POSIX_FADV_WILLNEED, which doesn't wait) and raises
ColdBytes: come again soon. Everything else, recovery, compaction, retention, waits.

The switch is one for the process: log files are read in one thread, and the readers are many calls
below the one that knows that a client is waiting.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from shmbroker.signs import sign

AHEAD_BYTES = 128 << 10
"""The least that is asked for, where something is cold."""
CANT_SAY = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
"""What a file system answers that can't say whether it would wait."""

_may_wait = True


class ColdBytes(Exception):
    """The bytes are on the disk; reading them in has begun."""


@contextmanager
def waiting() -> Iterator[None]:
    """Let reads wait within, for work that must not stop half-way."""
    global _may_wait
    before, _may_wait = _may_wait, True
    try:
        yield
    finally:
        _may_wait = before


def refuse_waiting() -> None:
    """Have cold bytes raise ColdBytes from here on."""
    global _may_wait
    _may_wait = False


def allow_waiting() -> None:
    """Have cold bytes waited for from here on, as they are at first."""
    global _may_wait
    _may_wait = True


def read(fd: int, length: int, position: int) -> bytes:
    """Read as `os.pread` does; ColdBytes where that would wait and must not."""
    if _may_wait:
        sign()  # long scans are made of these
        return os.pread(fd, length, position)
    data = bytearray(length)
    try:
        count = os.preadv(fd, [data], position, os.RWF_NOWAIT)
    except OSError as fault:
        if fault.errno in CANT_SAY:
            return os.pread(fd, length, position)
        if fault.errno != errno.EAGAIN:
            raise
        count = 0
    if count < length:
        # The end of the file, or of what is in the page cache.
        if position + count < os.fstat(fd).st_size:
            will_need(fd, position, max(length, AHEAD_BYTES))
            raise ColdBytes
        del data[count:]
    return bytes(data)


def will_need(fd: int, position: int, length: int) -> None:
    """Have bytes read in, some time."""
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)


def is_cold(fd: int, position: int) -> bool:
    """Whether the byte at `position` would have to be waited for; what is wrong with it is told by
    who reads it."""
    try:
        os.preadv(fd, _PROBE, position, os.RWF_NOWAIT)
    except OSError as fault:
        return fault.errno == errno.EAGAIN
    return False


_PROBE = [bytearray(1)]
