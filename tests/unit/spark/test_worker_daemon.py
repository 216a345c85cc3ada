"""The path that Spark's Python workers import from."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from shmbroker.spark.worker_daemon import without_archives


def archive(folder: Path, name: str, package: str, version: str) -> str:
    path = folder / name
    with ZipFile(path, "w") as content:
        content.writestr(f"{package}/__init__.py", "")
        content.writestr(f"{package}/version.py", version)
    return str(path)


def install(folder: Path, package: str, version: str) -> str:
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "version.py").write_text(version)
    return str(folder)


@pytest.mark.parametrize(
    ("spark", "py4j", "is_left_out"),
    [
        ("4.2.0", "0.10.9.9", True),
        ("4.3.0", "0.10.9.9", False),
        ("4.2.0", "0.10.9.7", False),
        ("", "0.10.9.9", False),
        ("4.2.0", "", False),
    ],
)
def test_archives_go_if_the_same_is_installed(
    tmp_path: Path, spark: str, py4j: str, is_left_out: bool
) -> None:
    (tmp_path / "lib").mkdir()
    archives = [
        archive(tmp_path / "lib", "pyspark.zip", "pyspark", "4.2.0"),
        archive(tmp_path / "lib", "py4j-0.10.9.9-src.zip", "py4j", "0.10.9.9"),
    ]
    rest = [str(tmp_path / "own.zip")]
    for package, version in (("pyspark", spark), ("py4j", py4j)):
        if version:
            rest.append(install(tmp_path / package, package, version))
    assert without_archives([*archives, *rest]) == (rest if is_left_out else [*archives, *rest])


def test_path_without_archives_stays(tmp_path: Path) -> None:
    path = [install(tmp_path / "a", "pyspark", "1"), install(tmp_path / "b", "py4j", "1")]
    assert without_archives(path) == path


def test_damaged_archive_stays(tmp_path: Path) -> None:
    (tmp_path / "pyspark.zip").write_bytes(b"no archive")
    path = [str(tmp_path / "pyspark.zip"), install(tmp_path / "a", "pyspark", "1")]
    path.append(install(tmp_path / "b", "py4j", "1"))
    assert without_archives(path) == path
