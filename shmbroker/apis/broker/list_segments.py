"""ListSegments (key 20000, our own): end offsets and segment files, in one answer.

Versions: 0-1. Served on the control socket only; a client's connection that asks is closed.
Where: the I/O worker that leads the partitions.

For readers outside the family on the same host (the Spark driver): they read the files themselves,
never beyond `valid_bytes`, which ends at the high watermark. A file's size says nothing, as it is
allocated ahead. What lies before `local_log_start_offset` is in the remote store alone, and in none
of these files; Fetch has it.

`hold_ms` above 0: files with offsets from `hold_start_offset` up to `hold_end_offset` are not
unlinked for so long. Retention and compaction go on meanwhile; what they take out waits under
`.deleted` (`file.delete.delay.ms` is the least), where a query that is slow still finds it. Held
files go when the disk reserve is used, and with the death of their I/O broker. One request holds
them for HOLD_MS_MAX at most.

For a backup, since version 1: `first_offset` leaves out the segments that end at or before it, but
for a log that is or was compacted: what was there when the caller stored them may be compacted
since, and so may a tombstone or a marker be gone that came later and was about a record in them. A
new leader that does not know yet how far the one before had got answers OFFSET_NOT_AVAILABLE, which
is asked again: what lies beyond its high watermark may be committed, and would be missing in the
backup.
`stop_ms` above 0: the whole broker stands still from the moment at which it looked (`looked_ns`, by
the monotonic clock, which all processes of a host share) until `stopped_until_ns`. Where the times
of several brokers overlap, what they have listed is the family as it was at one moment.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import Call
from shmbroker.log.lookups import hold, segments_up_to
from shmbroker.wire import error_codes

API_KEY = 20000
NAME = "ListSegments"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0

HOLD_MS_MAX = 24 * 3600 * 1000
"""A day."""
STOP_MS_MAX = 200
"""Clients wait meanwhile."""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """What is below the high watermark of each partition asked."""
    partitions = []
    looked_ns = broker.clock.monotonic_ns()
    for topic in body["topics"]:
        for asked in topic["partitions"]:
            index = asked["partition"]
            found = {"topic_id": topic["topic_id"], "partition": index}
            partitions.append(found)
            partition = broker.partitions.find(partition_key(topic["topic_id"], index))
            if partition is None or not partition.is_leader:
                found["error_code"] = error_codes.NOT_LEADER_OR_FOLLOWER
                continue
            if call.api_version >= 1 and partition.is_high_watermark_behind:
                found["error_code"] = error_codes.OFFSET_NOT_AVAILABLE
                continue
            log = partition.log
            is_dense = log.cleaned_offset == 0 and not log.config.is_compacted
            first_offset = asked.get("first_offset", 0) if is_dense else 0
            if body["hold_ms"] > 0:
                until_ms = broker.steady_ms() + min(body["hold_ms"], HOLD_MS_MAX)
                hold(log, asked["hold_start_offset"], asked["hold_end_offset"], until_ms)
            found["leader_epoch"] = partition.leader_epoch
            found["log_start_offset"] = log.log_start_offset
            found["local_log_start_offset"] = log.local_start_offset
            found["high_watermark"] = partition.high_watermark
            found["last_stable_offset"] = partition.last_stable_offset
            found["directory"] = str(log.directory)
            found["segments"] = [
                segment._asdict()
                for segment in segments_up_to(log, partition.high_watermark)
                if segment.end_offset > first_offset
            ]
    stop_ms = min(body.get("stop_ms", 0), STOP_MS_MAX)
    until_ns = looked_ns + stop_ms * 1_000_000
    if stop_ms > 0:
        # No delayed answer does instead: nothing of this broker may go on meanwhile.
        broker.clock.sleep(max(until_ns - broker.clock.monotonic_ns(), 0) / 1e9)
    told: dict[str, Any] = {"error_code": 0, "partitions": partitions}
    if call.api_version >= 1:
        told["looked_ns"] = looked_ns
        told["stopped_until_ns"] = (
            max(until_ns, broker.clock.monotonic_ns()) if stop_ms > 0 else looked_ns
        )
    return told
