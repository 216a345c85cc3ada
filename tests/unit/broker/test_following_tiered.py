"""A follower that begins where the remote store ends: what it knows of what lies before."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from three_brokers import Node, later, settle

from shmbroker.broker.replication.followed import STORAGE_RETRY_MS
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.markers import append_marker
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retiring import delete_local_before
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.log.truncation import StateAt, begin_at
from shmbroker.records.batch import encode_batch
from shmbroker.records.end_marker import EndMarker
from shmbroker.tier.manifest import PartitionName, partition_prefix
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.states import read_state
from shmbroker.tier.transfer import copy_segment
from shmbroker.wire.error_codes import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from tests.unit.tier.stores import Killed, MemoryStore

NAME = PartitionName("t", bytes(16), 0)
PREFIX = partition_prefix("cluster", NAME)
PRODUCER = 7


def begin(leader: Node, sequence: int, count: int) -> None:
    """A batch of a transaction, as the leader appends it."""
    log = leader.partition.log
    batch = encode_batch(
        [(1, None, b"v", ())] * count,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    offset = log.append(memoryview(batch), count - 1, 1, leader.partition.leader_epoch, 1)
    log.producers.update(PRODUCER, 0, sequence, count - 1, offset, 1)
    log.producers.begin(PRODUCER, offset)
    leader.partition.advance_high_watermark()


def roll(leader: Node) -> None:
    log = leader.partition.log
    log.roll(1)
    log.active.create_files()


class Tiered:
    """A leader whose first segments are in the store alone.

    epoch 0   [0, 1, 2]   epoch 2   [3, 4: begun | 5, 6: go on] | [7: abort] [8]
                                    ^ segments end at 5 and 7
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.store = MemoryStore()
        self.nodes = nodes
        self.leader, self.follower, _ = nodes
        for node in nodes:
            node.partition.log.set_config(LogConfig({"remote.storage.enable": "true"}))
            node.find_state = self.find_state
        self.leader.lead(1, 0, (1,))
        self.leader.append(b"a", b"b", b"c")
        self.leader.lead(1, 2, (1,))
        begin(self.leader, 0, 2)
        roll(self.leader)
        begin(self.leader, 2, 2)
        roll(self.leader)
        log = self.leader.partition.log
        append_marker(log, EndMarker(PRODUCER, 0, 0, is_commit=False), 1, 2, 1)
        self.leader.append(b"z")
        for one in log.segments[:-1]:
            copy = RemoteSegment(one.base_offset, one.end_offset, 2, one.size, 1)
            epochs = log.leader_epochs.entries
            copy_segment(self.store, PREFIX, NAME, log.directory, copy, epochs, lambda _: None)
        delete_local_before(log, 7)
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 7, 9)
        self.is_down = False

    def find_state(
        self, _: object, offset: int, on_state: Callable[[StateAt | None], None]
    ) -> None:
        """The answer of the tier process, at once."""
        if self.is_down:
            on_state(None)
            return
        on_state(read_state(self.store, PREFIX, NAME, offset))

    def follow(self) -> PartitionLog:
        self.follower.lead(1, 2, (1,))
        settle(self.nodes)
        return self.follower.partition.log


@pytest.fixture
def tiered(nodes: list[Node]) -> Tiered:
    return Tiered(nodes)


def has_all(log: PartitionLog, leader: PartitionLog) -> None:
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 7, 9)
    assert log.leader_epochs.entries == leader.leader_epochs.entries == [(0, 0), (2, 3)]
    assert log.end_offset_for_epoch(0) == (0, 3)
    assert log.aborted.find(0, 9) == [AbortedTransaction(PRODUCER, 3, 7, 8)]
    assert not log.producers.open


def reopened(log: PartitionLog) -> PartitionLog:
    """The log as the next start finds it, after a kill."""
    log.close(clean=False)
    return PartitionLog.open(
        log.directory, log.config, file_ids=iter(range(1000, 2000)), clean=False
    )


def test_it_knows_epochs_sequences_and_transactions_of_what_only_the_store_has(
    tiered: Tiered,
) -> None:
    log = tiered.follow()
    has_all(log, tiered.leader.partition.log)
    assert log.producers.check(PRODUCER, 0, 4, 0)[0] == NONE
    assert log.producers.check(PRODUCER, 0, 9, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    has_all(reopened(log), tiered.leader.partition.log)


def test_it_begins_once_the_store_answers(tiered: Tiered) -> None:
    tiered.is_down = True
    log = tiered.follow()
    assert log.log_end_offset == 0
    later(tiered.nodes, STORAGE_RETRY_MS)
    assert log.log_end_offset == 0
    tiered.is_down = False
    later(tiered.nodes, STORAGE_RETRY_MS)
    has_all(log, tiered.leader.partition.log)


def test_it_begins_again_where_its_disk_was_full(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered.follower.is_full = True

    def refuse(*_: object, **__: object) -> None:
        raise StorageFault("no space")

    for name in ("producer_snapshots", "leader_epochs"):
        with monkeypatch.context() as patch:
            patch.setattr(f"shmbroker.log.{name}.write_file", refuse)
            log = tiered.follow()
            later(tiered.nodes, STORAGE_RETRY_MS)
        assert log.log_end_offset == 0
    assert len(tiered.follower.faults) >= 2
    later(tiered.nodes, STORAGE_RETRY_MS)
    has_all(log, tiered.leader.partition.log)


def test_an_answer_that_comes_late_changes_nothing(tiered: Tiered) -> None:
    waiting: list[Any] = []
    tiered.follower.find_state = lambda _partition, _offset, on_state: waiting.append(on_state)
    log = tiered.follow()
    tiered.follower.lead(1, 3, (1,))
    tiered.leader.lead(1, 3, (1,))
    settle(tiered.nodes)
    first, second = waiting
    state = read_state(tiered.store, PREFIX, NAME, 6)
    first(state)
    assert log.log_end_offset == 0, "it was asked in an epoch that is over"
    second(state)
    settle(tiered.nodes)
    assert log.log_end_offset == 9
    second(state)
    assert log.log_end_offset == 9
    tiered.follower.lead(2, 4)
    second(state)
    assert log.log_end_offset == 9


@pytest.mark.parametrize("has_old", [False, True])
def test_killed_at_any_point_it_begins_again_or_knows_all(
    tiered: Tiered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_old: bool
) -> None:
    state = read_state(tiered.store, PREFIX, NAME, 6)
    assert state is not None
    config = tiered.leader.partition.log.config
    steps = 0
    is_done = False
    begun = set()
    while not is_done:
        directory = str(tmp_path / f"{has_old}-{steps}" / "t-0")
        os.makedirs(directory)
        log = PartitionLog.open(directory, config, file_ids=iter(range(100)))
        if has_old:
            log.append(memoryview(encode_batch([(1, None, b"old", ())])), 0, 1, 0, 1)
            log.roll(1)
            log.append(memoryview(encode_batch([(1, None, b"old", ())])), 0, 1, 1, 1)
        with monkeypatch.context() as patch:
            left = [steps]
            for name in ("open", "rename", "unlink", "fsync"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            try:
                begin_at(log, state, 0)
                is_done = True
            except Killed:
                pass
        log = reopened(log)
        begun.add(log.log_end_offset)
        assert not log.damage_count
        if log.log_end_offset == 7:
            assert log.leader_epochs.entries == [(0, 0), (2, 3)]
            assert log.producers.open == {PRODUCER: 3}
            assert log.log_start_offset == 0
        else:
            assert log.log_end_offset <= 2
            begin_at(log, state, 0)
            assert reopened(log).producers.open == {PRODUCER: 3}
        steps += 1
    assert begun == ({0, 2, 7} if has_old else {0, 7})


def dying(work: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The call of the system before which the process is killed, once none is left."""

    def call(*args: Any, **named: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return work(*args, **named)

    return call


def test_what_the_store_has_damaged_is_not_believed(tiered: Tiered) -> None:
    objects = tiered.store.objects
    for kind in ("snapshot", "leader-epoch-checkpoint"):
        (key,) = (key for key in objects if f"/{5:020d}" in key and key.endswith(kind))
        whole = objects[key]
        for wrong in (None, whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
            if wrong is None:
                del objects[key]
            else:
                objects[key] = wrong
            with pytest.raises(CorruptFault):
                read_state(tiered.store, PREFIX, NAME, 6)
        objects[key] = whole


def test_where_the_last_copy_is_lost_nothing_is_known_of_the_epochs(tiered: Tiered) -> None:
    """Of that before it nobody can tell where its last epoch ended: with that, the leader would
    have the log cut back to there again and again."""
    objects = tiered.store.objects
    (key,) = (key for key in objects if f"/{5:020d}" in key and key.endswith("manifest"))
    del objects[key]
    assert read_state(tiered.store, PREFIX, NAME, 6) == StateAt(7, [], None)
    log = tiered.follow()
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 7, 9)
    assert log.leader_epochs.entries == [(2, 7)]
    objects.clear()
    assert read_state(tiered.store, PREFIX, NAME, 6) is None
