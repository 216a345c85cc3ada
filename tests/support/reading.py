"""Partitions, and the reads of one gateway about them, as an I/O worker sees them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shmbroker.broker.read import Reader
from shmbroker.broker.read_lookup import Lookup
from shmbroker.broker.read_sessions import ReadSessions
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_FLAG_SESSION,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.purgatory import Purgatory
from shmbroker.replica.partition import Partitions

RECORD = b"r" * 100


class Log:
    """Records of one size; offsets are places."""

    def __init__(self) -> None:
        self.log_start_offset = self.local_start_offset = self.log_end_offset = 0
        self.aborted: list[Any] = []
        self.leader_epochs = SimpleNamespace(latest=5)
        self.segment = SimpleNamespace(unjudged_bytes=0, map=RECORD * 1000, file_id=77)
        self.boundaries = SimpleNamespace(get=lambda at: (self.segment, at * len(RECORD)))

    @property
    def active(self) -> Any:
        self.segment.size = self.log_end_offset * len(RECORD)
        return self.segment

    def read(self, offset: int, max_bytes: int, end: int, min_one_batch: bool) -> Any:
        count = min(max_bytes // len(RECORD), end - offset)
        return self.segment, offset * len(RECORD), max(count, min_one_batch) * len(RECORD)


def led_partitions(
    count: int, make_log: Callable[[], Any], end: int
) -> tuple[list[bytes], Partitions]:
    """So many that are led here, and their keys. end: high watermark and last stable offset."""
    keys = [partition_key(bytes(16), index) for index in range(count)]
    held: Any = {
        key: SimpleNamespace(
            key=key,
            is_leader=True,
            is_led_offline=False,
            leader_epoch=5,
            high_watermark=end,
            last_stable_offset=end,
            log=make_log(),
        )
        for key in keys
    }
    return keys, Partitions(held)


class Reading:
    """A broker's side of sessions, and what it sends."""

    def __init__(self, count: int, rows_max: int = 1000) -> None:
        self.keys, self.partitions = led_partitions(count, Log, 0)
        self.now_ms = 0
        self.token = 0
        self.sent: list[tuple[int, int, dict[int, Any]]] = []
        """Token, count, slices by place."""
        self.slot = 3
        self.writer = SimpleNamespace(payload_bytes_max=1 << 20)
        self.purgatory = Purgatory()
        self.reader = Reader(
            Lookup(self.partitions, lambda: self.now_ms),
            self.purgatory,
            lambda: self.now_ms,
            lambda peer, segment: None,
        )
        self.sessions = ReadSessions(self.reader, rows_max)

    def send(self, operation: int, payload: bytes) -> None:
        assert operation == READ_DONE
        token, count, _ = READ_DONE_HEAD.unpack_from(payload)
        body = payload[READ_DONE_HEAD.size :][: READ_SLICE.size * max(0, count)]
        self.sent.append((token, count, {one[1]: one for one in READ_SLICE.iter_unpack(body)}))

    def partition(self, which: int) -> Any:
        return self.partitions[self.keys[which]]

    def append(self, which: int, count: int = 1) -> None:
        partition = self.partition(which)
        partition.log.log_end_offset += count
        partition.high_watermark = partition.last_stable_offset = partition.log.log_end_offset
        self.purgatory.check_together([partition.key])

    def read(
        self,
        *rows: tuple[int, int, int, int],
        new: bool = False,
        number: int = 1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        isolation: int = 0,
    ) -> int:
        """rows: partition, offset, known high watermark and log start offset. Gives the token."""
        self.token += 1
        flags = READ_FLAG_SESSION | (READ_FLAG_NEW if new else 0)
        data = READ_HEAD.pack(
            self.token, max_wait_ms, min_bytes, max_bytes, isolation, flags, len(rows), number
        ) + b"".join(
            READ_PARTITION.pack(self.keys[which], 1000, -1, -1, offset, *known)
            for which, offset, *known in rows
        )
        self.sessions.on_read(self, memoryview(data), 0)  # type: ignore[arg-type]
        return self.token

    def begin(self, count: int, **limits: Any) -> None:
        """A session of partitions of which everything is known."""
        self.read(*((which, 0, 0, 0) for which in range(count)), new=True, **limits)

    def take(self) -> dict[int, Any]:
        """The slices of the one answer that was sent."""
        ((token, _, found),) = self.sent
        assert token == self.token
        self.sent.clear()
        return found
