"""What the metadata begins with: the feature levels of a freshly formatted Kafka 4.2.1.

They stand in `bootstrap.checkpoint`, for Kafka's controller, and in the first records of the log.
That a level is finalised doesn't mean it is served here (ApiVersions tells what is); it means that
Kafka takes the directory as its own.

bootstrap.checkpoint is a snapshot, three batches of leader epoch 0:

   offset 0      control batch   SnapshotHeader: last contained timestamp 0
   offset 1 …    data batch      one FeatureLevelRecord for each feature
   the next      control batch   SnapshotFooter
"""

from __future__ import annotations

import os

from shmbroker.controller.decisions.configs import config_record
from shmbroker.log.checkpoints import sync_directory
from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.records.batch_layout import CONTROL_BIT, H_ATTRIBUTES
from shmbroker.signs import waiting_for_disk
from shmbroker.wire.metadata_records import decode_metadata_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig

_MIN_ISR = "min.insync.replicas"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"

FEATURE_LEVELS = (
    # feature, level of a new directory, least and most that Kafka 4.2.1 supports
    ("metadata.version", 29, 7, 29),
    ("eligible.leader.replicas.version", 1, 0, 1),
    ("group.version", 1, 0, 1),
    ("share.version", 1, 0, 1),
    ("streams.version", 1, 0, 1),
    ("transaction.version", 2, 0, 2),
)


def bootstrap_records(
    min_insync_replicas: int, users: Sequence[MetadataRecord] = ()
) -> list[MetadataRecord]:
    """The first records of a new log, as Kafka's controller writes them. users: `users_of`.

    The last one makes min.insync.replicas a value of the cluster: with eligible leader replicas on
    it can't be a broker's own.
    """
    return [
        ("BeginTransactionRecord", 0, {"name": "Bootstrap records"}),
        *_feature_records(),
        config_record(BROKER_RESOURCE, "", _MIN_ISR, str(min_insync_replicas)),
        *users,
        ("EndTransactionRecord", 0, {}),
    ]


def users_of(node_directory: str) -> list[MetadataRecord]:
    """The users of SCRAM that `kafka-storage format --add-scram` has put into bootstrap.checkpoint,
    of a directory that nothing was started on; ProtocolFault if it holds what
    is no record."""
    found: list[MetadataRecord] = []
    try:
        with open(os.path.join(node_directory, BOOTSTRAP_CHECKPOINT), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return found
    for position, header in iterate_batches(data):
        if header[H_ATTRIBUTES] & CONTROL_BIT:
            continue
        for _, _, _, value, _ in iterate_records(data, position):
            name, version, fields = decode_metadata_record(value or b"")
            if name == "UserScramCredentialRecord":
                found.append((name, version, fields))
    return found


def grown(image: MetadataImage, config: BrokerConfig) -> list[MetadataRecord]:
    """What follows from starting a family with more replicas than it ever had brokers: the
    cluster's min.insync.replicas goes along, if it still is what the smaller family began with."""
    wanted = str(config["min.insync.replicas"])
    current = image.config(BROKER_RESOURCE, "").get(_MIN_ISR)
    is_larger = len(image.brokers) < config["shmbroker.replicas"]
    if not is_larger or current != "1" or wanted == current:
        return []
    return [config_record(BROKER_RESOURCE, "", _MIN_ISR, wanted)]


def bootstrap_checkpoint(now_ms: int) -> bytes:
    """The content of bootstrap.checkpoint."""
    from shmbroker.controller.raft.snapshots import snapshot  # which needs the levels above

    return b"".join(snapshot(_feature_records(), 0, 0, now_ms))


def _feature_records() -> list[MetadataRecord]:
    return [
        ("FeatureLevelRecord", 0, {"name": name, "feature_level": level})
        for name, level, _, _ in FEATURE_LEVELS
    ]


def write_bootstrap_checkpoint(node_directory: str, now_ms: int) -> None:
    """Write bootstrap.checkpoint, durably, where there is none."""
    path = os.path.join(node_directory, BOOTSTRAP_CHECKPOINT)
    if os.path.exists(path):
        return
    with open(path + ".tmp", "wb") as file:
        file.write(bootstrap_checkpoint(now_ms))
        file.flush()
        with waiting_for_disk():
            os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    sync_directory(node_directory)
