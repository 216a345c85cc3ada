"""How the frames of a client are taken that has to show first who it is, and what is said of one
that speaks no Kafka.

Each is taken after the answer to the one before, and none is larger than its `Stranger` allows.
What comes after it has shown who it is, in the same read, are requests as ever.
"""

from __future__ import annotations

from shmbroker.errors import ProtocolFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.event_loop import EventLoop

TLS_HANDSHAKE = 0x1603
"""First two bytes of who speaks TLS."""

HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
"""First four bytes of who speaks HTTP, each a size beyond any frame; PRI is of HTTP/2."""


def take_of_stranger(
    loop: EventLoop, connection: Connection, buffer: bytearray, position: int, end: int
) -> None:
    """Take frames as `EventLoop.take_frames` does."""
    need = 0
    try:
        while (stranger := connection.stranger) is not None and end - position >= 4:
            size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
            if not 0 <= size <= stranger.frame_bytes_max:
                raise ProtocolFault(size_complaint(size, " before authentication"))
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


def size_complaint(size: int, when: str = "") -> str:
    """What is wrong with a frame of this size; what its bytes are in another protocol, if known."""
    if size >> 16 == TLS_HANDSHAKE:
        return (
            "it speaks TLS, but this listener does not: the client needs the port of one that does"
        )
    if size > 0 and size.to_bytes(4, "big") in HTTP_STARTS:
        return (
            "it speaks HTTP, but this is a port for Kafka clients: metrics and the console have "
            "ports of their own"
        )
    return f"frame of {size} bytes{when}"
