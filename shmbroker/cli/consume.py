"""`shmbroker consume`: records to stdout, as lines, in a format, or as JSON.

Two ways, as with every Kafka client:

* without --group, partitions are read from the place that -o says, and nothing is remembered;
* with --group, partitions are shared with the group's other members, and what has been written to
  stdout is committed (every 5 s and at the end): each record is seen at least once.

Here is what the command line says, and how a record is written. `consume_readers` has the two ways,
`consume_loop` what they share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, metadata
from shmbroker.cli.consume_loop import READ_COMMITTED, READ_UNCOMMITTED, Bounds, Notes
from shmbroker.cli.consume_readers import GroupReader, PartitionReader, partitions_of
from shmbroker.cli.offsets import list_offsets
from shmbroker.cli.outcome import leave_on_sigterm
from shmbroker.cli.output import print_json
from shmbroker.cli.record_json import to_json, to_kcat_json
from shmbroker.cli.words import (
    EARLIEST,
    LATEST,
    UNTIL,
    Place,
    compile_format,
    delimiter,
    parse_moment_of,
    parse_place,
)


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
@click.option(
    "--from-beginning",
    "from_beginning",
    is_flag=True,
    help="The same as -o earliest, for the console consumer's sake.",
)
@click.option("-e", "--exit", "is_ending", is_flag=True, help="Stop at the end.")
@click.option(
    "-c",
    "--count",
    "--max-messages",
    "count",
    metavar="N",
    type=click.IntRange(1),
    help="Stop after N records.",
)
@click.option(
    "--timeout-ms",
    "idle_ms_max",
    metavar="N",
    type=click.IntRange(1),
    help="Stop when no record has come for N milliseconds.",
)
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
    cluster: TargetCluster,
    topics: tuple[str, ...],
    named: tuple[str, ...],
    partitions: tuple[int, ...],
    places: tuple[str, ...],
    from_beginning: bool,
    is_ending: bool,
    count: int | None,
    idle_ms_max: int | None,
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

    Exit status: 0 at the end, after -c, after --timeout-ms, and when the reader of stdout has left;
    1 failed; 130 Ctrl-C.
    """
    words = topics + named
    if not words:
        raise click.UsageError("Say at least one TOPIC.")
    if is_asking:
        _print_offsets(cluster, words, is_json or is_kcat_json)
        return
    start, stop_ms = _start_and_stop((*places, *[EARLIEST] * from_beginning))
    try:
        write = _writer(
            format_text, is_json, is_kcat_json, key_delimiter, delimiter_text, shows_null
        )
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    leave_on_sigterm()
    bounds = Bounds(is_ending, count, stop_ms, isolation, idle_ms_max)
    notes = Notes(is_wanted=not quiet, is_talkative=not quiet and (verbose or sys.stderr.isatty()))
    if group is not None:
        if partitions or start.kind not in (EARLIEST, LATEST):
            raise click.UsageError(
                "With --group it is -o earliest or latest, for partitions without a committed "
                "offset; `shmbroker group reset-offsets` moves the group."
            )
        GroupReader(cluster, words, group, start.kind, bounds, write, notes).run()
    else:
        PartitionReader(cluster, words, partitions, start, bounds, write, notes).run()


def _start_and_stop(texts: Iterable[str]) -> tuple[Place, int | None]:
    """Where to begin, and the moment in ms at which to stop; click.UsageError for words that say
    something else."""
    try:
        places = [parse_place(text) for text in texts]
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    starts = [place for place in places if place.kind != UNTIL] or [Place(EARLIEST)]
    stops = [place.number for place in places if place.kind == UNTIL]
    if len(starts) > 1 or len(stops) > 1:
        raise click.UsageError("-o takes one place to begin and one e@TIME to stop.")
    return starts[0], stops[0] if stops else None


def _print_offsets(cluster: TargetCluster, words: tuple[str, ...], as_json: bool) -> None:
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
