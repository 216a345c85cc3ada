"""What comes of a client's message, whatever the mechanism.

message ──► Challenge    the client has to say more
        ──► Shown        the client has shown who it is
        ──► NotBelieved  it has not, and gets no second try on this connection
        ──► NOT_YET      the same message again, soon: what it takes to answer is being made
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Challenge(NamedTuple):
    """The answer to a message after which more have to come."""

    data: bytes


class Shown(NamedTuple):
    """The client is who it says it is."""

    data: bytes
    """The last answer; often empty."""
    name: str
    """The principal is "User:" and this."""
    expires_ms: int | None = None
    """Wall-clock time at which what it has shown ceases to hold; None: it does not."""
    is_by_token: bool = False
    """The client has shown a delegation token: it may not make more of them (KIP-48)."""


class NotBelieved(NamedTuple):
    """The client could not show it."""

    reason: str
    """The reason for the broker's log: without names or secrets that a client has sent."""
    text: str | None = None
    """What the client is told, where Kafka tells it; None: only that it has failed."""


class NotYet(NamedTuple):
    """Nothing was done: something that takes milliseconds is done elsewhere first."""


NOT_YET = NotYet()

Outcome = Challenge | Shown | NotBelieved | NotYet


class Mechanism(Protocol):
    """One exchange with one client."""

    def on_message(self, message: bytes) -> Outcome:
        """What the client has sent. It is not called again after Shown or NotBelieved."""
