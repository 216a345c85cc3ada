"""The programs in perf/ still run and write what the documents say: no figure is judged here."""

import json
import subprocess
import sys

import pytest

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


def test_micro_measures_every_step_once():
    printed = run("micro.py", "--repeats", "1")
    steps = [line.split()[0] for line in printed.splitlines()[1:-1]]
    assert steps == [f"P{number}" for number in range(1, 12)]
