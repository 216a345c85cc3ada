"""Backups of running families under load, and what is served after a restore."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmbroker import clock
from shmbroker.backup import manifest
from shmbroker.backup.asking import FamilyClient
from shmbroker.backup.restoring import restore
from shmbroker.backup.taking import Taken, Taking, prune
from shmbroker.backup.target import open_target
from shmbroker.client.reader.asking import Consumer as Asking
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import QUICK, Broker
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.object_store import StoreFault
from shmbroker.tools.log_files import read_batches
from shmbroker.tools.log_verify import verify
from tests.processes import test_compaction
from tests.support.acknowledged_load import Load, batch_now, read_numbers
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

SMALL = {"segment_bytes": "1048576", "file_delete_delay_ms": "0"}
OFTEN = ("--set", "log.retention.check.interval.ms=100")


def take(
    broker: Broker, target: str | Path, before_cut: Callable[[], object] | None = None
) -> Taken:
    """A backup; `before_cut` runs between the finished segments and the cut."""

    class Client(FamilyClient):
        def cut(self, firsts):  # type: ignore[no-untyped-def]
            if before_cut is not None:
                before_cut()
            return super().cut(firsts)

    with Client(Asking(broker.address), str(broker.data)) as client:
        return Taking(client, open_target(str(target), None, None), client.cluster_id()).run()


def put_back(target: str | Path, data: Path, replicas: int | None = None) -> manifest.Backup:
    """Restore the latest; all that is there is right."""
    store = open_target(str(target), None, None)
    backup = manifest.load(store, manifest.names(store)[-1])
    restore(store, backup, str(data), replicas)
    assert [each.fault for each in verify(str(data)) if each.fault] == []
    return backup


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
    """A topic of some segments."""
    with Broker(*OFTEN) as broker, RawClient(broker.address) as client:
        client.create_topic("filled", **SMALL)
        fill(client, 5)
        yield broker, client


def fill(client: RawClient, count: int) -> None:
    for _ in range(count):
        assert client.produce("filled", batch_now(*[b"v" * 150_000] * 4))["error_code"] == 0


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


class Failing(DirectoryStore):
    """Dies at its `fatal`th write."""

    def __init__(self, root: str, fatal: int) -> None:
        super().__init__(root)
        self.left = fatal

    def put(self, key: str, data: bytes) -> None:
        self._count(key)
        super().put(key, data)

    def put_file(self, key: str, path: str, size: int) -> None:
        self._count(key)
        super().put_file(key, path, size)

    def _count(self, key: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreFault(f"{key}: no room")


def test_backup_that_is_interrupted_anywhere_is_none(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, _ = filled
    with FamilyClient(Asking(broker.address), str(broker.data)) as client:
        fatal = 0
        while True:
            root = str(tmp_path / f"backups-{fatal}")  # else it has what the one before has left
            try:
                Taking(client, Failing(root, fatal), client.cluster_id(), copies=True).run()
                break
            except StoreFault:
                assert manifest.names(DirectoryStore(root)) == []
            fatal += 1
    assert fatal == 7  # five segments, the metadata, the manifest
    put_back(root, tmp_path / "data")


def test_killed_backup_is_none_and_the_next_is_whole(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, client = filled
    fill(client, 60)
    target = tmp_path / "backups"
    words = ["backup", str(target), "--copy", "-b", broker.address]
    command = [sys.executable, "-m", "shmbroker", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: next(target.glob("segments/*/*/*"), None), "its first segment")
        running.send_signal(signal.SIGKILL)
    names = manifest.names(DirectoryStore(str(target)))
    assert names == [] or running.returncode == 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ segments stored .* \d+ were there", done.stdout)
    assert not list(target.glob("segments/*/*/*.tmp"))
    put_back(target, tmp_path / "data")


def test_restore_refuses_what_it_would_spoil(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, _ = filled
    taken = take(broker, tmp_path / "backups")
    store = DirectoryStore(str(tmp_path / "backups"))
    with pytest.raises(ConfigFault, match="is not empty"):
        restore(store, taken.backup, str(broker.data))
    for place in (broker.data / "node-1" / "x", broker.data / "node-1" / "x-0" / "y"):
        with pytest.raises(ConfigFault, match="is inside the log directory"):
            restore(store, taken.backup, str(place))
        with pytest.raises(ConfigFault, match="is inside the log directory"):
            take(broker, place)
        assert not place.exists()
    segment = taken.backup.partitions[0].segments[0]
    copied = tmp_path / "backups" / segment.key
    data = bytearray(copied.read_bytes())
    data[1000] ^= 1
    copied.unlink()  # a link is the broker's own file
    copied.write_bytes(data)
    with pytest.raises(CorruptFault, match="is damaged"):
        restore(store, taken.backup, str(tmp_path / "data"))
    command = [sys.executable, "-m", "shmbroker", "serve", "--data", str(tmp_path / "data")]
    refused = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "or that was interrupted" in refused.stderr
    with pytest.raises(ConfigFault, match="was interrupted"):
        restore(store, taken.backup, str(tmp_path / "data"))


def test_commands_tell_what_they_do(filled: tuple[Broker, RawClient], tmp_path: Path) -> None:
    broker, _ = filled
    target = str(tmp_path / "backups")
    environment = os.environ | {"SHMBROKER_BOOTSTRAP_SERVER": broker.address}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "shmbroker", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    assert run("restore", target, "--data", str(tmp_path / "data")).startswith(
        "1: shmbroker: there is no whole backup"
    )
    assert "5 segments stored" in run("backup", target)
    assert '"stored": 0' in run("backup", target, "--json")
    assert len(run("backup", "list", target).splitlines()) == 3
    assert "2.9 MiB" in run("backup", "list", target)
    assert run("backup", "verify", target).count(": ok\n") == 2
    names = manifest.names(DirectoryStore(target))
    first = tmp_path / "backups" / "backups" / f"{names[0]}.json"
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    assert f"1: shmbroker: the backup {names[0]} can't be used" in run("backup", "list", target)
    assert "1 of 2 backups can't be restored" in run("backup", "verify", target)
    assert run("backup", "verify", target, "--backup", names[1], "--json").startswith("{")
    first.write_bytes(whole)
    assert " removed\n" in run("backup", "prune", target, "--keep", "1")
    told = run("restore", target, "--data", str(tmp_path / "data"))
    assert f"Serve it with: shmbroker serve --data {tmp_path / 'data'}" in told
    assert "is not empty" in run("restore", target, "--data", str(tmp_path / "data"))


def test_clock_is_one_of_the_host() -> None:
    """Whether brokers stood still at one moment is judged by it."""
    ask = "from shmbroker import clock; print(clock.monotonic_ns())"
    before = clock.monotonic_ns()
    told = int(subprocess.check_output([sys.executable, "-c", ask]))
    assert before < told < clock.monotonic_ns()
