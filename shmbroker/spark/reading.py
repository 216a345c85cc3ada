"""Planned pieces to Arrow batches, by Spark's options; what faults advise, for Spark's users."""

from __future__ import annotations

from collections.abc import Iterator

from shmbroker.client import faults
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.client.reader.reading import read as read_piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

    from shmbroker.spark.options import Options

WORDS = {
    faults.ACCEPT_LOSS: " (set the source option failOnDataLoss to false to go on without them)",
    faults.RUN_AS_OWNER: (
        ": run Spark as the broker's user, or start the broker with shmbroker.data.access=group"
    ),
    faults.NAME_DIRECTORY: (
        "; where its data directory is seen under another name here, give it as option"
        " shmbroker.data"
    ),
    faults.GIVE_DIRECTORY: "; give it as option shmbroker.data",
    faults.CAN_FETCH: ": shmbroker.read=auto fetches them",
}


def reading_of(options: Options) -> Reading:
    """What tasks need of these options."""
    return Reading(options.consumer, options.read_way, options.fails_on_data_loss)


def read(
    piece: Piece, reading: Reading, columns: tuple[str, ...], leaders: KnownLeaders | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the piece's records as Arrow batches with these columns; `leaders`: of many pieces."""
    with faults.told_in(WORDS):
        yield from read_piece(piece, reading, columns, leaders=leaders)
