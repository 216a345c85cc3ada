"""Why a worker ends a connection of itself, and when: its time limits.

Rules of this file:
* No time limit runs against a connection that is not read from, unless its client has left while it
  is muted, and only what it has asked for is there: a quota may mute for days.
* A client that takes none of its answers has as much time as one that asks for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection

SLOW = "a slow frame while others wait for its memory"
IDLE = "idle"
STALLED = "half a frame that has not moved"
UNREAD = "it does not read its answers"
LATE = "it has not authenticated in time"


def overdue(connection: Connection, now: float, idle_s: float, partial_s: float) -> str | None:
    """Why it is to be closed now: it is idle (no negative `idle_s`: none is), takes nothing of its
    answers for as long, its half frame has not moved for too long, or it has not shown in time who
    it is. None: it goes on, and where it is busy, it is idle from now on."""
    is_read = not connection.is_held
    if now >= connection.deadline:
        return LATE
    if connection.wants_write and 0 <= idle_s < now - connection.taken_at:
        return None if connection.is_cold else UNREAD
    if is_read and connection.room and now - connection.moved > partial_s:
        return f"{STALLED} for over {partial_s:.0f} s"
    is_kept = not is_read and not (connection.is_muted and connection.has_left)
    if is_kept or connection.inflight or connection.out:
        connection.last_active = now
    elif 0 <= idle_s < now - connection.last_active:
        return IDLE
    return None


def has_all(connection: Connection) -> bool:
    """Whether a client that has closed its sending side has got all that it asked for, and has left
    nothing to be read."""
    return not (
        connection.inflight
        or connection.out
        or connection.filled
        or connection.is_unread
        or connection.bytes_in_kernel()
    )


def is_slow(reason: str) -> bool:
    """Whether a client ends for that as it, or the way to it, is too slow."""
    return reason in (SLOW, UNREAD, LATE) or reason.startswith(STALLED)
