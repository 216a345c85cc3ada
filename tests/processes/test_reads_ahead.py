"""A client that reads a partition in large slices: all of it, and nothing that is not there now."""

from contextlib import closing

import pytest

from shmbroker.observe.attach import Attached, attach
from shmbroker.records.batch import iterate_batches
from shmbroker.testing.broker import Broker
from tests.processes.test_delete_records import OUT_OF_RANGE, delete
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "read-on"
BATCHES = 60
VALUE = bytes(50_000)
MAX_BYTES = 160_000
"""Three batches."""


def filled(client: RawClient) -> None:
    client.create_topic(TOPIC, segment_bytes=str(2 << 20))
    for _ in range(BATCHES):
        client.produce(TOPIC, batch_now(VALUE))


def read(client: RawClient, offset: int) -> tuple[int, list[int]]:
    """The error, and the base offsets that are answered."""
    row = client.fetch(TOPIC, offset, max_bytes=MAX_BYTES)
    records = bytes(row["records"] or b"")
    return row["error_code"], [header[0] for _, header in iterate_batches(records)]


def reads_served(seen: Attached) -> int:
    """What the I/O worker has found for readers, told ahead or asked for."""
    (worker,) = seen.observer.look(are_groups_wanted=False).of_role("io-worker")
    return worker.counted["reads_served"]


LENT = pytest.mark.parametrize("flags", [(), ("--set", "shmbroker.lend.connections=false")])


@LENT
def test_all_of_it_in_order(flags: tuple[str, ...]) -> None:
    with Broker(*flags) as broker, RawClient(broker.address) as client:
        filled(client)
        for _ in range(3):
            offsets: list[int] = []
            while len(offsets) < BATCHES:
                error, found = read(client, len(offsets))
                assert error == 0 and found
                offsets += found
            assert offsets == list(range(BATCHES))


@LENT
def test_records_that_were_deleted_meanwhile_are_out_of_range(flags: tuple[str, ...]) -> None:
    with (
        Broker(*flags) as broker,
        RawClient(broker.address) as client,
        RawClient(broker.address) as admin,
        closing(attach(broker.pid)) as seen,
    ):
        filled(client)
        asked = 0
        for start in range(5, BATCHES - 10, 10):
            for offset in (start, start, start, start + 3):
                assert read(client, offset) == (0, list(range(offset, offset + 3)))
            assert delete(admin, start + 7, TOPIC)["low_watermark"] == start + 7
            # Told of a moment ago, if anybody was told at all: the disk may have been slow.
            assert read(client, start + 6) == (OUT_OF_RANGE, [])
            asked += 5

        def is_more_told_than_asked() -> bool:
            nonlocal asked
            assert read(client, start + 7)[0] == 0
            asked += 1
            return reads_served(seen) > asked

        wait_until(is_more_told_than_asked, "what was told, and not asked for", between=0.1)
