"""What others may see of a gateway: counts of requests, bytes and refusals, and latencies."""

from shmbroker.ipc.operation_layout import APPEND, APPENDED, APPENDED_HEAD, TOKEN
from shmbroker.shm.latencies import SAMPLED, STAGE_ANSWER, STAGE_NETWORK, read_table
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.support.gateway_family import GATEWAY, GatewayFamily
from tests.unit.gateway.gateway_asks import (
    METADATA_REQUEST,
    PRODUCE,
    appended,
    ask_to_append,
    ask_to_read,
    family,
)

__all__ = ["family"]


def counted(family: GatewayFamily, name: str) -> int:
    """A counter, as it is shown once a second."""
    family.clock.now += 2.0
    family.quiet_turn()
    return int(family.words[family.counters.counter(GATEWAY, name)])


def shown(family: GatewayFamily) -> dict[int, tuple[int, list[int]]]:
    """The latencies, as others see them."""
    family.clock.now += 2.0
    family.quiet_turn()
    return read_table(family.latencies)


def test_request_takes_from_its_read_to_its_answer(family: GatewayFamily) -> None:
    for took_us in (300, 5000):
        ask_to_append(family)
        family.clock.now += took_us / 1e6
        appended(family)
        family.answer(*PRODUCE)
    (sum_us, buckets), *rest = shown(family).values()
    assert not rest
    assert abs(sum_us - 5300) <= 2
    assert {number: count for number, count in enumerate(buckets) if count} == {9: 1, 13: 1}


def test_pipelined_requests_and_those_without_acks_are_all_counted(family: GatewayFamily) -> None:
    ask_to_read(family)
    for acks in (1, 1, 0):
        ask_to_append(family, acks)
    appended(family)
    counts = {key: sum(buckets) for key, (_, buckets) in shown(family).items()}
    assert counts == {0: 1}, "two wait behind the Fetch"
    family.gateway.must_stop = True
    family.quiet_turn()
    family.gateway.close()
    counts = {key: sum(buckets) for key, (_, buckets) in read_table(family.latencies).items()}
    assert counts == {0: 3, 1: 1}


def test_bytes_are_counted_both_ways(family: GatewayFamily) -> None:
    received = counted(family, "received_bytes")
    sent = counted(family, "sent_bytes")
    family.client.sendall(METADATA_REQUEST)
    family.turn()
    size = int.from_bytes(family.receive(4), "big")
    family.receive(size)
    assert counted(family, "received_bytes") - received == len(METADATA_REQUEST)
    assert counted(family, "sent_bytes") - sent == size + 4
    assert counted(family, "sent_file_bytes") == 0


def test_refusals_are_counted_by_their_reason(family: GatewayFamily) -> None:
    ask_to_append(family)
    appended(family, KAFKA_STORAGE_ERROR)
    family.answer(*PRODUCE)
    assert counted(family, "appends_refused_storage") == 1
    assert counted(family, "appends_refused_invalid") == 0
    family.client.sendall(bytes(14))
    family.turn()
    assert counted(family, "protocol_faults") == 1
    assert counted(family, "connections_accepted") == counted(family, "connections_closed") == 1


def test_one_turn_of_some_is_followed_to_the_broker_and_back(family: GatewayFamily) -> None:
    family.gateway.turns = SAMPLED - 1
    ask_to_append(family)
    stamp_ns = family.broker.reader.stamped() if family.broker.reader.poll() else 0
    assert stamp_ns == family.clock.monotonic_ns()
    for operation, payload in family.taken():
        assert operation == APPEND
        token = int(TOKEN.unpack_from(payload)[0])
        family.broker.writer.stamp(family.clock.monotonic_ns())
        family.broker.send(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 0, -1, 0))
    family.clock.now += 0.0007
    family.quiet_turn()
    found = shown(family)
    assert sum(found[STAGE_NETWORK][1]) == 1
    assert abs(found[STAGE_ANSWER][0] - 700) <= 1
    ask_to_append(family)
    assert family.broker.reader.poll() and not family.broker.reader.stamped(), "not every turn"
