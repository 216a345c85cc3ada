"""A program over Spark Connect: `python -m tests.spark.connect_session ADDRESS TOPIC DIR` writes
3,000 rows, reads them in each way, and prints what it saw as one JSON object.

A process of its own, as one with a classic session can't have a session of Spark Connect's, too."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shmbroker.spark import add_lag, read_ranges, session_conf

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 3000
TRIGGER_ROWS = 1000


def counted(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The records of the ranges."""
    import pyarrow as pa

    for records in read_ranges(batches, columns=("value",)):
        yield pa.RecordBatch.from_pydict({"records": [records.num_rows]})


def main(address: str, topic: str, directory: str) -> None:
    """One session, which starts its server in this process."""
    spark = SparkSession.builder.remote("local[2]").config(map=session_conf(cores=2)).getOrCreate()
    seen: dict[str, Any] = {"module": type(spark).__module__}

    def reader(reads: Any, **options: str) -> Any:
        given = {"kafka.bootstrap.servers": address, "subscribe": topic} | options
        return reads.format("shmbroker").options(**given)

    rows = spark.range(ROWS).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    sink = {"kafka.bootstrap.servers": address, "topic": topic}
    rows.write.format("shmbroker").options(**sink).mode("append").save()

    loaded = reader(spark.read).load()
    seen["batch"] = [loaded.count(), loaded.select("value").distinct().count()]
    seen["arrow"] = loaded.toArrow().num_rows
    ranges = reader(spark.read, emit="ranges").load()
    seen["ranges"] = ranges.mapInArrow(counted, "records bigint").toArrow()["records"].to_pylist()
    try:
        reader(spark.read, startingOfsets="earliest").load().count()
    except PySparkException as error:
        seen["refused"] = str(error)

    query = (
        reader(spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger=str(TRIGGER_ROWS))
        .load()
        .writeStream.format("parquet")
        .option("path", f"{directory}/table")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    seen["ended"] = query.awaitTermination(200)
    stored = spark.read.parquet(f"{directory}/table").select("partition", "offset")
    seen["stream"] = [stored.count(), stored.distinct().count()]
    seen["micro_batches"] = len(query.recentProgress)
    seen["lag"] = add_lag(query.lastProgress)["sources"][0]["metrics"]
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
