"""A Python for Spark's processes that imports the PySpark that pip has installed, not its archive.

Spark puts `pyspark/python/lib/pyspark.zip` and `py4j-….zip` in front of the path of each Python
process that it starts. What is imported from an archive is compiled anew every time: 0.7 s for each
of the four processes of a session's first query, or the nine of a first stream, one after the
other. The same modules, compiled, are installed beside them.

So `session_conf()` lets Spark start its Python through a small script, which takes the two archives
out of PYTHONPATH.

Rules of this file:
* Only the archives of the installed PySpark go, and only where its modules are installed as well.
  With a Spark of another place everything stays.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
# Spark's archives of PySpark are compiled by each process; the same modules are installed.
set -f
IFS=:
rest=
for entry in $PYTHONPATH; do
  case $entry in
    {archives}) ;;
    *) rest=$rest${{rest:+:}}$entry ;;
  esac
done
PYTHONPATH=$rest exec {python} "$@"
"""


def script_without_archives() -> str | None:
    """The text of a script that runs this interpreter without Spark's archives in its path; None
    where they are needed, as nothing else has their modules."""
    library = _installed("pyspark")
    if library is None or _installed("py4j") is None:
        return None
    spark_home = os.environ.get("SPARK_HOME")
    if spark_home and os.path.realpath(spark_home) != os.path.realpath(library):
        return None
    archives = library / "python" / "lib"
    names = [shlex.quote(str(path)) for path in sorted(archives.glob("py*.zip"))]
    if not names:
        return None
    return _SCRIPT.format(archives="|".join(names), python=shlex.quote(sys.executable))


def _installed(package: str) -> Path | None:
    """The directory of a package that is no archive."""
    spec = find_spec(package)
    found = Path(spec.origin).parent if spec and spec.origin else None
    return found if found is not None and found.is_dir() else None
