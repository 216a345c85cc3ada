"""What has moved between two snapshots of a family, by the second: for `shmbroker top`.

Snapshots hold counters that only grow; a rate is the difference of two, over the time between them.

Rules of this file:
* Pure: the times come with the snapshots.
* What began anew meanwhile (a process that was replaced, a log that was cut) has not moved: a rate
  is never negative, but for lags.
* A partition that was not there before has moved by all that it has.
* What may be None in `Rates` is None where it can't be seen, and sums leave it out. Any other
  counter that can't be seen counts as one that has not moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER
from shmbroker.observe.snapshot import Latency, Partition, Process, Snapshot

_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class ProcessRates:
    """The rates of a process; None where it was replaced meanwhile, or can't be seen."""

    cpu_share: float | None
    """Cores that it used: 1.0 is one."""
    turns: float
    stalls: float
    """Entries that found no room in a ring."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes into a partition or topic, and out of it."""

    records_in: float
    bytes_in: float | None
    """Growth of the leader's log; None where segments were deleted meanwhile."""
    bytes_out: float


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something took, in all processes: of what ended between the two."""

    name: str
    is_stage: bool
    count: float
    """A second."""
    mean_s: float
    half_s: float
    """The median, as next ones estimated out of buckets of powers of two."""
    p99_s: float
    most_s: float
    """The bound of the last bucket that has something."""


@dataclass(frozen=True, slots=True)
class Rates:
    """All of it."""

    interval_s: float
    processes: Mapping[str, ProcessRates]
    """Rates of processes by title."""
    rings: Mapping[str, float]
    """Bytes a second, by "writer > reader"."""
    topics: Mapping[str, Flow]
    partitions: Mapping[str, Flow]
    """Flows of partitions by "topic-number"."""
    timings: Sequence[Timing]
    lags: Mapping[str, float]
    """Records a second that groups fall behind by; below 0 they catch up."""
    bytes_in: float
    """Batches appended at the leaders of all brokers."""
    bytes_out: float
    batches_in: float
    requests: float
    """Answered, by all workers."""
    received: float
    """Bytes read from clients."""
    sent: float


def between(before: Snapshot, after: Snapshot) -> Rates:
    """What has moved from one snapshot to the other of the same family."""
    took_s = max(_LEAST_S, after.monotonic_s - before.monotonic_s)
    old = {process.title: process for process in before.processes}
    processes = {
        process.title: _process(old[process.title], process, took_s) for process in after.processes
    }
    written = {(ring.writer, ring.reader): ring.written_bytes for ring in before.rings}
    rings = {
        f"{ring.writer} > {ring.reader}": _grown(
            written.get((ring.writer, ring.reader), 0), ring.written_bytes, took_s
        )
        for ring in after.rings
    }
    partitions: dict[str, Flow] = {}
    topics: dict[str, Flow] = {}
    rows = {
        (topic.topic_id, row.number): row for topic in before.topics for row in topic.partitions
    }
    for topic in after.topics:
        flows = [
            _flow(rows.get((topic.topic_id, row.number)), row, took_s) for row in topic.partitions
        ]
        topics[topic.name] = _sum(flows)
        for row, flow in zip(topic.partitions, flows, strict=True):
            partitions[f"{topic.name}-{row.number}"] = flow
    timings = timings_between(before.latencies, after.latencies, took_s)
    lags = {group.name: group.lag for group in before.groups.groups}

    def rate(name: str, *roles: str) -> float:
        return sum(
            _grown(old[process.title].counted[name], process.counted[name], took_s)
            for role in roles
            for process in after.of_role(role)
        )

    return Rates(
        took_s,
        processes,
        rings,
        topics,
        partitions,
        timings,
        {
            group.name: (group.lag - lags[group.name]) / took_s
            for group in after.groups.groups
            if group.name in lags
        },
        rate("appended_bytes", IO_WORKER),
        rate("read_bytes", IO_WORKER),
        rate("batches_appended", IO_WORKER),
        sum(timing.count for timing in timings if not timing.is_stage),
        rate("received_bytes", NETWORK_WORKER, IO_WORKER),
        rate("sent_bytes", NETWORK_WORKER, IO_WORKER),
    )


def timings_between(
    before: Iterable[Latency], after: Iterable[Latency], took_s: float
) -> list[Timing]:
    """Timings by name, APIs first, of what has come since `before`, of which there may be none."""
    sums: dict[tuple[bool, str], tuple[float, list[int]]] = {}
    for sign, latencies in ((1, after), (-1, before)):
        for each in latencies:
            total, counts = sums.get((each.is_stage, each.name), (0.0, [0] * len(each.counts)))
            counts = [one + sign * other for one, other in zip(counts, each.counts, strict=True)]
            sums[each.is_stage, each.name] = total + sign * each.sum_s, counts
    found = []
    for (is_stage, name), (total_s, counts) in sorted(sums.items()):
        counts = [max(0, count) for count in counts]
        many = sum(counts)
        if many:
            found.append(
                Timing(
                    name,
                    is_stage,
                    many / took_s,
                    max(0.0, total_s) / many,
                    quantile(counts, 0.5),
                    quantile(counts, 0.99),
                    2.0 ** max(number for number, count in enumerate(counts) if count) / 1e6,
                )
            )
    return found


def quantile(counts: Sequence[int], share: float) -> float:
    """Seconds that this share of what was counted took at most; bucket n of `counts` is below 2**n
    microseconds, and within a bucket it is taken for spread evenly."""
    left = share * sum(counts)
    for number, count in enumerate(counts):
        if count and left <= count:
            low = 2.0 ** (number - 1) if number else 0.0
            return (low + (2.0**number - low) * left / count) / 1e6
        left -= count
    return 0.0


def _process(before: Process, after: Process, took_s: float) -> ProcessRates:
    share = None
    if before.pid == after.pid and before.usage is not None and after.usage is not None:
        share = max(0.0, after.usage.cpu_s - before.usage.cpu_s) / took_s
    names = ("turns", "claims_refused")
    turns, stalls = (
        _grown(before.counted.get(name, 0), after.counted.get(name, 0), took_s) for name in names
    )
    return ProcessRates(share, turns, stalls)


def _flow(before: Partition | None, after: Partition, took_s: float) -> Flow:
    if before is None:  # it is new: all that it has has come since
        return Flow(
            (after.end_offset or 0) / took_s,
            None if after.size_bytes is None else after.size_bytes / took_s,
            (after.read_bytes or 0) / took_s,
        )
    bytes_in = None
    if (
        before.size_bytes is not None
        and after.size_bytes is not None
        and after.size_bytes >= before.size_bytes
        and (after.segments or 0) >= (before.segments or 0)
    ):
        bytes_in = (after.size_bytes - before.size_bytes) / took_s
    return Flow(
        _grown(before.end_offset, after.end_offset, took_s),
        bytes_in,
        _grown(before.read_bytes, after.read_bytes, took_s),
    )


def _sum(flows: Sequence[Flow]) -> Flow:
    known = [flow.bytes_in for flow in flows if flow.bytes_in is not None]
    return Flow(
        sum(flow.records_in for flow in flows),
        sum(known) if known else None,
        sum(flow.bytes_out for flow in flows),
    )


def _grown(before: int | None, after: int | None, took_s: float) -> float:
    """A counter by the second; one that began anew has not moved."""
    if before is None or after is None:
        return 0.0
    return max(0, after - before) / took_s
