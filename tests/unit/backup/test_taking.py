"""What a backup takes of the segments that two listings name, one after the other."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.backup.asking import Listed, Place
from shmbroker.backup.taking import Taking
from shmbroker.client.reader.planning import ListedSegment
from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from shmbroker.tier.directory_store import DirectoryStore

TOPIC_ID = bytes(range(16))
PLACE = (TOPIC_ID, 0)


class Family:
    """One partition, a byte for each offset; whoever leads it has segments that begin at these
    offsets. `leaders`: of the first listing, and of each cut."""

    def __init__(self, root: Path, leaders: list[list[int]], end_offset: int) -> None:
        self.root = root
        self.leaders = iter(enumerate(leaders))
        self.end_offset = end_offset

    def all_topics(self) -> list[Any]:
        return [SimpleNamespace(topic_id=TOPIC_ID, partitions=[0])]

    def list_held(self, places: set[Place]) -> dict[Place, Listed]:
        return self.cut({})

    def cut(self, firsts: dict[Place, int]) -> dict[Place, Listed]:
        number, bases = next(self.leaders)
        directory = self.root / f"node-{number}"
        directory.mkdir()
        segments = []
        for base, end in zip(bases, [*bases[1:], self.end_offset], strict=True):
            path = directory / f"{base:020}.log"
            path.write_bytes(bytes(range(base, end)))
            row = ListedSegment(str(path), os.stat(path).st_ino, base, end, end - base)
            if end > firsts.get(PLACE, 0):
                segments.append(row)
        return {PLACE: Listed("t", 0, self.end_offset, segments, str(directory))}

    def image(self, cluster_id: str) -> tuple[MetadataImage, int]:
        image = MetadataImage(cluster_id)
        partition = PartitionImage(0, (1,), (1,), 1, 0, 0, (bytes(16),))
        topic = TopicImage("t", TOPIC_ID, (partition,))
        image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
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
