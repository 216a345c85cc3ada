"""Quiet workers of a family share a core, and part when there is much to do."""

import os

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "shared"
CORES = os.sched_getaffinity(0)

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core")


def workers(broker: Broker) -> dict[str, int]:
    """Pids of those who may share a core, by title."""
    return {title: pid for title, pid in broker.children().items() if "worker" in title}


def test_quiet_workers_share_a_core_until_there_is_much_to_do() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        pids = workers(broker)
        assert len(pids) == 3
        cores = {
            title: wait_until(
                lambda pid=pid: len(found := os.sched_getaffinity(pid)) == 1 and found,
                f"{title} to share a core",
            )
            for title, pid in pids.items()
        }
        assert len(set(map(frozenset, cores.values()))) == 1

        def is_parted() -> bool:
            for _ in range(200):  # one after the other: nobody sleeps for long
                assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
            return os.sched_getaffinity(pids["io-worker-1"]) == CORES

        wait_until(is_parted, "the I/O worker to leave the core", between=0)


def test_workers_with_replicas_or_that_may_not_stay_where_they_are() -> None:
    refusing = Broker("--set", "shmbroker.share.core=false")
    with refusing, Broker("--io-workers", "2") as replicated, Broker() as sharing:
        for title, pid in workers(sharing).items():
            wait_until(lambda pid=pid: len(os.sched_getaffinity(pid)) == 1, f"{title} to share")
        for other in (refusing, replicated):  # they have been quiet for longer
            for pid in workers(other).values():
                assert os.sched_getaffinity(pid) == CORES


def test_a_worker_whose_cores_somebody_has_set_keeps_them() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        pid = workers(broker)["io-worker-1"]
        shared = wait_until(
            lambda: len(found := os.sched_getaffinity(pid)) == 1 and found, "a shared core"
        )
        other = {min(CORES - shared)}
        os.sched_setaffinity(pid, other)
        for _ in range(2000):
            assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
            assert os.sched_getaffinity(pid) == other
