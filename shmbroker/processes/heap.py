"""Freed memory goes back to the system: the C library keeps it otherwise, for what may come."""

import ctypes
from collections.abc import Callable

_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Not every C library has it."""


def give_back_freed() -> None:
    """Whole pages of the heap that hold nothing."""
    if _trim is not None:
        _trim(0)
