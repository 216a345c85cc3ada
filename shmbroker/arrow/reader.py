"""A topic, or a range of it, as Arrow data: planned and read as the Spark source does it, here.

On the broker's host the log files are mapped and decoded in place, elsewhere the records are
fetched, and decoded the same (`shmbroker.spark.reading`). Rules:

* Where the read ends is fixed before it begins, at the high watermark at most (read_committed: at
  the last stable offset). Rows come partition by partition, in the order of their offsets.
* What is asked for and no longer there is a DataLossFault unless `fails_on_data_loss` is false.
* A bad argument is a ConfigFault; a broker that can't be asked a BrokerFault. Texts of faults name
  the arguments of `read`, not the options of the Spark source that stand for them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from shmbroker.errors import ConfigFault, Fault
from shmbroker.spark import decode, driver
from shmbroker.spark.option_values import nearest
from shmbroker.spark.options import EARLIEST, LATEST, Options, Position, parse
from shmbroker.spark.planning import Piece
from shmbroker.spark.reading import AUTO
from shmbroker.spark.reading import read as read_piece

COLUMNS = tuple(decode.COLUMNS)
"""All columns: Spark's Kafka schema. `headers` are read only if they are named."""

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")

OFFSET_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ARGUMENTS = {
    "set the source option failOnDataLoss to false": "read with fails_on_data_loss=False",
    "give it as option shmbroker.data": "give it as data_directory",
    "shmbroker.read=auto": "way='auto'",
    "option shmbroker.read": "way",
    "option kafka.isolation.level": "isolation_level",
    "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer": (
        "bootstrap_servers names no broker"
    ),
    "kafka.bootstrap.servers": "bootstrap_servers",
    "run Spark as": "run this as",
}
"""What the Spark source says, and what is said here."""
_SPARKS_WORDS = re.compile("|".join(map(re.escape, _ARGUMENTS)))

Where = str | int | datetime | Mapping[int, "int | str | datetime"]
"""`earliest`, `latest`, an offset, a time, or one of these for some of the partitions."""


def read(
    topic: str,
    *,
    bootstrap_servers: str,
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

    `isolation_level`: or read_committed. `way`: files, fetch, or auto, which is files where they
    can be opened; `data_directory` where the broker's directory has another name here.
    `timeout_s`: how long is asked for what is needed; a single answer is waited for 30 s at most.
    """
    return scan(
        topic,
        bootstrap_servers=bootstrap_servers,
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
    bootstrap_servers: str,
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
    """The same as a reader of record batches of up to 32,768 rows, decoded as they are taken.

    What is read is planned now; faults of reading come with the batches.
    """
    if isinstance(columns, str):
        raise ConfigFault(f"columns is a list of names: [{columns!r}]")
    chosen = tuple(DEFAULT_COLUMNS if columns is None else columns)
    _check_columns(chosen)
    for name, text in (("topic", topic), ("bootstrap_servers", bootstrap_servers)):
        if not isinstance(text, str):
            raise ConfigFault(f"{name} is text, not {text!r}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ConfigFault(f"timeout_s is a number of seconds above 0, not {timeout_s!r}")
    given = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "kafka.isolation.level": isolation_level,
        "shmbroker.read": way,
        "failOnDataLoss": "true" if fails_on_data_loss else "false",
    }
    if data_directory is not None:
        given["shmbroker.data"] = data_directory
    if not topic.strip() or "," in topic:
        raise ConfigFault(f"{topic!r} is no name of one topic")
    with _own_words():
        options = parse(given, is_stream=False)
    options = options._replace(consumer=options.consumer._replace(timeout_s=timeout_s))
    if partitions is not None:
        chosen_partitions = set(partitions)
        for one in chosen_partitions:
            if not isinstance(one, int):
                raise ConfigFault(f"partitions are numbers, not {one!r}")
        assigned = {topic: tuple(sorted(chosen_partitions))}
        options = options._replace(topics=None, assigned=assigned)
    schema = decode.arrow_schema(chosen, views)
    with _own_words():
        pieces = _plan(options, topic, start, end)
    batches = _batches(pieces, options, chosen, views)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _check_columns(columns: Sequence[str]) -> None:
    for name in columns:
        if name not in COLUMNS:
            raise ConfigFault(
                f"there is no column {name!r}{nearest(name, COLUMNS) or ': ' + ', '.join(COLUMNS)}"
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigFault("name each column once, and one at least")


def _plan(options: Options, topic: str, start: Where, end: Where) -> list[Piece]:
    """The pieces to read, in order."""
    with driver.connect(options) as client:
        topics = driver.find_topics(client, options)
        wanted = driver.wanted_partitions(options, topics)
        ends: dict[bool, dict[tuple[str, int], int]] = {}
        for is_start, where in ((True, start), (False, end)):
            found: dict[tuple[str, int], int] = {}
            for at_time in (False, True):
                position = _position(topic, where, is_start, at_time, [p for _, p in wanted])
                if position is None:
                    continue
                asked = options._replace(start=position, end=position, is_lenient_timestamp=True)
                named = [(topic, p) for p in position.each[topic]]
                found |= driver.resolve(client, asked, topics, named, is_start)
            ends[is_start] = found
        tasks = driver.plan_tasks(client, options, topics, ends[True], ends[False]).tasks
    return [piece for task in tasks for piece in task]


def _position(
    topic: str, where: Where, is_start: bool, at_time: bool, partitions: Sequence[int]
) -> Position | None:
    """Where to start or end in those partitions that are told by a time, or by an offset; None if
    there are none."""
    default = EARLIEST if is_start else LATEST
    if isinstance(where, Mapping):
        for one in where:
            if one not in partitions:
                raise ConfigFault(f"topic {topic} has no partition {one!r}, or it is not read")
        each = {p: where.get(p, default) for p in partitions}
    else:
        each = dict.fromkeys(partitions, where)
    name = "start" if is_start else "end"
    chosen = {
        p: _number(name, one) for p, one in each.items() if isinstance(one, datetime) == at_time
    }
    return Position(at_time, None, {topic: chosen}, {}) if chosen else None


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
    pieces: list[Piece], options: Options, columns: tuple[str, ...], has_views: bool
) -> Iterator[pa.RecordBatch]:
    reading = driver.reading(options)
    with _own_words():
        for piece in pieces:
            yield from read_piece(piece, reading, columns, has_views)


@contextmanager
def _own_words() -> Iterator[None]:
    """Faults of the Spark source, told with the arguments of `read`."""
    try:
        yield
    except Fault as fault:
        text = _SPARKS_WORDS.sub(lambda found: _ARGUMENTS[found[0]], str(fault))
        if text == str(fault):
            raise
        raise type(fault)(text) from fault.__cause__
