"""What a producer asks of a cluster and waits for: metadata, producer ids, and what else it needs.

Any broker answers for all: one connection to the first that can be reached, of those that were
given and, later, of those that the cluster named. An answer is waited for at most `timeout_s`; what
fails is tried with the next one. Requests to one broker of choice go through `ask_broker`.

Only PLAINTEXT listeners. The versions asked for are known to every Kafka since 2.8.
"""

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from shmbroker import clock, tcp
from shmbroker.errors import ConfigFault, ProtocolFault
from shmbroker.producer.faults import ClusterFault
from shmbroker.wire import codec, error_codes, frame
from shmbroker.wire.api_keys import (
    DESCRIBE_PRODUCERS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    name_of,
)

VERSIONS = {
    METADATA: 9,
    INIT_PRODUCER_ID: 4,
    DESCRIBE_PRODUCERS: 0,
    LIST_OFFSETS: 7,
    FETCH: 12,
}
RETRY_S = 0.1
CONNECT_S = 5.0
FRAME_BYTES_MAX = 256 << 20
UNKNOWN_TOPIC_S = 10.0
"""How long a topic may be unknown: it may be under way, made by somebody or by our asking."""


_Found = TypeVar("_Found")


class Topic(NamedTuple):
    """`leaders[i]`: the broker that leads partition i, -1: none just now."""

    leaders: list[int]


class Cluster:
    """The brokers behind `bootstrap_servers` ("host:port,host:port"); for any thread."""

    def __init__(self, bootstrap_servers: str, client_id: str, timeout_s: float) -> None:
        if not isinstance(bootstrap_servers, str):
            raise ConfigFault(f"bootstrap_servers is text, HOST:PORT,…, not {bootstrap_servers!r}")
        self._bootstrap = [
            address_of(text) for text in bootstrap_servers.split(",") if text.strip()
        ]
        if not self._bootstrap:
            raise ConfigFault("bootstrap_servers names no broker: give HOST:PORT")
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.brokers: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, Topic] = {}
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._to_brokers: dict[int, _Connection] = {}

    def close(self) -> None:
        """Close all connections; the next question opens them again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for connection in (self._connection, *self._to_brokers.values()):
            if connection is not None:
                connection.socket.close()
        self._connection = None
        self._to_brokers.clear()

    def refresh(self, names: Iterable[str]) -> None:
        """Look these topics up; OSError if no broker answers now. Topics with an error stay as
        they were, but for their partitions without a leader."""
        with self._lock:
            self._refresh(sorted(names))

    def topic(self, name: str, wait_s: float) -> Topic:
        """A topic, waited for at most `wait_s`; ClusterFault if it is not there."""
        known = self.topics.get(name)
        if known is not None:
            return known
        unknown_until = clock.monotonic() + UNKNOWN_TOPIC_S

        def ask() -> tuple[int, Topic | None]:
            code = self._refresh([name])[name]
            is_unknown = code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown and clock.monotonic() > unknown_until:
                raise _refusal(f"topic {name}", code)
            return code, self.topics.get(name)

        return self._asked_until_there(f"topic {name}", wait_s, ask)

    def new_producer_id(self, wait_s: float) -> tuple[int, int]:
        """(producer id, epoch) of its own for an idempotent producer."""
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000}

        def ask() -> tuple[int, tuple[int, int]]:
            answer = self._ask_any(INIT_PRODUCER_ID, body)
            return answer["error_code"], (answer["producer_id"], answer["producer_epoch"])

        return self._asked_until_there("a producer id", wait_s, ask)

    def _asked_until_there(
        self, what: str, wait_s: float, ask: Callable[[], tuple[int, _Found | None]]
    ) -> _Found:
        """What `ask` gives beside its error code 0, tried again for `wait_s` while it may come."""
        until = clock.monotonic() + wait_s
        while True:
            try:
                with self._lock:
                    code, found = ask()
                if not code and found is not None:
                    return found
                if not error_codes.is_retriable(code):
                    raise _refusal(what, code)
                told = f"{what} was not there within {wait_s:.0f} s: {error_codes.name_of(code)}"
            except NoBrokerFault as fault:
                told = f"{fault.text} within {wait_s:g} s: {fault.reason}"
            except (OSError, ProtocolFault) as fault:
                told = f"{what} was not there within {wait_s:.0f} s: {fault}"
            if clock.monotonic() > until:
                raise ClusterFault(told)
            clock.sleep(RETRY_S)

    def ask_broker(self, broker_id: int, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        """One broker's answer; OSError or ProtocolFault if it gives none."""
        with self._lock:
            connection = self._to_brokers.get(broker_id)
            if connection is None:
                if broker_id not in self.brokers:
                    raise ConnectionError(f"broker {broker_id} is not there")
                connection = self._connect(self.brokers[broker_id])
                self._to_brokers[broker_id] = connection
            try:
                return connection.ask(api_key, body)
            except (OSError, ProtocolFault):
                connection.socket.close()
                del self._to_brokers[broker_id]
                raise

    def _refresh(self, names: list[str]) -> dict[str, int]:
        body = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True}
        answer = self._ask_any(METADATA, body)
        self.brokers = {b["node_id"]: (b["host"], b["port"]) for b in answer["brokers"]}
        errors = dict.fromkeys(names, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        for topic in answer["topics"]:
            errors[topic["name"]] = topic["error_code"]
            if topic["error_code"] or not topic["partitions"]:
                continue
            leaders = [-1] * len(topic["partitions"])
            for partition in topic["partitions"]:
                index = partition["partition_index"]
                if not 0 <= index < len(leaders):
                    raise ProtocolFault(f"{topic['name']} has no partition {index} in Metadata")
                leaders[index] = partition["leader_id"]
            self.topics[topic["name"]] = Topic(leaders)
        return errors

    def _ask_any(self, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        if self._connection is not None:
            try:
                return self._connection.ask(api_key, body)
            except (OSError, ProtocolFault):
                self._connection.socket.close()
                self._connection = None
        reason: Exception | None = None
        for address in dict.fromkeys([*self._bootstrap, *self.brokers.values()]):
            try:
                connection = self._connect(address)
                try:
                    answer = connection.ask(api_key, body)
                except (OSError, ProtocolFault):
                    connection.socket.close()
                    raise
            except (OSError, ProtocolFault) as error:
                reason = error
                continue
            self._connection = connection
            return answer
        raise NoBrokerFault(self._bootstrap, reason)

    def _connect(self, address: tuple[str, int]) -> "_Connection":
        return _Connection(address, self.client_id, self.timeout_s)


class NoBrokerFault(ConnectionError):
    """None of the bootstrap servers, nor of the brokers that they have named, answers."""

    def __init__(self, bootstrap: list[tuple[str, int]], reason: Exception | None) -> None:
        self.text = (
            f"No broker at {','.join(f'{host}:{port}' for host, port in bootstrap)} answered"
        )
        self.reason = reason
        super().__init__(f"{self.text}: {reason}")


class _Connection:
    """One socket; one request at a time."""

    __slots__ = ("_client_id", "_correlation_id", "_name", "socket")

    def __init__(self, address: tuple[str, int], client_id: str, timeout_s: float) -> None:
        self.socket = socket.create_connection(address, min(timeout_s, CONNECT_S))
        self.socket.settimeout(timeout_s)
        tcp.tune(self.socket)
        self._name = f"{address[0]}:{address[1]}"
        self._client_id = client_id
        self._correlation_id = 0

    def ask(self, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        version, name = VERSIONS[api_key], name_of(api_key)
        self._correlation_id += 1
        encoded = codec.encode(f"{name}Request", version, body)
        self.socket.sendall(
            frame.request_frame(api_key, version, self._correlation_id, self._client_id, encoded)
        )
        size = frame.frame_size(self._receive(4), 0, FRAME_BYTES_MAX)
        content = self._receive(size)
        correlation_id, position = frame.parse_response_header(api_key, version, content)
        if correlation_id != self._correlation_id:
            raise ProtocolFault(f"{self._name} answers request {correlation_id} out of order")
        return codec.decode_all(f"{name}Response", version, content, position)

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self.socket.recv(min(size - len(content), 1 << 20))
            if not part:
                raise ConnectionError(f"{self._name} closed the connection")
            content += part
        return bytes(content)


def _refusal(what: str, code: int) -> ClusterFault:
    return ClusterFault(f"{what}: {error_codes.name_of(code)} ({error_codes.message_of(code)})")


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of "HOST:PORT"; ConfigFault if it is none."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigFault(f"bootstrap_servers: {text.strip()!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
