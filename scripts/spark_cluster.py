#!/usr/bin/env python3
"""A topic read on a real Spark cluster: a master and two workers, each a process of its own.

The tasks of both workers can't open the broker's files: the driver reaches the control socket under
a name beside which there are no logs, as on another mount. So they fetch over the Kafka protocol.
A batch query and a stream into Parquet must give every record once; a batch query of a local
session that reads the files is there to compare. Exit status 0 only if all of that holds.

`scripts/spark_cluster` makes the environment and runs this.
"""

import argparse
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from shmbroker.spark import java_home, session_conf  # noqa: E402
from shmbroker.testing.broker import Broker  # noqa: E402

TOPIC = "cluster"
WORKERS = 2
START_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so leave nothing behind
    scratch = Path(tempfile.mkdtemp(prefix="shmbroker-cluster-"))
    os.environ["JAVA_HOME"] = java_home()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    try:
        with Broker() as broker:
            print(f"broker on {broker.address}; {wanted.records:,} records of 108 B", flush=True)
            fill(broker, wanted.records, wanted.partitions)
            with cluster(scratch) as master:
                print(f"cluster of {WORKERS} workers at {master}", flush=True)
                hidden = hide_files(Path(broker.data), scratch)
                check(broker, master, {"shmbroker.data": str(hidden)}, wanted.records, scratch)
            check(broker, f"local[{WORKERS}]", {}, wanted.records, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def fill(broker: Broker, records: int, partitions: int) -> None:
    """The records' values begin with their number, in 100 bytes."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(60)
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 20, "batch.size": 500_000}
    )
    for n in range(records):
        while True:
            try:
                producer.produce(TOPIC, key=b"%08d" % (n % 1000), value=b"%012d" % n + b"." * 88)
                break
            except BufferError:
                producer.poll(0.1)
    require(producer.flush(120) == 0, "every record is acknowledged")


def hide_files(data: Path, scratch: Path) -> Path:
    """A directory where the broker's control socket is and its logs are not."""
    hidden = scratch / "hidden"
    hidden.mkdir()
    (hidden / "control.sock").symlink_to(data / "control.sock")
    return hidden


@contextlib.contextmanager
def cluster(scratch: Path) -> Iterator[str]:
    """Spark's own master and workers; the master's URL once both workers are there."""
    import pyspark

    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    lines = [[f"{deploy}.master.Master", *here, "--port", str(port)]]
    for i in range(WORKERS):
        where = ["--work-dir", str(scratch / f"worker-{i}")]
        lines.append([f"{deploy}.worker.Worker", *here, *where, "--cores", "1", "-m", "1g", url])
    log = (scratch / "cluster.log").open("w")
    processes = []
    try:
        for line in lines:
            words = [str(command), *line]
            processes.append(
                subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
        deadline = time.monotonic() + START_S
        while (text := (scratch / "cluster.log").read_text()).count(
            "Successfully registered with master"
        ) < WORKERS:
            dead = any(process.poll() is not None for process in processes)
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"the cluster does not start:\n{text[-3000:]}")
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
        log.close()


def check(
    broker: Broker, master: str, options: dict[str, str], records: int, scratch: Path
) -> None:
    """Count and stream the topic; print how fast, and by which way."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master(master)
        .config(map=session_conf(cores=WORKERS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "700m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    options = options | {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": TOPIC,
        "minPartitions": "8",
    }
    try:
        read = spark.read.format("shmbroker").options(**options)
        rows = read.load()
        number = F.substring(F.col("value").cast("string"), 1, 12).cast("long")
        best = 1e9
        for _ in range(3):
            started = time.perf_counter()
            row = rows.agg(F.count("*"), F.sum(number), F.countDistinct("partition")).first()
            best = min(best, time.perf_counter() - started)
        require(row[0] == records, f"{records:,} rows are counted, {row[0]:,} are there")
        require(row[1] == records * (records - 1) // 2, "every number is there once")
        print(f"{master}: count and sum {records / best:,.0f} rows/s", flush=True)

        table = scratch / ("table-" + master.split(":")[0])
        stream = spark.readStream.format("shmbroker").options(**options)
        started = time.perf_counter()
        query = (
            stream.option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(records // 3 + 1))
            .load()
            .select(number.alias("n"), "partition", "offset")
            .writeStream.option("checkpointLocation", str(table) + "-checkpoint")
            .trigger(availableNow=True)
            .start(str(table), format="parquet")
        )
        query.awaitTermination()
        took = time.perf_counter() - started
        found = spark.read.parquet(str(table)).agg(F.count("*"), F.countDistinct("n")).first()
        require(tuple(found) == (records, records), "the stream has every record once")
        print(f"{master}: stream into Parquet {records / took:,.0f} rows/s", flush=True)
        if options.get("shmbroker.data"):
            # the driver is one of them
            executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
            require(executors == WORKERS, f"both workers take part, {executors} executors do")
    finally:
        spark.stop()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{master}: driver's Python {used.ru_utime + used.ru_stime:.1f} CPU s", flush=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def require(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"does not hold: {text}")


if __name__ == "__main__":
    sys.exit(main())
