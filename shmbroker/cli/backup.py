"""`shmbroker backup`: take, list and prune backups of a running family."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import click

from shmbroker import clock
from shmbroker.cli import local_status
from shmbroker.cli.client import (
    DEFAULT_SERVER,
    TargetCluster,
    cluster_options,
    json_option,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.numbers import size_text
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_list
from shmbroker.client.faults import NAME_DIRECTORY, RUN_AS_OWNER, told_in
from shmbroker.errors import CorruptFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.backup.manifest import Backup

TARGET = "DIR|s3://…"
S3_OPTIONS = (
    click.option("--s3-endpoint", metavar="URL", help="Address of an S3-compatible store."),
    click.option("--s3-region", metavar="NAME", help="Region of the bucket."),
)


def s3_options(function: Any) -> Any:
    """Give a command --s3-endpoint and --s3-region."""
    for option in S3_OPTIONS:
        function = option(function)
    return function


class ProgressLine:
    """One line on stderr that is written over, where that is a terminal."""

    def __init__(self, terminal: TextIO | None = None) -> None:
        self._terminal = terminal or sys.stderr
        self._is_shown = self._terminal is not None and self._terminal.isatty()
        self._next_s = 0.0

    def __call__(self, done: int, known: int) -> None:
        now_s = clock.monotonic()
        if not self._is_shown or (now_s < self._next_s and done < known):
            return
        self._next_s = now_s + 0.2
        self._terminal.write(f"\r{size_text(done)} of {size_text(known)}   ")
        self._terminal.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._is_shown:
            self._terminal.write("\r" + " " * 40 + "\r")
            self._terminal.flush()


class _Default(HintingGroup):
    """`backup DIR` is `backup take DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["take", *args]
        return super().parse_args(ctx, args)


@click.group("backup", cls=_Default)
def command() -> None:
    """Back up a running broker family, as it is at one moment; `shmbroker restore` puts it back.

    \b
    shmbroker backup /backup/kafka
    shmbroker backup s3://bucket/kafka
    shmbroker backup list /backup/kafka
    shmbroker backup verify /backup/kafka
    shmbroker backup prune /backup/kafka --keep 7

    To be run on the broker's host, as its user. Finished segments are hard links where the
    directory is on the same file system, and are stored once, however many backups have them.
    """


@command.command()
@click.argument("target", metavar=TARGET)
@click.option(
    "--data",
    metavar="DIR",
    help="The family's data directory: where its log directories lie elsewhere (--log-dir), or no "
    "address is given.",
)
@click.option("--copy", "copies", is_flag=True, help="Copy segments, make no hard links.")
@s3_options
@json_option
@cluster_options
def take(
    cluster: TargetCluster,
    target: str,
    data: str | None,
    copies: bool,
    s3_endpoint: str | None,
    s3_region: str | None,
    as_json: bool,
) -> None:
    """Take a backup; the word `take` may be left out.

    \b
    shmbroker backup /backup/kafka
    shmbroker backup take /backup/kafka --copy
    shmbroker backup s3://bucket/kafka --s3-endpoint http://127.0.0.1:9000

    A partition that has no leader is waited for; when the time is up, it is not in the backup, the
    others are, and the exit status is 1.

    What earlier backups there have is not stored again. One that is interrupted counts for nothing,
    and the next one goes on with what it has stored. Topics in a remote store (tiered storage) are
    backed up as far as they are here.
    """
    from shmbroker.backup.asking import FamilyClient
    from shmbroker.backup.taking import Taking
    from shmbroker.backup.target import open_target
    from shmbroker.client.reader.asking import Consumer
    from shmbroker.processes.data_access import private

    store = open_target(target, s3_endpoint, s3_region)
    if data is not None and cluster.servers == DEFAULT_SERVER:
        cluster.servers = local_status.servers_of(data)
    cluster.check_reachable()
    progress = ProgressLine()
    consumer = Consumer(cluster.servers, "shmbroker-backup", security=cluster.entering())
    where = data and os.path.abspath(data)
    with private(), told_in(_ADVICE), FamilyClient(consumer, where) as client:
        try:
            taken = Taking(client, store, client.cluster_id(), copies, progress).run()
        finally:
            progress.end()
    backup = taken.backup
    if as_json:
        print_json(
            _row(backup)
            | {
                "stored": taken.stored,
                "stored_bytes": taken.stored_bytes,
                "linked": taken.linked,
                "kept": taken.kept,
            }
        )
    else:
        click.echo(
            f"{backup.name}  {len(backup.partitions)} partitions, {size_text(backup.bytes)}: "
            f"{taken.stored} segments stored ({size_text(taken.stored_bytes)}, {taken.linked} as "
            f"hard links), {taken.kept} were there"
        )
    if backup.lack:
        raise CommandFault(
            f"{backup.lack}. All others are; `shmbroker doctor` may say why these have none"
        )


_ADVICE = {
    NAME_DIRECTORY: "; run it there, and name the family's data directory with --data",
    RUN_AS_OWNER: "; run it as the broker's user",
}


def _row(backup: Backup) -> dict[str, Any]:
    return {
        "name": backup.name,
        "cluster_id": backup.cluster_id,
        "taken": datetime.fromtimestamp(backup.taken_ms / 1000, UTC).isoformat(),
        "partitions": len(backup.partitions),
        "missing": list(backup.missing),
        "segments": sum(len(each.segments) for each in backup.partitions),
        "bytes": backup.bytes,
    }


def _count(row: dict[str, Any]) -> str:
    """How many partitions are in it, of how many."""
    count, missing = row["partitions"], len(row["missing"])
    return f"{count} of {count + missing}" if missing else f"{count}"


@command.command("list")
@click.argument("target", metavar=TARGET)
@s3_options
@json_option
def list_(target: str, s3_endpoint: str | None, s3_region: str | None, as_json: bool) -> None:
    """List the backups there, the oldest first.

    \b
    shmbroker backup list /backup/kafka
    """
    from shmbroker.backup import manifest
    from shmbroker.backup.target import open_target

    store = open_target(target, s3_endpoint, s3_region)
    rows, faults = [], []
    for name in manifest.names(store):
        try:
            rows.append(_row(manifest.load(store, name)))
        except CorruptFault as fault:
            faults.append(str(fault))
    if as_json:
        print_json(rows)
    else:
        print_list(
            ("BACKUP", "PARTITIONS", "SEGMENTS", "SIZE"),
            [(row["name"], _count(row), row["segments"], size_text(row["bytes"])) for row in rows],
            "no backup",
        )
    if faults:
        raise CommandFault("; ".join(faults))


@command.command()
@click.argument("target", metavar=TARGET)
@click.option("--backup", "name", metavar="NAME", help="Which one.  [default: all]")
@s3_options
@json_option
def verify(
    target: str, name: str | None, s3_endpoint: str | None, s3_region: str | None, as_json: bool
) -> None:
    """Read all that backups need, and compare it with their checksums.

    \b
    shmbroker backup verify /backup/kafka

    What is damaged or missing is told for each backup that needs it; then the exit status is 1.
    Remove what is damaged: the next backup stores again what the family still has. Needs no broker.
    """
    from shmbroker.backup import manifest
    from shmbroker.backup.target import open_target, url_of
    from shmbroker.backup.verifying import stray
    from shmbroker.backup.verifying import verify as check

    store = open_target(target, s3_endpoint, s3_region)
    names = [name] if name else manifest.names(store)
    if not names:
        raise CommandFault(f"there is no whole backup in {url_of(store)}")
    progress = ProgressLine()
    try:
        verdicts = check(store, names, progress)
    finally:
        progress.end()
    left = stray(store)
    if as_json:
        print_json(
            {
                "backups": [each._asdict() for each in verdicts],
                "stray": left and left._asdict(),
            }
        )
    else:
        for each in verdicts:
            told = f"{len(each.faults)} faults" if each.faults else "ok"
            click.echo(f"{each.name}  {each.objects} objects, {size_text(each.bytes)}: {told}")
            for fault in each.faults:
                click.echo(f"  {fault}")
        if left and left.objects:
            click.echo(
                f"{left.objects} objects of {size_text(left.bytes)} are of no backup; "
                "`shmbroker backup prune` removes them"
            )
    bad = sum(1 for each in verdicts if each.faults)
    if bad:
        raise CommandFault(f"{bad} of {len(verdicts)} backups can't be restored as they were")


@command.command()
@click.argument("target", metavar=TARGET)
@click.option("--keep", metavar="N", type=click.IntRange(1), required=True, help="How many stay.")
@s3_options
@json_option
def prune(
    target: str, keep: int, s3_endpoint: str | None, s3_region: str | None, as_json: bool
) -> None:
    """Remove all backups but the latest N, and what only they need. One in which partitions are
    missing does not count.

    \b
    shmbroker backup prune /backup/kafka --keep 7

    Not while a backup is taken there: one waits for the other's end.
    """
    from shmbroker.backup.taking import prune as remove
    from shmbroker.backup.target import open_target

    gone, objects, size = remove(open_target(target, s3_endpoint, s3_region), keep)
    if as_json:
        print_json({"removed": gone, "objects": objects, "bytes": size})
        return
    for name in gone:
        click.echo(f"{name} removed")
    click.echo(f"{objects} objects of {size_text(size)} removed")


@click.command("restore")
@click.argument("source", metavar=TARGET)
@click.option("--data", metavar="DIR", required=True, help="Data directory to make: new, or empty.")
@click.option("--backup", "name", metavar="NAME", help="Which one.  [default: the latest]")
@click.option(
    "--replicas",
    metavar="R",
    type=click.IntRange(1),
    help="Copies of each partition, each on a broker of its own.  [default: as it had]",
)
@s3_options
@json_option
def restore(
    source: str,
    data: str,
    name: str | None,
    replicas: int | None,
    s3_endpoint: str | None,
    s3_region: str | None,
    as_json: bool,
) -> None:
    """Make a data directory of a backup, to be served by `shmbroker serve --data DIR`.

    \b
    shmbroker restore /backup/kafka --data /srv/kafka
    shmbroker restore s3://bucket/kafka --data /srv/kafka --replicas 3
    shmbroker log verify /srv/kafka

    All bytes are compared with the checksums of the backup. A partition that is missing in it is
    made empty; then the exit status is 1. The cluster keeps its id and its topics their ids, so
    don't let it run beside the one that it was taken of where clients reach both.
    """
    from shmbroker.backup import manifest
    from shmbroker.backup.restoring import restore as put_back
    from shmbroker.backup.target import open_target, url_of
    from shmbroker.processes.data_access import private
    from shmbroker.processes.limits import raise_open_files

    raise_open_files()  # a log's close takes three for each of its segments
    store = open_target(source, s3_endpoint, s3_region)
    if name is None:
        found = manifest.names(store)
        if not found:
            raise CommandFault(f"there is no whole backup in {url_of(store)}")
        name = found[-1]
    progress = ProgressLine()
    try:
        with private():
            done = put_back(store, manifest.load(store, name), data, replicas, progress)
    finally:
        progress.end()
    serve = f"shmbroker serve --data {Path(data)}"
    if done.brokers > 1:
        serve += f" --replicas {done.brokers}"
    if as_json:
        print_json(
            {
                "backup": name,
                "brokers": done.brokers,
                "partitions": done.partitions,
                "missing": list(done.backup.missing),
                "bytes": done.bytes,
                "serve": serve,
            }
        )
    else:
        click.echo(
            f"{name}: {done.partitions} partitions on {done.brokers} brokers, "
            f"{size_text(done.bytes)}. Serve it with: {serve}"
        )
    if done.backup.lack:
        raise CommandFault(
            f"{done.backup.lack}. It was made of all others, and can be served; these are empty"
        )
