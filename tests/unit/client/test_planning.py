"""Ranges to pieces: every record in exactly one piece, on batch boundaries, whatever the index."""

import struct
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.client.reader import planning
from shmbroker.client.reader.planning import IndexEntries, ListedSegment, Piece, Range, plan

MIB = 1 << 20


@dataclass
class Model:
    """Segments as lists of batches (position, first offset, last offset), with a sparse index."""

    batches: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    segments: list[ListedSegment] = field(default_factory=list)
    indexes: dict[str, bytes] = field(default_factory=dict)

    def add(self, batches: list[tuple[int, int, int]], size: int, end: int, every: int) -> None:
        base = batches[0][1]
        name = f"{base:020}.log"
        self.batches[name] = batches
        self.segments.append(ListedSegment(name, base, base, end, size))
        entries = [
            struct.pack(">ii", last - base, position)
            for i, (position, _, last) in enumerate(batches)
            if i and i % every == 0
        ]
        self.indexes[name] = b"".join(entries) + bytes(80)

    def index_of(self, segment: ListedSegment) -> IndexEntries:
        return IndexEntries(self.indexes[segment.path], segment.base_offset, segment.valid_bytes)

    def header_at(self, segment: ListedSegment, at: int) -> int | None:
        return next((b for p, b, _ in self.batches[segment.path] if p == at), None)

    def offsets_in(self, piece: Piece) -> list[int]:
        """The offsets that a task gets from the piece; it must begin and end with whole batches."""
        batches = self.batches[piece.path]
        starts = [position for position, _, _ in batches]
        (segment,) = [s for s in self.segments if s.path == piece.path]
        assert piece.low in starts
        assert piece.high in [*starts, segment.valid_bytes]
        inside = [b for b in batches if piece.low <= b[0] < piece.high]
        assert inside[0][1] == piece.base_offset
        return [
            offset
            for _, first, last in inside
            for offset in range(first, last + 1)
            if piece.start_offset <= offset < piece.end_offset
        ]


@st.composite
def models(draw: st.DrawFn) -> Model:
    model = Model()
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 4))):
        batches, position = [], 0
        for _ in range(draw(st.integers(1, 12))):
            count = draw(st.integers(1, 9))
            batches.append((position, offset, offset + count - 1))
            position += draw(st.integers(70, 400))
            offset += count + draw(st.sampled_from([0, 0, 4]))
        model.add(batches, position, offset, draw(st.integers(1, 4)))
    return model


@given(models(), st.data(), st.integers(1, 8))
@settings(deadline=None)
def test_every_record_of_a_range_is_in_exactly_one_piece(
    model: Model, data: st.DataObject, tasks_min: int
) -> None:
    first, last = model.segments[0].base_offset, model.segments[-1].end_offset
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last))
    r = Range("t", 0, b"i" * 16, start, end, model.segments)
    tasks = plan([r], model.index_of, model.header_at, 2, tasks_min)
    got = [o for task in tasks for piece in task for o in model.offsets_in(piece)]
    exist = [o for b in model.batches.values() for _, f, t in b for o in range(f, t + 1)]
    assert got == [o for o in exist if start <= o < end]
    assert all(tasks)


@given(models(), st.data())
@settings(deadline=None)
def test_an_index_of_garbage_changes_no_record(model: Model, data: st.DataObject) -> None:
    for name in model.indexes:
        model.indexes[name] = data.draw(st.binary(max_size=64))
    first, last = model.segments[0].base_offset, model.segments[-1].end_offset
    r = Range("t", 0, b"i" * 16, first + 1, last - 1, model.segments)
    got = [
        offset
        for task in plan([r], model.index_of, model.header_at, 2, 4)
        for piece in task
        for offset in model.offsets_in(piece)
    ]
    assert got == sorted(set(got))


def big(size_mib: int, batch_kib: int = 64) -> Model:
    model = Model()
    step = batch_kib << 10
    count = size_mib * MIB // step
    batches = [(i * step, i * 10, i * 10 + 9) for i in range(count)]
    model.add(batches, count * step, count * 10, 1)
    return model


def sizes(tasks: list[list[Piece]]) -> list[int]:
    return [round(sum(p.high - p.low for p in task) / MIB) for task in tasks]


def test_a_large_segment_is_cut_into_equal_pieces() -> None:
    model = big(640)
    r = Range("t", 0, b"", 0, model.segments[0].end_offset, model.segments)
    assert sizes(plan([r], model.index_of, model.header_at, 2)) == [160] * 4
    assert sizes(plan([r], model.index_of, model.header_at, 1000)) == [64] * 10


def test_no_piece_is_much_larger_than_the_limit() -> None:
    model = big(1400, 256)
    r = Range("t", 0, b"", 0, model.segments[0].end_offset, model.segments)
    assert sizes(plan([r], model.index_of, model.header_at, 1)) == [234] * 5 + [232]


def test_small_partitions_share_tasks() -> None:
    model = big(1)
    end = model.segments[0].end_offset
    ranges = [Range("t", p, b"", 0, end, model.segments) for p in range(40)]
    assert sizes(plan(ranges, model.index_of, model.header_at, 2)) == [20, 20]
    assert sizes(plan(ranges[:6], model.index_of, model.header_at, 2)) == [4, 2]


def test_min_partitions_makes_more_tasks() -> None:
    model = big(10)
    r = Range("t", 0, b"", 0, model.segments[0].end_offset, model.segments)
    assert len(plan([r], model.index_of, model.header_at, 2, tasks_min=8)) == 8


def test_a_range_at_the_end_reads_only_the_end() -> None:
    """From one batch too early, as the index tells last offsets."""
    model = big(64)
    end = model.segments[0].end_offset
    r = Range("t", 0, b"", end - 5, end, model.segments)
    (task,) = plan([r], model.index_of, model.header_at, 2)
    assert [p.high - p.low for p in task] == [2 * (64 << 10)]


def test_a_range_in_the_middle_stops_early() -> None:
    model = big(64)
    r = Range("t", 0, b"", 1000, 1025, model.segments)
    (task,) = plan([r], model.index_of, model.header_at, 2)
    assert [p.high - p.low for p in task] == [4 * (64 << 10)]


def test_the_index_ends_where_it_is_not_filled_or_not_valid() -> None:
    entries = struct.pack(">iiiiii", 5, 100, 9, 200, 20, 300)
    assert list(IndexEntries(entries + bytes(400), 1000, 10_000)) == [
        (1005, 100),
        (1009, 200),
        (1020, 300),
    ]
    assert len(IndexEntries(entries, 1000, 300)) == 2
    assert len(IndexEntries(bytes(4096), 0, 300)) == 0
    assert len(IndexEntries(b"", 0, 300)) == 0


def test_limits_are_in_order() -> None:
    assert planning.TASK_BYTES_MIN <= planning.PIECE_BYTES_MIN <= planning.PIECE_BYTES_MAX
