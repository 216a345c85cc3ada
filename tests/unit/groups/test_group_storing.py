"""What a coordinator of groups stores, and what another one loads."""

from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.classic.answers import described
from shmbroker.groups.offset_store import NO_EXPIRY
from shmbroker.ids import ZERO_UUID
from shmbroker.log.partition_log import PartitionLog
from shmbroker.purgatory import NEVER_MS
from shmbroker.records.batch import control_batch, encode_batch, iterate_batches
from shmbroker.records.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, LOG_OVERHEAD
from shmbroker.wire import error_codes
from tests.unit.groups.coordinator_at_work import LOADING, NOT_COORDINATOR, Broker, broker
from tests.unit.groups.groups_at_work import START_MS

__all__ = ["broker"]


# ── what survives ─────────────────────────────────────────────────────────────────────────────────


def test_members_and_offsets_survive_the_coordinator(broker: Broker) -> None:
    member = broker.stable()
    broker.commit(7, member=member, generation=1)
    broker.commit(9, partition=3, member=member, generation=1, metadata="note")
    broker.commit(1, group="simple", topic="u")
    before = described(broker.groups.groups["g"])
    broker.restart()
    assert described(broker.groups.groups["g"]) == before
    assert broker.committed() == {("t", 0): 7, ("t", 3): 9}
    assert broker.committed("simple") == {("u", 0): 1}
    assert broker.names() == {"g", "simple"}
    _, [(_, [(_, _, row)])] = broker.groups.offsets.fetch("g", [("t", [3])], False)
    assert row == (9, 3, "note", START_MS, -1, bytes(16))
    assert broker.heartbeat(member) == 0
    broker.wait(10_000)
    assert broker.heartbeat(member) == error_codes.UNKNOWN_MEMBER_ID
    broker.restart()
    group = broker.groups.groups["g"]
    assert (group.state, group.generation_id) == ("Empty", 2)


def test_the_last_commit_counts(broker: Broker) -> None:
    for offset in (5, 3, 8, 6):
        broker.commit(offset)
    assert broker.committed() == {("t", 0): 6}
    broker.restart()
    assert broker.committed() == {("t", 0): 6}


def test_what_was_deleted_stays_deleted(broker: Broker) -> None:
    broker.commit(1)
    broker.commit(2, partition=1)
    broker.commit(3, group="other")
    assert broker.groups.offsets.delete_offsets("g", [("t", 0), ("u", 9)]) == (0, [0, 0])
    assert broker.groups.removal.delete("other") == 0
    for _ in range(2):
        assert broker.committed() == {("t", 1): 2}
        assert broker.committed("other") == {}
        assert broker.names() == {"g"}
        broker.restart()


def test_a_log_of_many_chunks_is_loaded_over_several_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "CHUNK_BYTES", 1000)
    member = broker.stable("other")
    for number in range(100):
        broker.commit(number, partition=number % 7)
    broker.restart(is_patient=False)
    turns = 0
    while broker.groups.loading:
        assert broker.groups.wake_ms == 0
        assert broker.commit() == LOADING
        assert broker.join().answer["error_code"] == LOADING
        assert broker.groups.list_groups(set(), set()) == (LOADING, [])
        assert broker.heartbeat(member, "other") == 0, "nobody need rejoin for this"
        broker.groups.run_due()
        turns += 1
    assert turns > 5
    assert broker.committed() == {("t", index): 93 + (index + 5) % 7 for index in range(7)}
    assert broker.heartbeat(member, "other") == 0


def test_transactional_offsets_count_with_their_marker(broker: Broker) -> None:
    def write(offset: int, partition: int, producer_id: int) -> None:
        value = group_log.offset_value((offset, -1, "", START_MS, NO_EXPIRY, ZERO_UUID))
        record = group_log.offset_key("g", "t", partition), value
        append(
            encode_batch(
                [(START_MS, *record, ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )

    def append(batch: bytes) -> None:
        broker.partitions[0].log.append(memoryview(batch), 0, START_MS, 1, START_MS)

    def end(producer_id: int, kind: int) -> None:
        append(
            control_batch(
                kind, b"\0\0\0\0\0\0", timestamp=START_MS, producer_id=producer_id, producer_epoch=0
            )
        )

    broker.commit(1, partition=0)
    write(10, 0, 71)
    write(20, 1, 72)
    write(30, 2, 73)
    write(40, 3, 71)
    broker.commit(2, partition=3)
    end(71, CONTROL_COMMIT)
    end(72, CONTROL_ABORT)
    broker.restart()
    assert broker.committed() == {("t", 0): 10, ("t", 3): 2}
    unstable = error_codes.UNSTABLE_OFFSET_COMMIT
    _, [(_, rows)] = broker.groups.offsets.fetch("g", [("t", [2, 1])], True)
    assert rows == [(2, unstable, None), (1, 0, None)]


def test_records_of_other_kinds_and_damage_are_passed_over(broker: Broker) -> None:
    records = [
        (b"\0\3\0\1g", b"\0\0"),
        (b"\x7f\0", b""),
        (b"\0", b"\0\0"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\1short"),
    ]
    assert group_log.append(broker.partitions[0], records, START_MS) == 0
    broker.commit(4)
    broker.restart()
    assert broker.committed() == {("t", 0): 4}


def test_a_log_that_cannot_be_read_is_not_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.commit()

    def fail(*_: Any) -> None:
        raise StorageFault("no")

    monkeypatch.setattr(PartitionLog, "read", fail)
    broker.restart()
    assert broker.commit() == NOT_COORDINATOR
    assert broker.groups.wake_ms == NEVER_MS


# ── storing ───────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_stored_is_not_there(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.commit(1)

    def fail(*_: Any) -> None:
        raise StorageFault("full")

    call = broker.join()
    broker.wait(0)
    with monkeypatch.context() as context:
        context.setattr(PartitionLog, "append", fail)
        assert broker.commit(2, group="h") == NOT_COORDINATOR
        assert broker.sync(call.answer["member_id"]).answer["error_code"] == NOT_COORDINATOR
        assert broker.groups.offsets.delete_offsets("g", [("u", 0)]) == (0, [0])
    assert broker.committed() == {("t", 0): 1}
    assert broker.names() == {"g"}
    again = broker.join(member=call.answer["member_id"])
    assert again.answer["generation_id"] == 2
    assert broker.sync(call.answer["member_id"], generation=2).answer["assignment"] == b"mine"


def test_every_append_is_told_to_whoever_reads(broker: Broker) -> None:
    broker.commit()
    assert broker.appended == [0]
    assert broker.partitions[0].high_watermark == broker.partitions[0].log.log_end_offset == 1


def test_more_offsets_than_a_batch_may_hold_go_in_several(broker: Broker) -> None:
    broker.partitions[0].message_bytes_max = 4000
    for number in range(200):
        broker.commit(number, partition=number)
    offsets = broker.groups.offsets
    assert offsets.delete_offsets("g", [("t", each) for each in range(200)]) == (0, [0] * 200)
    log = broker.partitions[0].log
    data = log.active.read_bytes(0, log.active.size)
    sizes = [header[1] + LOG_OVERHEAD for _, header in iterate_batches(data)]
    assert len(sizes) > 201
    assert max(sizes) <= 4000
    assert broker.commit(metadata="x" * 4000) == error_codes.UNKNOWN_SERVER_ERROR


def test_too_few_in_sync_replicas_take_no_commit(broker: Broker) -> None:
    partition = broker.partitions[0]
    partition.replicas, partition.min_in_sync_replicas = (1, 2, 3), 2
    partition.count_in_sync()
    assert broker.commit() == error_codes.COORDINATOR_NOT_AVAILABLE


def test_who_waits_is_sent_away_when_the_partition_goes(broker: Broker) -> None:
    broker.stable()
    waiting = broker.join()
    assert waiting.answer is None
    broker.partitions[0].is_leader = False
    assert broker.commit() == NOT_COORDINATOR
    broker.groups.on_partition(broker.partitions[0], 1)
    assert waiting.answer["error_code"] == NOT_COORDINATOR
    assert broker.names() == set()
    broker.wait(60_000)
