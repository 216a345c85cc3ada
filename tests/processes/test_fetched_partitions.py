"""A topic of many partitions, fetched by one reader: what it asks for, and what it survives."""

from collections.abc import Iterator
from threading import get_ident

import pyarrow as pa
import pytest

from shmbroker import clock
from shmbroker.arrow import scan, write
from shmbroker.client.cluster import Cluster
from shmbroker.testing.broker import Broker

PARTITIONS = 40


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("many", PARTITIONS)
        rows = {"value": [str(i) for i in range(PARTITIONS)], "partition": range(PARTITIONS)}
        write(pa.table(rows), "many", bootstrap_servers=running.address)
        yield running


def values(batches: pa.RecordBatchReader) -> list[int]:
    return [int(value) for value in batches.read_all()["value"].to_pylist()]


def test_a_topic_and_its_leader_are_looked_up_once_not_for_each_partition(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    reader = get_ident()

    def note(name: str) -> None:
        if get_ident() == reader:  # a producer that an earlier test has left looks its broker up
            asked.append(name)

    for name in ("describe", "connect"):
        method = getattr(Cluster, name)

        def counted(self, *args, method=method, name=name, **more):
            note(name)
            return method(self, *args, **more)

        monkeypatch.setattr(Cluster, name, counted)
    rest = clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda seconds: (note("rest"), rest(seconds)))
    batches = scan("many", bootstrap_servers=broker.address, way="fetch", columns=["value"])
    asked.clear()
    assert values(batches) == list(range(PARTITIONS))
    tries = 1 + asked.count("rest")  # one, unless a busy broker has refused some
    assert 1 <= asked.count("describe") <= tries
    assert asked.count("connect") <= 2 * tries


def test_a_leader_that_dies_between_two_partitions_is_found_again(broker: Broker) -> None:
    batches = scan("many", bootstrap_servers=broker.address, way="fetch", columns=["value"])
    first = batches.read_next_batch()["value"].to_pylist()
    assert first == [b"0"]
    broker.kill()
    broker.start()
    assert values(batches) == list(range(1, PARTITIONS))
