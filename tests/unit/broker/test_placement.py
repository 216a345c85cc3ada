"""Logs that the disk has no room for: opened once it has, unless they were moved by then."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from tests.support.broker_family import BrokerFamily, broker_family
from tests.support.family_memory import BROKER_ID, TOPIC_ID, topic

KEY = partition_key(TOPIC_ID, 0)
OTHER_ID = 2


def change(**fields: Any) -> tuple[str, int, dict[str, Any]]:
    return "PartitionChangeRecord", 2, {"partition_id": 0, "topic_id": TOPIC_ID, **fields}


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerFamily]:
    """Its disk has no room for the log of the one partition that is placed here."""

    def refuse(*_: Any) -> None:
        raise StorageFault("no space left on device")

    with broker_family(tmp_path) as made:
        with monkeypatch.context() as patch:
            patch.setattr(made.broker.store, "open", refuse)
            made.boot(*topic())
        assert not made.broker.partitions
        yield made


def look_again(family: BrokerFamily) -> None:
    """The next round, in which what failed is tried again."""
    for _ in range(3):
        family.clock.now += 1
        family.broker.turn()


def test_a_log_is_opened_when_there_is_room(full: BrokerFamily) -> None:
    look_again(full)
    assert full.broker.partitions[KEY].is_leader
    assert not full.broker.placement.unopened


def test_a_log_that_was_moved_elsewhere_meanwhile_is_not_opened(full: BrokerFamily) -> None:
    elsewhere = {"replicas": [OTHER_ID], "isr": [OTHER_ID], "leader": OTHER_ID}
    full.link.commit(change(**elsewhere))
    look_again(full)
    assert KEY not in full.broker.partitions
    full.link.commit(change(replicas=[BROKER_ID], isr=[BROKER_ID], leader=BROKER_ID))
    look_again(full)
    assert full.broker.partitions[KEY].is_leader, "it has come back"


def test_a_log_whose_topic_is_deleted_meanwhile_is_not_opened(full: BrokerFamily) -> None:
    full.link.commit(("RemoveTopicRecord", 0, {"topic_id": TOPIC_ID}))
    look_again(full)
    assert KEY not in full.broker.partitions
