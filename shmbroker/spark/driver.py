"""The driver's part of a read: positions to offsets, and ranges of offsets to planned tasks.

    topics      what the strategy names, and its partitions
    resolve     starting and ending options to offsets
    plan_tasks  ranges to pieces of the leaders' files, or where these can't be reached, to offsets
                for the tasks to fetch

Rules:

* Nothing at or beyond the high watermark (with read_committed: the last stable offset) is read:
  ends are resolved first, then planned, and a plan is frozen.
* What is asked for and no longer there is told by its exact range: a DataLossFault unless
  failOnDataLoss is false.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shmbroker import clock
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import uuid_text
from shmbroker.spark.aborted import AbortedTransaction
from shmbroker.spark.broker_client import BrokerClient, PartitionFiles, Topic
from shmbroker.spark.faults import NoFilesFault
from shmbroker.spark.offsets import Ends, TopicPartition, within_limit
from shmbroker.spark.options import EARLIEST, LATEST, Options, Position
from shmbroker.spark.planning import Piece, Range, ends_within_bytes, plan
from shmbroker.spark.pushdown import OFFSET_MAX
from shmbroker.spark.reading import AUTO, FETCH, FILES, Reading, warn_once
from shmbroker.spark.segment_files import GoneFault, SegmentFiles, aborted_transactions

PLAN_TRIES = 3
"""Retention may delete a segment between the list and the look at it; then a new list is asked."""

T = TypeVar("T")


class Plan(NamedTuple):
    """Tasks, each of pieces, and the way by which they are meant to be read: files or fetch."""

    tasks: list[list[Piece]]
    way: str


def connect(options: Options) -> BrokerClient:
    """A client for the brokers of these options."""
    return BrokerClient(options.consumer, options.data_directory)


def reading(options: Options) -> Reading:
    """What tasks need of these options."""
    return Reading(options.consumer, options.read_way, options.fails_on_data_loss)


def find_topics(client: BrokerClient, options: Options, is_new: bool = True) -> dict[str, Topic]:
    """The topics that the query reads; with `is_new` those it names must be there."""
    topics = client.topics(options.names)
    missing = sorted(set(options.names or ()) - set(topics))
    if missing and is_new:
        raise ConfigFault(f"there is no topic {', '.join(missing)}")
    return topics


def wanted_partitions(options: Options, topics: Mapping[str, Topic]) -> list[TopicPartition]:
    """The partitions that the query reads."""
    wanted = [
        (name, partition)
        for name, topic in sorted(topics.items())
        for partition in topic.leaders
        if options.wants(name, partition)
    ]
    for name, partitions in (options.assigned or {}).items():
        missing = set(partitions) - set(topics[name].leaders) if name in topics else set()
        if missing:
            raise ConfigFault(f"topic {name} has no partition {min(missing)}")
    return wanted


def resolve(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    wanted: Sequence[TopicPartition],
    is_start: bool,
) -> Ends:
    """Each partition's offset by the starting or ending option; EARLIEST and LATEST remain."""
    position = options.start if is_start else options.end
    named = _each_of(options, topics, wanted, position, is_start)
    if not position.is_timestamp:
        return named
    sentinels = {tp: at for tp, at in named.items() if at < 0}  # not named, and that may be
    found = client.offsets(topics, {tp: at for tp, at in named.items() if at >= 0})
    late = [topic_partition for topic_partition, offset in found.items() if offset < 0]
    if late and is_start and not options.is_lenient_timestamp:
        raise ConfigFault(
            "No offset matched from request of "
            + ", ".join(
                f"topic-partition {text_of(tp)} and timestamp {named[tp]}" for tp in sorted(late)
            )
            + "; startingOffsetsByTimestampStrategy=latest starts at the end there"
        )
    return found | dict.fromkeys(late, LATEST) | sentinels


def _each_of(
    options: Options,
    topics: Mapping[str, Topic],
    wanted: Sequence[TopicPartition],
    position: Position,
    is_start: bool,
) -> Ends:
    """What the option says of each partition, offset or timestamp."""
    if not position.each:
        assert position.everywhere is not None
        return dict.fromkeys(wanted, position.everywhere)
    for name, topic_id in position.topic_ids.items():
        if name in topics and uuid_text(topics[name].topic_id) != topic_id:
            lose(options, f"topic {name} was deleted and made again since these offsets were kept")
    named = {(t, p): n for t, partitions in position.each.items() for p, n in partitions.items()}
    unknown = sorted(set(named) - set(wanted))
    missing = sorted(set(wanted) - set(named))
    if unknown or (missing and position.everywhere is None):
        kind = "timestamp based " if position.is_timestamp else ""
        cure = "name all of them" if position.is_timestamp else "use -1 for latest, -2 for earliest"
        raise ConfigFault(
            f"Partitions specified for Kafka {kind}{'start' if is_start else 'end'} offsets don't"
            f" match what are assigned: {cure}; missing:"
            f" {', '.join(map(text_of, missing)) or 'none'}; not read:"
            f" {', '.join(map(text_of, unknown)) or 'none'}"
            + ("; partialOffsets=true reads all of those that are missing" if missing else "")
        )
    assert position.everywhere is not None or not missing
    return dict.fromkeys(missing, position.everywhere or 0) | named


def find_ends(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends
) -> Ends:
    """The ends of these partitions; asked again for a while if one is before where it was read to,
    as may be just after a leader died. The caller judges what remains."""
    return _again(
        options,
        lambda: client.offsets(topics, dict.fromkeys(starts, LATEST)),
        lambda ends: all(ends[tp] >= start for tp, start in starts.items()),
    )


def plan_tasks(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Plan:
    """Tasks for these ranges. Files that vanish meanwhile are listed once more."""
    for _ in range(PLAN_TRIES - 1):
        try:
            return _plan(client, options, topics, starts, ends)
        except GoneFault:
            continue
        except NoFilesFault:
            break
    try:
        return _plan(client, options, topics, starts, ends)
    except (GoneFault, NoFilesFault) as fault:
        return _plan(client, _fetching(options, fault), topics, starts, ends)


def _plan(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Plan:
    asked = [tp for tp in sorted(ends) if starts[tp] != ends[tp]]
    held = {tp: (starts[tp], ends[tp] if ends[tp] >= 0 else OFFSET_MAX) for tp in asked}
    found = _again(
        options,
        lambda: _partitions(client, options, topics, asked, held),
        lambda found: all(_watermark(options, found[tp]) >= ends[tp] for tp in asked),
    )
    ranges = [_range(options, found[tp], starts[tp], ends[tp]) for tp in asked]
    with SegmentFiles() as looked_at:
        tasks = plan(
            ranges,
            looked_at.index_of,
            looked_at.header_at,
            os.cpu_count() or 1,
            options.tasks_min,
            options.records_per_task_max,
        )
    has_files = any(piece.path for task in tasks for piece in task)
    return Plan(tasks, FILES if has_files else FETCH)


def _fetching(options: Options, fault: Fault) -> Options:
    """The same options, with the files given up for this reason; or the reason is raised."""
    if options.read_way != AUTO:
        raise fault
    warn_once(f"records are fetched from the broker, not read from its files: {fault}")
    return options._replace(read_way=FETCH)


def way_of(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], partition: TopicPartition
) -> str:
    """By which way records of this partition will be read, before anything is planned."""
    if options.read_way == FETCH:
        return FETCH
    try:
        segments = client.files(topics, [partition])[partition].segments
    except NoFilesFault:
        return FETCH
    return FILES if all(os.access(each.path, os.R_OK) for each in segments[-1:]) else FETCH


def first_there(
    client: BrokerClient, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Ends:
    """Starts from which on there is something to read, for limits to count from: else a query
    that retention has overtaken would be told of its loss limit by limit, and get on as slowly."""
    firsts = client.offsets(topics, dict.fromkeys(starts, EARLIEST))
    return {tp: max(start, min(firsts[tp], ends[tp])) for tp, start in starts.items()}


def within_limits(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Ends:
    """Ends that leave no more than the query wants to read with one trigger."""
    if options.offsets_per_trigger_max is not None:
        ends = within_limit(starts, ends, options.offsets_per_trigger_max)
    if options.bytes_per_trigger_max is None:
        return ends
    asked = [tp for tp in sorted(ends) if starts[tp] < ends[tp]]
    found = _partitions(client, options, topics, asked)
    if not all(found[tp].segments for tp in asked):
        return _within_estimate(options.bytes_per_trigger_max, starts, ends, found)
    ranges = []
    for tp in asked:
        files = found[tp]
        ranges.append(Range(*tp, files.topic_id, starts[tp], ends[tp], files.segments))
    try:
        with SegmentFiles() as looked_at:
            limited = ends_within_bytes(
                ranges, options.bytes_per_trigger_max, looked_at.index_of, looked_at.batch_at
            )
    except (GoneFault, NoFilesFault) as fault:
        return within_limits(client, _fetching(options, fault), topics, starts, ends)
    return ends | dict(zip(asked, limited, strict=True))


def _within_estimate(
    bytes_max: int,
    starts: Ends,
    ends: Ends,
    found: Mapping[TopicPartition, PartitionFiles],
) -> Ends:
    """As many records of each partition as its log has in its share of the bytes, on average."""
    waiting = {
        tp: files.size
        * (ends[tp] - starts[tp])
        // max(1, files.high_watermark - files.log_start_offset)
        for tp, files in found.items()
    }
    total = sum(waiting.values())
    if total <= bytes_max:
        return ends
    return ends | {
        tp: starts[tp] + max(1, (ends[tp] - starts[tp]) * bytes_max // total) for tp in waiting
    }


def lose(options: Options, text: str) -> None:
    """Tell of records that are gone: a DataLossFault, or a warning if the query goes on without."""
    reading(options).lose(text)


def text_of(topic_partition: TopicPartition) -> str:
    """topic-0"""
    return f"{topic_partition[0]}-{topic_partition[1]}"


def _again(options: Options, ask: Callable[[], T], is_good: Callable[[T], bool]) -> T:
    """What is asked for, once it is good; the last answer if it never is."""
    for _ in range(options.end_tries - 1):
        answer = ask()
        if is_good(answer):
            return answer
        clock.sleep(options.end_retry_ms / 1000)
    return ask()


def _partitions(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    asked: Sequence[TopicPartition],
    held: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> dict[TopicPartition, PartitionFiles]:
    """Ends and files of these partitions; without the files, what the protocol tells of them. The
    files of the ranges `held` stay for as long as the query is to find them (`shmbroker.hold`)."""
    if not asked:
        return {}
    if options.read_way != FETCH:
        try:
            hold_ms = 0 if held is None else options.hold_ms
            return client.files(topics, asked, held, hold_ms)
        except NoFilesFault as fault:
            options = _fetching(options, fault)
    firsts = client.offsets(topics, dict.fromkeys(asked, EARLIEST))
    ends = client.offsets(topics, dict.fromkeys(asked, LATEST))
    sizes = client.sizes(topics, asked)
    return {
        tp: PartitionFiles(
            *tp, topics[tp[0]].topic_id, firsts[tp], ends[tp], ends[tp], (), sizes[tp]
        )
        for tp in asked
    }


def _watermark(options: Options, files: PartitionFiles) -> int:
    """The end of what the query may read."""
    if options.consumer.is_read_committed:
        return files.last_stable_offset
    return files.high_watermark


def _range(options: Options, files: PartitionFiles, start: int, end: int) -> Range:
    """What is to be read of a partition; tells of what is not there any more."""
    name = text_of((files.topic, files.partition))
    first, watermark = files.log_start_offset, _watermark(options, files)
    start = {EARLIEST: first, LATEST: watermark}.get(start, start)
    end = {EARLIEST: first, LATEST: watermark}.get(end, end)
    if start > end:
        raise ConfigFault(
            f"The resolved start offset {start} is greater than the resolved end offset {end} for"
            f" topic {files.topic} partition {files.partition}"
        )
    if end > watermark:
        lose(
            options,
            f"offsets {max(start, watermark)} to {end - 1} of {name} are not there: it ends at"
            f" {watermark}",
        )
        start, end = min(start, watermark), watermark
    if start < first:
        last = min(end, first) - 1
        if last >= start:
            lose(options, f"offsets {start} to {last} of {name} were deleted by retention")
        start, end = first, max(end, first)
    aborted: tuple[AbortedTransaction, ...] = ()
    if options.consumer.is_read_committed:
        reaching = [segment for segment in files.segments if segment.end_offset > start]
        aborted = aborted_transactions(reaching, start, end)
    size = files.size * (end - start) // max(1, files.high_watermark - first)
    topic = (files.topic, files.partition, files.topic_id)
    return Range(*topic, start, end, files.segments, size, aborted)
