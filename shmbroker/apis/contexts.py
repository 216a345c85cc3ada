"""What an API module may ask of the process that answers: one Protocol for each kind of process.

   GatewayContext     a network worker: the metadata image, and who is alive
   BrokerContext      an I/O worker: its partitions, its groups, its log directory
   ControllerContext  the active controller: its decisions, and what it sees of the brokers

Rules of this file:
* An API module is given one of these and nothing else, so a test can give it a plain object.
* What only one module needs still stands here: the list shows what a request can reach.
* What can be asked of parts of a process stands in `broker_parts` and `controller_parts`.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.apis.broker_parts import Directory, Groups, Store, TierLookups, Transactions
    from shmbroker.apis.controller_parts import Decisions, ShownBrokers
    from shmbroker.clock import Clock
    from shmbroker.errors import StorageFault
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.guard import Guard
    from shmbroker.gateway.inflight import PlainRequest as PlainRequest
    from shmbroker.gateway.inflight import Request as Request
    from shmbroker.ipc.operation_adapter import Answer, Call, Steps
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.follower import MetadataFollower
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.records.end_marker import EndMarker
    from shmbroker.replica.partition import Partition, Partitions
    from shmbroker.security.tokens import TokenKey
    from shmbroker.settings.broker_config import BrokerConfig


class GatewayContext(Protocol):
    """A network worker, as the APIs see it that answer from the metadata image."""

    guard: Guard | None
    """What is asked for rights; None: everybody has all."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last committed record that this process has read."""

    @property
    def config(self) -> BrokerConfig:
        """The settings that the process was started with."""

    @property
    def advertised(self) -> list[dict[str, Any]]:
        """The rows of an ApiVersions answer."""

    @property
    def ports(self) -> Mapping[int, int]:
        """The port of each broker of this family, by broker id."""

    @property
    def token_key(self) -> TokenKey | None:
        """What delegation tokens are proved by; None: there are none."""

    def live_brokers(self) -> AbstractSet[int]:
        """Ids of the brokers that serve now."""

    def controller_broker_id(self) -> int:
        """The broker that clients are told is the controller."""

    def broker_rows(
        self, connection: Connection, *, with_gone: bool = False
    ) -> list[dict[str, Any]]:
        """Node id, host, port, rack of the live brokers, as this client reaches them."""

    def log_levels(self) -> Mapping[str, str]:
        """The level that each logger of the family goes by now."""

    def identity_of(self, broker_id: int) -> dict[str, str]:
        """The settings that say who one broker is."""

    def create_topics(self, request: PlainRequest, names: list[str]) -> None:
        """Have the controller create topics with their defaults; `request` is answered after."""


class Api(Protocol):
    """What every module of an API says of itself."""

    @property
    def API_KEY(self) -> int: ...
    @property
    def NAME(self) -> str: ...
    @property
    def VERSION_MIN(self) -> int: ...
    @property
    def VERSION_MAX(self) -> int: ...
    @property
    def VERSION_MIN_ADVERTISED(self) -> int: ...


class GatewayApi(Api, Protocol):
    """A module of an API that a network worker answers."""

    def answer(
        self, gateway: GatewayContext, request: PlainRequest, body: dict[str, Any], /
    ) -> dict[str, Any] | None:
        """The answer; None if something has to be done first: then this is called again."""


class BrokerApi(Api, Protocol):
    """A module of an API that an I/O worker answers."""

    def answer(
        self, broker: BrokerContext, call: Call, body: dict[str, Any], /
    ) -> dict[str, Any] | Steps | None:
        """The answer; None if the call is replied to later; a generator that comes to it."""


class ControllerApi(Api, Protocol):
    """A module of an API that the active controller answers."""

    def answer(
        self, controller: ControllerContext, call: Call, body: dict[str, Any], /
    ) -> Answer | Steps:
        """The answer; None if the call is replied to later; a generator that comes to it."""

    def not_controller(self, version: int, body: dict[str, Any], /) -> dict[str, Any]:
        """The answer to a request that was, or may have been, in vain: see `apis.refusals`."""


class ControllerLink(Protocol):
    """The active controller, as one process sees it."""

    def peer(self) -> Peer | None:
        """The active controller, if there is one that can be asked."""


class MetadataLink(ControllerLink, Protocol):
    """The way to the active controller, and to the metadata that it has committed."""

    epoch: int
    number: int
    follower: MetadataFollower

    def others(self) -> list[Peer]:
        """The controllers that are not the one that led last."""

    def is_behind(self) -> bool:
        """Whether more is committed than the image has."""

    def has_news(self) -> bool:
        """Whether something was committed since `is_behind` or `catch_up` looked."""

    def catch_up(self) -> list[MetadataChange] | None:
        """One step towards what is committed, for `follower.image`: what has changed, or None
        while there are more."""


class BrokerContext(Protocol):
    """An I/O worker, as the APIs see it that need its logs or its groups."""

    @property
    def clock(self) -> Clock:
        """The time at this moment, for what takes a part of a turn."""

    @property
    def config(self) -> BrokerConfig:
        """The settings that the process was started with."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last committed record that this process has read."""

    @property
    def partitions(self) -> Partitions:
        """The partitions with a log here, by `ids.partition_key`."""

    @property
    def groups(self) -> Groups:
        """The groups that this broker coordinates."""

    @property
    def transactions(self) -> Transactions:
        """The transactional ids that this broker coordinates."""

    @property
    def store(self) -> Store:
        """The store of the logs."""

    @property
    def log_directory(self) -> Directory:
        """The broker's directory."""

    @property
    def tiering(self) -> TierLookups:
        """What the remote store has of the logs, if there is a store."""

    def now_ms(self) -> int:
        """Wall-clock time of this turn."""

    def steady_ms(self) -> int:
        """The time of this turn, for what waits: milliseconds that never go back."""

    def on_storage_fault(self, partition: Partition, fault: StorageFault) -> None:
        """The disk refused something, or gave something damaged: log it."""

    def next_producer_id(self) -> int | None:
        """A producer id that nobody has; None while the controller has given none."""

    def append_marker(
        self, partition: Partition, marker: EndMarker, transaction_version: int
    ) -> tuple[int, int]:
        """End a transaction in a partition: (error code, end offset of the marker)."""

    def when_replicated(
        self, partition: Partition, end_offset: int, then: Callable[[int], None]
    ) -> None:
        """Tell 0 once the in-sync replicas have all below an offset, or the error code."""

    def when_deleted(
        self, partition: Partition, offset: int, timeout_ms: int, then: Callable[[int, int], None]
    ) -> None:
        """Tell 0 and the low watermark once no live replica begins before an offset, or the error
        code and the low watermark that is known."""

    def verify_transaction(
        self,
        partition: Partition,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        may_add: bool,
        on_answer: Callable[[int], None],
    ) -> None:
        """Ask the coordinator whether a partition is part of a transaction, or add it: `on_answer`
        is told the error code for the producer, once."""

    def wait_for_producer_ids(self, on_here: Callable[[], None], /) -> bool:
        """Call back when producer ids have come; False if there is nothing to wait for."""


class ControllerContext(Protocol):
    """The active controller, as the APIs see it that it answers.

    A module may end with NotControllerFault or a StorageFault out of a decision: who calls it gives
    the answer then.
    """

    @property
    def decisions(self) -> Decisions:
        """What decides; what it has decided is durable when it returns."""

    @property
    def brokers(self) -> ShownBrokers:
        """What shared memory shows of the brokers."""

    def now_ms(self) -> int:
        """Wall-clock time."""

    def decide(self, call: Call, body: dict[str, Any]) -> Answer:
        """Have a request decided as a whole; its answer, see `answer_when_applied`."""

    def decide_in_parts(self, call: Call, body: dict[str, Any]) -> Steps:
        """Have a request decided, in steps and part after part where it is about very many things;
        its answer, see `answer_when_applied`."""

    def create_used(self, call: Call, names: list[str]) -> Steps:
        """Have topics created, in steps, because somebody uses them; the answer names none."""

    def settle(self) -> None:
        """Decide who leads after unclean ends, once all is known."""

    def publish_committed(self) -> None:
        """Let everybody read what is decided: at once, where nobody's answer waits for it."""

    def answer_when_applied(self, call: Call, answer: dict[str, Any]) -> Answer:
        """The answer; None if there is something new: then it is published, and the call replied to
        when the brokers have applied it."""

    def park(self, call: Call, answer: dict[str, Any]) -> None:
        """Reply to a call when the brokers have applied all that is decided by now."""

    def say_full(self, line: str) -> None:
        """Log, once, that the disk of the metadata log is full."""
