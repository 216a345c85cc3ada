"""A network worker of one topic, as `FetchApi` asks it, with a broker that only takes READs."""

from collections import deque
from types import SimpleNamespace
from typing import Any

from shmbroker.gateway.fetch import FetchApi
from shmbroker.ipc.operation_layout import READ
from shmbroker.wire.frame import request_frame

TOPIC_ID = bytes(range(16))


class FetchPeer:
    """The broker."""

    incarnation = 1
    slot = 4

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_room = True

    def send(self, operation: int, payload: bytes) -> None:
        assert operation == READ
        self.sent.append(payload)

    def try_send(self, operation: int, payload: bytes) -> bool:
        if self.has_room:
            self.send(operation, payload)
        return self.has_room


class FetchConnection(SimpleNamespace):
    """A connection; each is only itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


class FetchGateway:
    """The network worker, and a connection of it."""

    def __init__(self, partitions: int) -> None:
        self.config = {"max.incremental.fetch.session.cache.slots": 10}
        self.token = 0
        self.files: dict[int, Any] = {FetchPeer.slot: None}
        self.ahead_ends = {FetchPeer.slot: [0]}
        self.guard = None
        self.fetch_bytes_max = 1 << 20
        self.pending: dict[int, Any] = {}
        self.peer = FetchPeer()
        self.partitions = partitions
        self.make_image()
        self.api = FetchApi(self)  # type: ignore[arg-type]
        self.connection: Any = FetchConnection(
            inflight=deque(),
            listener=SimpleNamespace(broker_id=1),
            scope=1,
            last_active=0.0,
            is_closed=False,
            throttle=None,
            session=None,
            ahead=None,
        )

    def make_image(self, topic_id: bytes = TOPIC_ID) -> None:
        topic = SimpleNamespace(name="t", topic_id=topic_id, partitions=[0] * self.partitions)
        self.image = SimpleNamespace(
            topics_by_name={"t": topic}, topics_by_id={topic_id: topic}, security=None
        )

    def topic_of(self, topic: dict[str, Any], by_id: bool) -> Any:
        if by_id:
            return self.image.topics_by_id.get(topic["topic_id"])
        return self.image.topics_by_name.get(topic.get("name", topic.get("topic")))

    def io_peer(self, _: Any) -> FetchPeer:
        return self.peer

    def now(self) -> float:
        return 0.0

    def leader_hint(self, *_: Any) -> None:
        return None

    def submit(self, version: int, body: bytes, client_id: str = "c") -> bool:
        """Start a Fetch; its frame lies between other bytes."""
        frame = bytearray(b"before" + request_frame(1, version, 77, client_id, body) + b"behind")
        return self.api.submit(self.connection, frame, 10, len(frame) - 6, version, 77)
