"""Files of an ingest: how tasks write them, and how a micro-batch's are committed.

`table_state` says where they are. A micro-batch's files are there once, whatever is repeated:

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

A file that 3 has placed may be merged away (`merging`); that both its names are gone is no fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest.merging import finish_merge, finish_merge_of
from shmbroker.spark.ingest.table_state import (
    FilesFault,
    make_state,
    replace_document,
    state_directory,
    state_root,
)

BEFORE = "_shmbroker"
"""Where earlier versions had it."""

BATCHES_KEPT = 100
"""Documents of micro-batches; Spark repeats no more than the last one."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class WrittenFile(NamedTuple):
    """A file that a task has written."""

    temporary: str
    final: str
    rows: int
    size: int
    partition_values: dict[str, str | None]


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
        replace_document(document, content | {"letters": letters})
        finish(document)
        return True
    replace_document(document, content)
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
        finish_merge_of(old / "merge.json")
        make_state(path)
        root = state_root(path)
        for state in list(old.iterdir()):
            if not (root / state.name).exists():
                os.rename(state, root / state.name)
        shutil.rmtree(old)


def local_path(text: str) -> str:
    """An absolute directory of a path or file: URL; ConfigFault for other URLs."""
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise ConfigFault(f"{text} is not a directory: mount it, then name where it is mounted")
    return os.path.abspath(os.path.expanduser(text))
