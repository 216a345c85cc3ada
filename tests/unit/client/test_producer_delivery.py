"""A partition's queue against a model of a broker that loses, refuses and repeats."""

import random

import pytest

from shmbroker.client.producer.delivery import (
    DELIVERED,
    FAILED,
    IN_FLIGHT_MAX,
    RETURNED,
    SPLIT,
    Batch,
    PartitionQueue,
    ProducerIdentity,
)
from shmbroker.log.producer_state import ProducerState
from shmbroker.records.batch import check_batch, encode_batch, iterate_records
from shmbroker.records.batch_layout import H_ATTRIBUTES, SEQUENCES, TRANSACTIONAL_BIT
from shmbroker.wire import error_codes as e

ME = ProducerIdentity(7, 3)


def batch(*values: bytes, created_s: float = 0.0) -> Batch:
    plain = encode_batch([(5, None, value, ()) for value in values])
    return Batch(bytearray(plain), len(plain), len(values), 5, 5, created_s)


def queue_of(
    *sizes: int, start: int = 0, is_known: bool = True
) -> tuple[PartitionQueue, list[Batch]]:
    queue = PartitionQueue("t", 0, next_sequence=start)
    queue.is_known = is_known
    batches = [batch(*[b"x"] * size) for size in sizes]
    for one in batches:
        queue.add(one)
    return queue, batches


def send_all(queue: PartitionQueue) -> list[Batch]:
    sent = []
    while queue.is_sendable(1, 0.0):
        sent.append(queue.send(1))
    return sent


def test_five_are_in_flight_and_sequences_count_records() -> None:
    queue, batches = queue_of(3, 1, 2, 1, 1, 4)
    assert send_all(queue) == batches[:IN_FLIGHT_MAX]
    assert [b.sequence for b in batches] == [0, 3, 4, 6, 7, 8]
    assert queue.on_answer(batches[0], e.NONE, 100, 0.0) == DELIVERED
    assert send_all(queue) == batches[5:]
    for one, offset in zip(batches[1:], (103, 104, 106, 107, 108), strict=True):
        assert queue.on_answer(one, e.DUPLICATE_SEQUENCE_NUMBER, offset, 0.0) == DELIVERED
    assert queue.is_idle()
    assert (queue.delivered_records, queue.first_offset, queue.last_offset) == (12, 100, 111)


def test_the_first_batch_goes_alone() -> None:
    queue, batches = queue_of(1, 1, 1, is_known=False)
    assert send_all(queue) == batches[:1]
    queue.on_answer(batches[0], e.NONE, 0, 0.0)
    assert send_all(queue) == batches[1:]


def test_what_comes_back_waits_for_the_others_and_goes_first() -> None:
    queue, batches = queue_of(1, 1, 1, 1)
    first, second, third = send_all(queue)[:3]
    assert queue.on_answer(second, e.NOT_ENOUGH_REPLICAS, -1, 9.0) == RETURNED
    assert not queue.is_sendable(1, 99.0)
    assert queue.on_answer(third, e.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 9.0) == RETURNED
    assert queue.on_answer(first, e.NONE, 0, 0.0) == DELIVERED
    assert not queue.is_sendable(1, 99.0)
    assert queue.on_answer(batches[3], e.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 9.0) == RETURNED
    assert not queue.is_sendable(1, 8.0)
    assert [b.sequence for b in [queue.send(1) for _ in range(3)]] == [1, 2, 3]


def test_order_is_kept_where_sequences_wrap() -> None:
    queue, batches = queue_of(1, 1, 1, start=SEQUENCES - 2)
    assert [b.sequence for b in batches] == [SEQUENCES - 2, SEQUENCES - 1, 0]
    for one in reversed(send_all(queue)):
        queue.on_returned(one, 0.0)
    assert send_all(queue) == batches


def test_a_gap_is_the_end_only_if_nothing_before_it_came_back() -> None:
    queue, batches = queue_of(1, 1)
    send_all(queue)
    assert queue.on_answer(batches[0], e.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0.0) == FAILED


@pytest.mark.parametrize(
    "error",
    [e.INVALID_PRODUCER_EPOCH, e.TOPIC_AUTHORIZATION_FAILED, e.INVALID_RECORD, e.MESSAGE_TOO_LARGE],
)
def test_what_can_not_pass_fails(error: int) -> None:
    queue, batches = queue_of(1, 2)
    send_all(queue)
    assert queue.on_answer(batches[0], error, -1, 0.0) == FAILED
    assert queue.undecided() == 2


def test_a_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    queue, batches = queue_of(1, 1)
    queue.send(1)
    assert not queue.is_sendable(2, 0.0)
    queue.on_answer(batches[0], e.NOT_LEADER_OR_FOLLOWER, -1, 0.0)
    assert queue.is_sendable(2, 0.0)


def test_without_sequences_one_is_in_flight() -> None:
    queue = PartitionQueue("t", 0, has_sequences=False)
    first, second = batch(b"a"), batch(b"b")
    queue.add(first)
    queue.add(second)
    assert send_all(queue) == [first]
    queue.on_returned(first, 0.0)
    assert send_all(queue) == [first]
    assert first.sequence == -1


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_sealed_batch_is_what_a_broker_takes(codec: int) -> None:
    (one,) = queue_of(3, start=40)[1]
    frame = one.seal(ME, codec)
    assert one.seal(ME, codec) is frame
    error, header = check_batch(memoryview(bytes(frame)), 0, len(frame))
    assert error == e.NONE
    assert header[5] == codec
    assert header[9:] == (7, 3, 40, 3)
    assert [r[3] for r in iterate_records(frame)] == [b"x"] * 3


@pytest.mark.parametrize("codec", [0, 3])
def test_halves_go_on_with_the_sequences(codec: int) -> None:
    queue, _ = queue_of(start=SEQUENCES - 1)
    one = batch(b"a", b"b", b"c")
    queue.add(one)
    later = batch(b"d")
    queue.add(later)
    send_all(queue)
    one.seal(ME, codec)
    assert queue.on_answer(one, e.MESSAGE_TOO_LARGE, -1, 0.0) == SPLIT
    halves = one.halves(ME, codec)
    queue.on_split(one, *halves)
    assert queue.on_answer(later, e.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0.0) == RETURNED
    sent = send_all(queue)
    assert sent == [*halves, later]
    assert [b.sequence for b in sent] == [SEQUENCES - 1, 0, 2]
    found = []
    for half in halves:
        error, header = check_batch(memoryview(bytes(half.frame or b"")), 0, len(half.frame or b""))
        assert (error, header[11]) == (e.NONE, half.sequence)
        found += [r[3] for r in iterate_records(half.frame or b"")]
    assert found == [b"a", b"b", b"c"]


def test_an_abort_forgets_what_came_since_the_last_commit() -> None:
    queue, batches = queue_of(2, 3, 4)
    queue.accepted_records = 9
    send_all(queue)
    queue.on_answer(batches[0], e.NONE, 10, 0.0)
    queue.mark()
    queue.on_answer(batches[1], e.NONE, 20, 0.0)
    queue.on_returned(batches[2], 99.0)
    queue.restart()
    assert queue.is_idle()
    assert (queue.accepted_records, queue.delivered_records) == (2, 2)
    assert (queue.first_offset, queue.last_offset) == (10, 11)
    again = [batch(b"a"), batch(b"b")]
    for one in again:
        queue.add(one)
    assert [one.sequence for one in again] == [0, 1]
    assert send_all(queue) == again[:1]  # alone: the broker does not know the epoch yet


@pytest.mark.parametrize("codec", [0, 3])
def test_batches_of_a_transaction_say_so(codec: int) -> None:
    one = batch(b"a", b"b")
    one.sequence = 5
    identity = ProducerIdentity(7, 3, True)
    frame = one.seal(identity, codec)
    for part in (frame, *(half.frame for half in one.halves(identity, codec))):
        assert part is not None
        error, header = check_batch(part, 0, len(part))
        assert (error, header[H_ATTRIBUTES]) == (e.NONE, TRANSACTIONAL_BIT | codec)


class LossyBroker:
    """Takes batches in the order of a connection; refuses, forgets to answer, loses connections."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = ProducerState()
        self.log: list[tuple[int, int]] = []  # (sequence, count)
        self.end = 0

    def take(self, one: Batch) -> tuple[int, int]:
        fate = self.random.random()
        if fate < 0.15:
            return e.NOT_ENOUGH_REPLICAS, -1
        error, offset, _ = self.state.check(ME.producer_id, ME.epoch, one.sequence, one.count - 1)
        if error or offset >= 0:
            return error, offset
        offset, self.end = self.end, self.end + one.count
        self.state.update(ME.producer_id, ME.epoch, one.sequence, one.count - 1, offset, 5)
        self.log.append((one.sequence, one.count))
        return (e.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1) if fate < 0.3 else (e.NONE, offset)


@pytest.mark.parametrize("seed", range(200))
def test_every_record_once_and_in_order_whatever_the_broker_does(seed: int) -> None:
    broker = LossyBroker(seed)
    rng = broker.random
    queue, batches = queue_of(*[rng.randint(1, 4) for _ in range(60)], is_known=False)
    on_the_way: list[tuple[Batch, int, int]] = []
    for _ in range(100_000):
        if queue.is_idle():
            break
        if queue.is_sendable(1, 0.0) and rng.random() < 0.7:
            one = queue.send(1)
            on_the_way.append((one, *broker.take(one)))
        elif on_the_way and rng.random() < 0.1:
            # the connection ends; some of it was appended
            for one, *_ in on_the_way:
                queue.on_returned(one, 0.0)
            on_the_way.clear()
        elif on_the_way:
            one, error, offset = on_the_way.pop(0)
            assert queue.on_answer(one, error, offset, 0.0) in (DELIVERED, RETURNED)
    assert queue.is_idle()
    assert broker.log == [(b.sequence, b.count) for b in batches]
    assert queue.delivered_records == sum(b.count for b in batches)
