"""What a gateway is given: the other gateways of the family, and the brokers that it reaches. And
what it gives: itself, to those that start operations and complete requests."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shmbroker.apis.contexts import GatewayContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.apis.contexts import ControllerLink
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.inflight import Request
    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import TopicImage
    from shmbroker.shm.address_counts import AddressCounts
    from shmbroker.shm.doorbell import Doorbell
    from shmbroker.shm.quota_counts import QuotaCounts

    Submit = Callable[[Connection, bytearray, int, int, int, int], bool]
    """Start the request whose frame without its size is in buffer[start:end]: (connection, buffer,
    start, end, api version, correlation id). False if it can't be started now: then nothing was
    done."""


class Siblings(NamedTuple):
    """The gateways of the family: which of them this one is, and the others."""

    place: int
    """The place of this one, from 0."""
    doorbells: Mapping[int, Doorbell]
    """The doorbells of the other gateways, by slot."""
    address_counts: AddressCounts
    quota_counts: QuotaCounts
    guests: int = 0
    """How many gateways there are besides, with guests (`gateway.guests`). `place` of one of those
    is behind all others."""


class Brokers(NamedTuple):
    """The I/O workers, as a gateway reaches them."""

    peers: Mapping[int, Peer]
    """The rings to them, by broker id."""
    files: Mapping[int, FileTable]
    """Descriptors that they have passed, by their slot."""
    standing: Mapping[int, memoryview]
    """The words of their standing answers, by their slot."""
    ahead_ends: Mapping[int, memoryview]
    """One word each, AHEAD_ENDS of their slot, by that. Who is not here is not asked ahead."""


class Submits(Protocol):
    """How requests are started, by API key: a dict, or something that looks closer."""

    def get(self, api_key: int, /) -> Submit | None:
        """None where this API is not served."""


class RequestContext(GatewayContext, Protocol):
    """A network worker, as those see it that start operations and complete requests."""

    token: int
    """The last token that was given to an operation."""
    append_bytes: int
    """What the last request with appends has brought: as many as take so long."""
    pending: dict[int, Request]
    """Requests that wait for a result, by the token of the operation."""
    touched: set[Connection]
    """Connections with an answer that is complete and not yet sent."""

    @property
    def fetch_bytes_max(self) -> int:
        """Bytes of records in one answer (`fetch.max.bytes`)."""

    @property
    def files(self) -> Mapping[int, FileTable]:
        """Descriptors that I/O workers have passed, by their slot."""

    @property
    def ahead_ends(self) -> Mapping[int, memoryview]:
        """One word of each I/O worker, by its slot: AHEAD_ENDS."""

    @property
    def io_peers(self) -> Mapping[int, Peer]:
        """The I/O workers, by broker id."""

    @property
    def fenced(self) -> AbstractSet[int]:
        """Ids of brokers that run, but hang or stop."""

    @property
    def link(self) -> ControllerLink:
        """The way to the active controller."""

    def now(self) -> float:
        """Monotonic seconds, as of this turn."""

    def follow_metadata(self) -> None:
        """Bring `image` up to what is committed."""

    def io_peer(self, connection: Connection) -> Peer | None:
        """The I/O worker of the connection's port, None while it is down."""

    def topic_of(self, topic: Mapping[str, Any], by_id: bool) -> TopicImage | None:
        """The image of a topic that a request names or gives the id of."""

    def leader_hint(self, name: str, topic_id: bytes, index: int) -> tuple[int, int] | None:
        """Leader and leader epoch of a partition, for the CurrentLeader tag (KIP-951)."""

    def node_endpoints(
        self, connection: Connection, leaders: set[int]
    ) -> list[tuple[int, str, int, str | None]]:
        """(id, host, port, rack) of those of the leaders that are alive."""

    def add_leader_hints(
        self,
        connection: Connection,
        topics: list[dict[str, Any]],
        rows: str,
        index: str,
        body: dict[str, Any],
    ) -> None:
        """Add CurrentLeader and NodeEndpoints where an answer says NOT_LEADER_OR_FOLLOWER."""

    def flush(self, connection: Connection) -> None:
        """Send the answers that are complete."""

    def close_connection(self, connection: Connection, reason: str) -> None:
        """End a connection for a fault of its client."""
