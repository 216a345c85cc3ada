"""What a broker shows of the transactions that are open in the partitions that it leads.

One is late where its producer has written nothing for longer than any coordinator lets a
transaction be open (`transaction.max.timeout.ms`), and some minutes: then nobody ends it (KIP-664,
source: Kafka's PartitionsWithLateTransactionsCount).
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from shmbroker.replica.partition import Partition

LATE_MS = 5 * 60_000
"""Beyond the longest time-out: Kafka's number."""


class OpenTransactions(NamedTuple):
    """The transactions that are open at one broker."""

    transactions: int
    """Each is counted once for each partition that it is open in."""
    lag_records: int
    """The longest way from a last stable offset to the high watermark."""
    late_partitions: int
    """Partitions whose first open transaction is late."""


def open_transactions(
    partitions: Iterable[Partition], now_ms: int, timeout_ms_max: int
) -> OpenTransactions:
    """Count them. timeout_ms_max: `transaction.max.timeout.ms`."""
    transactions = lag_records = late_partitions = 0
    late_before_ms = now_ms - timeout_ms_max - LATE_MS
    for partition in partitions:
        producers = partition.producers
        if not (producers.open or producers.ended) or not partition.is_leader:
            continue
        transactions += len(producers.open)
        lag_records = max(lag_records, partition.high_watermark - partition.last_stable_offset)
        for first in producers.open:
            late_partitions += 0 < producers.producers[first].timestamp < late_before_ms
            break
    return OpenTransactions(transactions, lag_records, late_partitions)
