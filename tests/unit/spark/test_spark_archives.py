"""The Python that a session's Spark starts: without Spark's archives in its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmbroker.spark import session_conf
from shmbroker.spark.archives import script_without_archives

pyspark = pytest.importorskip("pyspark")

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
ARCHIVES = [str(path) for path in sorted(LIBRARY.glob("py*.zip"))]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    del os.environ["PYSPARK_PYTHON"]
    return tmp_path


def path_in(command: str, *entries: str) -> list[str]:
    """Where PySpark comes from and the module path of a process with these entries in front."""
    program = "import sys, pyspark; print(pyspark.__file__, *sys.path, sep='\\n')"
    ran = subprocess.run(
        [command, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entries)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.skipif(not ARCHIVES, reason="this PySpark has no archives")
def test_archives_of_the_installed_pyspark_go(cache: Path) -> None:
    session_conf()
    command = os.environ["PYSPARK_PYTHON"]
    assert Path(command).is_relative_to(cache)
    found, *path = path_in(command, *ARCHIVES, "/their own/*", "/opt/spark/python/lib/pyspark.zip")
    assert found == pyspark.__file__
    assert not set(ARCHIVES) & set(path)
    assert path.index("/their own/*") < path.index("/opt/spark/python/lib/pyspark.zip")
    # without the script it is the archive's
    assert path_in(sys.executable, *ARCHIVES)[0].startswith(ARCHIVES[-1])


def test_spark_of_another_place_keeps_its_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert script_without_archives() is None
    session_conf()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_cache_that_can_not_be_written_costs_only_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    session_conf()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
