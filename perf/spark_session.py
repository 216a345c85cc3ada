"""What the benches of Spark have in common: a session, and CPU seconds of the JVM and of Python."""

import os
from pathlib import Path
from typing import Any

from perf import bench, family
from shmbroker.spark import java_home, session_conf


def session(jars: str) -> Any:
    """A session on 2 cores, with the jars of a directory."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java_home()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(bench.ROOT), os.environ.get("PYTHONPATH")])
    )
    builder = SparkSession.builder.master("local[2]").config(map=session_conf(cores=2))
    builder = builder.config("spark.driver.memory", "2g").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar")))))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cpu(jvm: int) -> tuple[float, float]:
    """CPU seconds so far of the JVM alone, and of the Python processes below it."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{jvm}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11:13])) / ticks
    return own, family.cpu_s(jvm) - own
