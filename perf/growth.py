"""What follows from the rows of `perf/scaling`: lines, the family's model, docs/scaling.md, plots.

A line is `intercept + slope * x`, by least squares of what it is off relative to each point: the
points lie up to four powers of ten apart, and the first is to count as much as the last. Its
residual is the root of the mean square of that. Where the whole rise over the axis is within twice
the residual, no growth was seen.

The document's figures stand between markers, and are nothing but `blocks(result)`: a test compares
them. Without a result file the tables are there, empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf import calibration, machines
from perf.family_terms import Costs

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "scaling.md"
RESULT = ROOT / "perf" / "results" / "scaling.json"

ROLES = ("network-worker", "io-worker", "controller", "supervisor")
SHARE_MOST = 0.15
"""How far the model may be off in a rate, a p50 and the CPU of a request."""

AXES = {
    # axis: (what x is divided by, what that is)
    "connections, one request at a time": (1000, "1,000 connections"),
    "connections, each with a request": (1000, "1,000 connections"),
    "partitions": (1000, "1,000 partitions"),
    "groups": (1000, "1,000 groups"),
    "segments": (1000, "1,000 segments"),
    "followers, 100 B": (1, "follower"),
    "followers, 64 KiB": (1, "follower"),
    "bytes of a batch, 1 in flight": (1024, "KiB"),
    "bytes of a batch, 16 in flight": (1024, "KiB"),
}
FIGURES = {
    "cpu_us_per_request": "CPU µs",
    "network_worker_cpu_us": "of network workers",
    "io_worker_cpu_us": "of I/O workers",
    "p50_us": "p50 µs",
    "pss_mib": "memory MiB",
}


def figure_of_role(role: str) -> str:
    return f"{role.replace('-', '_')}_cpu_us"


# ── lines ───────────────────────────────────────────────────────────────────────────────────────


EXACT = 1e-6
"""Points on one line stray by what arithmetic of a processor rounds."""


def fit(xs: Iterable[float], ys: Iterable[float]) -> dict[str, float]:
    """Intercept, slope, and the residual as a share."""
    import numpy as np

    x, y = np.array(list(xs), float), np.array(list(ys), float)
    weights = 1 / np.maximum(np.abs(y), 1e-9)
    columns = np.stack([np.ones_like(x), x], axis=1) * weights[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(columns, y * weights, rcond=None)
    off = (intercept + slope * x - y) * weights
    return {
        "intercept": float(f"{intercept:.4g}"),
        "slope": float(f"{slope:.4g}"),
        "residual": float(f"{np.sqrt(np.mean(off**2)):.3g}"),
        "x_first": float(x.min()),
        "x_last": float(x.max()),
    }


def grows(line: Mapping[str, float]) -> bool:
    """Whether its rise is more than what the points stray."""
    rise = abs(line["slope"]) * (line["x_last"] - line["x_first"])
    middle = abs(line["intercept"] + line["slope"] * line["x_first"]) or 1e-9
    return rise > max(2 * line["residual"], EXACT) * middle


def lines(cases: list[dict[str, Any]], side: str = "A") -> dict[str, dict[str, dict[str, float]]]:
    """axis → figure → line, of the axes that are lines."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for axis in AXES:
        rows = [row for row in cases if row["axis"] == axis and side in row]
        if len(rows) < 2:
            continue
        for figure in FIGURES:
            if all(figure in row[side] for row in rows):
                line = fit([row["x"] for row in rows], [row[side][figure] for row in rows])
                found.setdefault(axis, {})[figure] = line
    return found


# ── model ───────────────────────────────────────────────────────────────────────────────────────


def measured_rows(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The rows of the axis cores, by the model's names of figures."""
    found = {}
    for row in cases:
        if row["axis"] != "cores":
            continue
        taken = row["A"]
        found[row["case"].removeprefix("cores: ")] = {
            "rate": taken["requests_per_s"],
            "p50_us": taken["p50_us"],
            "client_us": taken["client_cpu_us"],
            "network_us": taken["network_worker_cpu_us"],
            "io_us": taken["io_worker_cpu_us"],
        }
    return found


BATCHES = "bytes of a batch, 16 in flight"
SMALL_MOST, LARGE_LEAST = 16384, 65536


def first_costs(cases: list[dict[str, Any]], steps: Mapping[str, float]) -> Costs:
    """What was measured of parts alone: steps by perf/micro.py, bytes by the batches up to 16 KiB,
    and from 64 KiB on, as other code takes them."""
    known = {
        "network_request": sum(steps[step] for step in ("P1", "P2", "P3", "P4", "P10", "P11")),
        "io_request": steps.get("P5 to P9")
        or sum(steps[step] for step in ("P5", "P6", "P7", "P8", "P9")),
    }
    rows = [row for row in cases if row["axis"] == BATCHES]
    for names, chosen in (
        (("network_kib", "io_kib"), [row for row in rows if row["x"] <= SMALL_MOST]),
        (("network_large_kib", "io_written_kib"), [row for row in rows if row["x"] >= LARGE_LEAST]),
    ):
        for name, role in zip(names, ("network-worker", "io-worker"), strict=True):
            figure = figure_of_role(role)
            if len(chosen) > 1:
                line = fit([row["x"] for row in chosen], [row["A"][figure] for row in chosen])
                known[name] = line["slope"] * 1024
    return calibration.with_costs(Costs(), **known)


def model_of(cases: list[dict[str, Any]], steps: Mapping[str, float]) -> dict[str, Any]:
    """The model's costs, what it says of the measured rows, and of larger machines; {} where rows
    that it is calibrated on were not measured."""
    measured = measured_rows(cases)
    fitted_to = [row for row in calibration.ROWS if row.is_calibration]
    if not all(row.name in measured for row in fitted_to):
        return {}
    print("\ncalibrating the model …", flush=True)
    start = first_costs(cases, steps)
    costs = calibration.calibrate(start, measured, fitted_to)
    return {
        "start": _rounded(start),
        "costs": _rounded(costs),
        "rows": calibration.predictions(costs, measured),
        "hot_partition": machines.hot_partition(costs),
        "machines": machines.machines(costs),
    }


def _rounded(costs: Costs) -> dict[str, float]:
    return {name: float(f"{getattr(costs, name):.4g}") for name in calibration.NAMES}


def recalibrate(path: Path) -> None:
    """The model anew, from the rows that a result file has, into that file."""
    result = json.loads(path.read_text())
    result["lines"] = lines(result["cases"])
    result["model"] = model_of(result["cases"], result["micro"])
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for row in result["model"].get("rows", ()):
        print(f"{row['row']:<34} {_off_text(row)}")


def _off_text(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {each['off']:+.0%}" for name, each in row["figures"].items())


# ── document ────────────────────────────────────────────────────────────────────────────────────


def write_document(path: Path = RESULT, document: Path = DOCUMENT) -> None:
    """Put the figures of a result file between the markers of docs/scaling.md."""
    result = json.loads(path.read_text()) if path.exists() else None
    document.write_text(filled(document.read_text(encoding="utf-8"), result), encoding="utf-8")
    print(f"written into {document}")


def filled(text: str, result: Mapping[str, Any] | None) -> str:
    """The document with these figures."""
    for name, content in blocks(result).items():
        begin, end = f"<!-- figures: {name} -->", "<!-- end of figures -->"
        before, found, rest = text.partition(begin)
        assert found, f"the document has no place for {name}"
        _, found, after = rest.partition(end)
        assert found, f"{name} has no end"
        text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def blocks(result: Mapping[str, Any] | None) -> dict[str, str]:
    """What stands between the markers."""
    model = (result or {}).get("model") or {}
    return {
        "machine": _machine(result),
        "lines": _lines_table((result or {}).get("lines", {})),
        "validation": _validation(model.get("rows", [])),
        "hot partition": _hot_table(model.get("hot_partition", [])),
        "machines": _machines_table(model.get("machines", [])),
        "workers": _workers_table(model.get("machines", [])),
    }


def _machine(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "Not measured yet on a quiet machine; the tables have their rows and no figures."
    on = result["environment"]
    return (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['memory_gib']} GiB, Linux"
        f" {on['kernel']}, Python {on['python']}, load {on['load_average_before']:.1f} before,"
        f" commit {on['commit'][:9]} (`perf/results/scaling.json`)."
    )


def _lines_table(fitted: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    rows = [("what grows", "for each", *FIGURES.values())]
    for axis, (unit, called) in AXES.items():
        cells = [
            _line_text(fitted[axis][figure], unit) if figure in fitted.get(axis, {}) else ""
            for figure in FIGURES
        ]
        rows.append((axis, called, *cells))
    return _table(rows)


def _line_text(line: Mapping[str, float], unit: float) -> str:
    """intercept + slope (residual); only a middle where it does not grow."""
    stray = f"({line['residual']:.0%})"
    if not grows(line):
        middle = line["intercept"] + line["slope"] * (line["x_first"] + line["x_last"]) / 2
        return f"{_number(middle)} {stray}"
    sign = "−" if line["slope"] < 0 else "+"
    return f"{_number(line['intercept'])} {sign} {_number(abs(line['slope']) * unit)} {stray}"


def _validation(rows: list[Mapping[str, Any]]) -> str:
    shown = {"rate": "requests/s", "p50_us": "p50 µs", "network_us": "CPU µs, network worker",
             "io_us": "I/O worker"}  # fmt: skip
    table = [("closed loop", "", *(f"{name}: measured, model" for name in shown.values()))]
    if not rows:
        table += [
            (row.name, _use(row.is_calibration), *[""] * len(shown)) for row in calibration.ROWS
        ]
        return _table(table)
    for each in rows:
        cells = [
            f"{_number(figure['measured'])}, {_number(figure['model'])} ({figure['off']:+.0%})"
            for figure in (each["figures"][name] for name in shown)
        ]
        table.append((each["row"], _use(each["is_calibration"]), *cells))
    return _table(table) + "\n\n" + verdict(rows)


def _use(is_calibration: bool) -> str:
    return "calibration" if is_calibration else "prediction"


def verdict(rows: Iterable[Mapping[str, Any]]) -> str:
    """How good the model is, by the rows that it has not seen: rate, p50 and the family's CPU."""
    predicted = [row for row in rows if not row["is_calibration"]]
    worst: dict[str, float] = {}
    within = 0
    for row in predicted:
        off = {name: abs(row["figures"][name]["off"]) for name in ("rate", "p50_us")}
        both = [row["figures"][name] for name in ("network_us", "io_us")]
        cpu = sum(each["model"] for each in both) / sum(each["measured"] for each in both) - 1
        off["CPU"] = abs(cpu)
        within += max(off.values()) <= SHARE_MOST
        for name, share in off.items():
            worst[name] = max(worst.get(name, 0.0), share)
    return (
        f"Of {len(predicted)} rows that it was not calibrated on, the model has rate, p50 and CPU"
        f" of the family within {SHARE_MOST:.0%} in {within}. At worst it is off by"
        f" {worst.get('rate', 0):.0%} in the rate, {worst.get('p50_us', 0):.0%} in the p50 and"
        f" {worst.get('CPU', 0):.0%} in CPU."
        + (
            ""
            if within == len(predicted)
            else " What it says of larger machines is no better than that."
        )
    )


def _hot_table(rows: list[Mapping[str, Any]]) -> str:
    table = [("batch", "network workers that fill it", "requests/s", "GB/s", "full")]
    if not rows:
        table += [(_size(size), "", "", "", "") for size in machines.SIZES]
    for row in rows:
        cells = (_number(row["rate"]), _number(row["gb_s"]), row["full"])
        table.append((_size(row["bytes"]), str(row["network_workers"]), *cells))
    return _table(table)


def _machines_table(rows: list[Mapping[str, Any]]) -> str:
    table = [("cores", "batch", *(f"{each} Gb/s: GB/s, full" for each in machines.NETWORKS))]
    for cores in machines.MEMORY_GB_S:
        for size in machines.SIZES:
            cells = []
            for network in machines.NETWORKS:
                found = [
                    row
                    for row in rows
                    if (row["cores"], row["bytes"], row["network_gbit_s"]) == (cores, size, network)
                ]
                cells.append(f"{_number(found[0]['gb_s'])}, {found[0]['full']}" if found else "")
            table.append((str(cores), _size(size), *cells))
    return _table(table)


def _workers_table(rows: list[Mapping[str, Any]]) -> str:
    table = [("cores", "batch", "network workers", "I/O workers", "rings, MiB")]
    for cores in machines.MEMORY_GB_S:
        for size in machines.SIZES:
            found = [row for row in rows if (row["cores"], row["bytes"]) == (cores, size)]
            if not found:
                table.append((str(cores), _size(size), "", "", ""))
                continue
            networks, ios = found[0]["network_workers"], found[0]["io_workers"]
            mib = f"{ring_mib(networks, ios):,}"
            table.append((str(cores), _size(size), str(networks), str(ios), mib))
    return _table(table)


def ring_mib(networks: int, ios: int) -> int:
    """Room in /dev/shm: 8 MiB to and 2 MiB from each I/O worker for each network worker, 2 MiB
    between two I/O workers each way (`processes/shared_resources.py`)."""
    return networks * ios * (8 + 2) + ios * (ios - 1) * 2


def _size(size: int) -> str:
    return f"{size // 1024} KiB"


def _number(value: float) -> str:
    """Three digits."""
    if abs(value) >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.1g}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


# ── plots ───────────────────────────────────────────────────────────────────────────────────────


def draw(path: Path, result: dict[str, Any]) -> None:
    """The points and their lines, beside the result file."""
    from perf.plot import plot_points, title_of

    panels = {}
    for axis, figures in result["lines"].items():
        rows = [row for row in result["cases"] if row["axis"] == axis]
        drawn = {}
        for figure, line in figures.items():
            xs = [row["x"] for row in rows]
            ys = [row["A"][figure] for row in rows]
            fitted = [line["intercept"] + line["slope"] * x for x in xs]
            drawn[FIGURES[figure]] = (xs, ys, fitted)
        panels[axis] = drawn
    if panels:
        plot_points(path, title_of(result), panels)
