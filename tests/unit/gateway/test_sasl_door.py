"""Strangers at a listener with SASL: what they may send, how long they may take, what they are told
and when."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.ipc.operation_layout import APPEND, APPEND_HEAD, APPENDED, APPENDED_HEAD
from shmbroker.wire import codec
from shmbroker.wire.api_keys import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from shmbroker.wire.error_codes import ILLEGAL_SASL_STATE, NONE, SASL_AUTHENTICATION_FAILED
from shmbroker.wire.frame import request_frame
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GATEWAY, GatewayFamily, gateway_family
from tests.support.record_batches import batch

NAMES = {
    API_VERSIONS: "ApiVersions",
    METADATA: "Metadata",
    PRODUCE: "Produce",
    SASL_AUTHENTICATE: "SaslAuthenticate",
    SASL_HANDSHAKE: "SaslHandshake",
}
SETTINGS = (
    "listeners=SASL://127.0.0.1:9092",
    "listener.security.protocol.map=SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms=PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";',
    "connection.failed.authentication.delay.ms=5000",
)
ALICE = {"auth_bytes": b"\0alice\0secret"}
WRONG = {"auth_bytes": b"\0alice\0wrong"}
PLAIN = {"mechanism": "PLAIN"}


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    with gateway_family(*SETTINGS) as made:
        yield made


@pytest.fixture
def short() -> Iterator[GatewayFamily]:
    """Sessions last 10 s."""
    with gateway_family(*SETTINGS, "connections.max.reauth.ms=10000") as made:
        yield made


def frame(key: int, body: dict[str, Any], version: int = 1) -> bytes:
    encoded = codec.encode(f"{NAMES[key]}Request", version, body)
    return request_frame(key, version, 7, "client", encoded)


def asked(of: GatewayFamily, key: int, body: dict[str, Any], version: int = 1) -> dict[str, Any]:
    of.ask(key, version, NAMES[key], body)
    return of.answer(key, version, NAMES[key])


def known(of: GatewayFamily) -> None:
    assert asked(of, SASL_HANDSHAKE, PLAIN)["error_code"] == NONE
    assert asked(of, SASL_AUTHENTICATE, ALICE)["error_code"] == NONE


def is_closed(of: GatewayFamily) -> bool:
    return not of.gateway.loop.connections


def the_connection(of: GatewayFamily) -> Any:
    (found,) = of.gateway.loop.connections.values()
    return found


def test_who_shows_who_it_is_may_ask(family: GatewayFamily) -> None:
    known(family)
    assert the_connection(family).principal == "User:alice"
    assert the_connection(family).stranger is None
    assert asked(family, METADATA, {"topics": []})["brokers"]


def test_requests_in_the_same_read_are_those_of_who_is_known(family: GatewayFamily) -> None:
    family.client.sendall(
        frame(SASL_HANDSHAKE, PLAIN)
        + frame(SASL_AUTHENTICATE, ALICE)
        + frame(METADATA, {"topics": []})
    )
    family.turn()
    for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA):
        assert not family.answer(key, 1, NAMES[key]).get("error_code")


def test_a_frame_may_come_in_pieces(family: GatewayFamily) -> None:
    data = frame(SASL_HANDSHAKE, PLAIN)
    for piece in (data[:2], data[2:5], data[5:20], data[20:]):
        family.client.sendall(piece)
        family.turn()
    assert family.answer(SASL_HANDSHAKE, 1, "SaslHandshake")["error_code"] == NONE


@pytest.mark.parametrize("size", [65537, 1 << 20, -1, -(2**31), 2**31 - 1])
def test_frames_before_authentication_are_small(family: GatewayFamily, size: int) -> None:
    family.client.sendall(struct.pack(">i", size))
    family.turn()
    assert is_closed(family)


def test_the_largest_frame_is_taken(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    message = frame(SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0" + b"x" * 65_000})
    family.client.sendall(message)
    while not the_connection(family).inflight:
        family.turn()
    assert len(message) < 65536 + 4


@pytest.mark.parametrize("key", [0, 1, 3, 19, 22, 36, 20000, -1, 999])
def test_nothing_else_is_decoded(family: GatewayFamily, key: int) -> None:
    family.client.sendall(struct.pack(">ihhih", 14, key, 0, 7, -1) + b"\xff" * 4)
    family.turn()
    assert is_closed(family) or key == 36


def test_a_refusal_waits_and_holds_up_nobody(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    family.ask(SASL_AUTHENTICATE, 1, "SaslAuthenticate", WRONG)
    first = family.client
    first.setblocking(False)
    family.clock.now += 4.9
    family.quiet_turn()
    with pytest.raises(BlockingIOError):
        first.recv(1)

    family.client = socket.create_connection(family.listening.getsockname())
    family.client.settimeout(10)
    family.turn()
    known(family)
    family.client.close()

    first.settimeout(10)
    family.client = first
    family.clock.now += 0.1
    family.quiet_turn()
    answer = family.answer(SASL_AUTHENTICATE, 1, "SaslAuthenticate")
    assert answer["error_code"] == SASL_AUTHENTICATION_FAILED
    assert first.recv(1) == b""


def test_a_refusal_is_counted_and_logged(
    family: GatewayFamily, caplog: pytest.LogCaptureFixture
) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    family.ask(SASL_AUTHENTICATE, 1, "SaslAuthenticate", WRONG)
    family.clock.now += 2
    family.quiet_turn()
    index = family.counters.counter(GATEWAY, "authentications_failed")
    assert family.words[index] == 1
    (line,) = caplog.messages
    assert "on listener SASL: PLAIN: an unknown user, or a wrong password" in line
    assert "wrong\0" not in line and "alice" not in line


def test_what_comes_after_a_refusal_is_not_read(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    family.client.sendall(frame(SASL_AUTHENTICATE, WRONG) + frame(SASL_AUTHENTICATE, ALICE))
    family.turn()
    assert the_connection(family).principal == "User:ANONYMOUS"
    family.clock.now += 5.1
    family.quiet_turn()
    answer = family.answer(SASL_AUTHENTICATE, 1, "SaslAuthenticate")
    assert answer["error_code"] == SASL_AUTHENTICATION_FAILED
    assert is_closed(family)


def test_who_leaves_before_it_is_told_is_forgotten(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    family.ask(SASL_AUTHENTICATE, 1, "SaslAuthenticate", WRONG)
    family.client.close()
    family.clock.now += 5.1
    family.quiet_turn()
    assert is_closed(family)
    family.client = socket.socket()


def test_who_takes_too_long_is_closed(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN)
    family.clock.now += 29
    family.quiet_turn()
    assert not is_closed(family)
    family.clock.now += 2
    family.quiet_turn()
    assert is_closed(family)


def test_bare_messages_have_bare_answers(family: GatewayFamily) -> None:
    asked(family, SASL_HANDSHAKE, PLAIN, version=0)
    message = ALICE["auth_bytes"]
    family.client.sendall(struct.pack(">i", len(message)) + message)
    family.turn()
    assert family.receive(4) == bytes(4)
    assert the_connection(family).principal == "User:alice"


def test_users_are_read_again_with_the_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "alice").write_text("secret")
    settings = [setting.replace('"secret"', f'"${{dir:{tmp_path}:alice}}"') for setting in SETTINGS]
    other = {"auth_bytes": b"\0alice\0other"}
    with gateway_family(*settings) as family:
        (tmp_path / "alice").write_text("other")
        family.gateway.on_settings()
        (tmp_path / "alice").unlink()
        family.gateway.on_settings()
        assert "listener SASL keeps the users that it had" in caplog.text
        asked(family, SASL_HANDSHAKE, PLAIN)
        assert asked(family, SASL_AUTHENTICATE, other)["error_code"] == NONE


# ── sessions ────────────────────────────────────────────────────────────────────────────────────


def test_a_session_that_is_over_ends_with_the_next_request(short: GatewayFamily) -> None:
    known(short)
    short.clock.now += 9.9
    short.quiet_turn()
    assert asked(short, METADATA, {"topics": []})["brokers"]
    short.clock.now += 0.2
    short.ask(METADATA, 1, "Metadata", {"topics": []})
    assert is_closed(short)


def test_who_authenticates_again_stays(short: GatewayFamily) -> None:
    known(short)
    short.clock.now += 10.1
    known(short)
    short.clock.now += 9
    assert asked(short, METADATA, {"topics": []})["brokers"]


def test_again_in_one_read(short: GatewayFamily) -> None:
    known(short)
    short.clock.now += 2
    short.client.sendall(
        frame(SASL_HANDSHAKE, PLAIN)
        + frame(SASL_AUTHENTICATE, ALICE)
        + frame(METADATA, {"topics": []})
    )
    short.turn()
    for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA):
        assert not short.answer(key, 1, NAMES[key]).get("error_code")


def test_nothing_else_may_be_asked_while_one_authenticates_again(short: GatewayFamily) -> None:
    known(short)
    assert asked(short, SASL_HANDSHAKE, PLAIN)["error_code"] == NONE
    short.ask(METADATA, 1, "Metadata", {"topics": []})
    assert is_closed(short)


def test_who_need_not_is_told_that_it_is_late(family: GatewayFamily) -> None:
    known(family)
    assert asked(family, SASL_HANDSHAKE, PLAIN)["error_code"] == ILLEGAL_SASL_STATE
    assert asked(family, SASL_AUTHENTICATE, ALICE)["error_code"] == ILLEGAL_SASL_STATE
    assert asked(family, METADATA, {"topics": []})["brokers"]


def produce() -> bytes:
    rows = [{"index": 0, "records": batch(0, [(0, 1000, None, b"v", ())])}]
    topics = [{"name": TOPIC, "partition_data": rows}]
    return frame(PRODUCE, {"acks": -1, "timeout_ms": 1000, "topic_data": topics}, 9)


def test_what_was_asked_in_time_is_answered_before_the_session_ends(short: GatewayFamily) -> None:
    known(short)
    short.client.sendall(produce())
    short.turn()
    [(operation, payload)] = short.taken()
    assert operation == APPEND
    short.clock.now += 10.1
    short.client.sendall(produce())
    short.turn()
    assert not is_closed(short)
    token = APPEND_HEAD.unpack_from(payload)[0]
    short.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 0, -1, 0))
    short.quiet_turn()
    answer = short.answer(PRODUCE, 9, "Produce")
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == NONE
    assert is_closed(short) and not short.taken()


def test_a_handshake_has_its_time_from_when_its_turn_comes(short: GatewayFamily) -> None:
    known(short)
    short.clock.now += 2
    short.client.sendall(produce() + frame(SASL_HANDSHAKE, PLAIN))
    short.turn()
    [(_, payload)] = short.taken()
    short.clock.now += 31
    short.quiet_turn()
    assert not is_closed(short)
    token = APPEND_HEAD.unpack_from(payload)[0]
    short.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 0, -1, 0))
    short.quiet_turn()
    short.answer(PRODUCE, 9, "Produce")
    assert short.answer(SASL_HANDSHAKE, 1, "SaslHandshake")["error_code"] == NONE
    assert asked(short, SASL_AUTHENTICATE, ALICE)["error_code"] == NONE
    assert asked(short, METADATA, {"topics": []})["brokers"]
