"""A broker whose turns are looked at: its family, and work that takes time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.ids import partition_key
from tests.support.broker_family import BrokerFamily, broker_family
from tests.support.family_memory import TOPIC_ID, topic
from tests.support.raw_client import batch_of

TAKES_S = 0.0005
"""What an append to a new log takes, and to open or to delete one."""
BATCH = batch_of(b"value")
KEY = partition_key(TOPIC_ID, 0)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[BrokerFamily]:
    with broker_family(tmp_path) as made:
        yield made


def slow(family: BrokerFamily, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but it takes time."""

    def slowly(*arguments: Any) -> Any:
        family.clock.now += TAKES_S
        return work(*arguments)

    return slowly


def topic_of(count: int) -> list[tuple[str, int, dict[str, Any]]]:
    """A topic of many partitions in place of `topic`."""
    named, (kind, version, partition) = topic()
    return [named, *((kind, version, partition | {"partition_id": at}) for at in range(count))]
