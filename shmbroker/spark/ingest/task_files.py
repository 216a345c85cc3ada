"""The files of a task: rows wait until they make a row group; a file ends at about its target size.

Each file has a temporary name, by the attempt, and the final one that the driver gives it. What a
failed task has begun is deleted here; what a killed one leaves, `ingest.files` deletes.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shmbroker.spark.ingest import files
from shmbroker.spark.ingest.plan import JSON, RAW_COLUMNS, IngestPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.ingest.task import TaskWriter

GROUP_ROWS = 1 << 18
GROUP_BYTES = 32 << 20
"""Rows wait until so many of them make a row group of Parquet."""

WAITING_BYTES_MAX = 256 << 20
"""The most bytes that wait over all partitions of the files; then all are written out."""

OPEN_MAX = 200
"""Files that a task writes at a time; then all are closed."""


class FileSet:
    """A task's files below one path: by folder, each up to about the target's size."""

    def __init__(self, task: TaskWriter, path: str, schema: pa.Schema, kind: str) -> None:
        self.task = task
        self.path = path
        self.schema = schema
        self.kind = kind
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._open: dict[str, _File] = {}
        self._values: dict[str, dict[str, str | None]] = {}
        self._done: list[files.WrittenFile] = []
        self._names: list[str] = []

    def add(self, partition: dict[str, str | None], rows: pa.RecordBatch) -> None:
        """Add rows of one folder."""
        folder = files.folder_of(partition)
        waiting = self._waiting.setdefault(folder, [])
        self._values[folder] = partition
        waiting.append(rows)
        self._waiting_bytes[folder] = self._waiting_bytes.get(folder, 0) + rows.nbytes
        if (
            self._waiting_bytes[folder] >= GROUP_BYTES
            or sum(each.num_rows for each in waiting) >= GROUP_ROWS
        ):
            self._write(folder)
        elif sum(self._waiting_bytes.values()) > WAITING_BYTES_MAX:
            for each in list(self._waiting):
                self._write(each)

    def close(self) -> list[files.WrittenFile]:
        """Write what waits, close all files, and tell them."""
        for folder in list(self._waiting):
            self._write(folder)
        self._close_all()
        return self._done

    def drop(self) -> None:
        """Close and delete all files."""
        for file in self._open.values():
            file.close()
        for name in self._names:
            if os.path.exists(name):
                os.unlink(name)

    def _write(self, folder: str) -> None:
        waiting = self._waiting.pop(folder)
        del self._waiting_bytes[folder]
        file = self._open.get(folder)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close_all()
            file = self._open[folder] = self._new(folder)
        if file.write(pa.Table.from_batches(waiting, self.schema)) >= self.task.plan.target_bytes:
            self._close(folder)

    def _new(self, folder: str) -> _File:
        task, n = self.task, len(self._names)
        temporary = files.temporary_path(
            self.path, task.plan.ingest_id, task.batch, task.task, task.attempt, n
        )
        final = files.final_path(
            self.path,
            task.plan.topic,
            task.plan.ingest_id,
            task.batch,
            task.task,
            n,
            folder,
            "json" if self.kind == JSON else "parquet",
        )
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        self._names.append(temporary)
        kind = _JsonFile if self.kind == JSON else _ParquetFile
        return kind(temporary, final, task.plan, self.schema)

    def _close_all(self) -> None:
        for folder in list(self._open):
            self._close(folder)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.close()
        size = os.path.getsize(file.temporary)
        values_of = self._values[folder]
        self._done.append(files.WrittenFile(file.temporary, file.final, file.rows, size, values_of))


class _File:
    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        self.temporary = temporary
        self.final = final
        self.rows = 0

    def write(self, rows: pa.Table) -> int:
        """Add rows; the file's size so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Take note that nothing more comes."""
        raise NotImplementedError


class _ParquetFile(_File):
    """Encoded by what the first row group shows: dictionaries of columns that hardly repeat, and
    statistics of raw values, are a third of the work and help no reader."""

    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        super().__init__(temporary, final, plan, schema)
        self._sink = pa.OSFile(temporary, "wb")
        self._compression = plan.compression
        self._is_raw = schema.names == list(RAW_COLUMNS)
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> int:
        """One row group."""
        if self._is_raw:
            rows = _with_one_topic(rows)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                rows.schema,
                compression=self._compression,
                use_dictionary=_repeating(rows),
                write_statistics=_RAW_STATISTICS if self._is_raw else True,
                store_schema=not self._is_raw,  # it would make a dictionary of the topic
            )
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.rows += rows.num_rows
        return int(self._sink.tell())

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()
        self._sink.close()


_RAW_STATISTICS = [name for name in RAW_COLUMNS if name != "value"]
_SAMPLE_ROWS = 4096


def _with_one_topic(rows: pa.Table) -> pa.Table:
    """The column topic, which is the same in all rows, as one string and a number for each row."""
    place = rows.schema.get_field_index("topic")
    column = rows.column(place)
    codes = pa.array(np.zeros(len(column), np.int32))
    return rows.set_column(
        place, "topic", pa.DictionaryArray.from_arrays(codes, column[:1].chunk(0))
    )


def _repeating(rows: pa.Table) -> list[str] | bool:
    """The columns that a dictionary is good for: of the first values, most were there before."""
    if any(pa.types.is_nested(field.type) for field in rows.schema):
        return True  # Parquet would want the names of what is inside
    sample = rows.slice(0, _SAMPLE_ROWS)
    return [
        name
        for name, column in zip(sample.schema.names, sample.columns, strict=True)
        if _distinct(column) * 2 <= sample.num_rows
    ]


def _distinct(column: pa.ChunkedArray) -> int:
    """How many values it has."""
    if pa.types.is_dictionary(column.type):
        return 1
    return len(column.combine_chunks().dictionary_encode().dictionary)


class _JsonFile(_File):
    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        super().__init__(temporary, final, plan, schema)
        self._file = open(temporary, "w", encoding="utf-8")  # noqa: SIM115
        self._encode = json.JSONEncoder(ensure_ascii=False, default=_as_json).encode

    def write(self, rows: pa.Table) -> int:
        """A line for each row."""
        encode = self._encode
        self._file.write("".join([encode(row) + "\n" for row in rows.to_pylist()]))
        self.rows += rows.num_rows
        return self._file.tell()

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()


def _as_json(value: Any) -> str:
    """Bytes as text, or base64 where they are none; times in ISO form."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
