"""`shmbroker consume`: records to stdout, as lines, in a format, or as JSON.

Two ways, as with every Kafka client:

* without --group, partitions are read from the place that -o says, and nothing is remembered;
* with --group, partitions are shared with the group's other members, and what has been written to
  stdout is committed (every 5 s and at the end): each record is seen at least once.

Each batch that arrives is written at once: line by line where records trickle, in large pieces
where they don't. `-e` stops at what was the end when the command began.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click

from shmbroker.cli.client import Cluster, cluster_options, is_pattern, matching, metadata
from shmbroker.cli.offsets import list_offsets
from shmbroker.cli.outcome import CommandFault, binary, leave_on_sigterm, say, sentence
from shmbroker.cli.output import print_json
from shmbroker.cli.record_json import to_json, to_kcat_json
from shmbroker.cli.words import (
    EARLIEST,
    INTERNAL,
    LATEST,
    OFFSET,
    SINCE,
    TAIL,
    UNTIL,
    Place,
    compile_format,
    delimiter,
    hides_internal,
    parse_moment_of,
    parse_place,
    to_posix,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

POLL_S = 0.2
"""The longest that Ctrl-C waits."""
BATCH_MAX = 10_000
RANGES_MAX = 3
"""More partitions are counted, not named."""
QUIET_POLLS = 3
"""So many empty polls before it is said what a group waits for."""

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

Partition = tuple[str, int]


@click.command("consume")
@click.argument("topics", metavar="TOPIC…", nargs=-1)
@click.option(
    "-t",
    "--topic",
    "named",
    metavar="TOPIC",
    multiple=True,
    help="The same as TOPIC, for kcat's sake.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.  [default: all]",
)
@click.option(
    "-o",
    "--offset",
    "places",
    metavar="PLACE",
    multiple=True,
    help="Where to begin: earliest, latest, N, -N (the last N of each partition), @TIME. "
    "e@TIME: where to stop. TIME: ms since 1970 or 2026-11-21T10:00, UTC.  [default: earliest]",
)
@click.option("-e", "--exit", "is_ending", is_flag=True, help="Stop at the end.")
@click.option("-c", "--count", metavar="N", type=click.IntRange(1), help="Stop after N records.")
@click.option(
    "-G",
    "--group",
    metavar="ID",
    help="Share the partitions with the other members of this group, and commit offsets.",
)
@click.option(
    "--isolation",
    type=click.Choice((READ_COMMITTED, READ_UNCOMMITTED)),
    default=READ_COMMITTED,
    help="Read what is committed, up to the first open transaction; or all.  "
    "[default: read_committed]",
)
@click.option("-f", "--format", "format_text", metavar="FORMAT", help="Write this; see above.")
@click.option("--json", "is_json", is_flag=True, help="Write one JSON object a line.")
@click.option("-J", "is_kcat_json", is_flag=True, help="The same with kcat's names: payload, ts.")
@click.option(
    "-K", "key_delimiter", metavar="DELIMITER", help="Write the key and DELIMITER before the value."
)
@click.option(
    "-D",
    "delimiter_text",
    metavar="DELIMITER",
    default=r"\n",
    help=r"Write this after each record.  [default: \n]",
)
@click.option("-Z", "--null", "shows_null", is_flag=True, help="Write NULL for null.")
@click.option(
    "-Q", "is_asking", is_flag=True, help="Only print the offset at TOPIC:PARTITION:TIME."
)
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what the command waits for.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@click.option(
    "-u", is_flag=True, expose_value=False, help="For kcat's sake: output is never held back."
)
@cluster_options
def command(
    cluster: Cluster,
    topics: tuple[str, ...],
    named: tuple[str, ...],
    partitions: tuple[int, ...],
    places: tuple[str, ...],
    is_ending: bool,
    count: int | None,
    group: str | None,
    isolation: str,
    format_text: str | None,
    is_json: bool,
    is_kcat_json: bool,
    key_delimiter: str | None,
    delimiter_text: str,
    shows_null: bool,
    is_asking: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write the records of topics to stdout.

    \b
    shmbroker consume flights                         all, and then what comes
    shmbroker consume flights -o latest               what comes
    shmbroker consume flights -o -5 -e                the last five of each partition
    shmbroker consume flights -o @2026-11-21T10:00 -o e@2026-11-21T11:00 -e
    shmbroker consume flights --group readers         share partitions, remember offsets
    shmbroker consume 'fl*' -e                        all topics whose names begin so
    shmbroker consume flights -e --json | jq .value
    shmbroker consume flights -f '%t %p:%o %k = %s\\n'
    shmbroker consume -Q flights:0:2026-11-21T10:00   the first offset from then on

    \b
    -f  %t topic  %p partition  %o offset  %T timestamp (ms)  %h headers  %% percent sign
        %k key  %K its length  %s value  %S its length  %R its length as 4 bytes
        \\n \\r \\t \\0 \\\\ \\xHH

    Exit status: 0 at the end, after -c, and when the reader of stdout has left; 1 failed;
    130 Ctrl-C.
    """
    words = topics + named
    if not words:
        raise click.UsageError("Say at least one TOPIC.")
    if is_asking:
        _print_offsets(cluster, words, is_json or is_kcat_json)
        return
    try:
        found = [parse_place(text) for text in places]
        write = _writer(
            format_text, is_json, is_kcat_json, key_delimiter, delimiter_text, shows_null
        )
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    leave_on_sigterm()
    starts = [place for place in found if place.kind != UNTIL] or [Place(EARLIEST)]
    stops = [place.number for place in found if place.kind == UNTIL]
    if len(starts) > 1 or len(stops) > 1:
        raise click.UsageError("-o takes one place to begin and one e@TIME to stop.")
    bounds = _Bounds(is_ending, count, stops[0] if stops else None, isolation)
    notes = Notes(is_wanted=not quiet, is_talkative=not quiet and (verbose or sys.stderr.isatty()))
    if group is not None:
        if partitions or starts[0].kind not in (EARLIEST, LATEST):
            raise click.UsageError(
                "With --group it is -o earliest or latest, for partitions without a committed "
                "offset; `shmbroker group reset-offsets` moves the group."
            )
        _GroupReader(cluster, words, group, starts[0].kind, bounds, write, notes).run()
    else:
        _Reader(cluster, words, partitions, starts[0], bounds, write, notes).run()


def _print_offsets(cluster: Cluster, words: tuple[str, ...], as_json: bool) -> None:
    """The first offset from a moment on, of partitions; -1 where no record is as new."""
    try:
        asked = [parse_moment_of(word) for word in words]
    except ValueError as refusal:
        raise click.UsageError(f"-Q: {refusal}.") from None
    admin = cluster.admin()
    known = metadata(admin, cluster).topics
    rows = []
    for topic, partition, at in asked:
        wanted = partitions_of(known, topic, () if partition is None else (partition,))
        for key, offset in list_offsets(cluster, wanted, at, admin).items():
            rows.append({"topic": key[0], "partition": key[1], "offset": offset})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(f"{row['topic']} [{row['partition']}] offset {row['offset']}")


class _Bounds(NamedTuple):
    """When to stop, and what of transactions is read."""

    is_ending: bool
    """At what is the end when the command begins."""
    count_max: int | None
    """After so many records."""
    stop_ms: int | None
    """Before the first record that is as new."""
    isolation: str


class Notes(NamedTuple):
    """What may be said on stderr beside errors."""

    is_wanted: bool
    """What changes what comes out."""
    is_talkative: bool
    """What is waited for."""

    def tell(self, text: str) -> None:
        """Say what a user has to know."""
        if self.is_wanted:
            say(text)

    def explain(self, text: str) -> None:
        """Say why nothing comes."""
        if self.is_talkative:
            say(text)


def _writer(
    format_text: str | None,
    is_json: bool,
    is_kcat_json: bool,
    key_delimiter: str | None,
    delimiter_text: str,
    shows_null: bool,
) -> Callable[[list[Any]], bytes]:
    """A function from messages to the bytes for stdout; ValueError for words that mean nothing."""
    forms = (format_text is not None, is_json, is_kcat_json, key_delimiter is not None)
    if sum(forms) > 1:
        raise ValueError("-f, --json, -J and -K exclude each other")
    end = delimiter(delimiter_text)
    null = b"NULL" if shows_null else b""
    if is_json or is_kcat_json:
        to_line = to_json if is_json else to_kcat_json
        return lambda messages: b"".join(map(to_line, messages))
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


def has_left(descriptor: int) -> bool:
    """Whether nobody reads the pipe or socket any more; an idle writer doesn't notice otherwise."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def is_awaited(message: Any) -> bool:
    """Whether an error only says that no topic matches a pattern yet."""
    is_unknown = message.error().name() == "UNKNOWN_TOPIC_OR_PART"
    return is_unknown and str(message.topic()).startswith("^")


class _Consuming:
    """The loop that both ways share: poll, drop what lies behind the ends, write."""

    def __init__(
        self,
        cluster: Cluster,
        bounds: _Bounds,
        write: Callable[[list[Any]], bytes],
        notes: Notes,
    ) -> None:
        self.cluster = cluster
        self.is_ending = bounds.is_ending
        self.left = bounds.count_max
        """Records still to be written; None: no bound."""
        self.stop_ms = bounds.stop_ms
        self.isolation = bounds.isolation
        self.write = write
        self.notes = notes
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
            isolation_level=self.isolation,
            fetch_wait_max_ms="100",
            # By default a full queue is left alone for a second: 120,000 records a second at most.
            fetch_queue_backoff_ms="5",
            on_error=self._on_error,
            **settings,
        )

    def _on_error(self, error: KafkaError) -> None:
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
                    self.idle()
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
                    elif not error.retriable() and not is_awaited(message):
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

    def idle(self) -> None:
        """Told that nothing came for POLL_S."""


def partitions_of(
    known: Mapping[str, Any], topic: str, numbers: Iterable[int] = ()
) -> list[Partition]:
    """These partitions of a topic, or all of them; CommandFault for one that isn't there."""
    if topic not in known:
        raise CommandFault(f"there is no topic {topic}; `shmbroker topic list` shows what is there")
    there = sorted(known[topic].partitions)
    for number in numbers:
        if number not in there:
            raise CommandFault(f"{topic} has no partition {number}, only 0 to {len(there) - 1}")
    return [(topic, number) for number in numbers or there]


def outside(
    number: int, firsts: Mapping[Partition, int], lasts: Mapping[Partition, int], is_ending: bool
) -> Iterator[str]:
    """What to say where an offset to begin at is not in the log: behind its end, before its start.

    The end itself is the place of the next record, and nothing is said of it.
    """
    beyond = [key for key in lasts if number > lasts[key]]
    before = [key for key in firsts if number < firsts[key]]
    if beyond:
        then = "nothing to read there" if is_ending else "waiting for new records"
        yield f"offset {number} is beyond the end of {_ranges(beyond, firsts, lasts)}: {then}"
    if before:
        yield (
            f"offset {number} is not in {_ranges(before, firsts, lasts)} any more: "
            "beginning at the first that is"
        )


def _ranges(
    keys: list[Partition], firsts: Mapping[Partition, int], lasts: Mapping[Partition, int]
) -> str:
    """ "t-0 (offsets 0 to 4)", the first of these, and how many more there are."""
    shown = []
    for key in sorted(keys)[:RANGES_MAX]:
        first, last = firsts[key], lasts[key]
        held = f"offsets {first} to {last - 1}" if first < last else f"empty, next offset {last}"
        shown.append(f"{key[0]}-{key[1]} ({held})")
    if len(keys) > RANGES_MAX:
        shown.append(f"{len(keys) - RANGES_MAX} more")
    return ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0]


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
        known = metadata(self.consumer, self.cluster).topics
        wanted = [
            partition
            for topic in matching(self.topics, known, "topic")
            for partition in partitions_of(known, topic, self.partitions)
        ]
        firsts = list_offsets(self.cluster, wanted, EARLIEST)
        is_committed = self.isolation == READ_COMMITTED
        lasts = list_offsets(self.cluster, wanted, LATEST, is_committed=is_committed)
        starts = self._starts(wanted, firsts, lasts)
        if self.start.kind == OFFSET:
            for text in outside(self.start.number, firsts, lasts, self.is_ending):
                self.notes.tell(text)
        if self.is_ending:
            self.ends = lasts
            starts = {key: offset for key, offset in starts.items() if offset < lasts[key]}
        self.open = set(starts)
        self.consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
        self.loop()

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
        self.quiet_polls = 0

    def run(self) -> None:
        settings = {"topic_blacklist": INTERNAL} if hides_internal(self.topics) else {}
        if any(map(is_pattern, self.topics)):
            settings["topic_metadata_refresh_interval_ms"] = "10000"
        self.make(
            group_id=self.group,
            auto_offset_reset=self.reset,
            enable_auto_commit=True,
            enable_auto_offset_store=False,
            **settings,
        )
        try:
            subscription = self._subscription()
        except BaseException:
            self.consumer.close()
            raise
        self.consumer.subscribe(subscription, on_assign=self._assigned, on_revoke=self._revoked)
        self.loop()

    def _subscription(self) -> list[str]:
        """The topics as librdkafka takes them: names, and regular expressions ("^…").

        CommandFault for a name that isn't there, and for a pattern without a topic if that would
        never end.
        """
        known = metadata(self.consumer, self.cluster).topics
        subscription = []
        for word in self.topics:
            try:
                subscription.append(to_posix(word) if is_pattern(word) else word)
            except ValueError as refusal:
                raise click.UsageError(f"{refusal}.") from None
            try:
                matching([word], known, "topic")
            except CommandFault:
                if self.is_ending or not is_pattern(word):
                    raise
                self.notes.tell(f"no topic matches {word} yet; waiting for one")
        return subscription

    def idle(self) -> None:
        self.quiet_polls += 1
        if self.quiet_polls == QUIET_POLLS and not self.is_assigned:
            self.notes.explain(
                f"waiting for group {self.group} to share out partitions: its broker gives other "
                "members group.initial.rebalance.delay.ms to join, 3 s by default "
                "(-X group.protocol=consumer does without)"
            )

    def is_done(self) -> bool:
        if self.left == 0:
            return True
        return self.is_assigned and not self.open and (self.is_ending or self.stop_ms is not None)

    def _assigned(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.is_assigned = True
        names = [f"{entry.topic}-{entry.partition}" for entry in partitions]
        self.notes.explain(
            f"group {self.group} gave us {', '.join(names) or 'no partition: others have them'}"
        )
        self.open.update((partition.topic, partition.partition) for partition in partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[Any]) -> None:
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
