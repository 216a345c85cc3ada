"""`emit=ranges`: a query's rows are the planned ranges, and what reads them is the user's function.

Every row that a data source hands to Spark is copied into the JVM. Where Python works on the
records anyway, the ranges travel instead, and the records are decoded in the worker that uses them:

    ranges = spark.read.format("shmbroker").option("emit", "ranges") … .load()

    def total(batches):
        for records in read_ranges(batches, columns=("value",)):   # pyarrow.RecordBatch
            yield …

    ranges.mapInArrow(total, "bytes bigint")

A row is one piece of one task; a task of the plan is one partition of the DataFrame. The column
`plan` is what `read_ranges` needs, as JSON; the others are for people, and for joins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shmbroker.client.profiles import ProfileEntry
from shmbroker.client.reader.aborted import AbortedRange
from shmbroker.client.reader.asking import Consumer
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import FETCH, FILES, Reading
from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.ids import uuid_from_text, uuid_text
from shmbroker.spark.reading import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = (
    "topic string, partition int, startOffset bigint, endOffset bigint, bytes bigint, way string,"
    " plan string"
)
"""`endOffset` is exclusive, `bytes` an estimate where `way` is fetch."""

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def to_batch(pieces: Sequence[Piece], reading: Reading) -> pa.RecordBatch:
    """The rows of one task."""
    import pyarrow as pa

    columns = {
        "topic": (pa.string(), [p.topic for p in pieces]),
        "partition": (pa.int32(), [p.partition for p in pieces]),
        "startOffset": (pa.int64(), [p.start_offset for p in pieces]),
        "endOffset": (pa.int64(), [p.end_offset for p in pieces]),
        "bytes": (pa.int64(), [p.high - p.low for p in pieces]),
        "way": (pa.string(), [FILES if p.path else FETCH for p in pieces]),
        "plan": (pa.string(), [_encode(p, reading) for p in pieces]),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for kind, values in columns.values()],
        schema=pa.schema([(name, kind) for name, (kind, _) in columns.items()]),
    )


def read_ranges(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str] = DEFAULT_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yield the records of these rows as Arrow batches, in the order of their offsets in each row.

    For a function given to `mapInArrow`. ConfigFault if the rows aren't those of emit=ranges.
    """
    with KnownLeaders() as leaders:
        for piece, reading in pieces_of(batches):
            yield from read(piece, reading, tuple(columns), leaders)


def pieces_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Piece, Reading]]:
    """Yield what these rows plan. ConfigFault if they aren't those of emit=ranges."""
    for batch in batches:
        if "plan" not in batch.schema.names:
            raise ConfigFault("read_ranges reads the rows of emit=ranges: the column plan is gone")
        for text in batch.column("plan").to_pylist():
            yield _decode(text)


def _encode(piece: Piece, reading: Reading) -> str:
    # Rows are seen by people and stored by queries: they have no secrets, but where they lie.
    consumer = reading.consumer
    assert consumer.entry.shows_secret() is None  # `options.parse` refuses it
    reading = reading._replace(consumer=consumer._replace(security=None))
    fields: dict[str, Any] = piece._asdict()
    fields["topic_id"] = uuid_text(piece.topic_id)
    return json.dumps({"piece": fields, "reading": reading._asdict()})


def _decode(text: str) -> tuple[Piece, Reading]:
    try:
        document = json.loads(text)
        fields, reading = document["piece"], document["reading"]
        fields["topic_id"] = uuid_from_text(fields["topic_id"])
        fields["aborted"] = tuple(AbortedRange(*t) for t in fields["aborted"])
        consumer = Consumer(*reading["consumer"])
        profile, settings = consumer.entry
        entry = ProfileEntry(profile, tuple((name, value) for name, value in settings))
        reading["consumer"] = consumer._replace(entry=entry)
        return Piece(**fields), Reading(**reading)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFault(f"the plan in a row can't be read: {error}") from error
