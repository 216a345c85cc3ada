"""A gateway that is asked by a client and answered by its broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.ipc.operation_layout import (
    APPEND,
    APPENDED,
    APPENDED_HEAD,
    READ,
    READ_DONE_HEAD,
    READ_SLICE,
    TOKEN,
)
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GatewayFamily, gateway_family
from tests.support.raw_client import batch_of

PRODUCE, FETCH, METADATA = (0, 9, "Produce"), (1, 11, "Fetch"), (3, 12, "Metadata")
LIST_GROUPS = 16, 4, "ListGroups"
FILE = 7
BATCH = batch_of(b"value")
METADATA_REQUEST = request_frame(
    3,
    12,
    7,
    "client",
    codec.encode("MetadataRequest", 12, {"topics": [], "allow_auto_topic_creation": False}),
)


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    with gateway_family() as made:
        yield made


def ask_to_append(family: GatewayFamily, acks: int = 1) -> None:
    row = {"index": 0, "records": BATCH}
    topics = [{"name": TOPIC, "partition_data": [row]}]
    family.ask(*PRODUCE, {"acks": acks, "timeout_ms": 1000, "topic_data": topics})


def ask_to_read(family: GatewayFamily) -> int:
    """Fetch; the token of its READ."""
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": TOPIC, "partitions": [row]}]
    waits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 5000, "session_epoch": -1}
    family.ask(*FETCH, {"replica_id": -1, "topics": topics} | waits)
    [(operation, payload)] = family.taken()
    assert operation == READ
    return int(TOKEN.unpack_from(payload)[0])


def slice_of_file(token: int, length: int) -> bytes:
    """A READ_DONE whose bytes are the first of FILE."""
    slice_ = READ_SLICE.pack(0, 0, length, 5, 5, 0, FILE, 0, -1, 0, -1)
    return READ_DONE_HEAD.pack(token, 1, 0) + slice_


def produced(family: GatewayFamily) -> dict[str, Any]:
    [topic] = family.answer(*PRODUCE)["responses"]
    [row] = topic["partition_responses"]
    return dict(row)


def fetched(family: GatewayFamily) -> dict[str, Any]:
    [topic] = family.answer(*FETCH)["responses"]
    [row] = topic["partitions"]
    return dict(row)


def appended(family: GatewayFamily, error: int = 0) -> None:
    """The broker answers the appends that it was sent."""
    for operation, payload in family.taken():
        assert operation == APPEND
        token = int(TOKEN.unpack_from(payload)[0])
        family.broker.send(APPENDED, APPENDED_HEAD.pack(token, error, 0, 0, 0, -1, 0))
    family.quiet_turn()
