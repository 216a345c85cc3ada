"""What an ingest keeps beside its table: where it is, and whose rows are in the table.

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
`table/.shmbroker`. Earlier versions had `table/_shmbroker`, which `files.migrate` moves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from shmbroker.errors import Fault
from shmbroker.ids import random_uuid

INSIDE = ".shmbroker"
"""Where the state is if it can't be beside the table."""

FILE_NAME = re.compile(
    r"(?P<topic>.+)-(?P<id>[0-9a-f]{8})r?-\d{8}-\d{5}-\d{3}(?:-merged-[0-9a-f]{8})*"
    r"\.(?:parquet|json)"
)
"""The name of a file that an ingest has written, or that was merged of such."""


class FilesFault(Fault):
    """The files of a table can't be committed, or merged."""


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


def tidy(path: str, ingest_id: str) -> None:
    """Take away the state of an ingest that has committed nothing, and that of the table if nobody
    else has one."""
    state = state_directory(path, ingest_id)
    if any((state / "batches").glob("*.json")):
        return
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        state_root(path).rmdir()


def note_writer(path: str, ingest_id: str, topic: str, checkpoint: str) -> None:
    """Note whose rows are in the table, before the first ones are."""
    if not has_writer(path, ingest_id):
        document = state_directory(path, ingest_id) / "writer.json"
        replace_document(document, {"topic": topic, "checkpoint": checkpoint})


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
            match = FILE_NAME.fullmatch(name)
            if match is not None and match["topic"] == topic:
                found[match["id"]] = ""
    for document in state_root(path).glob("*/writer.json"):
        noted = json.loads(document.read_bytes())
        if noted["topic"] == topic and any((document.parent / "batches").glob("*.json")):
            found[document.parent.name.removesuffix("r")] = noted["checkpoint"]
    return found


def replace_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".new")
    part.write_text(json.dumps(document))
    os.replace(part, path)
