"""How the frames of a client are taken that has to show first who it is.

Each is taken after the answer to the one before, and none is larger than its `Stranger` allows.
What comes after it has shown who it is, in the same read, are requests as ever.
"""

from __future__ import annotations

from shmbroker.errors import ProtocolFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.event_loop import EventLoop


def take_of_stranger(
    loop: EventLoop, connection: Connection, buffer: bytearray, position: int, end: int
) -> None:
    """Take frames as `EventLoop.take_frames` does."""
    need = 0
    try:
        while (stranger := connection.stranger) is not None and end - position >= 4:
            size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
            if not 0 <= size <= stranger.frame_bytes_max:
                raise ProtocolFault(f"frame of {size} bytes before authentication")
            frame_end = position + 4 + size
            if frame_end > end:
                need = size + 4
                break
            stranger.on_frame(buffer, position + 4, frame_end)
            position = frame_end
            loop.flush(connection)
            if connection.is_closed:
                return
            if connection.wants_write:
                connection.is_held = True
            if connection.is_held:
                break
    except ProtocolFault as fault:
        loop.close_answered(connection, str(fault), is_fault=True)
        return
    if connection.stranger is None and not connection.is_held and position < end:
        loop.take_frames(connection, buffer, position, end)
        return
    loop.keep_rest(connection, buffer, position, end, need)
