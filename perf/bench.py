"""What the programs here have in common: sides, alternation, figures, result files.

A *side* is a broker that is measured: A is this project's (started here, or running already), B,
with --against, another one; L, beside some cases, a program that does the unavoidable and nothing
else (`limits`). A *case* is one load. Each case runs its rounds in turn, A B L A B L …, so that
whatever else the machine does strikes all; the figure of a side is the median of its rounds, and a
ratio that of the medians. Only ratios within one run mean anything on a machine that is not quiet.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from perf import family, limits
from perf.driver import Refused
from shmbroker.testing.broker import Broker

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "perf" / "results"

Round = Callable[["Side"], dict[str, float]]
"""Runs one round on a side; its answer has `requests`, `bytes`, `seconds` and any more figures."""

SHOWN = (
    # figure, heading, format; printed for each side and as a ratio
    ("requests_per_s", "requests/s", ",.0f"),
    ("mb_per_s", "MB/s", ",.1f"),
    ("p50_us", "p50 µs", ",.0f"),
    ("p99_us", "p99 µs", ",.0f"),
    ("p99.9_us", "p99.9 µs", ",.0f"),
    ("cpu_us_per_request", "CPU µs", ",.1f"),
    ("cpu_s_per_gb", "CPU s/GB", ",.2f"),
    ("pss_mib", "PSS MiB", ",.0f"),
)


PAIRS = (("A", "B"), ("A", "L"), ("B", "L"))


class Side:
    """A broker under measurement. others: of its processes, those that do not descend from `pid`;
    their CPU and memory count, too."""

    def __init__(self, name: str, address: str, pid: int, *others: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid
        self._pids = (pid, *others)

    def measure(self, run: Round) -> dict[str, float]:
        """One round, and what the broker's whole family spent on it."""
        before = sum(map(family.cpu_s, self._pids))
        figures = run(self)
        cpu = sum(map(family.cpu_s, self._pids)) - before
        requests, total, seconds = (figures.pop(key, 0) for key in ("requests", "bytes", "seconds"))
        if requests:
            figures["requests_per_s"] = requests / seconds
            figures["cpu_us_per_request"] = cpu / requests * 1e6
        if total:
            figures["mb_per_s"] = total / seconds / 1e6
            figures["cpu_s_per_gb"] = cpu / total * 1e9
        if not requests and seconds:
            figures["cpu_percent"] = cpu / seconds * 100
        figures["pss_mib"] = sum(map(family.pss_without_files_mib, self._pids))
        return figures


class Bench:
    """One run of one program: its options, its sides, its cases, its result file."""

    def __init__(
        self,
        name: str,
        description: str,
        add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None,
        *,
        has_broker: bool = True,
    ) -> None:
        """`add_options`: those of one program alone. has_broker: False, if it measures none."""
        self.has_broker = has_broker
        self.name = name
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--rounds", type=int, default=3, help="rounds of each case and side")
        parser.add_argument("--seconds", type=float, default=3.0, help="longest time of a round")
        parser.add_argument("--only", default="", help="only cases whose name has this in it")
        parser.add_argument("--broker", metavar="HOST:PORT", help="a broker that runs already")
        parser.add_argument("--pid", type=int, help="its process, or the parent of its processes")
        parser.add_argument("--serve", default="", help="flags for the `serve` that is started")
        parser.add_argument("--data", type=Path, help="where it keeps its data meanwhile")
        parser.add_argument("--no-limit", action="store_true", help="run no limit programs")
        parser.add_argument("--against", metavar="HOST:PORT", help="another broker, in turn")
        parser.add_argument(
            "--against-pid", type=int, nargs="+", metavar="PID", help="its process, or several"
        )
        parser.add_argument("--out", type=Path, help="result file  [default: perf/results/…]")
        add_options(parser)
        self.options = options = parser.parse_args()
        if bool(options.broker) != bool(options.pid):
            parser.error("--broker and --pid go together")
        if bool(options.against) != bool(options.against_pid):
            parser.error("--against and --against-pid go together")
        self.cases: list[dict[str, Any]] = []
        self.environment = environment()
        self.broker: Broker | None = None
        """What is started here for side A."""

    # ── sides ───────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> "Bench":
        options = self.options
        self._data: str | None = None
        if not self.has_broker:
            self.sides: list[Side] = []
        elif options.broker:
            self.sides = [Side("A", options.broker, options.pid)]
        else:
            self._data = tempfile.mkdtemp(prefix="shmbroker-perf-", dir=options.data)
            self.broker = Broker(*options.serve.split(), data=Path(self._data))
            self.sides = [Side("A", self.broker.address, self.broker.pid)]
        if options.against:
            self.sides.append(Side("B", options.against, *options.against_pid))
        return self

    def __exit__(self, *_: object) -> None:
        if self.broker is not None:
            self.broker.stop()
        if self._data:
            shutil.rmtree(self._data, ignore_errors=True)

    @property
    def is_started_here(self) -> bool:
        """Whether side A has served nobody before."""
        return self.broker is not None

    # ── cases ───────────────────────────────────────────────────────────────────────────────────

    def case(
        self,
        name: str,
        make: Callable[[Side], Round],
        rounds: int = 0,
        sides: list[Side] | None = None,
        limit: str = "",
    ) -> None:
        """Run a case and print it. `make` prepares a side and gives what its rounds run. limit: the
        program of `limits.KINDS` that this load is limited by."""
        if self.options.only not in name:
            return
        with self._limit(limit) as beside:
            self._run_case(
                name, make, rounds or self.options.rounds, [*(sides or self.sides), *beside]
            )

    @contextmanager
    def _limit(self, kind: str) -> Iterator[list[Side]]:
        """Side L, if there is one."""
        if not kind or self.options.no_limit:
            yield []
            return
        try:
            limits.program()
        except limits.NoCompiler as fault:
            print(fault)
            self.options.no_limit = True
            yield []
            return
        with limits.serving(kind, self.options.data) as (address, pid):
            yield [Side("L", address, pid)]

    def _run_case(
        self, name: str, make: Callable[[Side], Round], rounds: int, sides: list[Side]
    ) -> None:
        taken: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
        runs = {side.name: make(side) for side in sides}
        for _ in range(rounds):
            for side in sides:
                with prepared(runs[side.name]):
                    taken[side.name].append(side.measure(runs[side.name]))
        for run in runs.values():
            close = getattr(run, "close", None)
            if close is not None:
                close()
        row: dict[str, Any] = {"case": name}
        for side_name, figures in taken.items():
            row[side_name] = {key: significant(_middle(key, figures)) for key in figures[0]}
            row[f"rounds {side_name}"] = [
                {key: significant(value) for key, value in each.items()} for each in figures
            ]
        for first, second in PAIRS:
            if first in taken and second in taken:
                row[f"{first}/{second}"] = ratios(row[first], row[second])
        self.cases.append(row)
        self._print(row)

    def _print(self, row: dict[str, Any]) -> None:
        if len(self.cases) == 1:
            heading = " ".join(f"{heading:>10}" for _, heading, _ in SHOWN)
            print(f"{'case':<44} {'':<3} {heading}")
        name = row["case"]
        for side in ("A", "B", "L", "A/B", "A/L", "B/L"):
            if side not in row:
                continue
            cells = []
            for key, _, how in SHOWN:
                value = row[side].get(key)
                how = ".2f" if "/" in side else how
                cells.append(f"{'–' if value is None else format(value, how):>10}")
            print(f"{name:<44} {side:<3} {' '.join(cells)}", flush=True)
            name = ""
        for side in ("A", "B"):
            for key in row.get(side, {}):
                if key not in {shown for shown, _, _ in SHOWN}:
                    print(f"{'':<44} {side:<3} {key} {row[side][key]:,}", flush=True)

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def write(self) -> tuple[Path, dict[str, Any]]:
        """The result file: where it is and what it says."""
        kept = ("rounds", "seconds", "only", "serve", "against")
        options = {key: value for key in kept if (value := getattr(self.options, key))}
        return write_result(self.name, self.environment, options, self.cases, self.options.out)


@contextmanager
def prepared(run: Callable[..., Any]) -> Iterator[None]:
    """What a round needs and nobody is charged for: its `before` and `after`, if it has them."""
    if before := getattr(run, "before", None):
        before()
    try:
        yield
    finally:
        if after := getattr(run, "after", None):
            after()


def write_result(
    name: str,
    measured_in: dict[str, Any],
    options: dict[str, Any],
    cases: list[dict[str, Any]],
    out: Path | None,
    **more: Any,
) -> tuple[Path, dict[str, Any]]:
    """A result file; where it is and what it says. measured_in: `environment()`, taken before the
    first case. more: what follows from the cases."""
    moment = datetime.now().astimezone()
    result = {
        "bench": name,
        "finished": moment.isoformat(timespec="seconds"),
        "environment": measured_in,
        "options": options,
        "cases": cases,
        **more,
    }
    if out is None:
        commit = measured_in["commit"][:9]
        out = RESULTS / f"local-{name}-{moment:%Y%m%d-%H%M%S}-{commit}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"\nwritten to {out}")
    return out, result


def main(
    bench: Bench,
    run: Callable[[Bench], None],
    plot: Callable[[Path, dict[str, Any]], None] | None = None,
) -> None:
    """Run a program's cases on its sides, and write what came out. plot: draws the result."""
    try:
        with bench:
            run(bench)
    except Refused as fault:
        if bench.cases:
            bench.write()
        sys.exit(f"perf: {fault}")
    except KeyboardInterrupt:
        print("\nstopped")
    if bench.cases:
        path, result = bench.write()
        if plot is not None and bench.options.out:
            plot(path, result)


def topic_name(prefix: str) -> str:
    """A name that no run has used before."""
    return f"perf-{prefix}-{uuid.uuid4().hex[:8]}"


def significant(value: float) -> float:
    """Four digits: more is noise."""
    return float(f"{value:.4g}")


def _middle(key: str, rounds: list[dict[str, float]]) -> float:
    """The median of the rounds; of memory the highest."""
    values = [each[key] for each in rounds]
    return max(values) if key == "pss_mib" else statistics.median(values)


def ratios(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """first/second of every figure that both have."""
    return {
        key: significant(first[key] / second[key])
        for key in first
        if second.get(key) and first[key] is not None
    }


def environment() -> dict[str, Any]:
    """Machine, commit and load: what figures can't be read without."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 1024**2, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "has_local_changes": bool(_git("status", "--porcelain", "--", "shmbroker")),
    }


def _git(*words: str) -> str:
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return found.stdout.strip()
