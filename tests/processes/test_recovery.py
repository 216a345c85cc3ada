"""The whole family dies, or only its supervisor: nothing is left, and the next start has it all."""

import os
import signal
from pathlib import Path

import pytest

from shmbroker.processes.shared_resources import region_prefix
from shmbroker.processes.supervisor import EXIT_CHILD_BOOT
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import Load, batch_now, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "recoveries"
SHARED_MEMORY = "/dev/shm"


def names_of(broker: Broker) -> list[str]:
    """What the family has left in shared memory."""
    prefix = region_prefix(str(broker.data))
    return [name for name in os.listdir(SHARED_MEMORY) if name.startswith(prefix)]


def loaded(broker: Broker) -> Load:
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC, 3)
    load = Load(broker.address, TOPIC)
    load.wait_for_more()
    return load


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("flags", [[], ["--io-workers", "2"]], ids=["1 worker", "2 workers"])
def test_killed_family_recovers_by_itself(tmp_path: Path, flags: list[str]) -> None:
    with Broker(*flags, data=tmp_path) as broker:
        load = loaded(broker)
        for _ in range(2):
            broker.kill()
            assert names_of(broker) == []
            broker.start()
            load.wait_for_more()
        load.finish()
        load.check(broker.address)


def test_children_end_with_their_supervisor_and_the_next_start_follows_at_once(
    tmp_path: Path,
) -> None:
    with Broker(data=tmp_path) as broker:
        load = loaded(broker)
        for _ in range(2):
            children = broker.children()
            assert len(children) == 4
            os.kill(broker.pid, signal.SIGKILL)
            broker.start()  # while the children of the first are dying
            for title, pid in children.items():
                assert not is_alive(pid), f"{title} outlived its supervisor"
            load.wait_for_more()
        load.finish()
        load.check(broker.address)
        assert names_of(broker) == []


def test_names_left_in_shared_memory_by_a_killed_start_are_swept(tmp_path: Path) -> None:
    left = Path(SHARED_MEMORY) / f"{region_prefix(str(tmp_path))}rings"
    left.write_bytes(b"left between creating and unlinking")
    with Broker(data=tmp_path):
        assert not left.exists()


def test_successor_of_an_io_worker_reads_little_of_a_large_log(tmp_path: Path) -> None:
    batch = batch_now(b"x" * 900_000)
    # A lent connection may end with the process that is killed.
    flags = ("--set", "shmbroker.lend.connections=false")
    with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        for _ in range(64):
            assert client.produce(TOPIC, batch)["error_code"] == 0
        dead = broker.children()["io-worker-1"]
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: client.produce(TOPIC, batch)["error_code"] == 0, "the successor")
        successor = broker.children()["io-worker-1"]
        assert successor != dead
        counts = dict(
            line.split(": ") for line in Path(f"/proc/{successor}/io").read_text().splitlines()
        )
        # The last batch and some metadata; what it took over while it was forked counts too.
        assert int(counts["rchar"]) < 8 * len(batch)


def test_start_after_a_clean_stop_reads_little_of_a_large_log(tmp_path: Path) -> None:
    batch = batch_now(b"x" * 900_000)
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(64):
                assert client.produce(TOPIC, batch)["error_code"] == 0
        assert broker.stop() == 0
        broker.start()
        pid = broker.children()["io-worker-1"]
        counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        assert int(counts["rchar"]) < 8 * len(batch)


def test_damage_behind_the_recovery_point_is_cut_and_the_rest_served(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for number in range(10):
                client.produce(TOPIC, batch_now(b"%d" % number))
            size = len(batch_now(b"0"))
        broker.kill()
        log = tmp_path / "node-1" / f"{TOPIC}-0" / f"{0:020d}.log"
        content = bytearray(log.read_bytes())
        content[7 * size + 64] ^= 1
        log.write_bytes(content)
        broker.start()
        with RawClient(broker.address) as client:
            assert read_values(client, TOPIC, 0) == [b"%d" % number for number in range(7)]
            assert client.produce(TOPIC, batch_now(b"new"))["base_offset"] == 7
            assert read_values(client, TOPIC, 0)[-2:] == [b"6", b"new"]


def test_successor_that_cannot_boot_ends_the_family(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        log = tmp_path / "node-1" / "__cluster_metadata-0" / f"{0:020d}.log"
        with open(log, "r+b") as file:
            file.seek(11)
            file.write(b"\xff")  # the length of the first batch
        os.kill(broker.children()["controller-1"], signal.SIGKILL)
        assert broker.process.wait(20) == EXIT_CHILD_BOOT
    assert "committed records follow" in broker.log


def test_what_a_deletion_left_behind_is_removed_by_the_next_start(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            client.produce(TOPIC, batch_now(b"1"))
            client.ask("DeleteTopics", 5, {"topic_names": [TOPIC], "timeout_ms": 10_000})
        node = tmp_path / "node-1"
        assert list(node.glob(f"{TOPIC}-0.*-delete"))
        broker.kill()
        broker.start()
        wait_until(lambda: not list(node.glob(f"{TOPIC}-0.*-delete")), "the removal")


def test_log_without_a_topic_is_set_aside(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        node = tmp_path / "node-1"
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            broker.stop()
        # As if the worker had been dead while the topic was deleted.
        (node / f"{TOPIC}-0").rename(node / "gone-0")
        metadata = node / "gone-0" / "partition.metadata"
        text = metadata.read_text()
        metadata.write_text(text[:-5] + ("AAAA" if text[-5:-1] != "AAAA" else "BBBB") + text[-1])
        broker.start()
        assert list(node.glob("gone-0.*-stray"))
        with RawClient(broker.address) as client:
            assert client.produce(TOPIC, batch_now(b"1"))["base_offset"] == 0
