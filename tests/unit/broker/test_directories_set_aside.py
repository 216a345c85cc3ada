"""Directories that are deleted, or nobody's: what is renamed, and when; a disk that refuses."""

import errno
import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from shmbroker.broker import removals
from shmbroker.errors import StorageFault
from shmbroker.tools.log_verify import verify
from tests.unit.broker.one_node import NOW_MS, Node, Topic, node

__all__ = ["node"]


def test_a_rename_is_told_when_it_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageFault) as met:
            node.store.directories.set_aside(topic.name, 0, "nothing says whose it is")
    assert met.value.path == str(node.directory(topic))
    assert not caplog.records
    node.store.directories.set_aside(topic.name, 0, "nothing says whose it is")
    assert ["is renamed to" in one.getMessage() for one in caplog.records] == [True]
    assert len(node.strays()) == 1


class Refusals:
    """Directories that the disk does not let be renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: set[str] = set()
        self._rename = os.rename
        monkeypatch.setattr(os, "rename", self)

    def __call__(self, source: str, target: str) -> None:
        if str(source) in self.paths:
            raise OSError(errno.EPERM, "Operation not permitted")
        self._rename(source, target)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(monkeypatch)


def left(node: Node) -> list[str]:
    return sorted(one.name.split(".")[0] for one in node.path.iterdir() if one.is_dir())


def test_a_deleted_directory_that_can_not_be_renamed_is_tried_again(
    node: Node, refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = Topic(), Topic("other")
    partition = node.fill(topic, 5)
    node.fill(other, 5)
    refusals.paths.add(str(node.directory(topic)))
    node.store.delete(partition)
    assert [str(node.directory(topic)) in one.getMessage() for one in caplog.records] == [True]
    assert partition.key not in node.store.partitions
    for _ in range(60):
        node.steady_ms += 1000
        node.upkeep.run(NOW_MS)
    assert len(caplog.records) <= 8
    assert left(node) == ["other-0", "t-0"]
    refusals.paths.clear()
    node.upkeep.run(NOW_MS)
    assert not node.directory(topic).exists()
    node.steady_ms += partition.log.config.file_delete_delay_ms
    node.upkeep.run(NOW_MS)
    assert left(node) == ["other-0"]
    assert not node.store.directories.refused


def test_a_stop_tries_once_more_to_rename_what_was_refused(node: Node, refusals: Refusals) -> None:
    topics = Topic(), Topic("u")
    for topic in topics:
        refusals.paths.add(str(node.directory(topic)))
        node.store.delete(node.fill(topic, 5))
    refusals.paths.discard(str(node.directory(topics[0])))
    node.stop()
    assert left(node) == ["u-0"]


def test_a_stop_is_clean_though_a_deleted_directory_can_not_be_removed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = Topic(), Topic("other")
    node.fill(other, 5)
    node.store.delete(node.fill(topic, 5))

    def refuse(path: str) -> None:
        raise StorageFault(f"can't remove {path}")

    with monkeypatch.context() as patch:
        patch.setattr(removals, "remove_deleted", refuse)
        node.stop()
    node.start()
    assert node.store.log_directory.is_clean
    assert node.open(other).log.log_end_offset == 5


def test_a_topic_of_the_same_name_waits_until_the_directory_is_renamed(
    node: Node, refusals: Refusals
) -> None:
    before, topic = Topic(), Topic()
    refusals.paths.add(str(node.directory(topic)))
    node.store.delete(node.fill(before, 5))
    for _ in range(2):
        with pytest.raises(StorageFault):
            node.open(topic)
    refusals.paths.clear()
    assert node.fill(topic, 3).log.log_end_offset == 3
    node.upkeep.run(NOW_MS)
    assert node.directory(topic).is_dir()
    assert node.strays() == []
    assert [name.endswith("-delete") for name in os.listdir(node.path) if "t-0." in name] == [True]


def test_a_start_goes_on_where_a_directory_without_a_topic_can_not_be_renamed(
    node: Node, refusals: Refusals
) -> None:
    topic, kept = Topic(), Topic("kept")
    for one in (topic, kept):
        node.fill(one, 5)
    node.stop()
    node.start()
    node.open(kept)
    refusals.paths.add(str(node.directory(topic)))
    node.store.take_stock({kept.topic_id: kept})
    node.upkeep.run(NOW_MS)
    assert left(node) == ["kept-0", "t-0"]
    refusals.paths.clear()
    node.upkeep.run(NOW_MS)
    assert left(node) == ["kept-0", "t-0"]
    assert len(node.strays()) == 1
    node.upkeep.run(NOW_MS)


def test_what_was_known_of_a_deleted_topic_is_no_loss_of_one_that_has_its_name(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    before, topic = Topic(), Topic()
    node.fill(before, 5)
    node.stop()
    node.start()
    partition = node.fill(topic, 3)
    assert len(node.strays()) == 1
    assert partition.key not in node.store.directories.lost
    assert node.counted == []
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("end", [Node.stop, Node.kill])
@pytest.mark.parametrize("is_named", [True, False])
def test_partitions_that_a_topic_has_no_more_are_not_missed(
    node: Node, end: Callable[[Node], None], is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was deleted while nobody was there, and made again with fewer partitions, or later."""
    before, topic = Topic(), Topic()
    node.fill(before, 5)
    node.stop()
    node.start()
    node.store.take_stock({topic.topic_id: topic} if is_named else {})
    end(node)
    assert [one.fault for one in verify(str(node.path))] == [None, None]
    node.start()
    partition = node.fill(topic, 3)
    assert partition.key not in node.store.directories.lost
    assert node.counted == []
    assert "is gone" not in caplog.text


def test_what_was_moved_to_other_brokers_while_this_one_was_away_is_set_aside(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    topic.partitions = (SimpleNamespace(replicas=(2, 3)),)
    node.store.take_stock({topic.topic_id: topic})
    assert len(node.strays()) == 1
    assert "moved to other brokers" in caplog.text
    # It comes back, and copies from those who had it meanwhile.
    topic.partitions = Topic.partitions
    partition = node.open(topic)
    assert partition.log.log_end_offset == 0
    assert partition.key not in node.store.directories.lost


def test_what_was_moved_away_just_before_a_kill_is_not_missed(node: Node) -> None:
    """Its directory was removed, and no checkpoint was written since."""
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    shutil.rmtree(node.directory(topic))
    topic.partitions = (SimpleNamespace(replicas=(2, 3)),)
    node.store.take_stock({topic.topic_id: topic})
    node.kill()
    assert [one.fault for one in verify(str(node.path))] == [None]
    node.start()
    topic.partitions = Topic.partitions
    assert node.open(topic).key not in node.store.directories.lost


def test_what_can_not_be_opened_yet_stays(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    node.store.take_stock({topic.topic_id: topic})
    assert not node.strays()
