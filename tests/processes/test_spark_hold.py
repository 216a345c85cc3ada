"""Retention overtakes a query that is planned: its files stay for it, for as long as it asked."""

from pathlib import Path

import pytest

from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import read
from shmbroker.errors import Fault
from shmbroker.records.batch import encode_batch
from shmbroker.spark import driver, options
from shmbroker.spark.reading import reading_of
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

BATCH = encode_batch([(1, b"key", b"v" * 150_000, ())] * 4)  # two would not fit into a segment
COUNT = 40
OFTEN = ("--set", "log.retention.check.interval.ms=100")


def create(client: RawClient) -> None:
    """Segments of one batch, whose files go as soon as retention drops them."""
    client.create_topic("held", segment_bytes="1048576", file_delete_delay_ms="0")
    for _ in range(COUNT // 4):
        assert client.produce("held", BATCH)["error_code"] == 0


def delete_records(client: RawClient) -> None:
    """All of them."""
    rows = [{"partition_index": 0, "offset": COUNT}]
    body = {"timeout_ms": 30_000, "topics": [{"name": "held", "partitions": rows}]}
    answer = client.ask("DeleteRecords", 2, body)
    assert answer["topics"][0]["partitions"][0]["low_watermark"] == COUNT


def planned(address: str, hold: str, **more: str) -> tuple[options.Options, list[list[Piece]]]:
    """A batch query as its driver plans it."""
    given = {"kafka.bootstrap.servers": address, "subscribe": "held", "shmbroker.hold": hold}
    parsed = options.parse(given | more, is_stream=False)
    with driver.connect(parsed) as client:
        topics = driver.find_topics(client, parsed)
        wanted = driver.wanted_partitions(parsed, topics)
        starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
        ends = driver.resolve(client, parsed, topics, wanted, is_start=False)
        return parsed, driver.plan_tasks(client, parsed, topics, starts, ends).tasks


def offsets(parsed: options.Options, tasks: list[list[Piece]]) -> list[int]:
    """What its tasks read."""
    reading = reading_of(parsed)
    return [
        offset
        for task in tasks
        for piece in task
        for batch in read(piece, reading, ("offset",))
        for offset in batch.column("offset").to_pylist()
    ]


def test_files_of_a_planned_query_outlive_retention_for_as_long_as_it_asked() -> None:
    with Broker(*OFTEN) as broker, RawClient(broker.address) as client:
        create(client)
        directory: Path = broker.data / "node-1" / "held-0"

        long = planned(broker.address, "10m", startingOffsets='{"held": {"0": 20}}')
        short = planned(broker.address, "10m", endingOffsets='{"held": {"0": 8}}')
        none = planned(broker.address, "0s")
        only_files = long[0]._replace(read_way="files"), long[1]
        delete_records(client)

        def left() -> list[int]:
            return sorted(int(path.name.split(".")[0]) for path in directory.glob("*.log*"))

        # those between the two queries are nobody's
        wait_until(lambda: 8 not in left(), "unlinking")
        assert left()[0] == 0
        assert len(list(directory.glob("*.log.deleted"))) > 2
        assert offsets(*short) == list(range(8))
        assert offsets(*only_files) == list(range(20, COUNT))
        with pytest.raises(Fault, match=r"offsets \d+ to \d+ of held-0"):
            offsets(*none)


def test_files_are_held_no_longer_than_asked() -> None:
    with Broker(*OFTEN) as broker, RawClient(broker.address) as client:
        create(client)
        _, (task,) = planned(broker.address, "1s", endingOffsets='{"held": {"0": 4}}')
        delete_records(client)
        path = Path(task[0].path)
        wait_until(lambda: not path.exists(), "retention")
        wait_until(lambda: not path.with_name(f"{path.name}.deleted").exists(), "unlinking")
