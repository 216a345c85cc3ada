"""The log of one partition: its segments in offset order, written by one process.

   segments   [ 0 … 811 ][ 812 … 1 402 ][ 1 403 …            ]
                                          active: mapped, appended to
   offsets      log_start_offset <= local_start_offset <= recovery_point <= log_end_offset

Rules
 * One writer. `append` is the hot path of leaders: the caller has judged the batch (size, CRC,
   sequence); here it is copied, stamped and indexed. Its first 16 bytes are stored last, so a
   writer that dies half way leaves zeros where the next batch would begin.
 * Everything besides the .log files is derived, and rebuilt where it is missing or wrong.
 * The high watermark lives with the replica, not here: readers pass the end that they may see, and
   `truncate_to` trusts its caller to stay above it. What of the transactions is undecided
   (`producers`) and which were aborted (`aborted`) follows from the batches; whoever appends tells
   it of each one (`append_marker`, `note_marker`, `producers.begin`).
 * What lies between log_start_offset and local_start_offset is in a second store (`tier`); here
   only the leader epochs of it are known. Without tiering the two are the same.
 * Truncation cuts the file: bytes behind the end read as zeros for ever after.

Recovery is in `recovery`, what to delete in `retention`.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Protocol

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import sync_names
from shmbroker.log.compaction.cleaned_files import (
    CLEANED,
    DELETED,
    SWAP,
    deleted_paths,
    rename_files,
)
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import (
    DELETE,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    file_name,
    marked_directory,
    parse_partition_directory,
)
from shmbroker.log.leader_epochs import LeaderEpochs
from shmbroker.log.producer_state import ProducerState
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.residency import ColdBytes
from shmbroker.log.segment import OFFSETS_MAX, WRITE_BYTES_MIN, Segment
from shmbroker.log.transaction_index import AbortedTransaction, AbortedTransactions
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAX_TIMESTAMP,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    STAMP,
    STAMP_SIZE,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.records.time_lookup import first_not_older
from shmbroker.signs import waiting_for_disk

NEVER = 2**63 - 1
_BOUNDARIES_KEPT = 64
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_UINT32 = Struct(">I")


class PositionSlot(Protocol):
    """Where the end of the log survives the death of its process."""

    def store(self, base: int, position: int, end: int) -> None: ...


class PartitionLog:
    """Append to, read and cut one partition's log. Make one with `PartitionLog.open`."""

    __slots__ = (
        "_boundaries",
        "_closed_bytes",
        "_descriptors",
        "_file_ids",
        "_index_after",
        "_latest_epoch",
        "_limit",
        "_position_slot",
        "_roll_after",
        "_roll_ms",
        "_roll_offset",
        "_snapshot_after",
        "_store_position",
        "aborted",
        "active",
        "are_names_new",
        "cleaned_offset",
        "config",
        "damage_count",
        "directory",
        "is_only_replica",
        "is_start_raised",
        "leader_epochs",
        "local_start_offset",
        "log_end_offset",
        "log_start_offset",
        "on_cut",
        "producers",
        "recovery_point",
        "retired",
        "rolled",
        "segments",
        "snapshot_offsets",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        file_ids: Iterator[int],
        position_slot: PositionSlot | None,
        descriptors: Descriptors | None,
    ) -> None:
        self.directory = directory
        self.config = config
        self._file_ids = file_ids
        self._descriptors = descriptors or Descriptors()
        self._position_slot = position_slot
        self._store_position = position_slot.store if position_slot else None
        self.segments: list[Segment] = []
        """By base offset; never empty once open, the last one is `active`."""
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
        """Nobody else has what is damaged here: what is whole behind it is kept."""
        self.damage_count = 0
        """Things that were named when it was opened, as they are lost or can't be."""
        self.leader_epochs = LeaderEpochs(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
        self.producers = ProducerState()
        self.aborted = AbortedTransactions(directory, self._find_aborted)
        self.retired: list[Segment] = []
        """No longer of this log; their files wait under `.deleted` (`deleted_paths`) for the owner
        of the log directory to unlink them, as answers under way may still name them."""
        self.snapshot_offsets: list[int] = []
        """Offsets of the producer snapshots on disk, ascending."""
        self._boundaries: dict[int, tuple[Segment, int]] = {}
        """offset -> (segment, position) of batch boundaries where a reader stopped lately."""
        self._closed_bytes = -1
        """Valid bytes of all segments but the active one; negative: to be added up anew."""
        self._latest_epoch = -1
        # The active segment takes appends as they are up to these; beyond, `_prepare` looks.
        self._limit = 0
        self._roll_after = NEVER
        self._roll_ms = config.roll_ms
        self._roll_offset = 0
        self._index_after = 0
        self._snapshot_after = config.producer_snapshot_interval
        self.rolled: list[Segment] = []
        """Finished since the last flush, or nobody knows when."""
        self.are_names_new = False
        """Files were made, renamed or removed that the next flush has to make durable."""
        self.on_cut: Callable[[int], None] | None = None
        """Told of the new end before a cut: no checkpoint may be ahead of it."""
        self.is_start_raised = False
        """By DeleteRecords, and no checkpoint says so yet."""

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        *,
        file_ids: Iterator[int],
        position_slot: PositionSlot | None = None,
        trusted: tuple[int, int, int] | None = None,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        decided_below: int = NEVER,
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
        high watermark, as far as it is known. cleaned_offset: how
        far compaction has been, and may have left holes; 0: nowhere, -1: nobody knows. Where what
        is trusted turns out wrong, it is scanned too.

        `file_ids` gives numbers that are never used twice; `descriptors` bounds the open files of
        all logs that share it. StorageFault if the disk fails; CorruptFault never for a torn tail.
        """
        from shmbroker.log.recovery import load

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
                    raise StorageFault(f"can't open {directory}: {fault}") from fault
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
            end > self._limit
            or max_timestamp > self._roll_after
            or next_offset > self._roll_offset
            or leader_epoch != self._latest_epoch
        ):
            segment = self._prepare(len(batch), next_offset, max_timestamp, leader_epoch, now_ms)
            position = segment.size
            end = position + len(batch)
        if end <= segment.ready_bytes and end - position < WRITE_BYTES_MIN:
            view: Any = segment.map
            view[position + STAMP_SIZE : end] = batch[STAMP_SIZE:]
            STAMP.pack_into(
                view, position, base_offset, end - position - LOG_OVERHEAD, leader_epoch
            )
        else:
            stamp = STAMP.pack(base_offset, end - position - LOG_OVERHEAD, leader_epoch)
            segment.write(position, batch, stamp)
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

    def append_marker(
        self, marker: EndMarker, timestamp: int, leader_epoch: int, now_ms: int
    ) -> int:
        """Append the marker that ends a transaction, as leader, and give its offset.

        The caller has asked `producers.check_marker`. Faults as `append`.
        """
        batch = memoryview(encode_marker(marker, timestamp))
        append = self.append
        if self.config.is_log_append_time:
            append, timestamp = self.append_stamped, now_ms
        offset = append(batch, 0, timestamp, leader_epoch, now_ms)
        self.note_marker(marker, offset, timestamp)
        return offset

    def note_marker(self, marker: EndMarker, offset: int, timestamp: int) -> None:
        """A marker was appended at `offset`, the last one of the log: its transaction is ended."""
        ended = self.producers.end(marker, offset, timestamp)
        if ended is not None and not marker.is_commit:
            first_offset, stable_end = ended
            self.are_names_new = True
            self.aborted.append(
                self.active.base_offset,
                AbortedTransaction(marker.producer_id, first_offset, offset, stable_end),
            )

    def _find_aborted(self, base_offset: int) -> list[AbortedTransaction]:
        from shmbroker.log.recovery import find_aborted

        return find_aborted(self, base_offset)

    def skip_to(self, offset: int) -> None:
        """Go on at a higher offset: a follower whose leader has compacted what was between."""
        assert offset >= self.log_end_offset
        self.log_end_offset = offset

    def append_stamped(
        self,
        batch: memoryview,
        last_offset_delta: int,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """As `append`, where the header has another timestamp type or maximum than it must; slower.

        It gets the topic's type and `max_timestamp`: on a LogAppendTime topic the time of all its
        records, on a CreateTime topic the largest of them. Its CRC is made anew.
        """
        copy = bytearray(batch)
        (attributes,) = _INT16.unpack_from(copy, ATTRIBUTES_POSITION)
        if self.config.is_log_append_time:
            attributes |= TIMESTAMP_TYPE_BIT
        else:
            attributes &= ~TIMESTAMP_TYPE_BIT
        _INT16.pack_into(copy, ATTRIBUTES_POSITION, attributes)
        _INT64.pack_into(copy, MAX_TIMESTAMP_POSITION, max_timestamp)
        view = memoryview(copy)
        _UINT32.pack_into(copy, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
        return self.append(view, last_offset_delta, max_timestamp, leader_epoch, now_ms)

    def _index(self, segment: Segment, position: int, last_offset: int) -> None:
        """Index the batch at `position`, more than `index.interval.bytes` after the last one."""
        self._index_after = position + self.config.index_interval_bytes
        segment.add_index_entry(position, last_offset)
        if segment.offset_index.is_full():
            self._limit = 0  # Let the next append roll.
        self._snapshot_after -= 1
        if self._snapshot_after <= 0:
            self.snapshot_producers()

    def _prepare(
        self, need: int, next_offset: int, max_timestamp: int, leader_epoch: int, now_ms: int
    ) -> Segment:
        """Make the active segment ready for a batch: roll it, grow it, begin an epoch."""
        segment = self.active
        if segment.size and self._is_roll_due(need, next_offset, max_timestamp, now_ms):
            segment = self._roll(need, now_ms)
        self.are_names_new |= segment.map is None
        segment.make_ready(need, now_ms, self.config.segment_bytes)
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
        self.leader_epochs.write()
        self._latest_epoch = leader_epoch

    def _set_limits(self) -> None:
        segment, config = self.active, self.config
        self._limit = min(segment.ready_bytes, max(config.segment_bytes, segment.size))
        self._roll_offset = segment.base_offset + OFFSETS_MAX
        self._roll_after = NEVER
        if segment.first_timestamp >= 0:
            self._roll_after = segment.first_timestamp + self._roll_ms
        if segment.map is None:
            self._limit = 0

    def _is_roll_due(self, need: int, next_offset: int, max_timestamp: int, now_ms: int) -> bool:
        segment, config = self.active, self.config
        if segment.first_timestamp >= 0 and max_timestamp >= 0:
            waited_ms = max_timestamp - segment.first_timestamp
        else:
            waited_ms = now_ms - segment.created_ms
        return (
            segment.size + need > config.segment_bytes
            or waited_ms > self._roll_ms
            or segment.offset_index.is_full()
            or segment.time_index.is_full()
            or next_offset > self._roll_offset
        )

    # --- segments ---

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll if the active segment is full or old enough; True if it did."""
        if self.active.size and self._is_roll_due(0, self.log_end_offset, now_ms, now_ms):
            self._roll(0, now_ms)
            return True
        return False

    def roll(self, now_ms: int = 0) -> None:
        """Start a new segment, unless the active one is empty."""
        if self.active.size:
            self._roll(0, now_ms)

    def _roll(self, need: int, now_ms: int) -> Segment:
        old = self.active
        new = self.new_segment(self.log_end_offset, now_ms, old.extent_bytes)
        if need:
            # First of all, so that a full disk leaves everything as it was.
            new.make_ready(need, now_ms, self.config.segment_bytes)
            self.are_names_new = True
        old.end_offset = self.log_end_offset
        old.finish()
        self.rolled.append(old)
        self.add_segment(new)
        self.snapshot_producers()
        return new

    def new_segment(
        self, base_offset: int, now_ms: int, extent_bytes: int = 0, *, is_found: bool = False
    ) -> Segment:
        """A segment of this log that is not part of it yet; no file is touched.

        is_found: its files are there.
        """
        segment = Segment(
            self.directory,
            base_offset,
            self.config,
            next(self._file_ids),
            self._descriptors,
            created_ms=now_ms,
            is_found=is_found,
        )
        if extent_bytes:
            segment.extent_bytes = extent_bytes
        return segment

    def add_segment(self, segment: Segment) -> None:
        """Make it the active one: empty, and beginning at the log end offset."""
        segment.set_max_timestamp(-1, -1)
        self.segments.append(segment)
        self.activate()

    def activate(self) -> None:
        """Take the last segment as active and reckon its limits anew."""
        segment = self.active = self.segments[-1]
        self._closed_bytes = -1
        last = segment.offset_index.last()
        self._index_after = self.config.index_interval_bytes + (last[1] if last else 0)
        # One that is not in its file yet must be, before the first batch of it.
        self._latest_epoch = self.leader_epochs.latest if self.leader_epochs.is_written else -1
        self._draw_roll_ms()
        self._set_limits()

    def _draw_roll_ms(self) -> None:
        """How old the active segment gets; with jitter, so that logs don't all roll at once."""
        config = self.config
        self._roll_ms = config.roll_ms
        if jitter_ms := min(config.segment_jitter_ms, config.roll_ms):
            self._roll_ms -= int.from_bytes(os.urandom(8), "little") % jitter_ms

    def populate_step(self, now_ms: int) -> bool:
        """Ready up to 1 MiB ahead of the end for storing; True if more is worth it.

        For the time between turns. StorageFault if the disk is bad; a full one isn't said here.
        """
        if not self._limit:
            return False
        is_more = self.active.populate_step(now_ms, self.config.segment_bytes)
        self._set_limits()
        return is_more

    def park(self) -> None:
        """Give back what an idle log holds: the map, allocated space, descriptors."""
        self.active.park()
        self._limit = 0

    def set_config(self, config: LogConfig) -> None:
        """Take new settings; they count from the next append on."""
        self.config = config
        for index in (self.active.offset_index, self.active.time_index):
            index.bytes_max = config.segment_index_bytes
        self._draw_roll_ms()
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
        place = self._boundaries.get(offset)
        if place is None or (place[1] == place[0].size and place[0] is not self.active):
            if not self.local_start_offset <= offset <= self.log_end_offset:
                return None
            if offset >= end_offset:
                return self.active, 0, 0
            if offset == self.active.base_offset:
                place = self.active, 0  # without a look at the file
            else:
                place = self._locate(offset)
        segment, position = place
        if segment is self.active:
            if end_offset >= self.log_end_offset:
                limit, next_offset = segment.size, self.log_end_offset
            else:
                limit, next_offset = self._end_in(segment, end_offset), end_offset
        elif segment.end_offset <= end_offset:
            limit, next_offset = segment.size, segment.end_offset
        else:
            limit, next_offset = self._end_in(segment, end_offset), end_offset
        length = limit - position
        if length > max_bytes:
            limit, next_offset = self._shorten(segment, position, max_bytes, min_one_batch)
            length = limit - position
        if length <= 0:
            return segment, position, 0
        if position < segment.unjudged_bytes and is_judged:
            is_dense = 0 <= self.cleaned_offset <= offset and not self.config.is_compacted
            end_of_all = self.log_end_offset if segment is self.active else segment.end_offset
            end, following = segment.judge(position, limit, offset if is_dense else -1, end_of_all)
            if end < limit:
                limit, next_offset = end, following
                length = limit - position
        self._remember(next_offset, segment, limit)
        if segment is not self.active:
            segment.read_ahead(limit, max_bytes)
        return segment, position, length

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        boundaries = self._boundaries
        if offset not in boundaries:
            if len(boundaries) >= _BOUNDARIES_KEPT:
                del boundaries[next(iter(boundaries))]
            boundaries[offset] = segment, position

    def _shorten(
        self, segment: Segment, position: int, max_bytes: int, min_one_batch: bool
    ) -> tuple[int, int]:
        try:
            end, next_offset = segment.whole_batches(position, position + max_bytes)
        except ColdBytes:
            segment.read_ahead(position, max_bytes)
            raise
        if end == position and min_one_batch:
            for found, header in segment.headers(position, segment.size):
                return found + header[H_LENGTH] + LOG_OVERHEAD, header[H_BASE_OFFSET] + header[
                    H_LAST_OFFSET_DELTA
                ] + 1
        return end, next_offset

    def _end_in(self, segment: Segment, end_offset: int) -> int:
        """The position in `segment` where the batches before `end_offset` end."""
        place = self._boundaries.get(end_offset)
        if place is not None and place[0] is segment:
            return place[1]
        if end_offset <= segment.base_offset:
            return 0
        position, _ = segment.find(end_offset)
        self._remember(end_offset, segment, position)
        return position

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """(segment, position) of the batch with `offset`, or the next one behind a gap."""
        number = self.segment_number(offset)
        while True:
            segment = self.segments[number]
            position, header = segment.find(offset)
            if segment is self.active:
                return segment, position
            if header is None:
                if 0 <= self.cleaned_offset <= offset and not self.config.is_compacted:
                    raise CorruptFault(f"{segment.path} does not hold offset {offset}")
            elif header[H_BASE_OFFSET] < segment.end_offset:
                return segment, position
            else:
                raise CorruptFault(
                    f"{segment.path} holds offset {header[H_BASE_OFFSET]}: it is another's"
                )
            number += 1

    def segment_number(self, offset: int) -> int:
        """Place in `segments` of the one whose offsets include `offset`."""
        segments = self.segments
        if offset >= segments[-1].base_offset:
            return len(segments) - 1
        number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        return max(number, 0)

    def translate(self, offset: int) -> tuple[Segment, int] | None:
        """(segment, position) where the batch with `offset` begins; None if it isn't here."""
        if not self.local_start_offset <= offset <= self.log_end_offset:
            return None
        return self._locate(offset)

    def segments_up_to(self, end_offset: int) -> list[tuple[str, int, int, int, int, int]]:
        """(file name, inode, base offset, end offset, valid bytes, max timestamp) of each segment.

        For readers outside the family: nothing in it is at or beyond `end_offset`, and what it
        names never changes.
        """
        result = []
        for segment in self.segments:
            if segment.base_offset >= end_offset or not segment.size:
                continue
            end = self.log_end_offset if segment is self.active else segment.end_offset
            valid_bytes = segment.size
            if end > end_offset:
                end, valid_bytes = end_offset, self._end_in(segment, end_offset)
            if valid_bytes:
                result.append(
                    (
                        file_name(segment.base_offset, LOG),
                        segment.inode,
                        segment.base_offset,
                        end,
                        valid_bytes,
                        segment.max_timestamp,
                    )
                )
        return result

    def aborted_in(
        self, offset: int, segment: Segment, end_position: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records in what `read` gave from `offset` on, which ends
        at `end_position` of the segment; nothing of it lies at or beyond `end_offset`."""
        if not self.aborted:
            return []
        end_offset = min(end_offset, self._offset_at(segment, end_position))
        return self.aborted.find(offset, end_offset)

    def _offset_at(self, segment: Segment, position: int) -> int:
        """One past the last offset of the batches of a segment that end at `position`."""
        if position == segment.size:
            return self.log_end_offset if segment is self.active else segment.end_offset
        for offset, place in reversed(self._boundaries.items()):
            if place == (segment, position):
                return offset
        return segment.end_before(position)

    # --- lookups ---

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record that is not older than `timestamp`, or None."""
        for segment in self.segments:
            if segment.max_timestamp < timestamp or not segment.size:
                continue
            first = segment.offset_before(timestamp)
            position, _ = segment.find(max(first, self.local_start_offset))
            for found, header in segment.headers(position, segment.size):
                if header[H_MAX_TIMESTAMP] >= timestamp:
                    record = self._record_in(segment, found, header, timestamp)
                    if record is not None:
                        return record
        return None

    def max_timestamp(self) -> tuple[int, int]:
        """(timestamp, offset) of the first record with the largest timestamp; (-1, -1) if none."""
        best = max(self.segments, key=lambda segment: segment.max_timestamp)
        timestamp = best.max_timestamp
        if timestamp < 0:
            return -1, -1
        position, _ = best.find(best.max_timestamp_offset)
        for found, header in best.headers(position, best.size):
            if header[H_MAX_TIMESTAMP] >= timestamp:
                record = self._record_in(best, found, header, timestamp)
                if record is not None:
                    return record
        return -1, -1

    def _record_in(
        self, segment: Segment, position: int, header: tuple[int, ...], timestamp: int
    ) -> tuple[int, int] | None:
        """The first readable record of a batch that is not older than `timestamp`."""
        if (
            header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT
            and header[H_COUNT] == header[H_LAST_OFFSET_DELTA] + 1
        ):
            return header[H_MAX_TIMESTAMP], max(header[H_BASE_OFFSET], self.log_start_offset)
        return first_not_older(segment.batch_at(position), timestamp, self.log_start_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # --- cutting ---

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on, durably; True if there was anything.

        A batch that straddles `offset` goes as a whole, and the log then ends where it began.
        """
        if offset >= self.log_end_offset:
            # Epochs that have begun there without a batch go all the same.
            self.leader_epochs.truncate_from_end(offset)
            self._latest_epoch = self.leader_epochs.latest
            return False
        if self.on_cut is not None:
            self.on_cut(offset)
        self._boundaries.clear()
        if offset <= self.segments[0].base_offset:
            self.truncate_fully(offset, min(self.log_start_offset, offset))
            return True
        while self.segments[-1].base_offset >= offset:
            self.segments.pop().remove()
        segment = self.segments[-1]
        self.aborted.keep(0, segment.base_offset)
        position, header = segment.find(offset)
        end_offset = header[H_BASE_OFFSET] if header is not None else offset
        segment.truncate(position, min(end_offset, offset))
        sync_names(self.directory)
        self._end_at(segment.end_offset)
        return True

    def truncate_fully(self, new_start_offset: int, log_start: int | None = None) -> None:
        """Drop everything; the log goes on, empty, at `new_start_offset`.

        log_start: the log start offset, where it is less, as what lies between is in the store.
        """
        if self.on_cut is not None:
            self.on_cut(new_start_offset)
        self._boundaries.clear()
        for segment in self.segments:
            segment.remove()
        self.segments.clear()
        self.aborted.keep(0, -1)
        segment = self.new_segment(new_start_offset, 0)
        segment.create_files()
        self.add_segment(segment)
        sync_names(self.directory)
        self.log_start_offset = new_start_offset if log_start is None else log_start
        self._end_at(new_start_offset)

    def _end_at(self, end_offset: int) -> None:
        """Let everything derived follow a cut at `end_offset`."""
        from shmbroker.log.recovery import rebuild_producers

        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.find_local_start()
        self.recovery_point = min(self.recovery_point, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        self.leader_epochs.write()
        self.activate()
        self.remove_snapshots_behind(end_offset)
        rebuild_producers(self)
        self.store_position()

    def hold(self, start_offset: int, end_offset: int, until_ms: int) -> None:
        """Files with offsets of this range are not unlinked before `until_ms`, though they may be
        taken out of the log: for queries that were planned by them."""
        for segment in self.segments:
            is_reached = segment is self.active or segment.end_offset > start_offset
            if is_reached and segment.base_offset < end_offset:
                segment.held_until_ms = max(segment.held_until_ms, until_ms)

    def store_position(self) -> None:
        """Publish where the log ends, as every append does."""
        if self._store_position is not None:
            active = self.active
            self._store_position(active.base_offset, active.size, self.log_end_offset)

    def delete_segments_before(self, offset: int) -> int:
        """Take out the finished segments that end at or before `offset` (`retired`); how many."""
        count = self._retire_segments_before(offset)
        if count:
            self.advance_log_start(self.segments[0].base_offset)
        return count

    def delete_local_before(self, offset: int) -> int:
        """The same where the store has them: the log start offset stays; how many."""
        count = self._retire_segments_before(offset)
        if count:
            self.find_local_start()
            self._remove_old_snapshots()
        return count

    def _retire_segments_before(self, offset: int) -> int:
        count = 0
        while self.segments[0] is not self.active and self.segments[0].end_offset <= offset:
            self._set_aside(self.segments[0])
            self.retired.append(self.segments.pop(0))
            self._closed_bytes = -1
            count += 1
        if count:
            self._boundaries.clear()
            first = self.segments[0].base_offset
            self.aborted.keep(first, self.active.base_offset)
            self.rolled = [segment for segment in self.rolled if segment.base_offset >= first]
        return count

    def _set_aside(self, segment: Segment) -> None:
        segment.close()
        rename_files(self.directory, segment.base_offset, "", DELETED)
        segment.path += DELETED  # Slices of it may still be asked for.

    def find_local_start(self) -> None:
        """Follow `segments` and the log start offset, one of which has changed."""
        self.local_start_offset = max(self.log_start_offset, self.segments[0].base_offset)

    # --- compaction ---

    def prepare_swap(self, groups: list[tuple[list[Segment], int]]) -> None:
        """Step A of `cleaned_files`, without making it durable: that is the caller's.

        groups: the segments that become one, and the size of that one.
        """
        for old, _ in reversed(groups):
            rename_files(self.directory, old[0].base_offset, CLEANED, SWAP)  # A

    def replace_segments(self, groups: list[tuple[list[Segment], int]], now_ms: int) -> list[str]:
        """Steps B and C: compacted segments in the place of the old ones; what to unlink later.

        A StorageFault leaves files and segments apart: the process must end, the next start mends.
        """
        paths = []
        for old, size in groups:
            place = self.segments.index(old[0])
            assert self.segments[place : place + len(old)] == old, "the log has changed meanwhile"
            for segment in old:
                self._set_aside(segment)  # B
                self.aborted.dropped(segment.base_offset)
                paths += deleted_paths(self.directory, segment.base_offset)
            new = self.new_segment(old[0].base_offset, now_ms)
            new.size, new.end_offset = size, old[-1].end_offset
            rename_files(self.directory, new.base_offset, SWAP, "")  # C
            if os.path.exists(self.aborted.path(new.base_offset)):
                self.aborted.found(new.base_offset)
            self.segments[place : place + len(old)] = [new]
        self._closed_bytes = -1
        self._boundaries.clear()
        self._prune_snapshots()
        return paths

    def put_aside_stray(self, segment: Segment) -> None:
        """Take out a segment that begins within the one before it."""
        from shmbroker.log.recovery import put_stray_aside

        put_stray_aside(self, self.segments.index(segment))
        self._closed_bytes = -1
        self._boundaries.clear()

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset (retention, DeleteRecords); files stay until retention."""
        if offset <= self.log_start_offset:
            return
        assert offset <= self.log_end_offset
        self.log_start_offset = offset
        self.find_local_start()
        self._boundaries.clear()
        self.leader_epochs.truncate_from_start(offset)
        self.leader_epochs.write()
        self._remove_old_snapshots()

    def _remove_old_snapshots(self) -> None:
        """Those from before the first segment: nothing is rebuilt from them."""
        for snapshot in [
            taken for taken in self.snapshot_offsets[:-1] if taken < self.segments[0].base_offset
        ]:
            self._remove_snapshot(snapshot)

    # --- producer snapshots ---

    def snapshot_producers(self) -> None:
        """Write the producer state before the log end offset, if it is not written yet."""
        self._snapshot_after = self.config.producer_snapshot_interval
        offset = self.log_end_offset
        if offset in self.snapshot_offsets:
            return
        try:
            self.aborted.write()
            self.producers.write_snapshot(os.path.join(self.directory, file_name(offset, SNAPSHOT)))
        except StorageFault:
            return  # It only saves a walk.
        self.snapshot_offsets.append(offset)
        self._prune_snapshots()

    def remove_snapshots_behind(self, offset: int) -> None:
        """Those that a log which ends at `offset` can't have."""
        for snapshot in [taken for taken in self.snapshot_offsets if taken > offset]:
            self._remove_snapshot(snapshot)

    def _prune_snapshots(self) -> None:
        """Between segments' beginnings only the newest two are worth keeping."""
        bases = {segment.base_offset for segment in self.segments}
        for taken in self.snapshot_offsets[:-2]:
            if taken not in bases:
                self._remove_snapshot(taken)

    def _remove_snapshot(self, offset: int) -> None:
        self.snapshot_offsets.remove(offset)
        try:
            os.unlink(os.path.join(self.directory, file_name(offset, SNAPSHOT)))
        except OSError:
            pass

    # --- durability ---

    def flush_targets(self) -> tuple[list[int], int]:
        """(descriptors, recovery point): what to fdatasync, and what then is durable.

        The caller owns the descriptors: it syncs each in a thread, closes it, and calls
        `on_flushed` with the recovery point. A failed sync must never be tried again.
        """
        self.aborted.write()
        number = self.segment_number(self.recovery_point)
        first_unflushed = self.segments[number].base_offset
        # A segment is cut to its content when it rolls: that needs a flush after the last append's.
        rolled = [segment for segment in self.rolled if segment in self.segments[:number]]
        if rolled:
            first_unflushed = min(first_unflushed, rolled[0].base_offset)
        paths = self.aborted.paths_from(first_unflushed)
        for segment in rolled + self.segments[number:]:
            if segment.size:
                paths.append(segment.path)
            if segment is not self.active or (segment.map is None and segment.has_indexes()):
                paths += (segment.offset_index.path, segment.time_index.path)
        for offset in reversed(self.snapshot_offsets):
            if offset < self.recovery_point:
                break
            paths.append(os.path.join(self.directory, file_name(offset, SNAPSHOT)))
        if paths:
            # An epoch without a batch needs no file: most partitions of an install are empty.
            self.leader_epochs.write()
        if self.leader_epochs.is_flush_needed:
            paths.append(self.leader_epochs.path)
            self.leader_epochs.is_flush_needed = False
            self.are_names_new = True
        if self.are_names_new:
            identity = os.path.join(self.directory, PARTITION_METADATA)
            if os.path.exists(identity):
                paths.append(identity)
            paths += (self.directory, os.path.dirname(self.directory))
            self.are_names_new = False
        descriptors: list[int] = []
        try:
            for path in paths:
                descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise StorageFault(f"can't open {path} to flush it: {error}") from error
        self.rolled.clear()
        return descriptors, self.log_end_offset

    def on_flushed(self, recovery_point: int) -> None:
        """Note that everything before this offset is durable."""
        if self.recovery_point < recovery_point <= self.log_end_offset:
            self.recovery_point = recovery_point

    def flush(self) -> None:
        """Make everything durable, here and now: for closing, tests and the metadata log."""
        descriptors, recovery_point = self.flush_targets()
        try:
            for descriptor in descriptors:
                with waiting_for_disk():
                    os.fdatasync(descriptor)
        except OSError as error:
            raise StorageFault(f"fdatasync in {self.directory}: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.on_flushed(recovery_point)

    def close(self, clean: bool) -> None:
        """Let go of all files. Clean: cut them to their content, snapshot, and flush first."""
        if clean and self._finish():
            self.flush()
        self._let_go()

    def begin_close(self) -> tuple[list[int], int]:
        """The first half of a clean close: what to fdatasync, as `flush_targets` says it."""
        return self.flush_targets() if self._finish() else ([], self.log_end_offset)

    def end_close(self, recovery_point: int) -> None:
        """The other half, when that is done."""
        self.on_flushed(recovery_point)
        self._let_go()

    def _finish(self) -> bool:
        """Cut the files to their content and snapshot; False if there is nothing to flush."""
        if self._is_as_closed():
            return False
        if self.active.size:
            self.active.finish()
            self.snapshot_producers()
            self.are_names_new = True
        return True

    def _let_go(self) -> None:
        for segment in self.segments:
            segment.close()
        self._limit = 0

    def _is_as_closed(self) -> bool:
        """Nothing was written since a clean close: thousands of idle logs close at once."""
        return (
            self.active.map is None
            and self.recovery_point == self.log_end_offset
            and self.log_end_offset in self.snapshot_offsets
            and self.leader_epochs.is_written
            and not self.leader_epochs.is_flush_needed
        )

    def delete(self, unique_hex: str) -> str:
        """Rename the directory away and close everything; the path to remove later.

        `unique_hex`: 32 hexadecimal digits used for nothing else.
        """
        for segment in self.segments:
            segment.close()
        self._limit = 0
        self.aborted.forget_log()
        parent, name = os.path.split(self.directory)
        parsed = parse_partition_directory(name)
        assert parsed is not None, name
        away = os.path.join(parent, marked_directory(*parsed, DELETE, unique_hex))
        try:
            os.rename(self.directory, away)
        except OSError as error:
            raise StorageFault(f"can't rename {self.directory}: {error}") from error
        return away
