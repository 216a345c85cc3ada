"""Apache Kafka's own programs for groups, offsets and records: the same output here as on Kafka.

KAFKA_ORACLE=host:port names a Kafka 4.2.1 with group.initial.rebalance.delay.ms=0, KAFKA_TOOL is a
command that runs a class of its tools; see tests/processes/test_kafka_tools.py.
"""

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.clients.test_group_behaviour import PATIENCE_S
from tests.processes.test_kafka_tools import NEEDS_KAFKA_TOOLS, TOOLS, run
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = NEEDS_KAFKA_TOOLS

FLAGS = ("--set", "group.initial.rebalance.delay.ms=0")
FIRST_MS = 1_700_000_000_000
GROUP = TOOLS + "consumer.group.ConsumerGroupCommand --bootstrap-server {b} "
RESET = GROUP + "--reset-offsets --group {t}idle --topic {t}g "
OFFSETS = TOOLS + "GetOffsetShell --bootstrap-server {b} --topic {t}g "
CONSOLE = TOOLS + "consumer.ConsoleConsumer --bootstrap-server {b} --topic {t}g --timeout-ms 20000 "

SCRIPTS = {
    "groups": [
        GROUP + "--describe --group {t}idle",
        GROUP + "--describe --group {t}idle --state",
        GROUP + "--describe --group {t}idle --members --verbose",
        GROUP + "--describe --group {t}live",
        GROUP + "--describe --group {t}live --state",
        GROUP + "--describe --group {t}live --members --verbose",
        GROUP + "--describe --group {t}none",
        GROUP + "--delete --group {t}live",
        GROUP + "--delete --group {t}none",
        GROUP + "--delete-offsets --group {t}live --topic {t}g",
        GROUP + "--delete-offsets --group {t}idle --topic {t}g:0",
        GROUP + "--delete-offsets --group {t}idle --topic {t}none",
        GROUP + "--describe --group {t}idle --offsets",
        GROUP + "--validate-regex {t}.*",
        GROUP + "--delete --group {t}idle",
        GROUP + "--describe --group {t}idle",
    ],
    "resets": [
        RESET + "--to-earliest --dry-run",
        RESET + "--to-latest --execute",
        RESET + "--shift-by -3 --execute",
        RESET + "--shift-by -300 --dry-run",
        RESET + "--to-offset 4 --execute",
        RESET + "--to-offset 400 --dry-run",
        RESET + "--to-datetime 2023-11-14T22:13:20.005Z --execute",
        RESET + "--by-duration PT1S --dry-run",
        RESET + "--to-current --export --dry-run",
        GROUP + "--reset-offsets --group {t}idle --from-file {f}offsets.csv --execute",
        GROUP + "--reset-offsets --group {t}idle --topic {t}g:1 --to-earliest --execute",
        GROUP + "--reset-offsets --group {t}live --topic {t}g --to-earliest --execute",
        GROUP + "--reset-offsets --group {t}idle --topic {t}none --to-earliest --execute",
        GROUP + "--describe --group {t}idle",
        TOOLS + "StreamsResetter --bootstrap-server {b} --application-id {t}idle "
        "--input-topics {t}g --force",
        GROUP + "--describe --group {t}idle",
    ],
    "records": [
        OFFSETS,
        OFFSETS + "--time -2",
        OFFSETS + "--time -3",
        OFFSETS + f"--time {FIRST_MS + 4}",
        CONSOLE + "--partition 1 --offset 7 --formatter-property print.offset=true "
        "--formatter-property print.timestamp=true --formatter-property print.headers=true "
        "--formatter-property print.key=true --max-messages 3",
        CONSOLE + "--group {t}console --from-beginning --max-messages 30",
        GROUP + "--describe --group {t}console",
        TOOLS + "DeleteRecordsCommand --bootstrap-server {b} --offset-json-file {f}delete.json",
        OFFSETS + "--time earliest",
        OFFSETS + "--time latest --partitions 0,2",
        TOOLS + "DeleteRecordsCommand --bootstrap-server {b} --offset-json-file {f}beyond.json",
        CONSOLE + "--partition 0 --offset earliest --max-messages 2",
    ],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@contextmanager
def scene(address: str, prefix: str) -> Iterator[None]:
    """A topic of 3 partitions with 10 records each, a group with offsets, and one with a member."""
    topic = prefix + "g"
    with RawClient(address) as client:
        client.create_topic(topic, 3)
    producer = Producer({"bootstrap.servers": address})
    for partition in range(3):
        for number in range(10):
            producer.produce(
                topic,
                b"%d" % number,
                b"key",
                partition=partition,
                timestamp=FIRST_MS + number,
                headers=[("h", b"1")],
            )
    assert producer.flush(PATIENCE_S) == 0
    settings = {
        "bootstrap.servers": address,
        "client.id": "somebody",
        "enable.auto.commit": False,
        "max.poll.interval.ms": 3_600_000,
    }
    for name in ("idle", "live"):
        consumer = Consumer(settings | {"group.id": prefix + name})
        consumer.subscribe([topic])

        def owns_all(consumer: Consumer = consumer) -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 3

        wait_until(owns_all, "an assignment", PATIENCE_S)
        wanted = [TopicPartition(topic, partition, 5 + partition) for partition in range(3)]
        consumer.commit(offsets=wanted, asynchronous=False)
        if name == "idle":
            consumer.close()
    try:
        yield
    finally:
        consumer.close()


def comparable(text: str) -> list[str]:
    """Without the member's id, and without an order, which is that of a hash table."""
    text = re.sub(r"somebody-[0-9a-f-]{36}", "somebody-id", text)
    text = re.sub(r"Offset: \d+ Timestamp: \d+", "a moment", text)
    return sorted(re.sub(r" +", " ", line).rstrip() for line in text.splitlines())


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs_print_the_same(broker: Broker, tmp_path: Path, name: str) -> None:
    prefix = f"java-{os.getpid()}-{clock.now_ms()}-"
    topic = prefix + "g"
    (tmp_path / "offsets.csv").write_text(f'"{topic}",0,1\n"{topic}",2,9\n')
    for file, offset in (("delete", 4), ("beyond", 40)):
        rows = [{"topic": topic, "partition": 0, "offset": offset}]
        (tmp_path / f"{file}.json").write_text(json.dumps({"partitions": rows, "version": 1}))

    def printed(address: str) -> list[str]:
        with scene(address, prefix):
            return run(SCRIPTS[name], address, prefix, f"{tmp_path}/")

    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(printed, (os.environ["KAFKA_ORACLE"], broker.address))
    different = [
        f"Kafka:\n{their}\nhere:\n{our}"
        for their, our in zip(theirs, ours, strict=True)
        if comparable(their) != comparable(our)
    ]
    assert not different, "\n".join(different)
