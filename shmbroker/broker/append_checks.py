"""The checks of a batch that most batches do not need.

They stand between those of its form (`records.batch.check_batch`) and those of its producer's
sequence, in Kafka's order, and look at single records only where the topic asks for it.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.ipc.operation_layout import APPEND_FLAG_NO_ZSTD
from shmbroker.records.batch_layout import (
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_MAX_TIMESTAMP,
    H_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.records.validation import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Refusal,
    Rules,
    judge_records,
    plain_bytes_max,
    refuse_stamps,
)
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

AHEAD = "timestamps that are ahead"
"""The kind by which these lines are counted."""


def look_closer(
    partition: Partition,
    batch: memoryview,
    header: tuple[int, ...],
    flags: int,
    now_ms: int,
) -> tuple[int, Refusal | None]:
    """Judge a batch: (largest timestamp, why it is refused). flags: of its APPEND."""
    attributes, max_timestamp = header[H_ATTRIBUTES], header[H_MAX_TIMESTAMP]
    if attributes & COMPRESSION_MASK == ZSTD and flags & APPEND_FLAG_NO_ZSTD:
        return -1, Refusal(error_codes.UNSUPPORTED_COMPRESSION_TYPE, None, [])
    if attributes & TRANSACTIONAL_BIT and header[H_PRODUCER_ID] < 0:
        return -1, Refusal(error_codes.INVALID_RECORD, None, [])
    is_stamped_here = partition.is_log_append_time
    newest_ms = min(now_ms + partition.timestamp_after_max_ms, TIMESTAMP_MAX)
    must_walk = partition.is_walked or (max_timestamp > newest_ms and not is_stamped_here)
    is_bad_claim = attributes & TIMESTAMP_TYPE_BIT != 0 and (
        is_stamped_here or max_timestamp == NO_TIMESTAMP
    )
    if not must_walk and not is_bad_claim:
        return max_timestamp, None
    rules = Rules(
        f"{partition.topic}-{partition.partition}",
        partition.is_compacted,
        is_stamped_here,
        max(now_ms - partition.timestamp_before_max_ms, TIMESTAMP_MIN),
        newest_ms,
        plain_bytes_max(partition.message_bytes_max),
    )
    if must_walk:
        found, refusal = judge_records(batch, header, rules)
        if refusal is not None and refusal.error_code == error_codes.INVALID_TIMESTAMP:
            _say_if_ahead(rules.place, max_timestamp, now_ms, newest_ms)
        return found, refusal
    return max_timestamp, refuse_stamps(header, rules)


def _say_if_ahead(place: str, max_timestamp: int, now_ms: int, newest_ms: int) -> None:
    """Say that a clock may be wrong: clients hardly tell why they were refused."""
    if max_timestamp > newest_ms:
        logger.warning(
            "records of %s are refused, as their timestamps are %.1f h ahead of this host's clock: "
            "set the clock that is wrong, or raise message.timestamp.after.max.ms",
            place,
            (max_timestamp - now_ms) / 3_600_000,
            extra=logs.seldom(AHEAD),
        )
