"""Where backups lie: who may work there, and how open files get there."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from shmbroker.backup import manifest, target
from shmbroker.backup.restoring import restore
from shmbroker.backup.taking import prune
from shmbroker.backup.target import LOCK, Lock, open_target, put_open_file, url_of
from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.tier.object_store import ObjectStore, StoreFault
from tests.support.stored_backups import BATCH, TOPIC_ID, stored

pytestmark = pytest.mark.thorough


def test_one_at_a_time_works_in_a_directory(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "new"), None, None)
    with Lock(store), pytest.raises(ConfigFault, match="another backup or pruning works in"):
        Lock(store)
    with Lock(store):
        pass


def test_open_file_is_linked_where_it_may_be_and_ends_there(tmp_path: Path) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert put_open_file(store, "a/whole", fd, 10, True)
        assert not put_open_file(store, "a/part", fd, 5, True)
        assert not put_open_file(store, "a/copy", fd, 10, False)
        path.rename(tmp_path / "renamed")  # the open file counts, not its name
        assert put_open_file(store, "b/whole", fd, 10, True)
        (tmp_path / "renamed").unlink()
    finally:
        os.close(fd)
    assert store.get("a/whole") == store.get("a/copy") == store.get("b/whole") == b"0123456789"
    assert store.get("a/part") == b"01234"
    inodes = {(tmp_path / "backups" / "a" / name).stat().st_ino for name in ("whole", "copy")}
    assert len(inodes) == 2


def test_open_file_that_can_not_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    """It gives an input/output error to who reads its first bytes."""
    store = open_target(str(tmp_path), None, None)
    path = f"/proc/{os.getpid()}/mem"
    with open(path, "rb") as file, pytest.raises(StorageFault, match=f"can't read {path}: Input/"):
        put_open_file(store, "a/copy", file.fileno(), 10, False)


def test_open_file_that_its_disk_does_not_take_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_target(str(tmp_path / "backups"), None, None)
    path = tmp_path / "segment"
    path.write_bytes(BATCH)

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", refuse)
    told = f"can't write {path} to its disk"
    with path.open("rb") as file, pytest.raises(StorageFault, match=told):
        put_open_file(store, "a/link", file.fileno(), len(BATCH), True)


def test_bucket_is_a_place_like_any(s3_endpoint: str, tmp_path: Path) -> None:
    store = bucket(s3_endpoint, "backups")
    assert url_of(store) == "s3://backups/of/kafka/"
    path = tmp_path / "segment"
    path.write_bytes(BATCH + b"more")
    with path.open("rb") as file:
        crc = crc32c(BATCH)
        key = manifest.segment_key(TOPIC_ID.hex(), 2, 7, 8, len(BATCH), crc)
        assert not put_open_file(store, key, file.fileno(), len(BATCH), True)
    first, second = stored(store, "one"), stored(store, "two")
    assert manifest.names(store) == ["one", "two"]
    assert manifest.load(store, "one") == first
    assert prune(store, 1)[:2] == (["one"], 1)
    restore(store, second, str(tmp_path / "data"), 1)
    log = tmp_path / "data" / "node-1" / "t-2" / f"{7:020}.log"
    assert log.read_bytes() == BATCH
    with pytest.raises(CorruptFault, match="there is no backup one"):
        manifest.load(store, "one")


def bucket(endpoint: str, name: str) -> ObjectStore:
    import boto3

    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return open_target(f"s3://{name}/of/kafka", endpoint, None)


def test_one_at_a_time_works_in_a_bucket(s3_endpoint: str) -> None:
    store = bucket(s3_endpoint, "locked")
    stored(store)
    with Lock(store) as lock:
        refusal = rf"works in s3://locked/of/kafka/: process {os.getpid()} of \S+; wait"
        with pytest.raises(ConfigFault, match=refusal):
            prune(store, 1)
        lock.keep()
    assert prune(store, 1) == ([], 0, 0)
    assert LOCK not in {key for key, _ in store.list_objects("")}


def test_lock_of_who_was_killed_is_taken_over_when_it_is_old(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket(s3_endpoint, "left")
    monkeypatch.setattr(target, "EXPIRY_S", -1.0)
    with Lock(store) as old:
        with Lock(store) as new:
            with pytest.raises(ConfigFault, match="another backup or pruning has begun"):
                old.keep()
            old.__exit__()
            new.keep()
        assert LOCK not in {key for key, _ in store.list_objects("")}


def test_who_is_renewed_meanwhile_is_not_taken_over(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at an old lock and the PUT."""
    store = bucket(s3_endpoint, "renewed")
    monkeypatch.setattr(target, "EXPIRY_S", -1.0)
    with Lock(store) as lock:
        look = type(store).look  # type: ignore[attr-defined]

        def slow(self: object, key: str) -> tuple[bytes, str, float]:
            found = look(self, key)
            monkeypatch.setattr(type(store), "look", look)
            lock.keep()
            return found

        # The first look is for the own content: the PUT might have been repeated.
        looks = iter((look, slow))
        monkeypatch.setattr(type(store), "look", lambda self, key: next(looks)(self, key))
        with pytest.raises(ConfigFault, match="works in"):
            Lock(store)


def test_put_that_was_repeated_holds_the_lock(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As boto3 does it where the first answer was lost."""
    store = bucket(s3_endpoint, "repeated")
    put_if = type(store).put_if  # type: ignore[attr-defined]

    def twice(self: object, key: str, data: bytes, tag: str | None) -> str | None:
        put_if(self, key, data, tag)
        return put_if(self, key, data, tag)

    monkeypatch.setattr(type(store), "put_if", twice)
    with Lock(store) as lock:
        lock.keep()
    assert LOCK not in {key for key, _ in store.list_objects("")}


@pytest.mark.parametrize("lost", [1, 2])
def test_lock_of_which_the_answer_is_lost_does_not_stay(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """At its first PUT, or where it is renewed: nobody would begin for a quarter of an hour."""
    store = bucket(s3_endpoint, f"lost-{lost}")
    put_if = type(store).put_if  # type: ignore[attr-defined]
    count = itertools.count(1)

    def put(self: object, key: str, data: bytes, tag: str | None) -> str | None:
        found: str | None = put_if(self, key, data, tag)
        if next(count) == lost:
            raise StoreFault("no answer")
        return found

    monkeypatch.setattr(type(store), "put_if", put)
    monkeypatch.setattr(target, "EXPIRY_S", 0.0)
    with pytest.raises(StoreFault, match="no answer"), Lock(store) as lock:
        lock.keep()
    assert LOCK not in {key for key, _ in store.list_objects("")}


@pytest.mark.parametrize("named", ["ftp://there", "s3://"])
def test_place_that_is_none_is_refused(named: str) -> None:
    with pytest.raises(ConfigFault):
        open_target(named, None, None)
