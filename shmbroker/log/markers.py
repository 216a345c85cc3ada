"""The batches that end transactions, on their way into a log, and what then follows from them."""

from __future__ import annotations

from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.records.stamping import stamped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog


def append_marker(
    log: PartitionLog, marker: EndMarker, timestamp: int, leader_epoch: int, now_ms: int
) -> int:
    """Append the marker that ends a transaction, as leader, and give its offset.

    The caller has asked `producers.check_marker`. Faults as `PartitionLog.append`.
    """
    batch = memoryview(encode_marker(marker, timestamp))
    if log.config.is_log_append_time:
        timestamp = now_ms
        batch = stamped(batch, timestamp, is_log_append_time=True)
    offset = log.append(batch, 0, timestamp, leader_epoch, now_ms)
    note_marker(log, marker, offset, timestamp)
    return offset


def note_marker(log: PartitionLog, marker: EndMarker, offset: int, timestamp: int) -> None:
    """A marker was appended at `offset`, the last one of the log: its transaction is ended."""
    ended = log.producers.end(marker, offset, timestamp)
    if ended is not None and not marker.is_commit:
        first_offset, stable_end = ended
        log.are_names_new = True
        log.aborted.append(
            log.active.base_offset,
            AbortedTransaction(marker.producer_id, first_offset, offset, stable_end),
        )
