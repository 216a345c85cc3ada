"""How far streaming queries are behind their topics, in their progress.

Spark's Kafka source reports minOffsetsBehindLatest, maxOffsetsBehindLatest and
avgOffsetsBehindLatest among the metrics of each source. A Python data source can't report metrics,
but its progress holds all that they are made of, the end of the micro-batch and the latest offset:

    spark.streams.addListener(LagListener(lambda name, metrics: print(name, metrics)))
    add_lag(query.lastProgress)["sources"][0]["metrics"]

Kafka's own tools show the same as the lag of the query's consumer group, which the source commits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from shmbroker.spark.offsets import behind_latest
from shmbroker.spark.options import TOPIC_IDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger("shmbroker.spark")

Metrics = dict[str, str]


def add_lag(progress: Any) -> Any:
    """The progress (`query.lastProgress`, an event's, or its JSON as a dict), with the lag among
    the metrics of each source that is a shmbroker."""
    for source in progress["sources"]:
        latest = document_of(source.get("latestOffset"))
        if TOPIC_IDS in latest:
            metrics = behind_latest(document_of(source.get("endOffset")), latest)
            source.setdefault("metrics", {}).update(metrics)
    return progress


class LagListener(StreamingQueryListener):
    """Tells the lag of every query after each micro-batch, by `on_lag(query name or id, metrics)`,
    once for each of its sources; by default it is logged at level INFO.

    `latest` holds the last metrics of each query that runs. The event's progress is completed by
    `add_lag`, for classes that extend this one.
    """

    def __init__(self, on_lag: Callable[[str, Metrics], None] | None = None) -> None:
        self.on_lag = on_lag or _log
        self.latest: dict[str, Metrics] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing yet: there is nothing to tell."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch ended."""
        progress = add_lag(event.progress)
        name = progress["name"] or str(progress["id"])
        self._names[str(progress["id"])] = name
        for source in progress["sources"]:
            if "maxOffsetsBehindLatest" in source["metrics"]:
                self.latest[name] = dict(source["metrics"])
                self.on_lag(name, self.latest[name])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was nothing to read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget it."""
        self.latest.pop(self._names.pop(str(event.id), ""), None)


def document_of(text: Any) -> dict[str, Any]:
    """An offset of a progress, which is JSON text or parsed; empty if it is neither."""
    try:
        parsed = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _log(name: str, metrics: Metrics) -> None:
    logger.info(
        "query %s is behind by %s records at most, %s on average over its partitions",
        name,
        metrics["maxOffsetsBehindLatest"],
        metrics["avgOffsetsBehindLatest"],
    )
