"""A disk that loses what it was given, or fails to write it: named, never served, others go on."""

import os
import signal
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.processes.test_replicas import wait_for_all_in_sync
from tests.support.acknowledged_load import batch_now, leader_of, read_values
from tests.support.preloaded import preload
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

NOT_LEADER = 6
STORAGE_ERROR = 56
FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* fails while the file $FAIL_WHERE is there, for files whose path holds what is in it */
static int is_to_fail(int fd) {
    char wanted[256] = "", link[64], path[4096];
    int trigger = open(getenv("FAIL_WHERE"), O_RDONLY);
    if (trigger < 0) return 0;
    ssize_t size = read(trigger, wanted, sizeof wanted - 1);
    close(trigger);
    if (size <= 0) return 0;
    wanted[size] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return strstr(path, wanted) != NULL;
}

int fdatasync(int fd) {
    if (is_to_fail(fd)) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a piece of a path into this file, and fdatasync of such files fails."""
    return preload(FAILING_SYNC, tmp_path, monkeypatch)


def log_dir_of(client: RawClient) -> dict:
    (found,) = client.ask("DescribeLogDirs", 4, {"topics": None})["results"]
    return found


def test_failed_fdatasync_takes_the_directory_offline_and_nothing_else(failing: Path) -> None:
    flags = ("--io-workers", "2")
    with Broker(*flags) as broker, RawClient(broker.address) as client:
        other_address = broker.address.rpartition(":")[0] + f":{broker.port + 1}"
        children = broker.children()
        for name, node in (("durable", 1), ("plain", 1), ("other", 2)):
            topic = {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [node]}],
                "configs": [{"name": "shmbroker.ack.durability", "value": "fsync"}]
                if name == "durable"
                else [],
            }
            body = {"topics": [topic], "timeout_ms": 10_000}
            assert client.ask("CreateTopics", 7, body)["topics"][0]["error_code"] == 0
        assert client.produce("durable", batch_now(b"before"))["error_code"] == 0
        assert client.produce("plain", batch_now(b"plain"))["error_code"] == 0
        failing.write_text("durable-0/")
        assert client.produce("durable", batch_now(b"lost"))["error_code"] == STORAGE_ERROR
        failing.unlink()
        # It is not tried again: the kernel may have dropped what it could not write.
        for _ in range(3):
            for topic in ("durable", "plain"):
                assert client.produce(topic, batch_now(b"v"))["error_code"] == STORAGE_ERROR
                assert client.fetch(topic, 0)["error_code"] == STORAGE_ERROR
        assert log_dir_of(client)["error_code"] == STORAGE_ERROR
        wait_until(lambda: "it is offline" in broker.log, "the line that says so")
        assert broker.log.count("it is offline") == 1
        with RawClient(other_address) as other:
            assert other.produce("other", batch_now(b"v"))["error_code"] == 0
            assert log_dir_of(other)["error_code"] == 0
        assert broker.children() == children, "a process ended"
        broker.stop()
        broker.start()
        with RawClient(broker.address) as after:
            wait_until(lambda: after.fetch("durable", 0)["error_code"] == 0, "the topic")
            assert read_values(after, "durable", 0)[0] == b"before"


def test_failed_fdatasync_of_a_leader_lets_a_replica_lead(failing: Path) -> None:
    with Broker("--replicas", "3") as broker:

        def leader() -> str:
            return leader_of(broker.address, "moved", 0) or ""

        with RawClient(broker.address) as client:
            client.create_topic("moved", shmbroker_ack_durability="fsync")
        wait_for_all_in_sync(broker, "moved")
        first = leader()
        node = int(first.rpartition(":")[2]) - broker.port + 1
        with RawClient(first) as client:
            assert client.produce("moved", batch_now(b"before"))["error_code"] == 0
            failing.write_text(f"node-{node}/moved-0/")
            assert client.produce("moved", batch_now(b"unknown"))["error_code"] != 0
            failing.unlink()
            wait_until(lambda: leader() != first, "another leader")
            wait_until(
                lambda: client.produce("moved", batch_now(b"v"))["error_code"] == NOT_LEADER,
                "it to send clients there",
            )
        with RawClient(leader()) as client:
            assert client.produce("moved", batch_now(b"after"))["error_code"] == 0
            values = read_values(client, "moved", 0)
        assert [value for value in values if value != b"unknown"] == [b"before", b"after"]


def test_failed_fdatasync_of_the_metadata_log_ends_the_controller(failing: Path) -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic("before")
        controller = broker.children()["controller-1"]
        failing.write_text("__cluster_metadata-0/")
        body = {
            "topics": [{"name": "lost", "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 1000,
        }
        os.kill(broker.pid, signal.SIGSTOP)  # a successor would end as well, and the next is late
        client.send("CreateTopics", 7, body)
        wait_until(lambda: "fdatasync in" in broker.log, "its line")
        failing.unlink()
        os.kill(broker.pid, signal.SIGCONT)
        wait_until(
            lambda: broker.children().get("controller-1", controller) != controller, "its successor"
        )
        with RawClient(broker.address) as again:
            assert again.produce("before", batch_now(b"v"))["error_code"] == 0
            after = {"topics": [{"name": "after", "num_partitions": 1, "replication_factor": 1}]}

            def is_made() -> bool:
                (topic,) = again.ask("CreateTopics", 7, after | {"timeout_ms": 1000})["topics"]
                return topic["error_code"] == error_codes.NONE

            wait_until(is_made, "a controller that is active")


def test_damaged_segment_is_named_and_the_rest_is_served() -> None:
    with Broker() as broker:
        with RawClient(broker.address) as client:
            client.create_topic("hurt", 1, segment_bytes=str(1 << 20))
            client.create_topic("whole")
            for number in range(30):
                batch = batch_now(b"%02d" % number + bytes(100_000))
                assert client.produce("hurt", batch)["error_code"] == 0
                assert client.produce("whole", batch)["error_code"] == 0
        assert broker.stop() == 0
        first, second, *_ = sorted((broker.data / "node-1" / "hurt-0").glob("*.log"))
        # The content of the first under the name of the second.
        second.write_bytes(first.read_bytes())
        for suffix in (".index", ".timeindex"):
            second.with_suffix(suffix).write_bytes(first.with_suffix(suffix).read_bytes())
        broker.start()
        children = broker.children()
        with RawClient(broker.address) as client:
            assert len(read_values(client, "whole", 0)) == 30
            offset = int(second.stem)
            assert client.fetch("hurt", 0)["error_code"] == 0
            assert client.fetch("hurt", offset)["error_code"] == STORAGE_ERROR
            assert client.fetch("hurt", 29)["error_code"] == 0
            wait_until(lambda: second.name in broker.log, "its line")
            assert client.produce("hurt", batch_now(b"v"))["error_code"] == 0
        assert broker.children() == children, "a process ended"
        assert os.path.exists(second)
