"""Who is read on the straight way: the kernel's part is in tests/property/test_straight.py."""

import select
import socket
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest

from shmbroker.guests import straight
from shmbroker.guests.straight import FILLED_MAX, STORED_MAX, StraightWay
from shmbroker.kernels import native
from shmbroker.wire.api_keys import FETCH, OFFSET_FETCH, PRODUCE
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
        way = StraightWay(gateway, broker, guests, Mock())
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


class Asked:
    """A connection of which `inflight` is under way, whose next frame is one of known bytes."""

    def __init__(self, ours: socket.socket, inflight: list[Any]) -> None:
        marks = memoryview(bytearray(8)).cast("q")
        self.fast = SimpleNamespace(version=9, peer="the broker", acks=-1, timeout_ms=500)
        self.fast.straight = ("what the bytes mean",)
        self.connection: Any = SimpleNamespace(
            is_held=False, inflight=deque(inflight), out=deque(), filled=0, throttle=None,
            last_active=0.0, unanswered=0, fast_produce=self.fast, large_bytes=0,
            straight_row=(ours.fileno(), self.fast.straight, marks, 0), asked_offsets_at=0.0,
        )  # fmt: skip
        image = SimpleNamespace(offset=0)
        self.gateway: Any = SimpleNamespace(
            loop=SimpleNamespace(
                traffic=SimpleNamespace(
                    monotonic=lambda: 5.0, received_bytes=0, sent_bytes=0, answered=[]
                ),
                memory=SimpleNamespace(is_short=False),
                connections={ours.fileno(): self.connection},
                scratch=bytearray(1 << 10),
            ),
            produce=SimpleNamespace(known=SimpleNamespace(recall=None)),
            image=image,
            words=[0] * 64,
            token=40,
            pending={},
        )
        self.waits: list[Any] = []
        self.marked: list[Any] = []
        broker: Any = SimpleNamespace(
            image=image,
            partitions={},
            appender=SimpleNamespace(appended=set(), batches_in=0, bytes_in=0),
            acks=SimpleNamespace(let_wait=lambda *these: self.waits.append(these)),
            executor=SimpleNamespace(known=None),
            purgatory=SimpleNamespace(watched={}),
            look_at_clocks=lambda: None,
            now_ms=lambda: 0,
        )
        self.fast.image = image
        broker.appender.is_disk_low = False
        guests: Any = SimpleNamespace(mark=self.marked.append)
        self.way = StraightWay(self.gateway, broker, guests, "the gateway")  # type: ignore[arg-type]
        self.calls: list[bool] = []

    def take(self, ours: socket.socket, waiting: list[Any]) -> list[tuple[int, int]]:
        """waiting: what the kernel says of acks that wait."""

        def served(*args: Any) -> tuple[Any, ...]:
            self.calls.append(args[-1])
            return 1, 0, 0, len(waiting), 100, 0, 0, 200, 0, [], [], waiting, 0

        with mock.patch.object(straight, "serve_ready", served):
            return self.way.take([(ours.fileno(), select.EPOLLIN)])


def test_acks_that_wait_are_of_requests_under_way() -> None:
    ours, client = socket.socketpair()
    with ours, client:
        asked = Asked(ours, [])
        meaning = asked.fast.straight
        assert not asked.take(ours, [(0, 7, meaning, "p", 3, 4), (0, 8, meaning, "p", 4, 6)])
        assert asked.waits == [("the gateway", [(41, "p", 3, 4, 500), (42, "p", 4, 6, 500)])]
        requests = list(asked.connection.inflight)
        assert list(asked.gateway.pending.items()) == [(41, requests[0]), (42, requests[1])]
        assert [each.correlation_id for each in requests] == [7, 8]
        assert {each.received for each in requests} == {5.0}
        assert asked.marked == [asked.connection] * 2 and asked.calls == [True]
        # What comes behind them may be stored, but not answered before them.
        assert not asked.take(ours, [(0, 9, meaning, "p", 6, 7)])
        assert asked.calls == [True, False] and len(asked.connection.inflight) == 3


def test_acks_wait_of_bytes_that_others_have_followed() -> None:
    """Others that may not be stored here are the last of the connection all the same."""
    ours, client = socket.socketpair()
    with ours, client:
        asked = Asked(ours, [])
        first, other = asked.fast, SimpleNamespace(straight=None)

        def recall(connection: Any, _buffer: bytearray, _at: int) -> Any:
            connection.fast_produce = other
            return other

        asked.way._recall = recall

        def served(*args: Any) -> tuple[Any, ...]:
            assert args[7](0, 40) is None  # they go the usual way
            waiting = [(0, 7, first.straight, "p", 3, 4)]
            return 1, 0, 0, 1, 100, 0, 0, 200, 0, [], [], waiting, 0

        with mock.patch.object(straight, "serve_ready", served):
            asked.way.take([(ours.fileno(), select.EPOLLIN)])
        [request] = asked.connection.inflight
        assert request.fast is first and asked.connection.fast_produce is other
        assert asked.waits == [("the gateway", [(41, "p", 3, 4, 500)])]


class Awaiting:
    """A read that waits for the records of a partition."""

    def __init__(self, connection: str, is_at_end: bool = True) -> None:
        self.request = SimpleNamespace(connection=connection)
        self.is_at_end = is_at_end

    def has_answered_with_end(self, _partition: object) -> bool:
        return self.is_at_end


@pytest.mark.parametrize("reached", [0, 1])
@pytest.mark.parametrize(
    ("waiting", "told", "is_touched"),
    [
        ([Awaiting("one"), Awaiting("two")], ["one", "two"], False),
        ([Awaiting("one"), Awaiting("two", False)], ["one"], True),
        ([object()], [], True),
    ],
    ids=("guests", "not at the end", "no guest"),
)
def test_who_waits_is_told_before_the_acks_go_out(
    waiting: list[Any], told: list[str], is_touched: bool, reached: int
) -> None:
    """Where only the broker can tell them, behind its turn. What a flush reads into the buffer
    meanwhile leaves what the kernel has read of another."""
    ours, client = socket.socketpair()
    with ours, client:
        asked = Asked(ours, [])
        connection, gateway, broker = asked.connection, asked.gateway, asked.way._broker
        partition: Any = SimpleNamespace(key=b"key")
        broker.appender.appended = [partition]
        broker.purgatory.watched[b"key"] = dict.fromkeys(waiting)
        touched: list[Any] = []
        gateway.touched = SimpleNamespace(add=touched.append)
        flushed: list[Any] = []
        scratch = gateway.loop.scratch
        scratch[10:14] = b"rest"

        def flush(one: Any) -> None:
            flushed.append(one)
            if one is not connection:
                scratch[:] = bytes(len(scratch))

        gateway.loop.flush = flush
        taken: list[bytes] = []
        gateway.loop.take_frames = lambda _one, data, at, end: taken.append(bytes(data[at:end]))
        gateway.now = lambda: 5.0
        connection.is_closed = False

        def served(*args: Any) -> tuple[Any, ...]:
            return reached, 14, 10, 1, 100, 0, 0, 200, 0, [(0, b"ack")], [], [], 1

        with (
            mock.patch.object(straight, "serve_ready", served),
            mock.patch.object(straight, "GuestRead", Awaiting),
        ):
            asked.way.take([(ours.fileno(), select.EPOLLIN)])
        assert list(connection.out) == [b"ack"] and asked.marked[0] is connection
        is_flushed = not is_touched or reached == 0
        assert flushed == told + [connection] * is_flushed
        assert touched == [connection] * is_touched
        assert taken == [b"rest"] * (reached == 0)


@pytest.mark.parametrize(
    ("api_key", "token", "count", "is_read"),
    [
        (PRODUCE, 5, 1, True),
        (PRODUCE, 0, 1, False),
        (FETCH, 5, 1, False),
        (PRODUCE, 5, STORED_MAX, False),
    ],
)
def test_nothing_overtakes_what_is_under_way(
    api_key: int, token: int, count: int, is_read: bool
) -> None:
    """A Produce with a token is stored already; one without lies on the ring yet."""
    ours, client = socket.socketpair()
    with ours, client:
        asked = Asked(ours, [SimpleNamespace(api_key=api_key, token=token)] * count)
        assert asked.take(ours, []) == ([] if is_read else [(ours.fileno(), select.EPOLLIN)])
        assert asked.calls == [False] * is_read
