"""Backups and restores that are interrupted, refused or lack something; what the commands tell."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.backup import manifest
from shmbroker.backup.asking import FamilyClient
from shmbroker.backup.restoring import restore
from shmbroker.backup.taking import Taking
from shmbroker.backup.target import open_target
from shmbroker.client.reader.asking import Consumer as Asking
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.testing.broker import Broker
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.object_store import StoreFault
from tests.support.acknowledged_load import batch_now, leader_of
from tests.support.family_backups import fill, filled_family, put_back, take
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@pytest.fixture
def filled() -> Iterator[tuple[Broker, RawClient]]:
    with filled_family() as made:
        yield made


class Failing(DirectoryStore):
    """Dies at its `fatal`th write."""

    def __init__(self, root: str, fatal: int) -> None:
        super().__init__(root)
        self.left = fatal

    def put(self, key: str, data: bytes) -> None:
        self._count(key)
        super().put(key, data)

    def put_file(self, key: str, path: str, size: int) -> None:
        self._count(key)
        super().put_file(key, path, size)

    def _count(self, key: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreFault(f"{key}: no room")


def test_backup_that_is_interrupted_anywhere_is_none(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, _ = filled
    with FamilyClient(Asking(broker.address), str(broker.data)) as client:
        fatal = 0
        while True:
            root = str(tmp_path / f"backups-{fatal}")  # else it has what the one before has left
            try:
                Taking(client, Failing(root, fatal), client.cluster_id(), copies=True).run()
                break
            except StoreFault:
                assert manifest.names(DirectoryStore(root)) == []
            fatal += 1
    assert fatal == 7  # five segments, the metadata, the manifest
    put_back(root, tmp_path / "data")


def test_killed_backup_is_none_and_the_next_is_whole(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, client = filled
    fill(client, 60)
    target = tmp_path / "backups"
    words = ["backup", str(target), "--copy", "-b", broker.address]
    command = [sys.executable, "-m", "shmbroker", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: next(target.glob("segments/*/*/*"), None), "its first segment")
        running.send_signal(signal.SIGKILL)
    names = manifest.names(DirectoryStore(str(target)))
    assert names == [] or running.returncode == 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ segments stored .* \d+ were there", done.stdout)
    assert not list(target.glob("segments/*/*/*.tmp"))
    put_back(target, tmp_path / "data")


def test_restore_refuses_what_it_would_spoil(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, _ = filled
    taken = take(broker, tmp_path / "backups")
    store = DirectoryStore(str(tmp_path / "backups"))
    with pytest.raises(ConfigFault, match="is not empty"):
        restore(store, taken.backup, str(broker.data))
    for place in (broker.data / "node-1" / "x", broker.data / "node-1" / "x-0" / "y"):
        with pytest.raises(ConfigFault, match="is inside the log directory"):
            restore(store, taken.backup, str(place))
        with pytest.raises(ConfigFault, match="is inside the log directory"):
            take(broker, place)
        assert not place.exists()
    segment = taken.backup.partitions[0].segments[0]
    copied = tmp_path / "backups" / segment.key
    data = bytearray(copied.read_bytes())
    data[1000] ^= 1
    copied.unlink()  # a link is the broker's own file
    copied.write_bytes(data)
    with pytest.raises(CorruptFault, match="is damaged"):
        restore(store, taken.backup, str(tmp_path / "data"))
    command = [sys.executable, "-m", "shmbroker", "serve", "--data", str(tmp_path / "data")]
    refused = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "or that was interrupted" in refused.stderr
    with pytest.raises(ConfigFault, match="was interrupted"):
        restore(store, taken.backup, str(tmp_path / "data"))


def test_directory_names_the_family_where_no_address_is_given(
    filled: tuple[Broker, RawClient], tmp_path: Path
) -> None:
    broker, _ = filled
    environment = {name: text for name, text in os.environ.items() if "BOOTSTRAP" not in name}
    command = [sys.executable, "-m", "shmbroker", "backup", str(tmp_path / "backups")]
    done = subprocess.run(
        [*command, "--data", str(broker.data)],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*command, "--data", str(tmp_path)],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"shmbroker: no broker runs on {tmp_path}\n")


def test_commands_tell_what_they_do(filled: tuple[Broker, RawClient], tmp_path: Path) -> None:
    broker, _ = filled
    target = str(tmp_path / "backups")
    environment = os.environ | {"SHMBROKER_BOOTSTRAP_SERVER": broker.address}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "shmbroker", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    assert run("restore", target, "--data", str(tmp_path / "data")).startswith(
        "1: shmbroker: there is no whole backup"
    )
    assert "5 segments stored" in run("backup", target)
    assert '"stored": 0' in run("backup", target, "--json")
    assert len(run("backup", "list", target).splitlines()) == 3
    assert "2.9 MiB" in run("backup", "list", target)
    assert run("backup", "verify", target).count(": ok\n") == 2
    names = manifest.names(DirectoryStore(target))
    first = tmp_path / "backups" / "backups" / f"{names[0]}.json"
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    assert f"1: shmbroker: the backup {names[0]} can't be used" in run("backup", "list", target)
    assert "1 of 2 backups can't be restored" in run("backup", "verify", target)
    assert run("backup", "verify", target, "--backup", names[1], "--json").startswith("{")
    first.write_bytes(whole)
    assert " removed\n" in run("backup", "prune", target, "--keep", "1")
    told = run("restore", target, "--data", str(tmp_path / "data"))
    assert f"Serve it with: shmbroker serve --data {tmp_path / 'data'}" in told
    assert "is not empty" in run("restore", target, "--data", str(tmp_path / "data"))


def test_partition_without_a_leader_stops_no_backup(tmp_path: Path) -> None:
    target, data = tmp_path / "backups", tmp_path / "data"
    flags = ("--io-workers", "2")
    with Broker(*flags, data=data) as broker, RawClient(broker.address) as client:
        client.create_topic("halves", 2)
        away = 0 if (data / "node-2" / "halves-0").exists() else 1
        broker.kill()
    (data / "node-2" / META_PROPERTIES).write_text("nothing that helps\n")
    with Broker(*flags, data=data) as broker:
        wait_until(lambda: not leader_of(broker.address, "halves", away), "no leader")
        asking = Asking(broker.address, timeout_s=2)
        with FamilyClient(asking, str(data)) as family:
            store = open_target(str(target), None, None)
            backup = Taking(family, store, family.cluster_id()).run().backup
        assert backup.missing == (f"halves-{away}",)
        assert [row.partition for row in backup.partitions if row.topic == "halves"] == [1 - away]
    put_back(target, tmp_path / "again")
    with Broker(data=tmp_path / "again") as restored, RawClient(restored.address) as client:
        for partition in range(2):
            assert client.produce("halves", batch_now(b"v"), partition=partition)["error_code"] == 0
