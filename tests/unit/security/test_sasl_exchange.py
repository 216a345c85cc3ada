"""The order of requests around a mechanism."""

import pytest

from shmbroker.security.sasl.exchange import Offer, Said, SaslExchange
from shmbroker.security.sasl.outcome import Challenge, NotBelieved, Outcome, Shown
from shmbroker.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)

NOW_MS = 1_000_000


class Named:
    """A mechanism: a message "more" is challenged, "no" refused, another one is the user's name,
    with the time at which it expires behind a slash."""

    def on_message(self, message: bytes) -> Outcome:
        if message == b"more":
            return Challenge(b"go on")
        if message == b"no":
            return NotBelieved("it said no")
        name, _, expires_ms = message.decode().partition("/")
        return Shown(b"welcome", name, int(expires_ms) if expires_ms else None)


def exchange(session_ms_max: int = 0) -> SaslExchange:
    offer = Offer(Named, session_ms_max)
    return SaslExchange({"PLAIN": offer, "OTHER": offer})


def shown(session_ms_max: int = 0, message: bytes = b"alice") -> tuple[SaslExchange, Said]:
    one = exchange(session_ms_max)
    one.on_handshake(1, "PLAIN")
    return one, one.on_message(message, NOW_MS)


def test_versions_handshake_and_messages_show_who_it_is() -> None:
    one = exchange()
    assert one.on_versions() is None
    one.on_versions_told()
    assert one.on_handshake(1, "PLAIN") == Said()
    assert one.on_message(b"more", NOW_MS) == Said(data=b"go on")
    assert one.shown is None
    assert one.on_message(b"alice", NOW_MS) == Said(data=b"welcome")
    assert one.shown == Shown(b"welcome", "alice")


def test_versions_are_told_once() -> None:
    one = exchange()
    one.on_versions_told()
    said = one.on_versions()
    assert said is not None and said.has_failed


def test_versions_that_could_not_be_told_are_asked_again() -> None:
    one = exchange()
    assert one.on_versions() is None
    assert one.on_versions() is None


@pytest.mark.parametrize("state", ["at first", "after a handshake", "after it has failed"])
def test_what_is_out_of_order_ends_it(state: str) -> None:
    one = exchange()
    if state == "at first":
        said = one.on_message(b"alice", NOW_MS)
    elif state == "after a handshake":
        one.on_handshake(1, "PLAIN")
        said = one.on_handshake(1, "OTHER")
    else:
        one.on_handshake(1, "PLAIN")
        one.on_message(b"no", NOW_MS)
        said = one.on_message(b"alice", NOW_MS)
    assert said.error_code == ILLEGAL_SASL_STATE and said.has_failed
    assert one.shown is None
    assert one.on_message(b"alice", NOW_MS).has_failed
    assert one.shown is None


def test_versions_between_handshake_and_messages_end_it() -> None:
    one = exchange()
    one.on_handshake(1, "PLAIN")
    said = one.on_versions()
    assert said is not None
    assert (said.error_code, said.has_failed) == (ILLEGAL_SASL_STATE, True)
    assert one.on_message(b"alice", NOW_MS).has_failed


def test_a_mechanism_that_is_not_enabled() -> None:
    said = exchange().on_handshake(1, "GSSAPI")
    assert (said.error_code, said.has_failed) == (UNSUPPORTED_SASL_MECHANISM, True)


def test_a_refusal_tells_nothing() -> None:
    one = exchange()
    one.on_handshake(1, "PLAIN")
    said = one.on_message(b"no", NOW_MS)
    assert said.error_code == SASL_AUTHENTICATION_FAILED
    assert said.text == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism PLAIN"
    )
    assert said.has_answer and said.reason == "PLAIN: it said no"


def test_messages_without_requests_get_no_error() -> None:
    one = exchange()
    one.on_handshake(0, "PLAIN")
    said = one.on_message(b"no", NOW_MS)
    assert said.has_failed and not said.has_answer


@pytest.mark.parametrize(
    ("session_ms_max", "message", "session_ms"),
    [
        (0, b"alice", None),
        (4000, b"alice", 4000),
        (0, b"alice/1005000", 5000),
        (4000, b"alice/1005000", 4000),
        (6000, b"alice/1005000", 5000),
        (0, b"alice/999999", 0),
    ],
)
def test_how_long_it_holds(session_ms_max: int, message: bytes, session_ms: int | None) -> None:
    assert shown(session_ms_max, message)[1].session_ms == session_ms


def test_the_same_user_comes_again() -> None:
    one, _ = shown(4000)
    assert one.may_begin_again(10.0)
    assert one.on_handshake(1, "PLAIN") == Said()
    assert one.on_message(b"alice/1001000", NOW_MS).session_ms == 1000
    assert one.shown == Shown(b"welcome", "alice", 1001000)
    assert not one.may_begin_again(10.9)
    assert one.may_begin_again(11.0)


def test_another_user_does_not_come_again() -> None:
    one, _ = shown(4000)
    one.on_handshake(1, "PLAIN")
    said = one.on_message(b"bob", NOW_MS)
    assert (said.error_code, said.has_failed) == (SASL_AUTHENTICATION_FAILED, True)
    assert said.text == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert one.shown is not None and one.shown.name == "alice"


def test_who_comes_again_uses_the_same_mechanism() -> None:
    one, _ = shown(4000)
    assert one.on_handshake(1, "OTHER").error_code == NONE
    said = one.on_message(b"alice", NOW_MS)
    assert said.has_failed and not said.has_answer


def test_a_refusal_of_who_comes_again() -> None:
    one, _ = shown(4000)
    one.on_handshake(1, "PLAIN")
    said = one.on_message(b"no", NOW_MS)
    assert said.text and said.text.startswith("Authentication failed during re-authentication due")
