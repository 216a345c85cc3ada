"""What one trigger reads: limits by records, bytes and time, and how far a query then is behind."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.client.reader.planning import (
    BatchSpan,
    IndexEntries,
    ListedSegment,
    Range,
    ends_within_bytes,
)
from shmbroker.spark.offsets import behind_latest, to_json, within_limit


class Log:
    """Segments of batches (position, base offset, end offset, size), with a sparse index."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: dict[str, dict[int, BatchSpan]] = {}
        self.segments: list[ListedSegment] = []
        self.indexes: dict[str, bytes] = {}
        self.end_offset = 0

    def add(self, sizes: list[tuple[int, int]], every: int) -> None:
        """A segment of batches with these (records, bytes)."""
        path = f"{self.name}/{self.end_offset}"
        base, position, index, batches = self.end_offset, 0, b"", {}
        for i, (records, size) in enumerate(sizes):
            end = self.end_offset + records
            batches[position] = BatchSpan(self.end_offset, end, size)
            if i and i % every == 0:
                index += struct.pack(">ii", end - 1 - base, position)
            position += size
            self.end_offset = end
        self.batches[path] = batches
        self.indexes[path] = index + bytes(80)
        self.segments.append(ListedSegment(path, 1, base, self.end_offset, position))

    def bytes_of(self, start: int, end: int) -> int:
        """Of all batches with any of these offsets."""
        return sum(
            batch.size
            for batches in self.batches.values()
            for batch in batches.values()
            if batch.base_offset < end and start < batch.end_offset
        )

    def is_edge(self, offset: int) -> bool:
        return any(
            batch.end_offset == offset
            for batches in self.batches.values()
            for batch in batches.values()
        )


def limited(logs: list[Log], ranges: list[Range], bytes_max: int) -> list[int]:
    paths = {path: log for log in logs for path in log.batches}

    def index_of(segment: ListedSegment) -> IndexEntries:
        data = paths[segment.path].indexes[segment.path]
        return IndexEntries(data, segment.base_offset, segment.valid_bytes)

    def batch_at(segment: ListedSegment, position: int) -> BatchSpan | None:
        return paths[segment.path].batches[segment.path].get(position)

    return ends_within_bytes(ranges, bytes_max, index_of, batch_at)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log(draw(st.uuids()).hex)
    for _ in range(draw(st.integers(1, 3))):
        batch = st.tuples(st.integers(1, 9), st.integers(61, 300))
        log.add(draw(st.lists(batch, min_size=1, max_size=15)), draw(st.integers(1, 4)))
    return log


@given(st.lists(logs(), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_a_limit_in_bytes_is_kept_exactly(made: list[Log], data: st.DataObject) -> None:
    ranges = []
    for log in made:
        start = data.draw(st.integers(0, log.end_offset - 1))
        end = data.draw(st.integers(start + 1, log.end_offset))
        ranges.append(Range(log.name, 0, b"", start, end, log.segments))
    total = sum(
        log.bytes_of(r.start_offset, r.end_offset) for log, r in zip(made, ranges, strict=True)
    )
    bytes_max = data.draw(st.integers(1, total + 10))
    ends = limited(made, ranges, bytes_max)
    taken = [
        log.bytes_of(r.start_offset, end) if end > r.start_offset else 0
        for log, r, end in zip(made, ranges, ends, strict=True)
    ]
    for log, r, end in zip(made, ranges, ends, strict=True):
        assert r.start_offset <= end <= r.end_offset
        assert end in (r.start_offset, r.end_offset) or log.is_edge(end)
    assert sum(end > r.start_offset for r, end in zip(ranges, ends, strict=True)) >= 1
    if sum(taken) > bytes_max:  # a batch that is larger than the limit comes alone
        assert sum(end > r.start_offset for r, end in zip(ranges, ends, strict=True)) == 1
        assert sum(taken) <= 300
    if bytes_max >= total:
        assert ends == [r.end_offset for r in ranges]
    elif len(made) == 1 and sum(taken) <= bytes_max:  # not one batch more would have fitted
        (log,), (r,), (end,) = made, ranges, ends
        assert log.bytes_of(r.start_offset, end + 1) > bytes_max


def test_a_limit_in_bytes_is_shared_by_what_waits() -> None:
    large, small = Log("large"), Log("small")
    large.add([(1, 100)] * 900, 10)
    small.add([(1, 100)] * 100, 10)
    ranges = [Range(log.name, 0, b"", 0, log.end_offset, log.segments) for log in (large, small)]
    assert limited([large, small], ranges, 10_000) == [90, 10]


def test_limits_are_shared_by_what_waits() -> None:
    tps = [("t", i) for i in range(4)]
    starts = dict.fromkeys(tps, 100)
    ends = dict(zip(tps, (100, 101, 1100, 9100), strict=True))
    assert within_limit(starts, ends, 100_000) == ends
    limited = within_limit(starts, ends, 1000)
    assert [limited[tp] - 100 for tp in tps] == [0, 1, 99, 899]


def test_lag_has_the_names_of_sparks_kafka_source() -> None:
    ids = {"t": bytes(16)}
    end = to_json({("t", 0): 5, ("t", 1): 10}, ids)
    latest = to_json({("t", 0): 9, ("t", 1): 10, ("t", 2): 3}, ids) | {":read": "files"}
    assert behind_latest(end, latest) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": str(7 / 3),
    }
    assert behind_latest(None, latest) == {}
    assert behind_latest(end, None) == {}
    assert behind_latest({}, {":topic_ids": {}}) == {}
