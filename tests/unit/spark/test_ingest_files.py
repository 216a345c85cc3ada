"""Files of an ingest: once, whatever is repeated; merged, whatever is interrupted."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import files, merging, plan, table_state


def attempt(path: Path, batch: int, rows: int, lot: str) -> files.WrittenFile:
    """A task's attempt, all of it."""
    temporary = files.temporary_path(str(path), "id", batch, 0, lot, 0)
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    pq.write_table(pa.table({"n": list(range(rows)), "batch": [batch] * rows}), temporary)
    final = files.final_path(str(path), "t", "id", batch, 0, 0, "", "parquet")
    return files.WrittenFile(temporary, final, rows, os.path.getsize(temporary), {})


def found(path: Path) -> list[tuple[int, int]]:
    names = [os.path.join(folder, name) for folder, name, _ in merging.table_files(str(path))]
    tables = [pq.read_table(name, partitioning=None).to_pylist() for name in names]
    return sorted((row["batch"], row["n"]) for table in tables for row in table)


def document(path: Path, batch: int) -> Path:
    return files.document_path(str(path), "id", batch)


def test_a_micro_batch_is_committed_once(tmp_path: Path) -> None:
    assert files.commit(document(tmp_path, 0), [attempt(tmp_path, 0, 3, "a")], {"rows": 3})
    assert not files.commit(document(tmp_path, 0), [attempt(tmp_path, 0, 3, "b")], {"rows": 3})
    assert found(tmp_path) == [(0, 0), (0, 1), (0, 2)]
    assert os.listdir(table_state.state_directory(str(tmp_path), "id") / "temporary") == []


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_driver_that_dies_after_the_document_is_finished_by_the_next(
    tmp_path: Path, renamed: int
) -> None:
    one, two = attempt(tmp_path, 7, 2, "a"), attempt(tmp_path, 7, 2, "b")
    two = two._replace(final=two.final.replace("-000.parquet", "-001.parquet"))
    path = document(tmp_path, 7)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"files": [one._asdict(), two._asdict()], "counts": {}}))
    if renamed:
        os.rename(one.temporary, one.final)
    assert files.recover(str(tmp_path), "id") == 7
    assert len(found(tmp_path)) == 4
    assert not files.commit(path, [attempt(tmp_path, 7, 2, "c")], {})
    assert len(found(tmp_path)) == 4


def test_what_no_micro_batch_has_is_dropped(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 3, "killed")
    assert files.recover(str(tmp_path), "id") == -1
    assert found(tmp_path) == []
    assert os.listdir(table_state.state_directory(str(tmp_path), "id") / "temporary") == []


def test_a_file_that_the_driver_can_not_see_is_told(tmp_path: Path) -> None:
    written = attempt(tmp_path, 0, 3, "a")
    os.unlink(written.temporary)
    with pytest.raises(table_state.FilesFault, match="one directory that the driver"):
        files.commit(document(tmp_path, 0), [written], {})
    assert not document(tmp_path, 0).exists()


def test_documents_of_long_ago_go(tmp_path: Path) -> None:
    for batch in range(files.BATCHES_KEPT + 2):
        files.commit(document(tmp_path, batch), [], {})
    assert not document(tmp_path, 1).exists()
    assert document(tmp_path, 2).exists()


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], []),
        ([10], []),
        ([60, 51], []),
        ([10, 20], [("a", "b")]),
        ([10, 60, 20], [("a", "c")]),
        ([50, 50, 50], [("a", "b")]),
        ([40, 40, 40, 40], [("a", "b"), ("c", "d")]),
    ],
)
def test_small_files_are_planned_together(sizes: list[int], merged: list[tuple]) -> None:
    given = [("d", "abcd"[n], size) for n, size in enumerate(sizes)]
    assert [each.names for each in merging.plan_merges(given, 100)] == merged


def test_files_of_two_directories_stay_apart() -> None:
    given = [("d=1", "a", 1), ("d=2", "b", 1), ("d=1", "c", 1)]
    plans = merging.plan_merges(given, 100)
    assert [(each.folder, each.names) for each in plans] == [("d=1", ("a", "c"))]


def test_merged_rows_are_those_that_were_there(tmp_path: Path) -> None:
    for batch in range(4):
        files.commit(document(tmp_path, batch), [attempt(tmp_path, batch, 5, "a")], {})
    before = found(tmp_path)
    for each in merging.plan_merges(merging.table_files(str(tmp_path)), 1 << 20):
        merging.merge(str(tmp_path), each)
    assert found(tmp_path) == before
    assert len(merging.table_files(str(tmp_path))) == 1
    assert files.recover(str(tmp_path), "id") == 3  # a file that is merged away is no loss
    assert found(tmp_path) == before


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_an_interrupted_merge_is_finished(tmp_path: Path, deleted: int) -> None:
    for batch in range(2):
        files.commit(document(tmp_path, batch), [attempt(tmp_path, batch, 5, "a")], {})
    before = found(tmp_path)
    olds = [os.path.join(folder, name) for folder, name, _ in merging.table_files(str(tmp_path))]
    temporary = str(table_state.state_root(str(tmp_path)) / "merge.part")
    pq.write_table(pa.concat_tables([pq.read_table(old) for old in sorted(olds)]), temporary)
    merge_document = {"old": olds, "temporary": temporary, "final": str(tmp_path / "new.parquet")}
    merging.merge_document(str(tmp_path)).write_text(json.dumps(merge_document))
    for old in olds[:deleted]:
        os.unlink(old)
    files.recover(str(tmp_path), "id")
    assert found(tmp_path) == before
    assert not merging.merge_document(str(tmp_path)).exists()


def test_files_of_an_ingest_whose_columns_were_changed_are_merged(tmp_path: Path) -> None:
    given = [{"n": [1]}, {"n": [2], "m": ["x"]}, {"k": [True], "n": [3]}]
    for number, columns in enumerate(given):
        name = f"t.u-6409ed68-{number:08d}-00000-000.parquet"
        pq.write_table(pa.table(columns), tmp_path / name)
    pq.write_table(pa.table({"n": [4]}), tmp_path / "t.u-0123abcd-00000000-00000-000.parquet")
    (merge,) = merging.plan_merges(merging.table_files(str(tmp_path)), 1 << 20)
    assert len(merge.names) == 3  # of one ingest
    merging.merge(str(tmp_path), merge)
    assert not table_state.state_root(str(tmp_path)).exists()
    rows = pa.concat_tables(map(pq.read_table, tmp_path.iterdir()), promote_options="default")
    assert sorted((row["n"], row["m"], row["k"]) for row in rows.to_pylist()) == [
        (1, None, None),
        (2, "x", None),
        (3, None, True),
        (4, None, None),
    ]
    assert set(table_state.writers(str(tmp_path), "t.u")) == {"6409ed68", "0123abcd"}


def test_files_that_do_not_go_together_stay(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "b.parquet")
    (merge,) = merging.plan_merges(merging.table_files(str(tmp_path)), 1 << 20)
    with pytest.raises(table_state.FilesFault, match="don't go together"):
        merging.merge(str(tmp_path), merge)
    assert sorted(p.name for p in tmp_path.glob("*.parquet")) == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("values", "folder"),
    [
        ({}, ""),
        ({"a": "1", "b": "x"}, "a=1/b=x"),
        ({"a": None}, "a=__HIVE_DEFAULT_PARTITION__"),
        ({"a": "x/../y=1"}, "a=x%2F..%2Fy%3D1"),
        ({"day": "2026-01-01 00:00:00"}, "day=2026-01-01 00%3A00%3A00"),
    ],
)
def test_a_partition_has_a_folder(values: dict, folder: str) -> None:
    assert files.folder_of(values) == folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"partition_by": ("x",)}, "--partition-by names x"),
        ({"partition_by": ("value",)}, "can't take value"),
        ({"values": "json", "schema": "a int", "partition_by": ("a",)}, "leaves no column"),
        ({"values": "json", "schema": "record_key int", "record_columns": ("key",)}, "two columns"),
        ({"values": "json", "schema": "a int", "record_columns": ("b",)}, "no column b"),
        ({"values": "csv", "schema": "a array<int>"}, "array or a struct"),
        (
            {"values": "json", "schema": "_a int, b int", "partition_by": ("_a",)},
            "directories that begin",
        ),
        ({"format": "orc"}, "orc"),
        ({"topic": "t,u"}, "one by one"),
        ({"dead_letter_topic": "t"}, "without end"),
        ({"dead_letter_path": "/p"}, "beside each other"),
        ({"dead_letter_path": "/p/bad"}, "beside each other"),
        ({"dead_letter_path": "/"}, "beside each other"),
    ],
)
def test_what_does_not_go_together_is_told(change: dict, told: str) -> None:
    with pytest.raises(ConfigFault) as fault:
        plan.IngestPlan("id", "t", "/p")._replace(**change).check()
    assert told in str(fault.value)
