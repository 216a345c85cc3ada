"""The replicas' simulation with a transactional producer and read_committed readers.

The coordinator is a model of what it promises: a transaction that it has begun to end is ended in
that way, its marker is written to whoever leads until a high watermark has passed it, and the next
one has the next epoch. A producer commits only what was acknowledged to it.

What must hold besides: the last stable offset that readers were told never goes back; what they
have read stays as it was; they see nothing of an aborted or undecided transaction, and at the end
all of the committed ones, once and in order.
"""

import struct
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from shmbroker.ipc.operation_layout import (
    APPEND_CONSTANT,
    APPEND_FLAG_TRANSACTIONAL,
    NAME_LENGTH,
    TOKEN,
)
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import EndMarker, parse_marker
from shmbroker.wire import error_codes
from tests.simulation.replica_simulation import Node, World, simulate

PRODUCER_ID = 8
FIRST = -1_000_000
"""Their values go down from here, out of the way of the others'."""


def simulate_transactions(seed: int, steps: int = 1500) -> World:
    """One history; AssertionError if something does not hold."""
    return simulate(seed, steps, TransactionalWorld)


class Ending(NamedTuple):
    """A marker that waits for the high watermark at its leader."""

    place: tuple[int, int, int]
    end_offset: int


class TransactionalWorld(World):
    def __init__(self, seed: int, root: Path) -> None:
        self.choice = Random(seed + 1)
        self.next_value = FIRST
        self.epoch = self.sequence_of_transaction = 0
        self.written: list[int] = []
        """Values of the open transaction."""
        self.waiting: dict[int, int] = {}
        """By token, those that are not acknowledged."""
        self.is_commit: bool | None = None
        """How it ends, once that is decided."""
        self.ending: Ending | None = None
        self.is_full = self.has_failed = False
        """Nothing more is written to it; something of it may not be there."""
        self.committed: list[int] = []
        self.aborted: set[int] = set()
        self.told_stable = 0
        self.seen: list[int] = []
        super().__init__(seed, root)

    # ── the coordinator and its producer ────────────────────────────────────────────────────────

    def verify(self, *question: Any) -> None:
        _, _, producer_id, epoch, _, on_answer = question
        assert producer_id == PRODUCER_ID
        is_open = epoch == self.epoch and self.is_commit is None
        on_answer(error_codes.NONE if is_open else error_codes.INVALID_TXN_STATE)

    def produce(self) -> None:
        super().produce()
        leader = self.leader()
        if leader is None or not leader.partition.is_leader:
            return
        if self.is_commit is not None:
            self.end(leader)
        elif self.has_failed or (self.written and self.choice.random() < 0.05):
            self.is_commit = False
        elif not self.is_full:
            self.write(leader)
            self.is_full = self.choice.random() < 0.3
        elif not self.waiting:
            self.is_commit = True

    def settle(self) -> None:
        super().settle()
        leader = self.leader()
        if leader is not None and leader.partition.is_leader and not self.is_settled:
            if self.is_commit is None:
                self.is_commit = False
            self.end(leader)

    @property
    def is_settled(self) -> bool:  # type: ignore[override]
        return not self.written

    def write(self, leader: Node) -> None:
        self.next_value -= 1
        batch = encode_batch(
            [(1, None, struct.pack(">q", self.next_value), ())],
            producer_id=PRODUCER_ID,
            producer_epoch=self.epoch,
            base_sequence=self.sequence_of_transaction,
            is_transactional=True,
        )
        self.sequence_of_transaction += 1
        self.written.append(self.next_value)
        token = next(self.tokens)
        self.waiting[token] = self.next_value
        head = APPEND_CONSTANT.pack(-1, APPEND_FLAG_TRANSACTIONAL, 200, self.key, len(batch))
        entry = TOKEN.pack(token) + head + NAME_LENGTH.pack(1) + b"x" + batch
        leader.appender.on_append(leader.client, memoryview(entry), 0, len(entry))

    def on_answer(self, token: int, error: int, base_offset: int) -> None:
        if token not in self.waiting:
            super().on_answer(token, error, base_offset)
        else:
            del self.waiting[token]
            self.has_failed |= error != 0

    def forget_sent(self) -> None:
        super().forget_sent()
        self.has_failed |= bool(self.waiting)
        self.waiting.clear()

    def end(self, leader: Node) -> None:
        """Write the marker, and once more wherever that is not known to count."""
        assert self.is_commit is not None
        partition = leader.partition
        place = (leader.number, leader.incarnation, partition.leader_epoch)
        if self.ending is None or self.ending.place != place:
            marker = EndMarker(PRODUCER_ID, self.epoch, 0, self.is_commit)
            error, end_offset = leader.appender.append_marker(partition, marker, 1)
            assert error in (0, error_codes.NOT_ENOUGH_REPLICAS), error_codes.name_of(error)
            self.ending = Ending(place, end_offset) if not error else None
        if self.ending is not None and partition.high_watermark >= self.ending.end_offset:
            if self.is_commit:
                self.committed += self.written
            else:
                self.aborted.update(self.written)
            self.written, self.waiting, self.ending, self.is_commit = [], {}, None, None
            self.epoch += 1
            self.sequence_of_transaction = 0
            self.is_full = self.has_failed = False

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def fetch(self) -> None:
        super().fetch()
        leader = self.leader()
        if leader is None or not leader.partition.is_leader:
            return
        partition = leader.partition
        if partition.high_watermark < partition.epoch_start_offset:
            return
        stable = partition.last_stable_offset
        assert stable >= self.told_stable, (
            f"the last stable offset went back from {self.told_stable} to {stable}"
        )
        self.told_stable = stable
        seen = self.read_committed(leader, stable)
        assert seen[: len(self.seen)] == self.seen, "what was read has changed"
        assert not self.aborted & set(seen), "aborted records were read"
        undecided = set(self.written) if not self.is_commit else set()
        assert not undecided & set(seen), "records were read before their transaction ended"
        self.seen = seen

    def read_committed(self, leader: Node, stable: int) -> list[int]:
        """Values of the transactional producer, as a consumer finds them."""
        told = leader.partition.log.aborted.find(0, stable)
        told.sort(key=lambda one: one.first_offset)
        values, is_skipped = [], False
        data = leader.content(stable)
        for at, header in iterate_batches(data):
            if header[H_PRODUCER_ID] != PRODUCER_ID:
                continue
            last = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            while told and told[0].first_offset <= last:
                is_skipped = told.pop(0).producer_id == PRODUCER_ID
            if header[H_ATTRIBUTES] & CONTROL_BIT:
                marker = parse_marker(data, at)
                is_skipped &= marker is None or marker.is_commit
            elif header[H_ATTRIBUTES] & TRANSACTIONAL_BIT and not is_skipped:
                values += [struct.unpack(">q", row[3])[0] for row in iterate_records(data, at)]
        return values

    def check_end(self) -> None:
        super().check_end()
        leader = self.nodes[self.image.leader_id]
        assert not leader.partition.producers.open, "a transaction is open"
        assert self.read_committed(leader, leader.partition.high_watermark) == self.committed
        expected = leader.partition.log.aborted.find(0, 1 << 62)
        for node in self.nodes.values():
            node.partition.log.aborted.check()
            assert node.partition.log.aborted.find(0, 1 << 62) == expected
