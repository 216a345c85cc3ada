"""The tables of an ingest in the hands of others: polars, DuckDB, pandas, pyarrow and Delta readers
see each row once, in the midst of a micro-batch, too, and nothing that is not theirs."""

import os
from pathlib import Path

import duckdb
import pandas
import polars
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
import pyarrow.dataset
from test_ingest_task import records, with_headers

from shmbroker.spark.ingest import table_state
from shmbroker.spark.ingest.plan import IngestPlan
from shmbroker.spark.ingest.sink import commit_batch
from shmbroker.spark.ingest.task import TaskWriter

COUNT = 30


def filled(tmp_path: Path, table_format: str, partition_by: tuple[str, ...] = ()) -> IngestPlan:
    """Three micro-batches of a table that keeps its checkpoint in the default place, and the files
    of a task whose micro-batch is not committed."""
    path = tmp_path / "data" / "table"
    table_state.make_state(str(path))
    checkpoint = table_state.state_root(str(path)) / "checkpoint-t"
    checkpoint.mkdir()
    (checkpoint / "ingest.json").write_text("{}")
    plan = IngestPlan(
        "6409ed68",
        "t",
        str(path),
        format=table_format,
        values="json",
        schema="n int, kind string",
        partition_by=partition_by,
        checkpoint=str(checkpoint),
    )
    for batch in range(4):
        rows = range(batch * 10, batch * 10 + 10)
        values = [b'{"n": %d, "kind": "k%d"}' % (n, n % 2) for n in rows]
        task = TaskWriter(plan, batch, 0).run(with_headers([records(list(values))]))
        if batch < 3:
            commit_batch(plan, batch, [task])
        else:
            assert os.path.exists(task.written[0].temporary)
    return plan


def is_all(numbers: object, kinds: object) -> bool:
    """Whether these are the rows, in whatever order."""
    rows = sorted(zip(numbers, kinds, strict=True))  # type: ignore[call-overload]
    return bool(rows == [(n, f"k{n % 2}") for n in range(COUNT)])


def columns_of(query: str) -> list[tuple[object, ...]]:
    """What DuckDB answers."""
    with duckdb.connect() as connection:
        return list(zip(*connection.execute(query).fetchall(), strict=True))


@pytest.mark.parametrize("partition_by", [(), ("kind",)])
def test_parquet(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    path = filled(tmp_path, "parquet", partition_by).path
    frame = polars.read_parquet(path)
    assert is_all(frame["n"], frame["kind"])
    assert polars.scan_parquet(path).filter(polars.col("kind") == "k1").collect().height == 15
    assert is_all(*columns_of(f"select n, kind from read_parquet('{path}/**/*.parquet')"))
    table = pandas.read_parquet(path)
    assert is_all(table["n"], table["kind"])
    arrow = pyarrow.dataset.dataset(path, partitioning="hive").to_table()
    assert is_all(arrow["n"].to_pylist(), arrow["kind"].to_pylist())


def test_json(tmp_path: Path) -> None:
    path = filled(tmp_path, "json").path
    frame = polars.read_ndjson(f"{path}/*.json")
    assert is_all(frame["n"], frame["kind"])
    assert is_all(*columns_of(f"select n, kind from read_json('{path}/**/*.json')"))
    parts = [pandas.read_json(each, lines=True) for each in Path(path).glob("*.json")]
    table = pandas.concat(parts)
    assert is_all(table["n"], table["kind"])


@pytest.mark.parametrize("partition_by", [(), ("kind",)])
def test_delta(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    import deltalake

    path = filled(tmp_path, "delta", partition_by).path
    table = deltalake.DeltaTable(path)
    assert table.version() == 2
    arrow = pyarrow.table(table.to_pyarrow_dataset().to_table())
    assert is_all(arrow["n"].to_pylist(), arrow["kind"].to_pylist())
    frame = polars.read_delta(path)
    assert is_all(frame["n"], frame["kind"])
    kept = table.to_pandas()
    assert is_all(kept["n"], kept["kind"])
    with duckdb.connect() as connection:  # which finds the variable
        rows = connection.execute("select n, kind from arrow").fetchall()
    assert is_all(*zip(*rows, strict=True))


def test_columns_that_came_later(tmp_path: Path) -> None:
    """As docs/pipeline.md says it."""
    plan = filled(tmp_path, "parquet")
    later = plan._replace(schema="n int, kind string, more string", since=3)
    rows = records([b'{"n": 30, "kind": "k0", "more": "x"}'])
    commit_batch(later, 3, [TaskWriter(later, 3, 0).run(with_headers([rows]))])
    wanted = {"n": polars.Int32, "kind": polars.String, "more": polars.String}
    frame = polars.read_parquet(plan.path, schema=wanted, missing_columns="insert")
    assert sorted(zip(frame["n"], frame["more"], strict=True))[-2:] == [(29, None), (30, "x")]
    query = f"select n, more from read_parquet('{plan.path}/**/*.parquet', union_by_name = true)"
    assert sorted(zip(*columns_of(query), strict=True))[-1] == (30, "x")
    arrow = pyarrow.dataset.dataset(plan.path, schema=later.arrow_schema()).to_table()
    assert arrow["more"].to_pylist().count("x") == 1
