"""From offset ranges and segment lists to the pieces that Spark's tasks read. Pure.

    range     what a query must read of one partition: [start_offset, end_offset), which the leader
              has confirmed to be below its high watermark
    segment   a file of that partition, as the leader lists it: nothing at or beyond `valid_bytes`
              counts, whatever the file's size, as it is allocated ahead
    piece     a part of one segment on batch boundaries, with all that a task needs to read it and
              to notice that it is not what was planned
    task      pieces that one Spark task reads

Rules: what a piece yields depends on the range alone; a later watermark, a longer file or another
cut changes which task reads a record, never whether it is read. No file is scanned: the sparse
offset index names batch boundaries, and the header at the chosen one is looked at (`header_at`).

An entry of the offset index says (Kafka, `OffsetIndex` and `LogSegment.append`): at `position`
begins a batch, and `last_offset` is the last offset appended with it. So with entries in order,

    to begin at `start`    the last entry with last_offset <= start: what is before it is older
    to stop before `end`   the first entry whose predecessor has last_offset >= end - 1: what is at
                           it or after it is newer
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

PIECE_BYTES_MIN = 64 << 20
"""Below this the cost of a task shows: 10 to 40 ms each, beside 100 ms for these bytes."""

PIECE_BYTES_MAX = 256 << 20
"""Above this a task holds up the end of its stage, and its map counts against memory limits."""

TASK_BYTES_MIN = 4 << 20
"""Pieces of small partitions are read by one task up to this size."""

INDEX_ENTRY = Struct(">ii")


class Segment(NamedTuple):
    """A segment file as its leader lists it; offsets [base_offset, end_offset) lie in its first
    `valid_bytes`."""

    path: str
    inode: int
    base_offset: int
    end_offset: int
    valid_bytes: int


class Range(NamedTuple):
    """What to read of one partition, and the segments that hold it."""

    topic: str
    partition: int
    topic_id: bytes
    start_offset: int
    end_offset: int
    segments: Sequence[Segment]


class Piece(NamedTuple):
    """Bytes [low, high) of a file, on batch boundaries; `base_offset` is the first batch's.

    Records of [start_offset, end_offset) are read from it, and no others.
    """

    topic: str
    partition: int
    topic_id: bytes
    path: str
    inode: int
    low: int
    high: int
    base_offset: int
    start_offset: int
    end_offset: int


class OffsetIndex(Sequence[tuple[int, int]]):
    """The (last_offset, position) entries of an index file, as far as they are filled and valid.

    `data` is the file's content; it may be longer (allocated ahead, zeros) or hold entries beyond
    `valid_bytes`, as its partition goes on being written.
    """

    def __init__(self, data: bytes | memoryview, base_offset: int, valid_bytes: int) -> None:
        self.data = data
        self.base_offset = base_offset
        self.size = len(data) // INDEX_ENTRY.size
        self.size = bisect_left(self, True, key=lambda entry: not 0 < entry[1] < valid_bytes)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:  # type: ignore[override]
        if index >= self.size:
            raise IndexError(index)
        relative, position = INDEX_ENTRY.unpack_from(self.data, index * INDEX_ENTRY.size)
        return self.base_offset + relative, position


IndexOf = Callable[[Segment], Sequence[tuple[int, int]]]
HeaderAt = Callable[[Segment, int], int | None]
"""The base offset of the batch at this position of a segment; None if no batch begins there."""


def plan(
    ranges: Iterable[Range],
    index_of: IndexOf,
    header_at: HeaderAt,
    cores: int,
    tasks_min: int = 1,
) -> list[list[Piece]]:
    """The tasks that read these ranges: each a list of pieces, at least `tasks_min` if possible."""
    whole = [found for r in ranges for found in _whole(r, index_of, header_at)]
    total = sum(piece.high - piece.low for _, piece in whole)
    target = min(max(PIECE_BYTES_MIN, total // (2 * cores)), PIECE_BYTES_MAX)
    task_bytes = min(max(TASK_BYTES_MIN, total // cores), target)
    if tasks_min > 1:
        target = min(target, max(1, total // tasks_min))
        task_bytes = min(task_bytes, target)
    pieces = []
    for segment, piece in whole:
        if piece.high - piece.low <= target + target // 4:
            pieces.append(piece)
        else:
            pieces.extend(_cut(piece, target, index_of(segment), segment, header_at))
    if len(pieces) <= tasks_min:
        return [[piece] for piece in pieces]
    return _packed(pieces, task_bytes)


def _whole(r: Range, index_of: IndexOf, header_at: HeaderAt) -> Iterable[tuple[Segment, Piece]]:
    """One piece for each segment with records of the range."""
    segments = r.segments if r.start_offset < r.end_offset else ()
    for segment in segments:
        if segment.end_offset <= r.start_offset or segment.base_offset >= r.end_offset:
            continue
        start = max(r.start_offset, segment.base_offset)
        end = min(r.end_offset, segment.end_offset)
        low, base_offset, high = 0, None, segment.valid_bytes
        if start > segment.base_offset or end < segment.end_offset:
            index = index_of(segment)
            if start > segment.base_offset:
                low, base_offset = _begin(index, segment, start, header_at)
            if end < segment.end_offset:
                high = _stop(index, segment, end, header_at)
        if base_offset is None:
            base_offset = header_at(segment, 0)
        # Without a batch at 0 the piece is still made: its task will say what is there instead.
        yield (
            segment,
            Piece(
                r.topic,
                r.partition,
                r.topic_id,
                segment.path,
                segment.inode,
                low,
                high,
                segment.base_offset if base_offset is None else base_offset,
                start,
                end,
            ),
        )


def _begin(
    index: Sequence[tuple[int, int]], segment: Segment, start: int, header_at: HeaderAt
) -> tuple[int, int | None]:
    """Where to begin so as to meet `start`: (position, base offset there); 0 if in doubt."""
    found = bisect_right(index, start, key=_last_offset) - 1
    if found >= 0:
        last_offset, position = index[found]
        base_offset = header_at(segment, position)
        if base_offset is not None and segment.base_offset <= base_offset <= last_offset:
            return position, base_offset
    return 0, None


def _stop(index: Sequence[tuple[int, int]], segment: Segment, end: int, header_at: HeaderAt) -> int:
    """Where everything is at or beyond `end`; the valid bytes if in doubt."""
    found = bisect_left(index, end - 1, key=_last_offset) + 1
    if found < len(index):
        position = index[found][1]
        base_offset = header_at(segment, position)
        if base_offset is not None and base_offset >= end:
            return position
    return segment.valid_bytes


def _cut(
    piece: Piece,
    target: int,
    index: Sequence[tuple[int, int]],
    segment: Segment,
    header_at: HeaderAt,
) -> Iterable[Piece]:
    """Parts of about `target` bytes, as far as the index knows boundaries."""
    size = piece.high - piece.low
    step = -(-size // -(-size // target))
    at = piece.low + step
    while at < piece.high:
        found = bisect_left(index, at, key=_position)
        if found == len(index) or index[found][1] >= piece.high:
            break
        position = index[found][1]
        base_offset = header_at(segment, position)
        if base_offset is not None and piece.start_offset < base_offset < piece.end_offset:
            yield piece._replace(high=position, end_offset=base_offset)
            piece = piece._replace(low=position, base_offset=base_offset, start_offset=base_offset)
        at = position + step
    yield piece


def _packed(pieces: Sequence[Piece], task_bytes: int) -> list[list[Piece]]:
    """Neighbours share a task while they fit into `task_bytes`."""
    tasks: list[list[Piece]] = []
    left = 0
    for piece in pieces:
        size = piece.high - piece.low
        if not tasks or size > left:
            tasks.append([])
            left = task_bytes
        tasks[-1].append(piece)
        left -= size
    return tasks


def _last_offset(entry: tuple[int, int]) -> int:
    return entry[0]


def _position(entry: tuple[int, int]) -> int:
    return entry[1]
