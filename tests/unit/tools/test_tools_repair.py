"""`log repair`: what is derived comes back, what is not is put aside, the rest is left alone."""

import fcntl
import itertools
import os
import shutil
from pathlib import Path

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.log.checkpoints import (
    CLEANER,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offsets,
    write_offsets,
)
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.partition_metadata import write_partition_metadata
from shmbroker.records.batch import encode_batch, iterate_batches
from shmbroker.tools.log_repair import repair
from shmbroker.tools.log_verify import verify

COUNT = 100
CONFIG = LogConfig({"segment.bytes": "8000", "index.interval.bytes": "500"})


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node-1"
    directory = LogDirectory.open(str(path), 1, "cluster")
    log = PartitionLog.open(str(path / "t-0"), CONFIG, file_ids=itertools.count(1))
    for number in range(COUNT):
        batch = encode_batch([(1000 + number, b"k", bytes(150), ())])
        log.append(memoryview(batch), 0, 1000 + number, 0, 0)
    write_partition_metadata(str(path / "t-0" / "partition.metadata"), bytes(range(16)))
    directory.close_clean([("t", 0, log)], {("t", 0): COUNT})
    return path


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def segments(node: Path) -> list[Path]:
    return sorted((node / "t-0").glob("*.log"))


def count_records(node: Path) -> int:
    return sum(len(list(iterate_batches(path.read_bytes()))) for path in segments(node))


def test_nothing_wrong_is_left_as_it_is(node: Path) -> None:
    before = {path: path.read_bytes() for path in node.rglob("*") if path.is_file()}
    assert list(repair(str(node.parent), is_applied=True)) == []
    assert {path: path.read_bytes() for path in node.rglob("*") if path.is_file()} == before


DERIVED = {
    "index": lambda node: flip(segments(node)[0].with_suffix(".index"), 6),
    "time index": lambda node: flip(segments(node)[0].with_suffix(".timeindex"), 3),
    "torn index": lambda node: os.truncate(segments(node)[0].with_suffix(".index"), 13),
    "epochs": lambda node: flip(node / "t-0" / "leader-epoch-checkpoint", 0),
    "snapshot": lambda node: flip(next((node / "t-0").glob("*.snapshot")), 3),
    "torn tail": lambda node: os.truncate(
        segments(node)[-1], segments(node)[-1].stat().st_size - 9
    ),
    "left .deleted": lambda node: (node / "t-0" / ("0" * 20 + ".log.deleted")).write_bytes(b"x"),
    "left .cleaned": lambda node: (node / "t-0" / ("0" * 20 + ".log.cleaned")).write_bytes(b"x"),
    "checkpoint": lambda node: flip(node / "recovery-point-offset-checkpoint", 0),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_is_made_anew(node: Path, name: str) -> None:
    DERIVED[name](node)
    told = list(repair(str(node), is_applied=False))
    assert [(row.is_done, bool(row.action)) for row in told] == [(False, True)]
    done = list(repair(str(node), is_applied=True))
    assert [row._replace(is_done=False) for row in done] == told
    assert done[0].is_done
    assert all(verdict.fault is None for verdict in verify(str(node)))
    assert count_records(node) == (COUNT - 1 if name == "torn tail" else COUNT)
    assert list(repair(str(node), is_applied=True)) == []


def swap_two(node: Path) -> None:
    first, second, *_ = segments(node)
    second.write_bytes(first.read_bytes())


def move(node: Path, number: int, offset: int) -> None:
    """The base offset of the third batch of a segment is another."""
    path = segments(node)[number]
    content = bytearray(path.read_bytes())
    (position, _), *_ = list(iterate_batches(bytes(content)))[2:]
    content[position : position + 8] = offset.to_bytes(8, "big")
    path.write_bytes(content)


# The second segment has offsets 36 to 71.
LOST = {
    "flipped in the middle": (lambda node: flip(segments(node)[1], 500), 1, {38}),
    "cut in the middle": (lambda node: os.truncate(segments(node)[1], 700), 1, set(range(39, 72))),
    "another's content": (swap_two, 1, set(range(36, 72))),
    "flipped in the last": (lambda node: flip(segments(node)[-1], 100), -1, {72}),
    "an offset that goes back": (lambda node: move(node, 1, 2), 1, set()),
    "an offset beyond the next": (lambda node: move(node, 1, 41), 1, set()),
    "an offset beyond the segment": (lambda node: move(node, 1, 5000), 1, set()),
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_is_put_aside(node: Path, name: str) -> None:
    damage, number, lost = LOST[name]
    damage(node)
    damaged = segments(node)[number]
    (told,) = repair(str(node / "t-0"), is_applied=False)
    (row,) = repair(str(node / "t-0"), is_applied=True)
    assert told == row._replace(is_done=False)
    assert row.is_done
    assert damaged.name in row.fault
    assert all(verdict.fault is None for verdict in verify(str(node)))
    assert list(repair(str(node), is_applied=True)) == []
    aside = node.parent / "quarantine" / "node-1" / "t-0"
    if lost and name != "cut in the middle":
        assert [path.name for path in aside.iterdir()] == [f"{min(lost):020d}.log"]
    # What is whole is served, and readers jump over the rest.
    cleaned = read_offsets(str(node / CLEANER)).get(("t", 0), 0)
    assert cleaned == max(lost, default=-1) + 1
    log = PartitionLog.open(
        str(node / "t-0"),
        CONFIG,
        file_ids=itertools.count(1),
        clean=False,
        recovery_point=read_offsets(str(node / RECOVERY_POINT))["t", 0],
        cleaned_offset=cleaned,
    )
    assert log.log_end_offset == COUNT
    found = set()
    offset = 0
    while offset < COUNT:
        segment, position, length = log.read(offset, 1000, COUNT) or pytest.fail("out of range")
        for _, header in iterate_batches(segment.read_bytes(position, length)):
            found.add(header[0])
            offset = header[0] + 1
    assert found == set(range(COUNT)) - lost
    log.close(clean=False)


def test_segment_that_leads_nowhere_is_put_aside(node: Path) -> None:
    stray = node / "t-0" / "09000000000000000000.log"
    stray.touch()
    within = node / "t-0" / f"{50:020d}.log"
    within.touch()
    assert len(list(repair(str(node), is_applied=True))) == 2
    assert not stray.exists()
    assert not within.exists()
    aside = node.parent / "quarantine" / "node-1" / "t-0"
    assert {path.name for path in aside.iterdir()} == {stray.name, within.name}
    assert count_records(node) == COUNT
    assert all(verdict.fault is None for verdict in verify(str(node)))


def test_checkpoint_that_knows_too_much_is_lowered(node: Path) -> None:
    path = str(node / LOG_START_OFFSET)
    write_offsets(path, {("t", 0): 5000})
    (row,) = repair(str(node), is_applied=True)
    assert row.is_done
    assert read_offsets(path) == {("t", 0): 0}
    assert list(repair(str(node), is_applied=True)) == []
    assert count_records(node) == COUNT


def test_partition_that_is_gone_is_told(node: Path) -> None:
    shutil.rmtree(node / "t-0")
    (row,) = repair(str(node), is_applied=True)
    assert (row.action, row.is_done) == ("", False)
    assert f"{node / 't-0'} is gone" in row.fault


def test_identity_can_not_be_derived(node: Path) -> None:
    flip(node / "meta.properties", 4)
    flip(node / "t-0" / "partition.metadata", 0)
    told = list(repair(str(node), is_applied=True))
    assert [(row.action, row.is_done) for row in told] == [("", False)] * 2


def test_running_broker_is_left_alone(node: Path) -> None:
    with open(node.parent / ".supervisor.lock", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigFault, match="stop it first"):
            list(repair(str(node), is_applied=True))


def test_log_directory_of_a_family_elsewhere_is_left_alone(node: Path) -> None:
    held = os.open(node, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigFault, match="stop it first"):
            list(repair(str(node / "t-0"), is_applied=True))
    finally:
        os.close(held)
