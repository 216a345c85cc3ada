"""Brokers that a reader has lost, can't find, or takes for others."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from fake_family import FakeFamily
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader import broker_client
from shmbroker.errors import ConfigFault
from shmbroker.spark.datasource import ShmbrokerDataSource
from tests.unit.spark.spark_readers import COLUMNS, FILES, IMPATIENT, batch_rows, family, source

__all__ = ["family"]


def test_a_lost_connection_is_made_again(family: FakeFamily) -> None:
    family.create("t")[0].fill(5)
    reader = source(family).streamReader(COLUMNS)
    start = reader.initialOffset()
    family.drop_connections()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    family.drop_connections()
    assert reader.partitions(start, start) == []
    reader.stop()


def test_a_leader_that_moves_is_asked_again(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5)
    made[0].error = 6

    def heal(name: str) -> None:
        if family.asked.count("ListSegments") == 2:
            made[0].error = 0

    family.on_ask = heal
    assert len(batch_rows(family)) == 5


def test_an_error_that_stays_is_told(family: FakeFamily) -> None:
    made = family.create("t")
    made[0].fill(5)
    made[0].error = 6
    with pytest.raises(ClusterFault, match="NOT_LEADER_OR_FOLLOWER"):
        batch_rows(family, **IMPATIENT)
    made[0].error = 29
    with pytest.raises(ClusterFault, match="TOPIC_AUTHORIZATION_FAILED"):
        batch_rows(family)


def test_nobody_there_is_told() -> None:
    with pytest.raises(ClusterFault, match=r"No broker at 127\.0\.0\.1:1 answered"):
        ShmbrokerDataSource(
            {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **IMPATIENT}
        ).reader(COLUMNS).partitions()


def test_a_broker_elsewhere_is_told(family: FakeFamily, tmp_path: Path) -> None:
    family.create("t")[0].fill(5)
    family.log_dir = str(tmp_path / "not-here" / "node-1")
    with pytest.raises(ClusterFault, match=r"not a running shmbroker on this host.*shmbroker.data"):
        batch_rows(family, **FILES)
    assert len(batch_rows(family)) == 5  # fetched
    assert len(batch_rows(family, **FILES, **{"shmbroker.data": str(family.data)})) == 5


def test_a_directory_with_another_name_than_the_broker_s_id_is_found(family: FakeFamily) -> None:
    partition = family.create("t")[0]
    partition.fill(5)
    moved = family.data / "node-7" / "t-0"
    moved.parent.mkdir()
    os.rename(partition.directory, moved)
    partition.directory = moved
    assert len(batch_rows(family, **FILES, **{"shmbroker.data": str(family.data)})) == 5


def test_a_control_socket_of_somebody_else_is_told(
    family: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.create("t")[0].fill(5)

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(broker_client.os, "open", refuse)
    with pytest.raises(ClusterFault, match="run Spark as the broker's user"):
        batch_rows(family, **FILES)
    assert len(batch_rows(family)) == 5  # fetched


@pytest.mark.parametrize("servers", ["h", "h:x", ":1", ","])
def test_a_bad_address_is_refused(servers: str) -> None:
    with pytest.raises(ConfigFault):
        ShmbrokerDataSource({"kafka.bootstrap.servers": servers, "subscribe": "t"}).reader(
            COLUMNS
        ).partitions()
