"""Spark's source and sink, let in by a profile and by options; no secret is shown or kept."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing.broker import Broker

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECRET = "anna-secret"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "listeners": "SASL://127.0.0.1:{port1}",
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{LOGIN} user_anna="{SECRET}";',
        "connection.failed.authentication.delay.ms": "10",
    }
    words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    with Broker(*words) as broker:
        yield broker
        assert SECRET not in broker.log


@pytest.fixture(scope="module")
def profile(locked: Broker, spark: Any) -> dict[str, str]:
    """In the file that Spark's processes look into since the session began."""
    path = Path(os.environ["SHMBROKER_PROFILES"])
    path.with_name("anna").write_text(SECRET)
    path.write_text(
        f'[anna]\nbootstrap.servers = "127.0.0.1:{locked.port_of_listener(0)}"\n'
        'security.protocol = "SASL_PLAINTEXT"\nsasl.mechanism = "PLAIN"\n'
        f'sasl.username = "anna"\nsasl.password = {{ file = "{path.with_name("anna")}" }}\n'
    )
    return {"profile": "anna"}


def direct(broker: Broker, password: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{broker.port_of_listener(0)}",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{LOGIN} username="anna" password="{password}";',
    }


def write(rows: Any, topic: str, options: dict[str, str]) -> None:
    writer = rows.write.format("shmbroker").options(**options).option("topic", topic)
    writer.mode("append").save()


@pytest.mark.parametrize(
    ("kind", "way"), [("profile", "files"), ("profile", "fetch"), ("options", "files")]
)
def test_batches(kind: str, way: str, spark: Any, locked: Broker, profile: dict[str, str]) -> None:
    options = profile if kind == "profile" else direct(locked, SECRET)
    topic = f"batch-{kind}-{way}"
    write(spark.range(100).selectExpr("cast(id as string) as value"), topic, options)
    reader = spark.read.format("shmbroker").options(**options).option("subscribe", topic)
    rows = reader.option("shmbroker.read", way).load()
    assert rows.count() == 100
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        rows.explain(True)
        rows.explain("formatted")
    assert "shmbroker" in told.getvalue().lower()
    assert SECRET not in told.getvalue() + rows._jdf.queryExecution().toString()


@pytest.mark.parametrize("exactly_once", ["true", "transactions"])
def test_streams(
    exactly_once: str, spark: Any, tmp_path: Path, locked: Broker, profile: dict[str, str]
) -> None:
    source, target = f"source-{exactly_once}", f"target-{exactly_once}"
    write(spark.range(10).selectExpr("cast(id as string) as value"), source, profile)
    options = direct(locked, SECRET) if exactly_once == "true" else profile
    reader = spark.readStream.format("shmbroker").options(**options).option("subscribe", source)
    query = (
        reader.option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format("shmbroker")
        .options(**options)
        .option("topic", target)
        .option("exactlyOnce", exactly_once)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    found = spark.read.format("shmbroker").options(**profile).option("subscribe", target).load()
    assert found.count() == 10
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kept
    assert SECRET.encode() not in kept
    assert SECRET not in str(query.lastProgress)


def test_ranges_lead_to_the_profile(spark: Any, profile: dict[str, str]) -> None:
    write(spark.range(10).selectExpr("cast(id as string) as value"), "ranges", profile)
    reader = spark.read.format("shmbroker").options(**profile).option("subscribe", "ranges")
    ranges = reader.option("emit", "ranges").option("shmbroker.read", "fetch").load()

    def offsets(batches: Any) -> Iterator[Any]:
        from shmbroker.spark import read_ranges

        yield from read_ranges(batches, columns=("offset",))

    assert SECRET not in str(ranges.collect())
    assert ranges.mapInArrow(offsets, "offset bigint").count() == 10


def test_who_is_refused_is_told_so_without_secrets(spark: Any, locked: Broker) -> None:
    options = direct(locked, "wrong-secret")
    rows = spark.read.format("shmbroker").options(**options).option("subscribe", "t").load()
    with pytest.raises(Exception, match="does not let user anna in") as fault:
        rows.count()
    assert "wrong-secret" not in str(fault.value)
