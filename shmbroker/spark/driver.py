"""The driver's part of a read by Spark's options: what to read, from where, and how much at once.

    topics         what the strategy names, and its partitions
    resolve        starting and ending options to offsets
    within_limits  as much as one trigger is to read

How ranges become tasks: `client.reader.tasks`. What is asked for and no longer there is a
DataLossFault unless failOnDataLoss is false.
"""

from collections.abc import Mapping, Sequence

from shmbroker.client.cluster import Topic
from shmbroker.client.faults import NoFilesFault, told_in
from shmbroker.client.reader import tasks
from shmbroker.client.reader.asking import EARLIEST, LATEST, Ends, partition_text
from shmbroker.client.reader.broker_client import BrokerClient, PartitionFiles
from shmbroker.client.reader.planning import Range, TaskBegin, ends_within_bytes
from shmbroker.client.reader.segment_files import GoneFault, SegmentFiles
from shmbroker.client.reader.tasks import ReadPlan, Terms, partition_files, without_files
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition, uuid_text
from shmbroker.spark.offsets import within_limit
from shmbroker.spark.options import Options, Position
from shmbroker.spark.reading import WORDS, reading_of


def connect(options: Options) -> BrokerClient:
    """A client for the brokers of these options."""
    return BrokerClient(options.consumer, options.data_directory)


def terms(options: Options) -> Terms:
    """How these options want a read to be planned."""
    return Terms(
        reading_of(options),
        options.hold_ms,
        options.tasks_min,
        options.records_per_task_max,
        options.end_tries,
        options.end_retry_ms,
    )


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
        for partition in topic.partitions
        if options.wants(name, partition)
    ]
    for name, partitions in (options.assigned or {}).items():
        missing = set(partitions) - set(topics[name].partitions) if name in topics else set()
        if missing:
            raise ConfigFault(f"topic {name} has no partition {min(missing)}")
    return wanted


@told_in(WORDS)
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
                f"topic-partition {partition_text(tp)} and timestamp {named[tp]}"
                for tp in sorted(late)
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
            f" {', '.join(map(partition_text, missing)) or 'none'}; not read:"
            f" {', '.join(map(partition_text, unknown)) or 'none'}"
            + ("; partialOffsets=true reads all of those that are missing" if missing else "")
        )
    assert position.everywhere is not None or not missing
    return dict.fromkeys(missing, position.everywhere or 0) | named


def first_there(
    client: BrokerClient, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Ends:
    """Starts from which on there is something to read, for limits to count from: else a query
    that retention has overtaken would be told of its loss limit by limit, and get on as slowly."""
    firsts = client.offsets(topics, dict.fromkeys(starts, EARLIEST))
    return {tp: max(start, min(firsts[tp], ends[tp])) for tp, start in starts.items()}


def find_ends(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends
) -> Ends:
    """The ends of these partitions (`tasks.find_ends`)."""
    return tasks.find_ends(client, terms(options), topics, starts)


@told_in(WORDS)
def plan_tasks(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    starts: Ends,
    ends: Ends,
    begins: Sequence[TaskBegin] | None = None,
) -> ReadPlan:
    """Tasks for these ranges (`tasks.plan_tasks`)."""
    asked = terms(options)._replace(begins=begins)
    return tasks.plan_tasks(client, asked, topics, starts, ends)


@told_in(WORDS)
def way_of(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], partition: TopicPartition
) -> str:
    """The way by which records of this partition will be read, before anything is planned."""
    return tasks.way_of(client, terms(options), topics, partition)


@told_in(WORDS)
def within_limits(
    client: BrokerClient, options: Options, topics: Mapping[str, Topic], starts: Ends, ends: Ends
) -> Ends:
    """Ends that leave no more than the query wants to read with one trigger."""
    if options.offsets_per_trigger_max is not None:
        ends = within_limit(starts, ends, options.offsets_per_trigger_max)
    if options.bytes_per_trigger_max is None:
        return ends
    asked = [tp for tp in sorted(ends) if starts[tp] < ends[tp]]
    found = partition_files(client, terms(options), topics, asked)
    if any(starts[tp] < found[tp].files_start_offset for tp in asked):
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
        way = without_files(terms(options), fault).reading.way
        return within_limits(client, options._replace(read_way=way), topics, starts, ends)
    return ends | dict(zip(asked, limited, strict=True))


def _within_estimate(
    bytes_max: int,
    starts: Ends,
    ends: Ends,
    found: Mapping[TopicPartition, PartitionFiles],
) -> Ends:
    """The ends up to which each partition gives as many records as its log has in its share of the
    bytes, on average."""
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


@told_in(WORDS)
def lose(options: Options, text: str) -> None:
    """Tell of records that are gone: a DataLossFault, or a warning if the query goes on without."""
    reading_of(options).lose(text)
