"""A gateway with an appender, and the compiled kernel, which are given the same frames."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import APPEND, APPENDED, APPENDED_HEAD, TOKEN
from shmbroker.kernels import native
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec
from shmbroker.wire.api_keys import PRODUCE
from shmbroker.wire.frame import request_frame
from tests.property.test_plain_appends import LARGE_RING_BYTES, NOW_MS, Leader
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GatewayFamily

CORRELATION_ID = 7
SIZE_BYTES = 4
CLIENT_ID_AT = 12
GOOD = encode_batch([(NOW_MS, None, b"v", ())])
TIMEOUT_MS = 1000
WAITING_MAX = 128
"""As `kernels/straight.c` has it."""


class Both:
    """One topic of a gateway with an appender in Python, the usual way, and of the kernel."""

    def __init__(self, root: Path, number: int, version: int, acks: int) -> None:
        self.version, self.acks = version, acks
        self.waiting: list[tuple[int, int, Any, Any, int, int]] = []
        """Batches that the kernel has stored, whose acks wait, as `serve_ready` gives them."""
        self.family = GatewayFamily(ring_size=LARGE_RING_BYTES)
        self.image = self.family.gateway.image.topics_by_name[TOPIC]
        self.usual, self.straight = (Leader(root / name) for name in ("usual", "straight"))
        key = partition_key(self.image.topic_id, 0)
        for side in (self.usual, self.straight):
            partition = side.opened[number]
            del side.store.partitions[partition.key]
            partition.key = key
            side.store.partitions[key] = partition
        self.ours, self.client = socket.socketpair()
        self.client.settimeout(10)
        self.meanings = {name: self._learn(name) for name in ("client", "klient")}
        self.meaning = self.meanings["client"]

    def close(self) -> None:
        self.family.close()
        for side in (self.usual, self.straight):
            side.close()
        self.ours.close()
        self.client.close()

    def frame(self, batch: bytes, client: str = "client") -> bytes:
        topic: dict[str, Any] = {"partition_data": [{"index": 0, "records": batch}]}
        if self.version >= 13:
            topic["topic_id"] = self.image.topic_id
        else:
            topic["name"] = TOPIC
        body = {"acks": self.acks, "timeout_ms": TIMEOUT_MS, "topic_data": [topic]}
        encoded = codec.encode("ProduceRequest", self.version, body)
        return request_frame(PRODUCE, self.version, CORRELATION_ID, client, encoded)

    def recall(self, buffer: bytearray, at: int) -> Any:
        """The meaning of the frame there, if one of the two clients has sent it."""
        at += CLIENT_ID_AT
        for name, meaning in self.meanings.items():
            begin = len(name).to_bytes(2, "big") + name.encode()
            if buffer[at : at + len(begin)] == begin:
                return meaning
        return None

    def _learn(self, client: str) -> Any:
        family = self.family
        family.client.sendall(self.frame(GOOD, client))
        family.turn()
        [(_, payload)] = family.taken()
        token = TOKEN.unpack_from(payload)[0]
        family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 5, -1, 3))
        family.quiet_turn()
        family.answer(PRODUCE, self.version, "Produce")
        [connection] = family.gateway.loop.connections.values()
        assert connection.fast_produce is not None
        return connection.fast_produce.straight

    def ask_usual(self, frame: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """A frame on its usual way: what it was for the appender, and its answer."""
        family, side = self.family, self.usual
        family.client.sendall(frame)
        family.turn()
        asked = family.taken()
        for operation, payload in asked:
            side.far.send(operation, payload)
        side.take(side.appender, False)
        for operation, payload in side.far.taken():
            family.reply(operation, payload)
        family.quiet_turn()
        family.client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return asked, family.client.recv(1 << 16)
        return asked, b""

    def serve(
        self,
        sockets: list[socket.socket],
        buffer: bytearray,
        first: int = 0,
        filled: int = 0,
        marks: memoryview | None = None,
        watched: dict[Any, Any] | None = None,
        may_answer: bool = True,
    ) -> tuple[Any, ...]:
        """What the kernel says: which is read usually, how much of it, and what of that is taken;
        then the counts."""
        assert native is not None
        side, marks = self.straight, marks or marks_of(len(sockets))
        rows = [(one.fileno(), self.meaning, marks, which) for which, one in enumerate(sockets)]
        found = native.serve_ready(
            rows,
            first,
            buffer,
            filled,
            side.appender.partitions,
            side.appender.appended,
            NOW_MS,
            lambda _which, at: self.recall(buffer, at),
            nothing,
            watched or {},
            may_answer,
        )
        self.waiting += found[11]
        side.appender.batches_in += found[3]
        side.appender.bytes_in += found[4]
        return found

    def settle(
        self, asked: list[tuple[int, bytes]], answer: bytes, client: socket.socket, which: int
    ) -> None:
        """The kernel has taken what was `asked` on the usual way, and answered alike."""
        if answer:
            assert client.recv(len(answer)) == answer
            return
        side, [(_, payload)] = self.straight, asked
        row, correlation_id, meaning, partition, base_offset, end_offset = self.waiting.pop(0)
        assert (row, correlation_id) == (which, CORRELATION_ID)
        assert meaning in self.meanings.values()
        token = TOKEN.unpack_from(payload)[0]
        waiting = [(token, partition, base_offset, end_offset, TIMEOUT_MS)]
        side.appender.acks.let_wait(side.far.peer, waiting)

    def append_usually(self, asked: list[tuple[int, bytes]]) -> None:
        """What the usual way asked for, on the side that goes the straight one."""
        side = self.straight
        for operation, payload in asked:
            assert operation == APPEND
            side.far.send(operation, payload)
        side.take(side.appender, False)
        side.far.taken()


def nothing(*_asked: object) -> None:
    """Neither other bytes nor offsets are known."""


def marks_of(count: int) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("q")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
