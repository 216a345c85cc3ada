"""Each kind of file of a partition, harmed in each way while nobody runs: one start meets them all.

What must hold: nothing harmed is ever given out; what can be derived is, and the log goes on where
it ended; what can't be is refused at first, and soon missing, so that consumers go on behind it; it
is kept beside the directory; a line says which partition; the others don't notice; no process ends.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.crc32c import crc32c
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.records.batch_layout import ATTRIBUTES_POSITION, LOG_OVERHEAD
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.support import damaged_directory as directory
from tests.support.acknowledged_load import batch_now
from tests.support.damaged_directory import (
    IN_SEGMENT,
    RECORDS,
    RECOVERY_POINT,
    TOPIC,
    Damage,
    value_of,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

LAST = RECOVERY_POINT
SEGMENTS = range(0, RECORDS, IN_SEGMENT)
DERIVED = (
    *(f"{base:020d}{suffix}" for base in SEGMENTS for suffix in (".index", ".timeindex")),
    *(f"{base:020d}.snapshot" for base in (IN_SEGMENT, RECORDS)),
    "leader-epoch-checkpoint",
    "partition.metadata",
)
FILES = (*DERIVED, *(f"{base:020d}.log" for base in SEGMENTS))
CASES = [(name, damage) for name in FILES for damage in directory.ALL]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made")
    directory.make(data, len(CASES) + 1)
    return data


@pytest.fixture(params=["clean stop", "power cut"])
def harmed(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Iterator[Broker]:
    """A broker on a directory in which partition n+1 met CASES[n], and partition 0 nothing."""
    data = tmp_path / "data"
    shutil.copytree(made, data)
    if request.param == "power cut":
        directory.forget_clean_stop(data)
    for partition, (name, damage) in enumerate(CASES, 1):
        damage(data / "node-1" / f"{TOPIC}-{partition}" / name)
    with Broker(data=data) as broker:
        yield broker


def served(client: RawClient, partition: int) -> tuple[set[int], dict[int, int]]:
    """The offsets that can be read, and the error code of each that can't; all is looked at."""
    found: set[int] = set()
    refused: dict[int, int] = {}
    for offset in range(RECORDS):
        if offset in found:
            continue
        answer = client.fetch(TOPIC, offset, partition, max_bytes=700)
        if answer["error_code"] or not answer["records"]:
            refused[offset] = answer["error_code"]
            continue
        records = bytes(answer["records"])
        for position, header in iterate_batches(records):
            end = position + LOG_OVERHEAD + header[1]
            assert crc32c(records[position + ATTRIBUTES_POSITION : end]) == header[4]
            for record in iterate_records(records, position):
                assert record[3] == value_of(record[0])
                found.add(record[0])
    return found, refused


def check(broker: Broker, client: RawClient, partition: int, name: str, damage: Damage) -> None:
    found, refused = served(client, partition)
    end = RECORDS
    if name in DERIVED:
        assert not refused
    else:
        base = int(name[:20])
        lost = set(range(RECORDS)) - found
        # An offset or an epoch that is wrong by its neighbours is set right.
        assert lost or f"/{TOPIC}-{partition}/{name}: base offset" in broker.log, "unnoticed"
        assert min(lost, default=base) >= base, "before the damage all is well"
        # Nothing but the harmed segment is lost.
        assert max(lost, default=base) < base + IN_SEGMENT
        beyond = {offset for offset, error in refused.items() if error == error_codes.NONE}
        if base == LAST and beyond:
            (end,) = beyond  # the log was cut
        else:
            wanted = {error_codes.KAFKA_STORAGE_ERROR}
            # Nobody knows of a first segment that is not there.
            if base == 0 and damage in (directory.remove, directory.make_directory):
                wanted.add(error_codes.OFFSET_OUT_OF_RANGE)
            assert set(refused.values()) <= wanted
        paths = (f"/{TOPIC}-{partition}/", f"/{TOPIC}-{partition} ")
        wait_until(lambda: any(path in broker.log for path in paths), "its line")
    sequence = {"producer_id": directory.PRODUCER_ID, "producer_epoch": 0, "base_sequence": end}
    answer = client.produce(TOPIC, batch_now(b"new", **sequence), partition)
    assert (answer["error_code"], answer["base_offset"]) == (error_codes.NONE, end)


def goes_on(client: RawClient, partition: int) -> bool:
    """Whether a consumer gets from what is there first to the end, over all that is missing."""
    offset = 0
    while offset < RECORDS:
        answer = client.fetch(TOPIC, offset, partition, max_bytes=700)
        if answer["error_code"] == error_codes.OFFSET_OUT_OF_RANGE and not offset:
            offset = IN_SEGMENT  # That the first segment was there, nothing tells.
            continue
        if answer["error_code"]:
            return False
        if not answer["records"]:
            return True
        for _, header in iterate_batches(bytes(answer["records"])):
            offset = header[0] + header[6] + 1
    return True


def test_harm_to_the_files_of_partitions(harmed: Broker) -> None:
    children = harmed.children()
    with RawClient(harmed.address) as client:
        assert served(client, 0) == (set(range(RECORDS)), {})
        faults = []
        for partition, (name, damage) in enumerate(CASES, 1):
            try:
                check(harmed, client, partition, name, damage)
            except AssertionError as fault:
                faults.append(f"{name} {damage.__name__}: {str(fault).splitlines()[:1]}")
        assert not faults, "\n".join(faults)
        for partition, (name, damage) in enumerate(CASES, 1):
            what = f"a consumer of {name} {damage.__name__}"
            wait_until(lambda partition=partition: goes_on(client, partition), what)
        assert client.produce(TOPIC, batch_now(b"new"), 0)["base_offset"] == RECORDS
    assert harmed.children() == children, "a process ended"
    assert "Traceback" not in harmed.log
    assert harmed.stop() == 0
