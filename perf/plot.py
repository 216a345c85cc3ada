"""A plot of a result file beside it: `--out perf/results/NAME.json` writes `NAME.png`, too.

A bar for each case, and in each group one for each figure: rows a second above, CPU seconds below
where they were measured. What it says of the machine is in its title.
"""

import importlib
from pathlib import Path
from typing import Any

MILLION = 1e6


def plot(path: Path, result: dict[str, Any], goals: dict[str, float] | None = None) -> None:
    """Draw a result; a sentence instead where matplotlib is not installed.

    `goals`: case → rows a second, drawn as a line across its bar.
    """
    try:
        mpl = importlib.import_module("matplotlib")
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    mpl.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    names = [row["case"] for row in result["cases"]]
    figures = [row["A"] for row in result["cases"]]
    speeds = _named(figures, "rows_per_s", "records_per_s")
    spent = _named(figures, "cpu_s")
    panels = [panel for panel in ((speeds, MILLION, "M rows/s"), (spent, 1, "CPU s")) if panel[0]]
    size = (max(7, 1.1 * len(names) + 2), 4 * len(panels))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, (kinds, unit, label) in zip(axes[:, 0], panels, strict=True):
        width = 0.8 / len(kinds)
        for n, kind in enumerate(kinds):
            places = [x - 0.4 + width * (n + 0.5) for x in range(len(names))]
            heights = [each.get(kind, 0) / unit for each in figures]
            bars = axis.bar(places, heights, width, label=kind)
            axis.bar_label(bars, fmt="%.3g", fontsize=7)
        for x, name in enumerate(names):
            if unit == MILLION and goals and name in goals:
                axis.hlines(goals[name] / unit, x - 0.45, x + 0.45, colors="black", ls="--")
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(label)
        if len(kinds) > 1:
            axis.legend(fontsize=7)
    machine = result["environment"]
    axes[0, 0].set_title(
        f"{result['bench']}: {machine['cpu']}, {machine['cores']} cores, load"
        f" {machine['load_average_before']:.1f} before, commit {machine['commit'][:9]}",
        fontsize=8,
    )
    picture = path.with_suffix(".png")
    figure.savefig(picture, dpi=130)
    print(f"drawn in {picture}")


def _named(figures: list[dict[str, float]], *parts: str) -> list[str]:
    """The figures whose name has one of these parts, in the order they come."""
    found = dict.fromkeys(name for each in figures for name in each)
    return [name for name in found if any(part in name for part in parts)]
