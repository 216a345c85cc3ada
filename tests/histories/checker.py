"""What a history of clients may not hold, by the names that published analyses give it.

A history is what clients saw: `sends` that were acknowledged or not, `polls` of group members,
`commits`, `watermarks` that were asked for, and the `final` content of each partition, read when
everything is well again. Values are unique: (producer, number), the numbers of a producer rise.

    lost-write            acknowledged, and not in the log
    inconsistent-offset   acknowledged or polled at an offset that holds something else
    duplicate             twice in the log
    reordering            the numbers of a producer don't rise in a partition
    read-lost             polled, and not in the log (a read of what was not safe yet)
    failed-write-read     told to have failed for good, and in the log (G1a)
    nonmonotonic-poll     a member is given an offset again, or an earlier one, while it keeps its
                          partition
    poll-skip             a member is not given an offset that the log holds, while it keeps its
                          partition
    commit-lost           a member begins before an offset that the group has committed
    watermark-back        a high watermark was less than before
    unseen                acknowledged, and never polled by the group, though that has read it all
    crash                 a process of the family ended by itself

Source: the checkers of Jepsen's analyses of Redpanda and Bufstream. Write cycles (G0) are normal in
Kafka's model; aborted reads need transactions.
"""

from collections import defaultdict
from dataclasses import dataclass, field

Value = tuple[int, int]
"""Producer and number."""


@dataclass
class History:
    """What was seen. Times are seconds of one clock; offsets by partition."""

    acked: list[tuple[Value, int, int | None]] = field(default_factory=list)
    """value, partition, offset (None: as a duplicate of one that nobody knows the offset of)"""
    failed: list[Value] = field(default_factory=list)
    """For good: an error that says that nothing was written."""
    polls: list[list[tuple[int, int, Value]]] = field(default_factory=list)
    """What a member was given while it kept a partition: (partition, offset, value), in order."""
    commits: list[tuple[float, int, int]] = field(default_factory=list)
    """acknowledged at, partition, offset"""
    starts: list[tuple[float, int, int]] = field(default_factory=list)
    """assigned at, partition, first offset that was polled then"""
    watermarks: list[tuple[int, int]] = field(default_factory=list)
    """partition, high watermark; those of a partition in the order in which they were asked"""
    final: dict[int, dict[int, Value]] = field(default_factory=dict)
    """partition to offset to value"""
    crashes: list[str] = field(default_factory=list)
    """What the family's log says of processes that ended, but those that were killed."""


def anomalies(history: History) -> dict[str, list[str]]:
    """What is wrong with it, by name; empty if nothing is."""
    found: dict[str, list[str]] = defaultdict(list)
    if history.crashes:
        found["crash"] = history.crashes
    places: dict[Value, list[tuple[int, int]]] = defaultdict(list)
    for partition, content in history.final.items():
        newest: dict[int, int] = {}
        for offset, value in sorted(content.items()):
            places[value].append((partition, offset))
            producer, number = value
            if number <= newest.get(producer, -1):
                found["reordering"].append(f"{value} at {partition}:{offset}")
            newest[producer] = max(number, newest.get(producer, -1))
    for value, where in places.items():
        if len(where) > 1:
            found["duplicate"].append(f"{value} at {where}")
    for value, partition, offset in history.acked:
        if value not in places:
            found["lost-write"].append(f"{value} at {partition}:{offset}")
        elif offset is not None and (partition, offset) not in places[value]:
            found["inconsistent-offset"].append(
                f"{value} acknowledged at {partition}:{offset}, found at {places[value]}"
            )
    for value in history.failed:
        if value in places:
            found["failed-write-read"].append(f"{value} at {places[value]}")
    seen = set()
    for session in history.polls:
        _check_session(session, history.final, places, found)
        seen.update(value for _, _, value in session)
    for value, partition, offset in history.acked:
        if value in places and value not in seen:
            found["unseen"].append(f"{value} at {partition}:{offset}")
    commits = sorted(history.commits)
    for assigned_at, partition, offset in history.starts:
        safe = max(
            (to for at, of, to in commits if of == partition and at < assigned_at), default=0
        )
        if offset < safe:
            found["commit-lost"].append(f"partition {partition} begun at {offset}, not {safe}")
    highest: dict[int, int] = {}
    for partition, watermark in history.watermarks:
        if watermark < highest.get(partition, 0):
            found["watermark-back"].append(
                f"partition {partition} from {highest[partition]} to {watermark}"
            )
        highest[partition] = max(watermark, highest.get(partition, 0))
    return dict(found)


def _check_session(
    session: list[tuple[int, int, Value]],
    final: dict[int, dict[int, Value]],
    places: dict[Value, list[tuple[int, int]]],
    found: dict[str, list[str]],
) -> None:
    last: dict[int, int] = {}
    for partition, offset, value in session:
        if value not in places:
            found["read-lost"].append(f"{value} at {partition}:{offset}")
        elif (partition, offset) not in places[value]:
            found["inconsistent-offset"].append(
                f"{value} polled at {partition}:{offset}, found at {places[value]}"
            )
        before = last.get(partition)
        if before is not None and offset <= before:
            found["nonmonotonic-poll"].append(f"{partition}:{offset} after {before}")
        elif before is not None:
            skipped = [at for at in range(before + 1, offset) if at in final.get(partition, {})]
            if skipped:
                found["poll-skip"].append(f"partition {partition} offsets {skipped[:3]}")
        last[partition] = offset
