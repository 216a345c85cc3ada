"""Both ends of a ring in this process."""

from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes


def ring() -> tuple[RingWriter, RingReader]:
    """An empty one."""
    view = memoryview(bytearray(ring_bytes(1 << 12)))
    create_ring(view)
    return RingWriter(*parts_of_ring(view)), RingReader(*parts_of_ring(view))


def put(writer: RingWriter) -> None:
    """Publish one entry."""
    writer.claim(1, 8)
    writer.publish()
