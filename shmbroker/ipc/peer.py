"""A peer: another process of the family, reached by the two rings of the pair and its doorbell.

Rules of this file:
* Nobody waits in a claim. What does not fit goes to `backlog` and is sent, in order, by `resume`;
  the asking side bounds how much it asks for, so a backlog of results is bounded too.
* `publish` once for many claims: one store of the tail, one look at the sleeper's flag. Until then
  the peer is in the outbox of its process, where one with a backlog stays.
* When the peer has died, `reset` forgets both halves; what was pending is the owner's business.
"""

from __future__ import annotations

from collections import deque

from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.ring import RingReader, RingWriter


class Peer:
    """One living end of a pair of rings. `role` and `number` say whom it reaches, `slot` where."""

    __slots__ = (
        "backlog",
        "capacity_bytes",
        "deaths",
        "doorbell",
        "incarnation",
        "number",
        "outbox",
        "reader",
        "role",
        "slot",
        "writer",
    )

    def __init__(
        self,
        slot: int,
        role: str,
        number: int,
        writer: RingWriter,
        reader: RingReader,
        doorbell: Doorbell,
    ) -> None:
        self.slot = slot
        self.role = role
        self.number = number
        self.writer = writer
        self.reader = reader
        self.doorbell = doorbell
        self.backlog: deque[tuple[int, bytes]] = deque()
        self.outbox: dict[Peer, None] = {}
        """Peers that have something to be shown, this one and others of the same process."""
        self.capacity_bytes = 4 * (writer.payload_bytes_max + 8)
        self.incarnation = 0
        """The incarnation of the process behind it, once it runs; 0 before, though it may ask
        already."""
        self.deaths = 0
        """How many have been there before the one that its rings lead to."""

    def send(self, operation: int, payload: bytes, content: bytes | memoryview = b"") -> None:
        """Put a payload on the ring, or behind what already waits for room; `content`: the rest of
        it, large enough not to be joined with the first part before."""
        size = len(payload)
        end = size + len(content)
        writer = self.writer
        index = -1 if self.backlog else writer.claim(operation, end)
        if index < 0:
            self.backlog.append((operation, payload + bytes(content) if content else payload))
            self.outbox[self] = None
            return
        data = writer.data
        data[index : index + size] = payload
        if content:
            data[index + size : index + end] = content
        self.outbox[self] = None

    def try_send(self, operation: int, payload: bytes) -> bool:
        """Like `send`, but says False instead of queueing."""
        if self.backlog:
            return False
        writer = self.writer
        index = writer.claim(operation, len(payload))
        if index < 0:
            return False
        writer.data[index : index + len(payload)] = payload
        self.outbox[self] = None
        return True

    def resume(self) -> None:
        """Send what waits for room, as far as there is room now."""
        backlog = self.backlog
        writer = self.writer
        while backlog:
            operation, payload = backlog[0]
            index = writer.claim(operation, len(payload))
            if index < 0:
                return
            writer.data[index : index + len(payload)] = payload
            backlog.popleft()

    def publish(self) -> None:
        """Let the peer see every claim so far, and wake it if it sleeps."""
        self.writer.publish()
        if not self.backlog:
            self.outbox.pop(self, None)
        self.doorbell.ring_if_sleeping()

    def reset(self) -> None:
        """The peer is dead: both rings are empty again. Only while no successor lives."""
        self.deaths += 1
        self.backlog.clear()
        self.writer.abort()
        self.writer.reset()
        self.reader.reset()
        self.outbox.pop(self, None)
