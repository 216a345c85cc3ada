"""The views of `shmbroker top`: rows of a snapshot and what has moved since the one before. Pure.

A view is columns and rows of cells; a cell has what is sorted by and what is shown. Nothing here
knows of terminals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shmbroker.cli.numbers import bytes_text, short, span_text
from shmbroker.cli.outcome import CommandFault
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER
from shmbroker.observe.health import SILENT_S
from shmbroker.observe.rates import Rates, Timing
from shmbroker.observe.snapshot import HAS_ROOM, NO_LEADER, RUNNING, Snapshot

PLAIN, GOOD, WARN, BAD = "plain", "good", "warn", "bad"
"""How a row or a line is meant."""

UNKNOWN = "-"
_NUMBER = re.compile("[0-9]+")
FULL_SHARE = 0.75
"""A ring with more than this in it is worth a look."""


class Cell(NamedTuple):
    """What a row is sorted by, and what is shown."""

    key: float | str
    text: str


class Column(NamedTuple):
    """A column; `is_number`: to the right, and the largest first when sorted by."""

    name: str
    is_number: bool = True


class ViewRow(NamedTuple):
    """A row, and how it is meant."""

    cells: tuple[Cell, ...]
    mood: str = PLAIN


class View(NamedTuple):
    """A view; it is shown sorted by column number `sorted_by` at first."""

    name: str
    columns: tuple[Column, ...]
    sorted_by: int
    is_reversed: bool
    """The view's order at first: numbers from the largest, words from the last."""
    rows: Callable[[Snapshot, Rates], list[ViewRow]]


# ── cells ───────────────────────────────────────────────────────────────────────────────────────


def word(text: str) -> Cell:
    """Words, without what would lead a terminal astray; numbers in them are sorted as such."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return Cell(_NUMBER.sub(lambda found: found[0].zfill(19), shown), shown or UNKNOWN)


def count(value: float | None) -> Cell:
    """A count, or so many a second: three digits and what they stand for."""
    return Cell(-1.0, UNKNOWN) if value is None else Cell(float(value), short(value))


def size(value: float | None) -> Cell:
    """Bytes, or bytes a second."""
    return Cell(-1.0, UNKNOWN) if value is None else Cell(float(value), bytes_text(value))


def whole(value: int | None) -> Cell:
    """A number that is shown in full."""
    return Cell(-1.0, UNKNOWN) if value is None else Cell(float(value), str(value))


def span(value_s: float | None) -> Cell:
    """How long something took, or is ago."""
    return Cell(-1.0, UNKNOWN) if value_s is None else Cell(value_s, span_text(value_s))


def percent(share: float | None) -> Cell:
    """A share of one."""
    return Cell(-1.0, UNKNOWN) if share is None else Cell(share, f"{share * 100:.1f}")


# ── views ───────────────────────────────────────────────────────────────────────────────────────


def _processes(snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    rows = []
    for process in snapshot.processes:
        moved = rates.processes.get(process.title)
        usage = process.usage
        is_worker = process.role in (NETWORK_WORKER, IO_WORKER)
        if not process.pid and process.state == "none" and not process.started_ms:
            continue  # a helper that nobody has needed yet
        is_silent = process.silence_s is not None and process.silence_s > SILENT_S
        state = process.state
        if process.role == IO_WORKER and process.disk != HAS_ROOM:
            state += f", disk {process.disk}"
        if process.work:
            state += f": {process.work}"
        mood = PLAIN
        if process.restarts:
            mood = WARN
        if is_silent or process.state != RUNNING or process.disk != HAS_ROOM:
            mood = BAD
        rows.append(
            ViewRow(
                (
                    word(process.title),
                    whole(process.pid or None),
                    percent(None if moved is None else moved.cpu_share),
                    size(None if usage is None else usage.resident_bytes),
                    size(None if usage is None else usage.anonymous_bytes),
                    whole(process.restarts),
                    span(process.silence_s),
                    word(state),
                    count(moved.turns if moved is not None and is_worker else None),
                    count(moved.stalls if moved is not None and is_worker else None),
                ),
                mood,
            )
        )
    return rows


def _rings(snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    rows = []
    running = {process.title for process in snapshot.processes if process.pid}
    for ring in snapshot.rings:
        if not running >= {ring.writer, ring.reader} and not ring.used_bytes:
            continue
        share = ring.used_bytes / ring.capacity_bytes
        moved = rates.processes.get(ring.writer)
        rows.append(
            ViewRow(
                (
                    word(ring.writer),
                    word(ring.reader),
                    percent(share),
                    size(ring.used_bytes),
                    size(ring.capacity_bytes),
                    size(rates.rings.get(f"{ring.writer} > {ring.reader}")),
                    count(None if moved is None else moved.stalls),
                ),
                WARN if share > FULL_SHARE else PLAIN,
            )
        )
    return rows


def _topics(snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    rows = []
    for topic in snapshot.topics:
        flow = rates.topics.get(topic.name)
        lacking = sum(row.is_under_replicated for row in topic.partitions)
        offline = sum(row.leader == NO_LEADER for row in topic.partitions)
        rows.append(
            ViewRow(
                (
                    word(topic.name),
                    whole(len(topic.partitions)),
                    count(None if flow is None else flow.records_in),
                    size(None if flow is None else flow.bytes_in),
                    size(None if flow is None else flow.bytes_out),
                    count(topic.records),
                    size(topic.size_bytes),
                    whole(lacking),
                    whole(offline),
                ),
                BAD if offline else WARN if lacking else PLAIN,
            )
        )
    return rows


def _partitions(snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    rows = []
    for topic in snapshot.topics:
        for row in topic.partitions:
            name = f"{topic.name}-{row.number}"
            flow = rates.partitions.get(name)
            in_sync = set(row.in_sync)
            replicas = ",".join(
                f"{each.broker}" if each.broker in in_sync else f"({each.broker})"
                for each in row.replicas
            )
            lags = [each.lag for each in row.replicas if each.lag is not None]
            rows.append(
                ViewRow(
                    (
                        word(name),
                        whole(None if row.leader == NO_LEADER else row.leader),
                        word(replicas),
                        count(max(lags, default=None)),
                        count(None if flow is None else flow.records_in),
                        size(None if flow is None else flow.bytes_in),
                        size(None if flow is None else flow.bytes_out),
                        whole(row.start_offset),
                        whole(row.end_offset),
                        size(row.size_bytes),
                    ),
                    BAD
                    if row.leader == NO_LEADER or len(row.in_sync) < topic.min_in_sync
                    else WARN
                    if row.is_under_replicated
                    else PLAIN,
                )
            )
    return rows


def _groups(snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    return [
        ViewRow(
            (
                word(group.name),
                word(group.state),
                word(group.kind),
                whole(group.members),
                whole(group.coordinator),
                whole(len({lag.topic for lag in group.lags})),
                count(group.lag),
                count(rates.lags.get(group.name)),
            ),
            WARN if group.lag and not group.members else PLAIN,
        )
        for group in snapshot.groups.groups
    ]


def _latencies(_snapshot: Snapshot, rates: Rates) -> list[ViewRow]:
    return [
        ViewRow(
            (
                word(timing.name),
                word("stage" if timing.is_stage else "API"),
                count(timing.count),
                span(timing.mean_s),
                span(timing.half_s),
                span(timing.p99_s),
                span(timing.most_s),
            )
        )
        for timing in rates.timings
    ]


def _column(names: str, words: str) -> tuple[Column, ...]:
    return tuple(Column(name, name not in words.split()) for name in names.split())


VIEWS = (
    View(
        "processes",
        _column("PROCESS PID CPU% RSS OWN RESTARTS SIGN STATE TURNS/S STALLS/S", "PROCESS STATE"),
        2,
        True,
        _processes,
    ),
    View(
        "rings",
        _column("WRITER READER FULL% USED CAPACITY BYTES/S STALLS/S", "WRITER READER"),
        5,
        True,
        _rings,
    ),
    View(
        "topics",
        _column("TOPIC PARTS RECORDS/S IN/S OUT/S RECORDS SIZE UNDER OFFLINE", "TOPIC"),
        3,
        True,
        _topics,
    ),
    View(
        "partitions",
        _column(
            "PARTITION LEADER REPLICAS LAG RECORDS/S IN/S OUT/S START END SIZE",
            "PARTITION REPLICAS",
        ),
        5,
        True,
        _partitions,
    ),
    View(
        "groups",
        _column("GROUP STATE KIND MEMBERS COORD TOPICS LAG LAG/S", "GROUP STATE KIND"),
        6,
        True,
        _groups,
    ),
    View("latencies", _column("WHAT OF COUNT/S MEAN P50 P99 MOST", "WHAT OF"), 2, True, _latencies),
)


def view_named(name: str) -> int:
    """The number of a view whose name begins so; CommandFault if there is none."""
    for number, view in enumerate(VIEWS):
        if name and view.name.startswith(name.lower()):
            return number
    raise CommandFault(f"there is no view {name}; {', '.join(view.name for view in VIEWS)} are")


# ── the head ────────────────────────────────────────────────────────────────────────────────────


class Line(NamedTuple):
    """A line above the table."""

    text: str
    mood: str = PLAIN


def head(snapshot: Snapshot, rates: Rates) -> list[Line]:
    """What is to be seen at once: four lines."""
    reasons = snapshot.reasons_not_ready
    state = "ready" if not reasons else f"NOT READY: {'; '.join(reasons)}"
    rows = [row for topic in snapshot.topics for row in topic.partitions]
    under = sum(row.is_under_replicated for row in rows)
    offline = sum(row.leader == NO_LEADER for row in rows)
    connections = sum(process.connections for process in snapshot.processes)
    cores = sum(each.cpu_share or 0.0 for each in rates.processes.values())
    own = sum(
        process.usage.anonymous_bytes for process in snapshot.processes if process.usage is not None
    )
    groups = snapshot.groups.groups
    controllers = snapshot.controllers
    active = str(controllers.active) if controllers.is_active else "none"
    return [
        Line(
            f"shmbroker {snapshot.version}, up {span_text(snapshot.up_s)}, controller {active}, "
            f"{state}",
            GOOD if not reasons else BAD,
        ),
        Line(
            f"in {bytes_text(rates.bytes_in)}B/s  out {bytes_text(rates.bytes_out)}B/s  "
            f"{short(rates.requests)} requests/s  {connections} connections  "
            f"cpu {cores * 100:.0f}%  memory {bytes_text(own)}B"
        ),
        Line("  ".join(filter(None, (_timing(rates.timings, name) for name in _SHOWN)))),
        Line(
            f"{len(snapshot.topics)} topics, {len(rows)} partitions, {under} under-replicated, "
            f"{offline} without a leader; {len(groups)} groups, "
            f"lag {short(sum(group.lag for group in groups))}",
            BAD if offline else WARN if under else PLAIN,
        ),
    ]


_SHOWN = ("Produce", "Fetch", "append", "flush")


def _timing(timings: Sequence[Timing], name: str) -> str:
    for timing in timings:
        if timing.name == name:
            return f"{name} p50 {span_text(timing.half_s)} p99 {span_text(timing.p99_s)}"
    return ""
