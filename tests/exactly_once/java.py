"""Apache Kafka's own clients: their jars, our programs for them in `java/`, and how to start both.

The jars are those of kafka-streams and connect-runtime, which Maven brings into
`~/.cache/shmbroker/kafka-VERSION` at the first use. `missing` says what is not there.
"""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

VERSION = "4.2.1"
LIBS = Path.home() / ".cache" / "shmbroker" / f"kafka-{VERSION}"
SOURCES = Path(__file__).parent / "java"
OPTIONS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m",
)  # fmt: skip
FETCHED = (
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)


def missing() -> str:
    """What is not there, or nothing."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            return f"needs {tool} 17"
    if not (LIBS / ".complete").exists() and shutil.which("mvn") is None:
        return f"needs mvn, or the jars of Kafka {VERSION} in {LIBS}"
    return ""


@cache
def libs() -> Path:
    """The directory of the jars; fetched once."""
    if not (LIBS / ".complete").exists():
        wanted = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version></dependency>"
            for group, name, version in FETCHED
        )
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "pom.xml").write_text(
                "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>"
                "<artifactId>exactly-once</artifactId><version>1</version>"
                f"<dependencies>{wanted}</dependencies></project>"
            )
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={LIBS}"]
            subprocess.run(["mvn", "-q", "-B", *goal], cwd=directory, check=True)
        (LIBS / ".complete").touch()
    return LIBS


@cache
def classes() -> Path:
    """The programs in `java/`, compiled."""
    into = Path(tempfile.mkdtemp(prefix="exactly-once-classes-"))
    atexit.register(shutil.rmtree, into, ignore_errors=True)
    sources = sorted(map(str, SOURCES.glob("*.java")))
    subprocess.run(
        ["javac", "-nowarn", "-cp", f"{libs()}/*", "-d", str(into), *sources], check=True
    )
    return into


def java(name: str, *words: str) -> list[str]:
    """The command that runs one of the programs, or a class of Kafka's."""
    return [
        "java", *OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp", f"{classes()}:{libs()}/*", name, *words,
    ]  # fmt: skip
