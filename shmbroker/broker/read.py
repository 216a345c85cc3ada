"""READ, on the log's side: where the batches lie that a fetch may have.

Rules of this file:
* A read answers with slices (file id, position, length); the reader's process sends them from the
  file. Only a slice of an active segment that is smaller than a descriptor is worth passing goes
  as bytes: thousands of quiet partitions then cost their readers no descriptor.
* Never past the high watermark, nor for read_committed readers past the last stable offset. Between
  that and the log end offset: no bytes, no error.
* read_committed readers are told the aborted transactions in what they get, and no others: where
  there are too many for the answer, they get less.
* The first partition with data gives at least one whole batch, whatever the limits (KIP-74); later
  ones keep to them.
* A read that may wait does, watched by its partitions, until there are min_bytes, an error of the
  log, a diverging epoch, or its time is over.
* Where a read waits for many partitions, those that an append has not touched are as they were:
  only the others are looked at again.
* What lies before the local start is read through `broker.tiering`. While it is on the way the
  read waits, for the remote store's time (remote.fetch.max.wait.ms) in place of its own.
* What is on the disk alone is not waited for here, as everybody else would wait, too: the kernel is
  asked for it, the read waits and is tried again each millisecond (`retry_cold`).
* A partition about which there is nothing to say that the asker does not know (no bytes, no error,
  high watermark and log start offset as it named them) is left out of the answer.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from shmbroker.broker.tier_port import NoTier, Tier
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    READ_ABORTED,
    READ_DONE,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.ipc.peer import Peer
from shmbroker.log.lookups import aborted_in
from shmbroker.log.residency import ColdBytes, allow_waiting, refuse_waiting
from shmbroker.log.segment import Segment
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.purgatory import DelayedOperation, Purgatory
from shmbroker.records.batch_layout import H_LENGTH, H_PRODUCER_ID, LOG_OVERHEAD
from shmbroker.replica.partition import Partition, Partitions, not_led_error
from shmbroker.shm.latencies import Histogram
from shmbroker.wire import error_codes

INLINE_SLICE_BYTES = 2048
INLINE_BYTES = 256 << 10
"""Bytes that go with one answer at most; slices beyond are sent from their files."""

COLD_WAIT_MS = 1000
"""Then the disk is waited for all the same: pages may be dropped as fast as they come in."""

ABORTED_MAX = 6000
"""Aborted transactions of one answer, 20 bytes each. A client reads on where the slices end."""

READS_MAX = 4000
"""Partitions of which one fetch gets bytes: each costs 5 to 20 us, so that is some 50 ms. The
others have their turn with the next. Fewer would have librdkafka wait: when it holds 100,000
messages, it asks for what an answer left out only after `fetch.queue.backoff.ms`, a second."""

MISSES_MAX = 4
"""Partitions in a row with nothing as small as the room that is left: then the answer is full. Each
look at another opens its file and reads there, which was most of what a fetch of many cost."""

READ_COMMITTED = 1
"""The isolation level."""

Asked = tuple[bytes, int, int, int, int, int, int]
"""READ_PARTITION: key, most bytes, leader epoch, last fetched epoch, offset, and what is known."""
Found = tuple[Segment, int, int]
"""Segment, position, length."""
FindAborted = Callable[[Segment, int, int], list[AbortedTransaction] | int | None]
"""find(segment, end position, end offset): aborted transactions, an error code, or None: later."""

_pack_slice = READ_SLICE.pack
_OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE


def _raise(_partition: Partition, fault: StorageFault) -> None:
    raise fault


class DelayedRead(DelayedOperation):
    """A read that waits for bytes. Watched by the keys of its partitions."""

    __slots__ = ("began_ms", "cold_until_ms", "isolation", "looked", "max_bytes", "min_bytes",
                 "partitions", "peer", "places", "reader", "results", "token")  # fmt: skip

    def __init__(
        self,
        reader: "Reader",
        peer: Peer,
        token: int,
        partitions: list[Asked],
        min_bytes: int,
        max_bytes: int,
        isolation: int,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.peer = peer
        self.token = token
        self.partitions = partitions
        self.looked: Sequence[int] = range(len(partitions))
        """The places of those that the last look was about."""
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.began_ms = 0
        """Since when it waits; 0: it does not."""
        self.cold_until_ms = 0
        """Till when bytes that are on the disk are not waited for; 0: there were none so far."""
        self.results: list[Any] | None = None
        """What was found last, if that is nothing at all: an append asks `try_complete` again, so
        it is still so when the time is over."""
        self.places: dict[Any, int] | None = None
        """Where each partition key stands in `partitions`, once that is asked for."""

    def try_complete(self) -> bool:
        """Answer if there is enough to answer with."""
        reader = self.reader
        results, total, must_answer = self.look()
        if total < self.min_bytes and not must_answer:
            self.note_nothing(results)
            if reader.is_cold:
                self.results = None
                reader.cold[self] = None
            return False
        self.finish(results)
        return True

    def look(self) -> tuple[list[Any], int, bool]:
        """As `Reader.look_up`, at what may have something."""
        return self.reader.look_up(self, self.partitions)

    def note_nothing(self, results: list[Any]) -> None:
        """The last look has not found enough."""
        self.results = None if tuple in set(map(type, results)) else results

    def finish(self, results: list[Any]) -> None:
        """Answer with what the last look has found."""
        self.is_done = True
        self.reader.answer(self, results)

    def try_complete_of(self, keys: Sequence[Any]) -> bool:
        """As `try_complete`, by a look at the partitions of these keys, where it had nothing of
        any before."""
        results, partitions = self.results, self.partitions
        count = len(partitions)
        if results is None or count < 2 * len(keys):
            return self.try_complete()
        places = self.places
        if places is None:
            self.places = places = {row[0]: which for which, row in enumerate(partitions)}
        if len(places) < count:
            return self.try_complete()  # a request that names one twice
        which = sorted([places[key] for key in keys])
        reader = self.reader
        found, total, must_answer = reader.look_up(self, [partitions[place] for place in which])
        for place, result in zip(which, found, strict=True):
            if reader.is_cold or (type(result) is tuple and type(result[0]) is int):
                return self.try_complete()  # whether an error is answered with depends on all
            results[place] = result
        if total < self.min_bytes and not must_answer:
            if total:
                self.results = None
            return False
        self.finish(results)
        return True

    def on_expire(self) -> None:
        """Its time is over: answer with what there is."""
        results = self.results
        if results is None:
            results, total, _ = self.look()
            if self.reader.is_cold and not total:
                self.is_done = False
                self.reader.wait(self, 1)
                return
        self.finish(results)

    def keys(self) -> list[bytes]:
        """What it is watched by, as it begins to wait."""
        return [row[0] for row in self.partitions]


class Reader:
    """Reads for one I/O worker. `pass_file(peer, file_id, fd)` hands over a descriptor once."""

    def __init__(
        self,
        partitions: Partitions,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        pass_file: Callable[[Peer, Any], None],
        tiering: Tier | None = None,
        tier_wait_ms: int = 0,
        on_storage_fault: Callable[[Partition, StorageFault], None] = _raise,
        waits: Histogram | None = None,
    ) -> None:
        self.partitions = partitions
        self.purgatory = purgatory
        self.now_ms = now_ms
        self.pass_file = pass_file
        self.tiering = tiering or NoTier()
        self.tier_wait_ms = tier_wait_ms
        self.on_storage_fault = on_storage_fault
        self.waiting: dict[tuple[int, int], DelayedRead] = {}
        self._is_tier_awaited = False
        self.is_cold = False
        """Whether the last look met bytes that are on the disk alone."""
        self.cold: dict[DelayedRead, None] = {}
        """Those that wait for such bytes."""
        self._retried_ms = 0
        self.waits = waits or Histogram()
        """How long those have taken that had to wait."""
        self.served = self.bytes_out = 0
        """Reads that were answered, and the bytes that they have got."""
        self.bytes_of: dict[bytes, int] = {}
        """The same bytes by partition key, since somebody has taken them to show them."""

    def on_read(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One READ entry: answer now, or wait in the purgatory."""
        token, max_wait_ms, min_bytes, max_bytes, isolation, _, count, _ = READ_HEAD.unpack_from(
            data, index
        )
        at = index + READ_HEAD.size
        if count == 1:
            partitions = [READ_PARTITION.unpack_from(data, at)]
        else:
            rows = data[at : at + READ_PARTITION.size * count]
            partitions = list(READ_PARTITION.iter_unpack(rows))
            rows.release()
        read = DelayedRead(self, peer, token, partitions, min_bytes, max_bytes, isolation)
        self.begin(read, max_wait_ms)

    def begin(self, read: DelayedRead, max_wait_ms: int) -> None:
        """Answer it now, or when there is enough, or after so long."""
        self._is_tier_awaited = False
        if max_wait_ms <= 0:
            results, total, must_answer = read.look()
            if total or must_answer or not (self._is_tier_awaited or self.is_cold):
                read.finish(results)
                return
            read.min_bytes = 1
            if self.is_cold:
                self.cold[read] = None
        elif read.try_complete():
            return
        if self._is_tier_awaited:
            max_wait_ms = self.tier_wait_ms
        self.wait(read, max(1, max_wait_ms))

    def wait(self, read: DelayedRead, wait_ms: int) -> None:
        """Answer when there is something new, or in `wait_ms`."""
        self.waiting[read.peer.slot, read.token] = read
        read.began_ms = read.began_ms or self.now_ms()
        self.purgatory.watch(read, read.keys(), self.now_ms() + wait_ms)

    def retry_cold(self) -> None:
        """Look again at what was on the disk alone; once a millisecond."""
        now_ms = self.now_ms()
        if now_ms == self._retried_ms:
            return
        self._retried_ms = now_ms
        cold, self.cold = self.cold, {}
        for read in cold:
            if not read.is_done and read.try_complete():
                self.purgatory.cancel(read)

    def on_cancel(self, peer: Peer, token: int) -> None:
        """Its client is gone."""
        read = self.waiting.pop((peer.slot, token), None)
        if read is not None and not read.is_done:
            self.purgatory.cancel(read)

    def drop_peer(self, slot: int) -> None:
        """That network worker is dead: nobody waits for its reads."""
        for key, read in list(self.waiting.items()):
            if key[0] == slot:
                del self.waiting[key]
                if not read.is_done:
                    self.purgatory.cancel(read)

    def look_up(
        self, read: DelayedRead, asked: Iterable[Asked], others: bool | None = None
    ) -> tuple[list[Any], int, bool]:
        """(one result for each partition, bytes in all, whether to answer at once); sets `is_cold`.
        asked: its partitions, or some of them. others: where what is left out has nothing new,
        whether it has others: then there are no results behind the one that filled the answer.

        A result is (error code, partition or None), a partition that there are no bytes of, or
        (partition, segment, position, length, diverging epoch and end or None, aborted
        transactions).
        """
        self.is_cold = False
        if read.cold_until_ms and self.now_ms() >= read.cold_until_ms:
            return self._look_up(asked, read.max_bytes, read.isolation, others)
        refuse_waiting()
        try:
            found = self._look_up(asked, read.max_bytes, read.isolation, others)
        finally:
            allow_waiting()
        if self.is_cold and not read.cold_until_ms:
            read.cold_until_ms = self.now_ms() + COLD_WAIT_MS
        return found

    def _look_up(
        self,
        asked: Iterable[Asked],
        max_bytes: int,
        isolation: int,
        others: bool | None,
    ) -> tuple[list[Any], int, bool]:
        results: list[Any] = []
        total = 0
        aborted_left = ABORTED_MAX
        left = READS_MAX
        misses = MISSES_MAX
        must_answer = False
        has_valid, stops = bool(others), others is not None
        find_partition, open_due = self.partitions.get, self.partitions.open_due
        add = results.append
        for key, partition_max_bytes, epoch, last_fetched_epoch, offset, _, _ in asked:
            if stops and total and (total >= max_bytes or not left):
                must_answer |= not left
                break
            partition = find_partition(key) or open_due(key)
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
                has_valid = True
                add(partition)
                continue
            if partition is None or not partition.is_leader:
                add((not_led_error(partition), partition))
                continue
            refusal = _refusal(partition, epoch, last_fetched_epoch, offset)
            if refusal is not None:
                row, is_told_at_once = refusal
                add(row)
                must_answer |= is_told_at_once
                continue
            log = partition.log
            has_valid = True
            end = partition.high_watermark
            if isolation == READ_COMMITTED:
                end = partition.last_stable_offset
            if offset >= end or (total and total >= max_bytes) or not left:
                add(partition)
                must_answer |= not left and total > 0
                continue
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
            if type(found) is int:
                add((found, partition))
                continue
            segment, position, length = found
            if length:
                misses = MISSES_MAX
            elif total and limit < partition_max_bytes:
                misses -= 1
                if not misses:
                    max_bytes = total
            total += length
            if aborted:
                aborted_left -= len(aborted)
            # Of what has to be judged first there may be less than is asked for, and is there.
            must_answer |= length > 0 and position < segment.unjudged_bytes
            add((partition, segment, position, length, None, aborted) if length else partition)
        return results, total, must_answer or not has_valid

    def _read(
        self,
        partition: Partition,
        offset: int,
        limit: int,
        end: int,
        is_first: bool,
        isolation: int,
        aborted_left: int,
    ) -> tuple[Any, Sequence[AbortedTransaction], bool]:
        """`Found` below `end`, the aborted transactions in it, and whether it is told at once; an
        error code in its place, or None: it is on its way from the disk or the remote store."""
        log = partition.log
        aborted: Sequence[AbortedTransaction] = ()
        found: Any
        try:
            if offset >= log.local_start_offset:
                found = log.read(offset, limit, end, is_first)
                assert found is not None, "in range a moment ago"
                if isolation != READ_COMMITTED or not log.aborted or not found[2]:
                    return found, aborted, False
                find: FindAborted = partial(aborted_in, log, offset)
                found, aborted = _with_aborted(find, found, end, aborted_left)
                return found, aborted, not found[2]  # what is left is in the next answer
            found = self.tiering.read(partition, offset, limit, end, is_first)
            if isolation == READ_COMMITTED and type(found) is tuple and found[2]:
                find = partial(self.tiering.aborted_in, partition, offset)
                found, aborted = _with_aborted(find, found, end, aborted_left)
        except ColdBytes:
            self.is_cold = True
            return None, aborted, False
        except StorageFault as fault:
            # Damage, found when somebody comes to it: what is whole is served as before.
            self.on_storage_fault(partition, fault)
            return error_codes.KAFKA_STORAGE_ERROR, aborted, True
        if found is None:
            self._is_tier_awaited = True
        return found, aborted, found is not None

    def answer(self, read: DelayedRead, results: list[Any]) -> None:
        """Send READ_DONE, after the descriptors that its slices need."""
        peer = read.peer
        bytes_of = self.bytes_of
        self.served += 1
        if read.began_ms:
            self.waits.add((self.now_ms() - read.began_ms) * 1000)
        self.waiting.pop((peer.slot, read.token), None)
        parts: list[bytes] = []
        add = parts.append
        inline: list[bytes] = []
        inline_bytes = 0
        aborted: list[bytes] = []
        inline_bytes_max = min(
            INLINE_BYTES,
            peer.writer.payload_bytes_max - READ_DONE_HEAD.size - len(results) * READ_SLICE.size,
        )
        if read.isolation == READ_COMMITTED:
            inline_bytes_max -= ABORTED_MAX * READ_ABORTED.size
        for which, result in zip(read.looked, results, strict=False):
            if type(result) is not tuple:
                high_watermark = result.high_watermark
                log_start_offset = result.log.log_start_offset
                asked = read.partitions[which]
                if asked[5] != high_watermark or asked[6] != log_start_offset:
                    add(
                        _pack_slice(
                            0, which, 0, high_watermark, result.last_stable_offset,
                            log_start_offset, 0, 0, -1, result.leader_epoch, -1,
                        )
                    )  # fmt: skip
                continue
            if type(result[0]) is int:
                add(_pack_refusal(which, *result))
                continue
            partition, segment, position, length, diverging, ended = result
            if ended:
                aborted += [READ_ABORTED.pack(which, one[0], one[1]) for one in ended]
            high_watermark = partition.high_watermark
            log_start_offset = partition.log.log_start_offset
            file_id = 0
            if length:
                self.bytes_out += length
                key = partition.key
                bytes_of[key] = bytes_of.get(key, 0) + length
                if (
                    length <= INLINE_SLICE_BYTES
                    and segment.map is not None
                    and inline_bytes + length <= inline_bytes_max
                ):
                    inline.append(segment.map[position : position + length])
                    position = inline_bytes
                    inline_bytes += length
                else:
                    file_id = segment.file_id
                    self.pass_file(peer, segment)
            end_epoch, end_offset = diverging or (-1, -1)
            add(
                _pack_slice(
                    0, which, length, high_watermark, partition.last_stable_offset,
                    log_start_offset, file_id, position, end_epoch, partition.leader_epoch,
                    end_offset,
                )
            )  # fmt: skip
        head = READ_DONE_HEAD.pack(read.token, len(parts), len(aborted))
        peer.send(READ_DONE, b"".join((head, *parts, *aborted, *inline)))


def _pack_refusal(which: int, error: int, partition: Partition | None) -> bytes:
    """The slice of a partition that is answered with an error."""
    leader_epoch = -1
    if partition is not None and error != _OUT_OF_RANGE:
        leader_epoch = partition.leader_epoch
    return _pack_slice(error, which, 0, -1, -1, -1, 0, 0, -1, leader_epoch, -1)


def _refusal(
    partition: Partition, epoch: int, last_fetched_epoch: int, offset: int
) -> tuple[Any, bool] | None:
    """What a leader answers to a read that can't have bytes, and whether at once; None: it can."""
    if epoch >= 0 and epoch != partition.leader_epoch:
        if epoch < partition.leader_epoch:
            return (error_codes.FENCED_LEADER_EPOCH, partition), False
        return (error_codes.UNKNOWN_LEADER_EPOCH, partition), True
    log = partition.log
    if last_fetched_epoch >= 0:
        end_epoch, end_offset = log.leader_epochs.end_offset_for(
            last_fetched_epoch, log.log_end_offset
        )
        if end_epoch < 0:
            return (_OUT_OF_RANGE, partition), True
        if end_epoch < last_fetched_epoch or end_offset < offset:
            return (partition, None, 0, 0, (end_epoch, end_offset), ()), True
    if not log.log_start_offset <= offset <= log.log_end_offset:
        return (_OUT_OF_RANGE, partition), True
    return None


def _with_aborted(
    find: FindAborted, found: Found, end_offset: int, count_max: int
) -> tuple[Any, Sequence[AbortedTransaction]]:
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
