"""Freed memory goes back to the system: the C library keeps it otherwise, for what may come.

What it gets from the system piece by piece, as glibc does from 128 KiB on, it gives back at once,
and lets grow without a copy; but with each such piece that is freed it raises that bound, up to
32 MiB. A process whose large buffers come and go sets the bound once, and so keeps it.
"""

import ctypes

_M_MMAP_THRESHOLD = -3
LARGE_BYTES = 256 << 10

_library = ctypes.CDLL(None)
_has_both = hasattr(_library, "malloc_trim") and hasattr(_library, "mallopt")
"""Whether the C library has both: not every one does."""


def keep_large_apart() -> None:
    """Have memory from LARGE_BYTES on given back to the system as soon as it is freed."""
    if _has_both:
        _library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back_freed() -> None:
    """Whole pages of the heap that hold nothing."""
    if _has_both:
        _library.malloc_trim(0)
