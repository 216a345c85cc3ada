"""The wall clock is set while a broker runs: what comes again after a while goes on as before."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import list_segments
from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import RECOVERY_POINT, read_offsets
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.shm.counters import CLEANER_WANTED
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT
from tests.support.broker_family import BROKER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC, TOPIC_ID, topic

SET_BY_S = 86_400
KEY = partition_key(TOPIC_ID, 0)
SETTINGS = (
    "log.flush.interval.ms=5000",
    "log.retention.check.interval.ms=1000",
    "log.segment.delete.delay.ms=3000",
)
BATCH = encode_batch([(1_700_000_000_000, b"key", b"value", [])])
Begin = Callable[..., tuple[BrokerFamily, Partition]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """A broker with a partition, after a round of upkeep."""
    opened = []

    def made(*settings: str, **of_topic: str) -> tuple[BrokerFamily, Partition]:
        context = broker_family(tmp_path, *SETTINGS, *settings)
        family = context.__enter__()
        opened.append(context)
        rows = [
            {
                "resource_type": TOPIC_RESOURCE,
                "resource_name": TOPIC,
                "name": name.replace("_", "."),
                "value": value,
            }
            for name, value in of_topic.items()
        ]
        family.boot(*topic(), *(("ConfigRecord", 0, row) for row in rows))
        pass_s(family, 2)
        return family, family.broker.partitions[KEY]

    yield made
    for context in opened:
        context.__exit__(None, None, None)


def pass_s(family: BrokerFamily, seconds: int) -> None:
    for _ in range(seconds):
        family.clock.now += 1
        family.broker.turn()


def append(family: BrokerFamily) -> None:
    family.append(1, KEY, BATCH)
    family.broker.turn()


def two_segments(family: BrokerFamily, partition: Partition) -> None:
    append(family)
    partition.log.roll(family.clock.now_ms())
    append(family)


def deleted_files(partition: Partition) -> list[str]:
    return [path.name for path in Path(partition.log.directory).glob("*.log.deleted")]


def test_logs_are_flushed_and_checkpoints_written_when_it_is_set_back(
    begin: Begin, tmp_path: Path
) -> None:
    family, partition = begin()
    append(family)
    pass_s(family, 1)
    family.clock.wall_ahead_s -= SET_BY_S
    pass_s(family, 3)
    assert partition.log.recovery_point == 0
    pass_s(family, 4)
    assert partition.log.recovery_point == 1
    pass_s(family, 60)
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {(TOPIC, 0): 1}


def test_retention_and_removals_go_on_when_it_is_set_back(begin: Begin) -> None:
    family, partition = begin("log.retention.bytes=1")
    two_segments(family, partition)
    family.clock.wall_ahead_s -= SET_BY_S
    pass_s(family, 2)
    assert [segment.base_offset for segment in partition.log.segments] == [1]
    assert deleted_files(partition)
    pass_s(family, 4)
    assert not deleted_files(partition)


def test_what_was_about_to_be_removed_goes_when_it_is_set_back(begin: Begin) -> None:
    family, partition = begin("log.retention.bytes=1")
    two_segments(family, partition)
    pass_s(family, 2)
    assert deleted_files(partition)
    family.clock.wall_ahead_s -= SET_BY_S
    pass_s(family, 4)
    assert not deleted_files(partition)


def test_logs_are_compacted_when_it_is_set_back(begin: Begin) -> None:
    family, partition = begin(
        "log.cleanup.policy=compact",
        "log.cleaner.min.cleanable.ratio=0",
        "log.cleaner.backoff.ms=4000",
    )
    two_segments(family, partition)
    wanted = family.counters.at(BROKER, CLEANER_WANTED)
    family.clock.wall_ahead_s -= SET_BY_S
    pass_s(family, 5)
    assert family.words[wanted]


def test_files_are_held_for_as_long_as_asked_when_it_is_set_forward(begin: Begin) -> None:
    family, partition = begin("log.retention.bytes=1")
    two_segments(family, partition)
    row = {"partition": 0, "hold_start_offset": 0, "hold_end_offset": 1}
    body = {"hold_ms": 20_000, "topics": [{"topic_id": TOPIC_ID, "partitions": [row]}]}
    call: Any = SimpleNamespace(api_version=0)
    list_segments.answer(family.broker, call, body)
    family.clock.wall_ahead_s += SET_BY_S
    pass_s(family, 15)
    assert deleted_files(partition)
    pass_s(family, 10)
    assert not deleted_files(partition)


def test_the_store_is_asked_again_and_lookups_end_when_it_is_set_back(
    begin: Begin, tmp_path: Path
) -> None:
    family, partition = begin(
        f"shmbroker.tier.store=file://{tmp_path / 'store'}",
        "remote.list.offsets.request.timeout.ms=5000",
        "remote.log.manager.task.interval.ms=1000",
        remote_storage_enable="true",
    )
    tiering: Any = family.broker.tiering
    asked: list[Callable[[dict[str, Any]], None]] = []

    def ask(_key: int, _name: str, _body: object, on_answer: Any) -> bool:
        asked.append(on_answer)
        return True

    tiering.table.ask = ask
    told: list[tuple[int, int, int]] = []
    tiering.find_time(partition, 0, lambda *found: told.append(found))
    asked.pop()({"error_code": KAFKA_STORAGE_ERROR})
    family.clock.wall_ahead_s -= SET_BY_S
    pass_s(family, 3)
    assert len(asked) == 1
    assert not told
    pass_s(family, 3)
    assert told == [(REQUEST_TIMED_OUT, -1, -1)]
