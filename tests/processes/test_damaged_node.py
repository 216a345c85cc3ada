"""The files of a node itself, harmed while nobody runs: what is derived is made anew, what only
shortens the next start is done without, and what nobody can know ends the start with a sentence.

By default a few kinds of harm; all of them with SHMBROKER_DAMAGE=all.
"""

import os
import shutil
from pathlib import Path

import pytest

from shmbroker.log.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from shmbroker.log.file_names import CLEAN_SHUTDOWN
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.damaged_directory import (
    RECORDS,
    TOPIC,
    Damage,
    empty,
    fill,
    flip,
    flip_first,
    halve,
    make,
    make_directory,
    remove,
    value_of,
    zero,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

METADATA = "__cluster_metadata-0"
MARKS = {".swap", ".deleted", ".cleaned", ".tmp"}
CHECKPOINTS = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START_OFFSET, CLEANER)
DONE_WITHOUT = (*CHECKPOINTS, f"{METADATA}/quorum-state", f"{METADATA}/partition.metadata")
DERIVED = (
    f"{METADATA}/leader-epoch-checkpoint",
    f"{METADATA}/{0:020d}.index",
    f"{METADATA}/{0:020d}.timeindex",
)
IS_ALL = os.environ.get("SHMBROKER_DAMAGE") == "all"
REFUSED = ("meta.properties", f"{METADATA}/{0:020d}.log")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made")
    make(data, 1)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def start_and_check(data: Path, named: list[str]) -> None:
    """It starts, says what is wrong, and has every record."""
    with Broker(data=data) as broker:
        with RawClient(broker.address) as client:
            assert read_values(client, TOPIC, 0) == [value_of(at) for at in range(RECORDS)]
            assert client.produce(TOPIC, batch_now(b"new"))["base_offset"] == RECORDS
        for name in named:
            wait_until(lambda name=name: name in broker.log, f"a line about {name}")
        assert "Traceback" not in broker.log
        assert broker.stop() == 0


@pytest.mark.parametrize(
    "damage", [flip_first, halve, zero, fill, make_directory] if IS_ALL else [halve, make_directory]
)
def test_what_can_be_done_without_is_named_and_made_anew(data: Path, damage: Damage) -> None:
    node = data / "node-1"
    for name in (*DONE_WITHOUT, *DERIVED, CLEAN_SHUTDOWN):
        damage(node / name)
    named = [str(node / name) for name in DONE_WITHOUT]
    if damage is make_directory:
        named += [str(node / name) for name in (*DERIVED, CLEAN_SHUTDOWN)]
        assert_kept = [data / "quarantine" / "node-1" / name for name in DERIVED]
        start_and_check(data, named)
        assert all(path.is_dir() for path in assert_kept)
    else:
        start_and_check(data, named)


@pytest.mark.parametrize("damage", [empty, remove] if IS_ALL else [remove])
def test_checkpoint_that_a_clean_stop_left_is_missed(data: Path, damage: Damage) -> None:
    node = data / "node-1"
    for name in (*DONE_WITHOUT, *DERIVED):
        damage(node / name)
    start_and_check(data, [str(node / RECOVERY_POINT), f"{METADATA}/leader-epoch-checkpoint"])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in REFUSED
        for damage in ((flip, empty, halve, zero, fill, make_directory) if IS_ALL else (halve,))
        if (name, damage) != ("meta.properties", flip)  # another directory id is as good
    ],
)
def test_what_nobody_can_know_ends_the_start_with_the_fix(
    data: Path, name: str, damage: Damage
) -> None:
    path = data / "node-1" / name
    damage(path)
    with pytest.raises(RuntimeError, match="did not start") as fault:
        Broker(data=data)
    said = str(fault.value)
    assert str(path) in said
    assert "restore the file" in said
    assert "Traceback" not in said
    partition = data / "node-1" / f"{TOPIC}-0"
    assert partition.is_dir(), "its logs are not set aside for that"


def test_names_of_interrupted_work_are_settled(data: Path) -> None:
    node = data / "node-1"
    partition = node / f"{TOPIC}-0"
    gone, stray, future = (
        node / f"old-0.{'0' * 32}-{mark}" for mark in ("delete", "stray", "future")
    )
    for path in (gone, stray, future):
        shutil.copytree(partition, path)
    first = f"{0:020d}"
    for suffix in (".log", ".index", ".timeindex"):
        # Compaction was about to put this in the place of the same.
        (partition / f"{first}{suffix}").rename(partition / f"{first}{suffix}.swap")
        for mark in (".deleted", ".cleaned"):
            (partition / f"{RECORDS:020d}{suffix}{mark}").write_bytes(b"left")
    (partition / f"{first}.log.tmp").touch()
    start_and_check(data, [str(future), f"{stray}: no topic owns it"])
    assert not [path for path in partition.iterdir() if path.suffix in MARKS]
    assert (partition / f"{first}.log").exists()
    assert not gone.exists()
    assert stray.is_dir()
    assert future.is_dir()


def test_partition_that_cannot_be_opened_is_set_aside_and_begins_anew(data: Path) -> None:
    partition = data / "node-1" / f"{TOPIC}-0"
    damaged = partition / f"{0:020d}.log.swap"
    (partition / f"{0:020d}.log").rename(damaged)
    content = damaged.read_bytes()[:-5]  # it was whole when it got that name
    damaged.write_bytes(content)
    with Broker(data=data) as broker:
        with RawClient(broker.address) as client:
            assert client.produce(TOPIC, batch_now(b"new"))["base_offset"] == 0
            assert read_values(client, TOPIC, 0) == [b"new"]
        wait_until(lambda: str(damaged) in broker.log and "-stray" in broker.log, "its lines")
        assert "Traceback" not in broker.log
    (stray,) = partition.parent.glob(f"{TOPIC}-0.*-stray")
    assert (stray / damaged.name).read_bytes() == content
