"""READ, on the log's side: answered at once, or when there is something to answer with.

   READ ──► DelayedRead ──► a look at its partitions ──► enough ─────────────► READ_DONE
                            (`broker.read_lookup`)   └─► too little: it waits     ▲
                              ▲                               │   └── its time ───┘
                              └── an append, bytes come ──────┘

Rules of this file:
* A read answers with slices (file id, position, length); the reader's process sends them from the
  file. Only a slice of an active segment that is smaller than a descriptor is worth passing goes
  as bytes: thousands of quiet partitions then cost their readers no descriptor.
* A read that may wait does, watched by its partitions, until there are min_bytes, an error, a
  diverging epoch, or its time is over.
* Where a read waits for many partitions, those that an append has not touched are as they were:
  only the others are looked at again.
* While what lies before the local start is on the way, the read waits for the remote store's time
  (remote.fetch.max.wait.ms) in place of its own.
* What is on the disk alone is not waited for here, as everybody else would wait, too: the read
  waits and is tried again each millisecond (`retry_cold`).
* A partition about which there is nothing to say that the asker does not know (no bytes, no error,
  high watermark and log start offset as it named them) is left out of the answer.
"""

from __future__ import annotations

from shmbroker.broker.read_lookup import (
    ABORTED_MAX,
    P_HIGH_WATERMARK,
    P_KEY,
    P_LOG_START_OFFSET,
    S_PARTITION,
    ReadRefusal,
    has_slice,
)
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    READ_ABORTED,
    READ_COMMITTED,
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_AHEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.purgatory import DelayedOperation
from shmbroker.shm.latencies import Histogram
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from shmbroker.broker.read_lookup import AskedRow, FoundSlice, Lookup, Result
    from shmbroker.ipc.peer import Peer
    from shmbroker.log.segment import Segment
    from shmbroker.purgatory import Purgatory
    from shmbroker.replica.partition import Partition

    NoteAhead = Callable[["DelayedRead", Partition, Segment, int], object]

INLINE_SLICE_BYTES = 2048
INLINE_BYTES = 256 << 10
"""Bytes that go with one answer at most; slices beyond are sent from their files."""

_pack_slice = READ_SLICE.pack
_OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE


class DelayedRead(DelayedOperation):
    """A read that waits for bytes. Watched by the keys of its partitions."""

    __slots__ = ("began_ms", "cold_until_ms", "is_told_ahead", "isolation", "looked", "max_bytes",
                 "min_bytes", "partitions", "peer", "places", "reader", "results",
                 "token")  # fmt: skip

    def __init__(
        self,
        reader: Reader,
        peer: Peer,
        token: int,
        partitions: list[AskedRow],
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
        self.is_told_ahead = False
        """Whether its client reads on, and is told what follows."""
        self.began_ms = 0
        """The time at which it began to wait; 0: it does not wait."""
        self.cold_until_ms = 0
        """Till when bytes that are on the disk are not waited for; 0: there were none so far."""
        self.results: list[Result] | None = None
        """What was found last, if that is nothing at all: an append asks `try_complete` again, so
        it is still so when the time is over."""
        self.places: dict[Hashable, int] | None = None
        """Where each partition key stands in `partitions`, once that is asked for."""

    def try_complete(self) -> bool:
        """Answer if there is enough to answer with."""
        reader = self.reader
        results, total, must_answer = self.look()
        if total < self.min_bytes and not must_answer:
            self.note_nothing(results)
            if reader.lookup.is_cold:
                self.results = None
                reader.cold[self] = None
            return False
        self.finish(results)
        return True

    def look(self) -> tuple[list[Result], int, bool]:
        """Look as `Lookup.look_up` does, at what may have something."""
        return self.reader.lookup.look_up(self, self.partitions)

    def note_nothing(self, results: list[Result]) -> None:
        """The last look has not found enough."""
        self.results = None if has_slice(results) else results

    def finish(self, results: list[Result]) -> None:
        """Answer with what the last look has found."""
        self.is_done = True
        self.reader.answer(self, results)

    def try_complete_of(self, keys: Sequence[Hashable]) -> bool:
        """Do as `try_complete`, but look at the partitions of these keys alone where no partition
        had anything before."""
        results, partitions = self.results, self.partitions
        count = len(partitions)
        if results is None or count < 2 * len(keys):
            return self.try_complete()
        places = self.places
        if places is None:
            self.places = places = {row[P_KEY]: which for which, row in enumerate(partitions)}
        if len(places) < count:
            return self.try_complete()  # a request that names one twice
        which = sorted([places[key] for key in keys])
        lookup = self.reader.lookup
        found, total, must_answer = lookup.look_up(self, [partitions[place] for place in which])
        if lookup.is_cold:
            return self.try_complete()
        for place, result in zip(which, found, strict=True):
            results[place] = result
        if total < self.min_bytes and not must_answer:
            if total:
                self.results = None
            return False
        self.finish(results)
        return True

    def on_expire(self) -> None:
        """Answer with what there is, as its time is over."""
        results = self.results
        if results is None:
            results, total, _ = self.look()
            if self.reader.lookup.is_cold and not total:
                self.is_done = False
                self.reader.wait(self, 1)
                return
        self.finish(results)

    def keys(self) -> list[bytes]:
        """What it is watched by, as it begins to wait."""
        return [row[P_KEY] for row in self.partitions]


class Reader:
    """Reads for one I/O worker. `pass_file(peer, segment)` hands over the descriptor of a segment's
    file, once; StorageFault if the disk refuses."""

    def __init__(
        self,
        lookup: Lookup,
        purgatory: Purgatory,
        steady_ms: Callable[[], int],
        pass_file: Callable[[Peer, Segment], None],
        tier_wait_ms: int = 0,
        waits: Histogram | None = None,
    ) -> None:
        self.lookup = lookup
        self.note_ahead: NoteAhead = lambda _read, _partition, _segment, _end: None
        """What is told of the reads whose clients are told what follows, and where their slices
        end."""
        self.purgatory = purgatory
        self.steady_ms = steady_ms
        self.pass_file = pass_file
        self.tier_wait_ms = tier_wait_ms
        self.waiting: dict[tuple[int, int], DelayedRead] = {}
        self.cold: dict[DelayedRead, None] = {}
        """Reads that wait for bytes that are on the disk alone."""
        self._retried_ms = 0
        self.waits = waits or Histogram()
        """How long the reads took that had to wait."""
        self.served = self.bytes_out = 0
        """Reads that were answered, and the bytes that they have got."""
        self.bytes_of: dict[bytes, int] = {}
        """The bytes of `bytes_out` by partition key, since somebody has taken them to show them."""

    def on_read(self, peer: Peer, data: memoryview, index: int) -> None:
        """One READ entry: answer now, or wait in the purgatory."""
        token, max_wait_ms, min_bytes, max_bytes, isolation, flags, count, _ = (
            READ_HEAD.unpack_from(data, index)
        )
        at = index + READ_HEAD.size
        if count == 1:
            partitions = [READ_PARTITION.unpack_from(data, at)]
        else:
            rows = data[at : at + READ_PARTITION.size * count]
            partitions = list(READ_PARTITION.iter_unpack(rows))
            rows.release()
        read = DelayedRead(self, peer, token, partitions, min_bytes, max_bytes, isolation)
        read.is_told_ahead = bool(flags & READ_FLAG_AHEAD) and count == 1
        self.begin(read, max_wait_ms)

    def begin(self, read: DelayedRead, max_wait_ms: int) -> None:
        """Answer it now, or when there is enough, or after so long. Who waits for no records waits
        for those that are on their way from the disk or the remote store."""
        if max_wait_ms <= 0 or not read.min_bytes:
            results, total, must_answer = read.look()
            lookup = self.lookup
            if total or must_answer or not (lookup.is_tier_awaited or lookup.is_cold):
                read.finish(results)
                return
            read.min_bytes = 1
            if lookup.is_cold:
                self.cold[read] = None
        elif read.try_complete():
            return
        if self.lookup.is_tier_awaited:
            max_wait_ms = self.tier_wait_ms
        self.wait(read, max(1, max_wait_ms))

    def wait(self, read: DelayedRead, wait_ms: int) -> None:
        """Answer when there is something new, or in `wait_ms`."""
        self.waiting[read.peer.slot, read.token] = read
        read.began_ms = read.began_ms or self.steady_ms()
        self.purgatory.watch(read, read.keys(), self.steady_ms() + wait_ms)

    def retry_cold(self) -> None:
        """Look again at what was on the disk alone; once a millisecond."""
        steady_ms = self.steady_ms()
        if steady_ms == self._retried_ms:
            return
        self._retried_ms = steady_ms
        cold, self.cold = self.cold, {}
        for read in cold:
            if not read.is_done and read.try_complete():
                self.purgatory.cancel(read)

    def on_cancel(self, peer: Peer, token: int) -> None:
        """Drop a read whose client is gone."""
        read = self.waiting.pop((peer.slot, token), None)
        if read is not None and not read.is_done:
            self.purgatory.cancel(read)

    def drop_peer(self, slot: int) -> None:
        """Drop the reads of a dead network worker."""
        for key, read in list(self.waiting.items()):
            if key[0] == slot:
                del self.waiting[key]
                if not read.is_done:
                    self.purgatory.cancel(read)

    def answer(self, read: DelayedRead, results: list[Result]) -> None:
        """Send READ_DONE, after the descriptors that its slices need. A partition is answered with

        A  an error
        B  no bytes: only where the asker named another high watermark or log start offset
        C  a diverging epoch, or a slice: its bytes, where they are few and of an active segment
        D  a slice of a file
        """
        peer, partitions = read.peer, read.partitions
        bytes_of = self.bytes_of
        self.note_answered(read)
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
            if type(result) is ReadRefusal:  # A
                add(_pack_refusal(which, *result))
                continue
            if not isinstance(result, tuple):  # B
                high_watermark = result.high_watermark
                log_start_offset = result.log.log_start_offset
                asked = partitions[which]
                if (
                    asked[P_HIGH_WATERMARK] != high_watermark
                    or asked[P_LOG_START_OFFSET] != log_start_offset
                ):
                    add(
                        _pack_slice(
                            0, which, 0, high_watermark, result.last_stable_offset,
                            log_start_offset, 0, 0, -1, result.leader_epoch, -1,
                        )
                    )  # fmt: skip
                continue
            # C
            partition, segment, position, length, diverging, ended = result
            file_id = 0
            if segment is not None:
                if (
                    length <= INLINE_SLICE_BYTES
                    and segment.map is not None
                    and inline_bytes + length <= inline_bytes_max
                ):
                    inline.append(segment.map[position : position + length])
                    position = inline_bytes
                    inline_bytes += length
                else:  # D
                    try:
                        self.pass_file(peer, segment)
                    except StorageFault as fault:
                        add(self._refuse(results, result, which, fault))
                        continue
                    file_id = segment.file_id
                    if read.is_told_ahead:
                        self.note_ahead(read, partition, segment, position + length)
                self.bytes_out += length
                key = partition.key
                bytes_of[key] = bytes_of.get(key, 0) + length
            if ended:
                aborted += [READ_ABORTED.pack(which, one[0], one[1]) for one in ended]
            high_watermark = partition.high_watermark
            log_start_offset = partition.log.log_start_offset
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

    def _refuse(
        self, results: list[Result], result: FoundSlice, which: int, fault: StorageFault
    ) -> bytes:
        """The slice of a partition whose file the disk does not give; `results` says so, too."""
        partition = result[S_PARTITION]
        refusal = ReadRefusal(self.lookup.refused(partition, fault), partition)
        results[next(at for at, one in enumerate(results) if one is result)] = refusal
        return _pack_refusal(which, *refusal)

    def note_answered(self, read: DelayedRead) -> None:
        """Count a read that is answered, and forget it."""
        self.served += 1
        if read.began_ms:
            self.waits.add((self.steady_ms() - read.began_ms) * 1000)
        self.waiting.pop((read.peer.slot, read.token), None)

    def count(self, partition: Partition, reads: int, bytes_: int) -> None:
        """Count reads of a partition that were answered elsewhere, and their bytes."""
        self.served += reads
        self.bytes_out += bytes_
        self.bytes_of[partition.key] = self.bytes_of.get(partition.key, 0) + bytes_


def _pack_refusal(which: int, error: int, partition: Partition | None) -> bytes:
    """The slice of a partition that is answered with an error."""
    leader_epoch = -1
    if partition is not None and error != _OUT_OF_RANGE:
        leader_epoch = partition.leader_epoch
    return _pack_slice(error, which, 0, -1, -1, -1, 0, 0, -1, leader_epoch, -1)
