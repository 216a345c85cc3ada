"""Quotas in a gateway: what is counted, what is told, who is muted, and for how long."""

import select
import socket
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_HEAD,
    APPENDED,
    APPENDED_HEAD,
    READ,
    READ_DONE,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_SLICE,
)
from shmbroker.metadata.quota_image import quota_record
from shmbroker.wire import codec
from shmbroker.wire.api_keys import CREATE_TOPICS
from shmbroker.wire.frame import request_frame
from tests.support.family_memory import TOPIC
from tests.support.gateway_family import GatewayFamily, gateway_family
from tests.support.record_batches import batch

PRODUCE, FETCH, METADATA = 0, 1, 3
ROWS = [(0, 1000, None, b"v" * 900, ())]
RECORDS = batch(0, ROWS)
EVERYBODY = (("user", None),)


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    with gateway_family() as made:
        yield made


def limit(family: GatewayFamily, key: str, value: float | None, *entity: tuple[str, Any]) -> None:
    family.link.commit(quota_record(entity or EVERYBODY, key, value))
    family.quiet_turn()


def produce_body(acks: int = 1) -> dict[str, Any]:
    rows = [{"index": 0, "records": RECORDS}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 1000,
        "topic_data": [{"name": TOPIC, "partition_data": rows}],
    }


def append_all(family: GatewayFamily) -> int:
    """A broker that appends what comes to it: how many batches."""
    batches = [payload for operation, payload in family.taken() if operation == APPEND]
    for payload in batches:
        token = APPEND_HEAD.unpack_from(payload)[0]
        family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 0, -1, 0))
    family.quiet_turn()
    return len(batches)


def throttle_of_produce(family: GatewayFamily, version: int = 9) -> int:
    family.ask(PRODUCE, version, "Produce", produce_body())
    assert append_all(family) == 1
    answer = family.answer(PRODUCE, version, "Produce")
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    return int(answer["throttle_time_ms"])


def size_of_produce(version: int = 9) -> int:
    encoded = codec.encode("ProduceRequest", version, produce_body())
    return len(request_frame(PRODUCE, version, 7, "client", encoded)) - 4


def is_read(family: GatewayFamily) -> bool:
    """Whether a request that lies in the socket is taken."""
    before = len(family.gateway.pending)
    encoded = codec.encode("ProduceRequest", 9, produce_body())
    family.client.sendall(request_frame(PRODUCE, 9, 7, "client", encoded))
    family.gateway.turn(family.poller.poll(0.1))
    return len(family.gateway.pending) > before


def connection(family: GatewayFamily) -> Any:
    return next(iter(family.gateway.loop.connections.values()))


def counted(family: GatewayFamily, name: str) -> int:
    return int(family.words[family.counters.counter(1, name)])


def test_without_a_quota_of_clients_a_connection_has_nothing_of_it(family: GatewayFamily) -> None:
    limit(family, "connection_creation_rate", 1.0, ("ip", None))
    assert connection(family).throttle is None
    assert not any(
        isinstance(each, partial) and each.func == family.gateway.quotas.submit
        for each in family.gateway.tables.submits.values()
    )
    assert throttle_of_produce(family) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_produce_over_its_rate_is_told_for_how_long_and_muted(
    family: GatewayFamily, version: int
) -> None:
    body = produce_body()
    if version >= 13:
        topic_id = family.gateway.image.topics_by_name[TOPIC].topic_id
        body["topic_data"][0] = body["topic_data"][0] | {"topic_id": topic_id}
    encoded = codec.encode("ProduceRequest", version, body)
    frame = request_frame(PRODUCE, version, 7, "client", encoded)
    size = len(frame) - 4
    limit(family, "producer_byte_rate", size / 10)  # one request in ten seconds
    times = []
    for _ in range(2):
        family.client.sendall(frame)
        family.turn()
        assert append_all(family) == 1
        times.append(family.answer(PRODUCE, version, "Produce")["throttle_time_ms"])
    assert times == [0, 10_000], "twice what may be in the ten seconds that count at least"
    assert connection(family).is_muted
    assert not is_read(family)
    assert counted(family, "throttled_produce") == 1
    assert counted(family, "throttled_produce_ms") == 10_000


def test_what_is_recognised_by_its_bytes_counts_as_well(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10 * 3)
    assert [throttle_of_produce(family) for _ in range(3)] == [0, 0, 0]
    assert connection(family).fast_produce is not None
    assert throttle_of_produce(family) == 3333


def test_who_is_muted_goes_on_when_the_time_is_over(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10)
    throttle_of_produce(family)
    assert throttle_of_produce(family) == 10_000
    assert not is_read(family)
    family.clock.now += 9.99
    family.quiet_turn()
    assert not family.gateway.pending
    family.clock.now += 1.02
    family.quiet_turn()
    assert append_all(family) == 1, "what it had sent is on the ring after this very turn"
    assert family.answer(PRODUCE, 9, "Produce")["throttle_time_ms"] == 0, "11 s are over"
    assert not connection(family).is_muted


def test_a_shorter_time_takes_nothing_off_a_longer_one(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", 1e9)
    quotas = family.gateway.quotas
    for throttle_ms in (2000, 10_000, 500):
        quotas.mute(connection(family), throttle_ms, "request")
    assert quotas.muted_ms(connection(family)) == 10_000
    family.clock.now += 2.0
    family.quiet_turn()
    assert connection(family).is_muted


def test_who_is_muted_for_long_goes_on_at_its_time(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 100)
    assert throttle_of_produce(family) == pytest.approx(90_000, abs=1)
    assert not is_read(family)
    for _ in range(89):
        family.clock.now += 1
        family.quiet_turn()
        assert connection(family).is_muted
    family.clock.now += 1.01
    family.quiet_turn()
    assert append_all(family) == 1


def test_nothing_is_kept_for_long_of_who_ends_while_it_is_muted(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", 1e-6)
    assert throttle_of_produce(family) == (1 << 31) - 1
    family.gateway.loop.close(connection(family), "")
    family.clock.now += 30.1
    family.quiet_turn()
    assert family.gateway.later.due == float("inf")


def test_who_leaves_while_it_is_muted_and_has_asked_for_nothing_more_is_closed(
    family: GatewayFamily,
) -> None:
    limit(family, "producer_byte_rate", 1e-6)
    assert throttle_of_produce(family) == (1 << 31) - 1
    family.client.close()
    family.gateway.turn(family.poller.poll(10))
    assert not family.gateway.loop.connections, "its descriptor is not kept for weeks"


def test_who_left_before_it_was_answered_and_muted_is_closed_after_its_answer(
    family: GatewayFamily,
) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 100)
    encoded = codec.encode("ProduceRequest", 9, produce_body())
    frame = request_frame(PRODUCE, 9, 7, "client", encoded)
    family.client.sendall(frame * 2)
    family.turn()
    [first, second] = [payload for operation, payload in family.taken() if operation == APPEND]
    family.reply(APPENDED, APPENDED_HEAD.pack(APPEND_HEAD.unpack_from(first)[0], 0, 0, 0, 0, -1, 0))
    family.quiet_turn()
    assert family.answer(PRODUCE, 9, "Produce")["throttle_time_ms"] > 0
    assert connection(family).is_muted
    family.client.shutdown(socket.SHUT_WR)
    family.gateway.turn(family.poller.poll(10))
    assert connection(family).has_left and connection(family).inflight
    append = APPEND_HEAD.unpack_from(second)[0]
    family.reply(APPENDED, APPENDED_HEAD.pack(append, 0, 0, 0, 1, -1, 0))
    family.quiet_turn()
    assert family.answer(PRODUCE, 9, "Produce")["throttle_time_ms"] > 0
    assert not family.gateway.loop.connections


def test_what_who_left_while_it_was_muted_has_asked_for_is_done_unless_that_takes_too_long(
    family: GatewayFamily,
) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10)
    throttle_of_produce(family)
    assert throttle_of_produce(family) == 10_000
    assert not is_read(family)
    family.client.shutdown(socket.SHUT_WR)
    family.gateway.turn(family.poller.poll(10))
    family.clock.now += 10.1
    family.quiet_turn()
    assert append_all(family) == 1
    assert family.answer(PRODUCE, 9, "Produce")["throttle_time_ms"] > 0
    family.gateway.turn(family.poller.poll(0))
    assert not family.gateway.loop.connections


def test_the_unread_bytes_of_who_left_keep_it_no_longer_than_an_idle_client(
    family: GatewayFamily,
) -> None:
    limit(family, "producer_byte_rate", 1e-6)
    throttle_of_produce(family)
    assert not is_read(family)
    idle_s = family.gateway.config["connections.max.idle.ms"] / 1000
    family.clock.now += idle_s + 2
    family.quiet_turn()
    assert connection(family).is_muted, "no time runs against who waits for its turn"
    family.client.shutdown(socket.SHUT_WR)
    family.gateway.turn(family.poller.poll(10))
    family.clock.now += idle_s - 2
    family.quiet_turn()
    assert family.gateway.loop.connections
    family.clock.now += 4
    family.quiet_turn()
    assert not family.gateway.loop.connections


def test_the_wait_ends_when_the_first_who_is_muted_may_go_on(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10 / 1.02)
    assert throttle_of_produce(family) == 200
    assert family.quiet_turn() == pytest.approx(0.2, abs=0.01)


def test_requests_behind_the_one_that_is_over_wait_in_the_buffer(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 20)
    encoded = codec.encode("ProduceRequest", 9, produce_body())
    frame = request_frame(PRODUCE, 9, 7, "client", encoded)
    family.client.sendall(frame)
    family.turn()
    append_all(family)
    assert family.answer(PRODUCE, 9, "Produce")["throttle_time_ms"] == 10_000
    family.client.sendall(frame * 2)
    family.gateway.turn(family.poller.poll(0.1))
    assert not family.gateway.pending
    family.clock.now += 30
    family.quiet_turn()
    family.gateway.turn(family.poller.poll(1))
    assert append_all(family) == 2, "both were read at once, as their answers came later"


def test_produce_without_acks_is_muted_without_a_word(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 20)
    family.ask(PRODUCE, 9, "Produce", produce_body(acks=0))
    assert connection(family).is_muted
    assert not is_read(family)


def fetch_body(session_epoch: int = -1, session_id: int = 0) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_epoch": session_epoch,
        "session_id": session_id,
        "topics": [{"topic": TOPIC, "partitions": [partition]}] if session_epoch < 1 else [],
    }


def fetched(family: GatewayFamily, version: int, **session: int) -> dict[str, Any]:
    """The answer to a Fetch, with a broker that gives RECORDS to each."""
    family.ask(FETCH, version, "Fetch", fetch_body(**session))
    for operation, payload in family.taken():
        if operation != READ:
            continue
        token = READ_HEAD.unpack_from(payload)[0]
        slice_ = READ_SLICE.pack(0, 0, len(RECORDS), 1, 1, 0, 0, 0, -1, 0, -1)
        family.reply(READ_DONE, READ_DONE_HEAD.pack(token, 1, 0) + slice_ + RECORDS)
    family.quiet_turn()
    return family.answer(FETCH, version, "Fetch")


@pytest.mark.parametrize("version", [4, 11, 12])
def test_fetch_over_its_rate_is_answered_without_records_and_they_are_not_counted(
    family: GatewayFamily, version: int
) -> None:
    limit(family, "consumer_byte_rate", len(RECORDS) / 10 * 1.1)
    assert fetched(family, version)["responses"][0]["partitions"][0]["records"] == RECORDS
    for _ in range(2):
        answer = fetched(family, version)
        assert answer["responses"] == []
        assert 8_000 < answer["throttle_time_ms"] < 12_000
        assert connection(family).is_muted
        family.clock.now += answer["throttle_time_ms"] / 1000
        family.quiet_turn()
        assert not connection(family).is_muted
        if family.clock.now > 111:
            break
    assert fetched(family, version)["responses"][0]["partitions"][0]["records"] == RECORDS
    assert counted(family, "throttled_fetch") >= 1


def test_fetch_in_a_session_keeps_it_while_it_is_over(family: GatewayFamily) -> None:
    limit(family, "consumer_byte_rate", len(RECORDS) / 10 * 1.1)
    first = fetched(family, 11, session_epoch=0)
    assert first["session_id"] > 0
    over = fetched(family, 11, session_epoch=1, session_id=first["session_id"])
    assert (over["responses"], over["session_id"]) == ([], first["session_id"])
    assert over["throttle_time_ms"] > 0
    family.clock.now += 20
    family.quiet_turn()
    again = fetched(family, 11, session_epoch=2, session_id=first["session_id"])
    assert again["responses"][0]["partitions"][0]["records"] == RECORDS


def test_no_new_session_is_made_by_who_is_over(family: GatewayFamily) -> None:
    limit(family, "consumer_byte_rate", len(RECORDS) / 20)
    assert fetched(family, 11, session_epoch=0)["session_id"] == 0
    assert family.gateway.fetch.sessions.get(1, 1) is None


@pytest.mark.parametrize("times", [1, 3])
def test_a_read_asks_for_no_more_than_is_ever_let_through(
    family: GatewayFamily, times: int
) -> None:
    limit(family, "consumer_byte_rate", 1000.0)
    for _ in range(times):  # the second is recognised
        family.ask(FETCH, 11, "Fetch", fetch_body())
        [(_, payload)] = family.taken()
        token, _, min_bytes, max_bytes, *_ = READ_HEAD.unpack_from(payload)
        assert (min_bytes, max_bytes) == (1, 10_000)
        slice_ = READ_SLICE.pack(0, 0, 0, 1, 1, 0, 0, 0, -1, 0, -1)
        family.reply(READ_DONE, READ_DONE_HEAD.pack(token, 1, 0) + slice_)
        family.quiet_turn()
        family.answer(FETCH, 11, "Fetch")


def test_time_of_requests_mutes_for_a_window_at_most(
    family: GatewayFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(family, "request_percentage", 1e-6)
    clock, calls = family.clock, iter(range(10**6))
    monkeypatch.setattr(clock, "monotonic_ns", lambda: int(clock.now * 1e9) + next(calls) * 10**6)
    family.ask(METADATA, 9, "Metadata", {"topics": []})
    assert family.answer(METADATA, 9, "Metadata")["throttle_time_ms"] == 1000
    assert connection(family).is_muted
    assert counted(family, "throttled_request_ms") == 1000


@pytest.mark.parametrize("key", ["producer_byte_rate", "request_percentage"])
def test_a_time_that_fits_into_no_answer_is_told_as_the_longest_that_does(
    family: GatewayFamily, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = family.clock, iter(range(10**6))
    monkeypatch.setattr(clock, "monotonic_ns", lambda: int(clock.now * 1e9) + next(calls) * 10**6)
    limit(family, key, 5e-324)
    longest = (1 << 31) - 1 if key == "producer_byte_rate" else 1000
    assert throttle_of_produce(family) == longest
    assert connection(family).is_muted


def test_who_waits_as_the_first_quota_comes_is_charged_no_time_from_before_it(
    family: GatewayFamily,
) -> None:
    family.ask(FETCH, 11, "Fetch", fetch_body())
    [(_, payload)] = family.taken()
    limit(family, "request_percentage", 1.0)
    slice_ = READ_SLICE.pack(0, 0, len(RECORDS), 1, 1, 0, 0, 0, -1, 0, -1)
    token = READ_HEAD.unpack_from(payload)[0]
    family.reply(READ_DONE, READ_DONE_HEAD.pack(token, 1, 0) + slice_ + RECORDS)
    family.quiet_turn()
    answer = family.answer(FETCH, 11, "Fetch")
    assert answer["throttle_time_ms"] == 0
    assert answer["responses"][0]["partitions"][0]["records"] == RECORDS


def test_a_quota_is_of_the_client_that_it_names(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", 1.0, ("client-id", "other"))
    assert throttle_of_produce(family) == 0
    limit(family, "producer_byte_rate", 1.0, ("client-id", "client"))
    assert throttle_of_produce(family) > 0


def test_long_client_ids_are_bounded_and_not_remembered(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10)
    quotas = family.gateway.quotas

    def is_remembered(client_id: bytes) -> bool:
        found = quotas.limits_of(1, "User:ANONYMOUS", client_id)
        assert found is not None
        return quotas.limits_of(1, "User:ANONYMOUS", client_id) is found

    assert is_remembered(b"client")
    assert not is_remembered(b"1" * 32_000)


def test_what_several_connections_of_a_user_send_counts_together(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", size_of_produce() / 10)
    throttle_of_produce(family)
    first = family.client
    family.client = socket.create_connection(family.listening.getsockname())
    family.client.settimeout(10)
    family.turn()
    assert throttle_of_produce(family) == 10_000
    first.close()


def test_a_quota_that_is_taken_away_mutes_nobody_any_more(family: GatewayFamily) -> None:
    limit(family, "producer_byte_rate", 1.0)
    limit(family, "producer_byte_rate", None)
    assert connection(family).throttle is None
    assert not any(
        isinstance(each, partial) and each.func == family.gateway.quotas.submit
        for each in family.gateway.tables.submits.values()
    )
    assert throttle_of_produce(family) == 0


def test_an_address_that_connects_too_often_is_closed_a_little_later(
    family: GatewayFamily,
) -> None:
    limit(family, "connection_creation_rate", 0.1 + 1e-9, ("ip", "127.0.0.1"))
    address = family.listening.getsockname()
    first, second = (socket.create_connection(address) for _ in range(2))
    family.turn()
    assert len(family.gateway.loop.connections) == 2, "one more than before"
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)
    assert counted(family, "connections_refused_for_rate") == 1
    family.clock.now += 1.01
    family.quiet_turn()
    assert select.select([second], [], [], 5)[0]
    assert second.recv(1) == b""
    first.close()
    second.close()


def test_an_address_with_its_own_rate_is_not_held_to_the_default(family: GatewayFamily) -> None:
    limit(family, "connection_creation_rate", 1e-3, ("ip", None))
    limit(family, "connection_creation_rate", 1e6, ("ip", "127.0.0.1"))
    clients = [socket.create_connection(family.listening.getsockname()) for _ in range(3)]
    family.turn()
    assert len(family.gateway.loop.connections) == 4
    for client in clients:
        client.close()


def test_the_default_rate_is_of_every_address_as_long_as_it_is_set(family: GatewayFamily) -> None:
    limit(family, "connection_creation_rate", 1e6, ("ip", "a.host"))  # as Kafka may have stored it
    limit(family, "connection_creation_rate", 0.1 + 1e-9, ("ip", None))
    assert family.gateway.quotas.has_rates
    address = family.listening.getsockname()
    clients = [socket.create_connection(address) for _ in range(3)]
    family.turn()
    assert counted(family, "connections_refused_for_rate") == 2
    limit(family, "connection_creation_rate", None, ("ip", None))
    assert not family.gateway.quotas.has_rates
    clients += [socket.create_connection(address) for _ in range(3)]
    family.turn()
    assert counted(family, "connections_refused_for_rate") == 2
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("api_key", "told_ms", "muted_ms"),
    [(CREATE_TOPICS, 1500, 1500), (CREATE_TOPICS, 0, 0), (METADATA, 1500, 0)],
)
@pytest.mark.parametrize("has_quota", [True, False])
def test_who_has_changed_too_many_partitions_is_muted_as_the_controller_says(
    family: GatewayFamily, api_key: int, told_ms: int, muted_ms: int, has_quota: bool
) -> None:
    if has_quota:
        limit(family, "controller_mutation_rate", 1.0)
    request: Any = SimpleNamespace(api_key=api_key, connection=connection(family))
    family.gateway.quotas.on_answer(request, told_ms.to_bytes(4, "big") + b"the rest")
    muted_ms *= has_quota
    assert family.gateway.quotas.muted_ms(request.connection) == muted_ms
    assert counted(family, "throttled_mutation_ms") == muted_ms
