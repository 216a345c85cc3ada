"""Turns of a gateway: from the client's socket to the broker's ring, and back."""

import socket
from pathlib import Path

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.gateway import RETRY_S
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_BATCH_AT,
    APPENDED,
    APPENDED_HEAD,
    DROP_FILE,
    EXECUTE,
    EXECUTE_HEAD,
    EXECUTED,
    EXECUTED_HEAD,
    EXECUTED_PART,
    NEED_FILE,
    READ_DONE,
    TOKEN,
    unpack_identity,
)
from shmbroker.ipc.passed_files import pass_file
from shmbroker.security.identity import Identity
from shmbroker.shm.counters import METADATA_APPLIED, OPEN_CONNECTIONS, STATE, STATE_STOPPING
from shmbroker.shm.ring import RingReader
from shmbroker.wire import codec
from shmbroker.wire.api_keys import LIST_SEGMENTS
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.support.family_memory import BROKER_EPOCH, BROKER_ID, TOPIC, TOPIC_ID, FarEnd
from tests.support.gateway_family import BROKER, GATEWAY, GatewayFamily, gateway_family
from tests.unit.gateway.gateway_asks import (
    BATCH,
    FILE,
    LIST_GROUPS,
    METADATA,
    METADATA_REQUEST,
    ask_to_append,
    ask_to_read,
    family,
    fetched,
    produced,
    slice_of_file,
)
from tests.unit.gateway.test_gateway_counts import counted

__all__ = ["family"]


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


def test_what_is_forwarded_says_who_asks_beside_what_the_client_wrote(
    family: GatewayFamily,
) -> None:
    [connection] = family.gateway.loop.connections.values()
    connection.principal, connection.is_by_token = "User:müller", True
    family.ask(*LIST_GROUPS, {"states_filter": []})
    [(operation, payload)] = family.taken()
    assert operation == EXECUTE
    *_, client_bytes, _, identity_bytes = EXECUTE_HEAD.unpack_from(payload)
    at = EXECUTE_HEAD.size + client_bytes
    identity = unpack_identity(payload[at : at + identity_bytes])
    assert identity == Identity("User:müller", "127.0.0.1", "PLAINTEXT", True)
    codec.decode_request("ListGroups", 4, payload, at + identity_bytes)


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


@pytest.mark.parametrize(("version", "is_passed_on"), [(0, True), (1, False)])
def test_another_user_lists_files_but_stops_no_broker(
    family: GatewayFamily, version: int, is_passed_on: bool
) -> None:
    (connection,) = family.gateway.loop.connections.values()
    connection.listener.is_control = True
    connection.submits = family.gateway.tables.of_readers
    body = {"broker_id": 1, "hold_ms": 0, "topics": []} | ({"stop_ms": 100} if version else {})
    family.ask(LIST_SEGMENTS, version, "ListSegments", body)
    assert [operation for operation, _ in family.taken()] == [EXECUTE] * is_passed_on
    assert bool(family.gateway.loop.connections) == is_passed_on


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


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_a_client_whose_broker_hangs_or_dies_is_at_no_fault(
    family: GatewayFamily, is_asked_before: bool
) -> None:
    if not is_asked_before:
        record = {"broker_id": BROKER_ID, "broker_epoch": BROKER_EPOCH, "fenced": 1}
        family.link.commit(("BrokerRegistrationChangeRecord", 0, record))
    family.ask(*LIST_GROUPS, {"states_filter": []})
    if is_asked_before:
        family.die()
        family.quiet_turn()
    assert family.client.recv(1) == b""
    assert not family.gateway.loop.connections
    assert counted(family, "protocol_faults") == 0
    assert counted(family, "connections_closed") == 1


def test_a_request_that_waited_may_find_that_the_broker_of_others_hangs(
    family: GatewayFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts when the answers before it are sent, and sees then what was just decided."""
    first, second = family.client, socket.create_connection(family.listening.getsockname())
    family.turn()
    family.ask(*LIST_GROUPS, {"states_filter": []})
    [(_, payload)] = family.taken()
    first.sendall(METADATA_REQUEST)
    family.turn()
    second.settimeout(10)
    family.client = second
    ask_to_append(family)
    release = RingReader.release

    def decide(reader: RingReader) -> None:
        release(reader)
        monkeypatch.undo()
        record = {"broker_id": BROKER_ID, "broker_epoch": BROKER_EPOCH, "fenced": 1}
        family.link.commit(("BrokerRegistrationChangeRecord", 0, record))

    monkeypatch.setattr(RingReader, "release", decide)
    body = codec.encode("ListGroupsResponse", LIST_GROUPS[1], {"error_code": 0, "groups": []})
    token = TOKEN.unpack_from(payload)[0]
    family.reply(EXECUTED, EXECUTED_HEAD.pack(token, 0, 0) + body)
    family.quiet_turn()
    assert produced(family)["error_code"] == NOT_LEADER_OR_FOLLOWER
    family.client = first
    assert family.answer(*LIST_GROUPS)["groups"] == []
    assert family.answer(*METADATA)["topics"] == []
    second.close()


def test_pieces_of_an_answer_are_put_together_though_another_process_dies(
    family: GatewayFamily,
) -> None:
    family.ask(*LIST_GROUPS, {"states_filter": []})
    [(_, payload)] = family.taken()
    token = TOKEN.unpack_from(payload)[0]
    groups = [{"group_id": "g", "protocol_type": "consumer", "group_state": "Stable"}]
    body = codec.encode("ListGroupsResponse", LIST_GROUPS[1], {"error_code": 0, "groups": groups})
    other = FarEnd(BROKER + 1, "controller", 1, family.doorbells[BROKER])
    family.reply(EXECUTED_PART, EXECUTED_HEAD.pack(token, 0, 0) + body[:8])
    family.quiet_turn()
    family.gateway.on_peer_lost(other.peer)
    family.reply(EXECUTED, EXECUTED_HEAD.pack(token, 0, 0) + body[8:])
    family.quiet_turn()
    assert [group["group_id"] for group in family.answer(*LIST_GROUPS)["groups"]] == ["g"]


def test_pieces_of_a_broker_that_dies_are_dropped(family: GatewayFamily) -> None:
    family.reply(EXECUTED_PART, EXECUTED_HEAD.pack(7, 0, 0) + b"piece")
    family.quiet_turn()
    assert len(family.gateway.results.partial) == 1
    family.die()
    family.quiet_turn()
    assert not family.gateway.results.partial


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


def test_a_descriptor_that_came_and_went_is_asked_for_at_once(
    family: GatewayFamily, tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(BATCH)
    for _ in range(3):
        token = ask_to_read(family)
        family.reply(READ_DONE, slice_of_file(token, len(BATCH)))
        family.quiet_turn()
        assert set(family.taken()) == {(NEED_FILE, TOKEN.pack(FILE))}
        with path.open("rb") as file:
            assert pass_file(family.passing, FILE, file.fileno())
        family.quiet_turn()
        assert fetched(family)["records"] == BATCH
        family.gateway.files[BROKER].drop(FILE)  # as where there are more files than are kept


def test_a_read_of_a_file_that_is_deleted_meanwhile_is_answered(family: GatewayFamily) -> None:
    token = ask_to_read(family)
    family.reply(READ_DONE, slice_of_file(token, len(BATCH)))
    family.reply(DROP_FILE, TOKEN.pack(FILE + 1))
    assert family.quiet_turn() == RETRY_S  # that was another file
    family.reply(DROP_FILE, TOKEN.pack(FILE))
    assert family.quiet_turn() > RETRY_S
    assert fetched(family)["error_code"] == NOT_LEADER_OR_FOLLOWER
    assert not family.gateway.results.waiting_reads


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


def connect(family: GatewayFamily) -> socket.socket:
    client = socket.create_connection(family.listening.getsockname())
    client.settimeout(10)
    return client


def is_closed(family: GatewayFamily, client: socket.socket) -> bool:
    family.turn()
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_listener_takes_as_many_connections_as_it_may() -> None:
    setting = "listener.name.plaintext.max.connections"
    with gateway_family(f"{setting}=2") as family, connect(family) as second:
        assert not is_closed(family, second)
        with connect(family) as third:
            assert is_closed(family, third)
        change = {"resource_type": 4, "resource_name": "", "name": setting, "value": "3"}
        family.link.commit(("ConfigRecord", 0, change))
        family.quiet_turn()
        with connect(family) as third:
            assert not is_closed(family, third)


def test_new_connections_come_as_fast_as_they_may() -> None:
    with gateway_family("max.connection.creation.rate=2") as family:
        gateway = family.gateway
        clients = [connect(family) for _ in range(3)]
        family.turn()
        assert len(gateway.loop.connections) == 2, "the first client was one of this second"
        assert family.poller.poll(0) == [] and gateway.loop.acceptor.resting
        assert 0 < family.quiet_turn() <= 0.5
        family.clock.now += 0.5
        family.quiet_turn()
        family.turn()
        assert len(gateway.loop.connections) == 3
        for client in clients:
            client.close()


class ShutDoor:
    """Lets nobody in."""

    def open(self, connection: Connection) -> None:
        connection.submits = {}


def test_who_is_not_admitted_in_time_is_closed() -> None:
    setting = "listener.name.plaintext.shmbroker.authentication.timeout.ms=5000"
    with gateway_family(setting) as family:
        [listener] = family.gateway.loop.acceptor.listeners.values()
        listener.door = ShutDoor()
        late, admitted = connect(family), connect(family)
        family.turn()
        connections = list(family.gateway.loop.connections.values())
        family.gateway.clients.admit(connections[-1], "User:alice")
        family.clock.now += 4.9
        family.quiet_turn()
        assert all(not each.is_closed for each in connections)
        family.clock.now += 1.1
        family.quiet_turn()
        assert [each.is_closed for each in connections] == [False, True, False]
        late.close()
        admitted.close()


@pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1])
def test_nobody_is_sent_to_the_leader_of_a_partition_that_there_is_not(
    family: GatewayFamily, partition: int
) -> None:
    hint = family.gateway.leader_hint
    assert hint(TOPIC, TOPIC_ID, 0) is not None
    assert hint(TOPIC, TOPIC_ID, partition) is None
    assert hint("other", bytes(16), 0) is None
