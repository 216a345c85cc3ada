"""Partitions whose directory is gone, or does not say whose it is."""

import errno
import os
import shutil

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log.partition_metadata import read_mark
from tests.unit.broker.one_node import NOW_MS, Node, Topic, node

__all__ = ["node"]


# --- a directory that is gone ---


@pytest.mark.parametrize("how", ["stop", "kill", "successor"])
def test_directory_that_is_gone_is_named_before_an_empty_one_is_made(
    node: Node, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    if how == "stop":
        node.stop()
    else:
        if how == "kill":
            node.store.checkpoint()
        node.kill()
    shutil.rmtree(node.directory(topic))
    node.start(is_successor=how == "successor")
    partition = node.open(topic)
    assert partition.log.log_end_offset == 0
    (line,) = [row.getMessage() for row in caplog.records if row.levelname == "ERROR"]
    assert str(node.directory(topic)) in line
    assert "25" in line
    assert node.counted == ["partitions_lost"]
    # It was said; the next start has nothing to say.
    caplog.clear()
    node.kill()
    node.start()
    node.open(topic)
    assert not [row for row in caplog.records if row.levelname == "ERROR"]


def test_new_topic_is_no_loss(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Created a moment before a crash, or in the place of one that was deleted."""
    partition = node.fill(Topic(), 25)
    node.store.checkpoint()
    node.store.delete(partition)
    partition = node.fill(Topic(), 25)
    node.store.checkpoint()
    node.upkeep.run(NOW_MS)
    node.store.delete(partition)
    # Checkpoints forget it soon, so that a start after a crash does not miss it.
    node.steady_ms += 1000
    node.upkeep.run(NOW_MS)
    node.kill()
    node.start()
    node.open(Topic())
    node.open(Topic("other"))
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    assert not node.counted


# --- a directory without partition.metadata ---


def test_what_a_full_disk_refuses_is_not_said_to_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again each second: one line then, when it is done."""
    topic = Topic()
    node.fill(topic, 1)
    node.stop()
    metadata = node.directory(topic) / "partition.metadata"
    metadata.unlink()
    node.start()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shmbroker.log.checkpoints.write_all", refuse)
        for _ in range(2):
            with pytest.raises(StorageFault, match="No space left"):
                node.open(topic)
    assert "written anew" not in caplog.text
    node.open(topic)
    assert caplog.text.count(f"{metadata} is written anew") == 1


@pytest.mark.parametrize("damage", ["removed", "emptied", "garbage"])
def test_directory_says_whose_it_is_where_its_file_does_not(node: Node, damage: str) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.kill()
    metadata = node.directory(topic) / "partition.metadata"
    try:
        os.setxattr(node.path, "user.test", b"")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    metadata.unlink()
    if damage != "removed":
        metadata.write_text("" if damage == "emptied" else "nonsense")
    node.start()
    assert node.open(topic).log.log_end_offset == 5
    assert not node.strays()
    node.kill()
    # Never as that of another topic: it was deleted and made again meanwhile.
    metadata.unlink()
    node.start()
    again = Topic()
    assert node.open(again).log.log_end_offset == 0
    assert len(node.strays()) == 1


@pytest.mark.parametrize("is_flushed", [False, True])
def test_directory_that_bears_nothing_is_taken_by_its_name_if_it_was_flushed(
    node: Node, is_flushed: bool
) -> None:
    topic = Topic()
    partition = node.fill(topic, 5)
    if is_flushed:
        partition.log.flush()
        node.store.checkpoint()
    node.kill()
    (node.directory(topic) / "partition.metadata").unlink()
    if read_mark(str(node.directory(topic))) is not None:
        os.removexattr(node.directory(topic), "user.shmbroker.topic_id")
    node.start()
    assert node.open(topic).log.log_end_offset == (5 if is_flushed else 0)
    assert len(node.strays()) == (0 if is_flushed else 1)
    assert node.counted == ([] if is_flushed else ["partitions_lost"])
