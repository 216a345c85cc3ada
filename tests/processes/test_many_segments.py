"""Partitions of many segments: what a start opens, maps and keeps, not how long it takes."""

from perf import family
from shmbroker.ipc.passed_files import FILES_MAX
from shmbroker.log.descriptors import Descriptors
from shmbroker.processes.guest_gateway import FILES_KEPT
from shmbroker.testing.broker import Broker
from tests.support.many_segments import BATCHES, fill
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

NOW_MS = 1_700_000_000_000
PARTITIONS, SEGMENTS = 200, 20
SEGMENTS_READ = 16
OPEN_MAX = Descriptors().limit
OTHERS_MAX = 120
"""Descriptors of a process besides those of segments: rings, sockets, doorbells, pidfds."""


def test_descriptors_and_maps_stay_bounded(tmp_path):
    broker = Broker(data=tmp_path / "data")
    try:
        with RawClient(broker.address) as client:
            client.create_topic("many", PARTITIONS)
        node = broker.data / "node-1"
        wait_until(lambda: len(list(node.glob("many-*"))) == PARTITIONS, "all logs")
        assert broker.stop() == 0
        fill(broker.data / "node-1", "many", PARTITIONS, SEGMENTS, NOW_MS)
        broker.start()
        children = broker.children()
        assert family.maps(broker.pid, "/node-1/many-") == 0
        assert family.descriptors(children["io-worker-1"]) <= OPEN_MAX + OTHERS_MAX
        with RawClient(broker.address) as client:
            for segment in range(SEGMENTS_READ):
                fetch_all(client, segment * BATCHES)
        assert max(OPEN_MAX, FILES_MAX) < PARTITIONS * SEGMENTS_READ, "no bound was reached"
        # A client that was lent to it is sent from descriptors that it has twice.
        assert family.descriptors(children["io-worker-1"]) <= OPEN_MAX + FILES_KEPT + OTHERS_MAX
        for name, pid in children.items():
            if name.startswith("network-worker"):
                assert family.descriptors(pid) <= FILES_MAX + OTHERS_MAX
        assert family.maps(broker.pid, "/node-1/many-") == 0
    finally:
        broker.stop()


def fetch_all(client, offset):
    """The records at one offset of every partition."""
    partitions = [
        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1000}
        for partition in range(PARTITIONS)
    ]
    body = {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 16 << 20,
        "topics": [{"topic": "many", "partitions": partitions}],
    }
    answer = client.ask("Fetch", 11, body)
    found = answer["responses"][0]["partitions"]
    assert len(found) == PARTITIONS
    for row in found:
        assert row["error_code"] == 0
        assert int.from_bytes(row["records"][:8], "big") == offset
