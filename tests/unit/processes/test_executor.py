"""Forwarded requests are answered to whoever asked, and to nobody else."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.ipc.operation_adapter import Call, Executor
from shmbroker.ipc.operation_layout import EXECUTE_HEAD, EXECUTED
from shmbroker.ipc.peer import Peer
from shmbroker.wire import codec
from shmbroker.wire.api_keys import TIER_LOAD

CLIENT = b"io"


class Ring:
    """One end of a ring that is never full."""

    payload_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.data = bytearray(self.payload_bytes_max)

    def claim(self, operation: int, length: int) -> int:
        self.entries.append(operation)
        return 0

    def abort(self) -> None: ...

    def reset(self) -> None:
        self.entries.clear()


@pytest.fixture
def peer() -> Peer:
    return Peer(1, "io-worker", 1, Ring(), Ring(), SimpleNamespace())  # type: ignore[arg-type]


def ask(peer: Peer) -> Call:
    """A request that is answered later."""
    calls: list[Call] = []

    def handler(call: Call, body: dict[str, Any]) -> None:
        calls.append(call)

    body = codec.encode("TierLoadRequest", 0, {"topic": "t", "topic_id": bytes(16), "partition": 0})
    head = EXECUTE_HEAD.pack(7, TIER_LOAD, 0, len(CLIENT), 0, 0)
    entry = head + CLIENT + body
    Executor({TIER_LOAD: ("TierLoad", handler)}).on_execute(peer, memoryview(entry), 0, len(entry))
    (call,) = calls
    return call


def reply(call: Call) -> None:
    call.reply({"error_code": 0, "error_message": "", "segments": []})


def test_who_asked_before_it_ran_is_answered(peer: Peer) -> None:
    """A successor asks while it boots; that it runs is seen later."""
    assert peer.incarnation == 0
    call = ask(peer)
    peer.incarnation = 2
    reply(call)
    assert peer.writer.entries == [EXECUTED]  # type: ignore[attr-defined]


def test_who_has_died_is_not_answered_and_neither_is_its_successor(peer: Peer) -> None:
    peer.incarnation = 1
    call = ask(peer)
    peer.incarnation = 0
    peer.reset()
    reply(call)
    peer.incarnation = 2
    reply(call)
    assert peer.writer.entries == []  # type: ignore[attr-defined]
