"""Files of an ingest: where they are, how they are committed, how small ones are merged.

    PARENT/
      table/carrier=UA/flights-6409ed68-00000012-00003-000.parquet
                                                       topic, id, micro-batch, task, n
      .table.shmbroker/6409ed68/                       id: of the ingest, kept in its checkpoint
        writer.json                                    whose rows these are: topic, checkpoint
        batches/00000012.json                          what this micro-batch is made of
        temporary/00000012-00003-<attempt>-000.part    what a task writes
        lock                                           of who commits or recovers

All but the files themselves is beside the table (`state_root`), as some readers (polars) open every
file below it. Only where the directory beside is another file system, or may not be written, it is
`table/.shmbroker`. Earlier versions had `table/_shmbroker`, which `migrate` moves.

A micro-batch's files are there once, whatever is repeated:

    1  each attempt of a task writes files of its own name under `temporary`
    2  the driver writes the micro-batch's document, which names the files of one attempt of each
       task: this decides, as it is renamed into place whole
    3  the files are renamed to where readers find them
    4  Spark notes the micro-batch as done

A driver that dies between 2 and 4 gets the same micro-batch again: it finds the document, finishes
3, and drops what was written anew. Where only 3 fails, Spark tells the writer to abort: what the
document has stays for the next run (`drop`). So readers that know nothing of this (pyarrow, DuckDB,
pandas) see whole files of committed micro-batches only, each record once. They may see a part of a
micro-batch while 3 goes on. Nothing is forced to the disk, as with Spark's own sinks.

Who recovers or commits holds a lock meanwhile (`only_one`): of a killed driver, the process in
which Spark commits may live a little longer, and must not write a document whose files the next
run has just dropped.

A file that 3 has placed may be merged away by `compact`; that both its names are gone is no fault.

Merging has a document, too, `merge.json` of the state: the new file is written under a hidden name,
then the document, then the old ones are deleted, then the new one is renamed. A merge that was
interrupted is finished by the next one, or by the next ingest. Between the last two steps readers
miss rows, for milliseconds: merge when nobody reads, or use Delta, where it is one commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import random_uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

INSIDE = ".shmbroker"
"""Where the state is if it can't be beside the table."""

BEFORE = "_shmbroker"
"""Where earlier versions had it."""

BATCHES_KEPT = 100
"""Documents of micro-batches; Spark repeats no more than the last one."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class FilesFault(Fault):
    """The files of a table can't be committed, or merged."""


class WrittenFile(NamedTuple):
    """A file that a task has written."""

    temporary: str
    final: str
    rows: int
    size: int
    partition_values: dict[str, str | None]


# --- the state -----------------------------------------------------------------------------------


def state_root(path: str) -> Path:
    """Where all that is kept which is not a file of the table."""
    real = Path(os.path.realpath(path))
    inside = real / INSIDE
    if inside.is_dir() or not real.name:
        return inside
    return real.with_name(f".{real.name}.shmbroker")


def state_directory(path: str, ingest_id: str) -> Path:
    """Where an ingest keeps what is its own."""
    return state_root(path) / ingest_id


def make_state(path: str) -> None:
    """Make the directory of a table's state, and the table's: beside it, if files can be renamed
    from there, else in it."""
    os.makedirs(path, exist_ok=True)
    root = state_root(path)
    if root.is_dir():
        return
    try:
        probe = root / "probe"
        probe.mkdir(parents=True)
        there = Path(path, f".probe-{random_uuid().hex()}")
        os.rename(probe, there)
        there.rmdir()
    except OSError:  # not ours to write, or another file system
        shutil.rmtree(root, ignore_errors=True)
        Path(path, INSIDE).mkdir(exist_ok=True)


def migrate(path: str) -> None:
    """Move the state of a table to where it is now, if an earlier version has left it in the table;
    ConfigFault while somebody uses it."""
    old = Path(path, BEFORE)
    if not old.is_dir():
        return
    with contextlib.ExitStack() as stack:
        for name in (*old.glob("*/lock"), *old.glob("*/spark.log")):
            file = stack.enter_context(name.open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigFault(
                    f"an ingest of an earlier version runs with {name.parent}: stop it first"
                ) from None
        for state in old.iterdir():
            documents = sorted((state / "batches").glob("*.json"))
            if documents:
                finish(documents[-1])
        _finish_merge(old / "merge.json")
        make_state(path)
        root = state_root(path)
        for state in list(old.iterdir()):
            if not (root / state.name).exists():
                os.rename(state, root / state.name)
        shutil.rmtree(old)


def tidy(path: str, ingest_id: str) -> None:
    """Take away the state of an ingest that has committed nothing, and that of the table if nobody
    else has one."""
    state = state_directory(path, ingest_id)
    if any((state / "batches").glob("*.json")):
        return
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        state_root(path).rmdir()


_NAME = re.compile(
    r"(?P<topic>.+)-(?P<id>[0-9a-f]{8})r?-\d{8}-\d{5}-\d{3}(?:-merged-[0-9a-f]{8})*"
    r"\.(?:parquet|json)"
)
_MERGED = re.compile(r"(-merged-[0-9a-f]{8})+$")


def note_writer(path: str, ingest_id: str, topic: str, checkpoint: str) -> None:
    """Note whose rows are in the table, before the first ones are."""
    if not has_writer(path, ingest_id):
        document = state_directory(path, ingest_id) / "writer.json"
        _replace(document, {"topic": topic, "checkpoint": checkpoint})


def has_writer(path: str, ingest_id: str) -> bool:
    """Whether this ingest has rows in the table, or has had them."""
    return (state_directory(path, ingest_id) / "writer.json").exists()


def writers(path: str, topic: str) -> dict[str, str]:
    """{id: checkpoint} of the ingests that have written rows of this topic into the table, by what
    they have noted, and by the names of the files, whose checkpoint is not known ("")."""
    found: dict[str, str] = {}
    if not os.path.isdir(path) or not any(name[0] != "." for name in os.listdir(path)):
        return found  # they were, and are gone
    for _, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name[0] not in "_."]
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None and match["topic"] == topic:
                found[match["id"]] = ""
    for document in state_root(path).glob("*/writer.json"):
        noted = json.loads(document.read_bytes())
        if noted["topic"] == topic and any((document.parent / "batches").glob("*.json")):
            found[document.parent.name.removesuffix("r")] = noted["checkpoint"]
    return found


def document_path(path: str, ingest_id: str, batch: int) -> Path:
    """A micro-batch's document."""
    return state_directory(path, ingest_id) / "batches" / f"{batch:08d}.json"


def temporary_path(path: str, ingest_id: str, batch: int, task: int, attempt: str, n: int) -> str:
    """A file that an attempt of a task is about to write."""
    name = f"{batch:08d}-{task:05d}-{attempt}-{n:03d}.part"
    return str(state_directory(path, ingest_id) / "temporary" / name)


def final_path(
    path: str, name: str, ingest_id: str, batch: int, task: int, n: int, folder: str, suffix: str
) -> str:
    """Where readers find it."""
    file = f"{name}-{ingest_id}-{batch:08d}-{task:05d}-{n:03d}.{suffix}"
    return str(Path(path) / folder / file)


def folder_of(values: dict[str, str | None]) -> str:
    """The directory of a partition, as Hive and Spark name it: `a=1/b=x%2Fy`."""
    return "/".join(
        f"{quote(name, safe='')}={quote(value, safe=' ,@+') if value else NULL_PARTITION}"
        for name, value in values.items()
    )


# --- micro-batches -------------------------------------------------------------------------------


def last_batch(path: str, ingest_id: str) -> int:
    """The number of the last committed micro-batch, -1 if there is none."""
    documents = (state_directory(path, ingest_id) / "batches").glob("*.json")
    return max((int(document.stem) for document in documents), default=-1)


@contextlib.contextmanager
def only_one(path: str, ingest_id: str) -> Iterator[None]:
    """Wait until nobody else commits or recovers; the kernel takes the lock from who dies."""
    state = state_directory(path, ingest_id)
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def commit(
    document: Path,
    files: Sequence[WrittenFile],
    counts: dict[str, int],
    letters: Sequence[tuple[int, int]] | None = None,
) -> bool:
    """Commit a micro-batch; False if it was before, and these files are dropped.

    `letters`: of a replay, the (partition, offset) of the dead letters that it is made of; such a
    document is kept for good.
    """
    if document.exists():
        finish(document)
        drop(document, files)
        return False
    missing = [file.temporary for file in files if not os.path.exists(file.temporary)]
    if missing:
        raise FilesFault(
            f"{missing[0]} was written, but can't be found: --to has to be one directory that the"
            " driver and all executors share"
        )
    content = {"files": [file._asdict() for file in files], "counts": counts}
    if letters is not None:
        _replace(document, content | {"letters": letters})
        finish(document)
        return True
    _replace(document, content)
    finish(document)
    old = document.with_name(f"{int(document.stem) - BATCHES_KEPT:08d}.json")
    old.unlink(missing_ok=True)
    return True


def drop(document: Path, files: Iterable[WrittenFile]) -> None:
    """Drop what tasks have written for a micro-batch, but for what its document has, if there is
    one: those files are the table's, though they may not have been renamed yet."""
    named: set[str] = set()
    if document.exists():
        named = {file.temporary for file in read_document(document)[0]}
    for file in files:
        if file.temporary not in named:
            Path(file.temporary).unlink(missing_ok=True)


def finish(document: Path) -> None:
    """Rename what a committed micro-batch has not renamed yet."""
    folders = set()
    for file in read_document(document)[0]:
        folder = os.path.dirname(file.final)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        try:
            os.rename(file.temporary, file.final)
        except FileNotFoundError:
            pass  # renamed before


def read_document(document: Path) -> tuple[list[WrittenFile], dict[str, int]]:
    """The files and counts of a micro-batch; FilesFault if the document is none."""
    try:
        found = json.loads(document.read_bytes())
        return [WrittenFile(**file) for file in found["files"]], found["counts"]
    except (ValueError, TypeError, KeyError) as error:
        raise FilesFault(f"{document} is damaged: {error}") from error


def withdraw(path: str, ingest_id: str, last: int) -> None:
    """Take back the micro-batches behind `last`, which will be written elsewhere: files of dead
    letters whose rows were not committed any more."""
    for document in (state_directory(path, ingest_id) / "batches").glob("*.json"):
        if int(document.stem) > last:
            for file in read_document(document)[0]:
                Path(file.final).unlink(missing_ok=True)
                Path(file.temporary).unlink(missing_ok=True)
            document.unlink()


def letters_of(path: str, ingest_id: str) -> set[tuple[int, int]]:
    """(partition, offset) of the dead letters that replays have put into the table."""
    found: set[tuple[int, int]] = set()
    for document in (state_directory(path, ingest_id) / "batches").glob("*.json"):
        found.update((partition, offset) for partition, offset in _letters(document))
    return found


def carry_letters(path: str, to: str, ingest_id: str) -> None:
    """Note in another table which dead letters were replayed into this one."""
    letters = letters_of(path, ingest_id)
    if letters:
        make_state(to)
        document = document_path(to, ingest_id, last_batch(to, ingest_id) + 1)
        commit(document, [], {}, sorted(letters))


def _letters(document: Path) -> list[list[int]]:
    try:
        return list(json.loads(document.read_bytes()).get("letters", []))
    except ValueError as error:
        raise FilesFault(f"{document} is damaged: {error}") from error


def recover(path: str, ingest_id: str) -> int:
    """Finish what a killed driver has left, and drop what no micro-batch has; the number of the
    last committed micro-batch, -1 if there is none."""
    finish_merge(path)
    state = state_directory(path, ingest_id)
    documents = sorted((state / "batches").glob("*.json"))
    if documents:
        finish(documents[-1])
    shutil.rmtree(state / "temporary", ignore_errors=True)
    (state / "temporary").mkdir(parents=True, exist_ok=True)
    (state / "batches").mkdir(parents=True, exist_ok=True)
    return int(documents[-1].stem) if documents else -1


def _replace(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".new")
    part.write_text(json.dumps(document))
    os.replace(part, path)


# --- merging -------------------------------------------------------------------------------------


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
        match = _NAME.fullmatch(name)
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
    _finish_merge(merge_document(path))


def _finish_merge(document: Path) -> None:
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
        if all(map(_NAME.fullmatch, wanted.names)):  # columns may have come and gone meanwhile
            schema = pa.unify_schemas([pq.read_schema(old) for old in olds])
        with pq.ParquetWriter(temporary, schema, compression=_codec_of(olds[0])) as writer:
            for old in olds:
                writer.write_table(_as(schema, pq.read_table(old, partitioning=None)))
    except (pa.ArrowException, ValueError) as error:
        Path(temporary).unlink(missing_ok=True)
        raise FilesFault(f"the files in {wanted.folder} don't go together: {error}") from error
    _replace(merge_document(path), {"old": olds, "temporary": temporary, "final": final})
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


def local_path(text: str) -> str:
    """An absolute directory of a path or file: URL; ConfigFault for other URLs."""
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise ConfigFault(f"{text} is not a directory: mount it, then name where it is mounted")
    return os.path.abspath(os.path.expanduser(text))
