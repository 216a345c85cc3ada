"""Backups of one topic, made without a family."""

from shmbroker.backup import manifest
from shmbroker.backup.manifest import Backup, PartitionBackup, SegmentObject
from shmbroker.controller.raft.snapshots import image_snapshot
from shmbroker.crc32c import crc32c
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.security_image import Acl
from shmbroker.records.batch import encode_batch
from shmbroker.records.batch_layout import BATCH_HEADER, H_BASE_OFFSET
from shmbroker.tier.object_store import ObjectStore

TOPIC_ID = bytes(range(16))
ACL_ID = b"a" * 16
ACL = Acl(2, "t", 3, "User:alice", "*", 3, 3)
BATCH = encode_batch([(1, None, b"value", ())], base_offset=7, leader_epoch=3)


def image_of(replicas: tuple[int, ...]) -> MetadataImage:
    image = MetadataImage("cluster")
    image.offset, image.epoch, image.next_producer_id = 500, 4, 3000
    partitions = tuple(
        PartitionImage(index, replicas, replicas[:1], replicas[0], 5, 9, (bytes(16),) * 3)
        for index in range(4)
    )
    topic = TopicImage("t", TOPIC_ID, partitions)
    image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
    image.configs = {
        (TOPIC_RESOURCE, "t"): {"min.insync.replicas": "2", "retention.ms": "1"},
        (BROKER_RESOURCE, ""): {"min.insync.replicas": "2"},
        (BROKER_RESOURCE, "7"): {"log.cleaner.threads": "1"},
    }
    image.features = {"group.version": 1}
    image.security.acls[ACL_ID] = ACL
    return image


def stored(
    store: ObjectStore,
    name: str = "one",
    *batches: bytes | bytearray,
    start: int = 7,
    end: int | None = None,
) -> Backup:
    """A backup of one partition with one segment."""
    log = b"".join(batches or (BATCH,))
    end_offset = BATCH_HEADER.unpack_from((batches or (BATCH,))[-1])[H_BASE_OFFSET] + 1
    content = b"".join(image_snapshot(image_of((3, 5, 7)), 1, 1))
    crc = crc32c(log)
    key = manifest.segment_key(TOPIC_ID.hex(), 2, 7, end_offset, len(log), crc)
    store.put(key, log)
    store.put(f"metadata/{name}", content)
    segment = SegmentObject(key, len(log), crc, 7, end_offset, 1, 1)
    end = end_offset if end is None else end
    row = PartitionBackup("t", TOPIC_ID.hex(), 2, start, end, ((3, 7),), (segment,))
    size, crc = len(content), crc32c(content)
    backup = Backup(name, "cluster", 1, f"metadata/{name}", size, crc, 500, 4, (row,))
    store.put(f"backups/{name}.json", manifest.encode(backup))
    return backup
