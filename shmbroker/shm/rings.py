"""The rings that one process reads, looked at together.

A look costs less than asking each reader, and a process that is up looks some times for each
request. It is a compiled loop (`kernels/look.c`); the way without it is for where there is no
compiler, and for tests whose words are no memory.
"""

from __future__ import annotations

from functools import partial

from shmbroker.kernels import native
from shmbroker.shm.ring import RingReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shmbroker.kernels._native import Rings as Compiled


class Rings:
    """Some readers, in an order that stays. What they have taken counts until it is released."""

    __slots__ = ("compiled", "readers", "ready")

    def __init__(self, readers: Iterable[RingReader]) -> None:
        self.readers = tuple(readers)
        self.compiled: Compiled | None = None
        """What the compiled loops look at; None where there are none."""
        self.ready: Callable[[], tuple[int, ...]] = self._ready
        """Indexes of the readers that have entries: who takes them polls first, as more may have
        come since."""
        words = tuple(reader.words for reader in self.readers)
        if native is not None and all(isinstance(each, memoryview) for each in words):
            self.compiled = native.rings(words)
            self.ready = partial(native.ready, self.compiled)

    def _ready(self) -> tuple[int, ...]:
        return tuple(index for index, reader in enumerate(self.readers) if reader.poll())
