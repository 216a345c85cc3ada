#!/usr/bin/env python3
"""Spark on a real cluster: a master and two workers, each a process of its own.

The tasks of both workers can't open the broker's files: the driver reaches the control socket under
a name beside which there are no logs, as on another mount. So they fetch over the Kafka protocol.
Every record must be there once, after a batch query, a stream into Parquet, a batch and a stream
into topics, a stream in transactions one of whose executors is killed, `shmbroker ingest` and
`shmbroker pipeline run`. The same of a local session that reads the files is there to compare. Exit
status 0 only if all of that holds.

`scripts/spark_cluster` makes the environment and runs this.
"""

import argparse
import contextlib
import os
import re
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
NUMBER = re.compile(rb'{"n": *(\d+)')
WORKERS = 2
START_S = 600.0


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
                check_commands(broker, master, hidden, wanted.records, scratch)
            local = f"local[{WORKERS}]"
            check(broker, local, {}, wanted.records, scratch)
            check_commands(broker, local, Path(broker.data), wanted.records, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def create_topic(broker: Broker, name: str, partitions: int = 4) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)


def fill(broker: Broker, records: int, partitions: int) -> None:
    """The records' values are JSON objects of 100 bytes, with their number."""
    from confluent_kafka import Producer

    create_topic(broker, TOPIC, partitions)
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 20, "batch.size": 500_000}
    )
    for n in range(records):
        while True:
            try:
                producer.produce(TOPIC, key=b"%08d" % (n % 1000), value=value_of(n))
                break
            except BufferError:
                producer.poll(0.1)
    require(producer.flush(120) == 0, "every record is acknowledged")


def value_of(n: int) -> bytes:
    return b'{"n": %12d, "text": "' % n + b"." * 70 + b'"}'


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
        number = F.trim(F.substring(F.col("value").cast("string"), 7, 12)).cast("long")
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

        kind = master.split(":")[0].split("[")[0]
        to = {"kafka.bootstrap.servers": broker.address}
        create_topic(broker, f"batch-{kind}")
        started = time.perf_counter()
        pairs = rows.select("key", "value")
        pairs.write.format("shmbroker").options(**to, topic=f"batch-{kind}").mode("append").save()
        took = time.perf_counter() - started
        check_topic(broker, f"batch-{kind}", records)
        print(f"{master}: batch into a topic {records / took:,.0f} rows/s", flush=True)

        create_topic(broker, f"stream-{kind}")
        started = time.perf_counter()
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.format("shmbroker")
            .options(**to, topic=f"stream-{kind}")
            .option("checkpointLocation", str(scratch / f"to-topic-{kind}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took = time.perf_counter() - started
        check_topic(broker, f"stream-{kind}", records)
        print(f"{master}: stream into a topic {records / took:,.0f} rows/s", flush=True)
        create_topic(broker, f"whole-{kind}")
        started = time.perf_counter()
        checkpoint = scratch / f"to-whole-{kind}"
        query = (
            stream.option("maxOffsetsPerTrigger", str(records // 3 + 1))
            .load()
            .select("key", "value")
            .writeStream.format("shmbroker")
            .options(**to, topic=f"whole-{kind}", exactlyOnce="transactions")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if kind == "spark":
            while not list((checkpoint / "commits").glob("[0-9]*")):
                require(query.isActive, f"the query lasts: {query.exception()}")
                time.sleep(0.01)
            kill_executor()
        query.awaitTermination()
        took = time.perf_counter() - started
        check_topic(broker, f"whole-{kind}", records, "read_committed")
        print(f"{master}: stream in transactions {records / took:,.0f} rows/s", flush=True)
        if options.get("shmbroker.data"):
            # the driver is one of them
            deadline = time.monotonic() + START_S  # the one that was killed comes again
            status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
            while status().size() - 1 < WORKERS and time.monotonic() < deadline:
                time.sleep(0.2)
            executors = status().size() - 1
            require(executors == WORKERS, f"both workers take part, {executors} executors do")
    finally:
        spark.stop()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{master}: driver's Python {used.ru_utime + used.ru_stime:.1f} CPU s", flush=True)


def kill_executor() -> None:
    """One of those that our workers have started, in the midst of what it does."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if not any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words):
                continue
            if os.environ["PYTHONPATH"].encode() in (path.parent / "environ").read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
                return
    require(False, "there is an executor")


def check_topic(
    broker: Broker, topic: str, records: int, isolation: str = "read_uncommitted"
) -> None:
    """Every number is in the topic once."""
    import numpy as np

    from shmbroker.arrow import scan

    found = np.zeros(records, np.int64)
    only = {"columns": ["value"], "isolation_level": isolation}
    for batch in scan(topic, bootstrap_servers=broker.address, **only):
        values = batch.column("value").to_pylist()
        # as it was produced, or as a pipeline has written it again
        np.add.at(found, [int(NUMBER.match(value)[1]) for value in values], 1)
    missing, twice = int((found == 0).sum()), int((found > 1).sum())
    require(not missing and not twice, f"{topic}: {missing} are missing, {twice} are there twice")


SQL = """
CREATE STREAM numbers (n bigint, text string) FROM TOPIC cluster
    WITH ('shmbroker.data' = '${data}', maxOffsetsPerTrigger = '${share}',
          watermark = 'record_timestamp 1 day');
CREATE TEMPORARY VIEW parities (parity bigint, name string)
    USING csv OPTIONS (path '${here}/parities.csv', header 'true');
INSERT INTO TOPIC `${to}` WITH (mode = 'complete')
SELECT name AS key, count(*) AS records, sum(n) AS total
FROM numbers JOIN parities ON n % 2 = parity GROUP BY name;
INSERT INTO TOPIC `${to}-copied` SELECT n, text FROM numbers;
"""


def check_commands(broker: Broker, master: str, data: Path, records: int, scratch: Path) -> None:
    """`ingest` and `pipeline run` with this master."""
    import json

    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from shmbroker.arrow import read

    kind = master.split(":")[0].split("[")[0]
    spark = ["--master", master, "--conf", "spark.executor.memory=700m"]
    table, letters = scratch / f"ingested-{kind}", scratch / f"letters-{kind}"
    words = ["ingest", TOPIC, "--to", str(table), "--schema", "n bigint, text string", "--json"]
    words += ["--dead-letter", str(letters), "-o", f"shmbroker.data={data}", "--batch-size", "64m"]
    for expected in (records, 0):  # the second time there is nothing left
        done = json.loads(run_command(broker, words + spark))
        require(done["rows"] == expected, f"ingest says {done['rows']:,} rows of {expected:,}")
        if expected:
            way = "files" if data == Path(broker.data) else "fetch"
            require(done["read"] == way, f"ingest reads by {way}, not by {done['read']}")
            rate = done["records"] / done["seconds"]
            print(f"{master}: ingest by {done['read']} {rate:,.0f} rows/s", flush=True)
    numbers = pq.read_table(table, columns=["n"])["n"]
    require(len(numbers) == len(pc.unique(numbers)) == records, "files have every record once")

    (scratch / "parities.csv").write_text("parity,name\n0,even\n1,odd\n")
    (scratch / f"{kind}.sql").write_text(SQL)
    to = f"sums-{kind}"
    create_topic(broker, to)
    create_topic(broker, f"{to}-copied")
    words = ["pipeline", "run", str(scratch / f"{kind}.sql"), "--trigger", "available-now"]
    words += ["--set", f"data={data}", "--set", f"to={to}", "--set", f"share={records // 3 + 1}"]
    run_command(broker, words + spark)
    run_command(broker, words + spark)
    check_topic(broker, f"{to}-copied", records)
    last = {}
    rows = read(to, bootstrap_servers=broker.address, columns=["key", "value", "offset"])
    for row in sorted(rows.to_pylist(), key=lambda row: row["offset"]):
        last[row["key"]] = json.loads(row["value"])
    found = sum(row["records"] for row in last.values())
    total = sum(row["total"] for row in last.values())
    require(
        (len(last), found, total) == (2, records, records * (records - 1) // 2),
        f"the pipeline's sums are those of every record: {last}",
    )
    print(f"{master}: pipeline run, every record once", flush=True)


def run_command(broker: Broker, words: list[str]) -> str:
    """What `shmbroker` prints."""
    line = [sys.executable, "-m", "shmbroker", *words, "--bootstrap-server", broker.address]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    told = f"{done.stderr[-3000:]}\nThe broker:\n{broker.log[-2000:]}"
    require(done.returncode == 0, f"{' '.join(words[:3])} ends with 0:\n{told}")
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def require(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"does not hold: {text}")


if __name__ == "__main__":
    sys.exit(main())
