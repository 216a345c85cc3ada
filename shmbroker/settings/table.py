"""The table: each setting once, with Kafka's name, type, default, allowed values and purpose.

Where a default differs from Kafka's, its row says so. Settings that Kafka doesn't have are named
`shmbroker.*`. Of Kafka's settings that mean nothing here those are in the table that clients may
change (`without_effect`); some are left out where they are given (`left_out`), and any other is
refused.
"""

from __future__ import annotations

from shmbroker import logs
from shmbroker.settings.security_table import PER_LISTENER, SECURITY_SETTINGS
from shmbroker.settings.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MAX_TEXT,
    LIST,
    LONG,
    LONG_MAX_TEXT,
    SHORT,
    STRING,
    Setting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


TOPIC_SETTINGS: dict[str, Setting] = {}
BROKER_SETTINGS: dict[str, Setting] = {}


def _broker(name: str, type_: int, default: str | None, documentation: str, **rules: Any) -> None:
    BROKER_SETTINGS[name] = Setting(name, type_, default, documentation, **rules)


def _topic(
    name: str,
    synonym: str | None,
    type_: int,
    default: str,
    documentation: str,
    *,
    also: tuple[tuple[str, int], ...] = (),
    **rules: Any,
) -> None:
    """A topic setting and, unless `synonym` is None, the broker setting that stands behind it.

    `also`: further broker settings, in a coarser unit, that count while the synonym isn't set;
    the synonym has no default of its own then.
    """
    synonyms = ((synonym, 1), *also) if synonym else ()
    TOPIC_SETTINGS[name] = Setting(
        name, type_, default, documentation, is_dynamic=True, synonyms=synonyms, **rules
    )
    if synonym:
        broker_default = None if also else default
        _broker(synonym, type_, broker_default, documentation, is_dynamic=True, **rules)


def _no_age(value: int) -> str | None:
    """A topic may drop what has come at once; said for all topics, it is taken for a slip."""
    return None if value else "Value must be -1, or at least 1"


def _gzip_level(level: int) -> str | None:
    if level == -1 or 1 <= level <= 9:
        return None
    return "Value must be between 1 and 9 or equal to -1"


def _throttled_replicas(name: str) -> Callable[[list[str]], str | None]:
    def check(items: list[str]) -> str | None:
        pairs = [item.split(":") for item in items if item]
        if items[:1] == ["*"] or all(len(p) == 2 and all(map(str.isdecimal, p)) for p in pairs):
            return None
        return (
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )

    return check


def address_limits(text: str) -> dict[str, int]:
    """max.connections.per.ip.overrides as {address: number}; ValueError if it is none."""
    from ipaddress import ip_address  # only ever for this setting

    found = {}
    for item in filter(None, map(str.strip, text.split(","))):
        address, _, number = item.rpartition(":")
        if not number.isascii() or not number.isdigit() or int(number) > INT_MAX:
            raise ValueError(f"{item} does not end with : and a number of connections")
        found[str(ip_address(address.strip().strip("[]")))] = int(number)
    return found


def _address_limits_complaint(text: str) -> str | None:
    try:
        address_limits(text)
    except ValueError as complaint:
        return f"Value must be ADDRESS:NUMBER,ADDRESS:NUMBER,...: {complaint}"
    return None


def page_address(text: str) -> tuple[str, int]:
    """shmbroker.metrics or .console as host and port; ValueError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _page_address_complaint(text: str) -> str | None:
    try:
        page_address(text)
    except ValueError:
        return "Value must be HOST:PORT"
    return None


def _logger_levels_complaint(items: list[str]) -> str | None:
    try:
        logs.parse_levels(items)
    except ValueError as refusal:
        return str(refusal)
    return None


def _power_of_two(value: int) -> str | None:
    return "Value must be a power of two" if value & value - 1 else None


def _never_or_seconds(value: int) -> str | None:
    """Idle processes of the family sign once a second."""
    return None if value == 0 or value >= 2000 else "Value must be 0 or at least 2000"


def _log_directories(items: list[str]) -> str | None:
    if len(set(items)) < len(items):
        return "Each log directory may be named once"
    if not all(item.startswith("/") for item in items):
        return "Log directories must be named by absolute paths"
    return None


# -- topic settings, each with its broker synonym; in the order of the alphabet --------------------

_topic(
    "cleanup.policy",
    "log.cleanup.policy",
    LIST,
    "delete",
    "What becomes of old segments: delete drops them by retention.ms and retention.bytes, compact "
    "keeps the last record of each key, both may be given, and none at all keeps everything.",
    allowed=("compact", "delete"),
)
_topic(
    "compression.gzip.level",
    "compression.gzip.level",
    INT,
    "-1",
    "Level for compression.type=gzip.",
    check=_gzip_level,
)
_topic(
    "compression.lz4.level",
    "compression.lz4.level",
    INT,
    "9",
    "Level for compression.type=lz4.",
    least=1,
    most=17,
)
_topic(
    "compression.type",
    "compression.type",
    STRING,
    "producer",
    "Codec of stored batches; producer leaves them as they come.",
    allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
)
_topic(
    "compression.zstd.level",
    "compression.zstd.level",
    INT,
    "3",
    "Level for compression.type=zstd.",
    least=-131072,
    most=22,
)
_topic(
    "delete.retention.ms",
    "log.cleaner.delete.retention.ms",
    LONG,
    "86400000",
    "How long the tombstones of a compacted topic stay readable.",
    least=0,
)
_topic(
    "file.delete.delay.ms",
    "log.segment.delete.delay.ms",
    LONG,
    "60000",
    "How long a dropped segment's files stay on disk, under another name, for readers on the way.",
    least=0,
)
_topic(
    "flush.messages",
    "log.flush.interval.messages",
    LONG,
    LONG_MAX_TEXT,
    "Number of records after which a log is flushed to disk; the largest number leaves it to the "
    "page cache.",
    least=1,
)
_topic(
    "flush.ms",
    "log.flush.interval.ms",
    LONG,
    LONG_MAX_TEXT,
    "Time after which what was appended is flushed to disk; the largest number leaves it to the "
    "page cache.",
    also=(("log.flush.scheduler.interval.ms", 1),),
    least=0,
)
_topic(
    "follower.replication.throttled.replicas",
    None,
    LIST,
    "",
    "Replicas that copy within their broker's follower.replication.throttled.rate, as "
    "PARTITION:BROKER pairs or * for all.",
    check=_throttled_replicas("follower.replication.throttled.replicas"),
)
_topic(
    "index.interval.bytes",
    "log.index.interval.bytes",
    INT,
    "4096",
    "Bytes of log between two entries of the offset and time index.",
    least=0,
)
_topic(
    "leader.replication.throttled.replicas",
    None,
    LIST,
    "",
    "Leaders, as PARTITION:BROKER pairs or * for all, that give to followers within their "
    "broker's leader.replication.throttled.rate.",
    check=_throttled_replicas("leader.replication.throttled.replicas"),
)
_topic(
    "local.retention.bytes",
    "log.local.retention.bytes",
    LONG,
    "-2",
    "With tiered storage: size of a partition's local segments beyond which the oldest that the "
    "store has are dropped here; -2 is retention.bytes, -1 sets no limit.",
    least=-2,
)
_topic(
    "local.retention.ms",
    "log.local.retention.ms",
    LONG,
    "-2",
    "With tiered storage: age beyond which local segments that the store has are dropped here; -2 "
    "is retention.ms, -1 sets no limit.",
    least=-2,
)
_topic(
    "max.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms",
    LONG,
    LONG_MAX_TEXT,
    "Longest time that a record may wait before it is compacted.",
    least=1,
)
_topic(
    "max.message.bytes",
    "message.max.bytes",
    INT,
    "1048588",
    "Largest record batch that is accepted, as it comes (after compression).",
    least=0,
)
_topic(
    "message.timestamp.after.max.ms",
    "log.message.timestamp.after.max.ms",
    LONG,
    "3600000",
    "How far a record's timestamp may lie ahead of the broker's clock (CreateTime only).",
    least=0,
)
_topic(
    "message.timestamp.before.max.ms",
    "log.message.timestamp.before.max.ms",
    LONG,
    LONG_MAX_TEXT,
    "How far a record's timestamp may lie behind the broker's clock (CreateTime only).",
    least=0,
)
_topic(
    "message.timestamp.type",
    "log.message.timestamp.type",
    STRING,
    "CreateTime",
    "Whose clock a record's timestamp is: its producer's or, at the append, the broker's.",
    allowed=("CreateTime", "LogAppendTime"),
)
_topic(
    "min.cleanable.dirty.ratio",
    "log.cleaner.min.cleanable.ratio",
    DOUBLE,
    "0.5",
    "Part of a compacted log that must be uncompacted before it is worth another pass.",
    least=0,
    most=1,
)
_topic(
    "min.compaction.lag.ms",
    "log.cleaner.min.compaction.lag.ms",
    LONG,
    "0",
    "Shortest time that a record stays as it was written, before it may be compacted.",
    least=0,
)
_topic(
    "min.insync.replicas",
    "min.insync.replicas",
    INT,
    "1",
    "In-sync replicas, the leader included, without which acks=all is refused; at most the number "
    "of replicas counts.",
    least=1,
)
_topic(
    "preallocate",
    "log.preallocate",
    BOOLEAN,
    "false",
    "Whether a new segment's file is allocated at once.",
)
_topic(
    "remote.log.copy.disable",
    None,
    BOOLEAN,
    "false",
    "Whether a tiered topic stops copying to the remote store: what is there stays readable until "
    "retention.ms and retention.bytes, which then count for local segments too.",
)
_topic(
    "remote.log.delete.on.disable",
    None,
    BOOLEAN,
    "false",
    "Whether the remote copy goes when remote.storage.enable is switched off, which is refused "
    "without.",
)
_topic(
    "remote.storage.enable",
    None,
    BOOLEAN,
    "false",
    "Whether closed segments are copied to the remote store, and old ones kept there alone. Needs "
    "remote.log.storage.system.enable, and cleanup.policy=delete or none.",
)
_topic(
    "retention.bytes",
    "log.retention.bytes",
    LONG,
    "-1",
    "Size of a partition beyond which its oldest segments are dropped; -1 sets no limit.",
)
_topic(
    "retention.ms",
    "log.retention.ms",
    LONG,
    "604800000",
    "Age beyond which segments are dropped; -1 keeps them for ever.",
    also=(("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    least=-1,
)
BROKER_SETTINGS["log.retention.ms"].check = _no_age
_topic(
    "segment.bytes",
    "log.segment.bytes",
    INT,
    "1073741824",
    "Size at which the active segment is rolled; retention and compaction go by whole segments.",
    least=1 << 20,
)
_topic(
    "segment.index.bytes",
    "log.index.size.max.bytes",
    INT,
    "10485760",
    "Size of an index at which the active segment is rolled.",
    least=4,
)
_topic(
    "segment.jitter.ms",
    "log.roll.jitter.ms",
    LONG,
    "0",
    "Random part of segment.ms by which a roll may come early, so that partitions don't all roll "
    "together.",
    also=(("log.roll.jitter.hours", 3_600_000),),
    least=0,
)
_topic(
    "segment.ms",
    "log.roll.ms",
    LONG,
    "604800000",
    "Age at which the active segment is rolled though it isn't full.",
    also=(("log.roll.hours", 3_600_000),),
    least=1,
)
_topic(
    "shmbroker.ack.durability",
    "shmbroker.ack.durability",
    STRING,
    "page-cache",
    "What an acknowledgement waits for: that the batch is in the page cache (page-cache), which "
    "outlives every process, or on the disk (fsync), which outlives a power cut. Consumers see "
    "what could be acknowledged.",
    allowed=("page-cache", "fsync"),
)
_topic(
    "shmbroker.validation",
    "shmbroker.validation",
    STRING,
    "batch",
    "How Produce judges batches: by header and CRC (batch), or by every record as well (records), "
    "as Apache Kafka does: sizes, offset deltas, counts, headers, timestamps. Where the answer "
    "depends on single records they are always looked at: on compacted topics, and with "
    "message.timestamp.before.max.ms.",
    allowed=("batch", "records"),
)
_topic(
    "unclean.leader.election.enable",
    "unclean.leader.election.enable",
    BOOLEAN,
    "false",
    "Whether a replica that isn't in sync may become leader when no other is left; loses records.",
)

# -- broker settings, as Kafka has them ------------------------------------------------------------

_broker(
    "log.retention.minutes",
    INT,
    None,
    "Like log.retention.ms, in minutes; applies if that is not set.",
    least=-1,
    check=_no_age,
)
_broker(
    "log.retention.hours",
    INT,
    "168",
    "Like log.retention.ms, in hours; applies if neither that nor log.retention.minutes is set.",
    least=-1,
    check=_no_age,
)
_broker(
    "log.roll.hours",
    INT,
    "168",
    "Like log.roll.ms, in hours; applies if that is not set.",
    least=1,
)
_broker(
    "log.roll.jitter.hours",
    INT,
    "0",
    "Like log.roll.jitter.ms, in hours; applies if that is not set.",
    least=0,
)
_broker(
    "log.flush.scheduler.interval.ms",
    LONG,
    LONG_MAX_TEXT,
    "How often logs are looked through for one whose flush.ms is over.",
)
_broker(
    "log.flush.offset.checkpoint.interval.ms",
    INT,
    "60000",
    "How often recovery points are written, which tell where recovery after a crash begins.",
    least=0,
)
_broker(
    "log.flush.start.offset.checkpoint.interval.ms",
    INT,
    "60000",
    "How often log start offsets are written.",
    least=0,
)
_broker(
    "log.cleaner.enable",
    BOOLEAN,
    "true",
    "Whether logs with cleanup.policy=compact are compacted, __consumer_offsets among them.",
)
_broker(
    "log.cleaner.threads",
    INT,
    "1",
    "Processes that compact logs.",
    least=0,
    is_dynamic=True,
)
_broker(
    "log.cleaner.dedupe.buffer.size",
    LONG,
    "134217728",
    "Memory for the keys of one pass of compaction, 24 bytes each at a load of 0.7; what does not "
    "fit waits for the next pass. A change counts from the next pass on.",
    least=1 << 10,
    is_dynamic=True,
)
_broker(
    "log.cleaner.io.buffer.size",
    INT,
    "524288",
    "Memory for the bytes that compaction reads and writes.",
    least=0,
    is_dynamic=True,
)
_broker(
    "log.cleaner.io.buffer.load.factor",
    DOUBLE,
    "0.9",
    "Part of the keys' memory that compaction fills.",
    is_dynamic=True,
)
_broker(
    "log.cleaner.io.max.bytes.per.second",
    DOUBLE,
    "1.7976931348623157E308",
    "How many bytes compaction may read and write in a second; a change counts at once. Less than "
    "1 is taken for 1.",
    is_dynamic=True,
)
_broker(
    "log.cleaner.backoff.ms",
    LONG,
    "15000",
    "How long compaction waits before it looks again, when there was nothing to compact.",
    least=0,
    is_dynamic=True,
)
_broker(
    "log.retention.check.interval.ms",
    LONG,
    "300000",
    "How often logs are looked through for segments to drop.",
    least=1,
)
_broker(
    "remote.log.storage.system.enable",
    BOOLEAN,
    "false",
    "Whether there is a remote store, which topics may use (remote.storage.enable); naming one by "
    "shmbroker.tier.store is as good.",
)
_broker(
    "remote.log.manager.task.interval.ms",
    LONG,
    "1000",
    "How often segments are looked for that may be copied to the remote store (Apache Kafka: "
    "30000).",
    least=1,
)
_broker(
    "remote.fetch.max.wait.ms",
    INT,
    "500",
    "How long a Fetch waits for records from the remote store before it is answered without them; "
    "they are here for the next.",
    least=1,
    is_dynamic=True,
)
_broker(
    "remote.list.offsets.request.timeout.ms",
    LONG,
    "30000",
    "How long ListOffsets by time waits for the remote store.",
    least=1,
    is_dynamic=True,
)
_broker(
    "remote.log.manager.copy.max.bytes.per.second",
    LONG,
    LONG_MAX_TEXT,
    "Bytes a second that a broker copies to the remote store.",
    least=1,
    is_dynamic=True,
)
_broker(
    "remote.log.manager.fetch.max.bytes.per.second",
    LONG,
    LONG_MAX_TEXT,
    "Bytes a second that a broker fetches from the remote store.",
    least=1,
    is_dynamic=True,
)
_broker(
    "remote.log.index.file.cache.total.size.bytes",
    LONG,
    "1073741824",
    "Room for Kafka's indexes of segments in the remote store.",
    least=1,
    is_dynamic=True,
)
_broker(
    "replica.high.watermark.checkpoint.interval.ms",
    LONG,
    "5000",
    "How often high watermarks are written.",
)
_broker(
    "producer.id.expiration.ms",
    INT,
    "86400000",
    "How long an idempotent producer's sequence numbers are remembered after its last batch.",
    least=1,
    is_dynamic=True,
)
_broker(
    "num.partitions",
    INT,
    "1",
    "Partitions of a topic that is created without saying how many.",
    least=1,
)
_broker(
    "default.replication.factor",
    INT,
    "1",
    "Replicas of a partition when a topic is created without saying how many.",
    least=1,
)
_broker(
    "auto.create.topics.enable",
    BOOLEAN,
    "true",
    "Whether a Metadata request for a topic that isn't there creates it.",
)
_broker(
    "delete.topic.enable",
    BOOLEAN,
    "true",
    "Whether DeleteTopics is served.",
)
_broker(
    "offsets.topic.num.partitions",
    INT,
    "50",
    "Partitions of __consumer_offsets when it is created; not to be changed afterwards.",
    least=1,
)
_broker(
    "offsets.topic.replication.factor",
    SHORT,
    "1",
    "Replicas of __consumer_offsets when it is created (Apache Kafka: 3).",
    least=1,
)
_broker(
    "offsets.topic.segment.bytes",
    INT,
    "104857600",
    "Segment size of __consumer_offsets when it is created.",
    least=1 << 20,
)
_broker(
    "transaction.max.timeout.ms",
    INT,
    "900000",
    "The longest transaction.timeout.ms that a producer may ask for.",
    least=1,
)
_broker(
    "transaction.partition.verification.enable",
    BOOLEAN,
    "true",
    "Whether the first batch of a transaction in a partition waits until the coordinator knows of "
    "it, also for producers that add their partitions themselves.",
    is_dynamic=True,
)
_broker(
    "transaction.state.log.min.isr",
    INT,
    "1",
    "min.insync.replicas of __transaction_state when it is created (Apache Kafka: 2).",
    least=1,
)
_broker(
    "transaction.state.log.num.partitions",
    INT,
    "50",
    "Partitions of __transaction_state when it is created; not to be changed afterwards.",
    least=1,
)
_broker(
    "transaction.state.log.replication.factor",
    SHORT,
    "1",
    "Replicas of __transaction_state when it is created (Apache Kafka: 3).",
    least=1,
)
_broker(
    "transaction.state.log.segment.bytes",
    INT,
    "104857600",
    "Segment size of __transaction_state when it is created.",
    least=1 << 20,
)
_broker(
    "transactional.id.expiration.ms",
    INT,
    "604800000",
    "How long a transactional id is kept without a transaction.",
    least=1,
)
_broker(
    "replica.lag.time.max.ms",
    LONG,
    "30000",
    "How long a follower may be behind its leader before it is no longer in sync.",
    least=1,
)
_broker(
    "offsets.retention.minutes",
    INT,
    "10080",
    "How long a committed offset is kept once its group is empty, or nobody commits it again.",
    least=1,
)
_broker(
    "offsets.retention.check.interval.ms",
    LONG,
    "600000",
    "How often groups are looked through for offsets to forget.",
    least=1,
)
_broker(
    "offset.metadata.max.bytes",
    INT,
    "4096",
    "Longest text that may be committed with an offset.",
)
_broker(
    "group.initial.rebalance.delay.ms",
    INT,
    "3000",
    "How long the first member of an empty group waits for others before partitions are assigned.",
)
_broker(
    "group.min.session.timeout.ms",
    INT,
    "6000",
    "Shortest session timeout that a member of a group may ask for.",
)
_broker(
    "group.max.session.timeout.ms",
    INT,
    "1800000",
    "Longest session timeout that a member of a group may ask for.",
)
_broker(
    "group.max.size",
    INT,
    INT_MAX_TEXT,
    "Members that a group may have.",
    least=1,
)
_broker(
    "group.consumer.heartbeat.interval.ms",
    INT,
    "5000",
    "How often members of a consumer group (KIP-848) are told to send a heartbeat.",
    least=1,
)
_broker(
    "group.consumer.min.heartbeat.interval.ms",
    INT,
    "5000",
    "Least of the heartbeat interval that a single consumer group may be given.",
    least=1,
)
_broker(
    "group.consumer.max.heartbeat.interval.ms",
    INT,
    "15000",
    "Most of the heartbeat interval that a single consumer group may be given.",
    least=1,
)
_broker(
    "group.consumer.session.timeout.ms",
    INT,
    "45000",
    "Time without a heartbeat after which a member of a consumer group (KIP-848) is removed.",
    least=1,
)
_broker(
    "group.consumer.min.session.timeout.ms",
    INT,
    "45000",
    "Least of the session timeout that a single consumer group may be given.",
    least=1,
)
_broker(
    "group.consumer.max.session.timeout.ms",
    INT,
    "60000",
    "Most of the session timeout that a single consumer group may be given.",
    least=1,
)
_broker(
    "group.consumer.max.size",
    INT,
    INT_MAX_TEXT,
    "Members that a consumer group (KIP-848) may have.",
    least=1,
)
_broker(
    "group.consumer.assignors",
    LIST,
    "uniform,range",
    "Assignors of consumer groups (KIP-848) that members may ask for; the first is taken if they "
    "ask for none.",
    allowed=("uniform", "range"),
)
_broker(
    "group.consumer.migration.policy",
    STRING,
    "bidirectional",
    "Which groups may change between the classic protocol and that of KIP-848 while members of "
    "both are there.",
    allowed=("disabled", "downgrade", "upgrade", "bidirectional"),
)
_broker(
    "group.consumer.regex.refresh.interval.ms",
    INT,
    "600000",
    "How often the topics are looked through again for those that members' expressions match.",
    least=10_000,
)
_broker(
    "socket.request.max.bytes",
    INT,
    "104857600",
    "Largest request that is read; the connection is closed on a larger one.",
    least=1,
)
_broker(
    "socket.listen.backlog.size",
    INT,
    "1024",
    "Connections that may wait to be accepted (Apache Kafka: 50); net.core.somaxconn bounds it.",
    least=1,
)
_broker(
    "connections.max.idle.ms",
    LONG,
    "600000",
    "Time without a request or an answer after which a connection is closed; negative: none is.",
)
_broker(
    "max.connections",
    INT,
    INT_MAX_TEXT,
    "Open connections of the whole broker family; more are closed at once, with a line in the log. "
    "The control socket is open to its user whatever this says.",
    least=0,
    is_dynamic=True,
)
_broker(
    "max.connections.per.ip",
    INT,
    INT_MAX_TEXT,
    "Open connections from one address to the whole broker family; more are closed at once, with a "
    "line in the log.",
    least=0,
    is_dynamic=True,
)
_broker(
    "max.connections.per.ip.overrides",
    STRING,
    "",
    "Addresses with a max.connections.per.ip of their own, as ADDRESS:NUMBER with commas between. "
    "Addresses only: names of hosts are not looked up.",
    check=_address_limits_complaint,
    is_dynamic=True,
)
_broker(
    "queued.max.requests",
    INT,
    "500",
    "Requests that are in flight before no more are read.",
    least=1,
)
for _name, _default, _what in (
    ("background.threads", "10", "that do various things in the background"),
    ("num.io.threads", "8", "that answer requests"),
    ("num.network.threads", "3", "that own connections, for each listener"),
    ("num.recovery.threads.per.data.dir", "2", "that recover logs at the start"),
    ("num.replica.fetchers", "1", "that copy from each other broker"),
    ("remote.log.manager.copier.thread.pool.size", "10", "that copy to the remote store"),
    ("remote.log.manager.expiration.thread.pool.size", "10", "that delete from the remote store"),
    ("remote.log.manager.follower.thread.pool.size", "2", "that follow copies of leaders"),
    ("remote.log.reader.threads", "10", "that fetch from the remote store"),
):
    _broker(_name, INT, _default, f"Threads of Kafka's {_what}.", least=1, is_dynamic=True)
_broker(
    "queued.max.request.bytes",
    LONG,
    "-1",
    "Bytes of requests that are still arriving, of all connections together. While they are used "
    "up, the slowest senders are closed, and others wait; a single larger request is taken all the "
    "same. -1 is 48 MiB; each network worker has an equal part, and at least 1 MiB.",
)
_broker(
    "fetch.max.bytes",
    INT,
    "57671680",
    "Most bytes that a Fetch answer carries, whatever the request asks.",
    least=1024,
)
_broker(
    "max.incremental.fetch.session.cache.slots",
    INT,
    "1000",
    "Fetch sessions that are kept, shared out among the network workers; 0 for none.",
    least=0,
)
_broker(
    "max.request.partition.size.limit",
    INT,
    "2000",
    "Most partitions in one DescribeTopicPartitions answer.",
    least=1,
)
_broker(
    "leader.replication.throttled.rate",
    LONG,
    LONG_MAX_TEXT,
    "Bytes a second that a broker gives to followers of the partitions whose "
    "leader.replication.throttled.replicas name it. Followers in sync count, but never wait.",
    least=0,
    is_dynamic=True,
    is_hidden=True,
)
_broker(
    "follower.replication.throttled.rate",
    LONG,
    LONG_MAX_TEXT,
    "Bytes a second that a broker copies of the partitions whose "
    "follower.replication.throttled.replicas name it. Replicas in sync count, but never wait.",
    least=0,
    is_dynamic=True,
    is_hidden=True,
)
_broker(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    LONG,
    LONG_MAX_TEXT,
    "Bytes a second that a broker copies from one of its log directories to another.",
    least=0,
    is_dynamic=True,
    is_hidden=True,
)
_broker(
    "auto.leader.rebalance.enable",
    BOOLEAN,
    "true",
    "Whether the first replica of a partition becomes its leader again, from time to time, once it "
    "is in sync.",
)
_broker(
    "leader.imbalance.check.interval.seconds",
    LONG,
    "300",
    "How often partitions are looked through for those that their first replica could lead.",
    least=1,
)
_broker(
    "leader.imbalance.per.broker.percentage",
    INT,
    "10",
    "How many partitions of a broker may be led by others before they are given back.",
    is_hidden=True,
)
_broker(
    "unclean.leader.election.interval.ms",
    LONG,
    "300000",
    "How often partitions without a leader are looked through for those whose "
    "unclean.leader.election.enable was set since they have none.",
    least=1,
    is_hidden=True,
)
_broker(
    "controller.quorum.election.timeout.ms",
    INT,
    "1000",
    "How long a voter waits for an election's outcome before it tries again, at least; up to twice "
    "that. One whose process dies is replaced at once.",
    least=10,
)
_broker(
    "controller.quorum.fetch.timeout.ms",
    INT,
    "2000",
    "Time without an answer of the active controller after which another stands for election, and "
    "1.5 times that without a majority that fetches after which the active one resigns.",
    least=1000,
)
_broker(
    "controller.quorum.request.timeout.ms",
    INT,
    "2000",
    "How long a voter waits for another one's answer.",
    least=100,
)
_broker(
    "controller.quorum.election.backoff.max.ms",
    INT,
    "1000",
    "Longest rest between elections that come to nothing.",
    least=10,
)
_broker(
    "metadata.log.segment.bytes",
    INT,
    "1073741824",
    "Size of a segment of the metadata log.",
    least=8 << 20,
)
_broker(
    "metadata.log.segment.ms",
    LONG,
    "604800000",
    "Age at which a segment of the metadata log is closed.",
    least=1,
)
_broker(
    "metadata.log.max.record.bytes.between.snapshots",
    LONG,
    "20971520",
    "Growth of the metadata log after which a snapshot is written.",
    least=1,
)
_broker(
    "metadata.log.max.snapshot.interval.ms",
    LONG,
    "3600000",
    "Time after which a snapshot of the metadata is written if anything has changed; 0: never.",
    least=0,
)
_broker(
    "metadata.max.retention.bytes",
    LONG,
    "104857600",
    "Size of metadata log and snapshots above which the oldest of them go.",
    least=-1,
)
_broker(
    "metadata.max.retention.ms",
    LONG,
    "604800000",
    "Age above which old snapshots of the metadata, and the log before them, go.",
    least=-1,
)
_broker(
    "broker.session.timeout.ms",
    INT,
    "2000",
    "Time without a sign of life after which a broker that hangs is fenced and others lead what it "
    "led (Apache Kafka: 9000). One that dies is fenced at once.",
    least=1000,
)
_broker(
    "broker.rack",
    STRING,
    None,
    "Name of the place the brokers stand in, for clients that prefer a near one.",
)

# -- broker settings of our own --------------------------------------------------------------------

_broker(
    "shmbroker.host",
    STRING,
    "127.0.0.1",
    "Address that the client ports are bound to; loopback unless you say otherwise.",
)
_broker(
    "shmbroker.port",
    INT,
    "9092",
    "Client port of the first broker; each further one has the next port. 0 takes free ones.",
    least=0,
    most=65535,
)
_broker(
    "shmbroker.data",
    STRING,
    None,
    "Data directory; unset, shmbroker's place under the XDG state directory.",
)
_broker(
    "shmbroker.data.access",
    STRING,
    "umask",
    "Who may read the files of the log on this host. umask: as the process's umask says, but "
    "nobody beside its group, and only the owner asks the control socket. owner: only the user "
    "that the broker runs as. group: also the members of its group, who read segments and ask the "
    "control socket where they are, so that Spark of another user takes the files; they change "
    "nothing.",
    allowed=("umask", "owner", "group"),
)
_broker(
    "shmbroker.io.workers",
    INT,
    "1",
    "I/O workers: brokers, each with its own log directory and port.",
    least=1,
    most=64,
)
_broker(
    "shmbroker.node.id",
    INT,
    "1",
    "Id of the first broker, and of the controller beside it (Kafka's node.id); the next ones "
    "follow. Unset, log directories that are a node's already keep the ids they have.",
    least=0,
    most=2**31 - 65,
)
_broker(
    "shmbroker.replicas",
    INT,
    "1",
    "Copies of each partition, on as many I/O workers at least. It is the default of "
    "default.replication.factor and, up to 3, of offsets.topic.replication.factor and "
    "transaction.state.log.replication.factor; from 3 on that "
    "of min.insync.replicas is 2.",
    least=1,
    most=64,
)
_broker(
    "shmbroker.controllers",
    INT,
    "1",
    "Processes that vote on the metadata, an odd number and at most one for each I/O worker: with "
    "3, one may die or hang and another takes over.",
    least=1,
    most=9,
    check=lambda value: None if value % 2 else "Value must be odd",
)
_broker(
    "shmbroker.log.dirs",
    LIST,
    "",
    "Log directories of the first broker, the second and so on, as absolute paths, for instance on "
    "different disks; a broker without one has node-n under the data directory, by its id.",
    check=_log_directories,
)
_broker(
    "shmbroker.network.workers",
    INT,
    None,
    "Network workers, which own the client connections; unset, two, or one where the broker may "
    "run on a single core.",
    least=1,
    most=64,
)
_broker(
    "shmbroker.share.core",
    BOOLEAN,
    "true",
    "Workers that sleep most of the time share one core, which spares wake-ups from core to core. "
    "Only for a single I/O worker. To be false where something else keeps each worker to a core.",
)
_broker(
    "shmbroker.lend.connections",
    BOOLEAN,
    "true",
    "Plain connections that are quiet, or send small batches, are served by the "
    "I/O worker itself, which spares wake-ups. One that waits for an answer ends where that dies.",
)
_broker(
    "shmbroker.disk.reserve.bytes",
    LONG,
    "-1",
    "Room on a log directory's file system below which Produce is refused, so that the rest has "
    "some; -1 is a hundredth of the file system, at most 256 MiB; 0 is none.",
    least=-1,
)
_broker(
    "shmbroker.metrics",
    STRING,
    None,
    "HOST:PORT where metrics are shown to Prometheus, by a process of its own; without it there is "
    "none. Whoever reaches that address may read them.",
    check=_page_address_complaint,
)
_broker(
    "shmbroker.console",
    STRING,
    None,
    "HOST:PORT where a browser finds the console, served by a process of its own; without it there "
    "is none. Whoever reaches that address may read topics, records, groups and settings.",
    check=_page_address_complaint,
)
_broker(
    "shmbroker.console.writes",
    BOOLEAN,
    "false",
    "Whether the console may change something: produce a record, move the offsets of a group, "
    "delete a topic. Whoever reaches its address may then.",
)
_broker(
    "shmbroker.logger.format",
    STRING,
    logs.HUMAN,
    "How lines of the log look: for people (human), or one JSON object each (json), with ts, "
    "level, process, role, id, pid, logger, message and what the event has besides.",
    allowed=logs.FORMATS,
)
_broker(
    "shmbroker.logger.levels",
    LIST,
    "",
    "Levels of loggers, as LOGGER=LEVEL: TRACE, DEBUG, INFO, WARN, ERROR or FATAL. A logger is a "
    "module or package (shmbroker.gateway); root has what libraries say; a LEVEL alone is that of "
    "shmbroker. By default root is at "
    "WARN and shmbroker at INFO. While the broker runs `shmbroker config set logger` changes them, "
    "or any other client.",
    check=_logger_levels_complaint,
)
_broker(
    "shmbroker.watchdog.warn.ms",
    INT,
    "5000",
    "Time without a sign of life after which a line in the log names a process of the family that "
    "hangs, and what the kernel says of it; 0 is never.",
    least=0,
    check=_never_or_seconds,
)
_broker(
    "shmbroker.watchdog.kill.ms",
    INT,
    "8000",
    "Time without a sign of life after which such a process is killed and replaced; 0 is never, "
    "which is for debuggers.",
    least=0,
    check=_never_or_seconds,
)
_broker(
    "shmbroker.tier.store",
    STRING,
    None,
    "The remote store for tiered topics: file:///path for a directory, s3://bucket/prefix for an "
    "object store (needs boto3, which takes credentials from its own environment). Unset, the "
    "directory tier-store in the data directory.",
)
_broker(
    "shmbroker.tier.s3.endpoint",
    STRING,
    None,
    "Address of an S3-compatible object store, such as http://127.0.0.1:9000; unset, Amazon's.",
)
_broker(
    "shmbroker.tier.s3.region",
    STRING,
    None,
    "Region of the object store; unset, what boto3 finds in its environment.",
)
_broker(
    "shmbroker.tier.cache.bytes",
    LONG,
    str(1 << 30),
    "Room in the data directory for what was read from the remote store, shared out among the I/O "
    "workers.",
    least=1 << 26,
)
_broker(
    "shmbroker.ring.data.bytes",
    INT,
    str(8 << 20),
    "Size of a ring between a network worker and an I/O worker; a power of two.",
    least=1 << 16,
    most=1 << 30,
    check=_power_of_two,
)
_broker(
    "shmbroker.groups.bytes",
    INT,
    str(64 << 20),
    "What the members of all groups of a broker may take in memory, by their subscriptions and "
    "assignments; a quarter of it, and at most 8 MiB, in one group.",
    least=1 << 20,
)
_broker(
    "shmbroker.metadata.partitions",
    INT,
    "500000",
    "Partitions of all topics together; more are refused (POLICY_VIOLATION). Each takes some "
    "hundred bytes in every process.",
    least=1,
)
_broker(
    "shmbroker.metadata.entries",
    INT,
    "100000",
    "ACLs that are kept, and as many passwords of users, quotas, delegation tokens, and groups, "
    "subscriptions and other resources with settings; more are refused (POLICY_VIOLATION).",
    least=1,
)
_broker(
    "shmbroker.transactional.ids",
    INT,
    "100000",
    "Transactional ids that a broker keeps, some 1 KiB each; beyond them those that were unused "
    "longest expire early.",
    least=1,
)
_broker(
    "shmbroker.ring.control.bytes",
    INT,
    str(256 << 10),
    "Size of a ring to or from a controller, the cleaner or the tier process; a power of two.",
    least=1 << 16,
    most=1 << 30,
    check=_power_of_two,
)

# -- who may do what -------------------------------------------------------------------------------

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _principals(text: str) -> str | None:
    for principal in filter(None, (part.strip() for part in text.split(";"))):
        if ":" not in principal:
            return f"takes principals such as User:alice;User:bob, not {principal!r}"
    return None


_broker(
    "authorizer.class.name",
    STRING,
    "",
    "StandardAuthorizer of Apache Kafka: requests are judged by ACLs. Empty: everybody may do "
    "everything.",
    allowed=("", STANDARD_AUTHORIZER),
)
_broker(
    "super.users",
    STRING,
    "",
    "Principals who may do everything, as User:alice;User:bob.",
    check=_principals,
)
_broker(
    "allow.everyone.if.no.acl.found",
    BOOLEAN,
    "false",
    "Whether everybody may do everything with what no ACL is about.",
)

# -- what a broker is, for DescribeConfigs; see `BrokerConfig.identity` ----------------------------

_broker("node.id", INT, None, "Id of this node; see shmbroker.node.id.", is_given=True)
_broker("broker.id", INT, "-1", "Id of this broker; the same as node.id.", is_given=True)
_broker("log.dirs", LIST, None, "Log directory of this broker.", is_given=True)

BROKER_SETTINGS.update(SECURITY_SETTINGS)

LISTENER_PREFIX = "listener.name."


def broker_setting(name: str) -> Setting | None:
    """The row of a broker setting, or of one listener's (`listener.name.ssl.ssl.client.auth`, and
    for a mechanism `listener.name.x.plain.sasl.jaas.config`); None: there is none."""
    found = BROKER_SETTINGS.get(name)
    if found is not None or not name.startswith(LISTENER_PREFIX):
        return found
    _, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    if rest not in PER_LISTENER:
        mechanism, _, rest = rest.partition(".")
        if mechanism not in MECHANISMS or not rest.startswith(("sasl.", "connections.")):
            return None
    return BROKER_SETTINGS[rest] if rest in PER_LISTENER else None


MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
"""Mechanisms, as they stand in the names of settings."""
