"""Who is read on the straight way: the kernel's part is in tests/property/test_straight.py."""

import select
import socket
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.guests.straight import FILLED_MAX, StraightWay
from shmbroker.kernels import native
from shmbroker.wire.api_keys import OFFSET_FETCH
from shmbroker.wire.frame import request_frame, response_frame

pytestmark = pytest.mark.skipif(native is None, reason="without the compiled kernels")

VERSION = 8


@pytest.mark.parametrize(
    ("more", "is_read"),
    [
        ({}, True),
        ({"filled": 9}, True),
        ({"filled": FILLED_MAX + 1}, False),
        ({"large_bytes": 1 << 20}, False),
        ({"is_short": True}, False),
        ({"unanswered": 1}, False),
    ],
    ids=str,
)
def test_who_is_read(more: dict[str, Any], is_read: bool) -> None:
    """Nobody while memory is short, as it would have to be kept: `gateway.peeking` leaves in the
    kernel what is not whole. Nor whose appends without an answer may lie on the ring yet: what
    comes behind them would be appended first. A frame of which a part is here is read to its end,
    but for large ones, which are read into a buffer of their own."""
    frame = request_frame(OFFSET_FETCH, VERSION, 1, "client", b"asked")
    ours, client = socket.socketpair()
    with ours, client:
        filled = more.get("filled", 0)
        connection = SimpleNamespace(
            is_held=False, inflight=deque(), out=deque(), filled=filled, throttle=None,
            last_active=0.0, unanswered=more.get("unanswered", 0), fast_produce=None,
            straight_row=None, asked_offsets_at=1.0, view=memoryview(frame),
            large_bytes=more.get("large_bytes", 0),
        )  # fmt: skip
        image = SimpleNamespace(offset=0)
        traffic = SimpleNamespace(
            monotonic=lambda: 5.0, received_bytes=0, sent_bytes=0, answered=[]
        )
        given: list[Any] = []
        loop = SimpleNamespace(
            traffic=traffic,
            memory=SimpleNamespace(is_short=more.get("is_short", False)),
            connections={ours.fileno(): connection},
            scratch=bytearray(1 << 10),
            buffers=SimpleNamespace(give=given.append),
        )
        gateway: Any = SimpleNamespace(
            loop=loop,
            produce=SimpleNamespace(known=SimpleNamespace(recall=None)),
            image=image,
            words=[0] * 64,
        )
        broker: Any = SimpleNamespace(
            image=image,
            partitions={},
            appender=SimpleNamespace(appended=set(), batches_in=0, bytes_in=0),
            executor=SimpleNamespace(known=lambda *_asked: b"answer"),
            purgatory=SimpleNamespace(watched={}),
            look_at_clocks=lambda: None,
            now_ms=lambda: 0,
        )
        marks = memoryview(bytearray(8)).cast("q")
        guests: Any = SimpleNamespace(row_of=lambda *_of: (ours.fileno(), None, marks, 0))
        client.sendall(frame[filled:] or b"x")
        way = StraightWay(gateway, broker, guests)
        events = [(ours.fileno(), select.EPOLLIN)]
        assert way.take(events) == ([] if is_read else events)
        assert way.served == is_read and marks[0] == 0
        client.settimeout(10)
        if not is_read:
            assert ours.recv(1, socket.MSG_PEEK)
        else:
            answer = response_frame(OFFSET_FETCH, VERSION, 1, b"answer")
            assert client.recv(len(answer) + 1) == answer
            assert not connection.filled and given == [connection] * (filled > 0)
