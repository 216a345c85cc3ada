"""The few requests that the client library has no call for, over a connection of their own.

OffsetDelete, the settings of all brokers together (an empty resource name), the quorum of
controllers, log directories, the brokers that are registered but fenced, and whether a topic
exists, where the library is not installed. One request, one
answer, no TLS, no SASL; versions that every Kafka since 2.4 knows (of the quorum and the log
directories: 3.3; of fenced brokers: 4.0).

Rules: an answer is waited for at most `ANSWER_S`; a cluster that doesn't give one is a ClientFault.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shmbroker import clock
from shmbroker.errors import Fault, ProtocolFault
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.wire import codec, error_codes, frame
from shmbroker.wire.api_keys import (
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_DELETE,
    name_of,
)

VERSIONS = {
    METADATA: 4,
    FIND_COORDINATOR: 2,
    DESCRIBE_CONFIGS: 1,
    DESCRIBE_QUORUM: 1,
    DESCRIBE_LOG_DIRS: 4,
    DESCRIBE_CLUSTER: 0,
    INCREMENTAL_ALTER_CONFIGS: 0,
    OFFSET_DELETE: 0,
}
CLIENT_ID = "shmbroker-cli"
ANSWER_S = 10.0
FRAME_BYTES_MAX = 64 << 20

_BROKER = 4
"""Resource type."""
_GROUP = 0
"""Key type of FindCoordinator."""
_BROKERS = 1
"""Endpoint type of DescribeCluster."""
_SET = 0
_DELETE = 1

Address = tuple[str, int]


class ClientFault(Fault):
    """A cluster gave no answer, or refused."""


class Refused(ClientFault):
    """A cluster answered with an error."""


def ask(
    addresses: Sequence[Address], api_key: int, body: Mapping[str, Any], version: int | None = None
) -> dict[str, Any]:
    """The answer of the first of these that can be reached; ClientFault if there is none."""
    version = VERSIONS[api_key] if version is None else version
    reason: Exception | None = None
    for address in addresses:
        try:
            return _ask(address, api_key, version, dict(body))
        except (OSError, ProtocolFault) as error:
            reason = error
    host, port = addresses[0]
    raise ClientFault(f"{host}:{port} gives no answer to {name_of(api_key)}: {reason}")


def _ask(address: Address, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
    name = name_of(api_key)
    with socket.create_connection(address, ANSWER_S) as connected:
        connected.sendall(
            frame.request_frame(
                api_key, version, 1, CLIENT_ID, codec.encode(f"{name}Request", version, body)
            )
        )
        size = frame.frame_size(_receive(connected, 4), 0, FRAME_BYTES_MAX)
        content = _receive(connected, size)
    _, position = frame.parse_response_header(api_key, version, content)
    return codec.decode_all(f"{name}Response", version, content, position)


def _receive(connected: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connected.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("it closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def delete_offsets(
    addresses: Sequence[Address], group: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Forget committed offsets: {(topic, partition): error}; ClientFault if all is refused."""
    found = ask(addresses, FIND_COORDINATOR, {"key": group, "key_type": _GROUP})
    _refuse(found["error_code"], f"coordinator of group {group}")
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append({"partition_index": partition})
    body = {
        "group_id": group,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
    answer = ask([(found["host"], found["port"])], OFFSET_DELETE, body)
    _refuse(answer["error_code"], f"group {group}")
    return {
        (topic["name"], row["partition_index"]): row["error_code"]
        for topic in answer["topics"]
        for row in topic["partitions"]
    }


def default_broker_configs(addresses: Sequence[Address]) -> dict[str, str | None]:
    """The dynamic settings of all brokers together: {name: text, None where it is secret}."""
    resource = {"resource_type": _BROKER, "resource_name": "", "configuration_keys": None}
    (result,) = ask(addresses, DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
    _refuse(result["error_code"], "settings of all brokers", result["error_message"])
    return {row["name"]: row["value"] for row in result["configs"]}


def alter_default_broker_configs(
    addresses: Sequence[Address], values: Mapping[str, str], deleted: Iterable[str]
) -> None:
    """Change them; ClientFault, in the cluster's words, if it refuses."""
    configs: list[dict[str, Any]] = [
        {"name": name, "config_operation": _SET, "value": value} for name, value in values.items()
    ]
    configs += [{"name": name, "config_operation": _DELETE, "value": None} for name in deleted]
    resource = {"resource_type": _BROKER, "resource_name": "", "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    (result,) = ask(addresses, INCREMENTAL_ALTER_CONFIGS, body)["responses"]
    _refuse(result["error_code"], "settings of all brokers", result["error_message"])


def describe_quorum(addresses: Sequence[Address]) -> tuple[str, dict[str, Any]]:
    """Cluster id, and the metadata log's partition of a DescribeQuorum answer.

    Where the active controller changes just now, it is asked for again for some seconds.
    """
    cluster = ask(addresses, DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
    _refuse(cluster["error_code"], "the cluster", cluster["error_message"])
    partition = {"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}
    deadline = clock.monotonic() + ANSWER_S
    while True:
        answer = ask(addresses, DESCRIBE_QUORUM, {"topics": [partition]})
        rows = [row for topic in answer["topics"] for row in topic["partitions"]]
        error = answer["error_code"] or rows[0]["error_code"]
        if not error:
            return cluster["cluster_id"], rows[0]
        if clock.monotonic() > deadline or not error_codes.is_retriable(error):
            _refuse(error, "the controllers")
        clock.sleep(0.1)


def has_topic(addresses: Sequence[Address], name: str) -> bool:
    """Whether there is such a topic; the question does not create it."""
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    (topic,) = ask(addresses, METADATA, body)["topics"]
    if topic["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    _refuse(topic["error_code"], f"topic {name}")
    return True


def log_dirs(address: Address, topics: Mapping[str, Iterable[int]] | None) -> list[dict[str, Any]]:
    """What a broker's log directories hold, as DescribeLogDirs has it; None: of all topics."""
    wanted = None
    if topics is not None:
        wanted = [{"topic": name, "partitions": list(rows)} for name, rows in topics.items()]
    answer = ask([address], DESCRIBE_LOG_DIRS, {"topics": wanted})
    _refuse(answer["error_code"], "log directories")
    return list(answer["results"])


def fenced_brokers(addresses: Sequence[Address]) -> list[int]:
    """Ids of brokers that are registered but fenced: not in touch with the controller."""
    body = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": _BROKERS,
        "include_fenced_brokers": True,
    }
    answer = ask(addresses, DESCRIBE_CLUSTER, body, version=2)
    _refuse(answer["error_code"], "the cluster", answer["error_message"])
    return [row["broker_id"] for row in answer["brokers"] if row["is_fenced"]]


def _refuse(error: int, about: str, message: str | None = None) -> None:
    if error:
        raise Refused(f"{about}: {message or error_codes.message_of(error)}")
