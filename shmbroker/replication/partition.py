"""A partition as one broker holds it: its log, and its place among the replicas.

Rules of this file:
* log_start_offset <= high_watermark <= log_end_offset, always; the high watermark never goes back
  while this broker leads.
* With one in-sync replica the high watermark is the log end offset: what is in the page cache of
  the only replica is all that there is to wait for.
* Settings that the append path asks for are plain attributes, refreshed when a topic's
  configuration changes.
"""

from typing import Any

from shmbroker.wire import error_codes


class Partition:
    """One replica. `key` names it on the rings (`ids.PARTITION_KEY`)."""

    __slots__ = (
        "flush_messages",
        "high_watermark",
        "in_sync_replicas",
        "is_compacted",
        "is_fsync",
        "is_internal",
        "is_leader",
        "is_log_append_time",
        "is_offline",
        "key",
        "leader_epoch",
        "leader_id",
        "log",
        "message_bytes_max",
        "min_in_sync_replicas",
        "partition",
        "partition_epoch",
        "producers",
        "replicas",
        "segment_bytes_max",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
        "topic",
        "topic_id",
    )

    def __init__(self, key: bytes, topic: str, topic_id: bytes, partition: int, log: Any) -> None:
        self.key = key
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.log = log
        self.producers = log.producers
        self.is_leader = False
        self.is_offline = False
        """The disk below its log has failed."""
        self.is_internal = False
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.in_sync_replicas: tuple[int, ...] = ()
        self.high_watermark = log.log_end_offset
        self.on_config(log.config)

    def on_config(self, config: Any) -> None:
        """The topic's settings have changed; `config` is a `log.config.LogConfig`."""
        self.message_bytes_max = config.max_message_bytes
        self.is_compacted = config.is_compacted
        self.is_log_append_time = config.is_log_append_time
        self.timestamp_before_max_ms = config.message_timestamp_before_max_ms
        self.timestamp_after_max_ms = config.message_timestamp_after_max_ms
        self.segment_bytes_max = config.segment_bytes
        self.min_in_sync_replicas = config.min_insync_replicas
        self.is_fsync = config.is_fsync
        self.flush_messages = 1 if config.is_fsync else config.flush_messages
        """Records not yet on the disk with which an ack waits for it."""

    def on_leadership(self, broker_id: int, image: Any) -> None:
        """Take over what the metadata image says of this partition (a `PartitionImage`)."""
        self.leader_id = image.leader_id
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.in_sync_replicas = image.in_sync_replicas
        if image.leader_epoch != self.leader_epoch:
            self.leader_epoch = image.leader_epoch
            if image.leader_id == broker_id:
                # Written with the first batch: thousands of empty partitions need no file.
                self.log.leader_epochs.assign(image.leader_epoch, self.log.log_end_offset)
        self.is_leader = image.leader_id == broker_id and not self.is_offline
        self.advance_high_watermark()

    def take_offline(self) -> None:
        """The disk has failed: nothing is read or appended here until the broker starts again."""
        self.is_leader = False
        self.is_offline = True

    def advance_high_watermark(self) -> bool:
        """Move it as far as the in-sync replicas allow; True if it moved."""
        if len(self.in_sync_replicas) > 1:
            return False
        end = self.log.recovery_point if self.is_fsync else self.log.log_end_offset
        if end <= self.high_watermark:
            assert self.is_fsync or end == self.high_watermark, "it never goes back"
            return False
        self.high_watermark = end
        return True

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of what read_committed consumers may see; no transactions are open here."""
        return self.high_watermark


def not_led_error(partition: Partition | None) -> int:
    """The error code for a partition that is not led here; None for one that is not here at all."""
    if partition is not None and partition.is_offline:
        return error_codes.KAFKA_STORAGE_ERROR
    return error_codes.NOT_LEADER_OR_FOLLOWER
