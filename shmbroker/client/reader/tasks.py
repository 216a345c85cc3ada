"""Ranges of offsets to what tasks read: pieces of the leaders' files, or offsets to fetch.

Rules:

* Nothing at or beyond the high watermark (with read_committed: the last stable offset) is read:
  ends are resolved first, then planned, and a plan is frozen.
* What is asked for and no longer there is told by its exact range: a DataLossFault, unless the
  reader goes on without it (`Reading.lose`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shmbroker import clock
from shmbroker.client.cluster import Topic
from shmbroker.client.faults import NoFilesFault
from shmbroker.client.reader.aborted import AbortedRange
from shmbroker.client.reader.asking import (
    EARLIEST,
    HOLD_MS,
    LATEST,
    OFFSET_MAX,
    Ends,
    partition_text,
)
from shmbroker.client.reader.broker_client import BrokerClient, PartitionFiles
from shmbroker.client.reader.planning import Piece, Range, TaskBegin, plan, plan_again
from shmbroker.client.reader.reading import AUTO, FETCH, FILES, Reading, warn_once
from shmbroker.client.reader.segment_files import GoneFault, SegmentFiles, aborted_transactions
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import TopicPartition

PLAN_TRIES = 3
"""Retention may delete a segment between the list and the look at it; then a new list is asked."""

T = TypeVar("T")


class Terms(NamedTuple):
    """How a read is planned, and read."""

    reading: Reading
    hold_ms: int = HOLD_MS
    """How long the files of a plan stay, though retention drops them."""
    tasks_min: int = 1
    records_per_task_max: int | None = None
    end_tries: int = 3
    end_retry_ms: int = 1000
    """How often, and after which rests, an end is asked for that is not where it was."""
    begins: Sequence[TaskBegin] | None = None
    """Where the tasks of an earlier plan of the same ranges began, which are to be the same; None:
    as fits."""


class ReadPlan(NamedTuple):
    """Tasks, each of pieces, and the way by which they are meant to be read: files or fetch."""

    tasks: list[list[Piece]]
    way: str


def find_ends(
    client: BrokerClient, terms: Terms, topics: Mapping[str, Topic], starts: Ends
) -> Ends:
    """The ends of these partitions; asked again for a while if one is before where it was read to,
    as may be just after a leader died. The caller judges what remains."""
    return _again(
        terms,
        lambda: client.offsets(topics, dict.fromkeys(starts, LATEST)),
        lambda ends: all(ends[tp] >= start for tp, start in starts.items()),
    )


def plan_tasks(
    client: BrokerClient, terms: Terms, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> ReadPlan:
    """Tasks for these ranges. Files that vanish meanwhile are listed once more."""
    for _ in range(PLAN_TRIES - 1):
        try:
            return _plan(client, terms, topics, starts, ends)
        except GoneFault:
            continue
        except NoFilesFault:
            break
    try:
        return _plan(client, terms, topics, starts, ends)
    except (GoneFault, NoFilesFault) as fault:
        return _plan(client, without_files(terms, fault), topics, starts, ends)


def _plan(
    client: BrokerClient, terms: Terms, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> ReadPlan:
    asked = [tp for tp in sorted(ends) if starts[tp] != ends[tp]]
    held = {tp: (starts[tp], ends[tp] if ends[tp] >= 0 else OFFSET_MAX) for tp in asked}
    found = _again(
        terms,
        lambda: partition_files(client, terms, topics, asked, held),
        lambda found: all(_watermark(terms, found[tp]) >= ends[tp] for tp in asked),
    )
    ranges = [_range(terms, found[tp], starts[tp], ends[tp]) for tp in asked]
    with SegmentFiles() as looked_at:
        look = (looked_at.index_of, looked_at.header_at)
        if terms.begins is not None:
            tasks = plan_again(ranges, *look, terms.begins)
        else:
            cores = os.cpu_count() or 1
            tasks = plan(ranges, *look, cores, terms.tasks_min, terms.records_per_task_max)
    has_files = any(piece.path for task in tasks for piece in task)
    return ReadPlan(tasks, FILES if has_files else FETCH)


def without_files(terms: Terms, fault: Fault) -> Terms:
    """Give the files up for this reason: the terms without them, or the reason is raised."""
    if terms.reading.way != AUTO:
        raise fault
    warn_once(f"records are fetched from the broker, not read from its files: {fault}")
    return terms._replace(reading=terms.reading._replace(way=FETCH))


def way_of(
    client: BrokerClient, terms: Terms, topics: Mapping[str, Topic], partition: TopicPartition
) -> str:
    """The way by which records of this partition will be read, before anything is planned."""
    if terms.reading.way == FETCH:
        return FETCH
    try:
        segments = client.files(topics, [partition])[partition].segments
    except NoFilesFault:
        return FETCH
    return FILES if all(os.access(each.path, os.R_OK) for each in segments[-1:]) else FETCH


def partition_files(
    client: BrokerClient,
    terms: Terms,
    topics: Mapping[str, Topic],
    asked: Sequence[TopicPartition],
    held: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> dict[TopicPartition, PartitionFiles]:
    """Ends and files of these partitions; without the files, what the protocol tells of them. The
    files of the ranges `held` stay for as long as the query is to find them (`shmbroker.hold`)."""
    if not asked:
        return {}
    if terms.reading.way != FETCH:
        try:
            hold_ms = 0 if held is None else terms.hold_ms
            return client.files(topics, asked, held, hold_ms)
        except NoFilesFault as fault:
            terms = without_files(terms, fault)
    firsts = client.offsets(topics, dict.fromkeys(asked, EARLIEST))
    ends = client.offsets(topics, dict.fromkeys(asked, LATEST))
    sizes = client.sizes(topics, asked)
    return {
        tp: PartitionFiles(
            *tp, topics[tp[0]].topic_id, firsts[tp], ends[tp], ends[tp], (), ends[tp], sizes[tp]
        )
        for tp in asked
    }


def _again(terms: Terms, ask: Callable[[], T], is_good: Callable[[T], bool]) -> T:
    """What is asked for, once it is good; the last answer if it never is."""
    for _ in range(terms.end_tries - 1):
        answer = ask()
        if is_good(answer):
            return answer
        clock.sleep(terms.end_retry_ms / 1000)
    return ask()


def _watermark(terms: Terms, files: PartitionFiles) -> int:
    """The end of what the query may read."""
    if terms.reading.consumer.is_read_committed:
        return files.last_stable_offset
    return files.high_watermark


def _range(terms: Terms, files: PartitionFiles, start: int, end: int) -> Range:
    """What is to be read of a partition; tells of what is not there any more."""
    name = partition_text((files.topic, files.partition))
    first, watermark = files.log_start_offset, _watermark(terms, files)
    start = {EARLIEST: first, LATEST: watermark}.get(start, start)
    end = {EARLIEST: first, LATEST: watermark}.get(end, end)
    if start > end:
        raise ConfigFault(
            f"The resolved start offset {start} is greater than the resolved end offset {end} for"
            f" topic {files.topic} partition {files.partition}"
        )
    if end > watermark:
        terms.reading.lose(
            f"offsets {max(start, watermark)} to {end - 1} of {name} are not there: it ends at"
            f" {watermark}",
        )
        start, end = min(start, watermark), watermark
    if start < first:
        last = min(end, first) - 1
        if last >= start:
            terms.reading.lose(f"offsets {start} to {last} of {name} were deleted by retention")
        start, end = first, max(end, first)
    aborted: tuple[AbortedRange, ...] = ()
    if terms.reading.consumer.is_read_committed:
        reaching = [segment for segment in files.segments if segment.end_offset > start]
        aborted = aborted_transactions(reaching, start, end)
    size = files.size * (end - start) // max(1, files.high_watermark - first)
    topic = (files.topic, files.partition, files.topic_id)
    return Range(*topic, start, end, files.segments, files.files_start_offset, size, aborted)
