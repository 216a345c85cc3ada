"""Records for people: a page of them, a search, a live tail. Fetched as any client does.

    page     some records of one or of all partitions, forward from a place or back from one, merged
             by their times; each partition stays in its order
    search   records that hold a text, as an iterator of what was found and how far it is
    tail     what is appended from now on

Rules of this file:
* Everything is bounded: records, bytes and seconds of one call, bytes of one batch. What ended at a
  bound says so, and where to go on.
* A search looks for its text in the plain bytes of a whole batch first; records are only taken
  apart in a batch that has it. Between two fetches it rests for as long as they took.
* A tail asks with a waiting Fetch, and leaves out what is more than people can read.
* The caller's thread does all of it, over connections of its own. Faults: ClusterFault, OSError.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from shmbroker import clock
from shmbroker.client.reader.asking import EARLIEST, LATEST
from shmbroker.client.retries import PASSING
from shmbroker.console.topic_reader import FetchedBatch, Offsets, TopicReader
from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import Record, iterate_block
from shmbroker.records.batch_layout import H_COUNT

RECORDS_MAX = 200
PAGE_BYTES_MAX = 32 << 20
"""All batches of a page, decompressed; the last one may go beyond."""
PAGE_S = 5.0
SEARCH_S = 20.0
SEARCH_BYTES_MAX = 4 << 30
SEARCH_RECORDS_MAX = 200
PROGRESS_S = 0.25
TAIL_REST_S = 0.25
TAIL_RECORDS_MAX = 50
"""Shown of one turn; of a partition that is further behind, the last ones."""
TAIL_S = 1800.0
TAIL_FAULTS_MAX = 20
"""Turns in a row that fail before a tail ends: a leader may move, or restart."""
TAIL_FAULT_REST_S = 0.5

At = tuple[int, Record]
"""Partition and record."""


class Page(NamedTuple):
    """Records in the order in which they are shown."""

    records: list[At]
    following: Offsets
    """Where to go on, in the same direction."""
    is_bounded: bool
    """Whether a bound has ended it before there were as many records as wanted."""
    starts: Offsets
    ends: Offsets
    left_out: int
    """Batches that are too large to be shown, or malformed."""


class Wanted(NamedTuple):
    """What a search looks for."""

    text: bytes
    where: str = "any"
    """any, key, value or header"""
    is_case_ignored: bool = True
    records_max: int = 50


class SearchProgress(NamedTuple):
    """How far a search or a tail is."""

    records: int
    bytes: int
    share: float
    """The share of the offsets that it goes through."""
    following: Offsets
    ended: str = ""
    """Why it ended: done, found, bounds; "" if it goes on."""
    left_out: int = 0
    """Records that a tail did not show."""


class Budget:
    """What a call may still take."""

    def __init__(self, bytes_max: int, seconds: float) -> None:
        self.bytes = bytes_max
        self.until_s = clock.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more shall be read."""
        return self.bytes <= 0 or clock.monotonic() > self.until_s


class Messages(TopicReader):
    """One topic's records."""

    _left_out = 0

    # ── a page ──────────────────────────────────────────────────────────────────────────────────

    def page(self, at: Offsets | int, count: int, is_back: bool) -> Page:
        """`count` records from (forward) or before (back) these offsets, or a timestamp of
        `offsets`. Partitions that `at` does not name are left out."""
        count = min(count, RECORDS_MAX)
        starts, ends = self.offsets(EARLIEST), self.offsets(LATEST)
        places = self.offsets(at) if isinstance(at, int) else at
        budget = Budget(PAGE_BYTES_MAX, PAGE_S)
        self._left_out = 0
        read: dict[int, list[Record]] = {}
        reached: Offsets = {}
        is_bounded = False
        for partition, place in places.items():
            if partition not in starts or partition not in ends:
                continue
            start, end = starts[partition], ends[partition]
            place = end if place < 0 else min(max(place, start), end)
            rows: list[Record] = []
            if budget.is_over:
                reached[partition], bound = place, True
            elif is_back:
                rows, reached[partition], bound = self._before(
                    partition, start, place, count, budget
                )
            else:
                rows, reached[partition], bound = self._from(partition, place, end, count, budget)
            read[partition] = rows
            is_bounded |= bound
        sign = -1 if is_back else 1
        merged = heapq.merge(
            *(
                [(partition, row) for row in rows[::sign]]
                for partition, rows in sorted(read.items())
            ),
            key=lambda pair: sign * pair[1][1],
        )
        shown = [pair for _, pair in zip(range(count), merged, strict=False)]
        following = {}
        for partition, rows in read.items():
            mine = [row[0] for number, row in shown if number == partition]
            if len(mine) == len(rows):
                following[partition] = reached[partition]
            elif is_back:
                following[partition] = min(mine, default=rows[-1][0] + 1)
            else:
                following[partition] = max(mine) + 1 if mine else rows[0][0]
        return Page(shown, following, is_bounded, starts, ends, self._left_out)

    def _from(
        self, partition: int, start: int, end: int, count: int, budget: Budget
    ) -> tuple[list[Record], int, bool]:
        """(the first `count` records in [start, end), how far that is, whether a bound ended it)"""
        rows: list[Record] = []
        offset = start
        while offset < end:
            answer = self.fetch(partition, offset)
            if answer.next_offset <= offset:
                break
            for batch in answer.batches:
                try:
                    block = batch.block()
                    budget.bytes -= len(block)
                    for row in iterate_block(batch.header, block):
                        if offset <= row[0] < end:
                            rows.append(row)
                            if len(rows) == count:
                                return rows, row[0] + 1, False
                except ProtocolFault:
                    self._left_out += 1
                if budget.is_over and batch.next_offset < end:
                    return rows, max(offset, batch.next_offset), True
            offset = answer.next_offset
        return rows, end, False

    def _before(
        self, partition: int, low: int, place: int, count: int, budget: Budget
    ) -> tuple[list[Record], int, bool]:
        """Read the last `count` records before a place; a window that holds too many bytes is made
        smaller."""
        window = count
        while True:
            start = max(low, place - window)
            part = Budget(budget.bytes // 4, max(0.0, budget.until_s - clock.monotonic()))
            before = part.bytes
            rows, reached, _ = self._from(partition, start, place, window, part)
            budget.bytes -= before - part.bytes
            if reached >= place:
                return rows, start, False
            if window == 1 or budget.is_over:
                return [], place, True
            window = max(1, window // 8)

    # ── a search ────────────────────────────────────────────────────────────────────────────────

    def search(self, wanted: Wanted, at: Offsets | int) -> Iterator[At | SearchProgress]:
        """Records from these offsets (or a timestamp) on that have the text, and now and then how
        far it is; the last one says why it ended. All partitions go on together."""
        starts, ends = self.offsets(EARLIEST), self.offsets(LATEST)
        places = self.offsets(at) if isinstance(at, int) else at
        offsets = {
            partition: ends[partition]
            if place < 0
            else min(max(place, starts[partition]), ends[partition])
            for partition, place in places.items()
            if partition in starts and partition in ends
        }
        first = dict(offsets)
        total = sum(ends[partition] - offset for partition, offset in offsets.items())
        needle = wanted.text.lower() if wanted.is_case_ignored else wanted.text
        count = min(wanted.records_max, SEARCH_RECORDS_MAX)
        began = clock.monotonic()
        next_told = began + PROGRESS_S
        records = taken = found = 0

        def progress(ended: str = "") -> SearchProgress:
            done = sum(offsets[partition] - offset for partition, offset in first.items())
            share = done / total if total else 1.0
            return SearchProgress(records, taken, share, dict(offsets), ended)

        while any(offset < ends[partition] for partition, offset in offsets.items()):
            for partition in offsets:
                if offsets[partition] >= ends[partition]:
                    continue
                asked_s = clock.monotonic()
                answer = self.fetch(partition, offsets[partition])
                took_s = clock.monotonic() - asked_s
                start = offsets[partition]
                taken += answer.bytes
                for batch in answer.batches:
                    records += batch.header[H_COUNT]
                    try:
                        rows = list(_matching(batch, start, ends[partition], needle, wanted))
                    except ProtocolFault:
                        continue
                    for row in rows:
                        yield partition, row
                        found += 1
                        offsets[partition] = row[0] + 1
                        if found == count:
                            yield progress("found")
                            return
                nothing_more = answer.next_offset <= start
                offsets[partition] = (
                    ends[partition] if nothing_more else min(answer.next_offset, ends[partition])
                )
                now = clock.monotonic()
                if now >= began + SEARCH_S or taken >= SEARCH_BYTES_MAX:
                    yield progress("bounds")
                    return
                if now >= next_told:
                    next_told = now + PROGRESS_S
                    yield progress()
                clock.sleep(took_s)
        yield progress("done")

    # ── a tail ──────────────────────────────────────────────────────────────────────────────────

    def tail(self, text: bytes = b"") -> Iterator[At | SearchProgress]:
        """What is appended from now on, with this text (in any case) in it; after each turn how far
        it is."""
        offsets = self.offsets(LATEST)
        wanted = Wanted(text)
        needle = text.lower()
        until_s = clock.monotonic() + TAIL_S
        records = taken = left_out = 0
        faults = 0
        while clock.monotonic() < until_s:
            rows: list[At] = []
            try:
                for answers in self.turn(offsets):
                    for partition, answer in answers:
                        start = offsets[partition]
                        taken += answer.bytes
                        for batch in answer.batches:
                            records += batch.header[H_COUNT]
                            found = _matching(batch, start, batch.next_offset, needle, wanted)
                            try:
                                rows += [(partition, row) for row in found]
                            except ProtocolFault:
                                left_out += 1
                        offsets[partition] = max(start, answer.next_offset)
                        behind = answer.high_watermark - offsets[partition]
                        if behind > TAIL_RECORDS_MAX:
                            left_out += behind - TAIL_RECORDS_MAX
                            offsets[partition] = answer.high_watermark - TAIL_RECORDS_MAX
                faults = 0
            except PASSING:
                faults += 1
                self.stop_waiting()
                if faults > TAIL_FAULTS_MAX:
                    raise
                clock.sleep(TAIL_FAULT_REST_S)
                self.find_again()
            rows.sort(key=lambda pair: pair[1][1])
            left_out += max(0, len(rows) - TAIL_RECORDS_MAX)
            yield from rows[-TAIL_RECORDS_MAX:]
            yield SearchProgress(records, taken, 1.0, dict(offsets), "", left_out)
            clock.sleep(TAIL_REST_S)
        yield SearchProgress(records, taken, 1.0, dict(offsets), "bounds", left_out)


def _matching(
    batch: FetchedBatch, start: int, end: int, needle: bytes, wanted: Wanted
) -> Iterator[Record]:
    """Records of a batch that have the text; ProtocolFault if it is malformed."""
    is_lower = wanted.is_case_ignored
    block = batch.block()
    if needle not in (block.lower() if is_lower else block):
        return
    for row in iterate_block(batch.header, block):
        offset, _, key, value, headers = row
        if not start <= offset < end:
            continue
        fields: list[bytes | None] = []
        if wanted.where in ("any", "key"):
            fields.append(key)
        if wanted.where in ("any", "value"):
            fields.append(value)
        if wanted.where in ("any", "header"):
            fields += [part for header in headers for part in header]
        if not needle or any(
            each is not None and needle in (each.lower() if is_lower else each) for each in fields
        ):
            yield row
