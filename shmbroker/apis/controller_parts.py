"""What an API module may ask of the parts of the active controller: one Protocol for each part.

   ControllerContext ─┬─ .decisions ── Decisions ─┬─ .membership   brokers that come and go
                      │                           └─ .told_ends    where their logs end
                      └─ .brokers ──── ShownBrokers

Rules of this file:
* The parts fulfil these as they are, as in `apis.broker_parts`.
* What they decide is durable when they return.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.settings.broker_config import BrokerConfig


class Membership(Protocol):
    """Brokers that come and go."""

    def register_broker(
        self,
        broker_id: int,
        host: str,
        port: int,
        incarnation_id: bytes,
        directories: list[bytes],
        now_ms: int,
        is_clean: bool,
        pending: AbstractSet[int],
        /,
    ) -> int:
        """Register a broker that starts, fenced as yet; its broker epoch."""

    def unfence_broker(self, broker_id: int, now_ms: int, pending: AbstractSet[int], /) -> None:
        """The broker has caught up and serves: clients may be sent there."""

    def begin_shutdown(self, broker_id: int, broker_epoch: int, now_ms: int, /) -> int:
        """The broker is going to stop: others lead what they can; the error code."""


class ToldEnds(Protocol):
    """Where the logs of brokers end, as they tell it."""

    def take(self, request: dict[str, Any], now_ms: int, /) -> dict[str, Any]:
        """The response to a TellLogEnds."""


class Decisions(Protocol):
    """What decides."""

    @property
    def config(self) -> BrokerConfig:
        """The settings of the node."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is decided."""

    @property
    def membership(self) -> Membership: ...
    @property
    def told_ends(self) -> ToldEnds: ...

    def handle(
        self, api_name: str, version: int, request: dict[str, Any], now_ms: int, /
    ) -> dict[str, Any]:
        """Decide a request as a whole: the response."""

    def describe_quorum(
        self, request: dict[str, Any], version: int, now_ms: int, /
    ) -> dict[str, Any]:
        """The response to a DescribeQuorum: nothing is decided."""

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, now_ms: int, /
    ) -> tuple[int, int, int]:
        """(error code, first producer id, count) of a block that nobody else gets."""


class ShownBrokers(Protocol):
    """The brokers, as far as shared memory shows them."""

    def pending(self) -> AbstractSet[int]:
        """The brokers that may not have registered since the family started, and can."""

    def has_served(self, number: int, /) -> bool:
        """Whether one has followed the metadata since the family started."""
