"""The records of a range that belong to aborted transactions. Pure.

A segment's `.txnindex` has an entry for each aborted transaction whose marker lies in it (Kafka,
`AbortedTxn`):

   at  size  field
    0     2  version, 0
    2     8  producer_id
   10     8  first_offset        of the transaction
   18     8  last_offset         that of its marker
   26     8  last_stable_offset  when it was aborted

A Fetch answer names producer and first offset only; the end is the producer's next marker. A batch
is left out (by the decoder) where its producer has a transaction around it; only transactional
batches are judged.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LENGTH,
    H_PRODUCER_ID,
    HEADER_SIZE,
    LOG_OVERHEAD,
)

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedRange(NamedTuple):
    """An aborted transaction, whose records lie at offsets [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int


def parse_index(data: bytes) -> Iterator[AbortedRange]:
    """The entries of a `.txnindex`, up to the first that is none."""
    for position in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        version, producer_id, first_offset, last_offset, _ = _ENTRY.unpack_from(data, position)
        if version != _VERSION or not 0 <= first_offset <= last_offset:
            return
        yield AbortedRange(producer_id, first_offset, last_offset)


def find_ends(data: memoryview, begun: Iterable[tuple[int, int]]) -> tuple[AbortedRange, ...]:
    """Where each of these (producer id, first offset) ends: at its producer's next marker in these
    whole batches, or behind them."""
    markers: dict[int, list[int]] = {}
    last_offset = 0
    for _, header in _headers(data):
        last_offset = header[H_BASE_OFFSET]
        if header[H_ATTRIBUTES] & CONTROL_BIT:
            markers.setdefault(header[H_PRODUCER_ID], []).append(last_offset)
    found = []
    for producer_id, first_offset in begun:
        ends = (at for at in markers.get(producer_id, ()) if at >= first_offset)
        found.append(AbortedRange(producer_id, first_offset, min(ends, default=last_offset)))
    return tuple(found)


def _headers(data: memoryview) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of each batch, as far as they are whole."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = BATCH_HEADER.unpack_from(data, position)
        following = position + LOG_OVERHEAD + header[H_LENGTH]
        if header[H_LENGTH] < HEADER_SIZE - LOG_OVERHEAD or following > len(data):
            return
        yield position, header
        position = following
