"""Memory of a family of processes that are one process here: clock, rings, a controller's log."""

from types import SimpleNamespace
from typing import Any

from shmbroker.ipc.peer import Peer
from shmbroker.metadata.draft import applied
from shmbroker.metadata.image import MetadataImage
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes
from shmbroker.wire.metadata_records import decode_metadata_record, encode_metadata_record

BROKER_ID = 1
BROKER_EPOCH = 5
TOPIC = "t"
TOPIC_ID = bytes(range(16))
DIRECTORY_ID = b"d" * 16

RING_BYTES = 1 << 16


class VirtualClock:
    """A time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall_ahead_s = 1.7e9
        """What the wall clock shows more: it jumps when the test says so."""

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def now_ms(self) -> int:
        return int((self.wall_ahead_s + self.now) * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds


class Link:
    """A controller whose log the test writes. It can be asked where `controller` is set."""

    def __init__(self, words: memoryview) -> None:
        self.epoch, self.number = 1, 0
        self.controller: Peer | None = None
        self.words = words
        self.follower: Any = SimpleNamespace(image=MetadataImage("cluster"))
        self._rows: list[tuple[str, int, dict[str, Any]]] = []
        self.steps_left = 0
        """Calls of `catch_up` before the one that has it all."""

    def commit(self, *rows: tuple[str, int, dict[str, Any]]) -> None:
        self._rows += rows
        self.words[METADATA_END_OFFSET_WORD] += len(rows)

    def peer(self) -> Peer | None:
        return self.controller

    def others(self) -> list[Peer]:
        return []

    def is_behind(self) -> bool:
        return bool(self._rows)

    def has_news(self) -> bool:
        return self.is_behind()

    def catch_up(self, end_offset: int | None = None) -> list[Any] | None:
        if self.steps_left:
            self.steps_left -= 1
            return None
        image = self.follower.image
        count = len(self._rows) if end_offset is None else end_offset - image.offset
        records = [
            (image.offset + at, 1, *decode_metadata_record(encode_metadata_record(*row)))
            for at, row in enumerate(self._rows[:count])
        ]
        end = image.offset + len(records)
        self._rows = self._rows[count:]
        self.follower.image, changes = applied(image, records, end, 1)
        return changes


class FarEnd:
    """What a test is in the place of: the other end of the two rings of a peer."""

    def __init__(
        self, slot: int, role: str, number: int, doorbell: Doorbell, size: int = RING_BYTES
    ) -> None:
        """size: of each ring, in bytes."""
        there, back = ring(size), ring(size)
        self.peer = Peer(
            slot,
            role,
            number,
            RingWriter(*parts_of_ring(there)),
            RingReader(*parts_of_ring(back)),
            doorbell,
        )
        self._rings = there, back
        self.attach()

    def attach(self) -> None:
        """Begin where the rings are: a successor does, when the peer has reset its halves."""
        there, back = self._rings
        self.reader = RingReader(*parts_of_ring(there))
        self.writer = RingWriter(*parts_of_ring(back))

    def taken(self) -> list[tuple[int, bytes]]:
        """The entries that were published to this end: (operation, payload)."""
        reader = self.reader
        found = []
        if reader.poll():
            while (entry := reader.next()) is not None:
                operation, index, length = entry
                found.append((operation, bytes(reader.data[index : index + length])))
            reader.release()
        return found

    def send(self, operation: int, payload: bytes) -> None:
        """Publish an entry to the peer."""
        writer = self.writer
        index = writer.claim(operation, len(payload))
        writer.data[index : index + len(payload)] = payload
        writer.publish()


def ring(size: int = RING_BYTES) -> memoryview:
    view = memoryview(bytearray(ring_bytes(size)))
    create_ring(view)
    return view


def registration() -> tuple[str, int, dict[str, Any]]:
    end_point = {"name": "PLAINTEXT", "host": "h", "port": 9, "security_protocol": 0}
    message = {
        "broker_id": BROKER_ID,
        "incarnation_id": DIRECTORY_ID,
        "broker_epoch": BROKER_EPOCH,
        "end_points": [end_point],
        "rack": None,
        "fenced": False,
        "log_dirs": [DIRECTORY_ID],
    }
    return "RegisterBrokerRecord", 3, message


def topic() -> list[tuple[str, int, dict[str, Any]]]:
    partition = {
        "partition_id": 0,
        "topic_id": TOPIC_ID,
        "replicas": [BROKER_ID],
        "isr": [BROKER_ID],
        "leader": BROKER_ID,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": [DIRECTORY_ID],
    }
    return [
        ("TopicRecord", 0, {"name": TOPIC, "topic_id": TOPIC_ID}),
        ("PartitionRecord", 2, partition),
    ]
