"""Forwarded requests are answered to whoever asked, and to nobody else."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_adapter import Call, Executor, Steps
from shmbroker.ipc.operation_layout import (
    EXECUTE_HEAD,
    EXECUTED,
    EXECUTED_HEAD,
    pack_identity,
)
from shmbroker.ipc.peer import Peer
from shmbroker.logs import seldom
from shmbroker.security.identity import OF_FAMILY, Identity
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


def execute(executor: Executor, peer: Peer, token: int) -> None:
    body = codec.encode("TierLoadRequest", 0, {"topic": "t", "topic_id": bytes(16), "partition": 0})
    entry = EXECUTE_HEAD.pack(token, TIER_LOAD, 0, len(CLIENT), 0, 0) + CLIENT + body
    executor.on_execute(peer, memoryview(entry), 0, len(entry))


class Stepping:
    """An executor whose requests take three steps, all of which are noted."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.executor = Executor({TIER_LOAD: ("TierLoad", self.handler)})

    def handler(self, call: Call, body: dict[str, Any]) -> Steps:
        for step in range(3):
            if step:
                yield
            self.taken.append((call.token, step))
        return {"error_code": 0, "error_message": "", "segments": []}


def test_long_requests_are_served_in_turns(peer: Peer) -> None:
    stepping = Stepping()
    executor = stepping.executor
    execute(executor, peer, 1)
    execute(executor, peer, 2)
    assert stepping.taken == [(1, 0), (2, 0)]  # the first step of each at once
    assert peer.writer.entries == []  # type: ignore[attr-defined]
    while executor.unfinished:
        executor.advance()
    assert stepping.taken[2:] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert peer.writer.entries == [EXECUTED] * 2  # type: ignore[attr-defined]


def test_a_step_that_fails_ends_its_own_request_alone(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(call: Call, body: dict[str, Any]) -> Steps:
        yield
        if call.token == 1:
            raise ValueError("in the second step")
        return {"error_code": 0, "error_message": "", "segments": []}

    executor = Executor({TIER_LOAD: ("TierLoad", handler)})
    execute(executor, peer, 1)
    execute(executor, peer, 2)
    while executor.unfinished:
        executor.advance()
    assert peer.writer.entries == [EXECUTED] * 2  # type: ignore[attr-defined]
    flags = EXECUTED_HEAD.unpack_from(peer.writer.data, 0)  # of the later one
    assert flags[:2] == (2, 0)
    (record,) = caplog.records
    assert record.exc_info is not None
    # A client that asks again and again is counted.
    assert seldom("TierLoad v0 failed").items() <= vars(record).items()


def test_a_disk_that_refuses_is_said_in_one_line(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(call: Call, body: dict[str, Any]) -> None:
        raise StorageFault("00000000.log can't be written: No space left on device")

    execute(Executor({TIER_LOAD: ("TierLoad", handler)}), peer, 1)
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage() == (
        "TierLoad v0 failed: 00000000.log can't be written: No space left on device"
    )


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


IDENTITIES = [
    Identity("User:ANONYMOUS", "127.0.0.1", "PLAINTEXT"),
    Identity("User:CN=Zoë,O=x", "fe80::1%eth0", "OUTSIDE", False),
    Identity("User:" + "n" * 70_000, "", "", True),
]


@pytest.mark.parametrize("identity", IDENTITIES, ids=range(len(IDENTITIES)))
def test_who_asks_comes_out_as_it_went_in(peer: Peer, identity: Identity) -> None:
    packed = pack_identity(identity)
    head = EXECUTE_HEAD.pack(7, TIER_LOAD, 0, len(CLIENT), 0, len(packed))
    body = codec.encode("TierLoadRequest", 0, {"topic": "t", "topic_id": bytes(16), "partition": 5})
    entry = head + CLIENT + packed + body
    calls: list[tuple[Call, int]] = []
    handlers = {TIER_LOAD: ("TierLoad", lambda call, body: calls.append((call, body["partition"])))}
    Executor(handlers).on_execute(peer, memoryview(entry), 0, len(entry))
    [(call, partition)] = calls
    assert (call.identity, call.client_id, partition) == (identity, CLIENT, 5)


def test_a_request_of_no_client_is_of_the_family(peer: Peer) -> None:
    assert ask(peer).identity == OF_FAMILY
    assert not ask(peer).identity.may_have_tokens


@pytest.mark.parametrize(
    ("principal", "is_by_token", "may"),
    [
        ("User:ANONYMOUS", False, False),
        ("User:alice", False, True),
        ("User:alice", True, False),
    ],
)
def test_tokens_are_for_who_has_shown_who_he_is_and_not_by_one(
    principal: str, is_by_token: bool, may: bool
) -> None:
    assert Identity(principal, "127.0.0.1", "L", is_by_token).may_have_tokens is may
