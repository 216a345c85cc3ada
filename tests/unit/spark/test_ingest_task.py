"""A task of an ingest without Spark: records in, files out, in every format."""

import contextlib
import datetime
import fcntl
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from shmbroker.client.faults import DeniedFault
from shmbroker.client.reader.arrow_columns import COLUMNS
from shmbroker.errors import ConfigFault
from shmbroker.spark import sink
from shmbroker.spark.ingest import files, merging, prepare, table_state, task_files
from shmbroker.spark.ingest.plan import RAW_COLUMNS, IngestPlan
from shmbroker.spark.ingest.sink import IngestWriter, commit_batch
from shmbroker.spark.ingest.task import BadRecordFault, HeadersOf, TaskWriter

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def records(values: list[bytes | None], start: int = 0) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(start, start + count), pa.int64()),
            "timestamp": pa.array([AT] * count, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
    )


HEADERS = [{"key": "trace", "value": b"7"}, {"key": "trace", "value": None}]


def with_headers(
    given: Iterable[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, HeadersOf]]:
    """Those of even offsets have some."""

    def headers_of(rows: pa.RecordBatch) -> pa.Array:
        offsets = rows.column("offset").to_pylist()
        found = [None if offset % 2 else HEADERS for offset in offsets]
        return pa.array(found, COLUMNS["headers"])

    for batch in given:
        yield batch, headers_of


def written(plan: IngestPlan, batch: int, *given: pa.RecordBatch) -> dict[str, int]:
    done = TaskWriter(plan, batch, 0).run(with_headers(given))
    commit_batch(plan, batch, [done])
    return done.counts


def test_raw_values_stay_as_they_are(tmp_path: Path) -> None:
    counts = written(IngestPlan("id", "t", str(tmp_path)), 0, records([b"\xff", None, b"x"]))
    table = pq.read_table(tmp_path)
    assert table["value"].to_pylist() == [b"\xff", None, b"x"]
    assert table.column_names == list(RAW_COLUMNS)
    assert (counts["records"], counts["rows"], counts["dead_letters"]) == (3, 3, 0)


def test_partitions_files_and_record_columns(tmp_path: Path) -> None:
    plan = IngestPlan(
        "id",
        "t",
        str(tmp_path),
        values="json",
        schema="n int, kind string",
        record_columns=("offset", "date"),
        partition_by=("kind", "record_date"),
    )
    kinds = ["a", "b/c", None, "a"]
    values = [json.dumps({"n": n, "kind": kinds[n % 4]}).encode() for n in range(40)]
    written(plan, 0, records(values[:25]), records(values[25:], 25))
    assert {path.name for path in tmp_path.glob("kind=*")} == {
        "kind=a",
        "kind=b%2Fc",
        "kind=__HIVE_DEFAULT_PARTITION__",
    }
    table = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == [row["record_offset"] for row in rows] == list(range(40))
    assert [row["kind"] for row in rows] == kinds * 10
    assert {str(row["record_date"]) for row in rows} == {"2026-01-02"}


def test_a_file_ends_at_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "GROUP_ROWS", 100)
    plan = IngestPlan("id", "t", str(tmp_path), target_bytes=1, compression="none")
    written(plan, 0, *(records([b"%d" % n] * 100, n * 100) for n in range(3)))
    assert [pq.read_metadata(path).num_rows for path in tmp_path.glob("*.parquet")] == [100] * 3


def test_a_bad_record_ends_the_ingest_and_leaves_nothing(tmp_path: Path) -> None:
    plan = IngestPlan("id", "t", str(tmp_path), values="json", schema="n int")

    def given() -> Iterator[pa.RecordBatch]:
        yield records([b'{"n": 1}'])
        yield records([b'{"n": 2}', b"oops"], 1)

    told = r"t-0 offset 2: no JSON object: oops .*--dead-letter /DIRECTORY .*--skip-bad"
    with pytest.raises(BadRecordFault, match=told):
        TaskWriter(plan, 0, 0).run(with_headers(given()))
    assert list(tmp_path.rglob("*.part")) == []


def test_dead_letters_are_put_aside(tmp_path: Path) -> None:
    plan = IngestPlan(
        "id",
        "t",
        str(tmp_path / "table"),
        values="json",
        schema="n int",
        dead_letter_path=str(tmp_path / "bad"),
    )
    counts = written(plan, 0, records([b'{"n": 1}', b"oops", None]))
    assert (counts["rows"], counts["dead_letters"]) == (1, 2)
    assert pq.read_table(tmp_path / "table").to_pylist() == [{"n": 1}]
    letters = pq.read_table(tmp_path / "bad").to_pylist()
    assert [(row["offset"], row["value"]) for row in letters] == [(1, b"oops"), (2, None)]
    assert [row["headers"] for row in letters] == [None, HEADERS]
    assert letters[1]["reason"] == "the value is null"


def test_json_files_have_a_line_for_each_row(tmp_path: Path) -> None:
    plan = IngestPlan("id", "t", str(tmp_path), format="json")
    written(plan, 0, records([b"text", b"\xff", None]))
    (path,) = tmp_path.glob("*.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["value"] for row in rows] == ["text", "/w==", None]
    assert rows[0]["timestamp"] == "2026-01-02T03:04:05+00:00"


def test_a_micro_batch_is_in_a_delta_table_once(tmp_path: Path) -> None:
    import deltalake

    plan = IngestPlan(
        "id",
        "t",
        str(tmp_path),
        format="delta",
        values="json",
        schema="n int, kind string",
        partition_by=("kind",),
    )
    values = [b'{"n": %d, "kind": "a b"}' % n for n in range(3)]
    for batch in (0, 0, 1, 1):
        written(plan, batch, records(values[batch : batch + 2]))
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.version() == 1
    rows = pa.table(table.to_pyarrow_dataset().to_table()).to_pylist()
    assert sorted((row["n"], row["kind"]) for row in rows) == [
        (0, "a b"),
        (1, "a b"),
        (1, "a b"),
        (2, "a b"),
    ]
    assert len(merging.table_files(str(tmp_path))) == 2


class Killed(BaseException):
    """The driver ends here."""


def dying_at(call: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Before and after every step by which a driver changes something on the disk there is a place
    to die; this is to be the one with that number. What was called is returned."""
    import deltalake

    called: list[str] = []

    def step(name: str) -> None:
        called.append(name)
        if len(called) - 1 == call:
            raise Killed

    def patch(owner: Any, name: str) -> None:
        do = getattr(owner, name)

        def patched(*given: Any, **more: Any) -> Any:
            step(f"before {name}")
            done = do(*given, **more)
            step(f"after {name}")
            return done

        monkeypatch.setattr(owner, name, patched)

    patch(files.os, "rename")
    patch(files.os, "replace")
    patch(deltalake.DeltaTable, "create_write_transaction")
    patch(deltalake.transaction, "create_table_with_add_actions")
    return called


@pytest.mark.parametrize(("table_format", "partition_by"), [("delta", ("kind",)), ("parquet", ())])
def test_a_driver_that_dies_anywhere_has_every_row_in_the_table_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
    partition_by: tuple[str, ...],
) -> None:
    import deltalake

    died: set[str] = set()
    for call in range(100):
        path = tmp_path / str(call)
        plan = IngestPlan(
            "id",
            "t",
            str(path),
            format=table_format,
            values="json",
            schema="n int, kind string",
            partition_by=partition_by,
        )
        rows = [b'{"n": %d, "kind": "%c"}' % (n, b"ab"[n % 2]) for n in range(8)]
        with monkeypatch.context() as patched:
            called = dying_at(call, patched)
            for batch in range(2):
                for _ in range(2):  # what was done is repeated once, as if Spark had not noted it
                    given = records(rows[batch * 4 : batch * 4 + 4], batch * 4)
                    try:
                        written(plan, batch, given)
                    except Killed:
                        died.add(called[-1])
                        files.recover(plan.path, plan.ingest_id)
                        written(plan, batch, given)
        if table_format == "delta":
            found = deltalake.DeltaTable(plan.path).to_pyarrow_dataset().to_table()
        else:
            found = pyarrow.dataset.dataset(path, partitioning="hive").to_table()
        assert sorted(pa.table(found)["n"].to_pylist()) == list(range(8)), called
        assert len(merging.table_files(plan.path)) == 2 * max(1, 2 * len(partition_by))
        if len(called) <= call:
            break
    steps = {"rename", "replace"}
    if table_format == "delta":
        steps |= {"create_write_transaction", "create_table_with_add_actions"}
    assert died == {f"{when} {step}" for when in ("before", "after") for step in steps}


def test_an_aborted_micro_batch_keeps_what_its_commit_has_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts where the commit fails, or the process that it runs in is killed."""
    for call in range(100):
        plan = IngestPlan(
            "id",
            "t",
            str(tmp_path / f"table-{call}"),
            values="json",
            schema="n int",
            dead_letter_path=str(tmp_path / f"bad-{call}"),
        )
        given = records([b'{"n": 1}', b"oops"])
        done = TaskWriter(plan, 0, 0).run(with_headers([given]))
        with monkeypatch.context() as patched:
            called = dying_at(call, patched)
            with contextlib.suppress(Killed):
                commit_batch(plan, 0, [done])
        if len(called) <= call:
            break
        IngestWriter(plan).abort([None, done], 0)
        prepare.settle(plan)
        written(plan, 0, given)
        assert pq.read_table(plan.path).to_pylist() == [{"n": 1}]
        assert pq.read_table(plan.dead_letter_path)["value"].to_pylist() == [b"oops"]
        for path in (plan.path, plan.dead_letter_path):
            assert not list((table_state.state_directory(path, "id") / "temporary").iterdir())
    assert call > 8


def test_a_run_that_begins_waits_for_the_commit_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = IngestPlan("id", "t", str(tmp_path))
    next_run = threading.Thread(target=prepare.settle, args=(plan,))
    waits_or_is_done = threading.Event()
    replace, flock, recover = table_state.replace_document, fcntl.flock, files.recover

    def lock(file: Any, how: int) -> None:
        if threading.current_thread() is next_run:
            waits_or_is_done.set()
        flock(file, how)

    def recovered(path: str, ingest_id: str) -> int:
        found = recover(path, ingest_id)
        waits_or_is_done.set()
        return found

    def replaced(path: Path, document: dict[str, Any]) -> None:
        """Its files are there, its document not yet: then the next run begins."""
        if path.parent.name == "batches":
            next_run.start()
            assert waits_or_is_done.wait(60)
        replace(path, document)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(files, "recover", recovered)
    monkeypatch.setattr(files, "replace_document", replaced)
    written(plan, 0, records([b"x", b"y"]))
    next_run.join()
    assert pq.read_table(tmp_path)["value"].to_pylist() == [b"x", b"y"]


@pytest.mark.parametrize(
    ("schema", "partition_by", "value", "told"),
    [
        ("n string, kind string", ("kind",), b'{"n": "x"}', "column n as integer, not as string"),
        ("n bigint, kind string", ("kind",), b'{"n": 1}', "column n as integer, not as long"),
        ("n int, more int, kind string", ("kind",), b'{"n": 1}', "no column more"),
        ("n int, kind string", (), b'{"n": 1}', "partitioned by kind"),
    ],
)
def test_a_delta_table_of_other_columns_is_refused_and_stays_as_it_is(
    tmp_path: Path, schema: str, partition_by: tuple[str, ...], value: bytes, told: str
) -> None:
    import deltalake

    plan = IngestPlan("id", "t", str(tmp_path), format="delta", values="json")
    kept = plan._replace(schema="n int, kind string", partition_by=("kind",))
    written(kept, 0, records([b'{"n": 1, "kind": "a"}']))
    other = plan._replace(ingest_id="other", schema=schema, partition_by=partition_by)
    with pytest.raises(ConfigFault, match=told):
        written(other, 0, records([value]))
    fewer = plan._replace(ingest_id="fewer", schema="kind string", partition_by=())
    with pytest.raises(ConfigFault, match="partitioned by kind"):
        written(fewer, 0, records([value]))
    table = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert table.select(["n", "kind"]).to_pylist() == [{"n": 1, "kind": "a"}]


@pytest.mark.parametrize(
    ("schema", "configuration", "metadata", "told"),
    [
        ("n int", {}, {}, "column n as NOT NULL"),
        ("n int not null", {"delta.constraints.some": "n > 0"}, {}, "has delta.constraints.some,"),
        ("n int not null", {}, {"delta.generationExpression": "1"}, "has n: delta.generationExpr"),
    ],
)
def test_a_delta_table_that_wants_more_of_its_rows_is_refused(
    tmp_path: Path,
    schema: str,
    configuration: dict[str, str],
    metadata: dict[str, str],
    told: str,
) -> None:
    import deltalake

    plan = IngestPlan("id", "t", str(tmp_path), format="delta", values="json", schema=schema)
    number = deltalake.schema.PrimitiveType("integer")
    field = deltalake.Field("n", number, nullable=False, metadata=metadata)
    table = deltalake.DeltaTable.create(tmp_path, deltalake.Schema([field]))
    for name, rule in configuration.items():
        table.alter.add_constraint({name.removeprefix("delta.constraints."): rule})
    with pytest.raises(ConfigFault, match=told):
        written(plan, 0, records([b'{"n": -1}', b"{}"][: 1 + ("null" not in schema)]))
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 0


def test_a_delta_column_that_is_not_null_is_filled_by_one_that_is_not_null(tmp_path: Path) -> None:
    import deltalake

    plan = IngestPlan("id", "t", str(tmp_path), format="delta", values="json")
    plan = plan._replace(schema="n int not null", record_columns=("offset",))
    fields = [
        deltalake.Field(name, deltalake.schema.PrimitiveType(kind), nullable=False)
        for name, kind in (("n", "integer"), ("record_offset", "long"))
    ]
    deltalake.DeltaTable.create(tmp_path, deltalake.Schema(fields))
    written(plan, 0, records([b'{"n": 1}']))
    rows = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert rows == [{"n": 1, "record_offset": 0}]


def test_dead_letters_that_may_not_be_written_name_the_rights_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise DeniedFault("topic bad: not authorized", sink.NEEDS_READ)

    monkeypatch.setattr(sink, "write_rows", denied)
    plan = IngestPlan("id", "t", str(tmp_path / "table"), values="json", schema="n int")
    plan = plan._replace(dead_letter_topic="bad", bootstrap_servers="h:1")
    with pytest.raises(DeniedFault, match="not authorized; dead letters need the rights"):
        TaskWriter(plan, 0, 0).run(with_headers([records([b"?"])]))
