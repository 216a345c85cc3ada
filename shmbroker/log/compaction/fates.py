"""What compaction knows of transactions while it reads a log from its start (KIP-98, KIP-534).

   [a] [b] [A] [b] [B]      A: a is aborted (`.txnindex`), B: b is committed

 * Batches of an aborted transaction go, whatever keys they hold.
 * A marker is needed as long as a batch of its transaction is there, in what was read before it;
   then it is spare. So batches go in one pass, and their marker in a later one.
 * The new segment's index has those aborted transactions of which a batch was there.

Nothing is read that lies at or beyond the last stable offset, so every transaction is decided; its
marker may lie behind what is read, and with it the entry of the index: all indexes are read.
Source: Kafka `CleanedTransactionMetadata`.
"""

import os
from collections import deque
from typing import NamedTuple

import numpy as np

from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.log.compaction.chunks import LogChunk
from shmbroker.log.file_names import TXN_INDEX, offset_of
from shmbroker.log.transaction_index import AbortedTransaction, parse_entries
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    H_BASE_OFFSET,
    H_PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]


class Fate(NamedTuple):
    """What becomes of the batches of a chunk."""

    is_aborted: "Flags"
    """Data of an aborted transaction."""
    spare_markers: list[int]
    """Control batches whose transaction has no batch left."""


class KnownTransactions:
    """`judge` is asked about the chunks of a log in their order."""

    __slots__ = ("_aborted", "_committed", "_seen", "kept")

    def __init__(self, directory: str, start_offset: int) -> None:
        """start_offset: where the first chunk begins."""
        self._aborted: dict[int, deque[AbortedTransaction]] = {}
        """The aborted transactions that are not passed yet, by producer id."""
        self._seen: set[AbortedTransaction] = set()
        """Aborted transactions of which a batch was there."""
        self._committed: set[int] = set()
        """Producers with a batch since their last marker, that isn't aborted."""
        self.kept: list[AbortedTransaction] = []
        """Entries of `_seen` whose markers were passed; the caller clears it for each segment."""
        for entry in _read_indexes(directory):
            if entry.last_offset >= start_offset:
                self._aborted.setdefault(entry.producer_id, deque()).append(entry)

    def judge(self, chunk: LogChunk) -> Fate | None:
        """What is to become of its batches; None where none is of a transaction."""
        attributes = chunk.batches.attributes
        numbers = np.flatnonzero(attributes & TRANSACTIONAL_BIT)
        if not len(numbers):
            return None
        is_aborted = np.zeros(len(attributes), np.bool_)
        spare: list[int] = []
        for number in numbers.tolist():
            at = int(chunk.batches.at[number])
            if attributes[number] & CONTROL_BIT:
                if self._is_spare(chunk.raw.data, at):
                    spare.append(number)
            else:
                header = BATCH_HEADER.unpack_from(chunk.raw.data, at)
                is_aborted[number] = self._is_aborted(header[H_PRODUCER_ID], header[H_BASE_OFFSET])
        return Fate(is_aborted, spare)

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        waiting = self._aborted.get(producer_id, ())
        while waiting and waiting[0].last_offset < offset:
            waiting.popleft()
        if waiting and waiting[0].first_offset <= offset:
            self._seen.add(waiting[0])
            return True
        self._committed.add(producer_id)
        return False

    def _is_spare(self, data: memoryview, at: int) -> bool:
        try:
            marker = parse_marker(data, at)
        except ProtocolFault as fault:
            raise CorruptFault(f"a marker can't be read: {fault}") from fault
        if marker is None:
            return True  # an empty one: all of its transaction has gone
        producer_id = marker.producer_id
        if marker.is_commit:
            is_needed = producer_id in self._committed
            self._committed.discard(producer_id)
            return not is_needed
        offset = BATCH_HEADER.unpack_from(data, at)[H_BASE_OFFSET]
        waiting = self._aborted.get(producer_id, ())
        while waiting and waiting[0].last_offset < offset:
            waiting.popleft()
        if waiting and waiting[0].last_offset == offset:
            entry = waiting.popleft()
            if entry in self._seen:
                self._seen.discard(entry)
                self.kept.append(entry)
                return False
        return True


def _read_indexes(directory: str) -> list[AbortedTransaction]:
    entries: list[AbortedTransaction] = []
    try:
        for name in sorted(os.listdir(directory)):
            if offset_of(name, TXN_INDEX) is not None:
                with open(os.path.join(directory, name), "rb") as file:
                    entries += parse_entries(file.read())
    except OSError as error:
        raise StorageFault(
            f"can't read the transaction indexes of {directory}: {error}", directory
        ) from error
    return entries
