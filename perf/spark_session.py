"""What the benches of Spark have in common: options, a session, who reads, rounds in turn, CPU."""

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from perf import bench, family
from perf.spark_topic import CODECS
from shmbroker.spark import java_home, session_conf

TUNED = {
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.max.poll.records": "20000",
    "kafka.receive.buffer.bytes": str(1 << 20),
    "minPartitions": "8",
}
"""What makes Spark's Kafka connector nearly twice as fast."""

SAMPLE_S = 1.0
# Spark ends Python workers that have idled for a minute; who comes next pays for new ones.
WORKERS_LIVE_S = 45.0

Figures = dict[str, float]


class Kind(NamedTuple):
    """A source beside others: Spark's name of it, the broker it reads from, further options."""

    name: str
    source: str
    address: str
    options: dict[str, str]

    def load(self, reader: Any, topic: str, **options: str) -> Any:
        """The rows of a topic, by `spark.read` or `spark.readStream`."""
        reader = reader.format(self.source).option("kafka.bootstrap.servers", self.address)
        return reader.option("subscribe", topic).options(**self.options).options(**options).load()


def add_options(parser: argparse.ArgumentParser, rows: float) -> None:
    """`rows`: millions, by default."""
    parser.add_argument("--rows", type=float, default=rows, help="millions")
    parser.add_argument("--codec", default="none", choices=CODECS)
    parser.add_argument("--ragged", action="store_true", help="values of 20 to 100 B, not of 100")
    parser.add_argument("--jars", default="", help="of Spark's Kafka connector")
    parser.add_argument("--against", metavar="HOST:PORT", help="another broker, for the connector")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases whose names have one of these in them: sum,parquet"
    )
    parser.add_argument("--out", type=Path, help="write the figures there, and a plot beside")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    given = parser.parse_args()
    if given.against and not given.jars:
        parser.error("--against is read by Spark's Kafka connector: it needs --jars")
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    return given


def is_wanted(given: argparse.Namespace, case: str) -> bool:
    """By `--only`."""
    return any(word in case for word in given.only.split(","))


def kinds(given: argparse.Namespace, address: str) -> list[Kind]:
    """This project's source first; with `--jars` the connector, plain and tuned; with `--against`
    those two on the other broker, too."""
    found = [Kind("shmbroker", "shmbroker", address, {})]
    if given.jars:
        for name, of in (("kafka", address), (f"kafka on {given.against}", given.against)):
            if of:
                found.append(Kind(name, "kafka", of, {}))
                found.append(Kind(f"{name}, tuned", "kafka", of, TUNED))
    return found


def result_options(given: argparse.Namespace) -> dict[str, Any]:
    """What a result file says about a run."""
    return {
        "rows": int(given.rows * 1e6),
        "values": "20-100 B" if given.ragged else "100 B",
        "codec": given.codec,
        "rounds": given.rounds,
        "against": given.against,
    }


def session(jars: str, has_conf: bool = True) -> Any:
    """A session on 2 cores, with the jars of a directory and, if asked, `session_conf`."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java_home()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(bench.ROOT), os.environ.get("PYTHONPATH")])
    )
    builder = SparkSession.builder.master("local[2]")
    if has_conf:
        builder = builder.config(map={**session_conf(cores=2)})
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the tasks need this package
    builder = builder.config("spark.driver.memory", "2g").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar")))))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def jvm_of(spark: Any) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


class Cpu:
    """CPU seconds of a JVM and of the Python processes below it.

    Spark's daemon ignores SIGCHLD, so the time of a worker that has ended is nobody's: the sum over
    those who live goes down. A thread looks at them now and then, and the last figure of each
    counts on. Missed is only what a process does in its last second. To look is dear: a JVM has a
    hundred threads, each of which may have children; ten times a second took 1.6 % of two cores.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._seen: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def spent(self) -> tuple[float, float]:
        """(of the JVM alone, of all below it) so far; neither ever falls."""
        with self._lock:
            self._seen.update(family.own_cpu_s(self._jvm))
            own = sum(s for (pid, _), s in self._seen.items() if pid == self._jvm)
            return own, sum(self._seen.values()) - own

    def _watch(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            self.spent()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


def measure(run: Callable[[], Any], rows: int, cpu: Cpu | None) -> Figures:
    """One round. Without a JVM the CPU is that of this process."""

    def spent() -> tuple[float, float]:
        return cpu.spent() if cpu else (0.0, time.process_time())

    before, began = spent(), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - began, spent()
    return {
        "rows_per_s": rows / seconds,
        "jvm_cpu_s": round(after[0] - before[0], 2),
        "python_cpu_s": round(after[1] - before[1], 2),
    }


def in_turn(
    case: str, names: Iterable[str], rounds: int, run: Callable[[str], Figures]
) -> list[dict[str, Any]]:
    """A result's row for each name: one round of each to get warm, then `rounds` A B A B …; the
    best counts. Prints them.

    Whose Python workers have been ended while others had their turn gets warm again first.
    """
    taken: dict[str, list[Figures]] = {name: [] for name in names}
    workers_idle_since: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, kept in taken.items():
            if time.monotonic() - workers_idle_since.get(name, math.inf) > WORKERS_LIVE_S:
                run(name)
            found = run(name)
            if found["python_cpu_s"] > 0.2 and found["jvm_cpu_s"]:
                workers_idle_since[name] = time.monotonic()
            if turn:
                kept.append({key: bench.significant(value) for key, value in found.items()})
    rows = []
    for name, kept in taken.items():
        best = max(kept, key=lambda figures: figures["rows_per_s"])
        print(
            f"{case:20} {name:26} {best['rows_per_s'] / 1e6:6.2f} M rows/s"
            f"   CPU s: JVM {best['jvm_cpu_s']:.1f}, Python {best['python_cpu_s']:.1f}"
            + (f"   {best['bytes_per_row']:.1f} B/row" if "bytes_per_row" in best else ""),
            flush=True,
        )
        rows.append({"case": case, "kind": name, "A": best, "rounds A": kept})
    return rows


def goals(
    results: list[dict[str, Any]], wanted: dict[str, dict[str, float]]
) -> dict[str, list[tuple[str, float]]]:
    """case → (what, figure) for `plot`: of `wanted`, case → {kind: times as many rows a second}.

    The kind "" is a figure by itself; what was not measured gives no goal.
    """
    measured = {(row["case"], row["kind"]): row["A"].get("rows_per_s", 0) for row in results}
    found: dict[str, list[tuple[str, float]]] = {}
    for case, goals in wanted.items():
        for kind, goal in goals.items():
            if not kind:
                found.setdefault(case, []).append((f"{goal / 1e6:g} M", goal))
            elif (case, kind) in measured:
                what = f"{goal:g} x {kind}"
                found.setdefault(case, []).append((what, goal * measured[case, kind]))
    return found
