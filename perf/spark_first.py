"""The first query of a session: a fresh JVM each time, from `load()` to the end of a count.

`measure` starts this file as a program, `perf/spark_first.py '{"source": …}'`, whose last line is
the figures as JSON. A session of shmbroker's has `session_conf`, as its documentation says; those
of the connector have its jars instead.
"""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench
from perf.spark_session import Figures, Kind, session

START_AND_QUERY_S = 600


def measure(kinds: list[Kind], topic: str, rows: int, jars: str, rounds: int) -> list[Any]:
    """A result's row for each kind: the median of its rounds by their seconds, in turn."""
    plain = Kind("shmbroker, no session_conf", *kinds[0][1:])
    taken: dict[str, list[Figures]] = {kind.name: [] for kind in (*kinds, plain)}
    for _ in range(rounds):
        for kind in (*kinds, plain):
            wanted = {
                "kind": kind,
                "topic": topic,
                "rows": rows,
                "jars": jars if kind.source == "kafka" else "",
                "has_conf": kind in kinds[:1],
            }
            taken[kind.name].append(_in_a_process(wanted))
    results = []
    for name, figures in taken.items():
        middle = sorted(figures, key=lambda each: each["seconds"])[len(figures) // 2]
        print(
            f"{'first query':20} {name:26} {middle['seconds']:6.2f} s"
            f"   load {middle['load_s']:.2f}, count {middle['count_s']:.2f},"
            f" again {middle['again_s']:.2f}",
            flush=True,
        )
        results.append({"case": "first query", "kind": name, "A": middle, "rounds A": figures})
    return results


def _in_a_process(wanted: dict[str, Any]) -> Figures:
    ran = subprocess.run(
        [sys.executable, __file__, json.dumps(wanted)],
        capture_output=True,
        text=True,
        timeout=START_AND_QUERY_S,
    )
    if ran.returncode:
        sys.exit(f"perf: the first query of {wanted['kind'][0]} failed:\n{ran.stderr}")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def main() -> None:
    wanted = json.loads(sys.argv[1])
    kind, topic = Kind(*wanted["kind"]), wanted["topic"]
    moments = [time.perf_counter()]
    spark = session(wanted["jars"], wanted["has_conf"])
    moments.append(time.perf_counter())
    rows = kind.load(spark.read, topic)
    moments.append(time.perf_counter())
    counted = rows.count()
    moments.append(time.perf_counter())
    rows.count()
    moments.append(time.perf_counter())
    spark.stop()
    if counted != wanted["rows"]:
        sys.exit(f"{counted} rows, not {wanted['rows']}")
    session_s, load_s, count_s, again_s = (
        bench.significant(end - start) for start, end in pairwise(moments)
    )
    figures = {
        "seconds": bench.significant(load_s + count_s),
        "load_s": load_s,
        "count_s": count_s,
        "again_s": again_s,
        "session_s": session_s,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
