"""One run of a pipeline: a family that is hurt, clients that are killed, and the judgement."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, TopicPartition

from shmbroker.testing.broker import Broker
from tests.exactly_once import connect, judging
from tests.exactly_once.family import FLAGS, Instance, Weather, crashes
from tests.exactly_once.java import java
from tests.exactly_once.judging import Anomalies
from tests.exactly_once.records import Feeder, Place, Reader, Record, read_all
from tests.exactly_once.report import Report
from tests.exactly_once.topics import AUDIT, BUCKETS, GROUP, IN, LATEST, OUT, PARTITIONS, SUMS
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

Seen = dict[Place, list[Record]]

SETTLE_S = 240.0
FIRST_S = 90.0
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}


@dataclass(frozen=True)
class Pipeline:
    """A kind of client."""

    topics: tuple[str, ...]
    """What comes out; there is a record for each that went in in all but AUDIT and LATEST."""
    command: Callable[[str, str, Path], list[str]]
    """Of an instance, by address, name and a directory of all of them."""
    judge: Callable[[Seen, Seen, list[Instance]], Anomalies]
    """Of what went in and came out."""
    instances: int = 3
    is_connect: bool = False
    """It is fed by files, and has no group."""


def told(instances: list[Instance], letter: str) -> list[str]:
    """The transactions whose end instances printed: `C`, `A`."""
    lines = [line for one in instances for line in one.log.read_text(errors="replace").splitlines()]
    return [line.split(" ")[1] for line in lines if line.startswith(letter + " ")]


def _judge_transactions(fed: Seen, seen: Seen, instances: list[Instance]) -> Anomalies:
    return judging.of_pipeline(fed, seen, told(instances, "C"), told(instances, "A"))


def _judge_streams(fed: Seen, seen: Seen, _instances: list[Instance]) -> Anomalies:
    return judging.of_streams(fed, seen)


def _judge_copy(fed: Seen, seen: Seen, _instances: list[Instance]) -> Anomalies:
    return judging.compare(judging.by_key(fed, IN), judging.by_key(seen, OUT))


def _confluent(address: str, name: str, _directory: Path) -> list[str]:
    return [sys.executable, "-m", "tests.exactly_once.confluent_pipeline", address, name]


def _java(address: str, name: str, _directory: Path) -> list[str]:
    return java("ClientPipeline", address, name)


def _java_848(address: str, name: str, _directory: Path) -> list[str]:
    return java("ClientPipeline", address, name, "consumer")


def _streams(address: str, name: str, directory: Path) -> list[str]:
    return java("StreamsPipeline", address, name, str(directory / name))


PIPELINES = {
    "confluent": Pipeline((OUT, AUDIT, LATEST), _confluent, _judge_transactions),
    "java": Pipeline((OUT, AUDIT, LATEST), _java, _judge_transactions),
    "java-848": Pipeline((OUT, AUDIT, LATEST), _java_848, _judge_transactions),
    "streams": Pipeline((OUT, SUMS, BUCKETS), _streams, _judge_streams),
    "connect": Pipeline((OUT,), connect.command, _judge_copy, instances=2, is_connect=True),
}


def run(kind: str, seed: int, seconds: float, rate: int = 150) -> Report:
    """`rate`: records a second that go in."""
    pipeline = PIPELINES[kind]
    report = Report(seconds)
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as name, Broker(*FLAGS) as broker:
        directory = Path(name)
        clients: list[Instance] = []
        logs: list[str] = []
        try:
            _run(
                pipeline,
                kind,
                Random(seed),
                seconds,
                rate,
                broker,
                directory,
                clients,
                logs,
                report,
            )
        finally:
            for one in clients:
                one.end()
            if report.anomalies or sys.exc_info()[0] is not None:
                kept = Path(tempfile.mkdtemp(prefix="exactly-once-logs-"))
                (kept / "family.log").write_text("".join(logs) + broker.log)
                for one in clients:
                    (kept / one.log.name).write_bytes(one.log.read_bytes())
                report.said.append(f"logs in {kept}")
    return report


def _run(
    pipeline: Pipeline,
    kind: str,
    random: Random,
    seconds: float,
    rate: int,
    broker: Broker,
    directory: Path,
    clients: list[Instance],
    logs: list[str],
    report: Report,
) -> None:
    address = broker.address
    topics = dict.fromkeys(pipeline.topics, PARTITIONS)
    with RawClient(address) as client:
        for topic in (IN, *topics):
            settings = COMPACTED if topic == LATEST else {}
            client.create_topic(topic, PARTITIONS, **settings)
    lines = connect.Lines(directory, rate) if pipeline.is_connect else None
    feeder = None if lines else Feeder(address, rate)
    reader = Reader(address, topics, "read_committed")
    for number in range(pipeline.instances):
        name = f"{kind}-{number}"
        clients.append(Instance(name, pipeline.command(address, name, directory), directory))
    if lines:
        connect.begin(clients[0].name, directory)
    wait_until(lambda: reader.count > 100, "the first records", FIRST_S)
    weather = Weather(broker, clients, random, has_zombies=not lines)
    weather.logs = logs
    weather.begin()
    weather.wait(seconds)
    weather.end()
    if lines:
        fed = lines.finish()
    else:
        assert feeder is not None
        feeder.finish()
        fed = read_all(address, {IN: PARTITIONS})
    report.fed = sum(map(len, fed.values()))
    counted = [one for one in topics if one not in (AUDIT, LATEST)]
    if lines:
        wait_until(
            lambda: any(connect.restart_failed(one.name, directory) for one in clients),
            "a Connect worker",
            SETTLE_S,
        )
    is_whole = _is_whole(reader, clients, counted, report.fed)
    if not is_whole:
        report.said.append(_describe(address))
    for one in clients:
        one.end()
    later = read_all(address, topics)
    whole = sum(map(len, later.values()))
    wait_until(
        lambda: reader.fault or (reader.count >= whole and len(reader.ended) == len(reader.seen)),
        "the reader to see all",
        SETTLE_S,
    )
    live = reader.finish()
    report.came_out = sum(len(found) for place, found in later.items() if place[0] == OUT)
    report.committed = len(told(clients, "C"))
    report.aborted = len(told(clients, "A"))
    report.faults = dict(weather.counts)
    report.said += weather.said
    anomalies = {name: list(cases) for name, cases in pipeline.judge(fed, later, clients).items()}
    for name, cases in judging.of_readers(live, later).items():
        anomalies.setdefault(name, []).extend(cases)
    if not is_whole:
        anomalies["stuck"] = ["not all came out in time"]
    if not lines:
        anomalies["offset"] = _wrong_offsets(address, fed)
    anomalies["crash"] = crashes(weather.log)
    report.anomalies = {name: cases for name, cases in anomalies.items() if cases}


def _is_whole(reader: Reader, clients: list[Instance], topics: list[str], count: int) -> bool:
    """Whether so many records come out of each of the topics within their time."""

    def came_out(topic: str) -> int:
        return sum(len(found) for (name, _), found in list(reader.seen.items()) if name == topic)

    def is_whole() -> bool:
        for one in clients:
            one.look()
        return all(came_out(topic) >= count for topic in topics)

    try:
        wait_until(is_whole, "all records", SETTLE_S)
    except AssertionError:
        return False
    return True


def _describe(address: str) -> str:
    """What there is of transactions and the group, where they get no further."""
    said = []
    for words in (
        ["transaction", "list"],
        ["transaction", "find-hanging"],
        ["group", "describe", GROUP],
    ):
        command = [sys.executable, "-m", "shmbroker", *words, "--bootstrap-server", address]
        done = subprocess.run(command, capture_output=True, text=True)
        said.append(f"{' '.join(words)}:\n{done.stdout}{done.stderr}")
    return "\n".join(said)


def _wrong_offsets(address: str, fed: Seen) -> list[object]:
    """Where the pipeline's group is not at the end of IN: (partition, its offset, the end)."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    asked = [TopicPartition(IN, index) for index in range(PARTITIONS)]
    found = {one.partition: one.offset for one in consumer.committed(asked, 30)}
    consumer.close()
    ends = {index: records[-1][0] + 1 for (_, index), records in fed.items()}
    return [(one, found[one], end) for one, end in ends.items() if found[one] != end]
