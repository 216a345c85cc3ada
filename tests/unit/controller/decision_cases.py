"""Requests in order and what Apache Kafka 4.2.1 with one broker (id 1) answers to them.

`test_decisions` puts them to our controller, `test_decisions_against_kafka` to Kafka itself, so
the table can't drift. Each case: (API, version, request, what each result says); the results are
compared without regard to their order.
"""

from typing import Any

Case = tuple[str, int, dict[str, Any], list[tuple[Any, ...]]]

PREFIX = "case-"
_LONG = PREFIX + "x" * 245


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: tuple[tuple[int, list[int]], ...] = (),
    **configs: str | None,
) -> dict[str, Any]:
    """A CreatableTopic; underscores in the configs' names stand for dots."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": p, "broker_ids": ids} for p, ids in assignments],
        "configs": [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()],
    }


def _create(
    *topics: dict[str, Any],
    answers: list[tuple[Any, ...]],
    version: int = 7,
    is_trial: bool = False,
) -> Case:
    request = {"topics": list(topics), "timeout_ms": 10_000, "validate_only": is_trial}
    return "CreateTopics", version, request, answers


def _refused(name: str, code: int, message: str | None) -> tuple[Any, ...]:
    return name, code, message, -1, -1


def _made(name: str, partitions: int = 1, factor: int = 1) -> tuple[Any, ...]:
    return name, 0, None, partitions, factor


def _one_config(name: str, value: str | None, complaint: str | None) -> Case:
    wanted = topic(PREFIX + "config")
    wanted["configs"] = [{"name": name, "value": value}]
    answer = (
        _made(PREFIX + "config")
        if complaint is None
        else _refused(PREFIX + "config", 40, complaint)
    )
    return _create(wanted, answers=[answer], is_trial=True)


def _not_allowed(name: str, value: str, reason: str) -> Case:
    return _one_config(name, value, f"Invalid value {value} for configuration {name}: {reason}")


def _delete(
    *named: tuple[str | None, bytes], answers: list[tuple[Any, ...]], version: int = 6
) -> Case:
    if version < 6:
        request = {"topic_names": [n for n, _ in named], "timeout_ms": 10_000}
        return "DeleteTopics", version, request, answers
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in named]
    return "DeleteTopics", version, {"topics": topics, "timeout_ms": 10_000}, answers


def _grow(
    *wanted: tuple[str, int, list[list[int]] | None],
    answers: list[tuple[Any, ...]],
    version: int = 3,
    is_trial: bool = False,
) -> Case:
    topics = [
        {
            "name": name,
            "count": count,
            "assignments": None if by_hand is None else [{"broker_ids": ids} for ids in by_hand],
        }
        for name, count, by_hand in wanted
    ]
    request = {"topics": topics, "timeout_ms": 10_000, "validate_only": is_trial}
    return "CreatePartitions", version, request, answers


def _alter(
    *resources: tuple[int, str, list[tuple[str, int, str | None]]],
    answers: list[tuple[Any, ...]],
    version: int = 1,
    is_trial: bool = False,
) -> Case:
    request = {
        "resources": [
            {
                "resource_type": type_,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in configs
                ],
            }
            for type_, name, configs in resources
        ],
        "validate_only": is_trial,
    }
    return "IncrementalAlterConfigs", version, request, answers


def _replace(
    *resources: tuple[int, str, list[tuple[str, str | None]]],
    answers: list[tuple[Any, ...]],
    version: int = 2,
    is_trial: bool = False,
) -> Case:
    request = {
        "resources": [
            {
                "resource_type": type_,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in configs],
            }
            for type_, name, configs in resources
        ],
        "validate_only": is_trial,
    }
    return "AlterConfigs", version, request, answers


def _replace_one(
    type_: int, name: str, *configs: tuple[str, str | None], says: tuple[int, str | None]
) -> Case:
    return _replace((type_, name, list(configs)), answers=[(type_, name, *says)])


def _alter_one(
    type_: int, name: str, *configs: tuple[str, int, str | None], says: tuple[int, str | None]
) -> Case:
    return _alter((type_, name, list(configs)), answers=[(type_, name, *says)])


_OK = (0, None)
_NO_ID = bytes(16)
_UNKNOWN_ID = bytes(range(16, 32))
_NOT_THERE = "This server does not host this topic-partition."
_NAME_SAYS = "Topic name is invalid: "
_CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
_BY_HAND = "The manual partition assignment includes"
_AT_LEAST = "Value must be at least"
_AT_MOST = "Value must be no more than"
_INVALID = "Invalid value {} for configuration {}: {}"
_MORE_THREADS = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be "
    "increased to more than double the current value 1 for configuration Invalid dynamic "
    "configuration"
)
_MORE_IN_POOL = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update "
    "validation failed for {}, value should {} the current value {} for configuration Invalid "
    "dynamic configuration"
)
_DOUBLE = "not be greater than double"
_FIXED = "Cannot update these configs dynamically"
_NO_AGE = "Invalid value 0 for configuration log.retention.ms: Value must be -1, or at least 1"
_PER_LISTENER = (
    "These security configs can be dynamically updated only per-listener using the listener prefix"
)
_OF_ONE = "Cannot update these configs at default cluster level, broker id must be specified"
_LESS_MEMORY = (
    "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
)
_LOCAL = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Invalid value {} for "
    "configuration log.local.retention.{} for configuration Invalid dynamic configuration"
)
_THROTTLED = (
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
_FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
_COUNT = "Number of partitions was set to an invalid non-positive value."
_CODECS = "uncompressed, zstd, lz4, snappy, gzip, producer"

CREATE: list[Case] = [
    _create(topic("case-a", 3), answers=[_made("case-a", 3)]),
    _create(topic("case-a"), answers=[_refused("case-a", 36, "Topic 'case-a' already exists.")]),
    _create(
        topic("case-c"),
        topic("case-c"),
        topic("case-d"),
        answers=[_refused("case-c", 42, "Duplicate topic name."), _made("case-d")],
    ),
    _create(
        topic(""),
        topic("."),
        topic(".."),
        topic(_LONG),
        topic("case b"),
        topic("case/é"),
        answers=[
            _refused("", 17, _NAME_SAYS + "the empty string is not allowed"),
            _refused(".", 17, _NAME_SAYS + "'.' is not allowed"),
            _refused("..", 17, _NAME_SAYS + "'..' is not allowed"),
            _refused(
                _LONG,
                17,
                f"{_NAME_SAYS}the length of '{_LONG}' is longer than the max allowed length 249",
            ),
            _refused("case b", 17, f"{_NAME_SAYS}'case b' {_CHARACTERS}"),
            _refused("case/é", 17, f"{_NAME_SAYS}'case/é' {_CHARACTERS}"),
        ],
    ),
    _create(topic("case-e.f"), answers=[_made("case-e.f")]),
    _create(
        topic("case-e_f"),
        answers=[
            _refused("case-e_f", 17, "Topic 'case-e_f' collides with existing topic: case-e.f")
        ],
    ),
    _create(topic("case-p", 0), answers=[_refused("case-p", 37, _COUNT)]),
    _create(topic("case-p", -2), answers=[_refused("case-p", 37, _COUNT)]),
    _create(topic("case-p", -1, -1), answers=[_made("case-p")]),
    _create(
        topic("case-big", 10_001),
        answers=[_refused("case-big", 44, "Excessively large number of partitions per request.")],
    ),
    _create(topic("case-r", 1, 0), answers=[_refused("case-r", 38, _FACTOR)]),
    _create(topic("case-r", 0, 0), answers=[_refused("case-r", 38, _FACTOR)]),
    _create(topic("case-r", 1, -2), answers=[_refused("case-r", 38, _FACTOR)]),
    _create(
        topic("case-r", 1, 2),
        answers=[
            _refused(
                "case-r",
                38,
                "Unable to replicate the partition 2 time(s): The target replication factor of 2 "
                "cannot be reached because only 1 broker(s) are registered.",
            )
        ],
    ),
    _create(topic("case-h", -1, -1, ((1, [1]), (0, [1]))), answers=[_made("case-h", 2)]),
    _create(
        topic("case-i", -1, 1, ((0, [1]),)),
        answers=[
            _refused(
                "case-i",
                42,
                "A manual partition assignment was specified, but replication factor was not set "
                "to -1.",
            )
        ],
    ),
    _create(
        topic("case-i", 1, -1, ((0, [1]),)),
        answers=[
            _refused(
                "case-i",
                42,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        ],
    ),
    *(
        _create(topic("case-i", -1, -1, by_hand), answers=[_refused("case-i", 39, message)])
        for by_hand, message in (
            (((0, [1]), (2, [1])), "partitions should be a consecutive 0-based integer sequence"),
            (((0, [1]), (0, [1])), "Found multiple manual partition assignments for partition 0"),
            (((0, []),), f"{_BY_HAND} an empty replica list."),
            (((0, [1, 1]),), f"{_BY_HAND} the broker 1 more than once."),
            (((0, [7]),), f"{_BY_HAND} broker 7, but no such broker is registered."),
            (((0, [-1]),), f"{_BY_HAND} broker -1, but no such broker is registered."),
            (((0, [1]), (1, [1, 2])), f"{_BY_HAND} broker 2, but no such broker is registered."),
        )
    ),
    _create(topic("case-vo", 4), answers=[_made("case-vo", 4)], is_trial=True),
    _create(topic("case-vo", 4), answers=[_made("case-vo", -1, -1)], version=4),
    _create(topic("case-v2"), answers=[_made("case-v2", -1, -1)], version=2),
    _create(
        topic("__cluster_metadata"),
        answers=[
            _refused(
                "__cluster_metadata",
                42,
                "Creation of internal topic __cluster_metadata is prohibited.",
            )
        ],
    ),
    _create(answers=[]),
]

CONFIGS: list[Case] = [
    _one_config("nonsense", "1", "Unknown topic config name: nonsense"),
    _one_config(
        "message.format.version", "3.0", "Unknown topic config name: message.format.version"
    ),
    _one_config("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
    _not_allowed("retention.ms", "abc", "Not a number of type LONG"),
    _not_allowed("retention.ms", "", "Not a number of type LONG"),
    _not_allowed("retention.ms", "5L", "Not a number of type LONG"),
    _not_allowed("retention.ms", "0x10", "Not a number of type LONG"),
    _not_allowed("retention.ms", "-2", f"{_AT_LEAST} -1"),
    _not_allowed("segment.bytes", "99999999999", "Not a number of type INT"),
    _not_allowed("segment.bytes", "10", f"{_AT_LEAST} 1048576"),
    _not_allowed("max.message.bytes", "1.5", "Not a number of type INT"),
    _not_allowed("max.message.bytes", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("min.insync.replicas", "0", f"{_AT_LEAST} 1"),
    _not_allowed("max.compaction.lag.ms", "0", f"{_AT_LEAST} 1"),
    _not_allowed("min.compaction.lag.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("index.interval.bytes", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("segment.index.bytes", "3", f"{_AT_LEAST} 4"),
    _not_allowed("segment.ms", "0", f"{_AT_LEAST} 1"),
    _not_allowed("segment.jitter.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("flush.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("flush.messages", "0", f"{_AT_LEAST} 1"),
    _not_allowed("delete.retention.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("file.delete.delay.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("local.retention.ms", "-3", f"{_AT_LEAST} -2"),
    _not_allowed("local.retention.bytes", "-3", f"{_AT_LEAST} -2"),
    _not_allowed("message.timestamp.after.max.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("message.timestamp.before.max.ms", "-1", f"{_AT_LEAST} 0"),
    _not_allowed("compression.lz4.level", "18", f"{_AT_MOST} 17"),
    _not_allowed("compression.lz4.level", "0", f"{_AT_LEAST} 1"),
    _not_allowed("compression.zstd.level", "-99999999", f"{_AT_LEAST} -131072"),
    _not_allowed("compression.zstd.level", "23", f"{_AT_MOST} 22"),
    _not_allowed("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    _not_allowed("compression.gzip.level", "10", "Value must be between 1 and 9 or equal to -1"),
    _one_config(
        "min.cleanable.dirty.ratio",
        "2",
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more "
        "than 1",
    ),
    _not_allowed("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
    _not_allowed("preallocate", "maybe", "Expected value to be either true or false"),
    _not_allowed(
        "unclean.leader.election.enable", "yes", "Expected value to be either true or false"
    ),
    _not_allowed("compression.type", "foo", f"String must be one of: {_CODECS}"),
    _not_allowed(
        "message.timestamp.type", "Foo", "String must be one of: CreateTime, LogAppendTime"
    ),
    _not_allowed("cleanup.policy", "foo", "String must be one of: compact, delete"),
    _not_allowed("cleanup.policy", "none", "String must be one of: compact, delete"),
    _one_config(
        "cleanup.policy", "compact,", "Configuration 'cleanup.policy' values must not be empty."
    ),
    *(
        _one_config(
            f"{side}.replication.throttled.replicas",
            value,
            f"Invalid value [{shown}] for configuration {side}.replication.throttled.replicas: "
            f"{side}.replication.throttled.replicas {_THROTTLED}",
        )
        for side in ("leader", "follower")
        for value, shown in (("x", "x"), ("0:1,1", "0:1, 1"), ("a,,b", "a, , b"))
    ),
    _one_config(
        "remote.storage.enable",
        "true",
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
        "remote log storage.",
    ),
    *(
        _one_config(name, value, None)
        for name, value in (
            ("retention.ms", " 5 "),
            ("retention.ms", "+5"),
            ("cleanup.policy", ""),
            ("cleanup.policy", "compact, delete"),
            ("cleanup.policy", "delete,delete"),
            ("compression.type", " gzip "),
            ("preallocate", "TRUE"),
            ("min.cleanable.dirty.ratio", "1e-1"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("leader.replication.throttled.replicas", "*"),
            ("leader.replication.throttled.replicas", "0:1,1:1"),
            *(
                ("leader.replication.throttled.replicas", value)
                for value in (",", "0:1,", "0:1, ,1:1", "*,", " * ", "0:1 , 1:2")
            ),
            ("segment.bytes", "1048576"),
            ("local.retention.ms", "-1"),
        )
    ),
    _create(
        topic("case-config", min_compaction_lag_ms="100", max_compaction_lag_ms="50"),
        answers=[
            _refused(
                "case-config",
                40,
                "conflict topic config setting min.compaction.lag.ms (100) > "
                "max.compaction.lag.ms (50)",
            )
        ],
        is_trial=True,
    ),
    _create(
        topic("case-config", 0, 1, nonsense="1"),
        answers=[_refused("case-config", 40, "Unknown topic config name: nonsense")],
    ),
]

GROW: list[Case] = [
    _create(topic("case-g", 3), answers=[_made("case-g", 3)]),
    _grow(("case-g", 5, None), answers=[("case-g", *_OK)]),
    _grow(("case-g", 5, None), answers=[("case-g", 37, "Topic already has 5 partition(s).")]),
    *(
        _grow(
            ("case-g", count, None),
            answers=[
                (
                    "case-g",
                    37,
                    f"The topic case-g currently has 5 partition(s); {count} would not be an "
                    "increase.",
                )
            ],
        )
        for count in (4, 0, -1)
    ),
    _grow(
        ("case-none", 4, None),
        ("case g", 4, None),
        answers=[("case-none", 3, None), ("case g", 3, None)],
    ),
    _grow(
        ("case-g", 6, []),
        answers=[
            (
                "case-g",
                39,
                "Attempted to add 1 additional partition(s), but only 0 assignment(s) were "
                "specified.",
            )
        ],
    ),
    _grow(("case-g", 7, [[1], [1]]), answers=[("case-g", *_OK)]),
    *(
        _grow(("case-g", 8, [replicas]), answers=[("case-g", 39, f"{_BY_HAND} {message}")])
        for replicas, message in (
            ([7], "broker 7, but no such broker is registered."),
            ([1, 1], "the broker 1 more than once."),
            ([], "an empty replica list."),
            ([1, 2], "broker 2, but no such broker is registered."),
        )
    ),
    _grow(
        ("case-g", 8, None), ("case-g", 9, None), answers=[("case-g", 42, "Duplicate topic name.")]
    ),
    _grow(("case-g", 9, None), answers=[("case-g", *_OK)], is_trial=True),
    _grow(("case-g", 8, None), answers=[("case-g", *_OK)], version=0),
]

ALTER: list[Case] = [
    _create(topic("case-w", cleanup_policy="compact, delete"), answers=[_made("case-w")]),
    *(
        _alter_one(2, "case-w", *configs, says=says)
        for configs, says in (
            ([("retention.ms", 0, "77")], _OK),
            ([("retention.ms", 1, None)], _OK),
            ([("retention.ms", 1, "5")], _OK),
            ([("nonsense", 1, None)], _OK),
            ([], _OK),
            ([("retention.ms", 0, None)], (42, "Null value not supported for : retention.ms")),
            (
                [("retention.ms", 0, "")],
                (40, "Invalid value  for configuration retention.ms: Not a number of type LONG"),
            ),
            (
                [("retention.ms", 2, "5")],
                (40, "Can't APPEND to key retention.ms because its type is not LIST."),
            ),
            (
                [("retention.ms", 3, "5")],
                (40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
            ),
            ([("nonsense", 0, "5")], (40, "Unknown topic config name: nonsense")),
            (
                [("nonsense", 2, "x")],
                (40, "Can't APPEND to key nonsense because its type is not LIST."),
            ),
            ([("cleanup.policy", 2, "delete")], _OK),
            ([("cleanup.policy", 3, "compact")], _OK),
            ([("cleanup.policy", 1, None)], _OK),
            ([("cleanup.policy", 2, "compact")], _OK),
            ([("cleanup.policy", 2, None)], (42, "Null value not supported for : cleanup.policy")),
            (
                [("cleanup.policy", 2, "foo")],
                (
                    40,
                    "Invalid value foo for configuration cleanup.policy: String must be one of: "
                    "compact, delete",
                ),
            ),
            (
                [("cleanup.policy", 2, "")],
                (40, "Configuration 'cleanup.policy' values must not be empty."),
            ),
            (
                [("retention.ms", 0, "1"), ("retention.ms", 0, "2")],
                (42, "Error due to duplicate config keys"),
            ),
            (
                [("retention.ms", 0, "1"), ("segment.bytes", 0, "1")],
                (
                    40,
                    "Invalid value 1 for configuration segment.bytes: Value must be at least "
                    "1048576",
                ),
            ),
            ([("retention.ms", 4, "1")], (-1, None)),
            ([("retention.ms", -1, "1")], (-1, None)),
        )
    ),
    _alter((2, "case-w", [("retention.ms", 0, "9")]), answers=[(2, "case-w", *_OK)], is_trial=True),
    _alter((2, "case-w", [("flush.ms", 0, "99")]), answers=[(2, "case-w", *_OK)], version=0),
    _alter_one(
        2,
        "case-none",
        ("retention.ms", 0, "1"),
        says=(3, "The topic 'case-none' does not exist."),
    ),
    _alter_one(
        2, "case bad", ("retention.ms", 0, "1"), says=(17, f"{_NAME_SAYS}'case bad' {_CHARACTERS}")
    ),
    _alter_one(
        2, "", ("retention.ms", 0, "1"), says=(42, "Default topic resources are not allowed.")
    ),
    _alter_one(99, "x", ("retention.ms", 0, "1"), says=(42, "Unknown resource type 99")),
    _alter(
        (2, "case-w", [("flush.ms", 0, "1")]),
        (2, "case-w", [("flush.ms", 0, "1")]),
        answers=[(2, "case-w", 42, "Each resource must appear at most once.")] * 2,
    ),
    _alter(
        (2, "case-w", [("flush.ms", 0, "1")]),
        (2, "case-none", [("flush.ms", 0, "1")]),
        answers=[
            (2, "case-w", *_OK),
            (2, "case-none", 3, "The topic 'case-none' does not exist."),
        ],
    ),
    *(
        _alter_one(4, name, *configs, says=says)
        for name, configs, says in (
            (
                "7",
                [("log.roll.ms", 0, "5")],
                (42, "Unexpected broker id, expected 1, but received 7"),
            ),
            ("x", [("log.roll.ms", 0, "5")], (42, "Node id must be an integer, but it is: x")),
            (
                "1",
                [("num.partitions", 0, "3")],
                (42, "Cannot update these configs dynamically: Set(num.partitions)"),
            ),
            (
                "",
                [("num.partitions", 0, "3")],
                (42, "Cannot update these configs dynamically: Set(num.partitions)"),
            ),
            (
                "1",
                [("log.cleaner.enable", 0, "false")],
                (42, "Cannot update these configs dynamically: Set(log.cleaner.enable)"),
            ),
            ("1", [("log.cleaner.threads", 0, "3")], (42, _MORE_THREADS)),
            (
                "",
                [("num.io.threads", 0, "abc")],
                (42, _INVALID.format("abc", "num.io.threads", "Not a number of type INT")),
            ),
            (
                "",
                [("background.threads", 0, "0")],
                (42, _INVALID.format("0", "background.threads", "Value must be at least 1")),
            ),
            (
                "1",
                [("num.io.threads", 0, "17")],
                (
                    42,
                    _MORE_IN_POOL.format("num.io.threads=17", "not be greater than double", 8),
                ),
            ),
            (
                "",
                [("num.io.threads", 0, "3")],
                (42, _MORE_IN_POOL.format("num.io.threads=3", "be at least half", 8)),
            ),
            ("", [("num.network.threads", 0, "1"), ("num.replica.fetchers", 0, "2")], (0, None)),
            (
                "",
                [("log.cleaner.threads", 0, "-1")],
                (42, _INVALID.format("-1", "log.cleaner.threads", "Value must be at least 0")),
            ),
            *(
                (name, [(key, 0, value)], (42, f"{_FIXED}: Set({key})"))
                for name, key, value in (
                    ("1", "group.coordinator.threads", "2"),
                    ("", "remote.log.manager.thread.pool.size", "2"),
                    ("1", "log.dir", "/elsewhere"),
                )
            ),
            (
                "1",
                [("ssl.keystore.location", 0, "/store")],
                (42, f"{_PER_LISTENER}: HashSet(ssl.keystore.location)"),
            ),
            (
                "",
                [("listener.name.plaintext.ssl.keystore.location", 0, "/store")],
                (42, f"{_OF_ONE}: Set(listener.name.plaintext.ssl.keystore.location)"),
            ),
            ("1", [("listener.name.plaintext.ssl.keystore.location", 0, "/store")], _OK),
            (
                "",
                [
                    ("listener.name.plaintext.max.connections", 0, "4"),
                    ("listener.name.plaintext.max.connection.creation.rate", 0, "4"),
                    ("listener.name.plaintext.num.network.threads", 0, "2"),
                ],
                _OK,
            ),
            *((name, [("log.retention.ms", 0, "0")], (42, _NO_AGE)) for name in ("", "1")),
            (
                "",
                [("sasl.login.refresh.window.factor", 0, "0.7"), ("metric.reporters", 0, "a.B")],
                (42, f"{_OF_ONE}: Set(sasl.login.refresh.window.factor)"),
            ),
            ("1", [("sasl.login.refresh.window.factor", 0, "0.7")], _OK),
            *(
                ("", [(key, 0, value)], (42, _INVALID.format(value, key, f"Value must be {least}")))
                for key, value, least in (
                    ("log.flush.interval.ms", "-1", "at least 0"),
                    ("log.retention.ms", "-5", "at least -1"),
                )
            ),
            ("1", [("listeners", 0, "PLAINTEXT://:9")], (42, f"{_FIXED}: Set(listeners)")),
            *(
                ("1", [(f"listener.name.plaintext.{key}", 0, value)], (42, complaint))
                for key, value, complaint in (
                    (
                        "max.connections",
                        "abc",
                        _INVALID.format("abc", "max.connections", "Not a number of type INT"),
                    ),
                    (
                        "max.connection.creation.rate",
                        "-1",
                        _INVALID.format(
                            "-1", "max.connection.creation.rate", "Value must be at least 0"
                        ),
                    ),
                    (
                        "num.network.threads",
                        "9",
                        _MORE_IN_POOL.format("num.network.threads=9", _DOUBLE, 2),
                    ),
                )
            ),
            (
                "1",
                [("remote.log.reader.threads", 0, "21")],
                (
                    42,
                    _MORE_IN_POOL.format("remote.log.reader.threads=21", _DOUBLE, 10),
                ),
            ),
            (
                "",
                [("remote.log.manager.follower.thread.pool.size", 0, "5")],
                (
                    42,
                    _MORE_IN_POOL.format(
                        "remote.log.manager.follower.thread.pool.size=5", _DOUBLE, 2
                    ),
                ),
            ),
            *(
                ("", [(key, 0, "0")], (42, _INVALID.format("0", key, "Value must be at least 1")))
                for key in (
                    "remote.log.manager.copy.max.bytes.per.second",
                    "remote.log.manager.fetch.max.bytes.per.second",
                    "remote.log.manager.copier.thread.pool.size",
                )
            ),
            ("1", [("remote.log.manager.copy.max.bytes.per.second", 0, "1000000")], _OK),
            ("", [("log.cleaner.dedupe.buffer.size", 0, "1048576")], (42, _LESS_MEMORY)),
            ("", [("log.cleaner.dedupe.buffer.size", 0, "1048577")], (0, None)),
            (
                "1",
                [
                    ("log.cleaner.threads", 0, "2"),
                    ("log.cleaner.dedupe.buffer.size", 0, "2097152"),
                ],
                (42, _LESS_MEMORY),
            ),
            (
                "1",
                [
                    ("log.cleaner.threads", 0, "2"),
                    ("log.cleaner.dedupe.buffer.size", 0, "4194304"),
                ],
                _OK,
            ),
            (
                "",
                [("log.retention.bytes", 0, "100"), ("log.local.retention.bytes", 0, "101")],
                (
                    42,
                    _LOCAL.format(
                        "101",
                        "bytes: Value must not be more than log.retention.bytes property value: "
                        "100",
                    ),
                ),
            ),
            (
                "1",
                [("log.local.retention.ms", 0, "-1")],
                (
                    42,
                    _LOCAL.format(
                        "-1",
                        "ms: Value must not be -1 as log.retention.ms value is set as 604800000.",
                    ),
                ),
            ),
            ("1", [("log.cleaner.io.max.bytes.per.second", 0, "0.5")], _OK),
            ("1", [("log.cleaner.backoff.ms", 0, "0")], (0, None)),
            (
                "1",
                [("log.cleaner.backoff.ms", 0, "-1")],
                (42, _INVALID.format("-1", "log.cleaner.backoff.ms", "Value must be at least 0")),
            ),
            ("1", [("log.cleaner.io.buffer.size", 0, "0")], (0, None)),
            (
                "1",
                [("log.retention.ms", 0, "abc")],
                (
                    42,
                    "Invalid value abc for configuration log.retention.ms: Not a number of type "
                    "LONG",
                ),
            ),
            (
                "1",
                [("log.segment.bytes", 2, "5")],
                (40, "Config value append is not allowed for config key: log.segment.bytes"),
            ),
            (
                "1",
                [("log.segment.bytes", 0, None)],
                (42, "Null value not supported for : log.segment.bytes"),
            ),
            (
                "1",
                [("min.insync.replicas", 0, "2")],
                (40, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."),
            ),
            (
                "",
                [("min.insync.replicas", 1, None)],
                (40, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."),
            ),
            ("1", [("log.segment.delete.delay.ms", 0, "70000")], _OK),
            ("1", [("log.segment.delete.delay.ms", 1, None)], _OK),
            ("1", [("case.nonsense", 0, "70000")], _OK),
            ("1", [("case.nonsense", 1, None)], _OK),
        )
    ),
]

_DEFAULT_GROUP = "Default group resources are not allowed."
_NOT_LIST = "because its type is not LIST."
_RESET = (
    "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
)


def _group(*configs: tuple[str, int, str | None], says: tuple[int, str | None]) -> Case:
    return _alter((32, "case-g", list(configs)), answers=[(32, "case-g", *says)], is_trial=True)


def _reset(value: str, *, is_allowed: bool) -> Case:
    name = "share.auto.offset.reset"
    message = (
        f"Invalid value {value} for configuration {name}: Invalid value `{value}` for "
        f"configuration {name}. {_RESET}"
    )
    return _group((name, 0, value), says=_OK if is_allowed else (40, message))


def _not_a_group_value(name: str, value: str, reason: str) -> Case:
    return _group(
        (name, 0, value), says=(40, f"Invalid value {value} for configuration {name}: {reason}")
    )


_TIMEOUTS = [
    f"{kind}.{what}"
    for kind in ("consumer", "share", "streams")
    for what in ("heartbeat.interval.ms", "session.timeout.ms")
]

GROUPS: list[Case] = [
    *(_not_a_group_value(name, "0", f"{_AT_LEAST} 1") for name in _TIMEOUTS),
    *(_not_a_group_value(name, "abc", "Not a number of type INT") for name in _TIMEOUTS),
    *(
        _group(
            (name, 0, value),
            says=(
                40,
                f"{name} must be {word} than or equal to "
                f"group.{name.partition('.')[0]}.{bound}.{name.partition('.')[2]}",
            ),
        )
        for name in (*_TIMEOUTS, "share.record.lock.duration.ms")
        for value, word, bound in (("1000", "greater", "min"), ("99999999", "less", "max"))
    ),
    _not_a_group_value("share.record.lock.duration.ms", "999", f"{_AT_LEAST} 1000"),
    _not_a_group_value("streams.num.standby.replicas", "-1", f"{_AT_LEAST} 0"),
    _group(
        ("streams.num.standby.replicas", 0, "3"),
        says=(
            40,
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas",
        ),
    ),
    _not_a_group_value("streams.initial.rebalance.delay.ms", "-1", f"{_AT_LEAST} 0"),
    _not_a_group_value(
        "share.isolation.level", "x", "String must be one of: read_committed, read_uncommitted"
    ),
    *(
        _reset(value, is_allowed=True)
        for value in (
            "earliest",
            " earliest ",
            "by_duration:PT1H",
            "by_duration:pt1h",
            "by_duration:P1DT2H3M4.5S",
        )
    ),
    *(
        _reset(value, is_allowed=False)
        for value in (
            "",
            "LATEST",
            "by_duration:",
            "by_duration:x",
            "by_duration:PT",
            "by_duration:P1W",
            "by_duration:-PT1H",
            "BY_DURATION:PT1H",
        )
    ),
    _group(("nope", 0, "1"), says=(40, "Unknown group config name: nope")),
    _group(
        ("consumer.session.timeout.ms", 0, "1"),
        ("nope", 0, "1"),
        says=(40, "Unknown group config name: nope"),
    ),
    _group(("nope", 1, None), says=_OK),
    _group(
        ("consumer.session.timeout.ms", 2, "1"),
        says=(40, f"Can't APPEND to key consumer.session.timeout.ms {_NOT_LIST}"),
    ),
    _group(
        ("consumer.session.timeout.ms", 0, "50000"),
        ("consumer.heartbeat.interval.ms", 0, "6000"),
        says=_OK,
    ),
    _alter_one(32, "", says=(42, _DEFAULT_GROUP)),
    _replace_one(32, "", says=(42, _DEFAULT_GROUP)),
    _replace_one(32, "case-g", ("nope", "1"), says=(40, "Unknown group config name: nope")),
]


def _subscription(*configs: tuple[str, int, str | None], says: tuple[int, str | None]) -> Case:
    return _alter((16, "case-m", list(configs)), answers=[(16, "case-m", *says)], is_trial=True)


_INTERVAL = "for interval.ms, interval must be between 100 and 3600000 (1 hour)"

CLIENT_METRICS: list[Case] = [
    *(
        _subscription(("interval.ms", 0, value), says=(42, f"Invalid value {value} {_INTERVAL}"))
        for value in ("99", "3600001", "-1")
    ),
    _subscription(("interval.ms", 0, "100"), ("metrics", 0, "*"), says=_OK),
    _subscription(
        ("interval.ms", 0, "x"),
        says=(40, "Invalid value x for configuration interval.ms: Not a number of type INT"),
    ),
    _subscription(
        ("nope", 0, "1"),
        ("interval.ms", 0, "x"),
        says=(42, "Unknown client metrics configuration: nope"),
    ),
    *(
        _subscription(("match", 0, pattern), says=_OK)
        for pattern in ("", "client_id=a.*,client_source_port=1", " client_id = a ")
    ),
    _subscription(("match", 0, "client_id=(?<x>a)"), says=_OK),
    *(
        _subscription(
            ("match", 0, pattern), says=(40, f"Illegal client matching pattern: {pattern}")
        )
        for pattern in ("client_id", "client_id=", "client_id=a=b", "nope=a", "client_id=[")
    ),
    *(
        _subscription(
            (name, 0, "a,,b"), says=(40, f"Configuration '{name}' values must not be empty.")
        )
        for name in ("match", "metrics")
    ),
    _subscription(("metrics", 2, "a"), says=(40, f"Can't APPEND to key metrics {_NOT_LIST}")),
    _subscription(("metrics", 3, "a"), says=(40, f"Can't SUBTRACT to key metrics {_NOT_LIST}")),
    _alter_one(16, "", says=(42, "Subscription name can't be empty")),
    _replace_one(16, "", says=(42, "Subscription name can't be empty")),
]

LOGGERS: list[Case] = [
    *(
        _alter_one(8, name, ("root", 0, "WARN"), says=says)
        for name, says in (
            ("", (42, "Node id must be an integer, but it is: ")),
            ("x", (42, "Node id must be an integer, but it is: x")),
            ("2", (42, "Unexpected node id. Expected 1, but received 2")),
        )
    ),
    *(
        _alter_one(8, "1", config, says=says)
        for config, says in (
            (("nope", 0, "DEBUG"), (40, "Logger nope does not exist!")),
            (("nope", 1, None), (40, "Logger nope does not exist!")),
            (
                ("root", 0, "warn"),
                (
                    40,
                    "Cannot set the log level of root to warn as it is not a supported log "
                    "level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
                ),
            ),
            (("root", 0, None), (42, "Null value not supported for : root")),
            (("root", 1, None), (42, "Removing the log level of the root logger is not allowed")),
            (
                ("root", 2, "WARN"),
                (42, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
            ),
            (
                ("root", 3, "WARN"),
                (42, "SUBTRACT operation is not allowed for the BROKER_LOGGER resource"),
            ),
            (("root", 7, "WARN"), (-1, None)),
        )
    ),
    _alter_one(8, "1", says=_OK),
    _alter_one(8, "1", ("root", 0, "ERROR"), says=_OK),
    _alter_one(8, "1", ("root", 0, "WARN"), says=_OK),
    _replace_one(8, "1", ("root", "WARN"), says=(42, "Unknown resource type 8")),
]

REPLACE: list[Case] = [
    _create(topic("case-v", 1, 1, flush_ms="7"), answers=[_made("case-v")]),
    _replace(answers=[]),
    _replace_one(2, "case-v", ("retention.ms", "5"), ("cleanup.policy", "compact"), says=_OK),
    _replace_one(2, "case-v", says=_OK),
    *(
        _replace_one(type_, "x", says=(42, f"Unknown resource type {type_}"))
        for type_ in (0, 3, 99)
    ),
    _replace_one(
        2,
        "case-v",
        ("segment.bytes", "1"),
        says=(
            40,
            "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
        ),
    ),
    _replace_one(
        2,
        "case-v",
        ("segment.bytes", None),
        says=(42, "Null value not supported for : segment.bytes"),
    ),
    _replace_one(2, "case-v", ("nope", "1"), says=(40, "Unknown topic config name: nope")),
    _replace_one(
        2,
        "case-v",
        ("flush.ms", "1"),
        ("flush.ms", "1"),
        says=(42, "Error due to duplicate config keys"),
    ),
    _replace_one(2, "case-none", says=(3, "The topic 'case-none' does not exist.")),
    _replace_one(2, "case b", says=(17, f"{_NAME_SAYS}'case b' {_CHARACTERS}")),
    _replace_one(2, "", says=(42, "Default topic resources are not allowed.")),
    _replace_one(4, "7", says=(42, "Unexpected broker id, expected 1, but received 7")),
    _replace_one(4, "x", says=(42, "Node id must be an integer, but it is: x")),
    _replace_one(
        4,
        "1",
        ("num.partitions", "3"),
        says=(42, "Cannot update these configs dynamically: Set(num.partitions)"),
    ),
    _replace_one(
        4,
        "1",
        ("min.insync.replicas", "2"),
        says=(40, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."),
    ),
    _replace_one(
        4,
        "",
        says=(40, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."),
    ),
    _alter_one(4, "1", ("log.roll.ms", 7, "5"), says=(42, "Unknown operations type 7")),
    _alter_one(2, "case-v", ("flush.ms", 7, "5"), says=(-1, None)),
    # The controller reads all that it is forwarded; what a broker says itself stands.
    _alter(
        (2, "case-v", [("flush.ms", 0, "5")]),
        (32, "case-g", [("consumer.session.timeout.ms", 4, "50000")]),
        (2, "case-none", [("flush.ms", 0, "5")]),
        (2, "case-x", [("flush.ms", 0, "5"), ("flush.ms", 0, "5")]),
        (4, "1", [("log.roll.ms", 0, "604800000")]),
        (7, "x", []),
        (8, "1", []),
        answers=[
            (2, "case-v", -1, None),
            (32, "case-g", -1, None),
            (2, "case-none", -1, None),
            (2, "case-x", 42, "Error due to duplicate config keys"),
            (4, "1", -1, None),
            (7, "x", 42, "Unknown resource type 7"),
            (8, "1", *_OK),
        ],
    ),
    _alter(
        (2, "case-v", []),
        (4, "1", [("log.roll.ms", 7, "5")]),
        answers=[(2, "case-v", *_OK), (4, "1", 42, "Unknown operations type 7")],
    ),
    _delete(("case-v", _NO_ID), answers=[("case-v", *_OK)]),
]

DELETE: list[Case] = [
    _create(topic("case-x"), topic("case-y"), answers=[_made("case-x"), _made("case-y")]),
    _delete(("case-none", _NO_ID), answers=[("case-none", 3, _NOT_THERE)]),
    _delete(("", _NO_ID), answers=[("", 3, _NOT_THERE)]),
    _delete((None, _UNKNOWN_ID), answers=[(None, 100, "This server does not host this topic ID.")]),
    _delete(
        ("case-x", _NO_ID),
        ("case-x", _NO_ID),
        ("case-none", _NO_ID),
        answers=[("case-x", 42, "Duplicate topic name."), ("case-none", 3, _NOT_THERE)],
    ),
    _delete((None, _UNKNOWN_ID), (None, _UNKNOWN_ID), answers=[(None, 42, "Duplicate topic id.")]),
    _delete(
        ("case-x", _UNKNOWN_ID),
        answers=[("case-x", 42, "You may not specify both topic name and topic id.")],
    ),
    _delete((None, _NO_ID), answers=[(None, 42, "Neither topic name nor id were specified.")]),
    _delete(("case-x", _NO_ID), answers=[("case-x", *_OK)]),
    _delete(("case-x", _NO_ID), answers=[("case-x", 3, _NOT_THERE)], version=5),
    _delete(("case-x", _NO_ID), answers=[("case-x", 3, None)], version=4),
    _delete(("case-y", _NO_ID), answers=[("case-y", *_OK)], version=1),
]

ALL: dict[str, list[Case]] = {
    "create": CREATE,
    "configs": CONFIGS,
    "grow": GROW,
    "alter": ALTER,
    "replace": REPLACE,
    "groups": GROUPS,
    "client metrics": CLIENT_METRICS,
    "loggers": LOGGERS,
    "delete": DELETE,
}


def answers_of(api_name: str, version: int, response: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What a response says, in the form of the table, sorted."""
    if api_name == "CreateTopics":
        keys, results = ("num_partitions", "replication_factor"), response["topics"]
        found = [
            (t["name"], t["error_code"], t["error_message"], *(t[k] for k in keys)) for t in results
        ]
    elif api_name in ("AlterConfigs", "IncrementalAlterConfigs"):
        found = [
            (r["resource_type"], r["resource_name"], r["error_code"], r["error_message"])
            for r in response["responses"]
        ]
    else:
        results = response["results" if api_name == "CreatePartitions" else "responses"]
        found = [(r["name"], r["error_code"], r["error_message"]) for r in results]
    return sorted(found, key=repr)
