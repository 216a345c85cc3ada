"""Requests that are answered from the image, while nobody can create what they ask for."""

import socket
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway.forwarding import PlainApis
from shmbroker.gateway.listener import Listener
from shmbroker.wire import codec, error_codes
from shmbroker.wire.frame import parse_response_header, request_frame

METADATA = 3
FIND_COORDINATOR = 10


class Connection:
    def __init__(self) -> None:
        self.inflight: deque[Any] = deque()
        self.host = "127.0.0.1"
        self.last_active = 0.0
        self.listener = Listener(socket.socket(), 1, False)


class Gateway:
    """A network worker whose controller is gone."""

    def __init__(self) -> None:
        self.token = 0
        self.link = SimpleNamespace(peer=lambda: None)
        self.touched: set[Any] = set()
        self.config = {"auto.create.topics.enable": True}
        self.image = SimpleNamespace(topics_by_name={}, topics_by_id={}, cluster_id="cluster")
        self.plain = PlainApis(self, {})

    def follow_metadata(self) -> None: ...

    def now(self) -> float:
        return 0.0

    def create_topics(self, request: Any, names: list[str]) -> None:
        self.plain.create_topics(request, names)

    def broker_rows(self, _connection: Any, *, with_gone: bool = False) -> list[dict[str, Any]]:
        return [{"node_id": 1, "host": "127.0.0.1", "port": 9092, "rack": None}]

    def controller_broker_id(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("api_key", "name", "version", "body"),
    [
        (METADATA, "Metadata", 4, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}),
        (FIND_COORDINATOR, "FindCoordinator", 2, {"key": "group", "key_type": 0}),
    ],
)
def test_topics_can_not_be_created_while_the_controller_is_down(
    api_key: int, name: str, version: int, body: dict[str, Any]
) -> None:
    gateway = Gateway()
    connection = Connection()
    frame = request_frame(
        api_key, version, 7, "test", codec.encode(name + "Request", version, body)
    )
    buffer = bytearray(frame)
    assert gateway.plain.submits[api_key](connection, buffer, 4, len(buffer), version, 7)
    (request,) = connection.inflight
    answer = b"".join(request.response)[4:]
    _, at = parse_response_header(api_key, version, answer)
    told = codec.decode_all(name + "Response", version, answer, at)
    if api_key == METADATA:
        (topic,) = told["topics"]
        assert topic["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    else:
        assert told["error_code"] == error_codes.COORDINATOR_NOT_AVAILABLE
