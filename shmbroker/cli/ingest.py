"""`shmbroker ingest`: a topic's records into files, each once; `ingest compact` merges small files.

Here are the options, and the order of the work. `ingest_plan` has what the options mean,
`ingest_summary` what is said meanwhile and at the end.

pyspark and pyarrow are imported when a command runs: they take longer than all of its help.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, json_option, pairs
from shmbroker.cli.ingest_plan import asked_ingest, check_usage, dead_letter_fields
from shmbroker.cli.ingest_summary import Bar, tell
from shmbroker.cli.outcome import EXIT_INTERRUPTED, EXIT_TERMINATED
from shmbroker.cli.output import print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.ingest.checkpoint import CheckpointDocument
    from shmbroker.spark.ingest.prepare import AskedIngest
    from shmbroker.spark.ingest.run import IngestSession, Totals
    from shmbroker.spark.running import Stopping

_SIZE = re.compile(r"(\d{1,9})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_INTERVAL = re.compile(r"(\d{1,6})\s*(ms|s|m|min|h)")
_WORDS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "min": "minutes", "h": "hours"}


class _Command(click.Group):
    """`ingest TOPIC …` and `ingest compact PATH`: all that is no sub-command's name is a topic."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args[:1] != ["compact"]:
            args = ["topic", *(args or ["--help"])]
        return super().parse_args(context, args)


class _Topic(click.Command):
    """Shown as what is typed, without the word that stands for it inside."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if parent is not None:
            info_name, parent = parent.info_name, parent.parent
        return super().make_context(info_name, args, parent, **extra)


@click.group("ingest", cls=_Command, add_help_option=False)
def command() -> None:
    """Write a topic's records into Parquet, Delta or JSON files, each once."""


class Size(click.ParamType[int]):
    """Bytes, as 128m."""

    name = "SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        """Convert a text."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is no size such as 128m or 1g.", param, context)
        return int(match[1]) * _UNITS[match[2].lower()]


def trigger_of(text: str) -> str:
    """What Spark calls a trigger: available-now, or "10 seconds"; a usage error for others."""
    match = _INTERVAL.fullmatch(text)
    if text == "available-now":
        return text
    if match is None:
        raise click.UsageError(f"--trigger takes available-now, or a time such as 10s: {text!r}.")
    return f"{match[1]} {_WORDS[match[2]]}"


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """--master and --conf, of the Spark session that a command runs in."""
    master = click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="The Spark cluster, such as spark://HOST:7077.",
    )
    conf = click.option(
        "--conf", metavar="KEY=VALUE", multiple=True, help="Setting of Spark; repeatable."
    )
    return master(conf(command))


@command.command("topic", cls=_Topic)
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True)
@click.option("--to", "path", metavar="PATH", required=True, help="Directory of the files.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "delta", "json"]),
    help="Format of the files.  [default: parquet]",
)
@click.option(
    "--values",
    type=click.Choice(["json", "csv", "avro", "confluent-avro", "raw"]),
    help="Format of the records' values.  [default: json with --schema or --infer, avro with a"
    " schema in a .avsc file, else raw]",
)
@click.option(
    "--schema",
    metavar="DDL|@FILE",
    help="Columns, such as 'name string not null, age int', or a file that holds them; for Avro an"
    " .avsc file.",
)
@click.option("--infer", is_flag=True, help="Find the columns in the first 10,000 records.")
@click.option(
    "--delimiter", metavar="CHAR", help="Character between the fields of CSV.  [default: ,]"
)
@click.option(
    "--record-columns",
    metavar="NAME,…",
    help="Add record_key, … of these: key, topic, partition, offset, timestamp, date.",
)
@click.option(
    "--partition-by",
    metavar="COLUMN,…",
    help="Write into directories column=value of these columns.",
)
@click.option(
    "--trigger",
    default="available-now",
    show_default=True,
    metavar="available-now|10s",
    help="Write what is there now and end, or make a micro-batch every so often.",
)
@click.option(
    "--dead-letter",
    metavar="TOPIC|PATH",
    help="Where bad records go, with the reason; a PATH has a / in it.  [default: they end the"
    " ingest]",
)
@click.option(
    "--skip-bad/--fail-on-bad",
    "skips_bad",
    default=None,
    help="Leave bad records out and count them; or end at the first one.",
)
@click.option("--replay", is_flag=True, help="Read the dead letters again instead of the topic.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Directory that stores progress.  [default: .NAME.shmbroker/checkpoint-TOPIC beside PATH]",
)
@click.option(
    "--continue-with",
    "continues",
    is_flag=True,
    help="Change settings of an ingest that has written rows; they apply from here on.",
)
@click.option(
    "--append-anyway",
    "appends",
    is_flag=True,
    help="Write into a table that holds rows of the topic: they will be there twice.",
)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIME",
    help="Where a new ingest starts; TIME as 2026-11-21T10:00, UTC.  [default: earliest]",
)
@click.option("--target-size", type=Size(), help="Size of a file, about.  [default: 128m]")
@click.option(
    "--batch-size",
    type=Size(),
    default="1g",
    show_default=True,
    help="Log bytes of a micro-batch at most.",
)
@click.option(
    "--compression",
    type=click.Choice(["snappy", "zstd", "gzip", "lz4", "none"]),
    help="Compression of Parquet files.  [default: snappy]",
)
@click.option(
    "-o",
    "source_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the source, such as kafka.isolation.level=read_uncommitted.",
)
@session_options
@json_option
@cluster_options
def ingest(cluster: TargetCluster, as_json: bool, topics: tuple[str, ...], **given: Any) -> None:
    """Write a topic's records into files, each once, and go on there the next time.

    \b
    shmbroker ingest flights --to /data/flights --infer
    shmbroker ingest flights --to /data/flights --schema 'carrier string, dep_delay double' \\
        --dead-letter /data/flights-bad --partition-by carrier
    shmbroker ingest flights --to /data/raw --trigger 10s --target-size 256m
    shmbroker ingest flights --to /data/flights --replay      # the dead letters, once more
    shmbroker ingest compact /data/flights            # merge small files

    Records whose value is not what the columns say end the ingest, unless --dead-letter has a
    place for them. SIGTERM and Ctrl-C let the micro-batch end.

    Exit status: 0 all that was there is written; 1 failed; 2 wrong usage; 130, 143 stopped.
    """
    from shmbroker.spark.running import Stopping, check_arrow

    check_arrow()
    from shmbroker.spark.ingest import prepare, run

    check_usage(cluster, given)
    session = run.IngestSession(
        given["master"], trigger_of(given["trigger"]), pairs(given["conf"], "--conf")
    )
    asked = [asked_ingest(cluster, topic, topics, given) for topic in dict.fromkeys(topics)]
    cluster.check_reachable()
    stopping = Stopping()
    bar = Bar(",".join(topics))
    with contextlib.ExitStack() as stack:
        stack.callback(bar.close)
        ingests = [stack.enter_context(prepare.opened(each)) for each in asked]
        _check_one_table(ingests)
        if given["replay"]:
            done = _replayed(ingests, given["dead_letter"])
        else:
            done = _run(ingests, asked, session, stopping, bar)
        bar.close()
        tell(ingests, done, as_json, given["replay"])
    if stopping.signal is not None:
        raise SystemExit(EXIT_TERMINATED if stopping.signal == 15 else EXIT_INTERRUPTED)


def _check_one_table(ingests: list[CheckpointDocument]) -> None:
    from shmbroker.spark.ingest.checkpoint import check_goes_with

    first = ingests[0].plan
    for each in ingests[1:]:
        cure = f"ingest {each.plan.topic} by itself, --to another directory"
        check_goes_with(first, each.plan, cure)


def _run(
    ingests: list[CheckpointDocument],
    asked: list[AskedIngest],
    session: IngestSession,
    stopping: Stopping,
    bar: Bar,
) -> list[Totals]:
    """Run those that have something to do; Spark is not started for nothing."""
    from shmbroker.spark.ingest import merging, prepare, run

    done = [run.Totals(behind=0) for _ in ingests]
    due = {}
    for place, (kept, each) in enumerate(zip(ingests, asked, strict=True)):
        if session.trigger == run.AVAILABLE_NOW and prepare.has_nothing_new(kept, each.source):
            merging.finish_merge(kept.plan.path)
        else:
            due[place] = run.Run(kept.plan, prepare.source_of(kept, each.source))
    if due:
        totals = run.run(list(due.values()), session, stopping, bar.show)
        for place, found in zip(due, totals, strict=True):
            done[place] = found
    return done


def _replayed(ingests: list[CheckpointDocument], letters: str | None) -> list[Totals]:
    from shmbroker.spark.ingest.replay import replay

    fields = dead_letter_fields(letters) if letters else {}
    return [replay(kept.plan._replace(**fields)) for kept in ingests]


@command.command("compact")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--target-size", type=Size(), default="128m", show_default=True, help="Size of a merged file."
)
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@json_option
def compact(path: str, target_size: int, dry_run: bool, as_json: bool) -> None:
    """Merge the small Parquet files of each directory below PATH, or of a Delta table.

    Files below half of the target are merged in the order of their names. A Delta table changes in
    one commit; in plain Parquet, readers may miss rows for milliseconds, so do it when nobody
    reads.

    \b
    shmbroker ingest compact /data/flights --target-size 256m
    """
    from shmbroker.spark.ingest import files, merging

    path = files.local_path(path)
    if Path(path, "_delta_log").is_dir():
        from shmbroker.spark.ingest import delta

        delta.check_installed()
        if dry_run:
            raise click.UsageError("--dry-run is for plain Parquet; a Delta table keeps the old.")
        done = delta.compact(path, target_size)
    else:
        if not dry_run:
            files.migrate(path)
            merging.finish_merge(path)
        merges = merging.plan_merges(merging.table_files(path), target_size)
        for merge in [] if dry_run else merges:
            merging.merge(path, merge)
        done = {"merged": sum(len(merge.names) for merge in merges), "into": len(merges)}
    if as_json:
        print_json(done)
    else:
        verb = "would become" if dry_run else "became"
        click.echo(f"{done['merged']:,} files {verb} {done['into']:,}")
