"""Reads the metadata log's files, up to the committed offset and no further.

A directory `__cluster_metadata-0` belongs to one controller. Everybody follows the files of the
active one by pread, each with a position of its own; when another becomes active, they go on in its
directory at the same offset (`move`), as what is committed is the same in all. The files:

* 20 digits.log          segments: record batches, named by their first offset
* 20 digits-10 digits.checkpoint   snapshots: all records that make up the image at that offset and
  epoch; the latest one saves the walk through what led there

The committed offset comes from the controller, through shared memory, after the flush. Behind it
the file may hold anything: a batch on its way, allocated zeros. Batches carry several records and
are committed whole. A transaction (Begin … End or Abort) is given out at its end, or not at all.

Decoding takes time for each record, and one decision may have thousands of them. So they are
given out in lots, and a process that serves clients does something else between two of them.

Source: KIP-595, KIP-630, KIP-631, KIP-868 (transactions).
"""

from __future__ import annotations

import os
from struct import Struct

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CONTROL_BIT,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)
from shmbroker.signs import sign
from shmbroker.wire.metadata_records import decode_metadata_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from shmbroker.metadata.record import PlacedRecord

    Lots = Iterator[list[PlacedRecord] | None]

READ_BYTES = 256 << 10
"""One pread: a small cluster's whole log, or a few thousand records of a large one."""

BATCH_BYTES_MAX = 64 << 20
"""Kafka's controller writes at most 8 MiB at once; beyond this a length is garbage."""

LOT_RECORDS = 1000
"""Decoded at once."""

_INDEX_ENTRY = Struct(">II")
_NO_OP = b"\x01\x14\x00\x00"
"""NoOpRecord v0. Kafka's controller writes two of them a second."""


class MetadataLogReader:
    """Gives out the committed records, each once, in order."""

    __slots__ = (
        "_decoded",
        "_directory",
        "_file",
        "_lot",
        "_path",
        "_position",
        "_transaction",
        "epoch",
        "last_timestamp_ms",
        "next_offset",
    )

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file = -1
        self._path = ""
        self._position = 0
        """Where the batch that holds next_offset begins in the open segment."""
        self._transaction: list[PlacedRecord] | None = None
        """Records of a transaction whose end is still to come."""
        self._lot: list[PlacedRecord] = []
        """Records to be given out next."""
        self._decoded = 0
        """Records since the last lot, be they in this one or of a transaction."""
        self.next_offset = 0
        self.epoch = 0
        """Leader epoch of the last batch."""
        self.last_timestamp_ms = 0

    @property
    def is_in_transaction(self) -> bool:
        """Whether the log so far ends inside of a transaction: its writer died in it."""
        return self._transaction is not None

    def lots(self, end_offset: int) -> Lots:
        """The data records from where the last call ended to `end_offset`, the committed offset:
        (offset, epoch, name, version, message), LOT_RECORDS or fewer in a lot, and more where a
        transaction ends. None: a snapshot follows; what it holds is all there is, and nothing
        before it counts.

        To be taken to its end, before the next call. CorruptFault if the files don't hold them, or
        hold something else.
        """
        if self.next_offset >= end_offset:
            return
        if self._file < 0:
            yield from self._open_first(end_offset)
        while self.next_offset < end_offset:
            has_more = yield from self._read_segment(end_offset)
            if has_more or self._open_segment(self.next_offset):
                continue
            # The next one is deleted, as a snapshot has it.
            yield from self._open_first(end_offset)
        if self._lot:
            yield self._next_lot()

    def _next_lot(self) -> list[PlacedRecord]:
        sign()  # a log of many decisions takes seconds
        lot, self._lot, self._decoded = self._lot, [], 0
        return lot

    def pass_over(self, end_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Go on at `end_offset`, which is the end of a batch of this epoch and time: what lies
        between is known."""
        self.next_offset, self.epoch, self.last_timestamp_ms = end_offset, epoch, timestamp_ms

    def move(self, directory: str) -> None:
        """Go on in another controller's directory, at the same offset; or in the same one, whose
        files it may have made anew."""
        self.close()
        self._directory, self._path = directory, ""

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open_first(self, end_offset: int) -> Lots:
        """Open the segment that holds the next offset.

        Where no segment does, or nothing was read yet, the latest snapshot is read first.
        """
        names = os.listdir(self._directory)
        bases = [int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit()]
        if self.next_offset == 0 or self.next_offset < min(bases, default=0):
            usable = [each for each in snapshot_ids(self._directory) if each[0] <= end_offset]
            latest, epoch = usable[-1] if usable else (0, 0)
            if latest > self.next_offset:
                self._transaction = None
                self._lot = []
                yield None
                path = os.path.join(self._directory, snapshot_name(latest, epoch))
                yield from self._read_snapshot(path)
                self.next_offset, self.epoch = latest, epoch
        first = max((base for base in bases if base <= self.next_offset), default=self.next_offset)
        if self.next_offset >= end_offset:
            return
        if self._open_segment(first):
            self._position = self._indexed_position(first)
        else:
            raise CorruptFault(
                f"{self._path or self._directory} ends at offset {self.next_offset}, "
                f"before the committed offset {end_offset}"
            )

    def _indexed_position(self, base_offset: int) -> int:
        """Where a batch before the next offset ends, as the segment's index knows; else 0.

        The index is a sequence of (last offset of a batch, less the base; its position), big-endian
        and 4 bytes each, up to the first zeros. It is only believed if there is such a batch.
        """
        try:
            with open(self._path.removesuffix(".log") + ".index", "rb") as file:
                index = file.read()
        except FileNotFoundError:
            return 0
        entries = memoryview(index)[: len(index) // 8 * 8]
        found = (0, 0)
        for last_offset, position in _INDEX_ENTRY.iter_unpack(entries):
            if position <= found[1] or base_offset + last_offset >= self.next_offset:
                break
            found = last_offset, position
        header = self._pread(HEADER_SIZE, found[1])
        if len(header) == HEADER_SIZE:
            row = BATCH_HEADER.unpack(header)
            if (
                row[H_MAGIC] == MAGIC
                and row[H_BASE_OFFSET] + row[H_LAST_OFFSET_DELTA] == base_offset + found[0]
            ):
                return found[1]
        return 0

    def _open_segment(self, base_offset: int) -> bool:
        path = os.path.join(self._directory, f"{base_offset:020d}.log")
        try:
            if path == self._path:
                return False
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self.close()
        self._file, self._path, self._position = file, path, 0
        return True

    def _pread(self, length: int, position: int) -> bytes:
        try:
            return os.pread(self._file, length, position)
        except OSError as error:
            raise StorageFault(f"can't read {self._path}: {error}") from error

    def _read_segment(self, end_offset: int) -> Generator[list[PlacedRecord] | None, None, bool]:
        """Take one pread's worth of batches; False where the segment has no more of them."""
        data = self._pread(READ_BYTES, self._position)
        size = _batch_size(data, 0)
        if size == 0:
            return False
        if size > BATCH_BYTES_MAX:
            raise CorruptFault(f"{self._path} has no batch at position {self._position}")
        if size > len(data):
            data = self._pread(size, self._position)
        position = 0
        while self.next_offset < end_offset:
            size = _batch_size(data, position)
            if size == 0 or position + size > len(data):
                break
            yield from self._take_batch(data, position, size, end_offset)
            position += size
            self._position += size
        return position > 0

    def _read_snapshot(self, path: str) -> Lots:
        with open(path, "rb") as file:
            data = file.read()
        # Its offsets are its own, from 0 on.
        self.next_offset = 0
        position = 0
        while (size := _batch_size(data, position)) and position + size <= len(data):
            yield from self._take_batch(data, position, size, 1 << 63, path)
            position += size
        if position != len(data):
            raise CorruptFault(f"{path} has no batch at position {position}")

    def _take_batch(
        self, data: bytes, position: int, size: int, end_offset: int, path: str = ""
    ) -> Lots:
        batch = memoryview(data)[position : position + size]
        header = BATCH_HEADER.unpack_from(batch)
        base_offset, _, epoch, magic, crc, attributes, last_delta = header[:7]
        last_offset = base_offset + last_delta
        path = path or f"{self._path} at position {self._position}"
        if magic == MAGIC and last_offset < self.next_offset:
            return  # before the snapshot's end, or read from another controller's files
        if magic != MAGIC or crc32c(batch[ATTRIBUTES_POSITION:]) != crc:
            raise CorruptFault(f"{path}: a committed batch is damaged")
        if base_offset > self.next_offset or last_offset >= end_offset:
            raise CorruptFault(
                f"{path}: offsets {base_offset} to {last_offset} where {self.next_offset} to "
                f"{end_offset - 1} are due"
            )
        if not attributes & CONTROL_BIT:
            try:
                for offset, _, _, value, _ in iterate_records(batch):
                    if value != _NO_OP and offset >= self.next_offset:
                        self._take_record((offset, epoch, *decode_metadata_record(value or b"")))
                        self._decoded += 1
                        if self._decoded >= LOT_RECORDS:
                            yield self._next_lot()
            except ProtocolFault as fault:
                raise CorruptFault(f"{path}: {fault}") from None
        self.next_offset = last_offset + 1
        self.epoch = epoch
        self.last_timestamp_ms = header[H_MAX_TIMESTAMP]

    def _take_record(self, record: PlacedRecord) -> None:
        name = record[2]
        if name == "BeginTransactionRecord":
            self._transaction = []
        elif name == "EndTransactionRecord":
            self._lot += self._transaction or ()
            self._transaction = None
        elif name == "AbortTransactionRecord":
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._lot.append(record)


def snapshot_name(end_offset: int, epoch: int) -> str:
    """The file name of a snapshot: one past its last offset, and that record's epoch."""
    return f"{end_offset:020d}-{epoch:010d}.checkpoint"


def snapshot_ids(directory: str) -> list[tuple[int, int]]:
    """(end offset, epoch) of the snapshots in a directory, ascending."""
    return sorted(
        (int(name[:20]), int(name[21:31]))
        for name in os.listdir(directory)
        if len(name) == 42 and name.endswith(".checkpoint") and (name[:20] + name[21:31]).isdigit()
    )


def _batch_size(data: bytes, position: int) -> int:
    """Size of the batch at `position`; 0 if there is none: the file's end, or allocated zeros."""
    if len(data) - position < HEADER_SIZE:
        return 0
    length = int.from_bytes(data[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
    return length + LOG_OVERHEAD if length > HEADER_SIZE - LOG_OVERHEAD else 0
