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
* A leader that moves is waited for, some seconds.
* The caller's thread does all of it, over connections of its own. Faults: ClusterFault, OSError.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shmbroker import clock
from shmbroker.client.cluster import Cluster, Topic
from shmbroker.client.connection import Connection
from shmbroker.client.faults import ClusterFault, LaterFault, refuse
from shmbroker.client.reader.aborted import AbortedTransaction, find_ends
from shmbroker.client.reader.asking import EARLIEST, LATEST, OFFSET_MAX
from shmbroker.client.retries import PASSING, patiently
from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import Record, iterate_batches, iterate_block, open_batch
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from shmbroker.wire.api_keys import FETCH, LIST_OFFSETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.addresses import Address
    from shmbroker.wire.codec import Message

CLIENT_ID = "shmbroker-console"
ANSWER_S = 10.0
PARTITIONS_MAX = 64
"""Of one call: the first ones of a topic that has more, unless one is chosen."""
RECORDS_MAX = 200
FETCH_BYTES = 1 << 20
PLAIN_BYTES_MAX = 32 << 20
"""Of one batch, decompressed: one at a time is."""
PAGE_BYTES_MAX = 32 << 20
"""Of all batches of a page, decompressed; the last one may go beyond."""
PAGE_S = 5.0
RETRY_S = 5.0
"""How long a leader is waited for that moves or restarts."""
TAIL_FAULTS_MAX = 20
TAIL_FAULT_REST_S = 0.5
SEARCH_S = 20.0
SEARCH_BYTES_MAX = 4 << 30
SEARCH_RECORDS_MAX = 200
PROGRESS_S = 0.25
TAIL_WAIT_MS = 1000
TAIL_REST_S = 0.25
TAIL_RECORDS_MAX = 50
"""Shown of one turn; of a partition that is further behind, the last ones."""
TAIL_S = 1800.0

At = tuple[int, Record]
"""Partition and record."""
Offsets = dict[int, int]
"""By partition."""


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


class Progress(NamedTuple):
    """How far a search or a tail is."""

    records: int
    bytes: int
    share: float
    """Of the offsets that it goes through."""
    following: Offsets
    ended: str = ""
    """Why it ended: done, found, bounds; "" if it goes on."""
    left_out: int = 0
    """Records that a tail did not show."""


class Batch(NamedTuple):
    """A batch with data, as it was fetched."""

    header: tuple[int, ...]
    data: memoryview
    position: int

    @property
    def next_offset(self) -> int:
        """One past its last."""
        return self.header[H_BASE_OFFSET] + self.header[H_LAST_OFFSET_DELTA] + 1

    def block(self) -> bytes:
        """The plain bytes of its records; ProtocolFault if they are malformed or too many."""
        return open_batch(self.data, self.position, PLAIN_BYTES_MAX)[1]


class Budget:
    """What a call may still take."""

    def __init__(self, bytes_max: int, seconds: float) -> None:
        self.bytes = bytes_max
        self.until_s = clock.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more shall be read."""
        return self.bytes <= 0 or clock.monotonic() > self.until_s


class Answer(NamedTuple):
    """What a leader has from an offset on."""

    batches: list[Batch]
    next_offset: int
    high_watermark: int
    bytes: int


class Messages:
    """One topic's records, for one thread; a context manager, as it has connections."""

    def __init__(
        self, bootstrap: list[Address], name: str, partition: int | None, committed_only: bool
    ) -> None:
        """ClusterFault if there is no such topic or partition."""
        self.name = name
        self._level = int(committed_only)
        self._cluster = Cluster(bootstrap, CLIENT_ID, ANSWER_S)
        self._waiting: dict[int, Connection] = {}
        self._left_out = 0
        try:
            self.topic = self._find()
            numbers = list(self.topic.partitions)
            if partition is not None and partition not in numbers:
                raise ClusterFault(f"topic {name} has no partition {partition}")
            self.partitions = numbers[:PARTITIONS_MAX] if partition is None else [partition]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Messages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        for connection in self._waiting.values():
            connection.close()
        self._waiting.clear()

    def _find(self) -> Topic:
        for topic, error, _ in self._cluster.describe([self.name], creates=False):
            refuse(error, f"topic {self.name}")
            return topic
        raise ClusterFault(f"there is no topic {self.name}")

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def offsets(self, timestamp: int) -> Offsets:
        """ListOffsets: EARLIEST, LATEST, or the first that is not older; -1 where there is none.
        Partitions without a leader are left out."""
        return patiently(lambda: self._offsets(timestamp), RETRY_S, before_retry=self._find_again)

    def _find_again(self) -> None:
        try:
            self.topic = self._find()
        except (ClusterFault, OSError):
            pass  # what is tried next tells it

    def _offsets(self, timestamp: int) -> Offsets:
        by_leader: dict[int, list[int]] = {}
        for partition in self.partitions:
            by_leader.setdefault(self.topic.leaders[partition], []).append(partition)
        found: Offsets = {}
        for leader, partitions in by_leader.items():
            if leader < 0:
                continue
            rows = [
                {"partition_index": one, "current_leader_epoch": -1, "timestamp": timestamp}
                for one in partitions
            ]
            body: Message = {
                "replica_id": -1,
                "isolation_level": self._level,
                "topics": [{"name": self.name, "partitions": rows}],
            }
            answer = self._cluster.ask_broker(leader, LIST_OFFSETS, body)
            for row in answer["topics"][0]["partitions"]:
                refuse(row["error_code"], f"offsets of {self.name}-{row['partition_index']}")
                found[row["partition_index"]] = row["offset"]
        return found

    def _fetch_body(self, offsets: Offsets, wait_ms: int, bytes_max: int) -> Message:
        rows = [
            {
                "partition": partition,
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": bytes_max,
            }
            for partition, offset in offsets.items()
        ]
        return {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "isolation_level": self._level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self.name, "partitions": rows}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

    def _fetch(self, partition: int, offset: int) -> Answer:
        """What the leader has from this offset on, at once."""
        return patiently(
            lambda: self._fetch_once(partition, offset), RETRY_S, before_retry=self._find_again
        )

    def _fetch_once(self, partition: int, offset: int) -> Answer:
        leader = self.topic.leader_of(partition)
        if leader < 0:
            raise LaterFault(f"{self.name}-{partition} has no leader")
        body = self._fetch_body({partition: offset}, 0, FETCH_BYTES)
        answer = self._cluster.ask_broker(leader, FETCH, body)
        ((_, found),) = self._answers(answer, {partition: offset})
        return found

    def _answers(self, answer: Message, asked: Offsets) -> Iterator[tuple[int, Answer]]:
        refuse(answer["error_code"], f"fetch of {self.name}")
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                number = row["partition_index"]
                refuse(row["error_code"], f"fetch of {self.name}-{number}")
                yield number, self._read(row, asked[number])

    def _read(self, row: Message, offset: int) -> Answer:
        data = memoryview(row["records"] or b"")
        begun = [
            (each["producer_id"], each["first_offset"])
            for each in row["aborted_transactions"] or ()
        ]
        aborted = find_ends(data, begun) if self._level and begun else ()
        batches, next_offset = [], offset
        for position, header in iterate_batches(data):
            next_offset = max(next_offset, header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1)
            if not (header[H_ATTRIBUTES] & CONTROL_BIT or _is_aborted(header, aborted)):
                batches.append(Batch(header, data, position))
        return Answer(batches, next_offset, row["high_watermark"], len(data))

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
            answer = self._fetch(partition, offset)
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
        """The same for the last `count` records before a place; a window that holds too many bytes
        is made smaller."""
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

    def search(self, wanted: Wanted, at: Offsets | int) -> Iterator[At | Progress]:
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

        def progress(ended: str = "") -> Progress:
            done = sum(offsets[partition] - offset for partition, offset in first.items())
            share = done / total if total else 1.0
            return Progress(records, taken, share, dict(offsets), ended)

        while any(offset < ends[partition] for partition, offset in offsets.items()):
            for partition in offsets:
                if offsets[partition] >= ends[partition]:
                    continue
                asked_s = clock.monotonic()
                answer = self._fetch(partition, offsets[partition])
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

    def tail(self, text: bytes = b"") -> Iterator[At | Progress]:
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
                for answers in self._turn(offsets):
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
                self._stop_waiting()
                if faults > TAIL_FAULTS_MAX:
                    raise
                clock.sleep(TAIL_FAULT_REST_S)
                self._find_again()
            rows.sort(key=lambda pair: pair[1][1])
            left_out += max(0, len(rows) - TAIL_RECORDS_MAX)
            yield from rows[-TAIL_RECORDS_MAX:]
            yield Progress(records, taken, 1.0, dict(offsets), "", left_out)
            clock.sleep(TAIL_REST_S)
        yield Progress(records, taken, 1.0, dict(offsets), "bounds", left_out)

    def _turn(self, offsets: Offsets) -> Iterator[Iterator[tuple[int, Answer]]]:
        """Ask all leaders at once, each of which waits until something comes."""
        by_leader: dict[int, Offsets] = {}
        for partition, offset in offsets.items():
            leader = self.topic.leaders[partition]
            if leader in self._cluster.brokers:
                by_leader.setdefault(leader, {})[partition] = offset
        if not by_leader:
            raise LaterFault(f"{self.name} has no leader")
        for leader, asked in by_leader.items():
            connection = self._waiting.get(leader)
            if connection is None:
                connection = self._cluster.connect(self._cluster.brokers[leader])
                self._waiting[leader] = connection
            connection.send(FETCH, self._fetch_body(asked, TAIL_WAIT_MS, FETCH_BYTES))
        for leader, asked in by_leader.items():
            yield self._answers(self._waiting[leader].receive(), asked)


def _is_aborted(header: tuple[int, ...], aborted: tuple[AbortedTransaction, ...]) -> bool:
    return bool(header[H_ATTRIBUTES] & TRANSACTIONAL_BIT) and any(
        header[H_PRODUCER_ID] == each.producer_id
        and each.first_offset <= header[H_BASE_OFFSET] <= each.last_offset
        for each in aborted
    )


def _matching(
    batch: Batch, start: int, end: int, needle: bytes, wanted: Wanted
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


def parse_offsets(text: str) -> Mapping[int, int]:
    """ "0:12,1:7" as partitions and offsets; ValueError if it is none."""
    found = {}
    for pair in text.split(",")[:PARTITIONS_MAX]:
        partition, _, offset = pair.partition(":")
        if not (is_number(partition) and is_number(offset)):
            raise ValueError(f"{pair[:40]} is not PARTITION:OFFSET")
        found[int(partition)] = int(offset)
    return found


def is_number(text: str) -> bool:
    """Whether it is an offset, a time or the like: of 63 bits, in digits."""
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX
