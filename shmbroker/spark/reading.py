"""Planned pieces to Arrow batches, and what faults advise, in the words of Spark's users."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shmbroker.client import faults
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.client.reader.reading import read as read_piece

if TYPE_CHECKING:
    import pyarrow as pa

WORDS = {
    faults.ACCEPT_LOSS: " (set the source option failOnDataLoss to false to go on without them)",
    faults.RUN_AS_OWNER: ": run Spark as the broker's user",
    faults.NAME_DIRECTORY: (
        "; where its data directory is seen under another name here, give it as option"
        " shmbroker.data"
    ),
    faults.CAN_FETCH: ": shmbroker.read=auto fetches them",
}


@contextmanager
def in_spark_s_words() -> Iterator[None]:
    """Faults that advise something leave in these words."""
    try:
        yield
    except faults.Advised as fault:
        if fault.advice not in WORDS:
            raise
        raise fault.in_words(WORDS) from fault.__cause__


def read(piece: Piece, reading: Reading, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
    """Yield the piece's records as Arrow batches with these columns."""
    with in_spark_s_words():
        yield from read_piece(piece, reading, columns)
