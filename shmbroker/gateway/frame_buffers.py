"""The buffers of a worker for parts of frames: held by connections, waited for, or spare.

Rules of this file:
* Nothing is allocated from an announced length: buffers double as bytes arrive, and all buffers of
  a worker together are bounded; `arriving.py` says who waits for room, and who is given up for it.
* With the spare buffers, what is held is no more than the usual memory; while memory is short,
  there are none.
* A connection that waits for room is held: it is not read from.
"""

from __future__ import annotations

from shmbroker.gateway.arriving import LOOK_AGAIN_S, ArrivingMemory, first_room, next_room
from shmbroker.gateway.connection import NO_VIEW
from shmbroker.gateway.poller import set_interest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.poller import Poller

LARGE_FRAME_BYTES = 128 * 1024
"""The size from which a frame is read into the connection's buffer at once, up to its end."""

GROWN_BYTES_MIN = 1 << 20
"""A buffer of this size grows where it is: the system moves its pages (see `processes/heap.py`)."""

ZEROS = memoryview(bytes(1 << 20))
"""What it grows by."""

SPARES_MAX = 4
SPARE_BYTES_MIN = 16 * 1024
SPARE_BYTES_MAX = 8 << 20
"""All spare buffers together; with what is held, they are no more than the usual memory."""
SPARE_TIMES_MAX = 4
"""How many times larger than what is needed a spare buffer may be, unless the connection's last
frame was as large."""

FED_PER_TURN = 64
"""Connections that wait for memory, of which another look is taken at once."""


class FrameBuffers:
    """What each connection holds of one worker's memory. `memory` says who may have more.

    reading: what one read may bring at once. give_up: ends a connection whose memory others wait
    for."""

    def __init__(
        self,
        bytes_max: int,
        reading: int,
        poller: Poller,
        now: Callable[[], float],
        give_up: Callable[[Connection], None],
    ) -> None:
        self.memory: ArrivingMemory[Connection] = ArrivingMemory(bytes_max, reading)
        self.spare = SpareBuffers(self.memory)
        self._poller = poller
        self._now = now
        self._give_up = give_up
        self._next_feed = 0.0

    # ── room ────────────────────────────────────────────────────────────────────────────────────

    def hold(self, connection: Connection, size: int) -> bytearray:
        """Give the connection a buffer of its own with at least `size` bytes, or a larger one."""
        buffer = connection.buffer
        spare = self.spare
        if buffer is None:
            buffer = spare.take(size, connection.large_bytes)
            view = memoryview(buffer)
        elif len(buffer) >= GROWN_BYTES_MIN:
            connection.view.release()
            while len(buffer) < size:
                buffer += ZEROS[: size - len(buffer)]
            view = memoryview(buffer)
        else:
            old, buffer = buffer, spare.take(size, connection.large_bytes)
            view = memoryview(buffer)
            filled = connection.filled
            view[:filled] = connection.view[:filled]
            connection.view.release()
            spare.keep(old)
        self.memory.hold(connection, len(buffer), self._now())
        spare.shrink()
        connection.buffer = buffer
        connection.view = view
        return buffer

    def keep(
        self, connection: Connection, view: memoryview, position: int, end: int, need: int
    ) -> None:
        """A part of a frame is in view[position:end], and stays: in a buffer of its own.
        need: bytes of the whole frame, as far as that is known. view: the connection's own, or that
        of what everybody is read into."""
        left = end - position
        connection.large_bytes = need if need > LARGE_FRAME_BYTES else 0
        if view is not connection.view:
            if connection.room < left:
                # There is room: nothing is read there while memory is short.
                self.hold(connection, first_room(left, need))
            connection.view[:left] = view[position:end]
        elif position:
            # Overlapping slices of one bytearray: go through a copy of the rest.
            connection.view[:left] = bytes(view[position:end])
        connection.filled = left
        connection.arrive(left, need, position > 0, self._now())

    def leave(self, connection: Connection, left: int, need: int, is_next: bool) -> None:
        """Leave `left` bytes of a frame in the kernel until there is room for them. is_next: the
        frame is not the one that was there before."""
        connection.large_bytes = need if need > LARGE_FRAME_BYTES else 0
        connection.arrive(left, need, is_next, self._now())
        self.ask(connection, first_room(left, need))

    def ask(self, connection: Connection, size: int) -> bool:
        """Give it so much room, or all that its frame needs, if it may have it now; else it waits
        for that."""
        if self._try_hold(connection, size):
            return True
        connection.is_held = True
        self.memory.wait(connection, size, self._now())
        set_interest(self._poller, connection)
        return False

    def grow(self, connection: Connection) -> bool:
        """Double the buffer of a frame that is still arriving; False if it has to wait."""
        return self.ask(connection, next_room(connection.room, connection.whole))

    def _try_hold(self, connection: Connection, size: int) -> bool:
        memory = self.memory
        now = self._now()
        allowed = memory.allowed(connection, size, now)
        if not allowed:
            for payer in memory.payers(connection, size, now):
                self._give_up(payer)
            allowed = memory.allowed(connection, size, now)
        if allowed:
            self.hold(connection, allowed)
        return allowed > 0

    def feed(self) -> None:
        """Read on for those who wait for memory, as there may be some now."""
        memory = self.memory
        now = self._now()
        if not memory.has_released and now < self._next_feed:
            return
        memory.has_released = False
        self._next_feed = now + LOOK_AGAIN_S
        for connection in memory.in_turn()[:FED_PER_TURN]:
            if connection.is_closed:
                continue  # it has paid for one before it
            if not connection.room:
                connection.arrived = connection.bytes_in_kernel()
            if self._try_hold(connection, connection.wanted):
                connection.is_held = connection.is_muted
                set_interest(self._poller, connection)
        if memory.waiting and (given_up := memory.deadlocked()) is not None:
            self._give_up(given_up)

    # ── no more of it ───────────────────────────────────────────────────────────────────────────

    def give(self, connection: Connection) -> None:
        """Take the buffer of a connection that needs it no more."""
        buffer = connection.buffer
        assert buffer is not None
        connection.view.release()
        connection.view, connection.buffer = NO_VIEW, None
        self.memory.release(connection)
        self.spare.keep(buffer)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that goes: it holds nothing and waits for nothing any more."""
        connection.filled = 0
        if connection.buffer is not None:
            self.give(connection)
        else:
            self.memory.release(connection)


class SpareBuffers:
    """Buffers that nobody holds just now: their pages are there already."""

    def __init__(self, memory: ArrivingMemory[Connection]) -> None:
        self._memory = memory
        self._buffers: list[bytearray] = []
        """The free buffers, from the smallest to the largest."""
        self._has_used = False
        """Whether one was used since the last `sweep`."""

    @property
    def size(self) -> int:
        """Bytes of all together."""
        return sum(map(len, self._buffers))

    def take(self, size: int, usual_size: int) -> bytearray:
        """One of about that size, or a new one."""
        if size >= SPARE_BYTES_MIN:
            most = max(SPARE_TIMES_MAX * size, usual_size)
            if self._memory.used + most > self._memory.usual:
                most = size
            for which in reversed(range(len(self._buffers))):
                if size <= len(self._buffers[which]) <= most:
                    self._has_used = True
                    return self._buffers.pop(which)
        return bytearray(size)

    def keep(self, buffer: bytearray) -> None:
        """Keep the largest few."""
        memory = self._memory
        if not SPARE_BYTES_MIN <= len(buffer) <= SPARE_BYTES_MAX or memory.is_short:
            return
        buffers = self._buffers
        buffers.append(buffer)
        buffers.sort(key=len)
        most = min(SPARE_BYTES_MAX, memory.usual - memory.used)
        while len(buffers) > SPARES_MAX or self.size > most:
            del buffers[0]

    def shrink(self) -> None:
        """More is held than before: give them up where there is no room for both."""
        memory = self._memory
        if memory.is_short or memory.used + self.size > memory.usual:
            self._buffers.clear()

    def sweep(self) -> None:
        """Give them up where none was of use since this was last asked."""
        if not self._has_used:
            self._buffers.clear()
        self._has_used = False
