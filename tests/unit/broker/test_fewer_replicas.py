"""A partition that had several replicas and has one now: who waited for the others, who followed.

The controller tells it in one record: what goes with the replicas is not told again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker.replication.followed import Link
from shmbroker.ids import partition_key
from shmbroker.ipc.passed_files import FileTable
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.words import words_of
from tests.support.broker_family import BrokerFamily, broker_family
from tests.support.family_memory import BROKER_ID, TOPIC_ID, FarEnd, topic
from tests.support.raw_client import batch_of

KEY = partition_key(TOPIC_ID, 0)
OTHER_ID = 2
BATCH = batch_of(b"value")


def with_leader(leader: int) -> list[tuple[str, int, dict[str, Any]]]:
    """A topic whose partition both brokers have, in sync."""
    named, (kind, version, partition) = topic()
    both = [BROKER_ID, OTHER_ID]
    changed = {"replicas": both, "isr": both, "leader": leader, "directories": [bytes(16)] * 2}
    return [named, (kind, version, partition | changed)]


def alone(leader: int) -> tuple[str, int, dict[str, Any]]:
    """Broker 1 has it alone from now on."""
    change = {"partition_id": 0, "topic_id": TOPIC_ID, "replicas": [BROKER_ID], "isr": [BROKER_ID]}
    return "PartitionChangeRecord", 2, change | {"leader": leader}


@pytest.fixture
def family(tmp_path: Path) -> Iterator[BrokerFamily]:
    with broker_family(tmp_path) as made:
        yield made


def test_an_ack_that_waited_for_a_replica_that_is_taken_away_comes(family: BrokerFamily) -> None:
    family.boot(*with_leader(BROKER_ID))
    family.append(7, KEY, BATCH)
    family.broker.turn()
    assert family.appended() == []
    family.link.commit(alone(BROKER_ID))
    family.broker.turn()
    family.broker.turn()
    assert family.appended() == [(7, 0, 0)]


def test_who_leads_alone_follows_nobody(family: BrokerFamily) -> None:
    fetcher = family.broker.replication.fetcher
    fd = make_eventfd()
    family.eventfds.append(fd)
    asleep = words_of(memoryview(bytearray(8)))
    leader = FarEnd(4, "io-worker", OTHER_ID, Doorbell(fd, asleep, 0))
    link = fetcher.links[OTHER_ID] = Link(leader.peer, FileTable(family.passing))
    family.boot(*with_leader(OTHER_ID))
    assert list(fetcher.rows) == [KEY] and len(link.rows) == 1
    family.link.commit(alone(BROKER_ID))
    family.broker.turn()
    assert family.broker.partitions[KEY].is_leader
    assert not fetcher.rows and not link.rows
