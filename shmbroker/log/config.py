"""The settings of one partition's log, under Kafka's topic names with underscores."""

from shmbroker.errors import ConfigFault

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_DAY_MS = 86_400_000
_AS_TOTAL = -2
"""Of local retention: the same as retention.ms and retention.bytes."""

_INTEGERS = {
    # name: (default, least, most)
    "segment.bytes": (1 << 30, 14, _INT32_MAX),
    "segment.ms": (7 * _DAY_MS, 1, _INT64_MAX),
    "segment.jitter.ms": (0, 0, _INT64_MAX),
    "segment.index.bytes": (10 << 20, 4, _INT32_MAX),
    "index.interval.bytes": (4096, 0, _INT32_MAX),
    "max.message.bytes": (1048588, 0, _INT32_MAX),
    "retention.ms": (7 * _DAY_MS, -1, _INT64_MAX),
    "retention.bytes": (-1, -1, _INT64_MAX),
    "local.retention.ms": (-2, -2, _INT64_MAX),
    "local.retention.bytes": (-2, -2, _INT64_MAX),
    "message.timestamp.before.max.ms": (_INT64_MAX, 0, _INT64_MAX),
    "message.timestamp.after.max.ms": (3_600_000, 0, _INT64_MAX),
    "min.insync.replicas": (1, 1, _INT32_MAX),
    "flush.messages": (_INT64_MAX, 1, _INT64_MAX),
    "flush.ms": (_INT64_MAX, 0, _INT64_MAX),
    "file.delete.delay.ms": (60_000, 0, _INT64_MAX),
    "delete.retention.ms": (_DAY_MS, 0, _INT64_MAX),
    "min.compaction.lag.ms": (0, 0, _INT64_MAX),
    "max.compaction.lag.ms": (_INT64_MAX, 1, _INT64_MAX),
}
_CHOICES = {
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "shmbroker.ack.durability": ("page-cache", "fsync"),
    "shmbroker.validation": ("batch", "records"),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
}
_CLEANUP_POLICIES = {"delete", "compact"}


class LogConfig:
    """Kafka's defaults where nothing is given. Built once for each change, read on every append."""

    __slots__ = (
        "cleanup_policy",
        "compression_type",
        "delete_retention_ms",
        "file_delete_delay_ms",
        "flush_messages",
        "flush_ms",
        "follower_throttled_replicas",
        "index_interval_bytes",
        "is_compacted",
        "is_copied",
        "is_deleted",
        "is_fsync",
        "is_log_append_time",
        "is_tiered",
        "is_unclean_allowed",
        "is_validated",
        "leader_throttled_replicas",
        "local_retention_bytes",
        "local_retention_ms",
        "max_compaction_lag_ms",
        "max_message_bytes",
        "message_timestamp_after_max_ms",
        "message_timestamp_before_max_ms",
        "message_timestamp_type",
        "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms",
        "min_insync_replicas",
        "producer_id_expiration_ms",
        "producer_snapshot_interval",
        "retention_bytes",
        "retention_ms",
        "roll_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
        "shmbroker_ack_durability",
        "shmbroker_validation",
    )

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    flush_messages: int
    flush_ms: int
    file_delete_delay_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    message_timestamp_type: str
    shmbroker_ack_durability: str
    shmbroker_validation: str
    compression_type: str

    def __init__(self, values: dict[str, str] | None = None) -> None:
        """`values`: {Kafka's topic setting: text}; others than the log's are passed over.

        ConfigFault names the first one that can't be used.
        """
        values = values or {}
        for name, (default, least, most) in _INTEGERS.items():
            setattr(self, name.replace(".", "_"), _integer(values, name, default, least, most))
        for name, choices in _CHOICES.items():
            value = values.get(name, choices[0])
            if value not in choices:
                raise ConfigFault(f"{name}: {value!r} is none of {', '.join(choices)}")
            setattr(self, name.replace(".", "_"), value)
        self.cleanup_policy = values.get("cleanup.policy", "delete")
        policies = {policy.strip() for policy in self.cleanup_policy.split(",")} - {""}
        if not policies <= _CLEANUP_POLICIES:
            raise ConfigFault(
                f"cleanup.policy: {self.cleanup_policy!r} is not compact and/or delete"
            )
        self.is_compacted = "compact" in policies
        self.is_deleted = "delete" in policies
        self.is_fsync = self.shmbroker_ack_durability == "fsync"
        """Acks, and what readers see, wait for the disk."""
        self.min_cleanable_dirty_ratio = _ratio(values, "min.cleanable.dirty.ratio", 0.5)
        self.roll_ms = self.segment_ms
        """A record must not wait in the active segment for longer than it may wait at all."""
        if self.is_compacted:
            self.roll_ms = min(self.segment_ms, self.max_compaction_lag_ms)
        self.is_tiered = not self.is_compacted and _is_true(values, "remote.storage.enable")
        """Closed segments are copied to a second store; older ones may be there alone."""
        self.is_copied = self.is_tiered and not _is_true(values, "remote.log.copy.disable")
        """More of them still are; else what is local has the time and the room of all."""
        if self.local_retention_ms == _AS_TOTAL or not self.is_copied:
            self.local_retention_ms = self.retention_ms
        if self.local_retention_bytes == _AS_TOTAL or not self.is_copied:
            self.local_retention_bytes = self.retention_bytes
        self.is_log_append_time = self.message_timestamp_type == "LogAppendTime"
        self.is_validated = self.shmbroker_validation == "records"
        """Produce looks at every record."""
        self.leader_throttled_replicas = _items(values, "leader.replication.throttled.replicas")
        self.follower_throttled_replicas = _items(values, "follower.replication.throttled.replicas")
        self.is_unclean_allowed = _is_true(values, "unclean.leader.election.enable")
        """The topic's owner would rather lose records than wait for them."""
        self.producer_id_expiration_ms = _DAY_MS
        self.producer_snapshot_interval = 1024
        """Index entries (each at least `index_interval_bytes` of log, or one larger batch) between
        two snapshots of the producer state: what a restart walks at most."""


def _is_true(values: dict[str, str], name: str) -> bool:
    return values.get(name, "false").lower() == "true"


def _items(values: dict[str, str], name: str) -> tuple[str, ...]:
    text = values.get(name, "")
    return tuple(text.split(",")) if text else ()


def _integer(values: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigFault(f"{name}: {text!r} is not a whole number") from None
    if not least <= value <= most:
        raise ConfigFault(f"{name}: {value} is not between {least} and {most}")
    return value


def _ratio(values: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(values.get(name, default))
    except ValueError:
        raise ConfigFault(f"{name}: {values[name]!r} is not a number") from None
    if not 0 <= value <= 1:
        raise ConfigFault(f"{name}: {value} is not between 0 and 1")
    return value
