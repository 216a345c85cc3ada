"""Opening a log: find its end, check what must be checked, rebuild what is derived.

   how it ended                   what is trusted        what is read
   a worker under a living        the stored position    the last batch
   supervisor (trusted)
   closed cleanly (clean)         the file sizes         the last batch
   neither                        below the recovery     every batch behind it
                                  point, the sizes

A scanned batch must be whole and right by CRC, continue the offsets, and not fall back to an older
leader epoch: batches left over from before a truncation fail one of these. (Where compaction is or
has been, offsets need only grow.)

   what is wrong                   a torn write              damage
   where                           above the recovery        below it, or where no torn write can
                                   point                     be the cause (`mending`)
   other replicas, or none         cut                       above the recovery point, cut; below it
                                                             stays, and readers are refused
   no other replica                cut                       a hole: what is whole behind is served

Cut: at the first batch that is wrong; later segments go to the quarantine, the file is cut there
and synced before anybody reads. What a power cut has torn must be cut, though whole batches follow:
who sees those must have seen all before them. A hole is noted as compaction's gaps are
(`cleaned_offset`), so that later starts and readers jump over it.

A clean stop left a recovery point that is the log's end: where it isn't, something has changed
since, and the end is scanned. No checkpoint makes a log longer or shorter than its batches: what
none of them bears out is named and not used.
"""

import logging
import os
from collections import deque
from collections.abc import Collection, Iterator

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.log.checkpoints import sync_directory
from shmbroker.log.compaction.cleaned_files import settle
from shmbroker.log.file_names import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
    sort_by_suffix,
)
from shmbroker.log.judging import note_judged
from shmbroker.log.mending import NO_LIMIT, lines_of, look_at, rewrite
from shmbroker.log.offset_index import POSITION
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.quarantine import has_place, put_aside, put_tail_aside
from shmbroker.log.segment import OFFSETS_MAX, Segment
from shmbroker.log.segment_indexes import (
    are_indexes_whole,
    begin_indexes,
    cut_indexes,
    has_indexes,
    indexed_position,
    load_indexes,
    mend_indexes,
    restore_timestamps,
    walk_timestamps,
)
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_LEADER_EPOCH,
    H_LENGTH,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker

logger = logging.getLogger(__name__)

_NEVER = 1 << 63
_WINDOW_ENTRIES = 256
"""Index entries before a snapshot whose batches are walked too: the producers' last five."""


def load(
    log: PartitionLog,
    trusted: tuple[int, int, int] | None,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    decided_below: int,
    now_ms: int,
) -> None:
    """Fill a new PartitionLog from its directory; see `PartitionLog.open`. OSError, too."""
    without_indexes = _list_files(log, now_ms)
    log.log_start_offset = log_start_offset
    if not log.segments:
        _begin(log, now_ms)
    if not log.config.is_tiered:
        log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
    log.recovery_point = recovery_point
    _load_epochs(log)
    if not clean:
        # Nobody knows what the process before had synced, besides what the recovery point says.
        log.are_names_new = True
        log.rolled = log.segments[log.segment_number(max(recovery_point - 1, 0)) : -1]
        log.leader_epochs.is_flush_needed = bool(log.leader_epochs.entries)
    if trusted is not None:
        is_found, is_window_walked = _take_trusted(log, trusted), True
    else:
        is_found, is_window_walked = clean and _take_clean(log, recovery_point), False
    if not is_found:
        is_window_walked = True
        _scan(log, recovery_point)
    _complete_indexes(log, without_indexes)
    log.segments[-1].end_offset = log.log_end_offset
    _judge_ends(log, recovery_point)
    log.find_local_start()
    log.recovery_point = min(log.recovery_point, log.log_end_offset)
    _name_impossible_epochs(log)
    log.leader_epochs.truncate_from_end(log.log_end_offset)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    log.leader_epochs.write()
    log.activate()
    if clean:
        _name_foreign_snapshots(log)
    log.snapshots.remove_behind(log.log_end_offset)
    if not clean:
        _remove_torn_snapshots(log, recovery_point)
    if not (clean or is_found):
        decided_below = min(decided_below, recovery_point)
    rebuild_producers(
        log,
        is_window_walked=is_window_walked,
        now_ms=now_ms or _NEVER,
        decided_below=decided_below,
    )
    if now_ms:
        log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
    log.store_position()


def _begin(log: PartitionLog, now_ms: int) -> None:
    """Give a log without files its first segment."""
    segment = log.new_segment(log.log_start_offset, now_ms)
    segment.set_max_timestamp(-1, -1)
    log.segments.append(segment)
    if log.log_start_offset:
        segment.create_files()


def _complete_indexes(log: PartitionLog, without: Collection[int]) -> None:
    """Make the indexes of finished segments that lack them, as far as the scan has not."""
    for segment in log.segments[:-1]:
        if segment.base_offset in without and not has_indexes(segment):
            if segment.size:
                mend_indexes(segment)
            else:
                segment.create_files()


def _judge_ends(log: PartitionLog, recovery_point: int) -> None:
    """Say where the log's ends can't be what was written down of them, and go by its files."""
    if log.log_end_offset < recovery_point:
        _say(
            log,
            "%s ends at offset %d, and was flushed up to %d: what is between is lost",
            log.segments[-1].path,
            log.log_end_offset,
            recovery_point,
        )
    if log.log_start_offset > log.log_end_offset:
        own = 0 if log.config.is_tiered else log.segments[0].base_offset
        _say(
            log,
            "%s ends at offset %d, and the checkpoint says that it begins at %d: that can't be; it "
            "begins at %d",
            log.directory,
            log.log_end_offset,
            log.log_start_offset,
            own,
        )
        log.log_start_offset = own


def _name_foreign_snapshots(log: PartitionLog) -> None:
    """Say of which producer snapshots the log does not reach the offsets, though it was closed."""
    beyond = [at for at in log.snapshots.offsets if at > log.log_end_offset]
    if beyond:
        _say(
            log,
            "%s ends at offset %d: the producer snapshots at %s are not its",
            log.directory,
            log.log_end_offset,
            ", ".join(map(str, beyond)),
        )


def _say(log: PartitionLog, text: str, *what: object) -> None:
    """Name something of a log that is lost, or can't be; it counts."""
    log.damage_count += 1
    logger.error(text, *what)


def _list_files(log: PartitionLog, now_ms: int) -> set[int]:
    """Segments and snapshots of the directory; what interrupted work left behind is removed.

    The base offsets of the segments that lack an index. No file is looked at: with thousands of
    logs of many segments each, that is what a start would take its time for.
    """
    try:
        try:
            names = os.listdir(log.directory)
        except FileNotFoundError:
            os.makedirs(log.directory)
            names = []
        kinds, others = sort_by_suffix(names)
        if others and settle(log.directory, names, others):
            kinds, others = sort_by_suffix(os.listdir(log.directory))
        for name in others:
            if name.endswith(".tmp"):
                os.unlink(os.path.join(log.directory, name))
    except OSError as error:
        raise StorageFault(f"can't open {log.directory}: {error}") from error
    _remove_orphans(log.directory, kinds)
    log.snapshots.offsets = _offsets(kinds, SNAPSHOT)
    for base_offset in _offsets(kinds, TXN_INDEX):
        log.aborted.found(base_offset)
    last: Segment | None = None
    for base_offset in _offsets(kinds, LOG):
        segment = log.new_segment(base_offset, now_ms, is_found=True)
        if last is not None:
            last.end_offset = base_offset
        log.segments.append(segment)
        last = segment
    if len(kinds[LOG]) == len(kinds[INDEX]) == len(kinds[TIME_INDEX]):
        return set()
    return {
        offset
        for offset in _offsets(kinds, LOG)
        if file_name(offset, INDEX) not in kinds[INDEX]
        or file_name(offset, TIME_INDEX) not in kinds[TIME_INDEX]
    }


def _remove_orphans(directory: str, kinds: dict[str, list[str]]) -> None:
    """Indexes whose segment is gone, as Kafka does it: they are all that tells of it."""
    count, newest = len(kinds[LOG]), max(kinds[LOG], default="")[:20]
    for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
        if len(kinds[suffix]) == (count if suffix != TXN_INDEX else 0) and (
            not count or max(kinds[suffix], default=newest)[:20] == newest
        ):
            continue  # one for each: 100,000 segments are not compared one by one
        known = {name[:20] for name in kinds[LOG]}
        for name in [name for name in kinds[suffix] if name[:20] not in known]:
            kinds[suffix].remove(name)
            path = os.path.join(directory, name)
            logger.warning("%s has no segment beside it, which is lost; it is removed", path)
            os.unlink(path)


def _offsets(kinds: dict[str, list[str]], suffix: str) -> list[int]:
    """The offsets in the names with a suffix, ascending."""
    names = kinds[suffix]
    names.sort()
    return [offset for name in names if (offset := offset_of(name, suffix)) is not None]


def _load_epochs(log: PartitionLog) -> None:
    """The epoch history, from its file, or where that is damaged from the batches."""
    epochs = log.leader_epochs
    try:
        epochs.load()
        if epochs.latest >= 0:
            return
        # A file that was renamed into place and not synced may have lost its content.
        fault = None
    except CorruptFault as found:
        fault = found
        epochs.is_written = False
    _rebuild_epochs(log)
    if fault is not None or epochs.latest >= 0:
        why = fault or f"{epochs.path} is missing or empty"
        logger.warning("%s; made anew from the batches", why)


def _rebuild_epochs(log: PartitionLog) -> None:
    epochs = log.leader_epochs
    epochs.clear()
    for segment in log.segments:
        try:
            for _, header in segment.headers(0, segment.size):
                epochs.assign(header[H_LEADER_EPOCH], header[H_BASE_OFFSET])
        except CorruptFault:
            pass  # What follows still counts.


def _name_impossible_epochs(log: PartitionLog) -> None:
    for epoch, start in log.leader_epochs.entries:
        if start > log.log_end_offset:
            _say(
                log,
                "%s ends at offset %d, and %s lets leader epoch %d begin at %d: it is not used",
                log.directory,
                log.log_end_offset,
                os.path.basename(log.leader_epochs.path),
                epoch,
                start,
            )


def _check_epochs(log: PartitionLog, header: tuple[int, ...]) -> None:
    """Whether the epoch history has a batch that is known to be right; else it is made anew."""
    epochs = log.leader_epochs
    if 0 <= header[H_LEADER_EPOCH] != epochs.epoch_at(header[H_BASE_OFFSET]):
        logger.warning(
            "%s does not fit the batch at offset %d; made anew from the batches",
            epochs.path,
            header[H_BASE_OFFSET],
        )
        _rebuild_epochs(log)


def _take_trusted(log: PartitionLog, trusted: tuple[int, int, int]) -> bool:
    """Take the log to end where its last writer stored; False if that can't be."""
    base_offset, position, end_offset = trusted
    while log.segments[-1].base_offset > base_offset and len(log.segments) > 1:
        if log.segments[-1].base_offset == end_offset:
            # Made for a batch whose position was never stored.
            log.segments.pop().remove()
        else:
            put_stray_aside(log, len(log.segments) - 1)
    segment = log.segments[-1]
    if segment.base_offset != base_offset or position > segment.size:
        return False
    if position == 0 and not segment.size and end_offset == base_offset:
        segment.set_max_timestamp(-1, -1)
        log.log_end_offset = end_offset
        return True
    if not _ends_at(log, segment, position, end_offset):
        return False
    if position != os.stat(segment.path).st_size:
        segment.cut_file(position)
    return True


def _take_clean(log: PartitionLog, recovery_point: int) -> bool:
    """Take the log to end where its last file ends; False if no batch ends there, or it is not
    what the stop has noted (0: nothing)."""
    segment = log.segments[-1]
    if not segment.size:
        segment.set_max_timestamp(-1, -1)
        log.log_end_offset = segment.base_offset
    elif not _ends_at(log, segment, segment.size, None):
        return False
    if recovery_point in (0, log.log_end_offset):
        return True
    logger.warning(
        "%s ends at offset %d, and ended at %d when it was closed: it is scanned",
        log.directory,
        log.log_end_offset,
        recovery_point,
    )
    return False


def _ends_at(log: PartitionLog, segment: Segment, position: int, end_offset: int | None) -> bool:
    """Whether a good batch ends at `position`; then that is the log's end."""
    size, segment.size = segment.size, position
    next_offset = -1
    load_indexes(segment)
    try:
        if end_offset is None:
            restore_timestamps(segment, position)
        else:
            # A batch that never counted may have left entries.
            segment.end_offset = end_offset
            cut_indexes(segment)
        last = walk_timestamps(segment, indexed_position(segment, position - 1, POSITION), position)
        if last is None:
            next_offset = segment.base_offset
        else:
            found, header = last
            batch = memoryview(segment.read_bytes(found, position - found))
            if crc32c(batch[ATTRIBUTES_POSITION:]) == header[H_CRC]:
                next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
    except CorruptFault:
        pass
    if next_offset < 0 or end_offset not in (None, next_offset):
        segment.size = size
        return False
    log.log_end_offset = next_offset
    if last is not None:
        _check_epochs(log, last[1])
    is_finished = end_offset is None
    is_torn = is_finished and (segment.offset_index.is_torn or segment.time_index.is_torn)
    if is_torn or not are_indexes_whole(segment, is_finished=is_finished):
        mend_indexes(segment)
    return True


# --- the scan ---


def _scan(log: PartitionLog, recovery_point: int) -> None:
    """Read every batch from the recovery point on, and cut the log or leave a hole where one is
    wrong."""
    # With the one that ends there: its flush may have come before the cut that it got at its roll.
    number = log.segment_number(max(recovery_point - 1, 0))
    while number and not _begins_well(log.segments[number]):
        number -= 1  # It may be a stray one, in the midst of another.
    expected = log.segments[number].base_offset
    while number < len(log.segments):
        segment = log.segments[number]
        if segment.base_offset != expected and not _may_follow(log, number, expected):
            if segment.size and segment.base_offset > expected:
                _drop_segments(log, number)  # A hole: nothing from here on can be served.
                break
            put_stray_aside(log, number)
            continue
        is_whole = _scan_segment(log, number, recovery_point)
        expected = log.log_end_offset = segment.end_offset
        following = log.segments[number + 1 : number + 2]
        if not is_whole and following and following[0].base_offset != expected:
            # Else what was cut is space that was allocated ahead.
            _drop_segments(log, number + 1)
            break
        if following and expected < min(_holes_end(log), following[0].base_offset):
            # A gap that compaction left at the end belongs to this segment.
            segment.end_offset = following[0].base_offset
        number += 1
    sync_directory(log.directory)


def _may_follow(log: PartitionLog, number: int, expected: int) -> bool:
    """Whether a segment that does not begin where the one before ends belongs there."""
    segment = log.segments[number]
    base, previous = segment.base_offset, log.segments[number - 1]
    if not expected < min(_holes_end(log), base):
        return False
    return base - previous.base_offset <= OFFSETS_MAX or base <= log.cleaned_offset


def _limit_of(log: PartitionLog, number: int) -> int:
    """Where the batches of a segment must end: where the next one begins, if that is to be
    believed."""
    reach = log.segments[number].base_offset + OFFSETS_MAX
    for later in log.segments[number + 1 :]:
        if later.base_offset > reach:
            break
        is_sparse = later is log.segments[-1] and later.base_offset <= _gaps_end(log)
        if _begins_well(later) or (is_sparse and not later.size):
            return later.base_offset
    return NO_LIMIT


def _begins_well(segment: Segment) -> bool:
    """Whether a segment's first batch is right, by its CRC and by the segment's name."""
    try:
        for _, header in segment.headers(0, segment.size):
            batch = memoryview(segment.read_bytes(0, header[H_LENGTH] + LOG_OVERHEAD))
            is_right = (
                crc32c(batch[ATTRIBUTES_POSITION:]) == header[H_CRC]
                and header[H_LAST_OFFSET_DELTA] >= 0
            )
            return is_right and 0 <= header[H_BASE_OFFSET] - segment.base_offset < OFFSETS_MAX
    except CorruptFault:
        pass
    return False


def put_stray_aside(log: PartitionLog, number: int) -> None:
    """A segment to which nothing leads up, or which begins within another one."""
    segment = log.segments.pop(number)
    if 0 < number < len(log.segments):
        log.segments[number - 1].end_offset = log.segments[number].base_offset
    _say(
        log,
        "%s does not belong to a log that %s; it is in quarantine/ now",
        segment.path,
        f"ends at offset {log.log_end_offset}" if number else "begins elsewhere",
    )
    if has_place(log.directory):
        put_aside(log.directory, [segment.path])
    segment.remove()


def _note_hole(log: PartitionLog, end_offset: int) -> None:
    if not log.config.is_compacted:
        log.cleaned_offset = max(log.cleaned_offset, end_offset)


def _gaps_end(log: PartitionLog) -> int:
    """Where the part ends in which offsets may be missing between batches of a segment."""
    return 1 << 63 if log.config.is_compacted else log.cleaned_offset


def _holes_end(log: PartitionLog) -> int:
    """Where the part ends in which they may be missing between segments.

    Only compaction leaves such holes, and it says how far it goes before it does; and a leader that
    has them, to its followers.
    """
    is_unknown = log.config.is_compacted and (log.cleaned_offset < 0 or not log.is_only_replica)
    return 1 << 63 if is_unknown else log.cleaned_offset


def _drop_segments(log: PartitionLog, number: int) -> None:
    """What follows can't be served, as the offsets don't go on: put aside, not removed."""
    dropped = [segment.path for segment in log.segments[number:] if segment.size]
    if dropped:
        _say(
            log,
            "%s ends at offset %d: %d segments from %s on do not follow; they are in quarantine/",
            log.directory,
            log.log_end_offset,
            len(dropped),
            os.path.basename(dropped[0]),
        )
        if has_place(log.directory):
            put_aside(log.directory, dropped)
    for segment in log.segments[number:]:
        segment.remove()
    del log.segments[number:]


def _cut(log: PartitionLog, segment: Segment, size: int, *, is_flushed: bool) -> None:
    """Cut a segment behind its last good batch; what is whole behind the damage is put aside, and
    what was flushed as it is."""
    kept = 0
    if has_place(log.directory):
        kept = put_tail_aside(segment.path, size if is_flushed else size + 1, is_any=is_flushed)
    if kept:
        _say(
            log,
            "%s is damaged at position %d, where the log ends now; %d bytes that follow are in "
            "quarantine/",
            segment.path,
            size,
            kept,
        )
    elif any(segment.read_bytes(size, min(segment.size - size, HEADER_SIZE))):
        logger.warning("%s is torn at position %d, where the log ends now", segment.path, size)
    segment.cut_file(size, is_synced=True)
    segment.size = size
    segment.unjudged_bytes = min(segment.unjudged_bytes, size)


def _scan_segment(
    log: PartitionLog, number: int, recovery_point: int, *, is_mended: bool = False
) -> bool:
    """Check a segment's batches, rebuild its indexes, mend or cut it where it goes wrong.

    True if the file ends with its last good batch.
    """
    segment = log.segments[number]
    following = _limit_of(log, number)
    base = segment.base_offset
    interval, gaps_end = log.config.index_interval_bytes, _gaps_end(log)
    start, expected = _scan_start(segment, recovery_point)
    epochs = log.leader_epochs
    if start or expected < recovery_point or log.is_only_replica:
        # What was flushed, or never truncated, is no leftover of anything: the epoch file is what
        # may be wrong.
        try:
            for _, header in segment.headers(start, segment.size):
                if header[H_BASE_OFFSET] == expected:
                    _check_epochs(log, header)
                break
        except CorruptFault:
            pass  # The scan will see.
    epoch = epochs.epoch_at(expected)
    offset_index, time_index = segment.offset_index, segment.time_index
    max_timestamp, max_offset = segment.max_timestamp_so_far, segment.max_timestamp_offset
    indexed_at = size = start
    for position, header in segment.good_batches(start, segment.size):
        if header[H_BASE_OFFSET] != expected and not (
            header[H_BASE_OFFSET] > expected and (expected < gaps_end or not position)
        ):
            break
        last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        if (
            header[H_LEADER_EPOCH] < epoch
            or header[H_LAST_OFFSET_DELTA] < 0
            or last_offset - base >= 2**31
        ):
            break
        if last_offset >= following:
            break
        if header[H_LEADER_EPOCH] > epoch:
            epoch = header[H_LEADER_EPOCH]
            epochs.assign(epoch, header[H_BASE_OFFSET])
        if not position:
            segment.first_timestamp = header[H_MAX_TIMESTAMP]
        if header[H_MAX_TIMESTAMP] > max_timestamp:
            max_timestamp, max_offset = header[H_MAX_TIMESTAMP], last_offset
        if position - indexed_at > interval:
            indexed_at = position
            if offset_index.append(last_offset - base, position):
                time_index.maybe_append(max_timestamp, max_offset - base)
        expected = last_offset + 1
        size = position + header[H_LENGTH] + LOG_OVERHEAD
    segment.set_max_timestamp(max_timestamp, max_offset)
    segment.end_offset = expected
    scanned = start, size, following
    return _judge_segment(log, number, recovery_point, scanned, is_mended=is_mended)


def _judge_segment(
    log: PartitionLog,
    number: int,
    recovery_point: int,
    scanned: tuple[int, int, int],
    *,
    is_mended: bool,
) -> bool:
    """Mend or cut a segment that was scanned, behind its last good batch; as `_scan_segment`.

    scanned: where the scan began, where that batch ends, and the offset that its batches had to end
    before. is_mended: it was scanned after `_mend` had its turn.
    """
    segment = log.segments[number]
    start, size, following = scanned
    expected = segment.end_offset
    is_whole = size == segment.size
    later = log.segments[number + 1 : number + 2]
    if later and expected <= later[0].base_offset <= segment.base_offset + OFFSETS_MAX:
        following = later[0].base_offset  # Nothing speaks against it any more.
    is_lacking = _holes_end(log) <= expected < following <= recovery_point
    if (
        log.is_only_replica
        and not is_mended
        and (is_lacking or not is_whole)
        and _mend(log, segment, recovery_point, following)
    ):
        return _scan_segment(log, number, recovery_point, is_mended=True)
    if is_lacking:
        # As it would in the segments that aren't scanned, it stays, and readers are told.
        _say(
            log,
            "%s is damaged at position %d: offsets %d to %d are not there",
            segment.path,
            size,
            expected,
            following - 1,
        )
        segment.end_offset = following
        segment.park()
        return True
    if not is_whole:
        _cut(log, segment, size, is_flushed=expected < recovery_point)
    note_judged(segment, start, size, expected)
    if segment is not log.segments[-1]:
        segment.finish()
    return is_whole


def _mend(log: PartitionLog, segment: Segment, recovery_point: int, following: int) -> bool:
    """Leave holes where a segment is damaged, and set right what its neighbours bear out; False if
    there is nothing of the kind."""
    before = segment is not log.segments[0]
    try:
        mend = look_at(
            segment.path,
            segment.base_offset,
            log.leader_epochs.epoch_at(segment.base_offset - 1) if before else -1,
            following,
            _gaps_end(log),
            recovery_point,
        )
    except OSError as error:
        raise StorageFault(f"can't read {segment.path}: {error}") from error
    for line in lines_of(segment.path, mend):
        _say(log, "%s", line)
    for hole in mend.holes:
        _note_hole(log, hole.end_offset)
    if mend.is_of_bytes:
        rewrite(segment.path, mend)
        segment.on_rewritten()
    if mend.moved:
        _rebuild_epochs(log)
    return mend.is_any


def _scan_start(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """(position, offset) of the last indexed batch before the recovery point, or the first.

    Keeps the index entries up to there, if they grow as they must and lead to batches.
    """
    if recovery_point <= segment.base_offset:
        begin_indexes(segment)
        segment.set_max_timestamp(-1, -1)
        return 0, segment.base_offset
    index, times = segment.offset_index, segment.time_index
    load_indexes(segment)
    index.truncate(index.count_sound(index.count_below(recovery_point - segment.base_offset, 0)))
    last = index.last()
    if last:
        times.truncate(times.count_sound(times.count_below(last[0] + 1, 1)))
        try:
            position = indexed_position(segment, last[1], POSITION)
            restore_timestamps(segment, segment.size)
            if not segment.is_rebuilt:
                _mend_time_index(segment)
                for _, header in segment.headers(position, segment.size):
                    return position, header[H_BASE_OFFSET]
        except CorruptFault:
            pass
    index.truncate(0)
    times.truncate(0)
    segment.set_max_timestamp(-1, -1)
    segment.is_rebuilt = False
    return 0, segment.base_offset


def _mend_time_index(segment: Segment) -> None:
    """Put entries back where the end of the time index is lost, which looks like any other end.

    The offset index tells where entries were due.
    """
    index, times = segment.offset_index, segment.time_index
    newest = times.last()
    known = index.count_below(newest[1] + 1, 0) if newest else 0
    entries = index.read(max(known - 1, 0), index.count - max(known - 1, 0))
    due = {entry[1] for entry in entries}
    start, end = (entries[0][1] if known else 0), entries[-1][1]
    for position, header in segment.headers(start, segment.size):
        if position > end:
            break
        if header[H_MAX_TIMESTAMP] > segment.max_timestamp_so_far:
            segment.set_max_timestamp(
                header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            )
        if position in due:
            times.maybe_append(
                segment.max_timestamp_so_far, segment.max_timestamp_offset - segment.base_offset
            )


# --- producers ---


def _remove_torn_snapshots(log: PartitionLog, recovery_point: int) -> None:
    """Those before the recovery point are durable."""
    for snapshot in [taken for taken in log.snapshots.offsets if taken >= recovery_point]:
        try:
            read_snapshot(os.path.join(log.directory, file_name(snapshot, SNAPSHOT)))
        except CorruptFault:
            log.snapshots.remove(snapshot)


def _fits_last_batch(log: PartitionLog, known: ProducerState, now_ms: int) -> bool:
    """Whether producers are those of the log's end, as far as its last batch tells."""
    segment = log.segments[-1]
    try:
        _, header = segment.find(log.log_end_offset - 1)
    except CorruptFault:
        return True
    if header is None or header[H_PRODUCER_ID] < 0 or header[H_ATTRIBUTES] & CONTROL_BIT:
        return True
    entry = known.producers.get(header[H_PRODUCER_ID])
    if entry is None:  # It may have expired.
        return bool(header[H_MAX_TIMESTAMP] <= now_ms - log.config.producer_id_expiration_ms)
    return (
        entry.epoch >= header[H_PRODUCER_EPOCH]
        and entry.batches[-1:] != []
        and (
            entry.batches[-1][2] + entry.batches[-1][1]
            == header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        )
    )


def rebuild_producers(
    log: PartitionLog,
    *,
    is_window_walked: bool = True,
    now_ms: int = _NEVER,
    decided_below: int = _NEVER,
) -> None:
    """The producer state at the log's end: newest good snapshot, then the batches behind it.

    With the window, also the batches shortly before it, as a snapshot knows only the last of each
    producer. The transaction indexes of what is behind the snapshot are compared with the batches,
    and set right.

    decided_below: from this offset on, the high watermark, markers do not count yet; or the indexes
    may lack entries, as a power cut may have taken what was written to them. Where there are
    transactions, a snapshot from before is taken.
    """
    log.aborted.keep(log.segments[0].base_offset, log.segments[-1].base_offset)
    undecided = [row for row in log.producers.ended if row[0] < log.log_end_offset]
    _rebuild_producers(log, is_window_walked, now_ms, _NEVER)
    has_any = bool(log.aborted) or log.producers.has_transactions()
    if has_any and any(taken > decided_below for taken in log.snapshots.offsets):
        _rebuild_producers(log, is_window_walked, now_ms, decided_below)
    log.producers.ended = deque(sorted({*undecided, *log.producers.ended}))


def _rebuild_producers(
    log: PartitionLog, is_window_walked: bool, now_ms: int, snapshot_max: int
) -> None:
    """The same from a snapshot at `snapshot_max` or before."""
    state = log.producers
    state.clear()
    first = taken = log.segments[0].base_offset
    known, recent = ProducerState(), ProducerState()
    for offset in reversed(log.snapshots.offsets[:]):
        if offset > snapshot_max:
            continue
        if offset < first:
            break  # What followed it is gone: it would refuse who wrote since.
        path = os.path.join(log.directory, file_name(offset, SNAPSHOT))
        try:
            known = read_snapshot(path)
            if known.last_offset >= offset:
                raise CorruptFault(f"{path} knows offset {known.last_offset}: it is another's")
            if offset == log.log_end_offset and not _fits_last_batch(log, known, now_ms):
                raise CorruptFault(f"{path} does not know the producer of the last batch")
            if is_window_walked and len(known):
                recent = _walk_window(log, offset)
                if not known.fits(recent, is_dense=_gaps_end(log) <= 0):
                    raise CorruptFault(f"{path} does not fit the batches before it")
        except StorageFault as fault:
            logger.warning("%s; its producers are found in the batches", fault)
            log.snapshots.remove(offset)
            is_window_walked = True
            known, recent = ProducerState(), ProducerState()
            continue
        taken = offset
        break
    state.take(known, recent)
    for segment in log.segments[log.segment_number(taken) :]:
        _replay(log, segment, taken)


def _walk_window(log: PartitionLog, end: int) -> ProducerState:
    """What the batches shortly before an offset tell of their producers."""
    recent = ProducerState()
    start = _window_start(log, end)
    for segment in log.segments[log.segment_number(start) : log.segment_number(end) + 1]:
        _follow(recent, segment, start, end)
    return recent


def _producers_batches(
    segment: Segment, start: int, end: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of the batches of producers with offsets in [start, end).

    CorruptFault where the segment is damaged.
    """
    load_indexes(segment)
    position, _ = segment.find(start)
    for found, header in segment.headers(position, segment.size):
        if header[H_BASE_OFFSET] >= end:
            return
        if header[H_PRODUCER_ID] >= 0 and header[H_BASE_OFFSET] >= start:
            yield found, header


def _of_producer(header: tuple[int, ...]) -> tuple[int, int, int, int, int, int]:
    """What `ProducerState.update` is to know of a batch."""
    return (
        header[H_PRODUCER_ID],
        header[H_PRODUCER_EPOCH],
        header[H_BASE_SEQUENCE],
        header[H_LAST_OFFSET_DELTA],
        header[H_BASE_OFFSET],
        header[H_MAX_TIMESTAMP],
    )


def _replay(log: PartitionLog, segment: Segment, start: int) -> None:
    """Let the producer state follow a segment's batches from `start` on, and let its transaction
    index be what they say."""
    entries, is_whole = _follow(log.producers, segment, start)
    known = log.aborted.stored(segment.base_offset)
    right = [entry for entry in known if entry.last_offset < start] + entries
    if not is_whole:
        right = sorted({*known, *entries}, key=lambda entry: entry.last_offset)
    log.aborted.set_right(segment.base_offset, right)


def _follow(
    state: ProducerState, segment: Segment, start: int, end: int = _NEVER
) -> tuple[list[AbortedTransaction], bool]:
    """(the transactions that a segment's batches in [start, end) abort, whether all were read)."""
    entries: list[AbortedTransaction] = []
    try:
        for position, header in _producers_batches(segment, start, end):
            if not header[H_ATTRIBUTES] & CONTROL_BIT:
                state.update(*_of_producer(header))
                if header[H_ATTRIBUTES] & TRANSACTIONAL_BIT:
                    state.begin(header[H_PRODUCER_ID], header[H_BASE_OFFSET])
                continue
            marker = parse_marker(segment.read_bytes(position, header[H_LENGTH] + LOG_OVERHEAD))
            if marker is None:
                continue
            ended = state.end(marker, header[H_BASE_OFFSET], header[H_MAX_TIMESTAMP])
            if ended is not None and not marker.is_commit:
                entry = AbortedTransaction(
                    marker.producer_id, ended[0], header[H_BASE_OFFSET], ended[1]
                )
                entries.append(entry)
    except (CorruptFault, ProtocolFault):
        # Damage below the recovery point: whoever reads there is told.
        return entries, False
    return entries, True


def find_aborted(log: PartitionLog, base_offset: int) -> list[AbortedTransaction]:
    """What the transaction index of a segment must hold, from a snapshot and the batches."""
    state = ProducerState()
    start = log.segments[0].base_offset
    for offset in reversed(log.snapshots.offsets):
        if start <= offset <= base_offset:
            try:
                known = read_snapshot(os.path.join(log.directory, file_name(offset, SNAPSHOT)))
            except StorageFault:
                continue
            state.take(known, ProducerState())
            start = offset
            break
    entries: list[AbortedTransaction] = []
    first, last = log.segment_number(start), log.segment_number(base_offset)
    for segment in log.segments[first : last + 1]:
        entries, _ = _follow(state, segment, start)
    return entries


def _window_start(log: PartitionLog, offset: int) -> int:
    """The offset that lies a window's length of index entries before `offset`."""
    number = log.segment_number(offset)
    left = _WINDOW_ENTRIES
    while True:
        segment = log.segments[number]
        load_indexes(segment)
        index = segment.offset_index
        relative = offset - segment.base_offset
        low = index.count_below(relative, 0)
        if low > left:
            return segment.base_offset + index.entry(low - left)[0]
        left -= low
        if number == 0 or left <= 0:
            return segment.base_offset
        number -= 1
