"""The settings of one partition's log: those of the table (`settings.table`), parsed, and what
follows from them.

Rules of this file:
* A setting is taken under its name with underscores; default, type and bounds are the table's.
* Only a segment may be smaller than a topic's setting allows (Kafka: `internal.segment.bytes`).
"""

from __future__ import annotations

from shmbroker.errors import ConfigFault
from shmbroker.settings.table import TOPIC_SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_DAY_MS = 86_400_000
_AS_TOTAL = -2
"""Local retention is the same as retention.ms and retention.bytes."""

SEGMENT_BYTES_MIN = 14


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

    # From the table, by these names:
    cleanup_policy: list[str]
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
    min_cleanable_dirty_ratio: float

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """`values`: {Kafka's topic setting: text}; others than the log's are passed over.

        ConfigFault names the first one that can't be used.
        """
        for attribute, name in _FROM_TABLE:
            setattr(self, attribute, _value(name, values))
        self.is_compacted = "compact" in self.cleanup_policy
        self.is_deleted = "delete" in self.cleanup_policy
        self.is_fsync = self.shmbroker_ack_durability == "fsync"
        """Acks, and what readers see, wait for the disk."""
        self.roll_ms = self.segment_ms
        """A record must not wait in the active segment for longer than it may wait at all."""
        if self.is_compacted:
            self.roll_ms = min(self.segment_ms, self.max_compaction_lag_ms)
        self.is_tiered = not self.is_compacted and bool(_value("remote.storage.enable", values))
        """Closed segments are copied to a remote store; older ones may be there alone."""
        self.is_copied = self.is_tiered and not _value("remote.log.copy.disable", values)
        """More of them still are; else what is local has the time and the room of all."""
        if self.local_retention_ms == _AS_TOTAL or not self.is_copied:
            self.local_retention_ms = self.retention_ms
        if self.local_retention_bytes == _AS_TOTAL or not self.is_copied:
            self.local_retention_bytes = self.retention_bytes
        self.is_log_append_time = self.message_timestamp_type == "LogAppendTime"
        self.is_validated = self.shmbroker_validation == "records"
        """Produce looks at every record."""
        self.leader_throttled_replicas = _items("leader.replication.throttled.replicas", values)
        self.follower_throttled_replicas = _items("follower.replication.throttled.replicas", values)
        self.is_unclean_allowed = bool(_value("unclean.leader.election.enable", values))
        """The topic's owner would rather lose records than wait for them."""
        self.producer_id_expiration_ms = _DAY_MS
        self.producer_snapshot_interval = 1024
        """Index entries (each at least `index_interval_bytes` of log, or one larger batch) between
        two snapshots of the producer state: what a restart walks at most."""


_FROM_TABLE = tuple((name, name.replace("_", ".")) for name in LogConfig.__annotations__)
_DEFAULTS = {name: row.parse(row.default or "") for name, row in TOPIC_SETTINGS.items()}


def _value(name: str, values: Mapping[str, str] | None) -> Any:
    text = values.get(name) if values else None
    if text is None:
        return _DEFAULTS[name]
    try:
        least = SEGMENT_BYTES_MIN if name == "segment.bytes" else None
        return TOPIC_SETTINGS[name].parse(text, least=least)
    except ValueError as refusal:
        raise ConfigFault(str(refusal)) from None


def _items(name: str, values: Mapping[str, str] | None) -> tuple[str, ...]:
    return tuple(_value(name, values))
