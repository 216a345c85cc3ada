"""A disk or a directory of one replica is gone: the others have everything, and lead."""

import os
import shutil
import signal

import pytest

from shmbroker.testing.broker import Broker
from tests.processes.test_replicas import (
    TOPIC,
    assert_replicas_are_equal,
    partition_rows,
    partition_rows_of,
    wait_for_all_in_sync,
)
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

FLAGS = ("--replicas", "3", "--controllers", "3")
PARTITIONS = 3
RECORDS = 200


def produce(broker: Broker) -> None:
    """With acks=all, to each partition."""
    for row in wait_for_all_in_sync(broker):
        with RawClient(f"127.0.0.1:{broker.port + row['leader_id'] - 1}") as client:
            for number in range(RECORDS):
                batch = batch_now(b"%d" % number)
                answer = client.produce(TOPIC, batch, partition=row["partition_index"])
                assert answer["error_code"] == 0


def assert_all_is_there(broker: Broker, lost: int, partitions: set[int]) -> None:
    """And the broker that has lost something leads none of these partitions."""

    def high_watermarks() -> list[int]:
        ends = []
        for row in partition_rows_of(broker):
            with RawClient(f"127.0.0.1:{broker.port + row['leader_id'] - 1}") as client:
                ends.append(client.fetch(TOPIC, 0, row["partition_index"])["high_watermark"])
        return ends

    wait_until(lambda: high_watermarks() == [RECORDS] * PARTITIONS, "all records")
    with RawClient(broker.address) as client:
        rows = partition_rows(client)
    assert all(row["leader_id"] != lost for row in rows if row["partition_index"] in partitions)
    wait_for_all_in_sync(broker)


def lines(broker: Broker, *words: str) -> list[str]:
    return [line for line in broker.lines if all(word in line for word in words)]


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_replicas_that_are_whole_lead_and_fill_the_others(durability: str) -> None:
    with Broker(*FLAGS, "--set", f"shmbroker.ack.durability={durability}") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS)
        produce(broker)

        # All are killed, and one disk is replaced.
        os.kill(broker.pid, signal.SIGKILL)
        broker.process.wait()
        node = broker.data / "node-2"
        shutil.rmtree(node)
        node.mkdir()
        broker.start()
        assert_all_is_there(broker, 2, {0, 1, 2})
        assert len(lines(broker, "broker 2 has a new log directory", "3 replicas")) == 1
        assert not lines(broker, "is cut from") and not lines(broker, "nobody leads")

        # Stopped, and only the directory of a partition is gone where it is led.
        leader = partition_rows_of(broker)[0]["leader_id"]
        assert broker.stop() == 0
        shutil.rmtree(broker.data / f"node-{leader}" / f"{TOPIC}-0")
        broker.start()
        assert_all_is_there(broker, leader, {0})
        assert lines(broker, f"io-worker-{leader}", f"{TOPIC}-0 is gone, and was there")
        assert lines(broker, f"{TOPIC}-0 is led by broker", f"broker {leader} lacks")
        assert not lines(broker, "is cut from")

        # The same where all are killed.
        leader = partition_rows_of(broker)[0]["leader_id"]
        broker.kill()
        shutil.rmtree(broker.data / f"node-{leader}" / f"{TOPIC}-0")
        broker.start()
        assert_all_is_there(broker, leader, {0})
        assert lines(broker, f"io-worker-{leader}", f"{TOPIC}-0 is gone")
        assert broker.stop() == 0
        assert_replicas_are_equal(broker, PARTITIONS)
