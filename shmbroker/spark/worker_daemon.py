"""The process that Spark forks the Python workers of its tasks of, started in a third of the time.

Spark puts `pyspark.zip` in front of the path, and what is imported from an archive is compiled
anew by each process: 0.8 s for the daemon, 0.2 s for each worker. If the same version of PySpark is
installed beside, as pip does it, that is taken.

`session_conf` names this module as `spark.python.daemon.module`. The daemons of the driver, which
look a data source up and plan its reads, can't be chosen.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from zipfile import BadZipFile, ZipFile

_ARCHIVED = ("pyspark", "py4j")


def main() -> None:
    """Become `pyspark.daemon`."""
    sys.path[:] = without_archives(sys.path)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without Spark's archives, if the rest of it holds what they hold; else as it is."""
    archives = [entry for entry in path if _is_archive(entry)]
    rest = [entry for entry in path if not _is_archive(entry)]
    try:
        for name in _ARCHIVED:
            found = PathFinder.find_spec(name, rest)
            if found is None or found.origin is None:
                return list(path)
            inside = f"{name}/version.py"
            with open(os.path.join(os.path.dirname(found.origin), "version.py"), "rb") as file:
                installed = file.read()
            (archive,) = (entry for entry in archives if os.path.basename(entry).startswith(name))
            with ZipFile(archive) as content:
                if content.read(inside) != installed:
                    return list(path)
    except (OSError, ValueError, KeyError, BadZipFile):
        return list(path)
    return rest


def _is_archive(entry: str) -> bool:
    name = os.path.basename(entry)
    return name.endswith(".zip") and name.startswith(_ARCHIVED)


if __name__ == "__main__":
    main()
