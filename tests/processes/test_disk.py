"""A full disk: Produce is refused with KAFKA_STORAGE_ERROR, everything else goes on.

No process ends, nothing is half written, and Produce resumes by itself when there is room again.
"""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from tests.processes.test_replicas import TOPIC as REPLICATED
from tests.processes.test_replicas import partition_rows_of, wait_for_all_in_sync
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "disks"
DISK_BYTES = 12 << 20
STORAGE_ERROR = 56
VALUE = b"v" * 100_000
TO_THE_BRINK = ("--set", "shmbroker.disk.reserve.bytes=0")
"""Nothing is refused before the disk itself refuses it."""


class Disk:
    """A small file system of its own, and a file that takes its room away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / "filler"

    def fill(self, but: int = 0) -> None:
        """Leave no page free, or so many bytes."""
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while not but or self.free() > but:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def give_room(self) -> None:
        self.filler.unlink()


@contextmanager
def mounted_at(mounted: Path) -> Iterator[Disk]:
    mounted.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small file system")
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "shmbroker-test", str(mounted)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"can't mount a small file system: {done.stderr.strip()}")
    try:
        yield Disk(mounted)
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_at(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    with ExitStack() as stack:
        yield [stack.enter_context(mounted_at(tmp_path / f"disk-{n}")) for n in (1, 2, 3)]


def produce_until_full(client: RawClient, count_max: int = 1000) -> int:
    """Produce until it is refused; how many batches went in."""
    for count in range(count_max):
        error = client.produce(TOPIC, batch_now(b"%d " % count + VALUE))["error_code"]
        if error:
            assert error == STORAGE_ERROR
            return count
    raise AssertionError("the disk never filled up")


def check_values(client: RawClient, count: int) -> None:
    """The topic holds the numbers up to `count`, and nothing else."""
    values = read_values(client, TOPIC, 0)
    assert [value.partition(b" ")[0] for value in values] == [b"%d" % n for n in range(count)]


def test_produce_is_refused_on_a_full_disk_and_resumes(disk: Disk) -> None:
    with Broker(*TO_THE_BRINK, data=disk.path) as broker, RawClient(broker.address) as client:
        children = broker.children()
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_now(b"0 "))
        disk.fill()
        count = 1
        while not (error := client.produce(TOPIC, batch_now(b"%d " % count + VALUE))["error_code"]):
            count += 1  # what was allocated ahead
        assert error == STORAGE_ERROR
        for _ in range(3):
            assert client.produce(TOPIC, batch_now(VALUE))["error_code"] == STORAGE_ERROR
        check_values(client, count)
        assert broker.log.count("no space for") == 1, "one line, not one for each request"
        disk.give_room()
        assert client.produce(TOPIC, batch_now(b"%d " % count + VALUE))["error_code"] == 0
        check_values(client, count + 1)
        assert broker.children() == children, "a process ended"
        assert broker.stop() == 0
        broker.start()
        with RawClient(broker.address) as after:
            check_values(after, count + 1)


def test_log_that_fills_the_disk_itself_is_read_whole_and_can_be_deleted(disk: Disk) -> None:
    with Broker(*TO_THE_BRINK, "--set", "log.segment.delete.delay.ms=0", data=disk.path) as broker:
        children = broker.children()
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            client.create_topic("other")
            count = produce_until_full(client)
            assert count * len(VALUE) > DISK_BYTES / 2
            check_values(client, count)
            # What clients ask for that needs room is refused, or does without.
            answer = client.ask("DeleteTopics", 5, {"topic_names": [TOPIC], "timeout_ms": 10_000})
            assert answer["responses"][0]["error_code"] == 0
            wait_until(
                lambda: client.produce("other", batch_now(VALUE))["error_code"] == 0,
                "the room of the deleted topic",
            )
        assert broker.children() == children, "a process ended"
        assert broker.stop() == 0


def test_processes_killed_on_a_full_disk_come_back_and_serve_reads(disk: Disk) -> None:
    with Broker(*TO_THE_BRINK, data=disk.path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        count = produce_until_full(client)
        disk.fill()
        for title in ("io-worker-1", "controller-1", "network-worker-1"):
            before = broker.children()[title]
            os.kill(before, signal.SIGKILL)
            wait_until(
                lambda title=title, before=before: broker.children().get(title, before) != before,
                f"the successor of {title}",
            )
            with RawClient(broker.address) as again:
                wait_until(lambda again=again: again.fetch(TOPIC, 0)["error_code"] == 0, "a fetch")
                check_values(again, count)
        disk.give_room()
        with RawClient(broker.address) as again:
            wait_until(
                lambda: again.produce(TOPIC, batch_now(b"%d " % count))["error_code"] == 0,
                "an append",
            )
            check_values(again, count + 1)
            again.create_topic("after")
        assert broker.stop() == 0


def test_topic_made_on_a_full_disk_is_served_when_there_is_room(disk: Disk) -> None:
    with Broker(*TO_THE_BRINK, data=disk.path) as broker, RawClient(broker.address) as client:
        disk.fill()
        answer = client.ask(
            "CreateTopics",
            7,
            {
                "topics": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}],
                "timeout_ms": 10_000,
            },
        )["topics"][0]
        assert answer["error_code"] in (0, STORAGE_ERROR)
        disk.give_room()
        if answer["error_code"]:
            client.create_topic(TOPIC)
        wait_until(
            lambda: client.produce(TOPIC, batch_now(b"0 "))["error_code"] == 0, "the topic's log"
        )
        check_values(client, 1)


def test_file_size_limit_refuses_appends_and_harms_nothing() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        children = broker.children()
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_now(b"0 "))
        limit = resource.prlimit(children["io-worker-1"], resource.RLIMIT_FSIZE)
        resource.prlimit(children["io-worker-1"], resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
        count = 1
        while not (error := client.produce(TOPIC, batch_now(b"%d " % count + VALUE))["error_code"]):
            count += 1
        assert error == STORAGE_ERROR
        check_values(client, count)
        resource.prlimit(children["io-worker-1"], resource.RLIMIT_FSIZE, limit)
        assert client.produce(TOPIC, batch_now(b"%d " % count))["error_code"] == 0
        check_values(client, count + 1)
        assert broker.children() == children


def test_controller_without_room_refuses_and_lets_a_worker_come_back() -> None:
    def create(client: RawClient, name: str, partitions: int) -> int:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        body = {"topics": [topic], "timeout_ms": 10_000}
        return client.ask("CreateTopics", 7, body)["topics"][0]["error_code"]

    with Broker() as broker, RawClient(broker.address) as client:
        children = broker.children()
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_now(b"0 "))
        controller = children["controller-1"]
        limit = resource.prlimit(controller, resource.RLIMIT_FSIZE)
        resource.prlimit(controller, resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
        # Large decisions first, then small ones for what is left of the metadata log's extent.
        for partitions in (300, 100, 30, 10, 3, 1):
            names = (f"{TOPIC}-{partitions}-{number}" for number in range(100))
            assert STORAGE_ERROR in (create(client, name, partitions) for name in names)
        os.kill(children["io-worker-1"], signal.SIGKILL)
        wait_until(lambda: client.produce(TOPIC, batch_now(b"1 "))["error_code"] == 0, "the worker")
        check_values(client, 2)
        wait_until(lambda: "keeps its registration" in broker.log, "its line")
        resource.prlimit(controller, resource.RLIMIT_FSIZE, limit)
        assert create(client, f"{TOPIC}-after", 1) == 0
        assert broker.children()["controller-1"] == controller


def test_produce_is_refused_before_the_disk_is_full_while_groups_go_on(disk: Disk) -> None:
    reserve = DISK_BYTES // 4
    flags = ("--set", f"shmbroker.disk.reserve.bytes={reserve}")
    with Broker(*flags, data=disk.path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        offsets = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
            ],
        }
        coordinator = {"key": "g", "key_type": 0}
        wait_until(
            lambda: client.ask("FindCoordinator", 3, coordinator)["error_code"] == 0,
            "a coordinator",
        )
        with open(disk.filler, "ab", buffering=0) as file:
            while free_bytes(disk.path) >= reserve:
                file.write(bytes(64 << 10))
        wait_until(
            lambda: client.produce(TOPIC, batch_now(b"v"))["error_code"] == STORAGE_ERROR,
            "a refusal",
        )
        end = len(read_values(client, TOPIC, 0))
        answer = client.ask("OffsetCommit", 8, offsets)["topics"][0]["partitions"][0]
        assert answer["error_code"] == 0
        disk.give_room()
        wait_until(lambda: client.produce(TOPIC, batch_now(b"v"))["error_code"] == 0, "room again")
        assert len(read_values(client, TOPIC, 0)) == end + 1
        wait_until(lambda: "less than the reserve" in broker.log, "its line")


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def test_others_lead_while_a_brokers_disk_is_full(disks: list[Disk], tmp_path: Path) -> None:
    words = [word for disk in disks for word in ("--log-dir", str(disk.path))]
    reserve = ("--set", f"shmbroker.disk.reserve.bytes={2 << 20}")
    small = ("--set", "log.segment.bytes=1048576", "--set", "min.insync.replicas=2")
    with Broker("--replicas", "3", *words, *reserve, *small, data=tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(REPLICATED)

        def leader() -> int:
            return partition_rows_of(broker)[0]["leader_id"]

        def produce(value: bytes) -> int:
            with RawClient(f"127.0.0.1:{broker.port + leader() - 1}") as client:
                return client.produce(REPLICATED, batch_now(value))["error_code"]

        wait_for_all_in_sync(broker)
        first = leader()
        disks[first - 1].fill(but=1 << 20)
        wait_until(lambda: leader() != first, "another leader")
        written = 0
        while written < 50:
            written += produce(b"%d " % written) == 0
        assert first in partition_rows_of(broker)[0]["isr_nodes"], "it follows: there is room left"
        disks[first - 1].give_room()
        wait_until(lambda: leader() == first, "the leader that was")
        wait_until(lambda: produce(b"50 ") == 0, "an answer of the leader that was")
        with RawClient(f"127.0.0.1:{broker.port + first - 1}") as client:
            values = read_values(client, REPLICATED, 0)
        assert values == [b"%d " % number for number in range(51)]
        assert broker.log.count("no room on the disk of broker") == 1
        assert broker.stop() == 0
