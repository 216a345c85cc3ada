"""`pushdown=true`: filters that spare reading, for Spark's batch queries. Pure.

What can be told from a plan is which topics, partitions and offsets are read, and, with one
question to the broker, from which offset on a timestamp is reached. So of the filters that Spark
offers these narrow the ranges:

    topic, partition    =, in
    offset              =, <, <=, >, >=, in
    timestamp           >, >=, =     (no earlier record is as new, later ones may be older; of times
                                     before 1970 a broker can't be asked)

Spark keeps every filter and applies it to the rows as well, so a bound that is too wide is never
wrong. It offers filters only where spark.sql.python.filterPushdown.enabled is true, and raises an
error at a reader that takes them where it isn't: hence the option.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from shmbroker.client.reader.asking import OFFSET_MAX

_NOT_BEFORE = ("EqualTo", "GreaterThan", "GreaterThanOrEqual")


class Bounds(NamedTuple):
    """What rows can pass the filters: offsets in [start_offset, end_offset), and nothing older
    than `timestamp_ms`; None where all topics or partitions can."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = OFFSET_MAX
    timestamp_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Whether any row of this partition can pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def bounds_of(filters: Iterable[Any]) -> Bounds:
    """The bounds that these filters, as pyspark.sql.datasource has them, set together."""
    bounds = Bounds()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if len(attribute) == 1 and value is not None:
            bounds = _narrowed(bounds, attribute[0], type(each).__name__, value)
    return bounds


def _narrowed(bounds: Bounds, column: str, kind: str, value: Any) -> Bounds:
    among: frozenset[Any] | None = None
    if kind == "EqualTo":
        among = frozenset([value])
    elif kind == "In":
        among = frozenset(v for v in value if v is not None)
    if column == "topic" and among is not None:
        return bounds._replace(topics=among & (among if bounds.topics is None else bounds.topics))
    if column == "partition" and among is not None:
        known = among if bounds.partitions is None else bounds.partitions
        return bounds._replace(partitions=among & known)
    if column == "offset":
        low, high = _interval(kind, value, among)
        return bounds._replace(
            start_offset=max(bounds.start_offset, low), end_offset=min(bounds.end_offset, high)
        )
    # a time without a zone could be of any
    is_time = isinstance(value, datetime) and value.tzinfo is not None
    if is_time and column == "timestamp" and kind in _NOT_BEFORE and value.timestamp() >= 0:
        ms = max(int(value.timestamp() * 1000), bounds.timestamp_ms or 0)
        return bounds._replace(timestamp_ms=ms)
    return bounds


def _interval(kind: str, value: Any, among: frozenset[Any] | None) -> tuple[int, int]:
    """The offsets [low, high) that can pass."""
    if among is not None:
        return (min(among), max(among) + 1) if among else (0, 0)
    if kind == "GreaterThan":
        return value + 1, OFFSET_MAX
    if kind == "GreaterThanOrEqual":
        return value, OFFSET_MAX
    if kind == "LessThan":
        return 0, value
    if kind == "LessThanOrEqual":
        return 0, value + 1
    return 0, OFFSET_MAX
