"""`shmbroker produce`: records from lines, or from JSON, on stdin or in a file.

What has arrived is handed over at once, so a slow source is passed on line by line; a fast one in
pieces of up to 1 MiB, which become large batches. Nothing is read ahead beyond what librdkafka may
hold (`WAITING_MAX`, `WAITING_BYTES_MAX`): a full cluster slows the source down.
"""

from __future__ import annotations

import os
import select
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from shmbroker.cli.client import PLAINTEXT, TargetCluster, cluster_options, metadata, pairs
from shmbroker.cli.outcome import CommandFault, binary, leave_on_sigterm, say, sentence
from shmbroker.cli.record_json import from_json
from shmbroker.cli.words import delimiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

READ_BYTES = 1 << 20
WAITING_MAX = 200_000
WAITING_BYTES_MAX = 256 << 20
"""Records, and bytes reckoned by the largest record so far, that may wait for their delivery."""

DELIVERY_MS = "30000"
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@click.command("produce")
@click.argument("topic", metavar="TOPIC", required=False)
@click.option("-t", "--topic", "named", metavar="TOPIC", help="The same as TOPIC, for kcat's sake.")
@click.option("-k", "--key", help="Key of every record.")
@click.option(
    "-K",
    "key_delimiter",
    metavar="DELIMITER",
    help="Split each line into key and value at DELIMITER.",
)
@click.option(
    "--keyless",
    is_flag=True,
    help="With -K: a line without DELIMITER is a value without a key.  [default: it is an error]",
)
@click.option(
    "-D",
    "delimiter_text",
    metavar="DELIMITER",
    default=r"\n",
    help=r"End of each record.  [default: \n]",
)
@click.option(
    "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Header of every record; repeatable."
)
@click.option(
    "-p",
    "--partition",
    metavar="N",
    type=click.IntRange(-1),
    help="Partition of every record.  [default: by key, else any]",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    help="How batches are compressed.  [default: none]",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "-1", "1", "0"]),
    default="all",
    help="Replicas that must have a record before it counts as delivered.  [default: all]",
)
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Treat empty values as null.")
@click.option("-c", "--count", metavar="N", type=click.IntRange(1), help="Stop after N records.")
@click.option("-l", "--file", type=click.File("rb"), help="Read this file instead of stdin.")
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, see above.")
@click.option(
    "--print-offsets", is_flag=True, help="Print partition and offset of each record on stdout."
)
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what was delivered where.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@cluster_options
def command(
    cluster: TargetCluster,
    topic: str | None,
    named: str | None,
    key: str | None,
    key_delimiter: str | None,
    keyless: bool,
    delimiter_text: str,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    empty_is_null: bool,
    count: int | None,
    file: BinaryIO | None,
    is_json: bool,
    print_offsets: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Make a record of each line of stdin, or of a file.

    \b
    seq 10 | shmbroker produce flights
    echo AA:late | shmbroker produce flights -K : -H source=radar
    shmbroker produce flights -l lines.txt -z zstd
    find . -print0 | shmbroker produce files -D '\\0'
    shmbroker consume flights -e --json | shmbroker produce copy --json

    A JSON object has value, and may have key, headers ({name: text} or [{key, value}]), partition
    and timestamp (ms). Bytes that are no text go into value_base64 or key_base64; a value that is
    neither text nor null is written as JSON. What `consume -J` prints is read as well.

    A key decides the partition, as in Java's clients. Exit status: 0 all records were delivered,
    1 some were not.
    """
    try:
        end = delimiter(delimiter_text)
        key_end = delimiter(key_delimiter) if key_delimiter is not None else None
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    name = _one_topic(topic, named)
    are_told = print_offsets or verbose
    _refuse_contradictions(key, key_end, acks, is_json=is_json, are_told=are_told)
    additions = _Additions(key, pairs(headers, "-H"), empty_is_null)
    places = Places(name, print_offsets) if are_told else None
    producer = cluster.producer(**_settings(acks, compression, are_told=are_told))
    if cluster.security != PLAINTEXT:
        metadata(producer, cluster)  # what is wrong with it is known now, not after DELIVERY_MS
    delivery = _Delivery(producer, name, None if partition == -1 else partition, places)
    source = file or binary(sys.stdin)
    if source.isatty() and not quiet:
        say("one record a line; Ctrl-D ends")
    leave_on_sigterm()
    reading = _Reading(is_json, key_end, keyless)
    try:
        for lines in _pieces(source, end, delivery, count):
            delivery.send(additions.to(reading.records(lines)))
            if reading.fault:
                raise reading.fault
    finally:
        delivery.flush()
        if places and verbose:
            say(places.summary())
        if reading.keyless and not quiet:
            say(reading.keyless_sentence())
    delivery.check()


def _one_topic(topic: str | None, named: str | None) -> str:
    """The topic, said either way."""
    name = topic or named
    if name is None or (topic and named):
        raise click.UsageError("Say one TOPIC.")
    return name


def _refuse_contradictions(
    key: str | None, key_end: bytes | None, acks: str, *, is_json: bool, are_told: bool
) -> None:
    """UsageError where flags exclude each other; are_told: each record's place is asked for."""
    if key is not None and key_end is not None:
        raise click.UsageError("-k and -K exclude each other.")
    if is_json and key_end is not None:
        raise click.UsageError("--json and -K exclude each other: a JSON object has its key.")
    if acks == "0" and are_told:
        raise click.UsageError("With --acks 0 the broker tells no offsets.")


def _settings(acks: str, compression: str, *, are_told: bool) -> dict[str, Any]:
    """The settings of the producer. are_told: each record's place is asked for."""
    settings: dict[str, Any] = {
        "acks": acks,
        "linger_ms": "5",
        "compression_type": compression,
        "partitioner": "murmur2_random",
        "message_timeout_ms": DELIVERY_MS,
        "queue_buffering_max_messages": "1000000",
        "delivery_report_only_error": not are_told,
    }
    if acks in ("all", "-1"):
        settings["enable_idempotence"] = True
    return settings


class _Additions:
    """What flags give every record: a key, headers; an empty value becomes null. Bytes that are no
    UTF-8 are taken as they were typed."""

    def __init__(self, key: str | None, headers: dict[str, str], empty_is_null: bool) -> None:
        self._common: dict[str, Any] = {} if key is None else {"key": os.fsencode(key)}
        self._headers = [(name, os.fsencode(text)) for name, text in headers.items()]
        self._empty_is_null = empty_is_null

    def to(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give the records this key, these headers and null values."""
        if self._common or self._headers or self._empty_is_null:
            for record in records:
                record |= self._common
                if self._empty_is_null:
                    record["value"] = record["value"] or None
                if self._headers:
                    record["headers"] = record.get("headers", []) + self._headers
        return records


class _Reading:
    """Makes records of lines, and knows their numbers."""

    def __init__(self, is_json: bool, key_end: bytes | None, takes_keyless: bool) -> None:
        self.is_json = is_json
        self.key_end = key_end
        self.takes_keyless = takes_keyless
        self.line_number = 0
        """How many lines were read."""
        self.keyless = 0
        """How many of them had no delimiter, and were taken."""
        self.first_keyless = 0
        self.fault: CommandFault | None = None
        """What is wrong with the line behind the last record."""

    def records(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """What the client library takes; up to a line that is none, which is in `fault`."""
        if self.is_json:
            return self._of_json(lines)
        if self.key_end is not None:
            return self._with_keys(lines, self.key_end)
        return [{"value": line} for line in lines]

    def _of_json(self, lines: list[bytes]) -> list[dict[str, Any]]:
        records = []
        for line in lines:
            self.line_number += 1
            try:
                if record := from_json(line):
                    records.append(record)
            except CommandFault as refusal:
                self.fault = CommandFault(f"line {self.line_number} {refusal}")
                break
        return records

    def _with_keys(self, lines: list[bytes], key_end: bytes) -> list[dict[str, Any]]:
        records = []
        for line in lines:
            self.line_number += 1
            key, found, value = line.partition(key_end)
            if found:
                records.append({"key": key, "value": value})
                continue
            if not self.takes_keyless:
                self.fault = CommandFault(
                    f"line {self.line_number} has no {key_end.decode(errors='replace')!r} to end "
                    "its key; what stands before this line was sent, nothing from it on "
                    "(--keyless stores such lines as values without keys)"
                )
                break
            self.keyless += 1
            self.first_keyless = self.first_keyless or self.line_number
            records.append({"value": line})
        return records

    def keyless_sentence(self) -> str:
        """What is said of them at the end."""
        assert self.key_end is not None
        return (
            f"{self.keyless} of {self.line_number} lines had no "
            f"{self.key_end.decode(errors='replace')!r} and became values without keys; "
            f"the first is line {self.first_keyless}"
        )


class Places:
    """Where records were stored: told one by one, printed at once or summed up at the end."""

    def __init__(self, topic: str, is_printing: bool) -> None:
        self.topic = topic
        self.is_printing = is_printing
        self.found: dict[int, tuple[int, int, int]] = {}
        """{partition: (records, lowest offset, highest offset)}"""

    def add(self, partition: int, offset: int) -> None:
        """Count one record that was stored there."""
        if self.is_printing:
            sys.stdout.write(f"{partition} {offset}\n")
        count, first, last = self.found.get(partition, (0, offset, offset))
        self.found[partition] = (count + 1, min(first, offset), max(last, offset))

    def summary(self) -> str:
        """One sentence."""
        total = sum(count for count, _, _ in self.found.values())
        parts = [
            f"{count} to {self.topic}-{partition}, offsets {first} to {last}"
            for partition, (count, first, last) in sorted(self.found.items())
        ]
        return f"{total} records delivered" + (": " + "; ".join(parts) if parts else "")


def _pieces(
    source: BinaryIO, end: bytes, delivery: _Delivery, count: int | None = None
) -> Iterator[list[bytes]]:
    """Lists of lines, as soon as they are there, at most `count` in all; the last one may lack its
    delimiter."""
    left = count
    for lines in _all_pieces(source, end, delivery):
        if left is not None:
            del lines[left:]
            left -= len(lines)
        yield lines
        if left == 0:
            return


def _all_pieces(source: BinaryIO, end: bytes, delivery: _Delivery) -> Iterator[list[bytes]]:
    rest = b""
    descriptor = source.fileno()
    while True:
        while not select.select([descriptor], [], [], 0.2)[0]:
            delivery.poll(0)
        piece = source.raw.read(READ_BYTES) if hasattr(source, "raw") else source.read(READ_BYTES)
        if not piece:
            break
        if end not in rest[-len(end) + 1 :] + piece if len(end) > 1 else end not in piece:
            rest += piece
            continue
        *lines, rest = (rest + piece).split(end)
        yield lines
    if rest:
        yield [rest]


_BATCHED = {"key", "value"}
"""What `produce_batch` heeds; headers, timestamps and a record's own partition it does not."""


class _Delivery:
    """A producer that never holds too much, and counts what was not delivered."""

    def __init__(
        self, producer: Producer, topic: str, partition: int | None, places: Places | None
    ) -> None:
        self.producer = producer
        self.topic = topic
        self.partition: dict[str, int] = {} if partition is None else {"partition": partition}
        self.places = places
        """Is told where each record is; None: nobody asks."""
        self.sent = 0
        self.failures: Counter[int] = Counter()
        """Records that were not delivered, by the error's code."""
        self.reasons: dict[int, str] = {}
        """What it says: librdkafka has more than one text for some."""
        self._largest = 1

    def send(self, records: list[dict[str, Any]]) -> None:
        """Hand over; waits while too many are on their way."""
        if not records:
            return
        self._largest = max(self._largest, max(len(r["value"] or b"") for r in records))
        room = min(WAITING_MAX, WAITING_BYTES_MAX // self._largest)
        while len(self.producer) > room:
            self.poll(0.05)
        self.sent += len(records)
        if any(not record.keys() <= _BATCHED for record in records):
            for record in records:
                self._send_one(record | self.partition)
        else:
            place: dict[str, Any] = self.partition
            queued = self.producer.produce_batch(
                self.topic, records, on_delivery=self._delivered, **place
            )
            if queued < len(records):
                for record in records:
                    if "_error" in record:
                        self._delivered(record["_error"], None)
        self.poll(0)

    def poll(self, wait_s: float) -> None:
        """Hear what was delivered."""
        self.producer.poll(wait_s)
        if self.places and self.places.is_printing:
            sys.stdout.flush()

    def _send_one(self, record: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            self.producer.produce(self.topic, on_delivery=self._delivered, **record)
        except KafkaException as refusal:
            self._delivered(refusal.args[0], None)

    def _delivered(self, error: KafkaError | None, message: Message | None) -> None:
        if error is not None:
            self.failures[error.code()] += 1
            self.reasons.setdefault(error.code(), sentence(error))
        elif self.places and message is not None:
            self.places.add(message.partition() or 0, message.offset() or 0)

    def flush(self) -> None:
        """Wait until each record is delivered or given up."""
        while self.producer.flush(0.2):
            pass
        self.poll(0)

    def check(self) -> None:
        """CommandFault if a record was not delivered."""
        if self.failures:
            count = self.failures.total()
            reasons = "; ".join(f"{n}× {self.reasons[code]}" for code, n in self.failures.items())
            raise CommandFault(f"{count} of {self.sent} records were not delivered: {reasons}")
