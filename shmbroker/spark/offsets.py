"""Offsets of many partitions: as a checkpoint keeps them, within limits, and how far behind. Pure.

A checkpoint's document is {"topic": {"0": 23}} with the next offset to read, as Spark's Kafka
source writes it, and beside the topics, under names that no topic can have:

    TOPIC_IDS   the topics' ids, by which a topic that was made again is noticed
    QUERY_ID    a word of the query's own: its consumer group keeps its name over restarts
    TASK_BEGINS (topic, partition, offset) of all tasks but the first of the micro-batch that ends
                there: repeated, it has the same tasks, and so a sink knows them again

Documents are built in one order, as Spark compares their text.
"""

from collections.abc import Mapping
from typing import Any

from shmbroker.client.reader.asking import Ends
from shmbroker.ids import TopicPartition, uuid_text
from shmbroker.spark.options import QUERY_ID, TOPIC_IDS


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
    offsets = {
        (name, int(partition)): offset
        for name, partitions in document.items()
        if not name.startswith(":")
        for partition, offset in partitions.items()
    }
    return offsets, dict(document.get(TOPIC_IDS, {}))


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
