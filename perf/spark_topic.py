"""The topic that the benches of Spark read: 4 partitions of rows with a key of 8 bytes.

The values are JSON of 100 bytes, of which lz4 makes a quarter; or
ragged, the first 20 to 100 bytes of it. Every broker gets the same rows.
"""

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker.arrow import Producer

PARTITIONS = 4
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUE_BYTES = 100
RAGGED_BYTES_MIN = 20
_CHUNK_ROWS = 200_000
_TEXT = (
    b'{"id": 1000000000, "user": "abcdefgh", "price": 12.50, "tags": ["a", "b"],'
    b' "at": "2026-11-22T00:00"}'
)
_USER, _PRICE, _MINUTES = (_TEXT.index(part) for part in (b"abcdefgh", b"12.50", b"00:00"))


def make(address: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic with one replica."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def drop(address: str, topic: str) -> None:
    """Delete a topic."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def fill(address: str, topic: str, rows: int, codec: str, is_ragged: bool = False) -> None:
    """So many rows into a topic that is there, the same number into each partition."""
    with Producer(address, topic=topic, compression=codec) as producer:
        for first in range(0, rows, _CHUNK_ROWS):
            producer.send(chunk(first, min(_CHUNK_ROWS, rows - first), is_ragged))
        producer.flush()


def chunk(first: int, count: int, is_ragged: bool) -> pa.RecordBatch:
    """The rows from number `first` on, as the producer takes them."""
    rng = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    cells = np.tile(np.frombuffer(_TEXT, np.uint8), count).reshape(count, VALUE_BYTES)
    left = numbers
    for digit in range(9):  # the id; JSON knows no leading zeros
        cells[:, 16 - digit] = 48 + left % 10
        left = left // 10
    cells[:, _USER : _USER + 8] = rng.integers(97, 123, (count, 8), np.uint8)
    for digit in (_PRICE, _PRICE + 1, _PRICE + 3, _PRICE + 4, _MINUTES + 3, _MINUTES + 4):
        cells[:, digit] = rng.integers(49, 54, count, np.uint8)
    sizes = np.full(count, VALUE_BYTES)
    if is_ragged:
        sizes = rng.integers(RAGGED_BYTES_MIN, VALUE_BYTES + 1, count)
        cells = cells[np.arange(VALUE_BYTES) < sizes[:, None]]
    return pa.record_batch(
        {
            "key": _binary(numbers.astype(">i8").view(np.uint8), np.full(count, 8)),
            "value": _binary(cells.ravel(), sizes),
            "partition": pa.array(numbers % PARTITIONS, pa.int32()),
        }
    )


def _binary(cells: np.ndarray, sizes: np.ndarray) -> pa.Array:
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(cells.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
