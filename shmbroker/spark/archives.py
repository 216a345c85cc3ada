"""Spark's Python processes import the PySpark that pip has installed, not Spark's archive of it.

Spark puts `pyspark/python/lib/pyspark.zip` and `py4j-….zip` in front of the path of each Python
process that it starts. What is imported from an archive is compiled anew every time: 0.7 s for each
of the four processes of a session's first query, or the nine of a first stream, one after the
other. The same modules, compiled, are installed beside them.

So Python runs `leave_out` at its start, where such an archive is in its path: a line of
`shmbroker.pth` tells it to, which setup.py puts beside the package.

Rules

* Only what Spark has put there goes, and only where the installed modules are those that stand
  beside the archives: with a Spark or a PySpark of another place everything stays.
* Nothing but os and sys is imported here: it runs at the start of every process of Spark's.
"""

import os
import sys

_LIBRARY = os.path.join("pyspark", "python", "lib")


def leave_out() -> None:
    """Take the archives out of this process' path."""
    sys.path[:] = without_archives(sys.path)


def without_archives(path: list[str]) -> list[str]:
    """A module path without Spark's archives; as it is where they are needed."""
    rest = path
    entries = (os.path.split(str(entry)) for entry in path)
    for library in {directory for directory, name in entries if name == "pyspark.zip"}:
        if not library.endswith(os.sep + _LIBRARY):
            continue
        installed = os.path.realpath(library.removesuffix(_LIBRARY))
        for package in ("pyspark", "py4j"):
            left = [each for each in rest if not _is_archive(each, library, package)]
            found = (each for each in left if os.path.isfile(f"{each}/{package}/__init__.py"))
            first = next(found, None)
            if first is not None and os.path.realpath(first) == installed:
                rest = left
    return rest


def _is_archive(entry: str, library: str, package: str) -> bool:
    directory, name = os.path.split(entry)
    return directory == library and name.startswith(package) and name.endswith(".zip")
