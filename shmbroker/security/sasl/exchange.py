"""The order of requests by which one client shows who it is (KIP-43, KIP-152, KIP-368).

   FIRST ──versions──► VERSIONED ──┐
     └────────handshake────────────┴──► EXCHANGING ──authenticate…──► SHOWN ──handshake─┐
                │ version 0                 ▲                           ▲               │ again
                └──► RAW ──tokens…──► SHOWN └───────────────────────────┴── EXCHANGING ◄┘
   anything else ──► FAILED

* After a handshake of version 0 the mechanism's messages come as they are, without a request around
  them, and so do their answers.
* Who comes again (KIP-368) must use the same mechanism and be the same user; not more often than
  once a second.
* What was refused stays so: the connection ends.
* The answers are Apache Kafka's, word for word.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.security.sasl.outcome import Challenge, NotBelieved, NotYet
from shmbroker.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmbroker.security.sasl.outcome import Mechanism, Shown

FIRST = "first"
VERSIONED = "versioned"
EXCHANGING = "exchanging"
RAW = "raw"
SHOWN = "shown"
FAILED = "failed"

AGAIN_INTERVAL_S = 1.0
"""How often one may authenticate again."""


class Offer(NamedTuple):
    """A mechanism of a listener."""

    begin: Callable[[], Mechanism]
    """Starts an exchange."""
    session_ms_max: int
    """`connections.max.reauth.ms`; 0: what was shown holds for as long as the connection."""


class Said(NamedTuple):
    """What is to be done about one request."""

    error_code: int = NONE
    text: str | None = ""
    data: bytes = b""
    has_failed: bool = False
    """Answer late, and end the connection."""
    has_answer: bool = True
    session_ms: int | None = None
    """How long what was shown holds; None: as long as the connection."""
    reason: str = ""
    """Why it has failed, for the log."""
    is_not_yet: bool = False
    """Nothing is to be said: the same message again, soon."""


class SaslExchange:
    """One client's way."""

    __slots__ = ("_begun_at", "_mechanism", "_name", "_offers", "shown", "state")

    def __init__(self, offers: Mapping[str, Offer]) -> None:
        self._offers = offers
        self.state = FIRST
        self.shown: Shown | None = None
        """The identity that the client has shown; while it shows it again, the one before."""
        self._name = ""
        self._mechanism: Mechanism | None = None
        self._begun_at: float | None = None

    @property
    def is_going_on(self) -> bool:
        """Whether messages of a mechanism are still to come."""
        return self.state in (EXCHANGING, RAW)

    def on_versions(self) -> Said | None:
        """ApiVersions has come; None if it may be answered as ever."""
        if self.state == FIRST:
            return None
        return self._out_of_order("ApiVersions")

    def on_versions_told(self) -> None:
        """ApiVersions was answered without an error."""
        self.state = VERSIONED

    def may_begin_again(self, now: float) -> bool:
        """Whether a client that is known may show again who it is, at this monotonic time."""
        if self.state != SHOWN:
            return True
        if self._begun_at is not None and now - self._begun_at < AGAIN_INTERVAL_S:
            return False
        self._begun_at = now
        return True

    def on_handshake(self, version: int, name: str) -> Said:
        """SaslHandshake has come; every answer but ILLEGAL_SASL_STATE tells the mechanisms."""
        if self.state not in (FIRST, VERSIONED, SHOWN):
            return self._out_of_order("SaslHandshake")
        offer = self._offers.get(name)
        if offer is None:
            self._fail()
            reason = "a mechanism that is not enabled"
            return Said(UNSUPPORTED_SASL_MECHANISM, has_failed=True, reason=reason)
        if self.shown is None or name == self._name:
            self._mechanism = offer.begin()
        else:
            self._mechanism = None
        self._name = name if self.shown is None else self._name
        self.state = RAW if version == 0 else EXCHANGING
        return Said()

    def on_message(self, message: bytes, now_ms: int) -> Said:
        """A message of the mechanism has come, in a SaslAuthenticate or as it is (RAW). now_ms: the
        time by the wall clock."""
        if self.state not in (EXCHANGING, RAW):
            return self._out_of_order("SaslAuthenticate")
        if self._mechanism is None:
            self._fail()
            reason = "another mechanism than before"
            return Said(has_failed=True, has_answer=False, reason=reason)
        outcome = self._mechanism.on_message(message)
        if isinstance(outcome, Challenge):
            return Said(data=outcome.data)
        if isinstance(outcome, NotYet):
            return Said(is_not_yet=True)
        if isinstance(outcome, NotBelieved):
            return self._refused(outcome)
        if self.shown is not None and outcome.name != self.shown.name:
            text = (
                "Cannot change principals during re-authentication from "
                f"User.{self.shown.name}: User.{outcome.name}"
            )
            return self._refused(NotBelieved("another user than before", text))
        self.state, self.shown, self._mechanism = SHOWN, outcome, None
        return Said(data=outcome.data, session_ms=self._session_ms(outcome, now_ms))

    def _session_ms(self, shown: Shown, now_ms: int) -> int | None:
        most = self._offers[self._name].session_ms_max or None
        if shown.expires_ms is None:
            return most
        left = max(0, shown.expires_ms - now_ms)
        return left if most is None else min(left, most)

    def _refused(self, outcome: NotBelieved) -> Said:
        text = outcome.text
        if text is None:
            again = "authentication" if self.shown is None else "re-authentication"
            text = (
                f"Authentication failed during {again} due to invalid credentials with SASL "
                f"mechanism {self._name}"
            )
        has_answer = self.state != RAW
        self._fail()
        return Said(
            SASL_AUTHENTICATION_FAILED,
            text,
            has_failed=True,
            has_answer=has_answer,
            reason=f"{self._name}: {outcome.reason}",
        )

    def _out_of_order(self, what: str) -> Said:
        has_answer = self.state == EXCHANGING
        self._fail()
        reason = f"{what} out of order"
        return Said(ILLEGAL_SASL_STATE, has_failed=True, has_answer=has_answer, reason=reason)

    def _fail(self) -> None:
        self.state, self._mechanism = FAILED, None
