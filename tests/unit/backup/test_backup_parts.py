"""Backups where they lie: their manifests, what is checked, and what is pruned."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmbroker.backup import manifest
from shmbroker.backup.asking import is_one_moment
from shmbroker.backup.taking import prune
from shmbroker.backup.target import open_target
from shmbroker.backup.verifying import stray, verify
from shmbroker.cli.backup import command
from shmbroker.cli.backup import restore as put_back
from shmbroker.cli.outcome import CommandFault
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from tests.support.stored_backups import BATCH, stored


@pytest.mark.parametrize(
    ("times", "is_one"),
    [
        ([], True),
        ([(1, 1)], True),
        ([(1, 5), (5, 9)], True),
        ([(1, 4), (5, 9)], False),
        ([(1, 10), (2, 3), (4, 9)], False),
    ],
)
def test_moment_of_all(times: list[tuple[int, int]], is_one: bool) -> None:
    assert is_one_moment(times) is is_one


@pytest.mark.parametrize("at", [0, 3, 8, 9, 40, -1])
def test_damaged_manifest_is_none(tmp_path: Path, at: int) -> None:
    store = open_target(str(tmp_path), None, None)
    data = bytearray(manifest.encode(stored(store)))
    assert manifest.decode("one", bytes(data)) == stored(store)
    data[at] ^= 1
    with pytest.raises(CorruptFault, match="the backup one can't be used"):
        manifest.decode("one", bytes(data))
    with pytest.raises(CorruptFault, match="can't be used"):
        manifest.decode("one", bytes(data)[: len(data) // 2])


def test_damage_is_told_of_each_backup_that_has_it(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    backups = [stored(store, name) for name in ("one", "two")]
    key = backups[0].partitions[0].segments[0].key
    asked: list[tuple[int, int]] = []

    def faults() -> list[list[str]]:
        found = verify(store, manifest.names(store), lambda *both: asked.append(both))
        return [each.faults for each in found]

    assert faults() == [[], []]
    assert asked[-1][0] == asked[-1][1] == len(BATCH) + sum(each.metadata_size for each in backups)
    assert stray(store) == (0, 0)
    for at in (0, 30, len(BATCH) - 1):
        data = bytearray(BATCH)
        data[at] ^= 1
        store.put(key, data)
        assert faults() == [[f"{key} is damaged: its checksum is wrong"]] * 2
    store.put(key, BATCH[:-1])
    told = f"{key} is damaged: it ends at {len(BATCH) - 1}, and had {len(BATCH)} bytes"
    assert faults() == [[told]] * 2
    store.put(key, BATCH + b"later")  # a link to a file that has grown
    assert faults() == [[], []]
    store.delete([key, "metadata/two"])
    assert faults() == [[f"{key} is missing"], ["metadata/two is missing", f"{key} is missing"]]
    store.put("segments/strange", b"12345")
    assert stray(store) == (1, 5)
    store.put("backups/two.json", b"garbage")
    assert faults()[1] == [
        "the backup two can't be used: invalid literal for int() with base 16: b'garbage'"
    ]
    assert stray(store) is None


def test_what_is_missing_is_told_wherever_the_backup_is_used(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    names = tuple(f"t-{index:02}" for index in range(12))
    backup = stored(store)._replace(missing=names)
    store.put("backups/one.json", manifest.encode(backup))
    (verdict,) = verify(store, ["one"])
    shown = ", ".join(names[:10])
    lack = f"partitions that had no leader are not in it: {shown} and 2 more"
    assert verdict.faults == [lack]
    target, data = str(tmp_path / "backups"), str(tmp_path / "data")
    run = CliRunner().invoke
    with pytest.raises(CommandFault, match="1 of 1 backups can't be restored as they were"):
        run(command, ["verify", target], catch_exceptions=False)
    listed = run(command, ["list", target])
    assert "1 of 13" in listed.output
    told: list[str] = []
    for words in ([], ["--json"]):
        with pytest.raises(CommandFault, match=lack):
            run(put_back, [target, "--data", data, *words], catch_exceptions=False)
        told.append((tmp_path / "data" / "node-1" / "t-2" / f"{7:020}.log").read_bytes().hex())
        shutil.rmtree(data)
    assert told == [bytes(BATCH).hex()] * 2


def test_one_in_which_something_is_missing_has_none_pruned_for_its_sake(tmp_path: Path) -> None:
    """It may be the last one that has those partitions."""
    store = open_target(str(tmp_path), None, None)
    for name in ("1", "2", "3", "4", "5"):
        backup = stored(store, name)._replace(missing=("t-0",) if name in "35" else ())
        store.put(f"backups/{name}.json", manifest.encode(backup))
    assert prune(store, 2)[0] == ["1"]
    assert prune(store, 1)[0] == ["2", "3"]
    assert manifest.names(store) == ["4", "5"]
    store.delete(["backups/4.json"])
    assert prune(store, 1)[0] == []


def test_backup_from_before_anything_could_be_missing_is_whole(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    text = json.loads(manifest.encode(stored(store)).partition(b"\n")[2])
    del text["missing"]
    content = json.dumps(text).encode()
    assert manifest.decode("one", b"%08x\n" % crc32c(content) + content).missing == ()


def test_nothing_is_pruned_where_a_backup_to_keep_is_damaged(tmp_path: Path) -> None:
    store = open_target(str(tmp_path), None, None)
    stored(store, "one")
    stored(store, "two")
    store.put("backups/two.json", b"garbage")
    before = sorted(store.list_objects("segments/"))
    with pytest.raises(CorruptFault):
        prune(store, 1)
    assert manifest.names(store) == ["one", "two"]
    assert sorted(store.list_objects("segments/")) == before
