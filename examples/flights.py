"""Delays of departures by airline and six hours, from topic to topic: `flights.sql` in Python.

shmbroker pipeline run examples/flights.py
"""

from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

FLIGHT = (
    "carrier string, origin string, dest string, dep_delay double, distance double,"
    " time_hour timestamp"
)


def pipeline(job: Any) -> None:
    """Flights joined with a table, in windows of event time."""
    airlines = job.spark.read.csv(
        str(Path(__file__).with_name("airlines.csv")),
        schema="carrier string, name string",
        header=True,
    )
    delays = (
        job.stream("flights", FLIGHT, watermark="time_hour 1 day")
        .join(airlines, "carrier")
        .groupBy("carrier", "name", F.window("time_hour", "6 hours"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.round(F.avg("dep_delay"), 2).alias("delay"),
        )
        .selectExpr(
            "carrier AS key",
            "name AS airline",
            "window.start AS since",
            "flights",
            "departed",
            "delay",
        )
    )
    job.write(delays, "delays")
