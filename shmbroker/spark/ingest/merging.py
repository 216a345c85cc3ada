"""Merging small files of a table into larger ones.

A merge has a document, `merge.json` of the state: the new file is written under a hidden name, then
the document, then the old ones are deleted, then the new one is renamed. A merge that was
interrupted is finished by the next one, or by the next ingest. Between the last two steps readers
miss rows, for milliseconds: merge when nobody reads, or use Delta, where it is one commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shmbroker.ids import random_uuid
from shmbroker.spark.ingest.table_state import (
    FILE_NAME,
    FilesFault,
    make_state,
    replace_document,
    state_root,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

_MERGED = re.compile(r"(-merged-[0-9a-f]{8})+$")


class Merge(NamedTuple):
    """Files of one directory that become one."""

    folder: str
    names: tuple[str, ...]
    size: int


def plan_merges(files: Iterable[tuple[str, str, int]], target: int) -> list[Merge]:
    """What to merge of (folder, name, bytes): files below half of the target, in the order of
    their names, as many as fit into the target; those of two ingests stay apart, as their names
    tell whose they are. Pure."""
    merges: list[Merge] = []
    names: list[str] = []
    total, current = 0, ("", "")

    def close() -> None:
        if len(names) > 1:
            merges.append(Merge(current[0], tuple(names), total))

    for folder, name, size in sorted(files):
        if size * 2 > target:
            continue
        match = FILE_NAME.fullmatch(name)
        owner = (folder, f"{match['topic']}-{match['id']}" if match else "")
        if owner != current or total + size > target:
            close()
            names, total, current = [], 0, owner
        names.append(name)
        total += size
    close()
    return merges


def table_files(path: str) -> list[tuple[str, str, int]]:
    """(folder, name, bytes) of the Parquet files below a path, hidden ones left out."""
    found: list[tuple[str, str, int]] = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name[0] not in "_."]
        found += [
            (folder, name, os.path.getsize(os.path.join(folder, name)))
            for name in names
            if name.endswith(".parquet") and name[0] not in "_."
        ]
    return found


def merge_document(path: str) -> Path:
    """What is being merged below a path."""
    return state_root(path) / "merge.json"


def finish_merge(path: str) -> None:
    """Finish a merge that was interrupted."""
    finish_merge_of(merge_document(path))


def finish_merge_of(document: Path) -> None:
    """Finish the merge that a document names, if it is there."""
    if not document.exists():
        return
    try:
        found = json.loads(document.read_bytes())
        old, temporary, final = found["old"], found["temporary"], found["final"]
    except (ValueError, TypeError, KeyError) as error:
        raise FilesFault(f"{document} is damaged: {error}") from error
    for name in old:
        Path(name).unlink(missing_ok=True)
    try:
        os.rename(temporary, final)
    except FileNotFoundError:
        pass  # renamed before
    document.unlink(missing_ok=True)  # a merge that runs beside may have done it


def merge(path: str, wanted: Merge) -> int:
    """Merge these files; the size of the new one, in bytes. FilesFault if they don't go together.

    One merge at a time: two would write the same document.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    olds = [os.path.join(wanted.folder, name) for name in wanted.names]
    make_state(path)
    temporary = str(state_root(path) / f"merge-{random_uuid().hex()}.part")
    stem = _MERGED.sub("", wanted.names[0].removesuffix(".parquet"))
    final = os.path.join(wanted.folder, f"{stem}-merged-{random_uuid().hex()[:8]}.parquet")
    try:
        schema = pq.read_schema(olds[0])
        if all(map(FILE_NAME.fullmatch, wanted.names)):  # columns may have come and gone meanwhile
            schema = pa.unify_schemas([pq.read_schema(old) for old in olds])
        with pq.ParquetWriter(temporary, schema, compression=_codec_of(olds[0])) as writer:
            for old in olds:
                writer.write_table(_as(schema, pq.read_table(old, partitioning=None)))
    except (pa.ArrowException, ValueError) as error:
        Path(temporary).unlink(missing_ok=True)
        raise FilesFault(f"the files in {wanted.folder} don't go together: {error}") from error
    replace_document(merge_document(path), {"old": olds, "temporary": temporary, "final": final})
    finish_merge(path)
    with contextlib.suppress(OSError):  # an ingest has more in it
        state_root(path).rmdir()
    return os.path.getsize(final)


def _as(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """A table with these columns, null where it lacks them; ValueError if it has others."""
    import pyarrow as pa

    for field in schema:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    if len(table.schema) > len(schema):
        raise ValueError(f"columns {', '.join(table.schema.names)}, not {', '.join(schema.names)}")
    return table.select(schema.names).cast(schema)


def _codec_of(path: str) -> str:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    if not metadata.num_row_groups or not metadata.num_columns:
        return "snappy"
    codec = metadata.row_group(0).column(0).compression.lower()
    return "none" if codec == "uncompressed" else str(codec)
