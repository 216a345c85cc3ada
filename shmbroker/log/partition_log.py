"""The log of one partition: its segments in offset order, written by one process.

   segments   [ 0 … 811 ][ 812 … 1 402 ][ 1 403 …            ]
                                          active: mapped, appended to
   offsets      log_start_offset <= local_start_offset <= log_end_offset
                                          recovery_point <= log_end_offset

DeleteRecords may raise the starts above the recovery point: what it takes need not be durable.

Rules
 * One writer. `append` is the hot path of leaders: the caller has judged the batch (size, CRC,
   sequence); here it is copied, stamped and indexed. Its first 16 bytes are stored last, so a
   writer that dies half way leaves zeros where the next batch would begin.
 * Everything besides the .log files is derived, and rebuilt where it is missing or wrong.
 * The high watermark lives with the replica, not here: readers pass the end that they may see, and
   `truncation` trusts its caller to stay above it. What of the transactions is undecided
   (`producers`) and which were aborted (`aborted`) follows from the batches; who appends tells
   it of each one (`producers.begin`, `markers`).
 * What lies between log_start_offset and local_start_offset is in a remote store (`tier`); here
   only the leader epochs of it are known. Without tiering the two are the same.
 * Truncation cuts the file: bytes behind the end read as zeros for ever after.

What is done to a log seldom is in functions beside this file:

   recovery      opens it                       places       where an offset is
   rolling       when a segment ends            lookups      by time, by segment
   truncation    cuts its end                   markers      ends of transactions
   retiring      takes segments out             flushing     makes it durable, closes it
   retention     says which are too old         compaction   swaps segments for smaller ones
   restoring     a file that was removed
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import LEADER_EPOCH_CHECKPOINT
from shmbroker.log.flushing import finish, sync
from shmbroker.log.judging import judge
from shmbroker.log.leader_epochs import LeaderEpochs
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.places import end_in, locate, remember, shorten
from shmbroker.log.producer_snapshots import ProducerSnapshots
from shmbroker.log.producer_state import ProducerState
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.recovery.opening import load
from shmbroker.log.recovery.producers import find_aborted
from shmbroker.log.rolling import drawn_roll_ms, is_roll_due, roll_over
from shmbroker.log.segment import OFFSETS_MAX, Segment
from shmbroker.log.segment_indexes import add_index_entry
from shmbroker.log.segment_space import is_stored, make_ready, populate_step, write_batch
from shmbroker.log.transaction_index import AbortedTransaction, AbortedTransactions
from shmbroker.records.batch_layout import LOG_OVERHEAD, STAMP, STAMP_SIZE

_LATEST_MS = 2**63 - 1
"""No record has a later timestamp."""


class EndSlot(Protocol):
    """Where the end of the log survives the death of its process."""

    def store(self, base: int, position: int, end: int) -> None: ...


class PartitionLog:
    """Append to and read one partition's log. Make one with `PartitionLog.open`."""

    __slots__ = ("_closed_bytes", "_descriptors", "_file_ids", "_index_after", "_latest_epoch",
                 "_limit", "_roll_after", "_roll_offset", "_snapshot_after", "_store_position",
                 "_write_limit",
                 "aborted", "active", "are_names_new", "boundaries", "cleaned_offset", "config",
                 "cuts", "damage_count", "directory", "is_only_replica", "is_start_raised",
                 "leader_epochs", "local_start_offset", "log_end_offset", "log_start_offset",
                 "on_cut", "producers", "recovery_point", "retired", "roll_ms", "rolled",
                 "segments", "snapshots")  # fmt: skip

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        file_ids: Iterator[int],
        position_slot: EndSlot | None,
        descriptors: Descriptors | None,
    ) -> None:
        self.directory = directory
        self.config = config
        self._file_ids = file_ids
        self._descriptors = descriptors or Descriptors()
        self._store_position = position_slot.store if position_slot else None
        self.segments: list[Segment] = []
        """The segments by base offset; never empty once open, the last one is `active`."""
        self.active: Segment
        self.log_start_offset = 0
        """First readable offset; may lie inside the first segment."""
        self.local_start_offset = 0
        """First offset that is readable from `segments`."""
        self.log_end_offset = 0
        """The offset the next record gets."""
        self.recovery_point = 0
        """Below it everything is known flushed."""
        self.cleaned_offset = 0
        """Below it compaction has been, or holes are: offsets may be missing, whatever the policy
        is now."""
        self.is_only_replica = False
        """Whether nobody else has what is damaged here: what is whole behind it is kept."""
        self.damage_count = 0
        """Things that were named when it was opened, as they are lost or can't be."""
        self.leader_epochs = LeaderEpochs(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
        self.producers = ProducerState()
        self.aborted = AbortedTransactions(directory, self._find_aborted)
        self.retired: list[Segment] = []
        """No longer of this log; their files wait under `.deleted` (`deleted_paths`) for the owner
        of the log directory to unlink them, as answers under way may still name them."""
        self.snapshots = ProducerSnapshots(directory, self.producers, self.aborted)
        self.boundaries: dict[int, tuple[Segment, int]] = {}
        """offset -> (segment, position) of batch boundaries where a reader stopped lately."""
        self._closed_bytes = -1
        """Valid bytes of all segments but the active one; negative: to be added up again."""
        self._latest_epoch = -1
        # Up to these the active segment takes batches, stored or written; beyond, `_prepare` looks.
        self._limit = self._write_limit = 0
        self._roll_after = _LATEST_MS
        self.roll_ms = config.roll_ms
        self._roll_offset = 0
        self._index_after = 0
        self._snapshot_after = config.producer_snapshot_interval
        self.rolled: list[Segment] = []
        """Finished since the last flush, or nobody knows when."""
        self.are_names_new = False
        """Files were made, renamed or removed that the next flush has to make durable."""
        self.on_cut: Callable[[int], None] | None = None
        """What is told of the new end before a cut: no checkpoint may be ahead of it."""
        self.cuts = 0
        """How often its end was cut off, since it was opened."""
        self.is_start_raised = False
        """Whether DeleteRecords raised the log start offset, and no checkpoint says so yet
        (`raised_start`)."""

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        *,
        file_ids: Iterator[int],
        position_slot: EndSlot | None = None,
        trusted: tuple[int, int, int] | None = None,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        decided_below: int = NO_LIMIT,
        cleaned_offset: int = -1,
        is_only_replica: bool = False,
        now_ms: int = 0,
        descriptors: Descriptors | None = None,
    ) -> "PartitionLog":
        """Open the log in `directory`, creating it if there is none.

        trusted: (segment base offset, position, end offset) that the last writer left in shared
        memory; only the last batch is checked. clean: the log directory was closed cleanly; no
        scan. Otherwise everything from the recovery point on is scanned, and cut at the first
        thing that is wrong, or, damaged and the only replica, left with a hole. decided_below: the
        high watermark, as far as it is known. cleaned_offset: how far compaction has been, and may
        have left holes; 0: nowhere, -1: nobody knows. Where what is trusted turns out wrong, it is
        scanned too.

        `file_ids` gives numbers that are never used twice; `descriptors` bounds the open files of
        all logs that share it. StorageFault if the disk fails; CorruptFault never for a torn tail.
        """
        is_again = False
        while True:
            log = cls(directory, config, file_ids, position_slot, descriptors)
            log.cleaned_offset = cleaned_offset
            log.is_only_replica = is_only_replica
            try:
                load(log, trusted, clean, recovery_point, log_start_offset, decided_below, now_ms)
            except (StorageFault, OSError) as fault:
                log.close(clean=False)
                if (
                    is_again
                    or isinstance(fault, DiskFullFault)
                    or not put_strangers_aside(directory)
                ):
                    if isinstance(fault, StorageFault):
                        raise
                    raise StorageFault(f"can't open {directory}: {fault}", directory) from fault
                is_again = True
            else:
                return log

    # --- append ---

    def append(
        self,
        batch: memoryview,
        last_offset_delta: int,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """Append one valid batch as leader and give its base offset.

        DiskFullFault: nothing was written, try again later. StorageFault: the disk is bad.
        """
        segment = self.active
        position = segment.size
        end = position + len(batch)
        base_offset = self.log_end_offset
        next_offset = base_offset + last_offset_delta + 1
        if (
            (end > self._limit and (end > self._write_limit or is_stored(segment, len(batch))))
            or max_timestamp > self._roll_after
            or next_offset > self._roll_offset
            or leader_epoch != self._latest_epoch
        ):
            segment = self._prepare(len(batch), next_offset, max_timestamp, leader_epoch, now_ms)
            position = segment.size
            end = position + len(batch)
        if end <= segment.ready_bytes and is_stored(segment, len(batch)):
            view: Any = segment.map
            view[position + STAMP_SIZE : end] = batch[STAMP_SIZE:]
            STAMP.pack_into(
                view, position, base_offset, end - position - LOG_OVERHEAD, leader_epoch
            )
        else:
            stamp = STAMP.pack(base_offset, end - position - LOG_OVERHEAD, leader_epoch)
            write_batch(segment, position, batch, stamp)
        if max_timestamp > segment.max_timestamp_so_far:
            segment.max_timestamp_so_far = max_timestamp
            segment.max_timestamp_offset = next_offset - 1
        if position > self._index_after:
            self._index(segment, position, next_offset - 1)
        segment.size = end
        self.log_end_offset = next_offset
        if self._store_position is not None:
            self._store_position(segment.base_offset, end, next_offset)
        return base_offset

    def _find_aborted(self, base_offset: int) -> list[AbortedTransaction]:
        return find_aborted(self, base_offset)

    def skip_to(self, offset: int) -> None:
        """Go on at a higher offset: a follower whose leader has compacted what was between."""
        assert offset >= self.log_end_offset
        self.log_end_offset = offset

    def _index(self, segment: Segment, position: int, last_offset: int) -> None:
        """Index the batch at `position`, more than `index.interval.bytes` after the last one."""
        self._index_after = position + self.config.index_interval_bytes
        add_index_entry(segment, position, last_offset)
        if self._is_index_full():
            self._limit = self._write_limit = 0  # Let the next append roll.
        self._snapshot_after -= 1
        if self._snapshot_after <= 0:
            self.snapshot_producers()

    def _prepare(
        self, need: int, next_offset: int, max_timestamp: int, leader_epoch: int, now_ms: int
    ) -> Segment:
        """Make the active segment ready for a batch: roll it, grow it, begin an epoch."""
        # Whatever the disk refuses, the next batch comes here as well.
        self._limit = self._write_limit = 0
        segment = self.active
        assert segment is self.segments[-1], "a cut was refused half way: the next start does it"
        if segment.size and is_roll_due(self, need, next_offset, max_timestamp, now_ms):
            segment = roll_over(self, need, now_ms)
        self.are_names_new |= segment.map is None
        make_ready(segment, need, now_ms, self.config.segment_bytes)
        if not segment.size:
            segment.first_timestamp = max_timestamp
            segment.created_ms = now_ms
        self._set_limits()
        if leader_epoch != self._latest_epoch:
            self.begin_epoch(leader_epoch)
        return segment

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that the next batch is of this leader epoch."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)
        self.write_epochs()
        self._latest_epoch = leader_epoch

    def write_epochs(self) -> StorageFault | None:
        """Bring the leader epochs to their file: durably where no batch here could say some of them
        again, as the remote store alone has those. The fault if the disk refuses."""
        is_only_copy = self.log_start_offset < self.local_start_offset
        return self.leader_epochs.write(is_synced=is_only_copy)

    def _set_limits(self) -> None:
        segment, config = self.active, self.config
        most = max(config.segment_bytes, segment.size)
        self._limit = min(segment.ready_bytes, most)
        self._write_limit = min(segment.allocated_bytes, most)
        self._roll_offset = segment.base_offset + OFFSETS_MAX
        self._roll_after = _LATEST_MS
        if segment.first_timestamp >= 0:
            self._roll_after = segment.first_timestamp + self.roll_ms
        if segment.map is None or self._is_index_full():
            self._limit = self._write_limit = 0

    def _is_index_full(self) -> bool:
        """Whether the next append rolls, however small it is."""
        return self.active.offset_index.is_full() or self.active.time_index.is_full()

    # --- segments ---

    def roll(self, now_ms: int = 0) -> None:
        """Start a new segment, unless the active one is empty."""
        if self.active.size:
            self._limit = self._write_limit = 0
            roll_over(self, 0, now_ms)

    def new_segment(self, base_offset: int, now_ms: int, *, is_found: bool = False) -> Segment:
        """A segment of this log that is not part of it yet; no file is touched.

        is_found: its files are there.
        """
        return Segment(
            self.directory,
            base_offset,
            self.config,
            self.new_file_id(),
            self._descriptors,
            created_ms=now_ms,
            is_found=is_found,
        )

    def new_file_id(self) -> int:
        """A number that no other file had or will have."""
        return next(self._file_ids)

    def add_segment(self, segment: Segment) -> None:
        """Make it the active one: empty, and beginning at the log end offset."""
        segment.set_max_timestamp(-1, -1)
        self.segments.append(segment)
        self.activate()

    def activate(self) -> None:
        """Take the last segment as active and reckon its limits again."""
        segment = self.active = self.segments[-1]
        self._closed_bytes = -1
        last = segment.offset_index.last()
        self._index_after = self.config.index_interval_bytes + (last[1] if last else 0)
        # The leader-epoch file is written before the first batch of a new epoch.
        self._latest_epoch = self.leader_epochs.latest if self.leader_epochs.is_written else -1
        self.roll_ms = drawn_roll_ms(self.config)
        self._set_limits()

    def populate_step(self, now_ms: int) -> bool:
        """Ready up to 1 MiB ahead of the end for storing; True if more is worth it.

        For the time between turns. StorageFault if the disk is bad; a full one isn't said here.
        """
        if not self._limit:
            return False
        is_more = populate_step(self.active, now_ms, self.config.segment_bytes)
        self._set_limits()
        return is_more

    def park(self) -> None:
        """Give back what an idle log holds: the map, allocated space, descriptors."""
        self._limit = self._write_limit = 0
        self.active.park()

    def set_config(self, config: LogConfig) -> None:
        """Take new settings; they count from the next append on."""
        self.config = config
        for index in (self.active.offset_index, self.active.time_index):
            index.bytes_max = config.segment_index_bytes
        self.roll_ms = drawn_roll_ms(self.config)
        self._set_limits()

    @property
    def size_bytes(self) -> int:
        """Valid bytes of all segments; looks at each only where they have changed since."""
        if self._closed_bytes < 0:
            self._closed_bytes = sum(segment.size for segment in self.segments[:-1])
        return self._closed_bytes + self.active.size

    # --- read ---

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool = True,
        *,
        is_judged: bool = True,
    ) -> tuple[Segment, int, int] | None:
        """(segment, position, length) of whole batches from the one with `offset` on.

        At most `max_bytes`, except for the first batch if `min_one_batch`; only one segment; only
        what lies before `end_offset`, a batch boundary (high watermark, last stable offset, or log
        end offset). Length 0: nothing there yet, or nothing small enough. None: `offset` is out of
        range, or not here (before `local_start_offset`). The slice stays valid whatever happens.
        ColdBytes: while waiting is refused, where the disk would be waited for; see `residency`.
        CorruptFault where the first batch is damaged; a damaged one behind it ends the slice. Not
        judged, that is the caller's to find out.
        """
        place = self.boundaries.get(offset)
        if place is None or (place[1] == place[0].size and place[0] is not self.active):
            if not self.local_start_offset <= offset <= self.log_end_offset:
                return None
            if offset >= end_offset:
                return self.active, 0, 0
            if offset == self.active.base_offset:
                place = self.active, 0  # without a look at the file
            else:
                place = locate(self, offset)
        segment, position = place
        if segment is self.active:
            if end_offset >= self.log_end_offset:
                limit, next_offset = segment.size, self.log_end_offset
            else:
                limit, next_offset = end_in(self, segment, end_offset), end_offset
        elif segment.end_offset <= end_offset:
            limit, next_offset = segment.size, segment.end_offset
        else:
            limit, next_offset = end_in(self, segment, end_offset), end_offset
        length = limit - position
        if length > max_bytes:
            limit, next_offset = shorten(segment, position, max_bytes, min_one_batch)
            length = limit - position
        if length <= 0:
            return segment, position, 0
        if position < segment.unjudged_bytes and is_judged:
            is_dense = 0 <= self.cleaned_offset <= offset and not self.config.is_compacted
            end_of_all = self.log_end_offset if segment is self.active else segment.end_offset
            end, following = judge(segment, position, limit, offset if is_dense else -1, end_of_all)
            if end < limit:
                limit, next_offset = end, following
                length = limit - position
        remember(self.boundaries, next_offset, segment, limit)
        if segment is not self.active:
            segment.read_ahead(limit, max_bytes)
        return segment, position, length

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # --- what else follows the segments ---

    def store_position(self) -> None:
        """Publish where the log ends, as every append does."""
        if self._store_position is not None:
            active = self.active
            self._store_position(active.base_offset, active.size, self.log_end_offset)

    def find_local_start(self) -> None:
        """Follow `segments` and the log start offset, one of which has changed."""
        self.local_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self._check_order()

    def _check_order(self) -> None:
        """Hold the offsets to what is drawn above; not after each append, which only moves the
        end on."""
        end_offset = self.log_end_offset
        assert self.log_start_offset <= self.local_start_offset <= end_offset, self.directory
        assert self.recovery_point <= end_offset, self.directory

    def drop_epochs_from(self, offset: int) -> None:
        """Forget the leader epochs that would begin at `offset` or behind it."""
        self.leader_epochs.truncate_from_end(offset)
        self._latest_epoch = self.leader_epochs.latest

    def on_segments_changed(self) -> None:
        """Forget what was known by the segments: some were taken out, replaced or cut, or are about
        to be."""
        self._limit = self._write_limit = 0
        self._closed_bytes = -1
        self.boundaries.clear()

    def snapshot_producers(self) -> None:
        """Write the producer state before the log end offset, if it is not written yet."""
        self._snapshot_after = self.config.producer_snapshot_interval
        self.snapshots.take(self.log_end_offset, (segment.base_offset for segment in self.segments))

    # --- durability ---

    def on_flushed(self, recovery_point: int) -> None:
        """Note that everything before this offset is durable."""
        if self.recovery_point < recovery_point <= self.log_end_offset:
            self.recovery_point = recovery_point
            self._check_order()

    def flush(self) -> None:
        """Make everything durable, here and now: for closing, tests and the metadata log."""
        sync(self)

    def close(self, clean: bool) -> None:
        """Let go of all files. Clean: cut them to their content, snapshot, and flush first."""
        if clean and finish(self):
            self.flush()
        self.let_go()

    def let_go(self) -> None:
        """Close what is open; the files stay as they are."""
        for segment in self.segments:
            segment.close()
        self._limit = self._write_limit = 0
