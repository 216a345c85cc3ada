"""`shmbroker log`: dump, verify and repair files, without a broker."""

import json
import os
from datetime import UTC, datetime
from typing import Any

import click

from shmbroker.cli.client import json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json
from shmbroker.cli.words import DATES_END_MS
from shmbroker.errors import StorageFault

OFFSET = click.IntRange(0)


@click.group("log", cls=HintingGroup)
def command() -> None:
    """Look into log files and check them; Apache Kafka's as well, and with no broker running.

    \b
    shmbroker log dump ~/.local/state/shmbroker/node-1/flights-0/00000000000000000000.log
    shmbroker log dump ~/.local/state/shmbroker/node-1/__consumer_offsets-7 --records
    shmbroker log verify ~/.local/state/shmbroker
    shmbroker log repair ~/.local/state/shmbroker --dry-run
    """


@command.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())
@click.option(
    "--records", "with_records", is_flag=True, help="Print each record of the batches, too."
)
@click.option(
    "--offset-from",
    "first",
    metavar="N",
    type=OFFSET,
    default=0,
    help="Leave out what is before N.",
)
@click.option("--offset-to", "last", metavar="N", type=OFFSET, help="Leave out what is after N.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def dump(
    paths: tuple[str, ...], with_records: bool, first: int, last: int | None, as_json: bool
) -> None:
    """Print what files hold: segments, indexes, snapshots, checkpoints, ids.

    \b
    shmbroker log dump flights-0/00000000000000000000.log --records --offset-from 100
    shmbroker log dump flights-0                          every file of the partition
    shmbroker log dump node-1/__cluster_metadata-0 --records --json | jq .record

    Records of __consumer_offsets, __transaction_state, __share_group_state and
    __cluster_metadata are decoded. Exit status 1 if a file is damaged; what lies before the
    damage is printed.
    """
    from shmbroker.tools import log_dump, log_files

    files = [file for path in paths for file in log_files.files_below(path)]
    end = log_dump.OFFSET_MAX if last is None else last
    for file in files:
        if len(files) > 1 and not as_json:
            click.echo(f"== {file}")
        lines: list[str] = []
        batches_end = 0
        try:
            for row in log_dump.dump(file, with_records=with_records, first=first, last=end):
                shown = {"file": file} | row if len(files) > 1 else row
                if row["type"] == "batch":
                    batches_end = row["position"] + row["size"]
                lines.append(json.dumps(shown, ensure_ascii=False) if as_json else as_text(row))
                if len(lines) == 1000:
                    click.echo("\n".join(lines))
                    lines.clear()
        except StorageFault:
            if len(files) == 1 or not log_files.is_gone(file):
                raise
            say(f"{file} is gone meanwhile")
        finally:
            if lines:
                click.echo("\n".join(lines))
        if log_files.kind_of(file) == log_files.LOG and not first and last is None:
            _tell_allocated(file, batches_end)


def _tell_allocated(file: str, position: int) -> None:
    """Say what lies behind the last batch: zeros, or the dump would have been refused."""
    try:
        size = os.path.getsize(file) - position
    except OSError:
        return
    if size > 0:
        say(f"{file}: the {size} bytes from position {position} on are allocated for what comes")


def as_text(row: dict[str, Any]) -> str:
    """A row of a dump as one line: batches flush left, records indented."""
    if row["type"] == "batch":
        return _batch_text(row)
    if row["type"] == "record":
        head = f"  offset {row['offset']}  {moment(row['timestamp'])}"
        if "control" in row:
            return f"{head}  control {row['control']} {_compact(row['value'])}"
        if "record" in row:
            key = f" {_compact(row['key'])} =" if "key" in row else ""
            version = f" v{row['version']}" if "version" in row else ""
            return f"{head}  {row['record']}{version}{key} {_compact(row['value'])}"
        shown = ("not_decoded", "key", "key_base64", "value", "value_base64")
        words = [head, *(f"{name} {_compact(row[name])}" for name in shown if name in row)]
        if row["headers"]:
            words.append(f"headers {_compact(row['headers'])}")
        return "  ".join(words)
    fields = ((name, value) for name, value in row.items() if name != "type")
    return "  ".join(
        f"{name} {value if isinstance(value, str | int) else _compact(value)}"
        for name, value in fields
    )


def _batch_text(row: dict[str, Any]) -> str:
    words = [
        f"position {row['position']}",
        f"size {row['size']}",
        f"offsets {row['base_offset']} to {row['last_offset']}",
        f"records {row['count']}",
        f"epoch {row['leader_epoch']}",
        f"{row['timestamp_type']} time to {moment(row['max_timestamp'])}",
        f"compression {row['compression']}",
        f"crc {row['crc']} {'right' if row['is_crc_right'] else 'WRONG'}",
    ]
    if row["producer_id"] >= 0:
        words.append(
            f"producer {row['producer_id']} epoch {row['producer_epoch']} "
            f"sequence {row['base_sequence']}"
        )
    words += [name for name in ("transactional", "control") if row[f"is_{name}"]]
    return "  ".join(words)


def moment(timestamp_ms: int) -> str:
    """A record's timestamp as an ISO date, or the number where it is none."""
    if not 0 <= timestamp_ms < DATES_END_MS:
        return str(timestamp_ms)
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@command.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())
@click.option("--records", "with_records", is_flag=True, help="Check each record, too.")
@json_option
def verify(paths: tuple[str, ...], with_records: bool, as_json: bool) -> None:
    """Check files: CRCs, offsets, indexes, snapshots, checkpoints.

    \b
    shmbroker log verify ~/.local/state/shmbroker
    shmbroker log verify node-1/flights-0 --records

    PATHs are a data directory, a log directory, a partition's directory or single files. While a
    broker writes to them, the last batch may seem torn. Exit status 1 if anything is wrong: the
    first fault of each directory is named.
    """
    from shmbroker.tools.log_verify import verify as judge

    verdicts = []
    for path in paths:
        for verdict in judge(path, with_records=with_records):
            verdicts.append(verdict)
            if as_json:
                continue
            if verdict.fault:
                click.echo(f"BAD {verdict.fault}")
            elif verdict.batches:
                click.echo(
                    f"ok  {verdict.path}  {verdict.segments} segments, {verdict.batches} batches, "
                    f"{verdict.records} records, offsets {verdict.first_offset} to "
                    f"{(verdict.end_offset or 0) - 1}, {verdict.bytes} bytes"
                )
            else:
                click.echo(f"ok  {verdict.path}")
    if as_json:
        print_json([verdict._asdict() for verdict in verdicts])
    if not verdicts:
        say("there are no log files")
    bad = sum(verdict.fault is not None for verdict in verdicts)
    if bad:
        raise CommandFault(f"{bad} of {len(verdicts)} places are damaged")


@command.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
def repair(paths: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Repair what can be derived, and put the rest aside. No broker may run there.

    \b
    shmbroker log repair ~/.local/state/shmbroker --dry-run
    shmbroker log repair ~/.local/state/shmbroker/node-1/flights-0

    PATHs are a data directory, a node's or a partition's. Indexes, snapshots and epochs are made
    anew, torn tails cut. A batch in the middle that is damaged is taken out, and lies in
    quarantine/ beside the node's directory; consumers jump over its offsets. Exit status 1 if
    anything stays wrong: with --dry-run, if there is anything to do.
    """
    from shmbroker.tools.log_repair import repair as mend

    found = []
    for path in paths:
        for row in mend(path, is_applied=not dry_run):
            found.append(row)
            if not as_json:
                does = row.action or "can't be repaired here; restore it from a copy"
                word = "done" if row.is_done else "TODO" if row.action else "BAD "
                click.echo(f"{word} {row.fault}: {does}")
    if as_json:
        print_json([row._asdict() for row in found])
    left = sum(not row.is_done for row in found)
    if left:
        raise CommandFault(f"{left} of {len(found)} faults are left")
    if not found:
        say("nothing is wrong")
