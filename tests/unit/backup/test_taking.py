"""What a backup takes of the segments that two listings name, one after the other."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.backup import manifest
from shmbroker.backup.asking import ListedPartition
from shmbroker.backup.taking import Taking
from shmbroker.backup.verifying import verify
from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader.planning import ListedSegment
from shmbroker.errors import StorageFault
from shmbroker.ids import TopicIdPartition
from shmbroker.log.file_names import LEADER_EPOCH_CHECKPOINT
from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from shmbroker.tier.directory_store import DirectoryStore

TOPIC_ID = bytes(range(16))
PLACE = (TOPIC_ID, 0)


class Family:
    """One partition, a byte for each offset; whoever leads it has segments that begin at these
    offsets. `leaders`: of the first listing, and of each cut."""

    def __init__(
        self, root: Path, leaders: list[list[int]], end_offset: int, lost: int | None = None
    ) -> None:
        """lost: where the log of those that lead later begins to be another one."""
        self.root = root
        self.lost = lost
        self.left_out: dict[TopicIdPartition, str] = {}
        self.topic_ids = [TOPIC_ID]
        """As the metadata has it, at one time after the other."""
        self.leaders = iter(enumerate(leaders))
        self.end_offset = end_offset

    def all_topics(self) -> list[Any]:
        return [SimpleNamespace(topic_id=TOPIC_ID, partitions=[0])]

    def list_held(self, places: set[TopicIdPartition]) -> dict[TopicIdPartition, ListedPartition]:
        return self.cut({})

    def cut(self, firsts: dict[TopicIdPartition, int]) -> dict[TopicIdPartition, ListedPartition]:
        number, bases = next(self.leaders)
        directory = self.root / f"node-{number}"
        directory.mkdir()
        segments = []
        epoch, content = 0, bytes(range(256))
        if number and self.lost is not None:
            epoch, content = 2, content[: self.lost] + bytes(256 - self.lost)
            epochs = f"0\n2\n0 0\n2 {self.lost}\n"
            (directory / LEADER_EPOCH_CHECKPOINT).write_text(epochs)
        for base, end in zip(bases, [*bases[1:], self.end_offset], strict=True):
            path = directory / f"{base:020}.log"
            path.write_bytes(content[base:end])
            row = ListedSegment(str(path), os.stat(path).st_ino, base, end, end - base)
            if end > firsts.get(PLACE, 0):
                segments.append(row)
        return {PLACE: ListedPartition("t", epoch, 0, self.end_offset, segments, str(directory))}

    def image(self, cluster_id: str) -> tuple[MetadataImage, int]:
        image = MetadataImage(cluster_id)
        partition = PartitionImage(0, (1,), (1,), 1, 0, 0, (bytes(16),))
        topic_id = self.topic_ids.pop(0) if len(self.topic_ids) > 1 else self.topic_ids[0]
        topic = TopicImage("t", topic_id, (partition,))
        image.topics_by_id[topic_id] = image.topics_by_name["t"] = topic
        return image, 0


@pytest.mark.parametrize(
    "leaders",
    [
        [[0, 100, 200], [0, 100, 200]],
        [[0, 100, 200], [0, 150], [0, 150]],
        [[0, 100, 200], [0, 50, 120, 180], [0, 50, 120, 180]],
        [[0, 100, 200], [0]],
        [[0, 100, 200], [0, 100, 150], [0, 30, 60]],
        [[0], [0, 100, 200]],
    ],
)
def test_leader_with_other_segments_leaves_no_gap(tmp_path: Path, leaders: list[list[int]]) -> None:
    """Replicas need not roll at the same offsets, and another one may lead at the cut."""
    store = DirectoryStore(str(tmp_path / "backups"))
    client: Any = Family(tmp_path, leaders, 240)
    (row,) = Taking(client, store, "cluster").run().backup.partitions
    assert b"".join(store.get(each.key) for each in row.segments) == bytes(range(240))
    assert row.segments[0].base_offset == 0
    for before, after in zip(row.segments, row.segments[1:], strict=False):
        assert before.end_offset == after.base_offset


@pytest.mark.parametrize("lost", [50, 150, 199])
def test_leader_that_lacks_what_was_stored_early_counts_alone(tmp_path: Path, lost: int) -> None:
    """As after an unclean election: its segments begin at the same offsets, and hold others."""
    store = DirectoryStore(str(tmp_path / "backups"))
    bases = [0, 100, 200]
    client: Any = Family(tmp_path, [bases, bases, bases], 240, lost)
    (row,) = Taking(client, store, "cluster").run().backup.partitions
    whole = (bytes(range(256))[:lost] + bytes(256))[:240]
    assert b"".join(store.get(each.key) for each in row.segments) == whole
    assert row.epochs == ((0, 0), (2, lost))


def test_leader_that_has_what_was_stored_early_goes_on(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "backups"))
    client: Any = Family(tmp_path, [[0, 100, 200], [0, 100, 200]], 240, 200)
    (row,) = Taking(client, store, "cluster").run().backup.partitions
    assert row.high_watermark == row.segments[-1].end_offset == 240


def test_topic_that_is_made_anew_after_the_cut_is_looked_at_again(tmp_path: Path) -> None:
    """Else groups would have the offsets that they had in the one before."""
    store = DirectoryStore(str(tmp_path / "backups"))
    client: Any = Family(tmp_path, [[0, 100]] * 3, 240)
    client.topic_ids = [bytes(16), TOPIC_ID]
    (row,) = Taking(client, store, "cluster").run().backup.partitions
    assert row.topic_id == TOPIC_ID.hex()
    client = Family(tmp_path / "again", [[0, 100]] * 9, 240)
    client.root.mkdir()
    client.topic_ids = [bytes(16)]
    with pytest.raises(ClusterFault, match="made again all the time"):
        Taking(client, store, "cluster").run()
    assert len(manifest.names(store)) == 1


@pytest.mark.parametrize("harm", ["lost", "short", "no manifest"])
def test_backup_stores_what_the_one_before_lacks_and_nothing_else(
    tmp_path: Path, harm: str
) -> None:
    """Whoever has removed it; and what an interrupted one has left is there already."""
    store = DirectoryStore(str(tmp_path / "backups"))
    family: Any = Family(tmp_path, [[0, 100, 200]] * 2, 240)

    class Same(Family):
        """The files stay what they are."""

        def cut(
            self, firsts: dict[TopicIdPartition, int]
        ) -> dict[TopicIdPartition, ListedPartition]:
            found = listed[PLACE]
            rows = [each for each in found.segments if each.end_offset > firsts.get(PLACE, 0)]
            return {PLACE: found._replace(segments=rows)}

    listed = family.cut({})
    client: Any = Same(tmp_path, [], 240)
    first = Taking(client, store, "cluster").run()
    assert first.stored == 3
    key = first.backup.partitions[0].segments[1].key
    path = tmp_path / "backups" / key
    inode = path.stat().st_ino
    if harm == "lost":
        path.unlink()
    elif harm == "short":
        path.unlink()
        path.write_bytes(b"short")
    else:
        (tmp_path / "backups" / "backups" / f"{first.backup.name}.json").unlink()
    second = Taking(client, store, "cluster").run()
    assert second.stored == (0 if harm == "no manifest" else 1)
    assert [each.faults for each in verify(store, manifest.names(store))][-1] == []
    assert (path.stat().st_ino == inode) is (harm != "short")


def test_what_has_no_leader_at_the_cut_is_told_in_the_backup(tmp_path: Path) -> None:
    """But for topics that were deleted since."""
    store = DirectoryStore(str(tmp_path / "backups"))
    client: Any = Family(tmp_path, [[0, 100]] * 2, 240)
    client.left_out = {(TOPIC_ID, 2): "t-2", (TOPIC_ID, 1): "t-1", (bytes(16), 0): "gone-0"}
    taken = Taking(client, store, "cluster").run().backup
    assert [row.partition for row in taken.partitions] == [0]
    assert manifest.load(store, taken.name).missing == taken.missing == ("t-1", "t-2")


def test_segment_that_can_not_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "backups"))
    family: Any = Family(tmp_path, [[0]], 240)
    listed = family.cut({})[PLACE]
    path = f"/proc/{os.getpid()}/mem"  # its first bytes give an input/output error
    segment = listed.segments[0]._replace(path=path, inode=os.stat(path).st_ino)
    family.cut = lambda firsts: {PLACE: listed._replace(segments=[segment])}
    with pytest.raises(StorageFault, match=f"can't read {path}: Input/"):
        Taking(family, store, "cluster").run()


def test_name_follows_the_last_one_though_the_clock_has_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names tell which is the latest, for restores and prunings."""
    store = DirectoryStore(str(tmp_path / "backups"))
    client: Any = Family(tmp_path, [[0]] * 6, 240)
    taken = []
    for now_ms in (1_700_000_000_999, 1_700_000_000_999, 1_600_000_000_000):
        monkeypatch.setattr(clock, "now_ms", lambda now_ms=now_ms: now_ms)
        taken.append(Taking(client, store, "cluster").run().backup)
    names = [each.name for each in taken]
    assert names == [f"20231114T2213{rest}Z" for rest in ("20.999", "21.000", "21.001")]
    assert manifest.names(store) == names
    assert manifest.name_after("somebody's", 1_700_000_000_999) == names[0]
