"""Planned pieces to Arrow batches, with faults in the words of Spark's users."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.client.reader.reading import read as read_piece
from shmbroker.spark.words import in_spark_s_words

if TYPE_CHECKING:
    import pyarrow as pa


def read(piece: Piece, reading: Reading, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
    """Yield the piece's records as Arrow batches with these columns."""
    with in_spark_s_words():
        yield from read_piece(piece, reading, columns)
