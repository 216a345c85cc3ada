"""The options of `format("shmbroker")`: names and meaning as Spark's own Kafka source has them.

    option                       value                                default, notes
    kafka.bootstrap.servers      HOST:PORT,…                          required
    subscribe                    topic,topic                          exactly one of
    subscribePattern             Python regular expression, whole       these three
    assign                       {"topic": [0, 1]}
    startingTimestamp            ms                                   first of these three
    startingOffsetsByTimestamp   {"topic": {"0": ms}}                   that is given
    startingOffsets              earliest, latest (stream only),      stream: latest
                                 {"topic": {"0": 23, "1": -2}}         batch: earliest
    startingOffsetsByTimestampStrategy   error, latest                error: no record so late
    endingTimestamp, endingOffsetsByTimestamp, endingOffsets          batch only, latest
    failOnDataLoss               true, false                          true
    maxOffsetsPerTrigger         records                              stream only
    minPartitions                tasks, a hint
    includeHeaders               true, false                          false
    shmbroker.data               directory                            asked from the broker

In JSON -2 is the earliest and -1 the latest offset, and every partition must be named. Offsets as
a checkpoint has them are fine too: they carry the topics' ids, which are compared (`TOPIC_IDS`).
Option names don't mind case. Other `kafka.*` options tune a consumer; there is none here, so they
are taken and have no effect, except those that would change what is read: they are refused.

A bad option is a ConfigFault in one sentence.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from shmbroker.errors import ConfigFault

EARLIEST = -2
LATEST = -1

TOPIC_IDS = ":topic_ids"
"""Key of an offsets JSON beside the topics; a colon is not allowed in a topic's name."""

NAMES = {
    name.lower(): name
    for name in (
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
        "failOnDataLoss",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "includeHeaders",
        "shmbroker.data",
    )
}

_STRATEGIES = ("assign", "subscribe", "subscribepattern")
_ENDING = ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets")
_REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are always binary: cast them in the query",
    "kafka.value.deserializer": "values are always binary: cast them in the query",
    "kafka.enable.auto.commit": "offsets are kept in the query's checkpoint",
    "kafka.interceptor.classes": "there is no consumer to intercept",
}
"""Options that Spark's Kafka source refuses too, and what to do instead."""

Offsets = dict[str, dict[int, int]]
"""topic → partition → offset or timestamp."""


class Position(NamedTuple):
    """Where to start or end: one offset (EARLIEST, LATEST) or timestamp (ms) for all partitions,
    or one for each."""

    is_timestamp: bool
    everywhere: int | None
    each: Offsets
    topic_ids: dict[str, str]


class Options(NamedTuple):
    """All options of a query, checked."""

    bootstrap_servers: str
    data_directory: str | None
    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    assigned: dict[str, tuple[int, ...]] | None
    start: Position
    end: Position
    is_lenient_timestamp: bool
    fails_on_data_loss: bool
    offsets_per_trigger_max: int | None
    tasks_min: int
    has_headers: bool

    def wants(self, topic: str, partition: int) -> bool:
        """Whether the query reads this partition, given that it exists."""
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None:
            return self.pattern.fullmatch(topic) is not None
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
    _refuse_misplaced(given, is_stream)
    servers = given.get("kafka.bootstrap.servers", "").strip()
    if not servers:
        raise ConfigFault("option kafka.bootstrap.servers is missing: give HOST:PORT")
    topics, pattern, assigned = _strategy(given)
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigFault(
            f"startingOffsetsByTimestampStrategy is 'error' or 'latest', not {strategy!r}"
        )
    start = _position(given, "starting", LATEST if is_stream else EARLIEST)
    end = _position(given, "ending", LATEST)
    if not is_stream:
        _refuse_sentinel(start, LATEST, "startingOffsets can't be latest in a batch query")
        _refuse_sentinel(end, EARLIEST, "endingOffsets can't be earliest in a batch query")
    return Options(
        servers,
        given.get("shmbroker.data"),
        topics,
        pattern,
        assigned,
        start,
        end,
        strategy == "latest",
        _flag(given, "failondataloss", True),
        _count(given, "maxoffsetspertrigger"),
        _count(given, "minpartitions") or 1,
        _flag(given, "includeheaders", False),
    )


def has_headers(options: Mapping[str, str]) -> bool:
    """Whether the query asks for the headers column, before it is known what kind it is."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    return _flag(given, "includeheaders", False)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name in _REFUSED:
            raise ConfigFault(f"option {name} is not supported: {_REFUSED[name]}")
        if name == "kafka.isolation.level" and value.lower() != "read_uncommitted":
            raise ConfigFault("kafka.isolation.level: only read_uncommitted is served")
        if name == "kafka.security.protocol" and value.upper() != "PLAINTEXT":
            raise ConfigFault("kafka.security.protocol: only PLAINTEXT is served")
        if name not in NAMES and not name.startswith("kafka."):
            known = ", ".join(sorted(NAMES.values(), key=str.lower))
            raise ConfigFault(f"option {name} is not known here; known are kafka.*, {known}")


def _refuse_misplaced(given: Mapping[str, str], is_stream: bool) -> None:
    for name in _ENDING if is_stream else ("maxoffsetspertrigger",):
        if name in given:
            kind = "streaming" if is_stream else "batch"
            raise ConfigFault(f"option {NAMES[name]} has no meaning in a {kind} query")


def _strategy(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, re.Pattern[str] | None, dict[str, tuple[int, ...]] | None]:
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        raise ConfigFault(
            "give exactly one of the options subscribe, subscribePattern and assign, not "
            + (" and ".join(NAMES[name] for name in chosen) or "none")
        )
    value = given[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in value.split(",") if name.strip()}))
        if not topics:
            raise ConfigFault("option subscribe names no topic")
        return topics, None, None
    if chosen[0] == "subscribepattern":
        try:
            return None, re.compile(value), None
        except re.error as error:
            raise ConfigFault(f"subscribePattern {value!r} is no expression: {error}") from None
    assigned = _json("assign", value)
    if not assigned or not all(
        isinstance(partitions, list) and partitions and all(map(_is_partition, partitions))
        for partitions in assigned.values()
    ):
        raise ConfigFault('option assign must look like {"topic": [0, 1]}')
    return None, None, {name: tuple(sorted(set(p))) for name, p in sorted(assigned.items())}


def _position(given: Mapping[str, str], which: str, default: int) -> Position:
    """Of the three options that say where to start or end, the first one given counts."""
    name = f"{which}timestamp"
    if name in given:
        return Position(True, _number(name, given[name]), {}, {})
    name = f"{which}offsetsbytimestamp"
    if name in given:
        each, topic_ids = _each(name, given[name], 0)
        return Position(True, None, each, topic_ids)
    name = f"{which}offsets"
    value = given.get(name, "").strip()
    if not value:
        return Position(False, default, {}, {})
    sentinel = {"earliest": EARLIEST, "latest": LATEST}.get(value.lower())
    if sentinel is not None:
        return Position(False, sentinel, {}, {})
    each, topic_ids = _each(name, value, EARLIEST)
    return Position(False, None, each, topic_ids)


def _each(name: str, value: str, least: int) -> tuple[Offsets, dict[str, str]]:
    """{"topic": {"0": 23}} as a dict of ints, and the ids of the topics, if a checkpoint's."""
    parsed = _json(NAMES[name], value)
    topic_ids = parsed.pop(TOPIC_IDS, {})
    each: Offsets = {}
    try:
        for topic, partitions in parsed.items():
            each[topic] = {int(p): number for p, number in partitions.items()}
            if any(
                not isinstance(number, int) or isinstance(number, bool) or number < least
                for number in partitions.values()
            ):
                raise ValueError
    except (AttributeError, ValueError):
        raise ConfigFault(f'option {NAMES[name]} must look like {{"topic": {{"0": 23}}}}') from None
    return each, topic_ids


def _refuse_sentinel(position: Position, sentinel: int, text: str) -> None:
    if position.is_timestamp:
        return
    if position.everywhere == sentinel:
        raise ConfigFault(text)
    for topic, partitions in position.each.items():
        for partition, offset in partitions.items():
            if offset == sentinel:
                raise ConfigFault(f"{text} ({topic}-{partition})")


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigFault(f"option {name} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigFault(f"option {name} must be a JSON object")
    return parsed


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigFault(f"option {NAMES[name]} must be a whole number, not {value!r}")
    return number


def _count(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    number = _number(name, given[name])
    if not number:
        raise ConfigFault(f"option {NAMES[name]} must be at least 1")
    return number


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ConfigFault(f"option {NAMES[name]} is true or false, not {value!r}")
    return value == "true"
