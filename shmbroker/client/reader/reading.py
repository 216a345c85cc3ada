"""The reading of planned pieces into Arrow batches, by one of two ways to the same bytes.

    files   the piece of the log file is mapped and decoded in place
    fetch   the piece's offsets are fetched over the Kafka protocol and decoded the same

With `auto` a piece without a file is fetched, and so is one whose file can't be opened here, for
permissions, as this is another host, or as it was deleted or compacted meanwhile: the leader then
knows what is left. Bytes that are there and are not the planned ones are a fault on either way.

Which way was taken is logged: once for each reason as a warning where a planned file could not be
used, for each piece at level INFO.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shmbroker.client.faults import ACCEPT_LOSS, CAN_FETCH, DataLossFault, NoFilesFault
from shmbroker.client.reader.aborted import AbortedRange
from shmbroker.client.reader.asking import Consumer
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.segment_files import map_piece
from shmbroker.errors import CorruptFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("shmbroker.spark")
"""The logger's documented name, whoever reads: Arrow's users know it, too."""

AUTO = "auto"
FILES = "files"
FETCH = "fetch"


class Reading(NamedTuple):
    """How pieces are read; small enough to go to every task."""

    consumer: Consumer
    way: str = AUTO
    fails_on_data_loss: bool = True

    def lose(self, text: str) -> None:
        """Report records that are gone: a fault, or a warning where the query goes on."""
        if self.fails_on_data_loss:
            raise DataLossFault(text, ACCEPT_LOSS)
        logger.warning("%s", text)


Decode = Callable[[memoryview, int, int], "Iterator[pa.RecordBatch]"]
"""Bytes of whole batches, start and end offset to the records' Arrow batches."""


def read(
    piece: Piece,
    reading: Reading,
    columns: tuple[str, ...],
    has_views: bool = False,
    leaders: KnownLeaders | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the piece's records as Arrow batches with these columns; `has_views`: see `decode`.

    `leaders`: what a reader of many pieces gives, who closes it.
    """
    from shmbroker.client.reader.decode import decode

    for data, aborted, start_offset in raw_batches(piece, reading, leaders):
        try:
            yield from decode(
                data,
                start_offset,
                piece.end_offset,
                columns,
                piece.topic,
                piece.partition,
                aborted=aborted,
                has_views=has_views,
            )
        except CorruptFault as fault:
            name = piece.path or f"{piece.topic}-{piece.partition}"
            raise CorruptFault(f"{name} from {piece.low or start_offset}: {fault}") from fault


def raw_batches(
    piece: Piece, reading: Reading, leaders: KnownLeaders | None
) -> Iterator[tuple[memoryview, tuple[AbortedRange, ...], int]]:
    """Yield the piece's record batches as they lie in the log, which of its transactions were
    aborted, and the first offset that is to be read of them. The last batch may hold more than the
    piece's offsets."""
    if not piece.path and reading.way == FILES:
        raise NoFilesFault(
            f"offsets {piece.start_offset} to {piece.end_offset - 1} of {piece.topic}-"
            f"{piece.partition} are in no file of this host any more",
            CAN_FETCH,
        )
    if piece.path and reading.way != FETCH:
        try:
            data = map_piece(piece)
        except (NoFilesFault, DataLossFault) as fault:
            if reading.way == FILES and isinstance(fault, NoFilesFault):
                raise
            if reading.way == FILES:
                span = f"offsets {piece.start_offset} to {piece.end_offset - 1}"
                reading.lose(f"{span} of {piece.topic}-{piece.partition} are lost: {fault}")
                return
            warn_once(f"records are fetched from the broker instead of its files: {fault}")
        else:
            _tell(piece, f"from {piece.path}, {len(data)} bytes")
            yield data, piece.aborted, piece.start_offset
            return
    _tell(piece, f"fetched from {reading.consumer.bootstrap_servers}")
    from shmbroker.client.reader.fetching import fetch

    if leaders is not None:
        yield from fetch(reading.consumer, piece, reading.lose, leaders)
        return
    with KnownLeaders() as own:
        yield from fetch(reading.consumer, piece, reading.lose, own)


_warned: set[str] = set()
_WARNINGS_MAX = 100


def warn_once(text: str) -> None:
    """A process reads many pieces, and plans many batches; each reason is told once."""
    if text not in _warned and len(_warned) < _WARNINGS_MAX:
        _warned.add(text)
        logger.warning("%s", text)


def _tell(piece: Piece, how: str) -> None:
    logger.info(
        "%s-%d offsets %d to %d %s",
        piece.topic,
        piece.partition,
        piece.start_offset,
        piece.end_offset - 1,
        how,
    )
