"""How a connection without a buffer is read while memory for parts of frames is short.

What it has sent is looked at before it is read: frames that lie whole in the kernel are taken, the
rest stays there until there is room for it (`frame_buffers.leave`). So a small request needs no
memory, and it does not matter who holds that.
"""

from __future__ import annotations

import socket

from shmbroker.gateway.poller import set_interest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.event_loop import EventLoop

MSG_PEEK = socket.MSG_PEEK


def peek(loop: EventLoop, connection: Connection) -> None:
    """Start what lies whole in the kernel; the rest stays there until there is memory."""
    try:
        count = connection.recv_into(loop.scratch_view, 0, MSG_PEEK)
    except BlockingIOError:
        return
    except OSError as fault:
        loop.on_broken(connection, fault)
        return
    if count == 0:
        loop.on_end(connection)
        return
    connection.last_active = loop.service.now()
    loop.is_peeked = True
    loop.take_frames(connection, loop.scratch, 0, count)
    loop.is_peeked = False


def leave_rest(loop: EventLoop, connection: Connection, taken: int, left: int, need: int) -> None:
    """Read again what was taken of the bytes peeked at, and ask for room for what is left.
    need: bytes of the frame that it is a part of."""
    unread = taken
    loop.traffic.received_bytes += taken
    while unread:
        try:
            unread -= connection.recv_into(loop.scratch_view[:unread])
        except OSError as fault:
            loop.close(connection, str(fault))
            return
    if left and not connection.is_held:
        loop.buffers.leave(connection, left, need, taken > 0)
    elif connection.is_held:
        set_interest(loop.poller, connection)
