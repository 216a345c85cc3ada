"""Offsets of many partitions: as a checkpoint keeps them, within limits, and how far behind. Pure.

A checkpoint's document is {"topic": {"0": 23}} with the next offset to read, as Spark's Kafka
source writes it, and beside the topics, under names that no topic can have:

    TOPIC_IDS   the topics' ids, by which a topic that was made again is noticed
    QUERY_ID    a word of the query's own: its consumer group keeps its name over restarts
    TASK_BEGINS (topic, partition, offset) of all tasks but the first of the micro-batch that ends
                there: repeated, it has the same tasks, and so a sink knows them again

Documents are built in one order, as Spark compares their text. What people have written into one,
or a disk has made of it, is a ConfigFault that says where.
"""

from collections.abc import Mapping
from typing import Any

from shmbroker.client.reader.asking import Ends
from shmbroker.client.reader.planning import TaskBegin
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition, uuid_from_text, uuid_text
from shmbroker.spark.option_values import LONG_MAX
from shmbroker.spark.options import QUERY_ID, TASK_BEGINS, TOPIC_IDS


def to_json(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes], query_id: str = ""
) -> dict[str, Any]:
    """Offsets as a checkpoint keeps them; always in the same order."""
    document: dict[str, Any] = {}
    for name, partition in sorted(offsets):
        document.setdefault(name, {})[str(partition)] = offsets[name, partition]
    document[TOPIC_IDS] = {name: uuid_text(topic_ids[name]) for name in sorted(document)}
    if query_id:
        document[QUERY_ID] = query_id
    return document


def from_json(document: Mapping[str, Any]) -> tuple[Ends, dict[str, str]]:
    """The offsets and topic ids of a checkpoint's document."""
    offsets: Ends = {}
    for name, partitions in _object(document, "they").items():
        if name.startswith(":"):
            continue
        for partition, offset in _object(partitions, f"topic {name}").items():
            if not partition.isdecimal() or not _is_number(offset):
                raise _unusable(f"topic {name} has {partition!r}: {offset!r}")
            offsets[name, int(partition)] = offset
    topic_ids = _object(document.get(TOPIC_IDS, {}), TOPIC_IDS)
    for name, topic_id in topic_ids.items():
        try:
            uuid_from_text(topic_id)
        except (ValueError, TypeError):
            raise _unusable(f"{TOPIC_IDS} has {name!r}: {topic_id!r}") from None
    return offsets, dict(topic_ids)


def begins_in(document: Mapping[str, Any]) -> list[TaskBegin] | None:
    """Where the tasks of the micro-batch begin that ends there; None: it is not told, as in a
    checkpoint of Spark's Kafka source."""
    told = document.get(TASK_BEGINS)
    if told is None:
        return None
    try:
        begins = [(topic, partition, offset) for topic, partition, offset in told]
        for topic, partition, offset in begins:
            if not (isinstance(topic, str) and _is_number(partition) and _is_number(offset)):
                raise ValueError
        if begins != sorted(begins):
            raise ValueError
    except (TypeError, ValueError):
        raise _unusable(f"{TASK_BEGINS} is {told!r:.200}") from None
    return begins


def _object(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise _unusable(f"{what} must be an object with names, not {found!r:.200}")
    return found


def _is_number(found: Any) -> bool:
    """Whether a document has a number here that a log can have."""
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= LONG_MAX


def _unusable(what: str) -> ConfigFault:
    return ConfigFault(
        f"the query's offsets can't be used: {what}. If somebody has changed them in the directory"
        " offsets of its checkpoint, put back what was there; else start with a new checkpoint,"
        " and with startingOffsets of what it has read"
    )


def within_limit(starts: Ends, ends: Ends, records_max: int) -> Ends:
    """Ends that leave about `records_max` records, shared out by what each partition has waiting.

    As Spark's Kafka source does it: a share below one record is one record, so that a small
    partition is not starved; every other share is rounded down.
    """
    waiting = {tp: max(0, end - starts[tp]) for tp, end in ends.items()}
    total = sum(waiting.values())
    if total <= records_max:
        return ends
    return {
        tp: min(end, starts[tp] + max(records_max * waiting[tp] // total, waiting[tp] > 0))
        for tp, end in ends.items()
    }


def behind_latest(
    end: Mapping[str, Any] | None, latest: Mapping[str, Any] | None
) -> dict[str, str]:
    """How many offsets a query is behind, over its partitions, by the names and in the form of the
    metrics of Spark's Kafka source; empty if nothing is known."""
    if not end or not latest:
        return {}
    consumed, known = from_json(end)[0], from_json(latest)[0]
    behind = [max(0, offset - consumed.get(tp, 0)) for tp, offset in known.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }
