"""What a broker's turns make of its disk: full, failed, probed, flushed."""

import os
from errno import EIO, EMFILE, EROFS
from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker.disk_reserve import Space
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import EXECUTE, EXECUTE_HEAD, EXECUTED, EXECUTED_HEAD
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.log.partition_log import PartitionLog
from shmbroker.shm.counters import DISK, DISK_HAS_FAILED, DISK_HAS_ROOM, DISK_IS_FULL
from shmbroker.wire import codec
from shmbroker.wire.api_keys import OFFSET_COMMIT
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.support.broker_family import BROKER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC_ID, topic
from tests.support.raw_client import batch_of
from tests.unit.broker.broker_turns import BATCH, KEY, family

__all__ = ["family"]


def test_a_full_disk_refuses_appends_until_there_is_room(family: BrokerFamily) -> None:
    family.boot(*topic())
    word = family.counters.at(BROKER, DISK)
    for space, is_full in [(Space(1 << 40, 0), True), (Space(1 << 40, 1 << 39), False)]:
        family.space = space
        family.clock.now += 2
        family.broker.turn()
        assert family.words[word] == (DISK_IS_FULL if is_full else DISK_HAS_ROOM)
        family.append(1, KEY, BATCH)
        family.broker.turn()
        ((_, error_code, _),) = family.appended()
        assert bool(error_code) == is_full


def test_what_can_not_be_made_ready_ahead_is_told_and_ends_nothing(
    family: BrokerFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.boot(*topic())
    told: list[Any] = []
    partition = family.broker.partitions[KEY]
    fault = StorageFault("too many open files")

    def refuse(*_: Any) -> bool:
        raise fault

    monkeypatch.setattr(PartitionLog, "populate_step", refuse)
    monkeypatch.setattr(family.broker.appender, "on_storage_fault", lambda *what: told.append(what))
    count = 0
    while not told:
        family.append(count, KEY, batch_of(bytes(10_000)))
        family.broker.turn()
        count += 1
    assert told == [(partition, fault)]
    assert family.appended() == [(token, 0, token) for token in range(count)]


def test_a_disk_that_failed_is_shown_where_its_room_can_not_be_looked_at(
    family: BrokerFamily,
) -> None:
    family.boot(*topic())
    word = family.counters.at(BROKER, DISK)
    family.space = OSError(EIO, "Input/output error")
    for is_fenced in (False, True):
        if is_fenced:
            family.broker.store.fence(OSError(EIO, "Input/output error"))
        family.clock.now += 2
        family.broker.turn()
        assert family.words[word] == (DISK_HAS_FAILED if is_fenced else DISK_HAS_ROOM)


def look_at_the_disk(family: BrokerFamily) -> list[str]:
    """Let the broker look; the files that it syncs."""
    family.clock.now += 2
    family.broker.turn()
    jobs = [os.readlink(f"/proc/self/fd/{fd}") for fds, _ in family.flusher.jobs for fd in fds]
    family.broker.turn()
    return [os.path.basename(path) for path in jobs]


def test_a_file_system_that_has_given_up_takes_the_log_directory_offline(
    family: BrokerFamily,
) -> None:
    """Its mapped files take what is stored all the same, and it does not call itself read-only."""
    family.boot(*topic())
    look_at_the_disk(family)
    family.append(1, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == [(1, 0, 0)]
    family.flusher.fault = OSError(EROFS, "Read-only file system")
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert family.broker.store.is_fenced
    assert family.words[family.counters.at(BROKER, DISK)] == DISK_HAS_FAILED
    family.append(2, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == [(2, KAFKA_STORAGE_ERROR, -1)]


def test_the_disk_is_probed_after_appends_and_faults_alone(family: BrokerFamily) -> None:
    """A device of an idle broker may sleep."""
    family.boot(*topic())
    look_at_the_disk(family)
    assert look_at_the_disk(family) == []
    family.append(1, KEY, BATCH)
    family.broker.turn()
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert look_at_the_disk(family) == []
    fault = StorageFault("can't write")
    family.broker.on_storage_fault(family.broker.partitions[KEY], fault)
    assert look_at_the_disk(family) == [META_PROPERTIES]
    assert look_at_the_disk(family) == []
    assert not family.broker.store.is_fenced


@pytest.mark.parametrize("refused, is_fenced", [(EIO, True), (EMFILE, False)])
def test_a_probe_whose_file_can_not_be_opened_tells_of_the_disk_alone(
    family: BrokerFamily, monkeypatch: pytest.MonkeyPatch, refused: int, is_fenced: bool
) -> None:
    family.boot(*topic())
    look_at_the_disk(family)
    family.append(1, KEY, BATCH)
    family.broker.turn()

    def refuse(*_: Any) -> int:
        raise OSError(refused, os.strerror(refused))

    family.clock.now += 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        family.broker.turn()
    assert family.broker.store.is_fenced == is_fenced


def test_a_commit_is_answered_when_the_disk_has_it(tmp_path: Path) -> None:
    """With one replica and with several: nothing else would have the group's records flushed."""
    (_, version, named), partition = topic()
    named = {**named, "name": "__consumer_offsets"}
    row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    body = {"group_id": "g", "topics": [{"name": "__consumer_offsets", "partitions": [row]}]}
    encoded = codec.encode("OffsetCommitRequest", 7, body)
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(("TopicRecord", version, named), partition)
        family.gateway.send(EXECUTE, EXECUTE_HEAD.pack(1, OFFSET_COMMIT, 7, 0, 0, 0) + encoded)
        family.broker.turn()
        assert family.flusher.jobs and not family.gateway.taken()
        family.broker.turn()
        ((operation, payload),) = family.gateway.taken()
        assert operation == EXECUTED
        answer, _ = codec.decode("OffsetCommitResponse", 7, payload[EXECUTED_HEAD.size :])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def test_what_a_coordinator_lets_in_goes_to_the_disk_in_the_same_turn(tmp_path: Path) -> None:
    """The answer to a question comes in the turn that asks it, where this broker coordinates."""
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(*topic())
        partition = family.broker.partitions[KEY]
        assert not family.flusher.jobs

        def on_answer(_error: int) -> None:
            family.broker.acks.group_commit.want(partition)

        family.broker.exchange.verify(partition, "x", 7, 0, True, on_answer)
        family.broker.turn()
        assert family.flusher.jobs


def test_what_a_follower_had_not_on_its_disk_is_flushed_when_it_leads(tmp_path: Path) -> None:
    """Else no ack that waits for it would ever be given, until the next append."""
    named, (kind, version, row) = topic()
    row |= {"replicas": [1, 2], "leader": 2, "isr": [1, 2], "directories": [b"d" * 16] * 2}
    with broker_family(tmp_path, "shmbroker.ack.durability=fsync") as family:
        family.boot(named, (kind, version, row))
        partition = family.broker.partitions[KEY]
        partition.log.append(memoryview(BATCH), 0, 0, 0, 0)
        change = {"topic_id": TOPIC_ID, "partition_id": 0, "leader": 1, "isr": [1]}
        family.link.commit(("PartitionChangeRecord", 2, change))
        family.broker.turn()
        family.broker.turn()
        assert partition.is_leader
        assert partition.high_watermark == partition.log.log_end_offset == 1
