"""The programs of limit.c: built when they are first needed, run beside a broker as side L.

KINDS      what `limit serve` can do, which limit.c explains
serving    one of them as a side of a bench, for as long as a case takes
bare       what the machine does alone, by name
store      ways to append batches of one size to a file, ns each
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "limit.c"
KINDS = ("write", "check", "copies", "wakeups", "spin", "sendfile")
_BUILD = ("-O2", "-msse4.2")
_built: list[tempfile.TemporaryDirectory[str]] = []


class NoCompiler(Exception):
    """There is no C compiler, or it refuses."""


@lru_cache(1)
def program() -> Path:
    """The binary, which is gone when this process ends. NoCompiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompiler("no limits are measured: they need a C compiler (Debian: gcc)")
    place = tempfile.TemporaryDirectory(prefix="shmbroker-limits-")
    _built.append(place)
    path = Path(place.name) / "limit"
    made = subprocess.run(
        [compiler, *_BUILD, "-o", path, SOURCE], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise NoCompiler(f"no limits are measured, as {compiler} refuses: {made.stderr[:500]}")
    return path


@contextmanager
def serving(kind: str, data: Path | None) -> Iterator[tuple[str, int]]:
    """(HOST:PORT, pid) of a program of that kind; its files are in a directory of its own.
    NoCompiler."""
    with (
        tempfile.TemporaryDirectory(prefix="shmbroker-limit-", dir=data) as directory,
        subprocess.Popen(
            [program(), "serve", kind, directory], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


def bare(data: Path | None) -> dict[str, float]:
    """Figures of the machine alone; files in `data` and on tmpfs. NoCompiler."""
    return _told("bare", data)


def store(data: Path | None, size: int) -> dict[str, float]:
    """ns and CPU ns of a batch of so many bytes, by way: limit.c lists them. NoCompiler."""
    return _told("store", data, str(size))


def _told(what: str, data: Path | None, *words: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="shmbroker-limit-", dir=data) as directory:
        ran = subprocess.run(
            [program(), what, directory, *words], capture_output=True, text=True, check=True
        )
    return {name: float(value) for name, value in map(str.split, ran.stdout.splitlines())}
