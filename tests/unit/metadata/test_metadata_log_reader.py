"""The reader: order, the committed offset, segments, snapshots, transactions, damage."""

import os
from pathlib import Path

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.metadata.changes import TopicCreated
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import LOT_RECORDS, READ_BYTES, MetadataLogReader
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.records.batch_layout import CONTROL_LEADER_CHANGE, LZ4
from shmbroker.wire import codec
from shmbroker.wire.metadata_records import encode_metadata_record
from tests.support.metadata_log import read_all

BEGIN = ("BeginTransactionRecord", 0, {"name": "t"})
END = ("EndTransactionRecord", 0, {})
ABORT = ("AbortTransactionRecord", 0, {"reason": "r"})
NO_OP = ("NoOpRecord", 0, {})


def level(number: int) -> tuple:
    return "FeatureLevelRecord", 0, {"name": "f", "feature_level": number}


def batch(base_offset: int, *rows: tuple, epoch: int = 1, compression: int = 0) -> bytes:
    return encode_batch(
        [(1000, None, encode_metadata_record(*row), ()) for row in rows],
        base_offset=base_offset,
        leader_epoch=epoch,
        codec=compression,
    )


def leader_change(base_offset: int, epoch: int) -> bytes:
    value = codec.encode("LeaderChangeMessage", 0, {"leader_id": 1})
    return control_batch(
        CONTROL_LEADER_CHANGE, value, timestamp=1000, base_offset=base_offset, leader_epoch=epoch
    )


class Log:
    """A directory that the test writes and a reader of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reader = MetadataLogReader(str(directory))

    def put(self, base_offset: int, *batches: bytes, zeros: int = 0) -> None:
        with open(self.directory / f"{base_offset:020d}.log", "ab") as file:
            file.write(b"".join(batches) + bytes(zeros))

    def levels(self, end_offset: int) -> list[int]:
        return [record[4]["feature_level"] for record in read_all(self.reader, end_offset)]


@pytest.fixture
def log(tmp_path: Path):
    log = Log(tmp_path)
    yield log
    log.reader.close()


def test_each_record_is_given_once_with_offset_and_epoch(log: Log) -> None:
    log.put(0, leader_change(0, 3), batch(1, level(1), level(2), epoch=3))
    records = read_all(log.reader, 3)
    assert [record[:4] for record in records] == [
        (1, 3, "FeatureLevelRecord", 0),
        (2, 3, "FeatureLevelRecord", 0),
    ]
    assert (log.reader.next_offset, log.reader.epoch) == (3, 3)
    assert read_all(log.reader, 3) == []
    log.put(0, batch(3, level(3), epoch=3))
    assert log.levels(4) == [3]


def test_nothing_behind_the_committed_offset_is_looked_at(log: Log) -> None:
    log.put(0, batch(0, level(1)), batch(1, level(2)), b"garbage" * 100)
    assert log.levels(1) == [1]
    assert log.levels(2) == [2]


def test_allocated_zeros_end_a_segment(log: Log) -> None:
    log.put(0, batch(0, level(1)), zeros=70_000)
    log.put(1, batch(1, level(2)), zeros=70_000)
    assert log.levels(2) == [1, 2]


def test_segments_follow_each_other(log: Log) -> None:
    for base_offset in (0, 2, 4):
        log.put(base_offset, batch(base_offset, level(base_offset), level(base_offset + 1)))
    assert log.levels(4) == [0, 1, 2, 3]
    assert log.levels(6) == [4, 5]


def test_more_than_one_pread_and_a_batch_larger_than_one(log: Log) -> None:
    many = [level(number) for number in range(20_000)]
    large = batch(0, *many)
    assert len(large) > READ_BYTES
    log.put(0, large, batch(20_000, level(7)))
    assert log.levels(20_001) == [*range(20_000), 7]


def test_a_large_batch_comes_in_lots(log: Log) -> None:
    log.put(0, batch(0, *[level(number) for number in range(2500)]), batch(2500, level(7)))
    lots = [len(lot or ()) for lot in log.reader.lots(2501)]
    assert lots == [LOT_RECORDS, LOT_RECORDS, 501]
    log.put(0, batch(2501, BEGIN, *[level(number) for number in range(2500)]), batch(5002, END))
    lots = [len(lot or ()) for lot in log.reader.lots(5003)]
    assert lots == [0, 0, 2500]  # nothing of it before its end


@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_follower_shows_a_large_decision_at_its_last_step(log: Log, is_transaction: bool) -> None:
    follower = MetadataFollower(log.reader, "cluster")
    topic_id = bytes(range(16))
    rows: list[tuple] = [("TopicRecord", 0, {"name": "t", "topic_id": topic_id})]
    for index in range(9_998):
        partition = {"partition_id": index, "topic_id": topic_id, "replicas": [1], "isr": [1]}
        rows.append(("PartitionRecord", 2, partition | {"leader": 1, "directories": [topic_id]}))
    if is_transaction:
        batches = [batch(0, BEGIN), batch(1, *rows[:5000]), batch(5001, *rows[5000:])]
        batches.append(batch(10_000, END))
    else:
        batches = [batch(0, *rows), batch(9_999, NO_OP, NO_OP)]
    log.put(0, *batches, batch(10_001, level(1)))
    before, steps = follower.image, 1
    while (changes := follower.advance(10_001)) is None:
        assert follower.image is before and follower.is_midway
        steps += 1
    assert steps >= 9_999 // LOT_RECORDS and not follower.is_midway
    (change,) = changes
    assert isinstance(change, TopicCreated) and len(change.topic.partitions) == 9_998
    assert follower.image.topics_by_id == {topic_id: change.topic}
    assert follower.image.offset == 10_001  # the last one came when it was under way
    assert follower.catch_up(10_002) == [] and follower.image.features == {"f": 1}


def test_compressed_batches_are_read(log: Log) -> None:
    log.put(0, batch(0, level(1), level(2), compression=LZ4))
    assert log.levels(2) == [1, 2]


def test_no_ops_are_left_out(log: Log) -> None:
    log.put(0, batch(0, NO_OP), batch(1, level(1), NO_OP))
    assert log.levels(3) == [1]
    assert log.reader.next_offset == 3


def test_transaction_is_given_out_at_its_end(log: Log) -> None:
    log.put(0, batch(0, BEGIN, level(1)), batch(2, level(2)))
    assert log.levels(3) == []
    assert log.reader.is_in_transaction
    log.put(0, batch(3, level(3), END, level(4)))
    assert log.levels(6) == [1, 2, 3, 4]
    assert not log.reader.is_in_transaction


def test_aborted_transaction_is_not_given_out(log: Log) -> None:
    log.put(0, batch(0, level(1), BEGIN, level(2)), batch(3, level(3), ABORT, level(4)))
    assert log.levels(6) == [1, 4]
    assert not log.reader.is_in_transaction


def test_latest_snapshot_saves_the_walk(log: Log) -> None:
    for offset, number in ((2, 70), (4, 80)):
        snapshot = batch(0, level(number), level(number + 1))
        (log.directory / f"{offset:020d}-{5:010d}.checkpoint").write_bytes(snapshot)
    # the segment begins before the snapshot's end, and the log's first one is gone
    log.put(3, batch(3, level(3)), batch(4, level(4)), batch(5, level(5)))
    assert log.levels(6) == [80, 81, 4, 5]
    assert log.reader.next_offset == 6


def test_batch_that_straddles_a_snapshots_end_is_taken_from_there(log: Log) -> None:
    (log.directory / f"{2:020d}-{1:010d}.checkpoint").write_bytes(batch(0, level(70)))
    log.put(0, batch(0, level(0)), batch(1, level(1), level(2)))
    assert log.levels(3) == [70, 2]


def test_snapshot_alone_is_enough(log: Log) -> None:
    (log.directory / f"{9:020d}-{5:010d}.checkpoint").write_bytes(batch(0, level(1)))
    assert log.levels(9) == [1]
    assert (log.reader.next_offset, log.reader.epoch) == (9, 5)


def test_snapshot_beyond_the_committed_offset_is_not_taken(log: Log) -> None:
    (log.directory / f"{9:020d}-{5:010d}.checkpoint").write_bytes(batch(0, level(1)))
    log.put(0, batch(0, level(2)))
    assert log.levels(1) == [2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ends at offset 0"),
        (batch(0, level(1)), "ends at offset 1"),
        (batch(0, level(1)) + bytes(5000), "ends at offset 1"),
        (batch(0, level(1)) + batch(2, level(2)), "offsets 2 to 2 where 1"),
        (batch(0, level(1), level(2), level(3)), "offsets 0 to 2 where 0 to 1"),
        (batch(0, level(1)) + batch(1, level(2))[:-1], "ends at offset 1"),
        (batch(0, level(1)) + batch(1, level(2))[:-1] + b"!", "is damaged"),
        (encode_batch([(1, None, b"\x01\x63\x00", ())] * 2), "unknown metadata record 99"),
        (encode_batch([(1, None, b"", ())] * 2), "position 0"),
        (encode_batch([(1, None, None, ())] * 2), "position 0"),
        (batch(0, level(1))[:8] + b"\x7f\xff\xff\xff" + bytes(100), "no batch at position 0"),
    ],
)
def test_what_is_not_a_log_up_to_the_committed_offset_is_refused(
    log: Log, content: bytes, says: str
) -> None:
    log.put(0, content)
    with pytest.raises(CorruptFault, match=says):
        read_all(log.reader, 2)


def test_missing_log_is_refused(log: Log) -> None:
    with pytest.raises(CorruptFault, match="ends at offset 0"):
        read_all(log.reader, 1)


def test_damaged_snapshot_is_refused(log: Log) -> None:
    snapshot = batch(0, level(1)) + b"half a batch"
    (log.directory / f"{3:020d}-{1:010d}.checkpoint").write_bytes(snapshot)
    with pytest.raises(CorruptFault, match="no batch at position"):
        read_all(log.reader, 4)


def test_follower_is_where_the_reader_is(log: Log) -> None:
    follower = MetadataFollower(log.reader, "cluster")
    log.put(0, leader_change(0, 4), batch(1, level(1), epoch=4))
    assert follower.catch_up(2) == []
    assert follower.image.features == {"f": 1}
    image = follower.image
    assert (image.offset, image.epoch, image.cluster_id) == (2, 4, "cluster")
    assert follower.catch_up(2) == []
    assert follower.image is image
    log.put(0, leader_change(2, 5))
    follower.catch_up(3)
    assert (follower.image.offset, follower.image.epoch) == (3, 5)


def test_a_disk_that_can_not_be_read_is_a_fault(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.put(0, batch(0, level(1)))

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", fail)
        with pytest.raises(StorageFault, match=r"can't read .*Input/output error"):
            log.levels(1)
