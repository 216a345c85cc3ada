"""Turns log bytes into groups of checked, decompressed batches whose records can be looked for.

Per batch, in Python: one step from header to header, and its CRC. Everything else about headers is
checked for a whole group at once. Nothing is believed: a length, a count or an offset that does not
fit what is there is a CorruptFault, and a group's memory is bounded, compressed or not.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import numpy as np

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BASE_TIMESTAMP_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    COUNT_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    PRODUCER_ID_POSITION,
    RECORDS_POSITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

GROUP_BYTES = 32 << 20
"""Log bytes, or bytes they are unpacked to, that make a group: 2,048 batches of 16 KiB, so that
finding their records in lockstep is cheap."""

HEADER = np.dtype(
    {
        "names": [
            "base_offset",
            "length",
            "magic",
            "crc",
            "attributes",
            "last_offset_delta",
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "count",
        ],
        "formats": [">i8", ">i4", "i1", ">u4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i4"],
        "offsets": [
            BASE_OFFSET_POSITION,
            LENGTH_POSITION,
            MAGIC_POSITION,
            CRC_POSITION,
            ATTRIBUTES_POSITION,
            LAST_OFFSET_DELTA_POSITION,
            BASE_TIMESTAMP_POSITION,
            MAX_TIMESTAMP_POSITION,
            PRODUCER_ID_POSITION,
            COUNT_POSITION,
        ],
        "itemsize": HEADER_SIZE,
    }
)
"""A batch header as an item of an array."""

Parts = Callable[[int, memoryview, int], Iterator[tuple[memoryview, int]]]
"""Codec, compressed records and how many these are to (plain bytes of some, how many)."""

_STEP = Struct(">qi")  # base offset and length: all that it takes to get to the next batch


class BatchGroup(NamedTuple):
    """Batches: the records of batch i are header["count"][i] > 0 many, in raw[low[i] : high[i]]."""

    raw: "Bytes"
    low: "Int64s"
    high: "Int64s"
    header: "NDArray[np.void]"

    def since(self, number: int) -> "BatchGroup":
        """The group without the batches before this one."""
        return BatchGroup(self.raw, self.low[number:], self.high[number:], self.header[number:])


def scan(
    data: memoryview,
    start_offset: int,
    end_offset: int,
    parts: Parts,
    *,
    keeps_groups: bool = False,
    checks_crc: bool = True,
) -> Iterator[BatchGroup]:
    """Yield the data batches with offsets in [start_offset, end_offset), in groups.

    `data` begins with a batch; what follows the batch that reaches `end_offset` is not looked at.
    Control batches and empty ones are left out. A batch that is too large to be unpacked at once
    comes in groups of its own, by `parts`. A group is good until the next one is asked for, unless
    `keeps_groups`.
    """
    raw = np.frombuffer(data, np.uint8)
    position = next_offset = 0
    is_over = False
    unpacker = _Unpacker(data, parts, keeps_groups)
    while not is_over and position < len(data):
        first = position
        positions, position, is_over = _step(data, position, end_offset)
        if not positions:
            return
        if position > len(data):
            raise CorruptFault(f"the batch at {positions[-1]} is cut off")
        at = np.array(positions, np.int64)
        header = gather(raw, at, HEADER_SIZE).view(HEADER)
        following = _checked(at, header, next_offset)
        next_offset = int(following[-1])
        is_wanted = (
            (following > start_offset)
            & (header["attributes"] & CONTROL_BIT == 0)
            & (header["count"] != 0)
        )
        at, header = at[is_wanted], header[is_wanted]
        low, high = at + RECORDS_POSITION, at + LOG_OVERHEAD + header["length"]
        if checks_crc:
            _check_crcs(data, at, high, header["crc"])
        try:
            if (header["attributes"] & COMPRESSION_MASK).any():
                yield from unpacker.unpack(low, high, header)
            elif len(at):
                yield BatchGroup(raw, low, high, header)
        except ProtocolFault as fault:
            raise CorruptFault(f"a batch between {first} and {position}: {fault}") from fault


def _step(data: memoryview, position: int, end_offset: int) -> tuple[list[int], int, bool]:
    """(positions of about GROUP_BYTES of batches, what is behind them, whether the end is met)"""
    positions: list[int] = []
    unpack = _STEP.unpack_from
    stop = min(position + GROUP_BYTES, len(data))
    try:
        while position < stop:
            base_offset, length = unpack(data, position)
            if base_offset >= end_offset:
                return positions, position, True
            if length < HEADER_SIZE - LOG_OVERHEAD:
                raise CorruptFault(f"no batch of magic {MAGIC} at {position}")
            positions.append(position)
            position += LOG_OVERHEAD + length
    except StructError:
        raise CorruptFault(f"a batch header is cut off at {position}") from None
    return positions, position, False


def _checked(at: "Int64s", header: "NDArray[np.void]", next_offset: int) -> "Int64s":
    """The offsets behind each batch; CorruptFault unless all are as they must be."""
    base_offset = header["base_offset"].astype(np.int64)
    last_offset_delta = header["last_offset_delta"].astype(np.int64)
    following = base_offset + last_offset_delta + 1
    before = np.append(next_offset, following[:-1])
    for is_bad, what in (
        (header["magic"] != MAGIC, f"has another magic than {MAGIC}"),
        ((last_offset_delta < 0) | (base_offset < before), "has offsets out of order"),
        (
            (header["count"] < 0) | (header["count"] > last_offset_delta + 1),
            "can't have as many records as it says",
        ),
    ):
        if is_bad.any():
            raise CorruptFault(f"the batch at {at[is_bad.argmax()]} {what}")
    return following


def _check_crcs(data: memoryview, at: "Int64s", high: "Int64s", crcs: "NDArray[np.uint32]") -> None:
    begins = (at + ATTRIBUTES_POSITION).tolist()
    for begin, end, crc in zip(begins, high.tolist(), crcs.tolist(), strict=True):
        if crc32c(data[begin:end]) != crc:
            raise CorruptFault(f"the CRC of the batch at {begin - ATTRIBUTES_POSITION} is wrong")


class _Unpacker:
    """Decompresses batches behind each other into a buffer that is used again and again, or a new
    one for each group."""

    __slots__ = ("buffer", "data", "keeps_groups", "parts")

    def __init__(self, data: memoryview, parts: Parts, keeps_groups: bool) -> None:
        self.data = data
        self.parts = parts
        self.keeps_groups = keeps_groups
        self.buffer: Bytes = np.empty(0, np.uint8)

    def unpack(
        self, low: "Int64s", high: "Int64s", header: "NDArray[np.void]"
    ) -> Iterator[BatchGroup]:
        """Groups of at most GROUP_BYTES, unless a single batch is larger."""
        codec = (header["attributes"] & COMPRESSION_MASK).tolist()
        lows: list[int] = []
        highs: list[int] = []
        used = first = 0
        for i, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            try:
                plain = codecs.decompress_at_once(codec[i], self.data[begin:end])
            except codecs.DecompressedTooLargeFault:
                if lows:
                    yield self._group(lows, highs, header[first:i])
                count = int(header["count"][i])
                for part, records in self.parts(codec[i], self.data[begin:end], count):
                    of = header[i : i + 1].copy()
                    of["count"] = records
                    raw = np.frombuffer(part, np.uint8)
                    yield BatchGroup(raw, np.zeros(1, np.int64), np.array([len(part)]), of)
                lows, highs, used, first = [], [], 0, i + 1
                continue
            if lows and used + len(plain) > GROUP_BYTES:
                yield self._group(lows, highs, header[first:i])
                lows, highs, used, first = [], [], 0, i
            if len(plain) > len(self.buffer) or (self.keeps_groups and not used):
                # empty, not zeroed: only what is used is ever touched
                self.buffer = np.empty(max(len(plain), GROUP_BYTES), np.uint8)
            lows.append(used)
            self.buffer.data[used : used + len(plain)] = plain
            used += len(plain)
            highs.append(used)
        if lows:
            yield self._group(lows, highs, header[first:])

    def _group(self, lows: list[int], highs: list[int], header: "NDArray[np.void]") -> BatchGroup:
        return BatchGroup(self.buffer, np.array(lows, np.int64), np.array(highs, np.int64), header)


def gather(raw: "Bytes", at: "Int64s", size: int) -> "NDArray[np.void]":
    """`size` bytes from each of these positions (all of them inside of `raw`), as items V<size>."""
    every = np.ndarray((len(raw) - size + 1,), f"V{size}", raw.data, strides=(1,))
    return every[at]
