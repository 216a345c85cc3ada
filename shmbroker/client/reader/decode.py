"""Record batches (magic 2) to Arrow, in Spark's Kafka schema: vectorised, bounded.

What comes in is a range of a segment file (on batch boundaries) as its leader planned it, or what
a leader sent; what goes out are Arrow record batches with the columns that were asked for. Rules:

* Nothing is believed: every length, count, offset and CRC is checked against the bytes that are
  there, before memory is taken for it; what is wrong is a `CorruptFault`.
* No Python statement runs per row, and few per batch.
* No Arrow batch keeps a view of the input, as values lie between headers: every column is a copy.
  Unless views are asked for: then keys and values of more than 12 bytes stay where they are (in the
  mapped file, or where they were decompressed to), and the Arrow batch keeps that.

Two engines do the same: the compiled kernels (`decode_native`), and where they were not built
numpy (`decode_numpy`).
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from shmbroker.client.reader.aborted import AbortedRange
from shmbroker.client.reader.arrow_columns import COLUMNS, arrow_schema, column_types
from shmbroker.kernels import native

if native is not None:
    from shmbroker.client.reader import decode_native as engine
else:
    from shmbroker.client.reader import decode_numpy as engine  # type: ignore[no-redef]

__all__ = ["COLUMNS", "arrow_schema", "decode", "engine"]


def decode(
    data: memoryview,
    start_offset: int,
    end_offset: int,
    columns: Sequence[str],
    topic: str,
    partition: int,
    *,
    aborted: Sequence[AbortedRange] = (),
    has_views: bool = False,
    checks_crc: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `data` with start_offset <= offset < end_offset as Arrow batches.

    `data` begins with a batch; what follows the batch that reaches `end_offset` is not looked at.
    Control batches and those of the `aborted` transactions are left out, gaps in the offsets are
    fine. With `has_views` keys and values are of type binary_view. Raises CorruptFault if anything
    is not as Kafka's format says, a batch that is cut off included; `checks_crc` is Kafka's
    `check.crcs`.
    """
    types = column_types(columns, has_views)
    return engine.decode(
        data, start_offset, end_offset, types, topic, partition, aborted, checks_crc
    )
