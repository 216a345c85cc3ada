"""The cases of `perf/spark` run, in the session of these tests: no figure is judged here."""

from contextlib import closing
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from perf import spark_first, spark_latency
from perf.spark_session import Cpu, Kind, jvm_of, measure
from perf.spark_topic import PARTITIONS, fill, make
from tests.spark.conftest import ROOT


@pytest.fixture(scope="module")
def kind(broker):
    return Kind("shmbroker", "shmbroker", broker.address, {})


@pytest.fixture(scope="module")
def topic(broker):
    make(broker.address, "perf-queries")
    fill(broker.address, "perf-queries", 1000 * PARTITIONS, "zstd", is_ragged=True)
    return "perf-queries"


def test_every_query_is_measured(spark, kind, topic, tmp_path):
    loader = SourceFileLoader("perf_spark", str(ROOT / "perf" / "spark"))
    program = module_from_spec(spec_from_loader("perf_spark", loader))
    loader.exec_module(program)
    queries = program.queries(spark, topic, str(tmp_path / "out"))
    assert queries["count"](kind) == 1000 * PARTITIONS
    with closing(Cpu(jvm_of(spark))) as cpu:
        for query in queries.values():
            figures = measure(lambda query=query: query(kind), 1000 * PARTITIONS, cpu)
            assert set(figures) == {"rows_per_s", "jvm_cpu_s", "python_cpu_s"}
            assert all(figure >= 0 for figure in figures.values())
    assert list((tmp_path / "out").glob("*.parquet"))


def test_latency_of_a_stream_is_measured(spark, kind):
    (row,) = spark_latency.measure(spark, [kind], triggers=2)
    assert row["A"]["triggers"] == 2
    assert row["A"]["records_per_trigger"] > 0
    assert 0 < row["A"]["newest_p50_ms"] <= row["A"]["oldest_p99_ms"]


def test_first_query_has_the_options_of_its_kind(kind, monkeypatch):
    wanted = []

    def ran(one):
        wanted.append((one["kind"].name, one["jars"], one["has_conf"]))
        seconds = float(len(wanted))
        return {"seconds": seconds, "load_s": 1.0, "count_s": seconds - 1, "again_s": 0.1}

    monkeypatch.setattr(spark_first, "_in_a_process", ran)
    kinds = [kind, Kind("kafka", "kafka", kind.address, {})]
    rows = spark_first.measure(kinds, "topic", 10, "jars", rounds=3)
    turn = [
        ("shmbroker", "", True),
        ("kafka", "jars", False),
        ("shmbroker, no session_conf", "", False),
    ]
    assert wanted == 3 * turn
    assert [row["A"]["seconds"] for row in rows] == [4, 5, 6]
