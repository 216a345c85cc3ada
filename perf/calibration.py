"""The costs of the family's model, fitted to closed loops that were measured; and what the model
then says of others.

A row is one connection with so many requests in flight, its client and the two workers that serve
it bound to cores. The axis "cores" of `perf/scaling` measures them. Some rows are what the costs
are fitted to, all others are predictions.

The fit is that of Levenberg and Marquardt, over logarithms of the costs, from several beginnings.
It is held to what was measured of each step alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from perf.family_model import PIECE_BYTES, simulate
from perf.family_terms import LARGE, Costs, Host, Load, Outcome, Places

PLACES = {
    "1 core": Places(0, 0, 0),
    "client beside I/O worker": Places(0, 1, 0),
    "client beside network worker": Places(0, 0, 1),
    "workers on one core": Places(0, 1, 1),
}
"""Left to themselves, processes move between these: so a row is of one of them."""


class Row(NamedTuple):
    """One closed loop that was measured: bytes of a batch, requests in flight, who is where."""

    bytes: int
    depth: int
    where: str
    """Of PLACES."""
    is_calibration: bool

    @property
    def name(self) -> str:
        size = f"{self.bytes} B" if self.bytes < 1024 else f"{self.bytes // 1024} KiB"
        return f"{size}, {self.depth} in flight, {self.where}"


def _is_calibration(size: int, where: str) -> bool:
    """What the costs are fitted to: batches of both ends of what is stored, but for the last place:
    of that the smallest alone. All between is predicted."""
    return size == 100 or (size != 1024 and where != "workers on one core")


ROWS = [
    Row(size, depth, where, _is_calibration(size, where))
    for where in PLACES
    for size in (100, 1024, 4096)
    for depth in (1, 16)
]
ROWS += [Row(LARGE, depth, "client beside I/O worker", True) for depth in (1, 16)]
"""What a large batch costs hangs on the memory that it comes into: it is not predicted."""


def of_row(costs: Costs, row: Row, requests: int = 400) -> Outcome:
    """A measured row: one connection, so one network worker and one I/O worker."""
    count = min(requests, 120) if row.bytes > 4 * PIECE_BYTES else requests
    places = PLACES[row.where]
    host = Host(places.cores, places=places)
    return simulate(costs, host, Load(row.bytes, row.depth), max(count, 8 * row.depth))


NAMES = [field.name for field in fields(Costs)]
PRIOR_WEIGHT = 0.02
"""How much a cost is held to where it began: where rows say nothing, it stays."""
PRIOR_WEIGHTS = {
    "network_request": 0.05,
    "io_request": 0.05,
    "network_kib": 0.05,
    "io_kib": 0.05,
    "network_large_kib": 0.05,
    "io_written_kib": 0.05,
}
"""Of what was measured alone. perf/micro.py has the steps at their best, with warm caches. Of large
batches few rows say much."""
WEIGHTS = {"rate": 2.5, "p50_us": 2.5, "client_us": 0.6, "network_us": 0.8, "io_us": 0.8}
"""What a load sees counts more than who has spent how much."""
LARGE_WEIGHT = 0.3
"""Of the rows of large batches: their measurements differ most between two runs."""
STRAYS = 0.2
"""What is off by much more counts by how far, no longer by its square: something else ran."""

Measured = Mapping[str, Mapping[str, float]]
"""Row's name → the figures of an `Outcome`, measured."""


WAKES = (15.0, 3.0, 60.0)
"""Where a calibration begins: how long a core needs to wake differs most between machines, and what
else there is follows from it."""
REQUESTS = 400, 1200
"""Of a row: to find about where the costs are, and from there on."""
BEST = 2
"""So many of the beginnings are followed to their end."""


def calibrate(
    start: Costs,
    measured: Measured,
    rows: Iterable[Row],
    steps: int = 14,
    wakes: Iterable[float] = WAKES,
) -> Costs:
    """Costs with which the rows come out as measured, the best of a few beginnings. start: what was
    measured of each step alone."""
    chosen = [row for row in rows if row.name in measured]
    starts = [replace(start, wake=wake) for wake in wakes]
    few, many = REQUESTS
    found = [_calibrated(each, start, measured, chosen, steps, few) for each in starts]
    found.sort(key=lambda each: each[0])
    ends = [_calibrated(costs, start, measured, chosen, steps, many) for _, costs in found[:BEST]]
    return min(ends, key=lambda each: each[0])[1]


def _calibrated(
    start: Costs, held_to: Costs, measured: Measured, chosen: list[Row], steps: int, requests: int
) -> tuple[float, Costs]:
    """(what is left of the misses, costs): Levenberg and Marquardt's least squares, over
    logarithms."""
    import numpy as np

    def costs_at(point: Any) -> Costs:
        return Costs(**{name: float(np.exp(at)) for name, at in zip(NAMES, point, strict=True)})

    def misses(point: Any) -> Any:
        costs, found = costs_at(point), []
        for row in chosen:
            outcome = of_row(costs, row, requests)
            share = LARGE_WEIGHT if row.bytes == LARGE else 1.0
            for figure, weight in WEIGHTS.items():
                told = max(getattr(outcome, figure), 1e-6)
                off = np.log(told / measured[row.name][figure]) / STRAYS
                root = np.sqrt(2 * (np.sqrt(1 + off**2) - 1))  # Huber's, without a corner
                found.append(share * weight * STRAYS * np.copysign(root, off))
        return np.array(found + list(held * (point - origin)))

    def point_of(costs: Costs) -> Any:
        return np.log([getattr(costs, name) for name in NAMES])

    origin = point_of(held_to)
    held = np.array([PRIOR_WEIGHTS.get(name, PRIOR_WEIGHT) for name in NAMES])
    point, damping = point_of(start), 0.1
    at = misses(point)
    for _ in range(steps):
        slopes = np.empty((len(at), len(point)))
        for place in range(len(point)):
            aside = point.copy()
            aside[place] += 0.08
            slopes[:, place] = (misses(aside) - at) / 0.08
        for _ in range(5):
            square = slopes.T @ slopes
            step = np.linalg.solve(
                square + damping * np.diag(np.diag(square) + 0.01), -slopes.T @ at
            )
            step = np.clip(step, -0.7, 0.7)
            then = misses(point + step)
            if then @ then < at @ at:
                point, at, damping = point + step, then, damping / 3
                break
            damping *= 4
        else:
            break
    return float(at @ at), costs_at(point)


def predictions(costs: Costs, measured: Measured) -> list[dict[str, Any]]:
    """Each row: what was measured, what the model says, and by how much they differ."""
    found = []
    for row in ROWS:
        if row.name not in measured:
            continue
        outcome = of_row(costs, row, 1500)
        figures = {}
        for figure in WEIGHTS:
            told, was = getattr(outcome, figure), measured[row.name][figure]
            figures[figure] = {"measured": was, "model": told, "off": told / was - 1}
        found.append({"row": row.name, "is_calibration": row.is_calibration, "figures": figures})
    return found


def with_costs(start: Costs, **known: float) -> Costs:
    """`start`, with what was measured in its place; nothing is for free."""
    return replace(start, **{name: max(value, 1e-4) for name, value in known.items()})
