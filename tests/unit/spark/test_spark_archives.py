"""Which of Spark's archives stay in the path of its Python processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmbroker.spark.archives import without_archives

ARCHIVES = ("pyspark.zip", "py4j-0.10.9.9-src.zip")


def put_packages(directory: Path, *names: str) -> str:
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text("")
    return str(directory)


def archives_of(directory: str) -> list[str]:
    """As Spark puts them into the path; the jar is not ours."""
    library = Path(directory, "pyspark", "python", "lib")
    return [*(str(library / name) for name in ARCHIVES), f"{directory}/pyspark/jars/core.jar"]


def test_archives_of_the_installed_pyspark_go(tmp_path: Path) -> None:
    site = put_packages(tmp_path / "site", "pyspark", "py4j")
    zipped, java, jar = archives_of(site)
    path = [zipped, java, jar, "/user", "", "/nowhere/python311.zip", site]
    assert without_archives(path) == [jar, "/user", "", "/nowhere/python311.zip", site]
    assert path[:2] == [zipped, java]
    link = tmp_path / "link"
    link.symlink_to(site)
    assert without_archives([zipped, java, str(link)]) == [str(link)]
    assert without_archives([*archives_of(str(link))[:2], site]) == [site]


def test_what_is_not_installed_is_left(tmp_path: Path) -> None:
    site = put_packages(tmp_path / "site", "pyspark")
    zipped, java, jar = archives_of(site)
    assert without_archives([zipped, java, jar, site]) == [java, jar, site]
    for path in ([zipped, java, jar], [zipped, java, str(tmp_path)], ["pyspark.zip", site], []):
        assert without_archives(path) == path


def test_another_pyspark_in_front_is_left(tmp_path: Path) -> None:
    """Without its archive Spark would find the other one, maybe of another version."""
    site = put_packages(tmp_path / "site", "pyspark", "py4j")
    other = put_packages(tmp_path / "other", "pyspark", "py4j")
    path = [*archives_of(site), other, site]
    assert without_archives(path) == path


def test_a_spark_of_its_own_place_is_left(tmp_path: Path) -> None:
    site = put_packages(tmp_path / "site", "pyspark", "py4j")
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-1-src.zip", site]
    assert without_archives(path) == path


@pytest.mark.parametrize("name", ARCHIVES)
def test_python_leaves_them_out_at_its_start(name: str) -> None:
    """What setup.py puts beside the package does it."""
    pyspark = pytest.importorskip("pyspark")
    archive = str(Path(pyspark.__file__).parent / "python" / "lib" / name)
    if not os.path.exists(archive):
        pytest.skip(f"this PySpark has no {name}")
    path = os.pathsep.join([*archives_of(str(Path(archive).parents[3]))[:2], "/user"])
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pyspark; print(pyspark.__file__, *sys.path, sep='\\n')",
        ],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    found = ran.stdout.splitlines()
    assert found[0] == pyspark.__file__
    assert archive not in found and "/user" in found
    assert ran.stderr == ""
