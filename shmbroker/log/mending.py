"""A damaged segment, and what of it can still be served: the rest leaves a hole.

   before     [ 12 ][ 13 ][ ###### ][ 15 ][ 16 ]      ###: no whole batch, or no place for one
   after      [ 12 ][ 13 ][ 15 ][ 16 ]                offset 14 is missing, as after compaction
   aside      quarantine/node-1/t-0/00000000000000000014.log: the bytes ###

Rules
 * A batch counts that is right by its CRC and by its place. Base offset and leader epoch are
   outside the CRC, so its neighbours judge them: where the batch before and the one behind agree on
   what they must be, they are set right; where nothing proves an offset, the batch is no longer
   served.
 * The next batch behind damage is where the damaged one's length says, or else anywhere that a
   whole one begins whose offsets can follow.
 * A torn write is no damage: power cuts lose any part of what was not flushed, and if what lies
   behind were served all the same, a producer's batches would show with earlier ones missing. So
   above the recovery point a hole is left only where no torn write can be the cause. What a writer
   has allocated reads as zeros until a sector of it is written, and a sector holds what it held at
   one moment; so a torn sector ends with zeros, or the batch lacks its head, which is stored last.
 * Only a log that no other replica has gets holes. Others are cut, and copied again.

The file is written again beside itself and renamed into its place: if the process dies meanwhile,
the next start finds the damage or the mended file.
"""

import mmap
import os
from typing import NamedTuple

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import sync_directory, write_all
from shmbroker.log.file_names import LOG, file_name
from shmbroker.log.quarantine import copy_piece, has_place, keep_piece, whole_batch_at
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_LEADER_EPOCH,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    STAMP,
    STAMP_SIZE,
)
from shmbroker.signs import sign, waiting_for_disk

NO_LIMIT = 1 << 63
"""Above all offsets."""

_SECTOR = 512
_ZEROS = 8
"""The zeros that make the end of a sector one that was not written: a record ends with one of its
own."""


class Hole(NamedTuple):
    """Offsets that are missing, and the bytes that should have been they; maybe none."""

    position: int
    end: int
    """Where its bytes end."""
    first_offset: int
    end_offset: int
    """Exclusive."""


class KeptBytes(NamedTuple):
    """Bytes that stay."""

    position: int
    end: int
    stamp: bytes | None
    """The bytes for the start of it, where base offset or leader epoch were wrong."""


class Mend(NamedTuple):
    """What is right of a segment from a damaged place on."""

    kept: list[KeptBytes]
    holes: list[Hole]
    moved: list[tuple[int, int, int]]
    """(position, base offset found, base offset due) of batches that are set right."""
    end_offset: int
    """The offset behind the last batch, or the last hole."""
    epoch: int
    """The epoch of the last batch."""
    stop: int
    """Where it ends, as the rest may be a torn write; the file's size if nothing is."""

    @property
    def is_any(self) -> bool:
        """Whether there is something to mend."""
        return bool(self.holes or self.moved)

    @property
    def is_of_bytes(self) -> bool:
        """Whether the file changes by it; a hole without bytes is only noted."""
        return bool(self.moved) or any(hole.end > hole.position for hole in self.holes)


class _Expected:
    """What the next batch must be like."""

    __slots__ = ("base", "epoch", "gaps_end", "limit", "offset")

    def __init__(self, base: int, epoch: int, limit: int, gaps_end: int) -> None:
        self.base = base
        """The base offset of the segment."""
        self.offset = base
        self.epoch = epoch
        self.limit = limit
        """Where the next segment begins."""
        self.gaps_end = gaps_end
        """The offset before which offsets may be missing."""

    def fits(self, header: tuple[int, ...]) -> bool:
        last = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        return (
            self.offset <= header[H_BASE_OFFSET] <= last < min(self.limit, self.base + OFFSETS_MAX)
            and header[H_COUNT] >= 0
        )

    @property
    def is_dense(self) -> bool:
        return self.offset >= self.gaps_end


def survey(
    content: mmap.mmap | bytes,
    *,
    base: int,
    epoch: int,
    limit: int,
    gaps_end: int,
    recovery_point: int,
) -> Mend:
    """What is right of a segment's bytes. At each position there is one of these:

       A  a whole batch with a place: it is kept
       B  the beginning of a torn write: the rest is cut
       C  a hole, up to where the next batch may begin

    base: its base offset. epoch: the least leader epoch that its first batch may have. limit: where
    the next segment begins; 2^63 if there is none. gaps_end: before that offset, offsets may be
    missing. What lies below the recovery point is no torn write.
    """
    due = _Expected(base, epoch, limit, gaps_end)
    position, size = 0, len(content)
    kept: list[KeptBytes] = []
    holes: list[Hole] = []
    moved: list[tuple[int, int, int]] = []
    is_behind_hole = is_torn = False
    while position < size:
        sign()
        header = whole_batch_at(content, position)
        place = None
        if header is not None:
            place = _place_of(content, position, header, due, is_behind_hole, recovery_point)
        if header is not None and place is not None:
            # A
            base_offset, leader_epoch = place
            end = position + LOG_OVERHEAD + header[H_LENGTH]
            stamp = None
            if place != (header[H_BASE_OFFSET], header[H_LEADER_EPOCH]):
                stamp = STAMP.pack(base_offset, header[H_LENGTH], leader_epoch)
                moved.append((position, header[H_BASE_OFFSET], base_offset))
            if is_behind_hole:
                holes[-1] = holes[-1]._replace(end_offset=base_offset)
            elif base_offset > due.offset and due.is_dense:
                holes.append(Hole(position, position, due.offset, base_offset))
            kept.append(KeptBytes(position, end, stamp))
            due.offset, due.epoch = base_offset + header[H_LAST_OFFSET_DELTA] + 1, leader_epoch
            position, is_behind_hole = end, False
            continue
        end = _next_batch(content, position, header, due)
        if due.offset >= recovery_point and _may_be_torn(content, position, end, limit):
            is_torn = True  # B
            break
        # C
        if is_behind_hole:
            holes[-1] = holes[-1]._replace(end=end)
        else:
            holes.append(Hole(position, end, due.offset, due.offset))
            is_behind_hole = True
        position = end
    if is_behind_hole:
        if is_torn or limit == NO_LIMIT or due.offset >= limit:
            position = holes.pop().position  # Nothing that is served is missing there: an end.
        else:
            holes[-1] = holes[-1]._replace(end_offset=limit)
            due.offset = limit
    elif (
        position == size
        and due.is_dense
        and due.offset < limit < NO_LIMIT
        and limit <= recovery_point
    ):
        holes.append(Hole(size, size, due.offset, limit))
        due.offset = limit
    return Mend(kept, holes, moved, due.offset, due.epoch, position)


def _place_of(
    content: mmap.mmap | bytes,
    position: int,
    header: tuple[int, ...],
    due: _Expected,
    is_behind_hole: bool,
    recovery_point: int,
) -> tuple[int, int] | None:
    """(base offset, leader epoch) that a whole batch has by its neighbours; None: nobody knows."""
    end = position + LOG_OVERHEAD + header[H_LENGTH]
    follower = whole_batch_at(content, end)
    if follower is not None:
        follows = follower[H_BASE_OFFSET]
    elif end == len(content) and due.limit < NO_LIMIT:
        follows = due.limit
    else:
        follows = -1
    if header[H_LAST_OFFSET_DELTA] < 0:
        return None
    epoch = header[H_LEADER_EPOCH]
    if epoch < due.epoch or (
        follower is not None
        and due.epoch <= follower[H_LEADER_EPOCH] < epoch
        and follows < recovery_point  # else the end of its head may be lost in a torn write
    ):
        epoch = due.epoch
    count = header[H_LAST_OFFSET_DELTA] + 1
    if header[H_BASE_OFFSET] != due.offset:
        if (
            header[H_BASE_OFFSET] < due.offset
            or due.offset <= follows < header[H_BASE_OFFSET] + count
        ):
            # It can't be there. If it fits exactly between its neighbours, it belongs there.
            is_proven = follows == due.offset + count and not is_behind_hole
            return (due.offset, epoch) if is_proven else None
        if due.is_dense and not is_behind_hole and follows != header[H_BASE_OFFSET] + count:
            return None
    return (header[H_BASE_OFFSET], epoch) if due.fits(header) else None


def _next_batch(
    content: mmap.mmap | bytes, position: int, header: tuple[int, ...] | None, due: _Expected
) -> int:
    """Where the next batch begins behind one that is wrong; the end if there is none."""
    size = len(content)
    if header is not None:
        return position + LOG_OVERHEAD + header[H_LENGTH]
    claimed = _claimed_end(content, position)
    if claimed == size:
        return size
    if claimed:
        follower = whole_batch_at(content, claimed)
        if follower is not None and due.fits(follower):
            return claimed
    magic = position + MAGIC_POSITION
    while (magic := content.find(bytes([MAGIC]), magic + 1)) >= 0:
        start = magic - MAGIC_POSITION
        # A batch's offsets are looked at first: a CRC over any length found anywhere takes long.
        if (
            start + HEADER_SIZE <= size
            and due.fits(BATCH_HEADER.unpack_from(content, start))
            and whole_batch_at(content, start)
        ):
            return start
    return size


def _claimed_end(content: mmap.mmap | bytes, position: int) -> int:
    """Where a damaged batch ends by its own length; 0 if that can't be."""
    if position + HEADER_SIZE > len(content):
        return 0
    header = BATCH_HEADER.unpack_from(content, position)
    end = position + LOG_OVERHEAD + header[H_LENGTH]
    is_one = header[H_MAGIC] == MAGIC and position + HEADER_SIZE <= end <= len(content)
    return end if is_one else 0


def _may_be_torn(content: mmap.mmap | bytes, position: int, end: int, limit: int) -> bool:
    """Whether a power cut can have left what lies in [position, end): see the rules above."""
    first = position // _SECTOR * _SECTOR + _SECTOR  # the next sector
    head_end = position + STAMP_SIZE
    for start, stop in ((position, min(first, head_end)), (first, head_end)):
        if start < stop and not content[start:stop].strip(b"\0"):
            return True
    if end == len(content) and not (limit < NO_LIMIT and _claimed_end(content, position) == end):
        return True  # Nothing whole follows, or the file may have been longer.
    size = len(content)
    # The last sector may end within the batch behind, or where the file ends.
    return any(
        not content[min(sector, size) - _ZEROS : min(sector, size)].strip(b"\0")
        for sector in range(first, end + _SECTOR, _SECTOR)
    )


def look_at(
    path: str, base: int, epoch: int, limit: int, gaps_end: int, recovery_point: int
) -> Mend:
    """`survey` of a segment's file. OSError if it can't be read."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            content: mmap.mmap | bytes = b""
        else:
            content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return survey(
            content,
            base=base,
            epoch=epoch,
            limit=limit,
            gaps_end=gaps_end,
            recovery_point=recovery_point,
        )


def lines_of(path: str, mend: Mend) -> list[str]:
    """What is wrong in a segment, in words."""
    lines = [
        f"{path} is damaged at position {hole.position}: offsets {hole.first_offset} to "
        f"{hole.end_offset - 1} are not there, what follows is served; "
        f"{hole.end - hole.position} bytes are in quarantine/"
        for hole in mend.holes
    ]
    lines += [
        f"{path}: base offset {found} or leader epoch of the batch at position {position} was "
        f"wrong by its neighbours; set right, it begins at {due}"
        for position, found, due in mend.moved
    ]
    return lines


def rewrite(path: str, mend: Mend) -> None:
    """Put what is right of a segment in its place, and behind it what lies from `mend.stop` on; the
    bytes of holes are put aside. StorageFault if the disk refuses."""
    beside = path + ".tmp"
    write_mended(path, mend, beside)
    try:
        os.rename(beside, path)
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise StorageFault(f"can't mend {path}: {error}", path) from error


def write_mended(path: str, mend: Mend, beside: str) -> None:
    """Write what `rewrite` puts in its place, durably, under another name; `path` stays."""
    directory = os.path.dirname(path)
    try:
        with open(path, "rb") as old, open(beside, "wb", buffering=0) as new:
            source, target = old.fileno(), new.fileno()
            for hole in mend.holes:
                if hole.end > hole.position and has_place(directory):
                    name = file_name(hole.first_offset, LOG)
                    keep_piece(directory, name, source, hole.position, hole.end)
            for position, end, stamp in mend.kept:
                if stamp is not None:
                    write_all(target, stamp)
                copy_piece(source, target, position + len(stamp or b""), end)
            copy_piece(source, target, mend.stop, os.fstat(source).st_size)
            with waiting_for_disk():
                os.fsync(target)
    except OSError as error:
        raise StorageFault(f"can't mend {path}: {error}", path) from error
