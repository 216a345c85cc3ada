"""Rules of Produce that depend on single records: walked only where they apply.

Kafka answers such a batch with the indexes of the bad records (`record_errors`, KIP-467).
"""

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import NO_TIMESTAMP


def null_key_indexes(batch: memoryview) -> list[int] | None:
    """Indexes of the records without a key, which a compacted topic refuses.

    None: the records can't be walked at all (INVALID_RECORD without an index).
    """
    try:
        return [index for index, record in enumerate(iterate_records(batch)) if record[2] is None]
    except ProtocolFault:
        return None


def bad_timestamp_indexes(batch: memoryview, oldest_ms: int, newest_ms: int) -> list[int] | None:
    """Indexes of the records whose create time lies outside [oldest_ms, newest_ms].

    A record without a timestamp passes. None: the records can't be walked.
    """
    try:
        return [
            index
            for index, record in enumerate(iterate_records(batch))
            if record[1] != NO_TIMESTAMP and not oldest_ms <= record[1] <= newest_ms
        ]
    except ProtocolFault:
        return None
