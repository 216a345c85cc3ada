"""Produces on their straight way: what the compiled kernel makes of frames, their answers
included, is what a gateway and an appender make of them, one after the other."""

import contextlib
import os
import socket
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.kernels import native
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.segment_space import WRITE_BYTES_MIN
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec
from shmbroker.wire.api_keys import METADATA, OFFSET_COMMIT, OFFSET_FETCH
from shmbroker.wire.frame import request_frame, response_frame
from tests.property.both_ways import GOOD, SIZE_BYTES, WAITING_MAX, Both, marks_of, nothing, root
from tests.property.test_plain_appends import (
    LARGE_SIZES,
    NOW_MS,
    REPLICATED,
    SIZES,
    TOPICS,
    batches,
)
from tests.support.examples import examples

__all__ = ["root"]

pytestmark = pytest.mark.skipif(native is None, reason="without the compiled kernels")

VERSIONS = st.sampled_from((3, 5, 7, 9, 12, 13))
ACKS = st.sampled_from((1, -1))
TOPIC_NUMBERS = st.sampled_from((*[0] * 6, *range(len(TOPICS))))
FRAME_COUNTS = st.integers(1, 8)
SOCKET_COUNTS = st.integers(1, 20)
FRAMES_OF_ONE = st.sampled_from((1, 1, 1, 1, 2, 3, 0))
CLIENTS = st.sampled_from((*[b"client"] * 6, b"klient", b"client-2"))
CLIENTS_IN_TURN = st.sampled_from((*[b"client", b"klient"] * 4, b"client-2"))
IS_CUT = st.integers(0, 7)
LARGE_MAX = 3
"""Large frames of one read: all of it has to be in the socket before."""


@pytest.mark.thorough
@settings(max_examples=examples(80))
@given(st.data())
def test_the_straight_way_leads_where_the_usual_one_does(root: Path, data: st.DataObject) -> None:
    draw = data.draw
    version, acks, number = draw(VERSIONS), draw(ACKS), draw(TOPIC_NUMBERS)
    sequences: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), number, version, acks)
        frames = [
            both.frame(
                draw(batches(number, sequences, LARGE_SIZES if which < LARGE_MAX else SIZES)),
                draw(CLIENTS).decode(),
            )
            for which in range(draw(FRAME_COUNTS))
        ]
        sent = b"".join(frames)
        whole = len(sent)
        if draw(IS_CUT) == 0:
            whole -= 5
        buffer = bytearray(1 << 20)
        read = draw(st.integers(0, min(whole - 1, 200)))  # something comes by the socket
        buffer[:read] = sent[:read]  # what was read before
        both.client.sendall(sent[read:whole])
        reached, end, at = both.serve([both.ours], buffer, 0, read)[:3]
        if reached:
            at = whole
        else:
            assert end == whole and buffer[:end] == sent[:whole]
        begin = 0
        for frame in frames:
            if whole < begin + len(frame):
                assert at <= begin
                break
            asked, answer = both.ask_usual(frame)
            begin += len(frame)
            if at >= begin:
                both.settle(asked, answer, both.client, 0)
                continue
            # Not on the straight way: there it is as it was, and goes the usual one.
            both.append_usually(asked)
            if begin < whole:  # it goes on behind that
                both.client.sendall(sent[begin:whole])
                reached, end, at = both.serve([both.ours], buffer)[:3]
                at = whole if reached else begin + at
        assert both.usual.seen() == both.straight.seen()
        both.client.setblocking(False)
        with pytest.raises(BlockingIOError):
            both.client.recv(1)
        both.close()


@pytest.mark.thorough
@settings(max_examples=examples(60))
@given(st.data())
def test_many_sockets_lead_where_the_usual_way_does(root: Path, data: st.DataObject) -> None:
    draw = data.draw
    version, acks, number = draw(VERSIONS), draw(ACKS), draw(TOPIC_NUMBERS)
    sequences: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryDirectory(dir=root) as made, contextlib.ExitStack() as opened:
        both = Both(Path(made), number, version, acks)
        pairs = [socket.socketpair() for _ in range(draw(SOCKET_COUNTS))]
        marks = marks_of(len(pairs))
        asked: list[list[bytes]] = []
        cuts: list[bytes] = []
        for ours, client in pairs:
            opened.enter_context(ours)
            opened.enter_context(client)
            client.settimeout(10)
            asked.append(
                [
                    both.frame(draw(batches(number, sequences)), draw(CLIENTS_IN_TURN).decode())
                    for _ in range(draw(FRAMES_OF_ONE))
                ]
            )
            cuts.append(both.frame(GOOD)[:20] if draw(IS_CUT) == 0 else b"")
            client.sendall(b"".join(asked[-1]) + cuts[-1])
        first = 0
        while first < len(pairs):
            buffer = bytearray(1 << 20)
            found = both.serve([ours for ours, _ in pairs], buffer, first, 0, marks)
            reached, end, at = found[:3]
            assert not found[9]
            for which in range(first, min(reached + 1, len(pairs))):
                frames, sent = asked[which], b"".join(asked[which]) + cuts[which]
                is_whole = which < reached
                waits = any(row[0] == which for row in both.waiting)
                assert marks[which] == (not is_whole or waits)
                taken = len(sent) if is_whole else at
                assert not is_whole or (frames and not cuts[which])
                if not is_whole:
                    assert buffer[: max(end, 0)] == sent and (end == -1) == (not sent)
                done = 0
                for frame in frames:
                    on_its_way, answer = both.ask_usual(frame)
                    done += len(frame)
                    if done <= taken:
                        both.settle(on_its_way, answer, pairs[which][1], which)
                    else:
                        both.append_usually(on_its_way)
            first = reached + 1
        assert both.usual.seen() == both.straight.seen()
        both.close()


def test_offsets_are_answered_as_the_caller_says() -> None:
    assert native is not None
    said = {b"known": b"answer", b"large": bytes(4096)}
    seen: list[tuple[int, int, bytes]] = []

    def answer(api_key: int, version: int, body: bytes) -> bytes | None:
        seen.append((api_key, version, body))
        return said.get(body)

    ours, client = socket.socketpair()
    with ours, client:
        client.settimeout(10)
        buffer, marks = bytearray(1 << 18), marks_of(3)
        rest = (0, {}, set(), NOW_MS, nothing, answer, {}, True)

        def ask(frames: bytes) -> tuple[int, ...]:
            client.sendall(frames)
            found = native.serve_ready([(ours.fileno(), None, marks, 2)], 0, buffer, *rest)
            assert marks.tolist() == [0, 0, int(found[0] == 0)]
            marks[2] = 0
            return found[:3] + found[5:7]

        frames = [
            request_frame(OFFSET_COMMIT, 8, 1, "client", b"known"),
            request_frame(OFFSET_FETCH, 10, 2, None, b"known"),
        ]
        assert ask(b"".join(frames)) == (1, 0, 0, 1, 1)
        assert seen == [(OFFSET_COMMIT, 8, b"known"), (OFFSET_FETCH, 10, b"known")]
        answers = b"".join(
            response_frame(api_key, version, number, b"answer")
            for api_key, version, number in ((OFFSET_COMMIT, 8, 1), (OFFSET_FETCH, 10, 2))
        )
        assert client.recv(len(answers) + 1) == answers
        many = request_frame(OFFSET_FETCH, 8, 3, "client", b"large") * 40
        assert ask(many) == (1, 0, 0, 0, 40)
        large = response_frame(OFFSET_FETCH, 8, 3, bytes(4096)) * 40
        received = b""
        while len(received) < len(large):
            received += client.recv(1 << 18)
        assert received == large
        for other in (
            request_frame(OFFSET_FETCH, 8, 3, "client", b"unknown"),
            request_frame(OFFSET_FETCH, 7, 3, "client", b"known"),
            request_frame(METADATA, 12, 3, "client", b"known"),
            frames[0].replace(b"client\0", b"client\1"),
            frames[0][:-1],
            frames[0][:9],
        ):
            assert ask(frames[0] + other) == (0, len(frames[0] + other), len(frames[0]), 1, 0)
            assert buffer[: len(frames[0] + other)] == frames[0] + other
            client.recv(1 << 10)
        said[b"known"] = bytes(4097)
        with pytest.raises(ValueError, match="too large"):
            ask(frames[0])
        assert ask(b"") == (0, -1, 0, 0, 0)
        for rows, first in (([()], 0), ([(0, None, marks, 3)], 0), ([], -1), ((), 0)):
            with pytest.raises(ValueError, match=r"row|mark"):
                native.serve_ready(rows, first, buffer, *rest)  # type: ignore[arg-type]


def test_who_takes_no_answers_among_many_is_told_apart(root: Path) -> None:
    assert native is not None
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        side = both.straight
        side.opened[0].log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame, marks = both.frame(GOOD), marks_of(3)
        pairs = [socket.socketpair() for _ in range(3)]
        for ours, client in pairs:
            ours.setblocking(False)
            client.sendall(frame)
        with contextlib.suppress(BlockingIOError):
            while True:
                pairs[1][0].send(bytes(1 << 16))
        found = both.serve([ours for ours, _ in pairs], bytearray(1 << 16), marks=marks)
        assert found[0] == 3 and found[3] == 3 and [which for which, _ in found[9]] == [1]
        assert marks.tolist() == [0, 1, 0] and side.opened[0].log.log_end_offset == 4
        for ours, client in pairs:
            ours.close()
            client.close()
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
        found = both.serve([both.ours], buffer)
        assert found[:4] == (0, 20 * len(frame) + 9, 20 * len(frame), 20)
        assert log.log_end_offset == 21
        sizes, offsets = set(), []
        for _ in range(20):
            size = int.from_bytes(both.client.recv(SIZE_BYTES), "big")
            answer, _ = codec.decode("ProduceResponse", 9, both.client.recv(size)[5:])
            sizes.add(size)
            offsets.append(answer["responses"][0]["partition_responses"][0]["base_offset"])
        assert len(sizes) == 1 and offsets == list(range(1, 21))
        both.client.close()
        for filled in (0, 9):
            assert both.serve([both.ours], buffer, 0, filled)[:4] == (0, -1, 0, 0)
        both.close()


def test_a_large_frame_is_read_to_its_end_and_written(root: Path) -> None:
    """So that the tests above compare two things; of each read here comes one part."""
    assert native is not None
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        side = both.straight
        log = side.opened[0].log
        log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        log.populate_step(NOW_MS)
        large = encode_batch([(NOW_MS, None, bytes(WRITE_BYTES_MIN), ())])
        ours, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        frames = both.frame(GOOD) + both.frame(large) + both.frame(GOOD)
        parts = [frames[:60], frames[60:300], frames[300:20_000], frames[20_000:-30]]
        with ours, client:
            for part in parts:
                client.send(part)
            buffer = bytearray(1 << 18)
            reached, end, at, count, size, *_, large_rows, _, _ = both.serve([ours], buffer)
            left = len(both.frame(GOOD))
            assert (reached, end, at) == (0, len(frames) - 30, len(frames) - left)
            assert (count, size, large_rows) == (2, len(GOOD) + len(large), [0])
        segment = log.active
        assert log.log_end_offset == 3 and segment.size == segment.ready_bytes
        stored = Path(segment.path).read_bytes()[len(GOOD) * 2 : segment.size]
        assert stored[16:] == large[16:] and stored[7] == 2
        both.close()


@pytest.mark.parametrize(("which", "acks"), [(0, 1), (0, -1), (REPLICATED, 1)])
@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize(("size", "is_small"), [(10, True), (4 << 10, False), (40_000, False)])
def test_acks_of_small_batches_that_somebody_waits_for_are_left_to_the_caller(
    root: Path, size: int, is_small: bool, is_watched: bool, which: int, acks: int
) -> None:
    """But for those that are to be replicated first: of them, nobody is told yet."""
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), which, 9, acks)
        partition = both.straight.opened[which]
        partition.log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame, marks = both.frame(encode_batch([(NOW_MS, None, bytes(size), ())])), marks_of(1)
        both.client.sendall(frame)
        watched = {partition.key: None} if is_watched else {}
        found = both.serve([both.ours], bytearray(1 << 16), marks=marks, watched=watched)
        is_awaited = is_watched and which != REPLICATED
        is_held = is_awaited and is_small
        assert found[:4] == (1, 0, 0, 1) and found[12] == is_awaited and marks[0] == is_held
        assert partition.log.log_end_offset == 2 and partition in both.straight.appender.appended
        answer = b"".join(left for _, left in found[9]) if is_held else both.client.recv(1 << 10)
        assert bool(found[9]) is is_held and answer[4:8] == frame[8:12]
        if is_held:
            both.client.setblocking(False)
            with pytest.raises(BlockingIOError):
                both.client.recv(1)
        both.close()


def test_all_answers_of_a_read_are_left_with_those_that_are_awaited(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        [partition, *_] = both.straight.opened
        partition.log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        other = b"something else"
        both.client.sendall(both.frame(GOOD) * 3 + other)
        buffer = bytearray(1 << 16)
        found = both.serve([both.ours], buffer, watched={partition.key: None})
        reached, end, at, batches = found[:4]
        assert (reached, batches, found[12]) == (0, 3, 3) and buffer[at:end] == other
        [(row, left)] = found[9]
        size = 4 + int.from_bytes(left[:4], "big")
        assert row == 0 and len(left) == 3 * size
        both.close()


@pytest.mark.parametrize("may_answer", [True, False])
def test_acks_that_wait_for_replicas_are_told(root: Path, may_answer: bool) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), REPLICATED, 9, -1)
        partition = both.straight.opened[REPLICATED]
        partition.log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame, marks = both.frame(GOOD), marks_of(1)
        both.client.sendall(frame * 3)
        found = both.serve([both.ours], bytearray(1 << 16), marks=marks, may_answer=may_answer)
        assert found[:4] == (1, 0, 0, 3) and marks[0] == 1
        assert [(row[3], *row[4:]) for row in both.waiting] == [
            (partition, offset, offset + 1) for offset in (1, 2, 3)
        ]
        assert partition.high_watermark == 0
        both.client.setblocking(False)
        with pytest.raises(BlockingIOError):
            both.client.recv(1)
        both.close()


def test_only_so_many_acks_of_one_client_begin_to_wait(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), REPLICATED, 9, -1)
        both.straight.opened[REPLICATED].log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame = both.frame(GOOD)
        both.client.sendall(frame * (WAITING_MAX + 9))
        found = both.serve([both.ours], bytearray(1 << 16))
        assert found[0] == 0 and found[2] == WAITING_MAX * len(frame)
        assert len(both.waiting) == WAITING_MAX
        both.close()


def test_nobody_is_answered_before_acks_that_wait(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, -1)
        both.straight.opened[0].log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame = both.frame(GOOD)
        both.client.sendall(frame)
        found = both.serve([both.ours], bytearray(1 << 16), may_answer=False)
        assert found[:4] == (0, len(frame), 0, 0)
        both.close()


def test_a_file_that_can_not_be_written_is_left_to_the_caller(root: Path) -> None:
    assert native is not None
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        side = both.straight
        log = side.opened[0].log
        log.append(memoryview(GOOD), 0, NOW_MS, 0, NOW_MS)
        frame = both.frame(encode_batch([(NOW_MS, None, bytes(WRITE_BYTES_MIN), ())]))
        reading = os.open(log.active.path, os.O_RDONLY)
        for opened in (mock.Mock(side_effect=OSError(28, "full")), lambda _segment: reading):
            with mock.patch.object(Descriptors, "to_write", opened):
                both.client.sendall(frame)
                found = both.serve([both.ours], bytearray(1 << 16))
            assert found[:4] == (0, len(frame), 0, 0) and log.log_end_offset == 1
            assert not side.appender.appended
        os.close(reading)
        both.close()


def test_what_can_not_be_is_said(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root) as made:
        both = Both(Path(made), 0, 9, 1)
        both.ours.setblocking(False)
        for filled in (-1, 100, 101):
            with pytest.raises(ValueError, match="no room"):
                both.serve([both.ours], bytearray(100), 0, filled)
        assert both.serve([both.ours], bytearray(100))[:2] == (0, -1)
        both.client.sendall(b"x")
        for meaning in ((), (*both.meaning[:2], b"short", *both.meaning[3:])):
            both.meaning = meaning
            with pytest.raises(ValueError, match="meaning"):
                both.serve([both.ours], bytearray(100))
        both.close()
