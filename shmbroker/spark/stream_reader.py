"""A streaming query's read: Spark asks for offsets, and for the tasks between two of them.

    latestOffset(start)     where the next micro-batch ends: the high watermarks, within the limits
    partitions(start, end)  its tasks
    commit(end)             it is written: the offsets are committed for the query's group

Rules of this file:
* What a range of offsets yields never depends on when it is read: Spark writes the end of a
  micro-batch down before it reads it, and reads it again after a crash. So exactly-once sinks are.
* Nor does it depend on that which task reads what, as a sink may know rows again by their task: it
  is planned with the end, and kept with it (`TASK_BEGINS`).
* What was read and is no longer there is a DataLossFault unless failOnDataLoss is false.
* Committed offsets of a consumer group show how far a query is, and nobody starts from them: that
  they can't be committed is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from shmbroker import clock
from shmbroker.client.reader.asking import LATEST, Ends, partition_text
from shmbroker.client.reader.planning import begins_of
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.spark import worker
from shmbroker.spark.columns import columns_of
from shmbroker.spark.offsets import begins_in, from_json, to_json
from shmbroker.spark.options import QUERY_ID, TASK_BEGINS
from shmbroker.spark.task_side import TaskSide, tasks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from shmbroker.client.cluster import Topic
    from shmbroker.client.reader.broker_client import BrokerClient
    from shmbroker.client.reader.tasks import ReadPlan
    from shmbroker.spark.options import Options

logger = logging.getLogger("shmbroker.spark")

WAY = ":read"
"""Key of what a query reports as its latest offset, beside the topics: how it was read last."""


class StreamReader(TaskSide, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: Spark asks for offsets, and for the tasks between two of them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns, self.required = columns_of(schema, options)
        self._client: BrokerClient | None = None
        self._latest: dict[str, Any] | None = None  # as last seen, for the query's progress
        self._way: str | None = None
        self._planned: tuple[Ends, Ends, ReadPlan] | None = None  # with the last end
        self._target: Ends | None = None  # where an available-now query ends
        self._last_trigger_s: float | None = None
        self._committed: Ends = {}
        self._told: str | None = None  # why offsets could not be committed

    @worker.told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options)
        wanted = driver.wanted_partitions(self.options, topics)
        starts = driver.resolve(client, self.options, topics, wanted, is_start=True)
        sentinels = {tp: offset for tp, offset in starts.items() if offset < 0}
        starts = starts | client.offsets(topics, sentinels)
        return to_json(starts, _ids(topics), random_uuid().hex()[:12])

    @worker.told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends: the high watermarks, as far as the limits allow."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        self._commit(start, topics)  # all before it is written by now
        wanted = driver.wanted_partitions(self.options, topics)
        starts = self._starts(start, topics, wanted)
        ends = driver.find_ends(client, self.options, topics, starts)
        self._latest = to_json(ends, _ids(topics))
        if self._way is None and ends:  # Spark asks for it before the first one is planned
            self._way = driver.way_of(client, self.options, topics, min(ends))
        for topic_partition, end in ends.items():
            begun = starts[topic_partition]
            if end < begun:
                name = partition_text(topic_partition)
                self._lose(f"{name} ends at {end}, but it was read up to {begun}")
        if self._target is not None:
            ends = {
                tp: min(end, max(self._target.get(tp, 0), starts[tp])) for tp, end in ends.items()
            }
        there = starts
        # Trigger.Once asks for everything, whatever the limits
        if not isinstance(limit, ReadAllAvailable):
            if self._waits(starts, ends):
                return start
            limits = self.options
            if isinstance(limit, ReadMaxRows):
                limits = limits._replace(offsets_per_trigger_max=limit.max_rows)
            there = driver.first_there(client, topics, starts, ends)
            ends = driver.within_limits(client, limits, topics, there, ends)
        latest = to_json(ends, _ids(topics), start.get(QUERY_ID) or random_uuid().hex()[:12])
        if from_json(latest) == from_json(start):
            return start
        ends = {tp: end for tp, end in ends.items() if end > there[tp]}
        plan = driver.plan_tasks(client, self.options, topics, there, ends)
        self._planned = (there, ends, plan)
        return latest | {TASK_BEGINS: begins_of(plan.tasks)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits that are given: Spark knows no more than one, `latestOffset` all."""
        options = self.options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The high watermarks as last seen, and how the last micro-batch was planned to be read."""
        if self._latest is None or self._way is None:
            return self._latest
        return self._latest | {WAY: self._way}

    @worker.told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an available-now query."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        wanted = driver.wanted_partitions(self.options, topics)
        self._target = client.offsets(topics, dict.fromkeys(wanted, LATEST))

    @worker.told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; what they yield is a function of these offsets alone."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        ends, topic_ids = from_json(end)
        for name, topic_id in topic_ids.items():
            if name not in topics:
                self._lose(f"topic {name} was deleted; what was not read of it is lost")
            elif uuid_text(topics[name].topic_id) != topic_id:
                self._lose(f"topic {name} was deleted and made again; its old records are lost")
        same = {
            name: topic
            for name, topic in topics.items()
            if topic_ids.get(name, uuid_text(topic.topic_id)) == uuid_text(topic.topic_id)
        }
        ends = {
            tp: n for tp, n in ends.items() if tp[0] in same and tp[1] in same[tp[0]].partitions
        }
        starts = self._starts(start, same, ends)
        ends = {tp: end for tp, end in ends.items() if end > starts[tp]}
        if self._planned is not None and self._planned[:2] == (starts, ends):
            plan = self._planned[2]
        else:
            plan = driver.plan_tasks(client, self.options, same, starts, ends, begins_in(end))
        self._planned = None
        self._way = plan.way
        return tasks_of(plan)

    @worker.told_plainly()
    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch up to this end is written. (Spark says so one batch later, and never of
        the last one; so `latestOffset` does it, too.)"""
        from shmbroker.spark import driver

        try:
            topics = driver.find_topics(self._connected(), self.options, is_new=False)
        except Fault as fault:
            self._warn(fault)
        else:
            self._commit(end, topics)

    def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
        worker.leave_if_jvm_has()

    def _connected(self) -> BrokerClient:
        from shmbroker.spark import driver

        if self._client is None:
            self._client = driver.connect(self.options)
        return self._client

    def _lose(self, text: str) -> None:
        from shmbroker.spark import driver

        driver.lose(self.options, text)

    def _waits(self, starts: Ends, ends: Ends) -> bool:
        """Whether there is too little to read yet; never for the first micro-batch, nor for the
        last one of an available-now query."""
        least = self.options.offsets_per_trigger_min
        if least is None or self._target is not None:
            return False
        now_s = clock.monotonic()
        delay_s = self.options.trigger_delay_ms_max / 1000
        is_time = self._last_trigger_s is None or now_s - self._last_trigger_s >= delay_s
        waiting = sum(max(0, end - starts[tp]) for tp, end in ends.items())
        if not is_time and waiting < least:
            return True
        self._last_trigger_s = now_s
        return False

    def _commit(self, document: dict[str, Any], topics: Mapping[str, Topic]) -> None:
        """Commit these offsets for the query's consumer group, so that every tool shows its lag."""
        options = self.options
        offsets, topic_ids = from_json(document)
        group_id = options.group_id
        if group_id is None and QUERY_ID in document:
            group_id = f"{options.group_id_prefix}-{document[QUERY_ID]}"
        there = {
            name
            for name, topic in topics.items()
            if uuid_text(topic.topic_id) == topic_ids.get(name)
        }
        changed = {
            tp: at for tp, at in offsets.items() if tp[0] in there and self._committed.get(tp) != at
        }
        if not options.commits_offsets or group_id is None or not changed:
            return
        try:
            self._connected().commit(group_id, changed)
        except Fault as fault:
            self._warn(fault, f" of group {group_id}")
        else:
            self._committed |= changed

    def _warn(self, fault: Fault, of_group: str = "") -> None:
        """Tell once why offsets are not committed."""
        if str(fault) != self._told:
            self._told = str(fault)
            logger.warning("offsets%s can't be committed: %s", of_group, fault)

    def _starts(
        self, start: dict[str, Any], topics: Mapping[str, Topic], wanted: Iterable[tuple[str, int]]
    ) -> Ends:
        """Where to begin in each of these partitions: new ones from their first offset on."""
        wanted = list(wanted)
        starts, topic_ids = from_json(start)
        for name, topic_id in topic_ids.items():
            if name in topics and uuid_text(topics[name].topic_id) != topic_id:
                self._lose(f"topic {name} was deleted and made again; its old records are lost")
                starts = {tp: offset for tp, offset in starts.items() if tp[0] != name}
        gone = sorted(set(starts) - set(wanted))
        if gone:
            self._lose(
                f"partitions that were read are gone: {', '.join(map(partition_text, gone))}"
            )
        return {topic_partition: starts.get(topic_partition, 0) for topic_partition in wanted}


class RefusedReader(DataSourceStreamReader):
    """A streaming query with bad options. It raises their fault when it is first asked for
    something: raised before there is a reader, it would be hidden by an UnboundLocalError of
    Spark, which stops the reader in any case."""

    def __init__(self, fault: ConfigFault) -> None:
        self._fault = fault

    @worker.told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        """Raise the fault; so do all the others."""
        raise self._fault

    @worker.told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._fault

    @worker.told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._fault

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._fault


def _ids(topics: Mapping[str, Topic]) -> dict[str, bytes]:
    return {name: topic.topic_id for name, topic in topics.items()}
