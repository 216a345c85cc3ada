"""Backups of running families under load, and what is served after a restore."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmbroker import clock
from shmbroker.backup import manifest
from shmbroker.backup.taking import prune
from shmbroker.backup.target import open_target
from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import QUICK, Broker
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tools.log_files import read_batches
from tests.processes import test_compaction
from tests.support.acknowledged_load import Load, read_numbers
from tests.support.family_backups import SMALL, fill, filled_family, put_back, take
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


def batches_of(directory: Path) -> list[tuple[int, int]]:
    """(base offset, CRC) of all batches of a log."""
    return [
        (header[0], header[4])
        for path in sorted(directory.glob("*.log"))
        for _, header, _ in read_batches(str(path))
    ]


def committed(address: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return [each.offset for each in consumer.committed(asked, timeout=30)]
    finally:
        consumer.close()


class Committing:
    """A group that reads and commits without a rest, until `stop`."""

    def __init__(self, address: str, topic: str) -> None:
        self._is_over = threading.Event()
        self.commits = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "committing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._consumer.consume(200, 0.05):
                self._consumer.commit(asynchronous=False)
                self.commits += 1
        self._consumer.close()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)


def test_backups_under_load_are_each_of_one_moment(tmp_path: Path) -> None:
    """Three brokers, three replicas: what is restored is a beginning of what was produced, batch by
    batch; no committed offset is beyond it; and it goes on with one replica and with three."""
    target = tmp_path / "backups"
    with Broker(*QUICK, "--replicas", "3") as broker:
        with RawClient(broker.address) as client:
            client.create_topic("load", 3, **SMALL)
        load = Load(broker.address, "load", 3, 300)
        group = Committing(broker.address, "load")
        wait_until(lambda: group.commits > 3, "commits")
        first = take(broker, target)
        acked = list(load.acked)
        load.wait_for_more(10_000)
        wait_until(lambda: group.commits > 10, "more commits")
        second = take(broker, target)
        load.finish()
        group.stop()
        assert second.linked + first.linked
        assert set(first.backup.keys) <= {
            key for key, _ in open_target(str(target), None, None).list_objects("segments/")
        } | {first.backup.metadata_key}
        backup = put_back(target, tmp_path / "one", 1)
        put_back(target, tmp_path / "same")
        ends = {row.partition: row for row in backup.partitions if row.topic == "load"}
        for index, row in ends.items():
            whole = batches_of(broker.data / "node-1" / f"load-{index}")
            found = batches_of(tmp_path / "one" / "node-1" / f"load-{index}")
            assert found == whole[: len(found)]
            assert whole[len(found)][0] == row.high_watermark if len(found) < len(whole) else True
    for name, flags in (("one", ()), ("same", ("--replicas", "3"))):
        with Broker(*QUICK, *flags, data=tmp_path / name) as restored:
            numbers = read_numbers(restored.address, "load", 3)
            assert set(acked) <= {number for some in numbers for number in some}
            offsets = committed(restored.address, "committing", "load", 3)
            assert any(offset > 0 for offset in offsets)
            for index, offset in enumerate(offsets):
                assert offset <= len(numbers[index]) == ends[index].high_watermark
            again = Load(restored.address, "load", 3)
            again.wait_for_more(50)
            again.finish()
            assert "ERROR" not in restored.log


def test_transactions_are_whole_or_not_there(tmp_path: Path) -> None:
    """Each transaction writes its number to three partitions of three brokers. A restored family
    shows it in all of them or in none, committed ones only; the one that was open is aborted by the
    next producer of that name."""
    target = tmp_path / "backups"
    transactional = {"transactional.id": "t", "transaction.timeout.ms": 20_000}
    with Broker(*QUICK, "--io-workers", "3") as broker:
        with RawClient(broker.address) as client:
            client.create_topic("whole", 6)
        producer = Producer({"bootstrap.servers": broker.address, **transactional})
        producer.init_transactions(30)
        is_over = threading.Event()
        ended: list[int] = []

        def run() -> None:
            number = 0
            while not is_over.is_set():
                producer.begin_transaction()
                for index in range(6):
                    producer.produce("whole", b"%d" % number, partition=index)
                if number % 4 == 3:
                    producer.abort_transaction(30)
                else:
                    producer.commit_transaction(30)
                    ended.append(number)
                number += 1

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        for count in range(3):
            goal = 20 * (count + 1)
            wait_until(lambda goal=goal: len(ended) > goal, "transactions")
            before = len(ended)
            take(broker, target)
        is_over.set()
        thread.join(60)
    put_back(target, tmp_path / "data")
    with Broker(*QUICK, data=tmp_path / "data") as restored:
        again = Producer({"bootstrap.servers": restored.address, **transactional})
        again.init_transactions(60)
        found = committed_values(restored.address, "whole", 6)
        assert all(values == found[0] for values in found[1:])
        assert ended[:before] == found[0][:before]
        assert all(number % 4 != 3 for number in found[0])
        again.begin_transaction()
        again.produce("whole", b"1000000", partition=0)
        again.commit_transaction(60)
        assert committed_values(restored.address, "whole", 1)[0][-1] == 1_000_000


def committed_values(address: str, topic: str, partitions: int) -> list[list[int]]:
    """The numbers that a read_committed consumer gets, up to the end that records have."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        for index in range(partitions):
            numbers: list[int] = []
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)
            consumer.assign([TopicPartition(topic, index, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None
                if message.error():
                    assert consumer.position([TopicPartition(topic, index)])[0].offset <= end
                    break
                numbers.append(int(message.value()))
            found.append(numbers)
    finally:
        consumer.close()
    return found


@pytest.fixture
def filled() -> Iterator[tuple[Broker, RawClient]]:
    with filled_family() as made:
        yield made


def test_finished_segments_are_stored_once_and_pruned_with_the_last_backup(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, client = filled
    first = take(broker, tmp_path)
    assert (first.stored, first.linked) == (5, 4)
    fill(client, 1)
    second = take(broker, tmp_path)
    assert (second.stored, second.kept) == (1, 5)  # what was the tail has not grown
    third = take(broker, tmp_path)
    assert (third.stored, third.kept) == (0, 6)
    link = tmp_path / first.backup.partitions[0].segments[0].key
    log = broker.data / "node-1" / "filled-0" / f"{0:020}.log"
    assert link.stat().st_ino == log.stat().st_ino
    store = DirectoryStore(str(tmp_path))
    rows = [{"partition_index": 0, "offset": 16}]
    body = {"timeout_ms": 30_000, "topics": [{"name": "filled", "partitions": rows}]}
    client.ask("DeleteRecords", 2, body)
    fourth = take(broker, tmp_path)
    gone, objects, _ = prune(store, 1)
    assert gone == [each.backup.name for each in (first, second, third)]
    assert objects == 4 + 3  # segments before offset 16, and the others' metadata
    assert {key for key, _ in store.list_objects("segments/")} | {
        fourth.backup.metadata_key
    } == fourth.backup.keys
    assert manifest.names(store) == [fourth.backup.name]


def test_files_that_retention_drops_meanwhile_are_held(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    """Between the finished segments and the cut all records are deleted, and more are written."""
    broker, client = filled
    directory = broker.data / "node-1" / "filled-0"

    def meanwhile() -> None:
        rows = [{"partition_index": 0, "offset": 12}]
        body = {"timeout_ms": 30_000, "topics": [{"name": "filled", "partitions": rows}]}
        client.ask("DeleteRecords", 2, body)
        wait_until(lambda: not (directory / f"{0:020}.log").exists(), "retention")
        fill(client, 3)

    taken = take(broker, tmp_path / "backups", meanwhile)
    (row,) = (row for row in taken.backup.partitions if row.topic == "filled")
    assert (row.log_start_offset, row.high_watermark) == (12, 32)
    assert [each.base_offset for each in row.segments] == [12, 16, 20, 24, 28]
    put_back(tmp_path / "backups", tmp_path / "data")
    with Broker(data=tmp_path / "data") as restored, RawClient(restored.address) as again:
        assert again.fetch("filled", 11)["error_code"] == 1
        assert len(again.fetch("filled", 12)["records"]) > 0


def inode_of(path: Path) -> int:
    """0 while there is no such file, as between the two renames of compaction."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def test_log_that_is_compacted_meanwhile_has_the_last_value_of_each_key(tmp_path: Path) -> None:
    """Compaction joins what was stored early with what came later: the cut's files count."""
    with Broker(*test_compaction.QUICK) as broker:
        test_compaction.create(broker)
        writer = test_compaction.Writer(broker)
        writer.write(5_000)
        log = broker.data / "node-1" / f"{test_compaction.TOPIC}-0" / f"{0:020}.log"

        def meanwhile() -> None:
            inode = inode_of(log)
            writer.write(5_000)
            wait_until(lambda: inode_of(log) not in (0, inode), "compaction", 60)

        take(broker, tmp_path / "backups", meanwhile)
        put_back(tmp_path / "backups", tmp_path / "data")
    with Broker(data=tmp_path / "data") as restored:
        writer.check(restored)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_log_that_is_compacted_meanwhile_does_not_bring_a_deleted_key_back(
    tmp_path: Path, policy: str
) -> None:
    """The tombstone comes after the record has been stored early, and is gone before the cut, at
    which nothing may compact the log any more.

    Each segment is more than half full, so that compaction joins none with another.
    """
    full = {"segment.bytes": "1048576", "delete.retention.ms": "0"}
    with Broker(*test_compaction.QUICK) as broker, RawClient(broker.address) as client:
        test_compaction.create(broker, **full)
        log = broker.data / "node-1" / f"{test_compaction.TOPIC}-0"

        def write(key: str, value: bytes | None) -> None:
            record = (clock.now_ms(), key.encode(), value, [])
            row = client.produce(test_compaction.TOPIC, encode_batch([record]))
            assert row["error_code"] == 0, row

        def fill(keys: str) -> None:
            for key in keys:
                write(key, key.encode() * 300_000)

        def is_gone() -> bool:
            fill("n")  # the first compaction gives the tombstone its time, another one removes it
            return b"deleted" not in {key for _, key, _ in test_compaction.read_all(broker)}

        write("deleted", b"old")
        fill("abcdef")

        def meanwhile() -> None:
            write("deleted", None)
            fill("ghijklm")
            wait_until(is_gone, "the tombstone's end", 60)
            row = {"name": "cleanup.policy", "config_operation": 0, "value": policy}
            resource = {"resource_type": 2, "resource_name": test_compaction.TOPIC}
            body = {"resources": [resource | {"configs": [row]}], "validate_only": False}
            client.ask("IncrementalAlterConfigs", 1, body)

        take(broker, tmp_path / "backups", meanwhile)
        assert len(list(log.glob("*.log"))) > 2
        put_back(tmp_path / "backups", tmp_path / "data")
        kept = {key for _, key, _ in test_compaction.read_all(broker)}
    with Broker(data=tmp_path / "data") as restored:
        assert {key for _, key, _ in test_compaction.read_all(restored)} == kept


def test_clock_is_one_of_the_host() -> None:
    """Whether brokers stood still at one moment is judged by it."""
    ask = "from shmbroker import clock; print(clock.monotonic_ns())"
    before = clock.monotonic_ns()
    told = int(subprocess.check_output([sys.executable, "-c", ask]))
    assert before < told < clock.monotonic_ns()
