"""Knows which segments of a partition are in the remote store, and what follows from that; pure.

   store    [ 0 … 811 ][ 812 … 1402 ][ 1403 … 2200 ]
   local                             [ 1403 … 2200 ][ 2201 … 2871 ][ 2872 …        active ]
            ▲                        ▲              ▲
            log start offset         local start    end of the copies

Rules
 * Segments are in offset order, none lies within another. They may overlap, after a leader that
   rolled elsewhere than the one before, and have gaps, where a copy was lost or damaged;
   `covered_end` sees only what is whole.
 * A copy whose manifest is damaged counts as none, but it is known that it was there: no log start
   is moved past it.
 * A local segment may go when all of it is covered, from the local start on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

ABSENT = -1
"""The offset or time of what is not in the store."""


class RemoteSegment(NamedTuple):
    """One segment in the store; `end_offset` is one past its last offset."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    size: int
    """Bytes of its .log."""
    max_timestamp: int
    """Milliseconds; where no record has a timestamp, when the file was last written."""
    has_aborted: bool = False
    """Whether it has a transaction index."""


class LocalSegment(Protocol):
    """What is looked at of a local segment."""

    base_offset: int
    end_offset: int
    size: int


class RemoteLog:
    """The copies of one partition's segments."""

    __slots__ = ("_bases", "damaged", "segments", "within")

    def __init__(
        self, segments: Iterable[RemoteSegment] = (), damaged: Iterable[RemoteSegment] = ()
    ) -> None:
        self.segments: list[RemoteSegment] = []
        self.damaged = list(damaged)
        self.within: list[RemoteSegment] = []
        """Copies that lie within another: nobody reads them, and they end with it."""
        self._bases: list[int] = []
        for segment in sorted(segments, key=lambda one: (one.base_offset, -one.end_offset)):
            self.add(segment)

    def add(self, segment: RemoteSegment) -> None:
        """Take in a copy; of what lies within another it is only known that it is there."""
        kept = []
        for other in self.segments:
            if not _lies_within(other, segment):
                kept.append(other)
            elif other[:3] != segment[:3]:
                self.within.append(other)
        if any(_lies_within(segment, other) for other in kept):
            self.within.append(segment)
            return
        kept.append(segment)
        kept.sort()
        self.segments = kept
        self._bases = [one.base_offset for one in kept]

    def remove(self, gone: Iterable[RemoteSegment]) -> None:
        """Forget copies that are deleted."""
        dropped = set(gone)
        self.damaged = [segment for segment in self.damaged if segment not in dropped]
        self.within = [segment for segment in self.within if segment not in dropped]
        self.segments = [segment for segment in self.segments if segment not in dropped]
        self._bases = [segment.base_offset for segment in self.segments]

    @property
    def start_offset(self) -> int:
        """The first offset in the store, or ABSENT."""
        return self.segments[0].base_offset if self.segments else ABSENT

    @property
    def end_offset(self) -> int:
        """One past the last offset in the store, or ABSENT."""
        return self.segments[-1].end_offset if self.segments else ABSENT

    def find(self, offset: int) -> RemoteSegment | None:
        """The segment with `offset`, or in a gap the next one; None behind the last."""
        place = bisect_right(self._bases, offset) - 1
        # Overlapping: the one before may still hold it, and is what a reader is in already.
        for segment in self.segments[max(place - 1, 0) :]:
            if segment.end_offset > offset:
                return segment
        return None

    def begins_at(self, offset: int) -> int:
        """Where the first copy begins that ends behind `offset`, damaged or not; ABSENT if there is
        none."""
        known = (*self.segments, *self.damaged)
        return min((one.base_offset for one in known if one.end_offset > offset), default=ABSENT)

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """[from, to) of the offsets in [start, end) that no copy covers."""
        found = []
        while (covered := self.covered_end(start)) < end:
            following = self.find(covered)
            start = end if following is None else min(following.base_offset, end)
            found.append((covered, start))
        return found

    def with_aborted(self, offset: int) -> list[RemoteSegment]:
        """Segments with a transaction index that end behind `offset`."""
        return [one for one in self.segments if one.has_aborted and one.end_offset > offset]

    def covered_end(self, offset: int) -> int:
        """How far copies reach from `offset` on without a gap; `offset` itself if nowhere."""
        for segment in self.segments[max(bisect_right(self._bases, offset) - 2, 0) :]:
            if segment.base_offset > offset:
                break
            offset = max(offset, segment.end_offset)
        return offset

    def newer_than(self, timestamp: int, start: int, end: int) -> RemoteSegment | None:
        """The first segment with offsets in [start, end) that has a record of `timestamp` on."""
        for segment in self.segments:
            if segment.base_offset >= end:
                break
            if segment.end_offset > start and segment.max_timestamp >= timestamp:
                return segment
        return None

    def max_timestamp(self, start: int, end: int) -> int:
        """The largest timestamp of segments with offsets in [start, end), or ABSENT."""
        return max(
            (
                segment.max_timestamp
                for segment in self.segments
                if segment.base_offset < end and segment.end_offset > start
            ),
            default=ABSENT,
        )

    def ended_by(self, offset: int) -> list[RemoteSegment]:
        """Segments of which nothing at or behind `offset` is left: below the log start."""
        known = (*self.segments, *self.damaged, *self.within)
        return [segment for segment in known if segment.end_offset <= offset]

    def count_covered(self, closed: Sequence[LocalSegment], start: int) -> int:
        """How many of the closed local segments, from the first on, the store has as well.

        start: the local start offset; what lies before it is not missed. A segment that holds
        nothing (compaction has left it) needs no copy.
        """
        covered = self.covered_end(start)
        count = 0
        for segment in closed:
            if not segment.size and segment.base_offset <= covered:
                covered = self.covered_end(max(covered, segment.end_offset))
            if segment.end_offset > covered:
                break
            count += 1
        return count

    def expired_end(
        self, start: int, local_start: int, local_size: int, now_ms: int, limits: tuple[int, int]
    ) -> int:
        """Where the log should start, by its total retention, as far as copies alone say it.

        start, local_start: the log start offset and the local one; local_size: bytes behind that.
        limits: retention.ms and retention.bytes, negative for none. At most `local_start`: what is
        local is judged there.
        """
        limit_ms, limit_bytes = limits
        remote = [
            segment
            for segment in self.segments
            if segment.end_offset > start and segment.base_offset < local_start
        ]
        excess = sum(segment.size for segment in remote) + local_size - limit_bytes
        end = start
        for segment in remote:
            excess -= segment.size
            is_too_old = limit_ms >= 0 and now_ms - segment.max_timestamp > limit_ms
            is_too_much = limit_bytes >= 0 and excess >= 0
            if not (is_too_old or is_too_much):
                break
            end = min(segment.end_offset, local_start)
        return end


def _lies_within(inner: RemoteSegment, outer: RemoteSegment) -> bool:
    return outer.base_offset <= inner.base_offset and inner.end_offset <= outer.end_offset
