#!/usr/bin/env python3
"""Two result files of one program side by side: second/first for every figure that both have.

    perf/compare.py perf/results/FIRST.json perf/results/SECOND.json

Above 1 is more: good for requests/s and MB/s, bad for the rest. Absolute figures of two runs differ
with whatever else the machine did; where both runs measured against another broker, the ratio of
their ratios (A/B) is printed too, and is the one to believe.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.bench import SHOWN, ratios


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = (load(Path(name)) for name in sys.argv[1:])
    if first["bench"] != second["bench"]:
        sys.exit(f"perf: a {first['bench']} and a {second['bench']} result can't be compared")
    for which, result in (("first", first), ("second", second)):
        found = result["environment"]
        changes = " with local changes" if found["has_local_changes"] else ""
        print(
            f"{which}: {result['finished']}, commit {found['commit'][:9]}{changes}, "
            f"{found['cores']} x {found['cpu']}, load before {found['load_average_before']:.1f}"
        )
    print(f"\n{'case':<44} {'':<3} " + " ".join(f"{heading:>10}" for _, heading, _ in SHOWN))
    before = {row["case"]: row for row in first["cases"]}
    for row in second["cases"]:
        earlier = before.get(row["case"])
        if earlier is None:
            continue
        name = row["case"]
        for which in ("A", "A/B"):
            if which in row and which in earlier:
                print(line(name, which, ratios(row[which], earlier[which])))
                name = ""


def load(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        sys.exit(f"perf: {path}: {fault}")
    return results


def line(name: str, which: str, found: dict[str, float]) -> str:
    cells = [f"{found[key]:.2f}" if key in found else "–" for key, _, _ in SHOWN]
    return f"{name:<44} {which:<3} " + " ".join(f"{cell:>10}" for cell in cells)


if __name__ == "__main__":
    main()
