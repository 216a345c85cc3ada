"""A plot of a result file beside it: `--out perf/results/NAME.json` writes `NAME.png`, too.

A group of bars for each case, and in it one for each kind, of the same colour everywhere; where
rows name no kind, one for each of their figures that are records a second. From above: rows a
second with the goals as lines, CPU seconds, bytes a row, seconds, milliseconds, as far as they were
measured. A bar may consist of parts, which the panel names. What a result says of the machine is in
the title.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

MILLION = 1e6

Goals = dict[str, list[tuple[str, float]]]
"""case → (what, rows a second): lines across the bar of its first kind."""


class Panel(NamedTuple):
    """case → kind → heights of the parts of its bar, each above the one before."""

    label: str
    parts: tuple[str, ...]
    cases: dict[str, dict[str, list[float]]]


_PANELS = (
    # label, unit, figures of the parts, what the parts are called
    ("M rows/s", MILLION, ("rows_per_s",), ()),
    ("CPU s", 1, ("jvm_cpu_s", "python_cpu_s"), ("JVM", "Python")),
    ("B/row", 1, ("bytes_per_row",), ()),
    ("s", 1, ("load_s", "count_s"), ("load()", "count()")),
    ("ms", 1, ("newest_p50_ms", "newest_p99_ms"), ("p50", "p99 of the newest record")),
)
_ARE_LEVELS = "ms"
"""The panel whose figures are heights from the ground, not one on top of the other."""


def plot(path: Path, result: dict[str, Any], goals: Goals | None = None) -> None:
    """Draw a result; a sentence instead where matplotlib is not installed."""
    plt = _pyplot()
    if plt is None:
        return
    drawn = panels(result["cases"])
    widest = max(sum(map(len, panel.cases.values())) for panel in drawn)
    size = (max(8, 0.5 * widest + 3), 3.5 * len(drawn))
    figure, axes = plt.subplots(len(drawn), 1, figsize=size, squeeze=False, layout="constrained")
    kinds = dict.fromkeys(kind for panel in drawn for bars in panel.cases.values() for kind in bars)
    colours = {kind: f"C{n % 10}" for n, kind in enumerate(kinds)}
    for axis, panel in zip(axes[:, 0], drawn, strict=True):
        _draw(axis, panel, colours)
        if panel.label == "M rows/s":
            _draw_goals(axis, panel, goals or {})
    if len(kinds) > 1:
        patch = importlib.import_module("matplotlib.patches").Patch
        handles = [patch(color=colour, label=kind) for kind, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    _save(plt, figure, title_of(result), path)


def _pyplot() -> Any:
    """matplotlib's, without a screen; None, and a sentence, where it is not installed."""
    try:
        mpl = importlib.import_module("matplotlib")
    except ImportError:
        print("no plot: pip install matplotlib")
        return None
    mpl.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _save(plt: Any, figure: Any, title: str, path: Path) -> None:
    """Write a picture beside the result file at `path`."""
    figure.suptitle(title, fontsize=8)
    picture = path.with_suffix(".png")
    figure.savefig(picture, dpi=130)
    plt.close(figure)
    print(f"drawn in {picture}")


def plot_lines(
    path: Path,
    title: str,
    x_label: str,
    drawn: dict[str, dict[str, tuple[list[float], list[float]]]],
) -> None:
    """Draw panels of lines, label → name → (x, y), beside a result file."""
    plt = _pyplot()
    if plt is None:
        return
    size = (8, 2.5 * len(drawn))
    figure, axes = plt.subplots(len(drawn), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, (label, named) in zip(axes[:, 0], drawn.items(), strict=True):
        for name, (across, up) in named.items():
            axis.plot(across, up, label=name, lw=1)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    axes[-1, 0].set_xlabel(x_label)
    _save(plt, figure, title, path)


def plot_points(
    path: Path,
    title: str,
    drawn: dict[str, dict[str, tuple[list[float], list[float], list[float]]]],
) -> None:
    """Draw panels of points and the lines fitted to them, label → name → (x, y, y of the line),
    beside a result file; both axes by powers of ten."""
    plt = _pyplot()
    if plt is None:
        return
    rows = -(-len(drawn) // 2)
    figure, axes = plt.subplots(
        rows, 2, figsize=(11, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for axis, (label, named) in zip(axes.flat, drawn.items(), strict=False):
        for n, (name, (across, up, fitted)) in enumerate(named.items()):
            axis.plot(across, up, "o", color=f"C{n}", ms=4, label=name)
            axis.plot(across, fitted, color=f"C{n}", lw=1)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(label, fontsize=8)
        axis.legend(fontsize=6)
    for axis in list(axes.flat)[len(drawn) :]:
        axis.axis("off")
    _save(plt, figure, title, path)


def panels(rows: list[dict[str, Any]]) -> list[Panel]:
    """What there is to draw of a result's rows, from above."""
    found = []
    for label, unit, names, parts in _PANELS:
        cases: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            heights = [row["A"][name] / unit for name in names if name in row["A"]]
            if len(heights) == len(names):
                cases.setdefault(row["case"], {})[row.get("kind", "")] = heights
        if cases:
            found.append(Panel(label, parts, cases))
    if not found:
        speeds = {
            row["case"]: {
                name: [value / MILLION]
                for name, value in row["A"].items()
                if name.endswith("records_per_s")
            }
            for row in rows
        }
        found.append(Panel("M records/s", (), speeds))
    return found


def _draw(axis: Any, panel: Panel, colours: dict[str, str]) -> None:
    for x, bars in enumerate(panel.cases.values()):
        width = _bar_width(panel)
        for n, (kind, heights) in enumerate(bars.items()):
            place, top = x + width * (n + 0.5 - len(bars) / 2), 0.0
            for part, height in enumerate(heights):
                rise = height - top if panel.label == _ARE_LEVELS else height
                axis.bar(
                    place,
                    rise,
                    0.94 * width,
                    top,
                    color=colours[kind],
                    edgecolor="white",
                    alpha=0.45 if part else 1,
                )
                top += rise
            text = "\n".join(f"{height:.3g}" for height in reversed(heights))
            axis.text(place, top, text, ha="center", va="bottom", fontsize=6)
    axis.set_xticks(range(len(panel.cases)), panel.cases)
    if len(panel.cases) > 5:
        axis.tick_params("x", rotation=20)
    axis.set_ylabel(panel.label)
    axis.margins(y=0.18)
    axis.set_xlim(-0.5, max(2, len(panel.cases)) - 0.5)
    if panel.parts:
        axis.set_title(f"from below: {', '.join(panel.parts)}", fontsize=7, loc="right")


def _bar_width(panel: Panel) -> float:
    """Of a bar and the gap beside it, where cases stand 1 apart."""
    return 0.86 / max(map(len, panel.cases.values()))


def _draw_goals(axis: Any, panel: Panel, goals: Goals) -> None:
    apart = axis.get_ylim()[1] / 18  # what the text of a line takes
    for x, (case, bars) in enumerate(panel.cases.items()):
        half, above = 0.5 * _bar_width(panel) * len(bars), 0.0
        for what, rows_per_s in sorted(goals.get(case, ()), key=lambda goal: goal[1]):
            height = rows_per_s / MILLION
            above = max(height, above + apart)
            axis.hlines(height, x - half, x + half, colors="black", ls="--", lw=0.8)
            axis.text(x + half, above, f"goal: {what}", ha="right", va="bottom", fontsize=6)


def title_of(result: dict[str, Any]) -> str:
    """What ran, and on what machine."""
    machine = result["environment"]
    options = ", ".join(f"{name} {value}" for name, value in result["options"].items() if value)
    return (
        f"{result['bench']}: {options}\n{machine['cpu']}, {machine['cores']} cores, load"
        f" {machine['load_average_before']:.1f} before, commit {machine['commit'][:9]}"
    )
