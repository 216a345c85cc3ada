"""`shmbroker bench`: how fast a cluster takes records, gives them back, and both in turn.

What is measured is the cluster *and* one client process on this machine: librdkafka, and a Python
loop of 1.5 to 2.5 µs a record. For figures of the broker alone see `perf/`.

Latencies are of single records, from the call that sends them to the delivery report, or to the
consumer's hand; at most `SAMPLES_MAX` of them are kept, evenly spread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from shmbroker import clock
from shmbroker.cli.client import (
    CHANGE_S,
    TargetCluster,
    cluster_options,
    json_option,
    metadata,
    waited,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.offsets import list_offsets
from shmbroker.cli.outcome import CommandFault, say, sentence
from shmbroker.cli.output import print_json
from shmbroker.cli.produce import COMPRESSIONS
from shmbroker.cli.words import EARLIEST, LATEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

SAMPLES_MAX = 100_000
STALL_S = 20.0
PERCENTILES = (50, 95, 99, 99.9, 100)
WAITING_MAX = 50_000
STAMP_BYTES = 8


@click.group("bench", cls=HintingGroup)
def command() -> None:
    """Measure a cluster from here, through one client.

    \b
    shmbroker bench produce --records 1000000 --size 100
    shmbroker bench consume --topic flights
    shmbroker bench end-to-end --rate 1000
    """


def _shared(function: Any) -> Any:
    for option in (
        json_option,
        click.option(
            "-z",
            "--compression",
            type=click.Choice(COMPRESSIONS),
            default="none",
            show_default=True,
            help="How batches are compressed.",
        ),
        click.option(
            "--acks",
            type=click.Choice(["all", "-1", "1", "0"]),
            default="all",
            show_default=True,
            help="Replicas that must have a record before it counts.",
        ),
        click.option(
            "--size",
            metavar="BYTES",
            type=click.IntRange(STAMP_BYTES),
            default=100,
            show_default=True,
            help="Size of each value.",
        ),
        click.option(
            "-p",
            "--partitions",
            metavar="N",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Partitions of the topic that is made.",
        ),
        click.option(
            "--topic",
            help="Use this topic and keep it.  [default: one is made, and deleted at the end]",
        ),
    ):
        function = option(function)
    return cluster_options(function)


@command.command()
@click.option(
    "--records",
    metavar="N",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="Number of records to send.",
)
@_shared
def produce(
    cluster: TargetCluster,
    topic: str | None,
    records: int,
    size: int,
    partitions: int,
    acks: str,
    compression: str,
    as_json: bool,
) -> None:
    """Produce records as fast as the cluster takes them.

    \b
    shmbroker bench produce
    shmbroker bench produce --records 2000000 --size 1000 -p 4 -z lz4 --json
    """
    with _Topic(cluster, topic, partitions) as name:
        producer = _producer(cluster, acks, compression, linger_ms="5")
        figures = _produce(producer, name, records, size)
    _show("produce", figures, as_json)


@command.command()
@click.option("--topic", required=True, help="The topic to read, from its beginning.")
@click.option("--records", metavar="N", type=click.IntRange(1), help="Stop after N records.")
@json_option
@cluster_options
def consume(cluster: TargetCluster, topic: str, records: int | None, as_json: bool) -> None:
    """Consume all that a topic holds, as fast as it comes.

    \b
    shmbroker bench consume --topic flights
    shmbroker bench consume --topic flights --records 1000000 --json
    """
    admin = cluster.admin()
    known = metadata(admin, cluster).topics
    if topic not in known:
        raise CommandFault(f"there is no topic {topic}; `shmbroker topic list` shows what is there")
    partitions = [(topic, number) for number in known[topic].partitions]
    firsts = list_offsets(cluster, partitions, EARLIEST, admin)
    lasts = list_offsets(cluster, partitions, LATEST, admin)
    there = sum(lasts[key] - firsts[key] for key in partitions)
    _show("consume", _consume(cluster, firsts, lasts, min(there, records or there)), as_json)


@command.command("end-to-end")
@click.option(
    "--records",
    metavar="N",
    type=click.IntRange(1),
    default=5000,
    show_default=True,
    help="Number of records to send.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Records a second.",
)
@_shared
def end_to_end(
    cluster: TargetCluster,
    topic: str | None,
    records: int,
    rate: int,
    size: int,
    partitions: int,
    acks: str,
    compression: str,
    as_json: bool,
) -> None:
    """Measure the time from sending a record to having it from a consumer, at a steady rate.

    \b
    shmbroker bench end-to-end
    shmbroker bench end-to-end --rate 5000 --records 50000 --json
    """
    with _Topic(cluster, topic, partitions) as name:
        producer = _producer(cluster, acks, compression, linger_ms="0")
        figures = _end_to_end(cluster, producer, name, records, rate, size)
    _show("end-to-end", figures, as_json)


class _Topic:
    """`with _Topic(…) as name`: the named one, or one of our own that goes afterwards."""

    def __init__(self, cluster: TargetCluster, name: str | None, partitions: int) -> None:
        self.is_ours = name is None
        self.name = name or f"shmbroker-bench-{os.urandom(4).hex()}"
        self.partitions = partitions
        self.cluster = cluster
        self.admin = cluster.admin()

    def __enter__(self) -> str:
        from confluent_kafka.admin import NewTopic

        known = metadata(self.admin, self.cluster).topics
        if self.name not in known:
            wanted = NewTopic(self.name, num_partitions=self.partitions, replication_factor=-1)
            made = self.admin.create_topics([wanted], request_timeout=CHANGE_S)
            waited(made[self.name], f"topic {self.name} was not created")
        return self.name

    def __exit__(self, *_: object) -> None:
        if self.is_ours:
            self.admin.delete_topics([self.name], request_timeout=CHANGE_S)[self.name].result()


def _producer(cluster: TargetCluster, acks: str, compression: str, linger_ms: str) -> Any:
    return cluster.producer(
        acks=acks,
        compression_type=compression,
        linger_ms=linger_ms,
        queue_buffering_max_messages="1000000",
        message_timeout_ms="30000",
    )


class _Progress:
    """A bar on stderr if that is a terminal."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, unit=" records", unit_scale=True, disable=None)
        self._done = 0

    def to(self, done: int) -> None:
        self._bar.update(done - self._done)
        self._done = done

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _reports(counts: list[int], latencies: list[float], every: int) -> Callable[..., None]:
    """A delivery callback: counts[0] delivered, counts[1] not; latencies in seconds."""
    reasons: set[str] = set()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            counts[1] += 1
            if not reasons:
                reasons.add(sentence(error))
                say(f"not delivered: {sentence(error)}")
            return
        counts[0] += 1
        if counts[0] % every == 0:
            latencies.append(message.latency() or 0.0)

    return delivered


def _produce(producer: Producer, topic: str, records: int, size: int) -> dict[str, Any]:
    # Half random, half not: codecs have something to do, and something to find.
    value = os.urandom(size // 2) + b"x" * (size - size // 2)
    counts, latencies = [0, 0], list[float]()
    delivered = _reports(counts, latencies, max(1, records // SAMPLES_MAX))
    send, poll = producer.produce, producer.poll
    began, sent = clock.monotonic(), 0
    with _Progress(records) as progress:
        while sent < records:
            try:
                for _ in range(min(1000, records - sent)):
                    send(topic, value, on_delivery=delivered)
                    sent += 1
            except BufferError:
                poll(0.05)  # it waits for room among the library's bytes
            poll(0)
            while len(producer) > WAITING_MAX:
                poll(0.05)
            progress.to(counts[0])
        while producer.flush(0.2):
            progress.to(counts[0])
        progress.to(counts[0])
    figures = _figures(counts[0], counts[0] * size, clock.monotonic() - began, latencies)
    if counts[1]:
        raise CommandFault(f"{counts[1]} of {records} records were not delivered")
    return figures


def _consumer(cluster: TargetCluster, starts: dict[tuple[str, int], int]) -> Any:
    from confluent_kafka import TopicPartition

    consumer = cluster.consumer(
        group_id="shmbroker-bench",
        enable_auto_commit=False,
        fetch_wait_max_ms="100",
        fetch_queue_backoff_ms="5",
    )
    consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
    return consumer


def _consume(
    cluster: TargetCluster,
    firsts: dict[tuple[str, int], int],
    lasts: dict[tuple[str, int], int],
    records: int,
) -> dict[str, Any]:
    consumer = _consumer(cluster, {key: at for key, at in firsts.items() if at < lasts[key]})
    began = heard = clock.monotonic()
    count = size = 0
    try:
        with _Progress(records) as progress:
            while count < records:
                first = consumer.poll(0.1)
                rest = consumer.consume(min(10_000, records - count), 0) if first else []
                messages = [first, *rest] if first else []
                values = [message.value() for message in messages if message.error() is None]
                count += len(values)
                size += sum(len(value) for value in values if value is not None)
                progress.to(count)
                if values:
                    heard = clock.monotonic()
                elif clock.monotonic() - heard > STALL_S:
                    # Compaction and markers leave gaps: fewer records than offsets.
                    break
    finally:
        consumer.close()
    return _figures(count, size, heard - began, [])


def _end_to_end(
    cluster: TargetCluster,
    producer: Producer,
    topic: str,
    records: int,
    rate: int,
    size: int,
) -> dict[str, Any]:
    known = metadata(producer, cluster).topics[topic].partitions
    starts = list_offsets(cluster, [(topic, number) for number in known], LATEST)
    consumer = _consumer(cluster, starts)
    padding = b"x" * (size - STAMP_BYTES)
    mark = os.urandom(4).hex().encode()
    latencies: list[float] = []
    sent = 0
    now_ns = clock.monotonic_ns
    began_ns = heard_ns = 0
    try:
        consumer.poll(1.0)  # connections stand before the first record goes
        began_ns = heard_ns = now_ns()
        with _Progress(records) as progress:
            while len(latencies) < records:
                due = min(records, 1 + (now_ns() - began_ns) * rate // 1_000_000_000)
                try:
                    while sent < due:
                        stamp = now_ns().to_bytes(STAMP_BYTES, "big")
                        producer.produce(topic, stamp + padding, mark)
                        sent += 1
                except BufferError:
                    pass  # the library holds as much as it may: those that are due go later
                producer.poll(0)
                message = consumer.poll(0.0005)
                if message is not None and message.error() is None and message.key() == mark:
                    heard_ns = now_ns()
                    sent_ns = int.from_bytes(message.value()[:STAMP_BYTES], "big")
                    latencies.append((heard_ns - sent_ns) / 1e9)
                    if len(latencies) % 100 == 0:
                        progress.to(len(latencies))
                elif now_ns() - heard_ns > STALL_S * 1e9:
                    raise CommandFault(
                        f"{records - len(latencies)} of {records} records did not come back"
                    )
    finally:
        consumer.close()
    return _figures(records, records * size, (heard_ns - began_ns) / 1e9, latencies)


def _figures(count: int, size: int, seconds: float, latencies: list[float]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "records": count,
        "bytes": size,
        "seconds": round(seconds, 3),
        "records_per_second": round(count / seconds) if seconds else 0,
        "mb_per_second": round(size / seconds / 1e6, 2) if seconds else 0,
    }
    if latencies:
        latencies.sort()
        figures["latency_ms"] = {
            f"p{percent:g}" if percent < 100 else "max": round(
                latencies[min(int(len(latencies) * percent / 100), len(latencies) - 1)] * 1e3, 3
            )
            for percent in PERCENTILES
        }
    return figures


def _show(what: str, figures: dict[str, Any], as_json: bool) -> None:
    sys.stderr.flush()
    if as_json:
        print_json({"bench": what, **figures})
        return
    click.echo(
        f"{what}: {figures['records']} records in {figures['seconds']} s, "
        f"{figures['records_per_second']} records/s, {figures['mb_per_second']} MB/s"
    )
    if "latency_ms" in figures:
        shown = "  ".join(f"{name} {value}" for name, value in figures["latency_ms"].items())
        click.echo(f"latency, ms: {shown}")
