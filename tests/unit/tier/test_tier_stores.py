"""One suite for every kind of store, as they are used."""

import os
import shutil
import uuid

import pytest

from shmbroker.errors import ConfigFault, StorageFault
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.object_store import (
    MissingFault,
    StoreFault,
    check_store,
    open_store,
    store_url,
)
from tests.unit.tier.stores import MemoryStore

pytestmark = pytest.mark.thorough

DATA = os.urandom(300_000)


@pytest.fixture(params=["directory", "s3", "s3-prefix", "memory"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return open_store(f"file://{tmp_path}/a%20store")
    import boto3

    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"b{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    prefix = "some/prefix" if request.param == "s3-prefix" else ""
    return open_store(f"s3://{bucket}/{prefix}", endpoint, "us-east-1")


def test_objects_come_back_whole_and_in_ranges(store, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    store.put_file("c/t/0/a.log", str(path), len(DATA))
    store.put("c/t/0/a.index", b"")
    assert store.get("c/t/0/a.log") == DATA
    assert store.get("c/t/0/a.log", 1000, 500) == DATA[1000:1500]
    assert store.get("c/t/0/a.log", len(DATA) - 10, 500) == DATA[-10:]
    assert store.get("c/t/0/a.index") == store.get("c/t/0/a.index", 0, 100) == b""
    assert store.get("c/t/0/a.log", len(DATA), 500) == b""
    assert store.get("c/t/0/a.log", 5, 0) == b""
    store.put("c/t/0/a.index", b"again")
    assert store.get("c/t/0/a.index") == b"again"


UNREADABLE = "/proc/self/mem"
"""A file that gives an input/output error to who reads its first bytes."""


@pytest.mark.parametrize("store", ["directory", "s3"], indirect=True)
@pytest.mark.parametrize("path", ["/nowhere/gone", UNREADABLE])
def test_a_file_that_can_not_be_read_is_no_fault_of_the_store(store, path):
    told = f"can't read {os.path.realpath(path)}: (No such|Input/)"
    with pytest.raises(StorageFault, match=told) as raised:
        store.put_file("c/t/0/a.log", path, 10)
    assert not isinstance(raised.value, StoreFault)
    assert list(store.list_objects("c/")) == []


def test_a_copy_that_fails_leaves_nothing_beside(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"short")
    store = DirectoryStore(str(tmp_path / "store"))
    for source in (UNREADABLE, str(path)):
        with pytest.raises(StorageFault, match=f"can't read {os.path.realpath(source)}"):
            store.put_file("c/a.log", source, 10)
        assert os.listdir(tmp_path / "store/c") == []


def test_listing_is_by_prefix(store):
    for key in ("c/t/0/a", "c/t/0/b", "c/t/1/a", "c/t2/0/a", "c2/t/0/a"):
        store.put(key, key.encode())
    assert sorted(store.list_objects("c/t/0/")) == [("c/t/0/a", 7), ("c/t/0/b", 7)]
    assert sorted(key for key, _ in store.list_objects("c/")) == [
        "c/t/0/a", "c/t/0/b", "c/t/1/a", "c/t2/0/a",
    ]  # fmt: skip
    assert sorted(store.list_directories("c/")) == ["t", "t2"]
    assert list(store.list_objects("nothing/")) == []
    assert list(store.list_directories("nothing/")) == []


def test_what_is_deleted_is_gone_and_deleting_it_again_is_fine(store):
    for number in range(5):
        store.put(f"c/t/0/{number}", b"x")
    store.delete(["c/t/0/1", "c/t/0/2", "c/t/0/99"])
    store.delete(["c/t/0/1"])
    assert sorted(key for key, _ in store.list_objects("c/t/")) == [
        "c/t/0/0", "c/t/0/3", "c/t/0/4",
    ]  # fmt: skip
    with pytest.raises(MissingFault):
        store.get("c/t/0/1")
    with pytest.raises(MissingFault):
        store.get("c/t/0/1", 5, 10)
    store.sweep("c/t/")


def test_more_objects_than_one_request_takes(store, monkeypatch):
    if store.__class__.__name__ == "S3Store":
        monkeypatch.setattr("shmbroker.tier.s3_store.KEYS_MAX", 4)
    keys = [f"c/t/0/{number:05d}" for number in range(9)]
    for key in keys:
        store.put(key, b"")
    assert sorted(key for key, _ in store.list_objects("c/t/")) == keys
    store.delete(keys)
    assert list(store.list_objects("c/")) == []


def test_unreachable_object_store_is_a_store_fault(s3_endpoint):
    pytest.importorskip("boto3")
    from shmbroker.tier.s3_store import S3Store

    nowhere = S3Store("bucket", "", "http://127.0.0.1:9", "us-east-1")
    missing = S3Store("no-such-bucket", "", s3_endpoint, "us-east-1")
    for store in (nowhere, missing):
        for call in (
            lambda store=store: store.put("k", b"x"),
            lambda store=store: list(store.list_objects("c/")),
            lambda store=store: store.delete(["k"]),
        ):
            with pytest.raises(StoreFault):
                call()


def test_directory_that_cant_be_written_is_a_store_fault(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = DirectoryStore(str(tmp_path / "file"))
    with pytest.raises(StoreFault):
        store.put("c/t/0/a", b"x")
    with pytest.raises(StoreFault):
        store.get("c/t/0/a")


def test_interrupted_put_is_seen_by_nobody_and_swept(tmp_path):
    store = DirectoryStore(str(tmp_path))
    store.put("c/t/0/a", b"x")
    (tmp_path / "c/t/0/b.123-0.tmp").write_bytes(b"half")
    assert [key for key, _ in store.list_objects("c/")] == ["c/t/0/a"]
    store.sweep("c/t/0/")
    assert sorted(os.listdir(tmp_path / "c/t/0")) == ["a"]


def test_empty_directories_go_with_their_last_object(tmp_path):
    store = DirectoryStore(str(tmp_path / "store"))
    store.put("c/t/0/a", b"x")
    store.put("c/u/0/a", b"x")
    store.delete(["c/t/0/a"])
    assert os.listdir(tmp_path / "store/c") == ["u"]
    store.delete(["c/u/0/a"])
    assert os.listdir(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("/mnt/archive", "it must begin with"),
        ("file://host/path", "a directory is named"),
        ("file://", "a directory is named"),
        ("s3:///prefix", "a bucket is named"),
        ("gs://bucket", "it must begin with"),
    ],
)
def test_names_that_are_no_store_are_refused(url, complaint):
    with pytest.raises(ConfigFault, match=complaint):
        check_store(url)


def test_store_has_a_place_of_its_own_unless_named():
    assert store_url(None, "/data/a b") == "file:///data/a%20b/tier-store"
    assert store_url("s3://b", "/data") == "s3://b"


def test_nothing_is_deleted_where_the_directory_is_gone(tmp_path):
    store = open_store(f"file://{tmp_path}/archive")
    store.put("cluster/t/0/1.log", b"content")
    os.rename(tmp_path / "archive", tmp_path / "away")
    with pytest.raises(StoreFault):
        store.delete(["cluster/t/0/1.log"])
    os.rename(tmp_path / "away", tmp_path / "archive")
    store.delete(["cluster/t/0/1.log"])
    assert list(store.list_objects("cluster/")) == []


# --- the mark of a directory ---


def marked(path):
    return DirectoryStore(str(path / "mnt"), str(path / "tier-store.mark"))


def test_a_store_that_is_not_mounted_fails_and_is_not_written_to(tmp_path):
    marked(tmp_path).put("c/t/0/a", b"x")
    os.rename(tmp_path / "mnt", tmp_path / "away")
    os.mkdir(tmp_path / "mnt")
    store = marked(tmp_path)
    for call in (
        lambda: store.put("c/t/0/b", b"x"),
        lambda: store.put_file("c/t/0/b", __file__, 10),
        lambda: store.get("c/t/0/a"),
        lambda: list(store.list_objects("c/")),
        lambda: list(store.list_directories("c/")),
        lambda: store.delete(["c/t/0/a"]),
    ):
        with pytest.raises(StoreFault, match="is it mounted"):
            call()
    assert os.listdir(tmp_path / "mnt") == []
    os.rmdir(tmp_path / "mnt")
    os.rename(tmp_path / "away", tmp_path / "mnt")
    assert store.get("c/t/0/a") == b"x"
    store.put("c/t/0/b", b"x")
    assert sorted(key for key, _ in store.list_objects("c/")) == ["c/t/0/a", "c/t/0/b"]


def test_what_is_done_while_a_store_goes_does_not_count(tmp_path, monkeypatch):
    store = marked(tmp_path)

    def unmount():
        os.rename(tmp_path / "mnt", tmp_path / "away")
        os.mkdir(tmp_path / "mnt")

    def mount():
        shutil.rmtree(tmp_path / "mnt")
        os.rename(tmp_path / "away", tmp_path / "mnt")

    def keys():
        unmount()
        yield "c/t/0/a"

    def put_elsewhere():
        def make_directories(path):
            monkeypatch.undo()
            unmount()
            store._make_directories(path)

        monkeypatch.setattr(store, "_make_directories", make_directories)
        store.put("c/t/0/c", b"x")

    def list_until_it_goes():
        found = store.list_objects("c/")
        next(found)
        unmount()
        return list(found)

    store.put("c/t/0/a", b"x")
    store.put("c/t/0/b", b"x")
    for call in (lambda: store.delete(keys()), list_until_it_goes, put_elsewhere):
        with pytest.raises(StoreFault, match="is it mounted"):
            call()
        mount()
    assert sorted(key for key, _ in store.list_objects("c/")) == ["c/t/0/a", "c/t/0/b"]


def test_another_store_at_the_same_place_is_refused(tmp_path):
    marked(tmp_path).put("c/t/0/a", b"x")
    os.rename(tmp_path / "mnt", tmp_path / "away")
    other = DirectoryStore(str(tmp_path / "mnt"), str(tmp_path / "another.mark"))
    other.put("c/t/0/a", b"y")
    with pytest.raises(StoreFault, match="is it mounted"):
        list(marked(tmp_path).list_objects("c/"))
    os.unlink(tmp_path / "tier-store.mark")  # as the line says, where it is lost
    assert marked(tmp_path).get("c/t/0/a") == b"y"


def test_a_store_from_before_the_mark_gets_one(tmp_path):
    DirectoryStore(str(tmp_path / "mnt")).put("c/t/0/a", b"x")
    store = marked(tmp_path)
    assert [key for key, _ in store.list_objects("c/")] == ["c/t/0/a"]
    store.put("c/t/0/b", b"x")
    assert (tmp_path / "mnt/.shmbroker-store").exists()
    assert DirectoryStore(str(tmp_path / "mnt")).get("c/t/0/a") == b"x"


def test_a_store_that_moves_to_another_path_is_known_there(tmp_path):
    marked(tmp_path).put("c/t/0/a", b"x")
    os.rename(tmp_path / "mnt", tmp_path / "moved")
    store = DirectoryStore(str(tmp_path / "moved"), str(tmp_path / "tier-store.mark"))
    assert store.get("c/t/0/a") == b"x"
    store.put("c/t/0/b", b"x")
    assert (tmp_path / "tier-store.mark").read_text().startswith(f"{tmp_path}/moved\n")
