"""`shmbroker produce`: records from lines, or from JSON, on stdin or in a file.

What has arrived is handed over at once, so a slow source is passed on line by line; a fast one in
pieces of up to 1 MiB, which become large batches. Nothing is read ahead beyond what librdkafka may
hold (`WAITING_MAX`, `WAITING_BYTES_MAX`): a full cluster slows the source down.
"""

import json
import select
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from shmbroker.cli.client import Cluster, cluster_options, pairs
from shmbroker.cli.outcome import CommandFault, binary, leave_on_sigterm, sentence
from shmbroker.cli.words import delimiter

READ_BYTES = 1 << 20
WAITING_MAX = 200_000
WAITING_BYTES_MAX = 256 << 20
"""Records, and bytes reckoned by the largest record so far, that may wait for their delivery."""

DELIVERY_MS = "30000"
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@click.command("produce")
@click.argument("topic")
@click.option("-k", "--key", help="Key of every record.")
@click.option("-K", "key_delimiter", metavar="DELIMITER", help="Lines are key, this, value.")
@click.option("-D", "delimiter_text", metavar="DELIMITER", default=r"\n", help=r"[default: \n]")
@click.option("-H", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every one.")
@click.option("-p", "--partition", type=click.IntRange(0), help="[default: by key, else any]")
@click.option("-z", "--compression", type=click.Choice(COMPRESSIONS), default="none")
@click.option("--acks", type=click.Choice(["all", "-1", "1", "0"]), default="all")
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Empty values are null.")
@click.option("-l", "--file", type=click.File("rb"), help="Read this instead of stdin.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line.")
@cluster_options
def command(
    cluster: Cluster,
    topic: str,
    key: str | None,
    key_delimiter: str | None,
    delimiter_text: str,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    empty_is_null: bool,
    file: BinaryIO | None,
    is_json: bool,
) -> None:
    """Make records of lines.

    \b
    seq 10 | shmbroker produce flights
    echo AA:late | shmbroker produce flights -K : -H source=radar
    shmbroker produce flights -l lines.txt -z zstd
    find . -print0 | shmbroker produce files -D '\\0'
    shmbroker consume flights -e --json | shmbroker produce copy --json

    A JSON object has value, and may have key, headers ({name: text} or [{key, value}]), partition
    and timestamp (ms). Bytes that are no text go into value_base64 or key_base64; a value that is
    neither text nor null is written as JSON.

    Keys go where Java's clients put them. Exit status: 0 all delivered, 1 some were not.
    """
    try:
        end = delimiter(delimiter_text)
        key_end = delimiter(key_delimiter) if key_delimiter is not None else None
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    if key is not None and key_end is not None:
        raise click.UsageError("-k and -K exclude each other.")
    fixed: dict[str, Any] = {} if key is None else {"key": key.encode()}
    with_headers = [(name, text.encode()) for name, text in pairs(headers, "-H").items()]
    settings = {
        "acks": acks,
        "linger_ms": "5",
        "compression_type": compression,
        "partitioner": "murmur2_random",
        "message_timeout_ms": DELIVERY_MS,
        "queue_buffering_max_messages": "1000000",
        "delivery_report_only_error": True,
    }
    if acks in ("all", "-1"):
        settings["enable_idempotence"] = True
    delivery = _Delivery(cluster.producer(**settings), topic, partition)
    source = file or binary(sys.stdin)
    leave_on_sigterm()
    line_number = 0
    try:
        for lines in _pieces(source, end, delivery):
            fault: CommandFault | None = None
            if is_json:
                records = []
                for line in lines:
                    line_number += 1
                    try:
                        if record := from_json(line):
                            records.append(record | fixed)
                    except CommandFault as refusal:
                        fault = CommandFault(f"line {line_number} {refusal}")
                        break
            elif key_end is not None:
                records = [_split(line, key_end) | fixed for line in lines]
            else:
                records = [{"value": line, **fixed} for line in lines]
            if empty_is_null:
                for record in records:
                    record["value"] = record["value"] or None
            if with_headers:
                for record in records:
                    record["headers"] = record.get("headers", []) + with_headers
            delivery.send(records)
            if fault:
                raise fault
    finally:
        delivery.flush()
    delivery.check()


def _pieces(source: BinaryIO, end: bytes, delivery: "_Delivery") -> Iterator[list[bytes]]:
    """Lists of lines, as soon as they are there; the last one may lack its delimiter."""
    rest = b""
    descriptor = source.fileno()
    while True:
        while not select.select([descriptor], [], [], 0.2)[0]:
            delivery.producer.poll(0)
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


def _split(line: bytes, key_end: bytes) -> dict[str, Any]:
    key, found, value = line.partition(key_end)
    return {"key": key, "value": value} if found else {"value": key}


def from_json(line: bytes) -> dict[str, Any]:
    """A record as the client library takes it; {} of an empty line; CommandFault if it is none."""
    if not line or line.isspace():
        return {}

    try:
        given = json.loads(line.decode())
        if not isinstance(given, dict):
            raise ValueError("no object")
        record: dict[str, Any] = {"value": _content(given, "value")}
        if (key := _content(given, "key")) is not None:
            record["key"] = key
        if headers := given.get("headers"):
            if isinstance(headers, dict):
                headers = [{"key": name, "value": text} for name, text in headers.items()]
            record["headers"] = [(str(row["key"]), _content(row, "value")) for row in headers]
        for name in ("partition", "timestamp"):
            if (number := given.get(name)) is not None:
                record[name] = int(number)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        shown = line[:60].decode(errors="replace")
        raise CommandFault(f"describes no record: {shown} ({error})") from None
    return record


def _content(given: dict[str, Any], name: str) -> bytes | None:
    content = given.get(name)
    if isinstance(content, str):
        return content.encode()
    if (encoded := given.get(f"{name}_base64")) is not None:
        import base64

        return base64.b64decode(encoded, validate=True)
    if content is None:
        return None
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


_BATCHED = {"key", "value"}
"""What `produce_batch` heeds; headers, timestamps and a record's own partition it does not."""


class _Delivery:
    """A producer that never holds too much, and counts what was not delivered."""

    def __init__(self, producer: Any, topic: str, partition: int | None) -> None:
        self.producer = producer
        self.topic = topic
        self.partition: dict[str, int] = {} if partition is None else {"partition": partition}
        self.sent = 0
        self.failures: dict[str, int] = {}
        """Why, and how many."""
        self._largest = 1

    def send(self, records: list[dict[str, Any]]) -> None:
        """Hand over; waits while too many are on their way."""
        if not records:
            return
        self._largest = max(self._largest, max(len(r["value"] or b"") for r in records))
        room = min(WAITING_MAX, WAITING_BYTES_MAX // self._largest)
        while len(self.producer) > room:
            self.producer.poll(0.05)
        self.sent += len(records)
        if any(not record.keys() <= _BATCHED for record in records):
            for record in records:
                self._send_one(record | self.partition)
        else:
            queued = self.producer.produce_batch(
                self.topic, records, on_delivery=self._delivered, **self.partition
            )
            if queued < len(records):
                for record in records:
                    if "_error" in record:
                        self._delivered(record["_error"], None)
        self.producer.poll(0)

    def _send_one(self, record: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            self.producer.produce(self.topic, on_delivery=self._delivered, **record)
        except KafkaException as refusal:
            self._delivered(refusal.args[0], None)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            reason = sentence(error)
            self.failures[reason] = self.failures.get(reason, 0) + 1

    def flush(self) -> None:
        """Wait until each record is delivered or given up."""
        while self.producer.flush(0.2):
            pass

    def check(self) -> None:
        """CommandFault if a record was not delivered."""
        if self.failures:
            count = sum(self.failures.values())
            reasons = "; ".join(f"{n}× {reason}" for reason, n in self.failures.items())
            raise CommandFault(f"{count} of {self.sent} records were not delivered: {reasons}")
