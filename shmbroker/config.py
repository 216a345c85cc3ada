"""Settings: each one once, with Kafka's name, type, default, allowed values and what it is for.

* A *topic setting* (`segment.bytes`) has its value from, in this order: the topic's own override,
  the broker's dynamic value, the dynamic value of all brokers, the broker's file and flags, the
  default. Below the topic it goes by its *synonyms*: broker settings such as `log.segment.bytes`.
* A *broker setting* is static (read once, at start) or dynamic (IncrementalAlterConfigs may change
  it while it runs). Settings that Kafka doesn't have are named `shmbroker.*`.
* Values are text, in Kafka's notation, until `Setting.parse`. Refusals are ValueErrors with Kafka's
  words (`org.apache.kafka.common.config.ConfigDef`), as clients get to see them; what is wrong in a
  file or a flag becomes a ConfigFault of one sentence.
* Kafka settings that mean nothing here are not in the table: unknown, so refused in a file. Some
  that do nothing are kept and shown all the same, as tools and files of Kafka's have them:
  `WITHOUT_EFFECT` says why they do nothing, and whoever sets one is told.

Where a default differs from Kafka's, its row says so.
"""

from __future__ import annotations

from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any

# Types, numbered as DescribeConfigs v3 does (`ConfigType`).
BOOLEAN = 1
STRING = 2
INT = 3
SHORT = 4
LONG = 5
DOUBLE = 6
LIST = 7

TYPE_NAMES = {
    BOOLEAN: "BOOLEAN",
    STRING: "STRING",
    INT: "INT",
    SHORT: "SHORT",
    LONG: "LONG",
    DOUBLE: "DOUBLE",
    LIST: "LIST",
}

# Where a value is from, numbered as DescribeConfigs v1 does (`ConfigSource`).
SOURCE_TOPIC = 1
SOURCE_DYNAMIC_BROKER = 2
SOURCE_DYNAMIC_DEFAULT_BROKER = 3
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5
SOURCE_BROKER_LOGGER = 6
SOURCE_CLIENT_METRICS = 7
SOURCE_GROUP = 8

OWN_PREFIX = "shmbroker."

_BITS = {SHORT: 16, INT: 32, LONG: 64}
_LONG_MAX = str(2**63 - 1)
INT_MAX = 2**31 - 1
_INT_MAX = str(INT_MAX)
_UNITS = {
    "ms": "milliseconds",
    "minutes": "minutes",
    "hours": "hours",
    "bytes": "bytes",
    "ratio": "fraction",
}


_STORED_AS_THEY_COME = "batches are stored as their producer has compressed them."
_NO_METRICS = "nobody receives metrics of clients."
_NO_SHARE_GROUPS = "share groups are not served."
_NO_STREAMS_GROUPS = "streams groups are not served."
_EACH_MINUTE = "it is done once a minute, and at a clean stop."

WITHOUT_EFFECT = {
    "compression.gzip.level": _STORED_AS_THEY_COME,
    "compression.lz4.level": _STORED_AS_THEY_COME,
    "compression.type": _STORED_AS_THEY_COME,
    "compression.zstd.level": _STORED_AS_THEY_COME,
    "leader.imbalance.per.broker.percentage": "every partition is given back to its first replica, "
    "as Apache Kafka does without ZooKeeper.",
    "log.cleaner.io.buffer.load.factor": "it is 0.7.",
    "log.cleaner.io.buffer.size": "it is about 16 MiB.",
    "log.cleaner.threads": "there is one cleaner.",
    "log.flush.offset.checkpoint.interval.ms": _EACH_MINUTE,
    "log.flush.start.offset.checkpoint.interval.ms": "they are written as soon as they move.",
    "log.preallocate": "segments always grow in allocated extents.",
    "preallocate": "segments always grow in allocated extents.",
    "producer.id.expiration.ms": "they are forgotten a day after the last batch, when a log is "
    "opened.",
    "queued.max.requests": "256 Produce requests of a connection may be in flight, and the memory "
    "between the processes bounds all of them together (shmbroker.ring.data.bytes).",
    "replica.high.watermark.checkpoint.interval.ms": _EACH_MINUTE,
    # Of groups and of client metrics subscriptions
    "interval.ms": _NO_METRICS,
    "match": _NO_METRICS,
    "metrics": _NO_METRICS,
    "share.auto.offset.reset": _NO_SHARE_GROUPS,
    "share.heartbeat.interval.ms": _NO_SHARE_GROUPS,
    "share.isolation.level": _NO_SHARE_GROUPS,
    "share.record.lock.duration.ms": _NO_SHARE_GROUPS,
    "share.session.timeout.ms": _NO_SHARE_GROUPS,
    "streams.heartbeat.interval.ms": _NO_STREAMS_GROUPS,
    "streams.initial.rebalance.delay.ms": _NO_STREAMS_GROUPS,
    "streams.num.standby.replicas": _NO_STREAMS_GROUPS,
    "streams.session.timeout.ms": _NO_STREAMS_GROUPS,
}
"""Settings that nothing here goes by, whatever their value, and why."""

_WHAT_HAPPENS = {"compression.type": "producer", "log.cleaner.threads": "1"}
"""Values of them that say what is the case anyway."""


class Setting:
    """One row of the table."""

    __slots__ = (
        "allowed",
        "check",
        "default",
        "documentation",
        "is_dynamic",
        "is_given",
        "is_hidden",
        "least",
        "most",
        "name",
        "synonyms",
        "type",
    )

    def __init__(
        self,
        name: str,
        type_: int,
        default: str | None,
        documentation: str,
        *,
        least: int | None = None,
        most: int | None = None,
        allowed: tuple[str, ...] = (),
        check: Callable[[Any], str | None] | None = None,
        is_dynamic: bool = False,
        is_given: bool = False,
        is_hidden: bool = False,
        synonyms: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.name = name
        self.type = type_
        self.default = default
        """As text; None where there is none."""
        self.documentation = documentation
        if name in WITHOUT_EFFECT:
            self.documentation += f" It has no effect here: {WITHOUT_EFFECT[name]}"
        self.least = least
        self.most = most
        """Inclusive bounds of a number."""
        self.allowed = allowed
        """The only words of a STRING, or of a LIST's items; empty: any."""
        self.check = check
        """What the fields above can't say: the parsed value to a complaint or None."""
        self.is_dynamic = is_dynamic
        self.is_given = is_given
        """Follows from other settings; shown to clients, refused in files and flags."""
        self.is_hidden = is_hidden
        """Shown to clients only where it is set, as in Kafka."""
        self.synonyms = synonyms
        """Of a topic setting: (broker setting, factor to this setting's unit), first wins."""

    @property
    def unit(self) -> str:
        """What a number counts: "bytes", "milliseconds", … or "" for plain things."""
        return _UNITS.get(self.name.rpartition(".")[2], "")

    def parse(self, text: str, *, least: int | None = None) -> Any:
        """The value; ValueError with Kafka's words if the text isn't allowed. `least`: instead of
        the row's own."""
        stripped = text.strip()
        if self.type == LIST:
            return self._parse_list(stripped)
        value = self._parse_scalar(stripped, text)
        least = self.least if least is None else least
        if least is not None and value < least:
            raise self._refusal(value, f"Value must be at least {least}")
        if self.most is not None and value > self.most:
            raise self._refusal(value, f"Value must be no more than {self.most}")
        if self.allowed and value not in self.allowed:
            raise self._refusal(value, f"String must be one of: {', '.join(self.allowed)}")
        if self.check is not None and (complaint := self.check(value)):
            raise self._refusal(value, complaint)
        return value

    def text(self, value: Any) -> str | None:
        """A parsed value as Kafka prints it (`ConfigDef.convertToString`)."""
        if value is None:
            return None
        if self.type == BOOLEAN:
            return "true" if value else "false"
        if self.type == LIST:
            return ",".join(value)
        if self.type == DOUBLE:
            return _java_double(value)
        return str(value)

    def _parse_scalar(self, text: str, whole: str) -> Any:
        if self.type == BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._refusal(whole, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type in _BITS:
            digits = text[1:] if text[:1] in ("-", "+") else text
            if len(digits) <= 40 and digits.isascii() and digits.isdigit():
                value = int(text)
                if value.bit_length() < _BITS[self.type] or value == -1 << _BITS[self.type] - 1:
                    return value
            raise self._refusal(whole, f"Not a number of type {TYPE_NAMES[self.type]}")
        if self.type == DOUBLE:
            try:
                return float(text.replace("_", "x"))
            except ValueError:
                raise self._refusal(whole, "Not a number of type DOUBLE") from None
        return text

    def _parse_list(self, text: str) -> list[str]:
        items = [item.strip() for item in text.split(",")] if text else []
        if "" in items and self.check is None:
            raise ValueError(f"Configuration '{self.name}' values must not be empty.")
        for item in items if self.allowed else ():
            if item not in self.allowed:
                raise self._refusal(item, f"String must be one of: {', '.join(self.allowed)}")
        if self.check is not None and (complaint := self.check(items)):
            raise self._refusal(f"[{', '.join(items)}]", complaint)
        return list(dict.fromkeys(filter(None, items)))

    def _refusal(self, shown: object, reason: str) -> ValueError:
        if isinstance(shown, float):
            shown = _java_double(shown)
        return ValueError(f"Invalid value {shown} for configuration {self.name}: {reason}")


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


def _java_double(value: float) -> str:
    """As `Double.toString`: plain digits from 1e-3 up to 1e7, else "1.0E-4"."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    for digits in range(17):  # the shortest that reads back as the same number
        text = f"{value:.{digits}e}"
        if float(text) == value:
            break
    mantissa, _, power = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(power)}"


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
    _LONG_MAX,
    "Number of records after which a log is flushed to disk; the largest number leaves it to the "
    "page cache.",
    least=1,
)
_topic(
    "flush.ms",
    "log.flush.interval.ms",
    LONG,
    _LONG_MAX,
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
    _LONG_MAX,
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
    _LONG_MAX,
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
)
_broker(
    "log.retention.hours",
    INT,
    "168",
    "Like log.retention.ms, in hours; applies if neither that nor log.retention.minutes is set.",
    least=-1,
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
    _LONG_MAX,
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
    _INT_MAX,
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
    _INT_MAX,
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
    _INT_MAX,
    "Open connections of the whole broker family; more are closed at once, with a line in the log. "
    "The control socket is open to its user whatever this says.",
    least=0,
    is_dynamic=True,
)
_broker(
    "max.connections.per.ip",
    INT,
    _INT_MAX,
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
    _LONG_MAX,
    "Bytes a second that a broker gives to followers of the partitions whose "
    "leader.replication.throttled.replicas name it. Followers in sync count, but never wait.",
    least=0,
    is_dynamic=True,
    is_hidden=True,
)
_broker(
    "follower.replication.throttled.rate",
    LONG,
    _LONG_MAX,
    "Bytes a second that a broker copies of the partitions whose "
    "follower.replication.throttled.replicas name it. Replicas in sync count, but never wait.",
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
    "default.replication.factor and, up to 3, of offsets.topic.replication.factor; from 3 on that "
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
    "Network workers, which own the client connections; unset, two, or one on a single core.",
    least=1,
    most=64,
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
    "10000",
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
    "shmbroker.ring.control.bytes",
    INT,
    str(256 << 10),
    "Size of a ring to or from a controller, the cleaner or the tier process; a power of two.",
    least=1 << 16,
    most=1 << 30,
    check=_power_of_two,
)

# -- what a broker is, for DescribeConfigs; see `BrokerConfig.identity` ----------------------------

_broker("node.id", INT, None, "Id of this node; see shmbroker.node.id.", is_given=True)
_broker("broker.id", INT, "-1", "Id of this broker; the same as node.id.", is_given=True)
_broker("log.dirs", LIST, None, "Log directory of this broker.", is_given=True)
_broker(
    "listeners",
    LIST,
    "PLAINTEXT://:9092",
    "Address this broker listens on; from shmbroker.host and shmbroker.port.",
    is_given=True,
)
_broker(
    "advertised.listeners",
    LIST,
    None,
    "Address this broker tells its clients.",
    is_given=True,
)

_KAFKAS_NAMES = {"node.id": "shmbroker.node.id", "broker.id": "shmbroker.node.id"}
"""What Kafka's server.properties calls a setting that here is one of the family."""


def idle_complaint(name: str, value: str) -> str | None:
    """What to tell whoever gives a setting a value that changes nothing here; None: it does."""
    reason = WITHOUT_EFFECT.get(name)
    if reason is None or value.strip() == _WHAT_HAPPENS.get(name):
        return None
    return f"{name} has no effect here: {reason}"


class BrokerConfig:
    """The static settings of the family: what file and flags say, over the defaults."""

    __slots__ = ("_values", "nodes", "static")

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """`static`: setting to text, for those that were set; ConfigFault for a wrong one."""
        self.nodes: dict[int, str] = {}
        """The log directory of each broker by its id, in the order of ports and slots: what was
        found on the disk decides on ids, so the supervisor fills it in before it forks."""
        self.static: dict[str, str] = {}
        """What was set, as text; DescribeConfigs calls it the static broker config."""
        self._values = dict(_defaults)
        for name, text in (static or {}).items():
            self._set(name, text, "")
        self._check()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        assignments: Sequence[str] = (),
        flags: Iterable[tuple[str, str, str]] = (),
    ) -> BrokerConfig:
        """From a file (TOML if its name ends so, else Java properties), `--set key=value`
        assignments, and flags as (flag, setting, text); the later of these wins.

        ConfigFault, one sentence with the fix, for anything unknown, malformed or not allowed.
        """
        config = cls()
        if path is not None:
            for name, text in _read_file(path).items():
                config._set(name, text, f" in {path}")
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ConfigFault(f"--set takes key=value, not {assignment!r}.")
            config._set(name.strip(), text, " given by --set")
        for flag, name, text in flags:
            config._set(name, text, f" given by {flag}")
        config._check()
        return config

    def __getitem__(self, name: str) -> Any:
        """The parsed value of a broker setting; None where it has neither value nor default."""
        return self._values[name]

    @property
    def is_tier_enabled(self) -> bool:
        """Whether there is a remote store: said, or one is named and nothing else said."""
        if "remote.log.storage.system.enable" in self.static:
            return bool(self["remote.log.storage.system.enable"])
        return self["shmbroker.tier.store"] is not None

    def identity(self, broker_id: int, host: str, port: int, log_dir: str) -> dict[str, str]:
        """What one broker of the family is, as the settings that Kafka says it with."""
        listener = f"PLAINTEXT://{host}:{port}"
        return {
            "node.id": str(broker_id),
            "broker.id": str(broker_id),
            "log.dirs": log_dir,
            "listeners": listener,
            "advertised.listeners": listener,
        }

    def idle_complaints(self) -> list[str]:
        """A sentence for each setting that was set and changes nothing."""
        complaints = (idle_complaint(name, text) for name, text in self.static.items())
        return [complaint for complaint in complaints if complaint is not None]

    def places(self, data_directory: str) -> list[str]:
        """Where the log directory of each broker is, or is to be made."""
        named: list[str] = self["shmbroker.log.dirs"]
        first = self["shmbroker.node.id"]
        unnamed = range(first + len(named), first + self["shmbroker.io.workers"])
        return [*named, *(f"{data_directory}/node-{number}" for number in unnamed)]

    @property
    def broker_ids(self) -> Collection[int]:
        """Ids of the family's brokers, in order of slots."""
        first = self["shmbroker.node.id"]
        return self.nodes or range(first, first + self["shmbroker.io.workers"])

    def metadata_directory(self, number: int) -> str:
        """The metadata log of controller `number`, beside the broker of the same id."""
        return self.nodes[number] + "/__cluster_metadata-0"

    def _set(self, name: str, text: str, where: str) -> None:
        name = _KAFKAS_NAMES.get(name, name)
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            raise ConfigFault(f"{name}{where} is no setting of a broker{_hint(name)}.")
        if setting.is_given:
            raise ConfigFault(
                f"{name}{where} can't be set, it follows from shmbroker.host, shmbroker.port and "
                "shmbroker.data."
            )
        try:
            self._values[name] = setting.parse(text)
        except ValueError as refusal:
            raise ConfigFault(f"{str(refusal).rstrip('.')}{where and ','}{where}.") from None
        self.static[name] = text

    def _follow_replicas(self) -> None:
        """Settings that shmbroker.replicas is the default of."""
        replicas = self["shmbroker.replicas"]
        if replicas == 1:
            return
        if replicas > self["shmbroker.io.workers"]:
            if "shmbroker.io.workers" in self.static:
                raise ConfigFault(
                    f"{replicas} replicas need as many brokers, but --io-workers is "
                    f"{self['shmbroker.io.workers']}: raise it, or lower --replicas."
                )
            self._set("shmbroker.io.workers", str(replicas), "")
        for name, value in (
            ("default.replication.factor", replicas),
            ("offsets.topic.replication.factor", min(replicas, 3)),
            ("min.insync.replicas", 2 if replicas >= 3 else 1),
        ):
            if name not in self.static:
                self._set(name, str(value), "")

    def _check(self) -> None:
        self._follow_replicas()
        workers = self["shmbroker.io.workers"]
        if self["shmbroker.controllers"] > workers:
            raise ConfigFault(
                f"{self['shmbroker.controllers']} controllers need as many brokers to lie beside, "
                f"but there are {workers}: raise --replicas or --io-workers."
            )
        named = len(self["shmbroker.log.dirs"])
        if named > workers:
            raise ConfigFault(
                f"{named} log directories are named for {workers} brokers: name fewer, or raise "
                "--replicas or --io-workers."
            )
        if not self["max.connections.per.ip"] and not self["max.connections.per.ip.overrides"]:
            raise ConfigFault(
                "max.connections.per.ip is 0, which nobody can connect with: raise it, or name "
                "addresses in max.connections.per.ip.overrides."
            )
        for name in ("default.replication.factor", "offsets.topic.replication.factor"):
            if self[name] > workers:
                raise ConfigFault(
                    f"{name} is {self[name]}, but there are {workers} brokers: "
                    "lower it, or raise shmbroker.io.workers."
                )
        for what in ("heartbeat.interval.ms", "session.timeout.ms"):
            least, value, most = (
                self[f"group.consumer.{which}{what}"] for which in ("min.", "", "max.")
            )
            if not least <= value <= most:
                raise ConfigFault(
                    f"group.consumer.{what} is {value}, but must lie between "
                    f"group.consumer.min.{what} ({least}) and group.consumer.max.{what} ({most})."
                )
        if self["shmbroker.port"] + workers - 1 > 65535:
            raise ConfigFault(
                f"shmbroker.port {self['shmbroker.port']} leaves no room for {workers} ports."
            )
        for what in ("bytes", "ms"):
            total, local = (
                int(effective_topic_config(name, {}, ((SOURCE_STATIC_BROKER, self.static),))[0])
                for name in (f"retention.{what}", f"local.retention.{what}")
            )
            if self.is_tier_enabled and total >= 0 and (local == -1 or local > total):
                raise ConfigFault(
                    f"log.local.retention.{what} is {local}, but must not be more than "
                    f"log.retention.{what} ({total})."
                )


def validate_topic_config(name: str, value: str | None) -> str | None:
    """What is wrong with one topic setting, in Kafka's words (INVALID_CONFIG); None: nothing."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return f"Unknown topic config name: {name}"
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    try:
        setting.parse(value)
    except ValueError as refusal:
        return str(refusal)
    return None


def validate_topic_configs(
    configs: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    config: BrokerConfig | None = None,
) -> str | None:
    """The same for all overrides of a topic, with what they must be to each other.

    before: the topic's overrides so far. config: what stands behind them; as with Kafka, only what
    was set at the broker's start.
    """
    for name in configs:
        if name not in TOPIC_SETTINGS:
            return validate_topic_config(name, "")
    for name, value in configs.items():
        if complaint := validate_topic_config(name, value):
            return complaint
    least, most = (
        int(configs.get(name) or TOPIC_SETTINGS[name].default or 0)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if least > most:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})"
        )
    return _tier_complaint(configs, before or {}, config)


def _is_true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").strip().lower() == "true"


def _tier_complaint(
    configs: Mapping[str, str],
    before: Mapping[str, str],
    config: BrokerConfig | None,
) -> str | None:
    """What is wrong with a topic's settings for tiered storage, in the order and the words of
    Kafka's `LogConfig.validateTopicLogConfigValues`."""
    if not _is_true(configs, "remote.storage.enable"):
        if _is_true(before, "remote.storage.enable") and not _is_true(
            configs, "remote.log.delete.on.disable"
        ):
            return (
                "It is invalid to disable remote storage without deleting remote data. If you want "
                "to keep the remote data and turn to read only, please set "
                "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
                "remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
            )
        return None
    if config is None or not config.is_tier_enabled:
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    layers = ((SOURCE_STATIC_BROKER, config.static),)
    policy, _ = effective_topic_config("cleanup.policy", configs, layers)
    if {item.strip() for item in policy.split(",")} - {"", "delete"}:
        return (
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy "
            "being an empty list."
        )
    limits = {
        name: int(effective_topic_config(name, configs, layers)[0])
        for name in ("local.retention.bytes", "local.retention.ms",
                     "retention.bytes", "retention.ms")
    }  # fmt: skip
    for what in ("retention.bytes", "retention.ms"):
        total, local = limits[what], limits[f"local.{what}"]
        if total < 0 or local == -2:
            continue
        complaint = f"Invalid value {local} for configuration local.{what}: Value must not be "
        if local == -1:
            return f"{complaint}-1 as {what} value is set as {total}."
        if local > total:
            return f"{complaint}more than {what} property value: {total}"
    if _is_true(configs, "remote.log.copy.disable"):
        for what in ("retention.bytes", "retention.ms"):
            if limits[f"local.{what}"] not in (-2, limits[what]):
                return (
                    f"When `remote.log.copy.disable` is set to true, the `local.{what}` and "
                    f"`{what}` must be set to the identical value because there will be no more "
                    "logs copied to the remote storage."
                )
    return None


def validate_broker_config(name: str, value: str) -> str | None:
    """What is wrong with a broker setting's value, in Kafka's words; None for unknown names too,
    which Kafka keeps for whatever plugin may look for them."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        return None
    try:
        setting.parse(value)
    except ValueError as refusal:
        return str(refusal)
    return None


def broker_layers(
    config: BrokerConfig, dynamic_broker: Mapping[str, str], dynamic_default: Mapping[str, str]
) -> tuple[tuple[int, Mapping[str, str]], ...]:
    """Where a broker's values are looked for, first wins: (source, setting to text)."""
    return (
        (SOURCE_DYNAMIC_BROKER, dynamic_broker),
        (SOURCE_DYNAMIC_DEFAULT_BROKER, dynamic_default),
        (SOURCE_STATIC_BROKER, config.static),
    )


def effective_broker_config(
    name: str, config: BrokerConfig, layers: tuple[tuple[int, Mapping[str, str]], ...]
) -> Any:
    """The parsed value of a dynamic broker setting. A stored value that isn't allowed here
    (another version wrote it) gives way to the next."""
    for _, values in layers:
        if name in values:
            try:
                return BROKER_SETTINGS[name].parse(values[name])
            except ValueError:
                continue
    return config[name]


def effective_topic_config(
    name: str,
    overrides: Mapping[str, str],
    layers: tuple[tuple[int, Mapping[str, str]], ...],
) -> tuple[str, int]:
    """(text, source) of a topic setting: as stored where it was set, the default else
    (Kafka: `KafkaConfigSchema.resolveEffectiveTopicConfig`)."""
    setting = TOPIC_SETTINGS[name]
    if name in overrides:
        return overrides[name], SOURCE_TOPIC
    for source, values in layers:
        for synonym, factor in setting.synonyms:
            if synonym in values:
                text = values[synonym]
                return (text if factor == 1 else str(int(text) * factor)), source
    return setting.default or "", SOURCE_DEFAULT


def effective_topic_value(
    name: str,
    overrides: Mapping[str, str],
    layers: tuple[tuple[int, Mapping[str, str]], ...],
) -> Any:
    """The parsed value of a topic setting; the default for a stored one that isn't allowed here."""
    setting = TOPIC_SETTINGS[name]
    text, _ = effective_topic_config(name, overrides, layers)
    try:
        return setting.parse(text)
    except ValueError:
        return setting.parse(setting.default or "")


def effective_topic_configs(
    overrides: Mapping[str, str], layers: tuple[tuple[int, Mapping[str, str]], ...]
) -> dict[str, str]:
    """Every topic setting's effective value as Kafka prints it: what a log is configured with.

    A stored value that isn't allowed here (another version wrote it) gives way to the default:
    a broker doesn't die of it. Overrides of unknown settings are left out.
    """
    values = {}
    for name, setting in TOPIC_SETTINGS.items():
        text, _ = effective_topic_config(name, overrides, layers)
        try:
            values[name] = setting.text(setting.parse(text)) or ""
        except ValueError:
            values[name] = setting.default or ""
    return values


def _hint(name: str) -> str:
    setting = TOPIC_SETTINGS.get(name)
    if setting is not None and setting.synonyms:
        return f" but of a topic; for all topics it is called {setting.synonyms[0][0]}"
    import difflib  # 5 ms, and only ever for a typo

    close = difflib.get_close_matches(name, BROKER_SETTINGS, n=1)
    return f"; did you mean {close[0]}?".removesuffix("?") if close else ""


def _read_file(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            content = file.read()
        text = content.decode()
        return _flat_toml(text) if path.endswith(".toml") else _properties(text)
    except OSError as fault:
        raise ConfigFault(f"{path} can't be read: {fault.strerror}.") from None
    except ValueError as fault:  # tomllib's and UnicodeDecodeError are ValueErrors
        raise ConfigFault(f"{path} can't be understood: {fault}.") from None


def _flat_toml(text: str) -> dict[str, str]:
    """Tables and dotted keys become Kafka's dotted names: [log] segment.bytes = 1 is
    log.segment.bytes. Where one name begins another (max.connections, max.connections.per.ip),
    TOML wants quotes around the name."""
    import tomllib

    flat: dict[str, str] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        elif isinstance(value, bool):
            flat[prefix] = "true" if value else "false"
        elif isinstance(value, list):
            flat[prefix] = ",".join(map(str, value))
        elif isinstance(value, int | float | str):
            flat[prefix] = str(value)
        else:
            raise ValueError(f"{prefix} is neither text, number, boolean nor a list")

    add("", tomllib.loads(text))
    return flat


def _properties(text: str) -> dict[str, str]:
    """Java properties: key=value or key: value, # and ! comments, \\ at the end goes on."""
    found: dict[str, str] = {}
    logical = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not logical and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\"):
            logical += line[:-1]
            continue
        logical, whole = "", logical + line
        at = min((i for i in (whole.find("="), whole.find(":")) if i >= 0), default=-1)
        if at < 1:
            raise ValueError(f"line {number} is no key=value")
        found[whole[:at].strip()] = whole[at + 1 :].strip()
    return found


_defaults = {
    name: None if setting.default is None else setting.parse(setting.default)
    for name, setting in BROKER_SETTINGS.items()
}
