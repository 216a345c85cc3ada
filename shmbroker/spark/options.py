"""The options of `format("shmbroker")`: names and meaning as Spark's own Kafka source has them.

    option                       value                                default, notes
    kafka.bootstrap.servers      HOST:PORT,…                          required
    profile                      a name of `client.profiles`          TLS, user, password, servers
    subscribe                    topic,topic                          exactly one of
    subscribePattern             Python regular expression, found in these three
    assign                       {"topic": [0, 1]}
    startingTimestamp            ms                                   first of these three
    startingOffsetsByTimestamp   {"topic": {"0": ms}}                   that is given
    startingOffsets              earliest, latest (stream only),      stream: latest
                                 {"topic": {"0": 23, "1": -2}}         batch: earliest
    startingOffsetsByTimestampStrategy   error, latest                error: no record so late
    endingTimestamp, endingOffsetsByTimestamp, endingOffsets          batch only, latest
    partialOffsets               true, false                          false
    failOnDataLoss               true, false                          true
    maxOffsetsPerTrigger         records                              stream only
    minOffsetsPerTrigger         records                              stream only
    maxTriggerDelay              time, as 30s or 15m                  15m, stream only
    maxBytesPerTrigger           bytes of the log, as 64m             stream only
    minPartitions                tasks, a hint
    maxRecordsPerPartition       records of a task
    includeHeaders               true, false                          false
    groupIdPrefix                text                                 spark-shmbroker-source
    commitOffsets                true, false                          true, stream only
    fetchOffset.numRetries, .retryIntervalMs    numbers               3, 1000: for ends gone back
    kafkaConsumer.pollTimeoutMs  ms                                   30000: until bytes come
    emit                         records, ranges                      records
    shmbroker.read               auto, files, fetch                   auto
    shmbroker.data               directory                            asked from the broker
    shmbroker.hold               time, as 10m                         10m, for a slow query's files

In JSON -2 is the earliest and -1 the latest offset, and every partition must be named, unless
partialOffsets says that the others are read from their first or to their last record. Offsets as
a checkpoint has them are fine too: they carry the topics' ids, which are compared (`TOPIC_IDS`).
Option names are case-insensitive.

`kafka.*` are the settings of Kafka's consumer (`consumer_options`); every other name is refused.
A bad option is a ConfigFault that says what to give instead; where Spark's Kafka source refuses
the same, it begins with the same words.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from shmbroker.client.nearest import nearest
from shmbroker.client.reader.asking import EARLIEST, HOLD_MS, LATEST, Consumer
from shmbroker.errors import ConfigFault
from shmbroker.spark.consumer_options import SETTINGS, consumer, refuse_settings
from shmbroker.spark.option_values import (
    LONG_MAX,
    choice,
    count,
    flag,
    number,
    size,
    time_ms,
)

TOPIC_IDS = ":topic_ids"
"""Key of an offsets JSON beside the topics; a colon is not allowed in a topic's name."""

QUERY_ID = ":query_id"
"""Another such key: a word in the name of the query's consumer group, kept with its checkpoint."""

TASK_BEGINS = ":task_begins"
"""Another one: where the tasks of the micro-batch that ends there begin."""

READ_WAYS = ("auto", "files", "fetch")
EMITS = ("records", "ranges")
GROUP_ID_PREFIX = "spark-shmbroker-source"
TRIGGER_DELAY_MS = 15 * 60 * 1000
HOLD_MS_MAX = 24 * 3600 * 1000

PUSHDOWN = "pushdown"
"""An option of earlier versions: Spark's filters spared reading."""

NAMES = {
    name.lower(): name
    for name in (
        "profile",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        "startingOffsetsByTimestampStrategy",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "endingOffsets",
        "partialOffsets",
        "failOnDataLoss",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "includeHeaders",
        "groupIdPrefix",
        "commitOffsets",
        "emit",
        PUSHDOWN,
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "shmbroker.data",
        "shmbroker.hold",
        "shmbroker.read",
    )
}

_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_ENDINGS = ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets")
_STREAM_ONLY = (
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "maxbytespertrigger",
    "commitoffsets",
)
Offsets = dict[str, dict[int, int]]
"""topic → partition → offset or timestamp."""


class Position(NamedTuple):
    """Where to start or end: one offset (EARLIEST, LATEST) or timestamp (ms) for all partitions,
    or one for each; with `each` and `everywhere`, the latter is for those that are not named."""

    is_timestamp: bool
    everywhere: int | None
    each: Offsets
    topic_ids: dict[str, str]


class Options(NamedTuple):
    """All options of a query, checked."""

    consumer: Consumer
    data_directory: str | None
    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    assigned: dict[str, tuple[int, ...]] | None
    start: Position
    end: Position
    is_lenient_timestamp: bool
    fails_on_data_loss: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    bytes_per_trigger_max: int | None
    tasks_min: int
    records_per_task_max: int | None
    has_headers: bool
    group_id: str | None
    group_id_prefix: str
    commits_offsets: bool
    emits_ranges: bool
    read_way: str
    hold_ms: int
    end_tries: int
    end_retry_ms: int

    def wants(self, topic: str, partition: int) -> bool:
        """Whether the query reads this partition, given that it exists."""
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None:
            return self.pattern.search(topic) is not None
        assert self.assigned is not None
        return partition in self.assigned.get(topic, ())

    @property
    def names(self) -> list[str] | None:
        """The topics to ask for; None: all, to match the pattern."""
        if self.topics is not None:
            return list(self.topics)
        return None if self.assigned is None else list(self.assigned)


def parse(options: Mapping[str, str], is_stream: bool) -> Options:
    """Check the options of a batch or streaming read."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    topics, pattern, assigned = _strategy(given)
    strategy = choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    if is_stream:
        _refuse_endings(given)
    is_partial = flag(given, "partialOffsets", False)
    start = _position(given, "starting", LATEST if is_stream else EARLIEST, is_partial)
    end = _position(given, "ending", LATEST, is_partial)
    if not is_stream:
        _refuse_sentinels(start, end)
        _compare(start, end)
    least = count(given, "minOffsetsPerTrigger")
    most = count(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigFault(
            f"The value of minOffsetPerTrigger({least}) is higher than the"
            f" maxOffsetsPerTrigger({most})"
        )
    asking = consumer(given)
    emits_ranges = choice(given, "emit", EMITS) == "ranges"
    if emits_ranges and (name := asking.entry.shows_secret()):
        raise ConfigFault(
            f"emit=ranges would put kafka.{name} into rows: give a profile, or ${{file:PATH}}"
        )
    return Options(
        asking,
        given.get("shmbroker.data"),
        topics,
        pattern,
        assigned,
        start,
        end,
        strategy == "latest",
        flag(given, "failOnDataLoss", True),
        most,
        least,
        time_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MS),
        size(given, "maxBytesPerTrigger"),
        count(given, "minPartitions") or 1,
        count(given, "maxRecordsPerPartition"),
        flag(given, "includeHeaders", False),
        given.get("kafka.group.id"),
        given.get("groupidprefix", GROUP_ID_PREFIX),
        flag(given, "commitOffsets", True),
        emits_ranges,
        choice(given, "shmbroker.read", READ_WAYS),
        _hold_ms(given),
        number(given, "fetchOffset.numRetries", 3),
        number(given, "fetchOffset.retryIntervalMs", 1000),
    )


def _hold_ms(given: Mapping[str, str]) -> int:
    hold_ms = time_ms(given, "shmbroker.hold", HOLD_MS)
    if hold_ms > HOLD_MS_MAX:
        raise ConfigFault(f"shmbroker.hold is a day at most, not {given['shmbroker.hold']}")
    return hold_ms


def ignored(options: Mapping[str, str], is_stream: bool) -> list[str]:
    """The options given that have no effect in such a query, as Spark's Kafka source warns of."""
    given = {name.lower() for name in options}
    found = [PUSHDOWN] if is_stream else [PUSHDOWN, *(NAMES[name] for name in _STREAM_ONLY)]
    if "kafka.group.id" in given:
        found.append("groupIdPrefix")
    return [name for name in found if name.lower() in given]


def parse_any(options: Mapping[str, str]) -> Options:
    """Check the options of a query of which it isn't known yet whether it streams: ConfigFault for
    what it can't have in either case. Only a batch query can have an end."""
    has_end = any(name.lower() in _ENDINGS for name in options)
    return parse(options, is_stream=not has_end)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    if "provider" in given:  # Spark says it of a table, and forgets the options when that is read
        raise ConfigFault(
            "Spark keeps no options for a table USING shmbroker: say CREATE TEMPORARY VIEW instead"
            " of CREATE TABLE"
        )
    for name in given:
        if name not in NAMES and not name.startswith("kafka."):
            listed = ", ".join(sorted(NAMES.values(), key=str.lower))
            meant = nearest(name, (*NAMES.values(), *SETTINGS))
            raise ConfigFault(
                f"option {name} is not known here{meant or f'; known are kafka.*, {listed}'}"
            )
    refuse_settings(given)


def _refuse_endings(given: Mapping[str, str]) -> None:
    if "endingoffsets" in given:
        raise ConfigFault("ending offset not valid in streaming queries: leave endingOffsets out")
    for name in ("endingtimestamp", "endingoffsetsbytimestamp"):
        if name in given:
            raise ConfigFault(
                f"ending timestamp not valid in streaming queries: leave {NAMES[name]} out"
            )


def _strategy(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, re.Pattern[str] | None, dict[str, tuple[int, ...]] | None]:
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        raise ConfigFault(
            ("Only one" if chosen else "One")
            + " of the following options "
            + ("can" if chosen else "must")
            + " be specified for Kafka source: subscribe, subscribePattern, assign"
        )
    value = given[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in value.split(",") if name.strip()}))
        if not topics:
            raise ConfigFault(
                "No topics to subscribe to as specified value for option 'subscribe' is"
                f" '{given[chosen[0]]}'"
            )
        return topics, None, None
    if chosen[0] == "subscribepattern":
        if not value:
            raise ConfigFault(
                "Pattern to subscribe is empty as specified value for option 'subscribePattern'"
                f" is '{given[chosen[0]]}'"
            )
        try:
            return None, re.compile(value), None
        except re.error as error:
            raise ConfigFault(f"subscribePattern {value!r} is no expression: {error}") from None
    if not value.startswith("{"):
        raise ConfigFault(
            f"No topicpartitions to assign as specified value for option 'assign' is '{value}'"
        )
    example = '{"topicA":[0,1],"topicB":[0,1]}'
    assigned = _json("assign", value, example)
    if not assigned or not all(
        isinstance(partitions, list) and partitions and all(map(_is_partition, partitions))
        for partitions in assigned.values()
    ):
        raise _expected("assign", example, value)
    return None, None, {name: tuple(sorted(set(p))) for name, p in sorted(assigned.items())}


def _position(given: Mapping[str, str], which: str, default: int, is_partial: bool) -> Position:
    """Where to start or end. Of the three options, the one listed first here wins."""
    name = f"{which}timestamp"
    if name in given:
        try:
            timestamp = int(given[name])
            if timestamp > LONG_MAX:
                raise ValueError
        except ValueError:
            raise ConfigFault(
                f"Expected a single long value, got {given[name].strip()} for {NAMES[name]}"
            ) from None
        if timestamp < 0:
            raise ConfigFault(f"{NAMES[name]} counts from 1970 on, it can't be {timestamp}")
        return Position(True, timestamp, {}, {})
    others = (EARLIEST if which == "starting" else LATEST) if is_partial else None
    name = f"{which}offsetsbytimestamp"
    if name in given:
        each, topic_ids = _each(name, given[name], 0)
        return Position(True, others, each, topic_ids)
    name = f"{which}offsets"
    if name not in given:
        return Position(False, default, {}, {})
    value = given[name].strip()
    sentinel = {"earliest": EARLIEST, "latest": LATEST}.get(value.lower())
    if sentinel is not None:
        return Position(False, sentinel, {}, {})
    each, topic_ids = _each(name, value, EARLIEST)
    return Position(False, others, each, topic_ids)


def _each(name: str, value: str, least: int) -> tuple[Offsets, dict[str, str]]:
    """{"topic": {"0": 23}} as a dict of ints, and the ids of the topics, if a checkpoint's."""
    example = (
        '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        if least < 0
        else '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789}}'
    )
    parsed = _json(NAMES[name], value, example)
    topic_ids = parsed.pop(TOPIC_IDS, {})
    parsed.pop(QUERY_ID, None)
    parsed.pop(TASK_BEGINS, None)
    each: Offsets = {}
    try:
        for topic, partitions in parsed.items():
            each[topic] = {int(p): number for p, number in partitions.items()}
            if any(
                not isinstance(number, int)
                or isinstance(number, bool)
                or not least <= number <= LONG_MAX
                for number in partitions.values()
            ):
                raise ValueError
    except (AttributeError, ValueError):
        raise _expected(NAMES[name], example, value) from None
    if not each or not isinstance(topic_ids, dict):
        raise _expected(NAMES[name], example, value)
    return each, topic_ids


def _refuse_sentinels(start: Position, end: Position) -> None:
    """A batch query that would read nothing by its very options."""
    if not start.is_timestamp:
        if start.everywhere == LATEST:
            raise ConfigFault(
                "starting offset can't be latest for batch queries on Kafka: give startingOffsets"
                " as earliest or for each partition"
            )
        for name in _named(start, LATEST):
            raise ConfigFault(f"startingOffsets for {name} can't be latest for batch queries")
    if not end.is_timestamp:
        if end.everywhere == EARLIEST:
            raise ConfigFault(
                "ending offset can't be earliest for batch queries on Kafka: give endingOffsets"
                " as latest or for each partition"
            )
        for name in _named(end, EARLIEST):
            raise ConfigFault(f"ending offset for {name} can't be earliest for batch queries")


def _named(position: Position, sentinel: int) -> list[str]:
    return [
        f"{topic}-{partition}"
        for topic, partitions in position.each.items()
        for partition, offset in partitions.items()
        if offset == sentinel
    ]


def _compare(start: Position, end: Position) -> None:
    """What can be said of start and end of the same kind before anybody is asked."""
    if start.is_timestamp != end.is_timestamp:
        return
    kind = "timestamp" if start.is_timestamp else "offset"
    if start.each and end.each:
        firsts, lasts = _pairs(start), _pairs(end)
        if set(firsts) != set(lasts) and start.everywhere is None:
            raise ConfigFault(
                "The specified start offset and end offset should have the same topic-partitions;"
                f" for start offset: {sorted(firsts)}, for end offset: {sorted(lasts)}"
            )
        for (topic, partition), first in firsts.items():
            last = lasts.get((topic, partition), LATEST)
            if first > last >= 0:
                raise ConfigFault(
                    f"The specified start {kind} {first} is greater than the end {kind} {last} for"
                    f" topic {topic} partition {partition}"
                )
    elif start.is_timestamp and not (start.each or end.each):
        assert start.everywhere is not None and end.everywhere is not None
        if start.everywhere > end.everywhere:
            raise ConfigFault(
                f"The specified start timestamp {start.everywhere} is greater than the end"
                f" timestamp {end.everywhere}"
            )


def _pairs(position: Position) -> dict[tuple[str, int], int]:
    return {(t, p): n for t, partitions in position.each.items() for p, n in partitions.items()}


def _json(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _expected(name, example, value)
    return parsed


def _expected(name: str, example: str, value: str) -> ConfigFault:
    return ConfigFault(f"Expected e.g. {example}, got {value} for option {name}")


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
