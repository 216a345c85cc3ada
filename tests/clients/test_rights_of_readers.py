"""What ACLs let a reader and a Spark task do: the same whether files are mapped or fetched."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql.types import StringType, StructType

from shmbroker.arrow import read
from shmbroker.client.faults import DeniedFault, NoFilesFault
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.spark import sink
from shmbroker.spark.producer_options import parse
from shmbroker.testing.broker import Broker

USERS = dict.fromkeys(("admin", "reader", "onlooker", "writer"), "secret")
RIGHTS = {
    "reader": AclOperation.READ,
    "onlooker": AclOperation.DESCRIBE,
    "writer": AclOperation.WRITE,
}
TOPIC, WRITTEN = "judged", "written"
WAYS = ("files", "auto", "fetch")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with a topic of ten records and an empty one; each user has one right on them."""
    words = ("--set", f"authorizer.class.name={STANDARD_AUTHORIZER}")
    with Broker(*words, "--set", "super.users=User:admin", users=USERS) as running:
        settings = running.client_settings("admin")
        admin = AdminClient(settings)
        for future in admin.create_topics([NewTopic(t, 1, 1) for t in (TOPIC, WRITTEN)]).values():
            future.result(60)
        acls = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for user, operation in RIGHTS.items()
            for topic in (TOPIC, WRITTEN)
        ]
        for future in admin.create_acls(acls).values():
            future.result(60)
        producer = Producer(settings)
        for number in range(10):
            producer.produce(TOPIC, str(number))
        assert producer.flush(60) == 0
        yield running


def rows(broker: Broker, user: str, way: str, **options: Any) -> int:
    settings = broker.client_settings(user)
    servers = settings.pop("bootstrap.servers")
    table = read(TOPIC, bootstrap_servers=servers, security=settings, way=way, **options)
    return int(table.num_rows)


@pytest.mark.parametrize("way", WAYS)
def test_who_may_read_a_topic_reads_it_whatever_else_is_denied(broker: Broker, way: str) -> None:
    if way == "files":  # where they are only those learn who may describe the cluster
        told = "tells those who may describe the cluster; give it as data_directory"
        with pytest.raises(NoFilesFault, match=told):
            rows(broker, "reader", way)
    else:
        assert rows(broker, "reader", way) == 10
    assert rows(broker, "reader", way, data_directory=str(broker.data)) == 10


@pytest.mark.parametrize("user", ["onlooker", "writer"])
@pytest.mark.parametrize("way", WAYS)
def test_who_may_not_read_a_topic_gets_no_record_from_its_files(
    broker: Broker, way: str, user: str
) -> None:
    with pytest.raises(DeniedFault, match="TOPIC_AUTHORIZATION_FAILED"):
        rows(broker, user, way, data_directory=str(broker.data))


class Task:
    """What Spark tells a task of itself."""

    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}.get(name)


def test_a_writer_who_may_not_read_is_told_which_right_exactly_once_needs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink.TaskContext, "get", Task)
    schema = StructType().add("value", StringType())
    options = {f"kafka.{name}": text for name, text in broker.client_settings("writer").items()}
    options["topic"] = WRITTEN

    def written(**more: str) -> Any:
        writer = sink.StreamWriter(parse(options | more, is_stream=True), schema)
        return writer.write(iter([pa.record_batch({"value": ["x"]})]))

    with pytest.raises(DeniedFault, match="needs the right to read the topic, too"):
        written()
    assert written(exactlyOnce="false").records == 1
