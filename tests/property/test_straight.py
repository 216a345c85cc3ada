"""Small Produces on their straight way: what the compiled kernel makes of frames, their answers
included, is what a gateway and an appender make of them, one after the other."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import APPEND, APPENDED, APPENDED_HEAD, TOKEN
from shmbroker.kernels import native
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.property.test_plain_appends import NOW_MS, TOPICS, Leader, batches
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GatewayFamily

pytestmark = pytest.mark.skipif(native is None, reason="without the compiled kernels")

PRODUCE = 0
CORRELATION_ID = 7
SIZE_BYTES = 4
VERSIONS = st.sampled_from((3, 5, 7, 9, 12, 13))
ACKS = st.sampled_from((1, -1))
TOPIC_NUMBERS = st.sampled_from((*[0] * 6, *range(len(TOPICS))))
FRAME_COUNTS = st.integers(1, 8)
CLIENTS = st.sampled_from((*[b"client"] * 6, b"klient", b"client-2"))
IS_CUT = st.integers(0, 7)
GOOD = encode_batch([(NOW_MS, None, b"v", ())])


class Both:
    """One topic of a gateway with an appender in Python, the usual way, and of the kernel."""

    def __init__(self, root: Path, number: int, version: int, acks: int) -> None:
        self.version, self.acks = version, acks
        self.family = GatewayFamily()
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
        self.meaning = self._learn()

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
        body = {"acks": self.acks, "timeout_ms": 1000, "topic_data": [topic]}
        encoded = codec.encode("ProduceRequest", self.version, body)
        return request_frame(PRODUCE, self.version, CORRELATION_ID, client, encoded)

    def _learn(self) -> Any:
        family = self.family
        family.client.sendall(self.frame(GOOD))
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

    def serve(self, data: bytearray, start: int, end: int) -> tuple[int, int, int]:
        """As far as the kernel takes it: the end, where it stopped, how many it took."""
        assert native is not None
        side = self.straight
        end, at, count, size, _, left = native.serve_plain(
            self.ours.fileno(), data, start, end, self.meaning, side.appender.partitions,
            side.appender.appended, NOW_MS,
        )  # fmt: skip
        assert left == b""
        side.appender.batches_in += count
        side.appender.bytes_in += size
        return end, at, count


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.mark.thorough
@settings(max_examples=80)
@given(st.data())
def test_the_straight_way_leads_where_the_usual_one_does(root: Path, data: st.DataObject) -> None:
    draw = data.draw
    version, acks, number = draw(VERSIONS), draw(ACKS), draw(TOPIC_NUMBERS)
    sequences: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), number, version, acks)
        frames = [
            both.frame(draw(batches(number, sequences)), draw(CLIENTS).decode())
            for _ in range(draw(FRAME_COUNTS))
        ]
        sent = b"".join(frames)
        whole = len(sent)
        if draw(IS_CUT) == 0:
            whole -= 5
        buffer = bytearray(1 << 16)
        read = draw(st.integers(0, min(whole, 200)))
        buffer[:read] = sent[:read]  # what was read before
        both.client.sendall(sent[read:whole])
        end, at, _ = both.serve(buffer, read, -1)
        assert end == whole and buffer[:end] == sent[:whole]
        begin = 0
        for which, frame in enumerate(frames):
            if whole < begin + len(frame):
                assert at <= begin
                break
            asked, answer = both.ask_usual(frame)
            begin += len(frame)
            if at >= begin:
                received = both.client.recv(len(answer))
                assert received == answer and answer, which
                continue
            # Not on the straight way: there it is as it was, and goes the usual one.
            side = both.straight
            for operation, payload in asked:
                assert operation == APPEND
                side.far.send(operation, payload)
            side.take(side.appender, False)
            side.far.taken()
            end, at, _ = both.serve(buffer, begin, end)
        assert both.usual.seen() == both.straight.seen()
        both.client.setblocking(False)
        with pytest.raises(BlockingIOError):
            both.client.recv(1)
        both.close()


def test_many_frames_of_one_read_are_taken_together(root: Path) -> None:
    """So that the test above compares two things."""
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        log = both.straight.opened[0].log
        log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)  # who has appended has a map
        frame = both.frame(GOOD)
        buffer = bytearray(1 << 16)
        both.client.sendall(frame * 20 + frame[:9])
        end, at, count = both.serve(buffer, 0, -1)
        assert (end, at, count) == (20 * len(frame) + 9, 20 * len(frame), 20)
        assert log.log_end_offset == 21
        sizes, offsets = set(), []
        for _ in range(20):
            size = int.from_bytes(both.client.recv(SIZE_BYTES), "big")
            answer, _ = codec.decode("ProduceResponse", 9, both.client.recv(size)[5:])
            sizes.add(size)
            offsets.append(answer["responses"][0]["partition_responses"][0]["base_offset"])
        assert len(sizes) == 1 and offsets == list(range(1, 21))
        both.client.close()
        assert both.serve(buffer, 0, -1) == (0, 0, 0)
        assert both.serve(buffer, 9, -1) == (9, 9, 0)
        both.close()


def test_who_takes_no_answers_leaves_them_to_the_caller(root: Path) -> None:
    assert native is not None
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        side = both.straight
        side.opened[0].log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        both.ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                both.ours.send(bytes(1 << 16))
        frame = both.frame(GOOD)
        buffer = bytearray(frame)
        found = native.serve_plain(
            both.ours.fileno(), buffer, 0, len(frame), both.meaning, side.appender.partitions,
            side.appender.appended, NOW_MS,
        )  # fmt: skip
        assert found[1:3] == (len(frame), 1) and found[4] < len(found[5]) + found[4]
        assert side.appender.appended == {side.opened[0]}
        both.close()


def test_what_can_not_be_is_said(root: Path) -> None:
    assert native is not None
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        fd, buffer, rest = both.ours.fileno(), bytearray(100), ({}, set(), NOW_MS)
        both.ours.setblocking(False)
        for start, end in ((-1, 5), (6, 5), (0, 101)):
            with pytest.raises(ValueError, match="no such frames"):
                native.serve_plain(fd, buffer, start, end, both.meaning, *rest)
        with pytest.raises(BlockingIOError):
            native.serve_plain(fd, buffer, 0, -1, both.meaning, *rest)
        for meaning in ((), (*both.meaning[:2], b"short", *both.meaning[3:])):
            with pytest.raises(ValueError, match="meaning"):
                native.serve_plain(fd, buffer, 0, -1, meaning, *rest)
        both.close()
