"""`shmbroker consume`: records to stdout, as lines, in a format, or as JSON.

Two ways, as with every Kafka client:

* without --group, partitions are read from the place that -o says, and nothing is remembered;
* with --group, partitions are shared with the group's other members, and what has been written to
  stdout is committed (every 5 s and at the end): each record is seen at least once.

Each batch that arrives is written at once: line by line where records trickle, in large pieces
where they don't. `-e` stops at what was the end when the command began.
"""

import json
import select
import sys
from collections.abc import Callable
from typing import Any

import click

from shmbroker.cli.client import ASK_S, Cluster, cluster_options, metadata
from shmbroker.cli.offsets import list_offsets
from shmbroker.cli.outcome import CommandFault, binary, leave_on_sigterm, say, sentence
from shmbroker.cli.output import text_or_base64
from shmbroker.cli.words import (
    EARLIEST,
    LATEST,
    OFFSET,
    SINCE,
    TAIL,
    UNTIL,
    Place,
    compile_format,
    delimiter,
    parse_place,
)

POLL_S = 0.2
"""The longest that Ctrl-C waits."""
BATCH_MAX = 10_000

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode

Partition = tuple[str, int]


@click.command("consume")
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True)
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True)
@click.option(
    "-o",
    "--offset",
    "places",
    metavar="PLACE",
    multiple=True,
    help="earliest, latest, N, -N (the last N of each partition), @TIME (from then), e@TIME (stop "
    "there). TIME: ms since 1970 or 2026-11-21T10:00, UTC.  [default: earliest]",
)
@click.option("-e", "--exit", "is_ending", is_flag=True, help="Stop at the end.")
@click.option("-c", "--count", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--group", metavar="ID", help="As a member of this group.")
@click.option("-f", "--format", "format_text", metavar="FORMAT", help="See below.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line.")
@click.option("-K", "key_delimiter", metavar="DELIMITER", help="Write key, this, value.")
@click.option("-D", "delimiter_text", metavar="DELIMITER", default=r"\n", help=r"[default: \n]")
@click.option("-Z", "--null", "shows_null", is_flag=True, help="Write NULL for null.")
@cluster_options
def command(
    cluster: Cluster,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    places: tuple[str, ...],
    is_ending: bool,
    count: int | None,
    group: str | None,
    format_text: str | None,
    is_json: bool,
    key_delimiter: str | None,
    delimiter_text: str,
    shows_null: bool,
) -> None:
    """Write the records of topics to stdout.

    \b
    shmbroker consume flights                         all, and then what comes
    shmbroker consume flights -o latest               what comes
    shmbroker consume flights -o -5 -e                the last five of each partition
    shmbroker consume flights -o @2026-11-21T10:00 -o e@2026-11-21T11:00 -e
    shmbroker consume flights --group readers         share partitions, remember offsets
    shmbroker consume flights -e --json | jq .value
    shmbroker consume flights -f '%t %p:%o %k = %s\\n'

    \b
    -f  %t topic  %p partition  %o offset  %T timestamp (ms)  %h headers  %% percent sign
        %k key  %K its length  %s value  %S its length  %R its length as 4 bytes
        \\n \\r \\t \\0 \\\\ \\xHH

    Exit status: 0 at the end, after -c, and when the reader of stdout has left; 1 failed;
    130 Ctrl-C.
    """
    try:
        found = [parse_place(text) for text in places]
        write = _writer(format_text, is_json, key_delimiter, delimiter_text, shows_null)
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    leave_on_sigterm()
    starts = [place for place in found if place.kind != UNTIL] or [Place(EARLIEST)]
    stops = [place.number for place in found if place.kind == UNTIL]
    if len(starts) > 1 or len(stops) > 1:
        raise click.UsageError("-o says one place to begin and one e@TIME to stop.")
    if group is not None:
        if partitions or starts[0].kind not in (EARLIEST, LATEST):
            raise click.UsageError(
                "With --group it is -o earliest or latest, for partitions without a committed "
                "offset; `shmbroker group reset-offsets` moves the group."
            )
        _GroupReader(cluster, topics, group, starts[0].kind, is_ending, count, write, stops).run()
    else:
        _Reader(cluster, topics, partitions, starts[0], is_ending, count, write, stops).run()


def _writer(
    format_text: str | None,
    is_json: bool,
    key_delimiter: str | None,
    delimiter_text: str,
    shows_null: bool,
) -> Callable[[list[Any]], bytes]:
    """A function from messages to the bytes for stdout; ValueError for words that mean nothing."""
    end = delimiter(delimiter_text)
    null = b"NULL" if shows_null else b""
    if is_json:
        return lambda messages: b"".join(map(to_json, messages))
    if format_text is not None:
        one = compile_format(format_text, null)
        return lambda messages: b"".join(map(one, messages))
    if key_delimiter is not None:
        middle = delimiter(key_delimiter)

        def with_key(messages: list[Any]) -> bytes:
            parts: list[bytes] = []
            for message in messages:
                key, value = message.key(), message.value()
                parts += (null if key is None else key, middle)
                parts += (null if value is None else value, end)
            return b"".join(parts)

        return with_key

    def plain(messages: list[Any]) -> bytes:
        values = [message.value() for message in messages]
        if None in values:
            values = [null if value is None else value for value in values]
        values.append(b"")
        return end.join(values)

    return plain


def to_json(message: Any) -> bytes:
    """A message as one line of JSON."""
    kind, timestamp = message.timestamp()
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "headers": [
            {"key": name, **text_or_base64("value", content)}
            for name, content in message.headers() or ()
        ],
        **text_or_base64("key", message.key()),
        **text_or_base64("value", message.value()),
    }
    return _encode(record).encode() + b"\n"


def has_left(descriptor: int) -> bool:
    """Whether nobody reads the pipe or socket any more; an idle writer doesn't notice otherwise."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


class _Consuming:
    """The loop that both ways share: poll, drop what lies behind the ends, write."""

    def __init__(
        self,
        cluster: Cluster,
        is_ending: bool,
        count: int | None,
        write: Callable[[list[Any]], bytes],
        stops: list[int],
    ) -> None:
        self.cluster = cluster
        self.is_ending = is_ending
        self.left = count
        """Records still to be written; None: no bound."""
        self.write = write
        self.stop_ms = stops[0] if stops else None
        self.ends: dict[Partition, int] = {}
        """Where partitions end, exclusive; one that isn't in it has no end."""
        self.open: set[Partition] = set()
        """Partitions that are read and have not come to their end."""
        self.is_lost = False
        """The cluster can't be reached, and that was said."""
        self.fatal: Any = None
        """An error that the library doesn't get over, such as a group protocol not served."""
        self.consumer: Any = None

    def make(self, **settings: Any) -> None:
        """Make the consumer."""
        self.consumer = self.cluster.consumer(
            enable_partition_eof=True,
            fetch_wait_max_ms="100",
            # By default a full queue is left alone for a second: 120,000 records a second at most.
            fetch_queue_backoff_ms="5",
            on_error=self._on_error,
            **settings,
        )

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.fatal = error
        elif error.name() == "_ALL_BROKERS_DOWN" and not self.is_lost:
            say(f"cannot reach {self.cluster.servers} any more; trying again")
            self.is_lost = True

    def is_done(self) -> bool:
        return self.left == 0 or not self.open

    def loop(self) -> None:
        """Until it is done; the consumer is closed, whatever happens."""
        from confluent_kafka import KafkaError

        eof = KafkaError._PARTITION_EOF
        consumer, out = self.consumer, binary(sys.stdout)
        is_bounded = self.is_ending or self.stop_ms is not None
        try:
            while not self.is_done():
                first = consumer.poll(POLL_S)
                if self.fatal is not None:
                    raise CommandFault(sentence(self.fatal))
                if first is None:
                    if has_left(out.fileno()):
                        raise BrokenPipeError
                    continue
                batch = [first, *consumer.consume(BATCH_MAX, 0)]
                self.is_lost = False
                messages = [message for message in batch if message.error() is None]
                if is_bounded and messages:
                    messages = [message for message in messages if self._is_wanted(message)]
                if self.left is not None:
                    del messages[self.left :]
                    self.left -= len(messages)
                if messages:
                    out.write(self.write(messages))
                    out.flush()
                    self.written(messages)
                for message in batch:
                    error = message.error()
                    if error is None:
                        continue
                    if error.code() == eof:
                        if self.is_ending:
                            self.open.discard((message.topic(), message.partition()))
                    elif not error.retriable():
                        raise CommandFault(f"{message.topic() or 'consume'}: {sentence(error)}")
        finally:
            consumer.close()

    def _is_wanted(self, message: Any) -> bool:
        partition = message.topic(), message.partition()
        offset = message.offset()
        end = self.ends.get(partition)
        if end is not None and offset >= end - 1:
            self.open.discard(partition)
        if self.stop_ms is not None and message.timestamp()[1] >= self.stop_ms:
            self.ends[partition] = min(offset, self.ends.get(partition, offset))
            self.open.discard(partition)
        return partition in self.open or offset < self.ends.get(partition, 0)

    def written(self, messages: list[Any]) -> None:
        """Told what has reached stdout."""


class _Reader(_Consuming):
    """Partitions from a place, nothing remembered."""

    def __init__(
        self,
        cluster: Cluster,
        topics: tuple[str, ...],
        partitions: tuple[int, ...],
        start: Place,
        *rest: Any,
    ) -> None:
        super().__init__(cluster, *rest)
        self.topics = topics
        self.partitions = partitions
        self.start = start

    def run(self) -> None:
        from confluent_kafka import TopicPartition

        # The library wants the name of a group; nothing is ever committed to it.
        self.make(
            group_id="shmbroker-consume", enable_auto_commit=False, auto_offset_reset=EARLIEST
        )
        wanted = self._wanted()
        firsts = list_offsets(self.cluster, wanted, EARLIEST)
        lasts = list_offsets(self.cluster, wanted, LATEST)
        starts = self._starts(wanted, firsts, lasts)
        if self.is_ending:
            self.ends = lasts
            starts = {key: offset for key, offset in starts.items() if offset < lasts[key]}
        self.open = set(starts)
        self.consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
        self.loop()

    def _wanted(self) -> list[Partition]:
        known = metadata(self.consumer, self.cluster).topics
        wanted = []
        for topic in self.topics:
            if topic not in known:
                raise CommandFault(
                    f"there is no topic {topic}; `shmbroker topic list` shows what is there"
                )
            there = sorted(known[topic].partitions)
            for partition in self.partitions or there:
                if partition not in there:
                    raise CommandFault(
                        f"{topic} has no partition {partition}, only 0 to {len(there) - 1}"
                    )
                wanted.append((topic, partition))
        return wanted

    def _starts(
        self, wanted: list[Partition], firsts: dict[Partition, int], lasts: dict[Partition, int]
    ) -> dict[Partition, int]:
        kind, number = self.start
        if kind == EARLIEST:
            return firsts
        if kind == LATEST:
            return lasts
        if kind == TAIL:
            return {key: max(firsts[key], lasts[key] - number) for key in wanted}
        if kind == OFFSET:
            return {key: min(max(firsts[key], number), lasts[key]) for key in wanted}
        assert kind == SINCE
        found = list_offsets(self.cluster, wanted, number)
        return {key: found[key] if found[key] >= 0 else lasts[key] for key in wanted}


class _GroupReader(_Consuming):
    """A member of a group; what was written is committed."""

    def __init__(
        self, cluster: Cluster, topics: tuple[str, ...], group: str, reset: str, *rest: Any
    ) -> None:
        super().__init__(cluster, *rest)
        self.topics = list(topics)
        self.group = group
        self.reset = reset
        self.is_assigned = False

    def run(self) -> None:
        self.make(
            group_id=self.group,
            auto_offset_reset=self.reset,
            enable_auto_commit=True,
            enable_auto_offset_store=False,
        )
        known = self.consumer.list_topics(timeout=ASK_S).topics
        for topic in self.topics:
            if not topic.startswith("^") and topic not in known:
                self.consumer.close()
                raise CommandFault(
                    f"there is no topic {topic}; `shmbroker topic list` shows what is there"
                )
        self.consumer.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked)
        self.loop()

    def is_done(self) -> bool:
        if self.left == 0:
            return True
        return self.is_assigned and not self.open and (self.is_ending or self.stop_ms is not None)

    def _assigned(self, _consumer: Any, partitions: list[Any]) -> None:
        self.is_assigned = True
        self.open.update((partition.topic, partition.partition) for partition in partitions)

    def _revoked(self, _consumer: Any, partitions: list[Any]) -> None:
        self.open.difference_update((entry.topic, entry.partition) for entry in partitions)
        self.is_assigned = bool(self.open)

    def written(self, messages: list[Any]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        ends = {(message.topic(), message.partition()): message.offset() for message in messages}
        for (topic, partition), offset in ends.items():
            try:
                self.consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset + 1)])
            except KafkaException:
                pass  # taken away meanwhile: its next owner reads it again
