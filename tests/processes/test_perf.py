"""The programs in perf/ still run and write what the documents say: no figure is judged here."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perf.plot import panels
from shmbroker.kernels import native
from tests.support.waiting import wait_until
from tests.tidy.sources import ROOT

FIGURES = {"requests_per_s", "p50_us", "p99_us", "p99.9_us", "cpu_us_per_request", "pss_mib"}


def run(program, *flags):
    ran = subprocess.run(
        [sys.executable, ROOT / "perf" / program, *flags],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("program", "case"),
    [
        ("produce", "1 x 100 B, 16 in flight, acks 1"),
        ("fetch", "end to end, acks -1"),
        ("groups", "rebalance of 100 members"),
    ],
)
def test_bench_writes_a_result_that_compare_reads(program, case, tmp_path):
    out = str(tmp_path / "result.json")
    run(program, "--only", case, "--rounds", "1", "--seconds", "0.05", "--out", out)
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"cpu", "cores", "commit", "has_local_changes"} <= set(result["environment"])
    (row,) = result["cases"]
    assert row["case"] == case
    assert set(row["A"]) >= FIGURES
    compared = run("compare.py", out, out).splitlines()[-1]
    assert compared.startswith(case)
    assert "1.00" in compared


def test_limit_programs_answer_what_is_sent(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    out = tmp_path / "result.json"
    run("limit", "--rounds", "1", "--seconds", "0.02", "--only", ", 1", "--out", out)
    rows = json.loads(out.read_text())["cases"]
    kinds = {row["case"].split(",")[0] for row in rows}
    assert kinds == {"write", "check", "copies", "wakeups", "spin", "sendfile"}
    assert all(row["L"]["requests_per_s"] > 0 for row in rows)


def test_a_limit_is_a_side_of_its_own(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    out = tmp_path / "result.json"
    case = "1 x 100 B, 1 in flight, acks 1"
    run("produce", "--only", case, "--rounds", "1", "--seconds", "0.05", "--out", out)
    row = json.loads(out.read_text())["cases"][-1]
    assert {"A", "L", "A/L"} <= set(row)
    assert case in run("limit", "--table", out)


def test_a_workload_file_is_run_at_its_rate(tmp_path):
    workload, out = tmp_path / "small.yaml", tmp_path / "result.json"
    workload.write_text("name: a small one\ntopics: 2\npartitionsPerTopic: 3\nproducerRate: 400\n")
    run("workloads", "--workload", workload, "--rounds", "1", "--seconds", "0.5", "--out", out)
    (row,) = json.loads(out.read_text())["cases"]
    assert row["case"] == "small"
    assert row["A"]["consumed_share"] == 1
    assert {"publish_p99_us", "end_to_end_p99_us", "requests_per_s"} <= set(row["A"])


def test_a_soak_loses_nothing_and_tells_the_slope_of_memory(tmp_path):
    out = tmp_path / "result.json"
    run("soak", "--seconds", "3", "--every", "0.5", "--out", out)
    (row,) = json.loads(out.read_text())["cases"]
    assert row["A"]["records consumed"] >= row["A"]["records produced"] > 0
    assert "records lost" not in row["A"]
    assert "slope_mib_per_hour" in row["A"]


def test_scaling_writes_rows_with_the_cpu_of_each_role_and_their_lines(tmp_path):
    pytest.importorskip("numpy")
    out = tmp_path / "result.json"
    run("scaling", "--only", "segments", "--rounds", "1", "--seconds", "0.05", "--out", str(out))
    result = json.loads(out.read_text())
    assert [row["x"] for row in result["cases"]] == [1, 50, 500]
    for row in result["cases"]:
        assert set(row["A"]) >= (FIGURES - {"p99_us", "p99.9_us"}) | {"io_worker_cpu_us"}
    assert set(result["lines"]) == {"segments"}
    assert result["model"] == {}


def test_micro_measures_every_step_once():
    printed = run("micro.py", "--repeats", "1")
    rows = [line.split() for line in printed.splitlines()[1:]]
    assert [row[0] for row in rows[:12]] == [*(f"P{number}" for number in range(1, 12)), "all"]
    assert [row[:3] for row in rows[12:]] == ([["P5", "to", "P9"]] if native else [])


def test_ingest_writes_a_result_with_its_plot(tmp_path):
    pytest.importorskip("pyspark")
    pytest.importorskip("matplotlib")
    out = tmp_path / "result.json"
    run("ingest", "--no-spark", "--rows", "0.01", "--codec", "lz4", "--rounds", "1", "--out", out)
    result = json.loads(out.read_text())
    assert result["options"]["codec"] == "lz4"
    assert [(row["case"], row["kind"]) for row in result["cases"]] == [
        ("raw", "ingest"),
        ("json", "ingest"),
    ]
    assert all(row["A"]["bytes_per_row"] > 1 for row in result["cases"])
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


# Spark's daemon does the same: whoever it forks ends without a trace.
FORGETFUL = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.5:
        pass
    signal.pause()
sys.stdin.readline()
"""


def test_cpu_of_workers_that_end_is_kept():
    session = pytest.importorskip("perf.spark_session", exc_type=ImportError)
    words = [sys.executable, "-c", FORGETFUL]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as daemon:
        with closing(session.Cpu(daemon.pid)) as cpu:
            wait_until(lambda: cpu.spent()[1] >= 0.4, "work of its children", 60)
            before = cpu.spent()
            children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
            os.kill(int(children.read_text()), signal.SIGKILL)
            wait_until(lambda: not children.read_text(), "their end", 60)
            after = cpu.spent()
        daemon.communicate()
    assert after[1] >= before[1] >= 0.4
    assert after[0] >= before[0]


@pytest.mark.parametrize("is_ragged", [False, True])
def test_rows_are_those_that_are_measured(is_ragged):
    topic = pytest.importorskip("perf.spark_topic", exc_type=ImportError)
    rows = topic.chunk(5, 1000, is_ragged)
    assert rows.equals(topic.chunk(5, 1000, is_ragged))
    assert rows["key"][0].as_py() == (5).to_bytes(8, "big")
    assert rows["partition"].to_pylist()[:4] == [1, 2, 3, 0]
    sizes = {len(value) for value in rows["value"].to_pylist()}
    if is_ragged:
        assert sizes == set(range(20, 101))
    else:
        assert sizes == {100}
        assert json.loads(rows["value"][7].as_py())["id"] == 1_000_000_012


def test_latency_is_from_the_timestamp_to_the_end_of_the_trigger():
    latency = pytest.importorskip("perf.spark_latency", exc_type=ImportError)
    progress = [
        {
            "timestamp": "1970-01-01T00:00:10.000Z",
            "durationMs": {"triggerExecution": took},
            "observedMetrics": {"times": {"newest": 9_990, "oldest": 9_500}},
            "numInputRows": 20,
        }
        for took in (100, 200, 300)
    ]
    assert latency.figures(progress) == {
        "newest_p50_ms": 210,
        "newest_p99_ms": 308,
        "oldest_p50_ms": 700,
        "oldest_p99_ms": 798,
        "trigger_p50_ms": 200,
        "trigger_p99_ms": 298,
        "triggers": 3,
        "records_per_trigger": 20,
    }


def test_kinds_take_turns_and_the_best_round_counts_but_not_the_first():
    session = pytest.importorskip("perf.spark_session", exc_type=ImportError)
    speeds = {"a": [9e6, 2e6, 3e6], "b": [8e6, 5e6, 4e6]}
    turns = []

    def run(kind):
        turns.append(kind)
        speed = speeds[kind][turns.count(kind) - 1]
        return {"rows_per_s": speed, "jvm_cpu_s": 1.0, "python_cpu_s": 0.5}

    rows = session.in_turn("count", speeds, 2, run)
    assert "".join(turns) == "ababab"
    assert [(row["kind"], row["A"]["rows_per_s"]) for row in rows] == [("a", 3e6), ("b", 5e6)]
    assert [each["rows_per_s"] for each in rows[0]["rounds A"]] == [2e6, 3e6]


def test_goals_are_figures_and_times_of_what_was_measured():
    session = pytest.importorskip("perf.spark_session", exc_type=ImportError)
    results = [
        {"case": "count", "kind": "shmbroker", "A": {"rows_per_s": 6e6}},
        {"case": "count", "kind": "kafka", "A": {"rows_per_s": 2e6}},
    ]
    wanted = {"count": {"": 5.5e6, "kafka": 3.5, "kafka, tuned": 2}, "sum": {"kafka": 2}}
    assert session.goals(results, wanted) == {"count": [("5.5 M", 5.5e6), ("3.5 x kafka", 7e6)]}


def test_kinds_stand_side_by_side_in_a_plot():
    rows = [
        {"case": "count", "kind": "a", "A": {"rows_per_s": 2e6, "jvm_cpu_s": 3, "python_cpu_s": 1}},
        {"case": "count", "kind": "b", "A": {"rows_per_s": 1e6, "jvm_cpu_s": 5, "python_cpu_s": 0}},
        {"case": "first query", "kind": "a", "A": {"load_s": 2, "count_s": 3}},
    ]
    assert [(panel.label, panel.cases) for panel in panels(rows)] == [
        ("M rows/s", {"count": {"a": [2], "b": [1]}}),
        ("CPU s", {"count": {"a": [3, 1], "b": [5, 0]}}),
        ("s", {"first query": {"a": [2, 3]}}),
    ]
    rows = [{"case": "lz4", "A": {"native_records_per_s": 3e6, "native_mb_per_s": 5}}]
    assert panels(rows)[0].cases == {"lz4": {"native_records_per_s": [3]}}
