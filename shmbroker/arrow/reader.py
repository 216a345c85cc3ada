"""A topic, or a range of it, as Arrow data: planned and read here, by `client.reader`.

On the broker's host the log files are mapped and decoded in place, elsewhere the records are
fetched, and decoded the same (`client.reader.reading`). Rules:

* Where the read ends is fixed before it begins, at the high watermark at most (read_committed: at
  the last stable offset). Rows come partition by partition, in the order of their offsets.
* What is asked for and no longer there is a DataLossFault unless `fails_on_data_loss` is false.
* A bad argument is a ConfigFault; a cluster that can't be asked a ClusterFault. What a fault
  advises is told with the arguments of `read`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from shmbroker.client import faults
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Topic
from shmbroker.client.nearest import nearest
from shmbroker.client.profiles import entered_by
from shmbroker.client.reader import decode
from shmbroker.client.reader.asking import EARLIEST, LATEST, OFFSET_MAX, Consumer, Ends
from shmbroker.client.reader.broker_client import BrokerClient
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import AUTO, FETCH, FILES, Reading
from shmbroker.client.reader.reading import read as read_piece
from shmbroker.client.reader.tasks import Terms, plan_tasks
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition

COLUMNS = tuple(decode.COLUMNS)
"""All columns: Spark's Kafka schema. `headers` are read only if they are named."""

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")

CLIENT_ID = "shmbroker-arrow"
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WORDS = {
    faults.ACCEPT_LOSS: " (read with fails_on_data_loss=False to go on without them)",
    faults.RUN_AS_OWNER: faults.RUN_AS_OWNER,
    faults.NAME_DIRECTORY: (
        "; where its data directory is seen under another name here, give it as data_directory"
    ),
    faults.GIVE_DIRECTORY: "; give it as data_directory",
    faults.CAN_FETCH: ": way='auto' fetches them",
}

Where = str | int | datetime | Mapping[int, "int | str | datetime"]
"""`earliest`, `latest`, an offset, a time, or one of these for some of the partitions."""


def read(
    topic: str,
    *,
    bootstrap_servers: str | None = None,
    profile: str | None = None,
    security: Mapping[str, str] | None = None,
    partitions: Iterable[int] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    views: bool = False,
    isolation_level: str = "read_uncommitted",
    way: str = AUTO,
    data_directory: str | None = None,
    fails_on_data_loss: bool = True,
    timeout_s: float = 60.0,
) -> pa.Table:
    """The records of `topic` as a table.

    `partitions`: those to read, None: all. `start` (inclusive) and `end` (exclusive): `earliest`,
    `latest`, an offset, or a datetime (the first record that is not older; without a zone it is
    local time), for all partitions or by partition: {0: 17}; those not named are read from their
    first, to their last record.

    `columns`: of key, value, topic, partition, offset, timestamp, timestampType, headers, in this
    order; None: all but the headers. With `views` keys and values are of type binary_view and
    point into the mapped log where they are not compressed: next to nothing is copied, and the
    mapped file lives as long as the table.

    `profile`: TLS, user and password, and bootstrap servers where none are given, by a name of
    `client.profiles`; `security`: Kafka's settings of both, above it.

    `isolation_level`: or read_committed. `way`: files, fetch, or auto, which is files where they
    can be opened; `data_directory` where the broker's directory has another name here.
    `timeout_s`: how long is asked for what is needed; a single answer is waited for 30 s at most.
    """
    return scan(
        topic,
        bootstrap_servers=bootstrap_servers,
        profile=profile,
        security=security,
        partitions=partitions,
        start=start,
        end=end,
        columns=columns,
        views=views,
        isolation_level=isolation_level,
        way=way,
        data_directory=data_directory,
        fails_on_data_loss=fails_on_data_loss,
        timeout_s=timeout_s,
    ).read_all()


def scan(
    topic: str,
    *,
    bootstrap_servers: str | None = None,
    profile: str | None = None,
    security: Mapping[str, str] | None = None,
    partitions: Iterable[int] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    views: bool = False,
    isolation_level: str = "read_uncommitted",
    way: str = AUTO,
    data_directory: str | None = None,
    fails_on_data_loss: bool = True,
    timeout_s: float = 60.0,
) -> pa.RecordBatchReader:
    """A reader of what `read` gives, in record batches of up to 32,768 rows, decoded as they are
    taken.

    What is read is planned now; faults of reading come with the batches.
    """
    if isinstance(columns, str):
        raise ConfigFault(f"columns is a list of names: [{columns!r}]")
    chosen = tuple(DEFAULT_COLUMNS if columns is None else columns)
    _check_columns(chosen)
    if not isinstance(topic, str):
        raise ConfigFault(f"topic is text, not {topic!r}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ConfigFault(f"timeout_s is a number of seconds above 0, not {timeout_s!r}")
    topic = topic.strip()
    if not topic or "," in topic:
        raise ConfigFault(f"{topic!r} is no name of one topic")
    servers, entering = entered_by(bootstrap_servers, profile, security)
    parse_addresses(servers)
    level = _word("isolation_level", isolation_level, _ISOLATION_LEVELS)
    consumer = Consumer(
        servers,
        CLIENT_ID,
        timeout_s,
        is_read_committed=level == _ISOLATION_LEVELS[1],
        security=entering,
    )
    reading = Reading(consumer, _word("way", way, (AUTO, FILES, FETCH)), fails_on_data_loss)
    schema = decode.arrow_schema(chosen, views)
    with faults.told_in(WORDS), BrokerClient(consumer, data_directory) as client:
        pieces = _plan(client, reading, topic, partitions, start, end)
    batches = _batches(pieces, reading, chosen, views)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _word(name: str, text: object, words: Sequence[str]) -> str:
    """One of these words, in any case."""
    chosen = text.strip().lower() if isinstance(text, str) else text
    if not isinstance(chosen, str) or chosen not in words:
        raise ConfigFault(f"{name} is one of {', '.join(words)}, not {text!r}")
    return chosen


def _check_columns(columns: Sequence[str]) -> None:
    for name in columns:
        if name not in COLUMNS:
            raise ConfigFault(
                f"there is no column {name!r}{nearest(name, COLUMNS) or ': ' + ', '.join(COLUMNS)}"
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigFault("name each column once, and one at least")


def _plan(
    client: BrokerClient,
    reading: Reading,
    topic: str,
    partitions: Iterable[int] | None,
    start: Where,
    end: Where,
) -> list[Piece]:
    """The pieces to read, in order."""
    given = None if partitions is None else set(partitions)
    for one in given or ():
        if not isinstance(one, int):
            raise ConfigFault(f"partitions are numbers, not {one!r}")
    topics = client.topics([topic])
    if topic not in topics:
        raise ConfigFault(f"there is no topic {topic}")
    there = topics[topic].partitions
    for one in sorted(given or ()):
        if one not in there:
            raise ConfigFault(f"topic {topic} has no partition {one}")
    wanted = sorted(there if given is None else given)
    starts = _resolve(client, topics, topic, wanted, "start", start)
    ends = _resolve(client, topics, topic, wanted, "end", end)
    tasks = plan_tasks(client, Terms(reading), topics, starts, ends).tasks
    return [piece for task in tasks for piece in task]


def _resolve(
    client: BrokerClient,
    topics: Mapping[str, Topic],
    topic: str,
    partitions: Sequence[int],
    name: str,
    where: Where,
) -> Ends:
    """Each partition's offset to start or end at; EARLIEST and LATEST remain."""
    default = EARLIEST if name == "start" else LATEST
    if isinstance(where, Mapping):
        for one in where:
            if one not in partitions:
                raise ConfigFault(f"topic {topic} has no partition {one!r}, or it is not read")
        each = {p: where.get(p, default) for p in partitions}
    else:
        each = dict.fromkeys(partitions, where)
    offsets: Ends = {}
    times: dict[TopicPartition, int] = {}
    for partition, at in each.items():
        group = times if isinstance(at, datetime) else offsets
        group[topic, partition] = _number(name, at)
    for topic_partition, offset in client.offsets(topics, times).items():
        offsets[topic_partition] = LATEST if offset < 0 else offset
    return offsets


def _number(name: str, where: object) -> int:
    """An offset, a sentinel, or milliseconds."""
    if isinstance(where, datetime):
        # up to the next whole one: a record of the ms that has begun may be older
        return max(0, -((_EPOCH - where.astimezone(UTC)) // timedelta(milliseconds=1)))
    sentinels: dict[object, int] = {"earliest": EARLIEST, "latest": LATEST}
    found = sentinels.get(where) if isinstance(where, str) else where
    if not isinstance(found, int) or isinstance(found, bool) or found < EARLIEST:
        raise ConfigFault(f"{name} is 'earliest', 'latest', an offset or a datetime, not {where!r}")
    if found > OFFSET_MAX:
        raise ConfigFault(f"{name} is an offset of at most {OFFSET_MAX}, not {where!r}")
    return found


def _batches(
    pieces: list[Piece], reading: Reading, columns: tuple[str, ...], has_views: bool
) -> Iterator[pa.RecordBatch]:
    with faults.told_in(WORDS), KnownLeaders() as leaders:
        for piece in pieces:
            yield from read_piece(piece, reading, columns, has_views, leaders)
