"""Turns of a gateway: from the client's socket to the broker's ring, and back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.gateway.gateway import RETRY_S
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_BATCH_AT,
    APPENDED,
    APPENDED_HEAD,
    DROP_FILE,
    EXECUTE,
    EXECUTED,
    EXECUTED_HEAD,
    NEED_FILE,
    READ,
    READ_DONE,
    READ_DONE_HEAD,
    READ_SLICE,
    TOKEN,
)
from shmbroker.ipc.passed_files import pass_file
from shmbroker.shm.counters import METADATA_APPLIED, OPEN_CONNECTIONS, STATE, STATE_STOPPING
from shmbroker.wire import codec
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.support.family_memory import BROKER_ID, TOPIC, TOPIC_ID
from tests.support.gateway_family import BROKER, GATEWAY, GatewayFamily, gateway_family
from tests.support.raw_client import batch_of

PRODUCE, FETCH, METADATA = (0, 9, "Produce"), (1, 11, "Fetch"), (3, 12, "Metadata")
LIST_GROUPS = 16, 4, "ListGroups"
FILE = 7
BATCH = batch_of(b"value")


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


def test_a_produce_frame_goes_to_the_ring_and_its_result_to_the_socket(
    family: GatewayFamily,
) -> None:
    ask_to_append(family)
    [(operation, payload)] = family.taken()
    assert (operation, payload[APPEND_BATCH_AT:]) == (APPEND, BATCH)
    token = TOKEN.unpack_from(payload)[0]
    assert list(family.gateway.pending) == [token]
    family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 42, -1, 3))
    assert family.gateway.has_news()
    assert family.quiet_turn() > RETRY_S  # nothing is left to do
    row = produced(family)
    assert (row["error_code"], row["base_offset"], row["log_start_offset"]) == (0, 42, 3)
    assert not family.gateway.pending and not family.gateway.has_news()


def test_metadata_is_answered_from_the_image(family: GatewayFamily) -> None:
    family.ask(*METADATA, {"topics": [{"topic_id": bytes(16), "name": TOPIC}]})
    answer = family.answer(*METADATA)
    assert [broker["node_id"] for broker in answer["brokers"]] == [BROKER_ID]
    assert answer["brokers"][0]["port"] == family.listening.getsockname()[1]
    [topic] = answer["topics"]
    assert (topic["topic_id"], topic["partitions"][0]["leader_id"]) == (TOPIC_ID, BROKER_ID)
    assert not family.taken()


def test_a_turn_applies_what_is_committed(family: GatewayFamily) -> None:
    family.link.commit(("TopicRecord", 0, {"name": "new", "topic_id": b"n" * 16}))
    family.quiet_turn()
    assert "new" in family.gateway.image.topics_by_name
    applied = family.words[family.counters.at(GATEWAY, METADATA_APPLIED)]
    assert applied == family.gateway.image.offset == 4


def test_much_that_is_committed_takes_a_step_in_each_turn(family: GatewayFamily) -> None:
    link = family.link
    link.steps_left = 3
    link.commit(("TopicRecord", 0, {"name": "new", "topic_id": b"n" * 16}))
    # Every request looks at the metadata, and all of them are served meanwhile.
    for steps_left in (2, 1, 0):
        family.ask(*METADATA, {"topics": [{"topic_id": bytes(16), "name": TOPIC}]})
        assert family.answer(*METADATA)["topics"][0]["error_code"] == 0
        assert link.steps_left == steps_left and family.gateway.has_news()
        assert "new" not in family.gateway.image.topics_by_name
    family.quiet_turn()
    assert "new" in family.gateway.image.topics_by_name


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_controllers_result_waits_for_the_image_that_it_was_made_with(
    family: GatewayFamily, is_controller: bool
) -> None:
    family.ask(*LIST_GROUPS, {"states_filter": []})
    [(operation, payload)] = family.taken()
    assert operation == EXECUTE
    if is_controller:
        family.files.pop(BROKER)  # what tells brokers apart
    family.link.steps_left = 1
    family.link.commit(("TopicRecord", 0, {"name": "new", "topic_id": b"n" * 16}))
    body = codec.encode("ListGroupsResponse", LIST_GROUPS[1], {"error_code": 15, "groups": []})
    token = TOKEN.unpack_from(payload)[0]
    family.reply(EXECUTED, EXECUTED_HEAD.pack(token, 0, 0) + body)
    family.quiet_turn()
    assert bool(family.gateway.pending) == is_controller
    family.quiet_turn()
    assert not family.gateway.pending and family.answer(*LIST_GROUPS)["error_code"] == 15


def test_a_broker_that_dies_fails_what_is_pending(family: GatewayFamily) -> None:
    ask_to_append(family)
    family.die()
    assert family.gateway.has_news()
    family.quiet_turn()
    assert produced(family)["error_code"] == NOT_LEADER_OR_FOLLOWER
    assert not family.gateway.pending
    acknowledged = family.words[family.counters.acknowledgement(GATEWAY, BROKER)]
    assert acknowledged == 2
    # The next is answered at once, and asks nobody.
    ask_to_append(family)
    assert produced(family)["error_code"] == NOT_LEADER_OR_FOLLOWER
    assert not family.taken()


def test_without_acks_a_broker_that_dies_ends_the_connection(family: GatewayFamily) -> None:
    ask_to_append(family, acks=0)
    assert family.gateway.pending
    family.die()
    family.quiet_turn()
    assert family.client.recv(1) == b""
    assert family.words[family.counters.at(GATEWAY, OPEN_CONNECTIONS)] == 0


def test_a_read_waits_for_its_descriptor(family: GatewayFamily, tmp_path: Path) -> None:
    token = ask_to_read(family)
    family.reply(READ_DONE, slice_of_file(token, len(BATCH)))
    assert family.quiet_turn() == RETRY_S
    assert set(family.taken()) == {(NEED_FILE, TOKEN.pack(FILE))}
    assert family.quiet_turn() == RETRY_S
    assert family.taken() == []  # it was asked for
    path = tmp_path / "segment"
    path.write_bytes(BATCH)
    with path.open("rb") as file:
        assert pass_file(family.passing, FILE, file.fileno())
    family.quiet_turn()
    family.quiet_turn()
    row = fetched(family)
    assert (row["error_code"], row["high_watermark"], row["records"]) == (0, 5, BATCH)


def test_a_read_of_a_file_that_is_deleted_meanwhile_is_answered(family: GatewayFamily) -> None:
    token = ask_to_read(family)
    family.reply(READ_DONE, slice_of_file(token, len(BATCH)))
    family.reply(DROP_FILE, TOKEN.pack(FILE + 1))
    assert family.quiet_turn() == RETRY_S  # that was another file
    family.reply(DROP_FILE, TOKEN.pack(FILE))
    assert family.quiet_turn() > RETRY_S
    assert fetched(family)["error_code"] == NOT_LEADER_OR_FOLLOWER
    assert not family.gateway.results.unread


def test_a_stop_waits_for_what_is_in_flight(family: GatewayFamily) -> None:
    ask_to_append(family)
    [(_, payload)] = family.taken()
    family.gateway.must_stop = True
    assert family.quiet_turn() == RETRY_S
    assert family.words[family.counters.at(GATEWAY, STATE)] == STATE_STOPPING
    assert not family.gateway.is_over
    token = TOKEN.unpack_from(payload)[0]
    family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 1, -1, 0))
    family.quiet_turn()
    assert family.gateway.is_over
    assert produced(family)["base_offset"] == 1
