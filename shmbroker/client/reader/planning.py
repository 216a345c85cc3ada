"""The way from offset ranges and segment lists to the pieces that Spark's tasks read. Pure.

    range     what a query must read of one partition: [start_offset, end_offset), which the leader
              has confirmed to be below its high watermark
    segment   a file of that partition, as the leader lists it: nothing at or beyond `valid_bytes`
              counts, whatever the file's size, as it is allocated ahead
    piece     a part of one segment on batch boundaries, with all that a task needs to read it and
              to notice that it is not what was planned; where no file is at hand, offsets to fetch
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

from shmbroker.client.reader.aborted import AbortedRange

PIECE_BYTES_MIN = 64 << 20
"""Below this the cost of a task shows: 10 to 40 ms each, beside 100 ms for these bytes."""

PIECE_BYTES_MAX = 256 << 20
"""Above this a task holds up the end of its stage, and its map counts against memory limits."""

TASK_BYTES_MIN = 4 << 20
"""Pieces of small partitions are read by one task up to this size."""

INDEX_ENTRY = Struct(">ii")


class ListedSegment(NamedTuple):
    """A segment file as its leader lists it; offsets [base_offset, end_offset) lie in its first
    `valid_bytes`."""

    path: str
    inode: int
    base_offset: int
    end_offset: int
    valid_bytes: int


class Range(NamedTuple):
    """What to read of one partition, and the segments that hold it.

    What is before `fetched_end` has to be fetched; `size` is then about how many bytes the whole
    range has, 0 if that is not known. Behind it, offsets that no segment has are those of no
    record: compaction has left nothing of them.
    """

    topic: str
    partition: int
    topic_id: bytes
    start_offset: int
    end_offset: int
    segments: Sequence[ListedSegment]
    fetched_end: int = 0
    size: int = 0
    aborted: tuple[AbortedRange, ...] = ()


class Piece(NamedTuple):
    """Bytes [low, high) of a file, on batch boundaries; `base_offset` is the first batch's.

    Records of [start_offset, end_offset) are read from it, and no others; none of an `aborted`
    transaction. Without a `path` it has to be fetched, and is about `high` bytes.
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
    aborted: tuple[AbortedRange, ...] = ()


class IndexEntries(Sequence[tuple[int, int]]):
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


IndexOf = Callable[[ListedSegment], Sequence[tuple[int, int]]]


class BatchSpan(NamedTuple):
    """What a batch's header says of its offsets and its size in bytes, head included."""

    base_offset: int
    end_offset: int
    size: int


BatchAt = Callable[[ListedSegment, int], BatchSpan | None]
"""The batch at this position of a segment; None if no whole one begins there."""

HeaderAt = Callable[[ListedSegment, int], int | None]
"""The base offset of the batch at this position of a segment; None if no batch begins there."""


def plan(
    ranges: Iterable[Range],
    index_of: IndexOf,
    header_at: HeaderAt,
    cores: int,
    tasks_min: int = 1,
    records_per_task_max: int | None = None,
) -> list[list[Piece]]:
    """The tasks that read these ranges: each a list of pieces.

    There are about `tasks_min` or more, if there are as many offsets. With `records_per_task_max`
    no task reads more offsets than that.
    """
    ranges = [r for r in ranges if r.start_offset < r.end_offset]
    if records_per_task_max is not None:
        parts = _parts(ranges, tasks_min)
        return [
            [piece for _, piece in _whole(part, index_of, header_at)]
            for r, count in zip(ranges, parts, strict=True)
            for part in _split(r, max(count, -(-_offsets(r) // records_per_task_max)))
        ]
    whole = [found for r in ranges for found in _whole(r, index_of, header_at)]
    total = sum(piece.high - piece.low for _, piece in whole)
    target = min(max(PIECE_BYTES_MIN, total // (2 * cores)), PIECE_BYTES_MAX)
    task_bytes = min(max(TASK_BYTES_MIN, total // cores), target)
    if tasks_min > 1:
        target = min(target, max(1, total // tasks_min))
        task_bytes = min(task_bytes, target)
    pieces: list[tuple[ListedSegment | None, Piece]] = []
    for segment, piece in whole:
        if piece.high - piece.low <= target + target // 4:
            pieces.append((segment, piece))
        elif segment is None:
            pieces.extend((None, part) for part in _split(piece, round(piece.high / target)))
        else:
            cut = _cut(piece, target, index_of(segment), segment, header_at)
            pieces.extend((segment, part) for part in cut)
    if len(pieces) > tasks_min:
        return _packed([piece for _, piece in pieces], task_bytes)
    parts = _parts([piece for _, piece in pieces], tasks_min)
    return [
        [_trimmed(part, segment, index_of, header_at)]
        for (segment, piece), count in zip(pieces, parts, strict=True)
        for part in _split(piece, count)
    ]


TaskBegin = tuple[str, int, int]
"""Topic, partition and offset that a task begins with."""


def begins_of(tasks: Sequence[Sequence[Piece]]) -> list[TaskBegin]:
    """Where all tasks of a plan begin but the first: what `plan_again` makes the same of."""
    return [(task[0].topic, task[0].partition, task[0].start_offset) for task in tasks[1:]]


def plan_again(
    ranges: Iterable[Range],
    index_of: IndexOf,
    header_at: HeaderAt,
    begins: Sequence[TaskBegin],
) -> list[list[Piece]]:
    """The tasks of an earlier plan of these ranges, each with the same offsets, though sizes are
    others by now, or there are no files. One of which nothing is left has no pieces."""
    tasks: list[list[Piece]] = [[] for _ in range(len(begins) + 1)]
    for r in ranges:
        at = r.start_offset
        number = bisect_right(begins, (r.topic, r.partition, at))
        while at < r.end_offset:
            end = r.end_offset
            if number < len(begins) and begins[number][:2] == (r.topic, r.partition):
                end = min(end, begins[number][2])
            size = r.size * (end - at) // _offsets(r)
            part = r._replace(start_offset=at, end_offset=end, size=size)
            tasks[number] += [piece for _, piece in _whole(part, index_of, header_at)]
            at, number = end, number + 1
    return tasks


def _whole(
    r: Range, index_of: IndexOf, header_at: HeaderAt
) -> Iterable[tuple[ListedSegment | None, Piece]]:
    """One piece for each segment with records of the range, and one for what has to be fetched."""
    fetched_end = min(r.end_offset, r.fetched_end)
    if r.start_offset < fetched_end:
        size = r.size * (fetched_end - r.start_offset) // (r.end_offset - r.start_offset)
        start = r.start_offset
        at = (r.topic, r.partition, r.topic_id, "", 0, 0, size, start, start, fetched_end)
        yield None, Piece(*at, r.aborted)
    for segment in r.segments:
        if segment.end_offset <= r.start_offset or segment.base_offset >= r.end_offset:
            continue
        start = max(r.start_offset, segment.base_offset)
        end = min(r.end_offset, segment.end_offset)
        piece = Piece(
            r.topic,
            r.partition,
            r.topic_id,
            segment.path,
            segment.inode,
            0,
            segment.valid_bytes,
            segment.base_offset,
            start,
            end,
            tuple(t for t in r.aborted if t.first_offset < end and start <= t.last_offset),
        )
        yield segment, _trimmed(piece, segment, index_of, header_at)


def _trimmed(
    piece: Piece, segment: ListedSegment | None, index_of: IndexOf, header_at: HeaderAt
) -> Piece:
    """The piece with as few bytes as the index allows for its offsets."""
    if segment is None:
        return piece
    low, base_offset, high = 0, None, segment.valid_bytes
    start, end = piece.start_offset, piece.end_offset
    if start > segment.base_offset or end < segment.end_offset:
        index = index_of(segment)
        if start > segment.base_offset:
            low, base_offset = _begin(index, segment, start, header_at)
        if end < segment.end_offset:
            high = _stop(index, segment, end, header_at)
    if base_offset is None:
        base_offset = header_at(segment, 0)
    if base_offset is None:
        # The piece is still made: its task will say what is there instead of a batch.
        base_offset = segment.base_offset
    return piece._replace(low=low, high=high, base_offset=base_offset)


P = TypeVar("P", Range, Piece)


def _offsets(part: Range | Piece) -> int:
    return part.end_offset - part.start_offset


def _parts(wholes: Sequence[Range | Piece], count: int) -> list[int]:
    """How many parts to split each of these into, for about `count` in all.

    As Spark's Kafka source does it: those that get one part are set aside first, so that they
    don't take from the share of the others.
    """
    if len(wholes) >= count:
        return [1] * len(wholes)
    total = sum(map(_offsets, wholes))
    is_large = [round(_offsets(w) * count / total) > 1 for w in wholes]
    total = sum(_offsets(w) for w, large in zip(wholes, is_large, strict=True) if large)
    count = max(1, count - is_large.count(False))
    return [
        max(1, round(_offsets(w) * count / total)) if large else 1
        for w, large in zip(wholes, is_large, strict=True)
    ]


def _split(whole: P, count: int) -> Iterator[P]:
    """Parts of the range or piece with as many offsets each, none of them empty."""
    offsets = _offsets(whole)
    count = min(count, offsets)
    for i in range(count):
        start = whole.start_offset + offsets * i // count
        end = whole.start_offset + offsets * (i + 1) // count
        part = whole._replace(start_offset=start, end_offset=end)
        if isinstance(part, Range):
            part = part._replace(size=part.size // count)
        elif not part.path:
            part = part._replace(base_offset=start, high=part.high // count)
        yield part


def _begin(
    index: Sequence[tuple[int, int]], segment: ListedSegment, start: int, header_at: HeaderAt
) -> tuple[int, int | None]:
    """Where to begin so as to meet `start`: (position, base offset there); 0 if in doubt."""
    found = bisect_right(index, start, key=_last_offset) - 1
    if found >= 0:
        last_offset, position = index[found]
        base_offset = header_at(segment, position)
        if base_offset is not None and segment.base_offset <= base_offset <= last_offset:
            return position, base_offset
    return 0, None


def _stop(
    index: Sequence[tuple[int, int]], segment: ListedSegment, end: int, header_at: HeaderAt
) -> int:
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
    segment: ListedSegment,
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


def ends_within_bytes(
    ranges: Sequence[Range], bytes_max: int, index_of: IndexOf, batch_at: BatchAt
) -> list[int]:
    """Ends of these ranges that leave at most `bytes_max` of their files' bytes to read.

    Shared out by the bytes each has waiting; every end is that of a batch, and exact. If not even
    one batch fits, the range with most waiting gets one, so that a query always gets on.
    """
    spans = [_span(r, index_of, batch_at) for r in ranges]
    waiting = [sum(high - low for _, low, high in span) for span in spans]
    if sum(waiting) <= bytes_max:
        return [r.end_offset for r in ranges]
    ends = [r.start_offset for r in ranges]
    left, total = bytes_max, sum(waiting)
    for i in sorted(range(len(ranges)), key=waiting.__getitem__):
        if waiting[i]:
            share = left * waiting[i] // total
            ends[i], taken = _end_within(ranges[i], spans[i], share, index_of, batch_at)
            left, total = left - taken, total - waiting[i]
    if left == bytes_max:
        i = waiting.index(max(waiting))
        segment, low, _ = spans[i][0]
        first = batch_at(segment, low)
        end = ranges[i].end_offset
        ends[i] = end if first is None else min(first.end_offset, end)
    return ends


Span = list[tuple[ListedSegment, int, int]]
"""The bytes [low, high) of each segment that hold a range's batches and no others."""


def _span(r: Range, index_of: IndexOf, batch_at: BatchAt) -> Span:
    span = []
    for segment in r.segments:
        if segment.end_offset > r.start_offset and segment.base_offset < r.end_offset:
            low = _position_of(segment, r.start_offset, index_of, batch_at)
            high = _position_of(segment, r.end_offset, index_of, batch_at)
            if high < segment.valid_bytes:
                last = batch_at(segment, high)
                if last is not None and last.base_offset < r.end_offset:
                    high += last.size  # the end is inside of this batch
            if low < high:
                span.append((segment, low, high))
    return span


def _position_of(segment: ListedSegment, offset: int, index_of: IndexOf, batch_at: BatchAt) -> int:
    """Where the batch begins that holds `offset`, or else the first one after it."""
    position = 0
    index = index_of(segment)
    found = bisect_right(index, offset, key=_last_offset) - 1
    if found >= 0:
        position = index[found][1]
    while position < segment.valid_bytes:
        batch = batch_at(segment, position)
        if batch is None:
            if position == 0:
                break
            position = 0  # the index was wrong
        elif batch.end_offset > offset:
            break
        else:
            position += batch.size
    return position


def _end_within(
    r: Range, span: Span, bytes_max: int, index_of: IndexOf, batch_at: BatchAt
) -> tuple[int, int]:
    """(the end of the last batch within so many bytes of the span, the bytes up to it)"""
    end, taken = r.start_offset, 0
    for segment, low, high in span:
        if taken + high - low <= bytes_max:
            end, taken = min(segment.end_offset, r.end_offset), taken + high - low
            continue
        stop = low + bytes_max - taken
        index = index_of(segment)
        found = bisect_right(index, stop, key=_position) - 1
        position = max(low, index[found][1] if found >= 0 else 0)
        if position > low:
            batch = batch_at(segment, position)
            if batch is None:
                position = low
            else:
                end = batch.base_offset
        while (batch := batch_at(segment, position)) and position + batch.size <= stop:
            position += batch.size
            end = batch.end_offset
        return max(r.start_offset, min(end, r.end_offset)), taken + position - low
    return end, taken


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
