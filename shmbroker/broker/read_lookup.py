"""Where the batches lie that a READ asks for, as far as it may have them now.

    READ_PARTITIONs ──► Lookup ──► of each: an error, or nothing new, or a slice of a segment

Rules of this file:
* Never past the high watermark, nor for read_committed readers past the last stable offset. Between
  that and the log end offset: no bytes, no error.
* read_committed readers are told the aborted transactions in what they get, and no others: where
  there are too many for the answer, they get less.
* The first partition with data gives at least one whole batch, whatever the limits (KIP-74); later
  ones keep to them.
* Only whole batches are given, but a READ waits no longer than in Kafka, which fills an answer with
  part of the next one: whether there are min_bytes goes by the bytes that lie there.
* Nobody waits here. What is on the disk alone the kernel is asked for, what lies before the local
  start is asked of `broker.tiering`: `is_cold` and `is_tier_awaited` say so, and the READ waits
  (`broker.read`).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple, Protocol, final

from shmbroker.broker.tier_port import NoTier
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import READ_COMMITTED
from shmbroker.log.lookups import aborted_in
from shmbroker.log.places import end_in
from shmbroker.log.residency import ColdBytes, allow_waiting, refuse_waiting
from shmbroker.records.batch_layout import H_LENGTH, H_PRODUCER_ID, LOG_OVERHEAD
from shmbroker.replica.partition import not_led_error
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from shmbroker.broker.tier_port import Slice, Tier
    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction
    from shmbroker.replica.partition import Partition, Partitions

    AskedRow = tuple[bytes, int, int, int, int, int, int]
    """What READ_PARTITION.unpack gives; the constants `P_…` name its places."""
    FindAborted = Callable[[Segment, int, int], list[AbortedTransaction] | int | None]
    """find(segment, end position, end offset): aborted transactions, an error code, or None:
    later."""
    FoundSlice = tuple[
        Partition, Segment | None, int, int, tuple[int, int] | None, Sequence[AbortedTransaction]
    ]
    """Partition, segment, position, length, (diverging epoch, its end) or None, aborted
    transactions. A plain tuple, the only one among results: a NamedTuple is made, and taken apart,
    in several times the time, which a READ of 100 partitions would spend 100 times."""
    Result: TypeAlias = "ReadRefusal | FoundSlice | Partition"
    """What a look finds of one partition: an error; bytes, or where it diverges; or the partition
    itself, where there are no bytes of it."""

S_PARTITION: Final = 0
"""The place of the partition in a `FoundSlice`."""

# Places of the fields in the tuple that READ_PARTITION.unpack gives.
P_KEY: Final = 0
P_BYTES_MAX: Final = 1
P_LEADER_EPOCH: Final = 2
P_LAST_FETCHED_EPOCH: Final = 3
P_OFFSET: Final = 4
P_HIGH_WATERMARK: Final = 5
P_LOG_START_OFFSET: Final = 6
P_KNOWN: Final = P_HIGH_WATERMARK
"""What stands from here on is as the client knows it."""

COLD_WAIT_MS = 1000
"""The time after which the disk is waited for all the same: pages may be dropped as fast as they
come in."""

ABORTED_MAX = 6000
"""Aborted transactions of one answer, 20 bytes each. A client reads on where the slices end."""

READS_MAX = 4000
"""Partitions of which one fetch gets bytes: each costs 5 to 20 us, so that is some 50 ms. The
others have their turn with the next. Fewer would have librdkafka wait: when it holds 100,000
messages, it asks for what an answer left out only after `fetch.queue.backoff.ms`, a second."""

MISSES_MAX = 4
"""Partitions in a row with nothing as small as the room that is left: then the answer is full. Each
look at another opens its file and reads there, which was most of what a fetch of many cost."""

ENOUGH = 1 << 31
"""More than any READ waits for."""

_OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE


@final
class ReadRefusal(NamedTuple):
    """What a look finds of a partition that can't be read."""

    error: int
    partition: Partition | None


class ReadLimits(Protocol):
    """What a READ may have."""

    min_bytes: int
    max_bytes: int
    isolation: int
    cold_until_ms: int
    """Till when it does without bytes that are on the disk alone; 0: it met none so far."""


def has_slice(results: Iterable[Result]) -> bool:
    """Whether of any partition there are bytes, or the epoch where it diverges (`FoundSlice`)."""
    return tuple in map(type, results)


def _raise(_partition: Partition, fault: StorageFault) -> None:
    raise fault


class Lookup:
    """Looks into the logs of one I/O worker, and remembers what the last look has met."""

    def __init__(
        self,
        partitions: Partitions,
        steady_ms: Callable[[], int],
        tiering: Tier | None = None,
        on_storage_fault: Callable[[Partition, StorageFault], None] = _raise,
    ) -> None:
        self._partitions = partitions
        self._steady_ms = steady_ms
        self._tiering = tiering or NoTier()
        self._on_storage_fault = on_storage_fault
        self.is_cold = False
        """Whether the last look met bytes that are on the disk alone."""
        self.is_tier_awaited = False
        """Whether it met bytes that are on their way from the remote store."""

    def look_up(
        self, read: ReadLimits, asked: Iterable[AskedRow], others: bool | None = None
    ) -> tuple[list[Result], int, bool]:
        """(one result for each partition, bytes in all, whether to answer at once).

        asked: its partitions, or some of them. others: where what is left out has nothing new,
        whether it has others: then there are no results behind the one that filled the answer.
        """
        self.is_cold = self.is_tier_awaited = False
        if read.cold_until_ms and self._steady_ms() >= read.cold_until_ms:
            return self._look_up(read, asked, others)
        refuse_waiting()
        try:
            found = self._look_up(read, asked, others)
        finally:
            allow_waiting()
        if self.is_cold and not read.cold_until_ms:
            read.cold_until_ms = self._steady_ms() + COLD_WAIT_MS
        return found

    def _look_up(
        self, read: ReadLimits, asked: Iterable[AskedRow], others: bool | None
    ) -> tuple[list[Result], int, bool]:
        """As `look_up`. A partition gets the first of these:

        A  nothing: it has nothing new, or the answer no room for it
        B  an error: it is not led here
        C  an error, or a diverging epoch (`_refusal`)
        D  nothing: this asker may not have more, or enough was found
        E  what `_read` finds: nothing yet, an error, or a slice
        """
        min_bytes, max_bytes, isolation = read.min_bytes, read.max_bytes, read.isolation
        results: list[Result] = []
        total = left_out = 0
        aborted_left = ABORTED_MAX
        left = READS_MAX
        misses = MISSES_MAX
        must_answer = False
        stops = others is not None
        partitions = self._partitions
        find_partition, open_due = partitions.get, partitions.open_due
        add = results.append
        for key, partition_max_bytes, epoch, last_fetched_epoch, offset, _, _ in asked:
            if stops and total and (total >= max_bytes or not left):
                must_answer |= not left
                break
            partition = find_partition(key) or open_due(key)
            # A
            if (
                partition is not None
                and partition.is_leader
                and (
                    offset == partition.high_watermark
                    or (
                        0 < max_bytes <= total
                        and partition.log.log_start_offset <= offset <= partition.high_watermark
                    )
                )
                and (epoch < 0 or epoch == partition.leader_epoch)
                and (
                    last_fetched_epoch < 0
                    or last_fetched_epoch == partition.log.leader_epochs.latest
                )
            ):
                # Nothing new, or no room for it, as with most of many. What is below would find
                # the same.
                add(partition)
                continue
            if partition is None or not partition.is_leader:  # B
                add(ReadRefusal(not_led_error(partition), partition))
                must_answer = True
                continue
            # C
            refusal = _refusal(partition, epoch, last_fetched_epoch, offset)
            if refusal is not None:
                add(refusal)
                must_answer = True
                continue
            # D
            log = partition.log
            end = partition.high_watermark
            if isolation == READ_COMMITTED:
                end = partition.last_stable_offset
            if offset >= end or (total and total >= max_bytes) or not left:
                add(partition)
                must_answer |= not left and total > 0
                continue
            # E
            limit = min(partition_max_bytes, max_bytes - total)
            if offset >= log.local_start_offset:
                left -= 1
            found, aborted, is_told_at_once = self._read(
                partition, offset, limit, end, total == 0, isolation, aborted_left
            )
            must_answer |= is_told_at_once
            if found is None:
                add(partition)
                continue
            if isinstance(found, int):
                add(ReadRefusal(found, partition))
                continue
            segment, position, length = found
            if length:
                misses = MISSES_MAX
            elif total and limit < partition_max_bytes:
                misses -= 1
                if not misses:
                    max_bytes = total
            total += length
            if total < min_bytes:
                left_out += self._left_out(partition, offset, found, partition_max_bytes, end)
            if aborted:
                aborted_left -= len(aborted)
            # Of what has to be judged first there may be less than is asked for, and is there.
            must_answer |= length > 0 and position < segment.unjudged_bytes
            add((partition, segment, position, length, None, aborted) if length else partition)
        must_answer |= 0 < total < min_bytes <= total + left_out
        return results, total, must_answer or not (results or others)

    def _left_out(
        self, partition: Partition, offset: int, found: Slice, bytes_max: int, end: int
    ) -> int:
        """The bytes of a partition before the offset `end` that a READ may have, and that are in no
        whole batch of its answer; enough for any READ where the next one goes on in another file.
        """
        segment, position, length = found
        log = partition.log
        try:
            if offset < log.local_start_offset:
                return ENOUGH
            if segment is log.active and end >= log.log_end_offset:
                there = segment.size
            elif segment is log.active or segment.end_offset >= end:
                there = end_in(log, segment, end)
            else:
                return ENOUGH
        except ColdBytes:
            self.is_cold = True
            return 0
        except StorageFault:
            return 0  # who reads on is told
        return max(0, min(there - position, bytes_max) - length)

    def refused(self, partition: Partition, fault: StorageFault) -> int:
        """The error code of a partition that the disk does not give, which is told."""
        self._on_storage_fault(partition, fault)
        return error_codes.KAFKA_STORAGE_ERROR

    def _read(
        self,
        partition: Partition,
        offset: int,
        limit: int,
        end: int,
        is_first: bool,
        isolation: int,
        aborted_left: int,
    ) -> tuple[Slice | int | None, Sequence[AbortedTransaction], bool]:
        """`Slice` below `end`, the aborted transactions in it, and whether it is told at once; an
        error code in its place, or None: it is on its way from the disk or the remote store."""
        log = partition.log
        aborted: Sequence[AbortedTransaction] = ()
        found: Slice | int | None
        try:
            if offset >= log.local_start_offset:
                found = log.read(offset, limit, end, is_first)
                assert found is not None, "in range a moment ago"
                if isolation != READ_COMMITTED or not log.aborted or not found[2]:
                    return found, aborted, False
                find: FindAborted = partial(aborted_in, log, offset)
                found, aborted = _with_aborted(find, found, end, aborted_left)
                is_empty = isinstance(found, tuple) and not found[2]
                return found, aborted, is_empty  # what is left is in the next answer
            found = self._tiering.read(partition, offset, limit, end, is_first)
            if isolation == READ_COMMITTED and isinstance(found, tuple) and found[2]:
                find = partial(self._tiering.aborted_in, partition, offset)
                found, aborted = _with_aborted(find, found, end, aborted_left)
        except ColdBytes:
            self.is_cold = True
            return None, aborted, False
        except StorageFault as fault:
            # Damage, found when somebody comes to it: what is whole is served as before.
            return self.refused(partition, fault), aborted, True
        if found is None:
            self.is_tier_awaited = True
        return found, aborted, found is not None


def _refusal(
    partition: Partition, epoch: int, last_fetched_epoch: int, offset: int
) -> ReadRefusal | FoundSlice | None:
    """What a leader answers to a read that can't have bytes; None: it can."""
    if epoch >= 0 and epoch != partition.leader_epoch:
        if epoch < partition.leader_epoch:
            return ReadRefusal(error_codes.FENCED_LEADER_EPOCH, partition)
        return ReadRefusal(error_codes.UNKNOWN_LEADER_EPOCH, partition)
    log = partition.log
    if last_fetched_epoch >= 0:
        end_epoch, end_offset = log.leader_epochs.end_offset_for(
            last_fetched_epoch, log.log_end_offset
        )
        if end_epoch < 0:
            return ReadRefusal(_OUT_OF_RANGE, partition)
        if end_epoch < last_fetched_epoch or end_offset < offset:
            return (partition, None, 0, 0, (end_epoch, end_offset), ())
    if not log.log_start_offset <= offset <= log.log_end_offset:
        return ReadRefusal(_OUT_OF_RANGE, partition)
    return None


def _with_aborted(
    find: FindAborted, found: Slice, end_offset: int, count_max: int
) -> tuple[Slice | int | None, Sequence[AbortedTransaction]]:
    """A slice and the aborted transactions in it, of which there may be so many: it gets shorter
    where there are more. Nothing is left of it if they are too many for its first batch.

    In place of the slice what `find` says instead of transactions.
    """
    segment, position, length = found
    aborted = find(segment, position + length, end_offset)
    if not isinstance(aborted, list):
        return aborted, ()
    if len(aborted) <= count_max:
        return found, aborted
    for _, header in segment.headers(position, position + length):
        first, producer_id = header[H_LENGTH] + LOG_OVERHEAD, header[H_PRODUCER_ID]
        break
    while length > first:
        end, _ = segment.whole_batches(position, position + length // 2)
        length = max(end - position, first)
        aborted = find(segment, position + length, end_offset)
        if not isinstance(aborted, list):
            return aborted, ()
        if len(aborted) <= count_max:
            return (segment, position, length), aborted
    # Of one batch only its own producer's matter.
    aborted = [one for one in aborted if one.producer_id == producer_id]
    if len(aborted) > count_max:
        return (segment, position, 0), []
    return (segment, position, length), aborted
