"""`shmbroker ingest`: a topic's records into files, each once; `ingest compact` merges small files.

pyspark and pyarrow are imported when a command runs: they take longer than all of its help.
"""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from shmbroker.cli.client import Cluster, cluster_options, json_option, pairs
from shmbroker.cli.outcome import EXIT_INTERRUPTED, EXIT_TERMINATED, CommandFault
from shmbroker.cli.output import print_json

if TYPE_CHECKING:
    from shmbroker.spark.ingest.plan import Plan
    from shmbroker.spark.ingest.run import Totals

_OWN_OPTIONS = {"subscribe", "subscribepattern", "assign", "emit"}
"""Of the source, lower case: with others the checkpoint would be of another topic than it says."""

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
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
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

    def convert(self, value: Any, param: Any, context: Any) -> int:
        """Of its text."""
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
    conf = click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark.")
    return master(conf(command))


@command.command("topic", cls=_Topic)
@click.argument("topic")
@click.option("--to", "path", metavar="PATH", required=True, help="The directory of the files.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "delta", "json"]),
    help="Of the files.  [default: parquet]",
)
@click.option(
    "--values",
    type=click.Choice(["json", "csv", "avro", "confluent-avro", "raw"]),
    help="What the records' values are.  [default: json with --schema or --infer, avro with a"
    " schema in a .avsc file, else raw]",
)
@click.option(
    "--schema",
    metavar="DDL|@FILE",
    help="The columns, such as 'name string not null, age int'; a file with that; for Avro the"
    " .avsc file.",
)
@click.option("--infer", is_flag=True, help="Find the columns out, of the first 10,000 records.")
@click.option("--delimiter", metavar="CHAR", help="Of CSV.  [default: ,]")
@click.option(
    "--record-columns",
    metavar="NAME,…",
    help="Also key, topic, partition, offset, timestamp, date of the record, as record_key, …",
)
@click.option("--partition-by", metavar="COLUMN,…", help="Directories column=value.")
@click.option(
    "--trigger",
    default="available-now",
    show_default=True,
    metavar="available-now|10s",
    help="To what is there now, and end; or a micro-batch every so often, for ever.",
)
@click.option(
    "--dead-letter",
    metavar="TOPIC|PATH",
    help="Where bad records go, with the reason; a PATH has a / in it.  [default: they end the"
    " ingest]",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Where it is kept how far this is.  [default: below PATH]",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new ingest starts.",
)
@click.option("--target-size", type=Size(), help="Of a file, about.  [default: 128m]")
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
    help="Of Parquet.  [default: snappy]",
)
@click.option(
    "-o",
    "source_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the source, such as kafka.isolation.level=read_committed.",
)
@session_options
@json_option
@cluster_options
def ingest(cluster: Cluster, as_json: bool, **given: Any) -> None:
    """Write a topic's records into files, each once, and go on there the next time.

    \b
    shmbroker ingest flights --to /data/flights --infer
    shmbroker ingest flights --to /data/flights --schema 'carrier string, dep_delay double' \\
        --dead-letter /data/flights-bad --partition-by carrier
    shmbroker ingest flights --to /data/raw --trigger 10s --target-size 256m
    shmbroker ingest compact /data/flights            # merge small files

    Records whose value is not what the columns say end the ingest, unless --dead-letter has a
    place for them. SIGTERM and Ctrl-C let the micro-batch end.

    Exit status: 0 all that was there is written; 1 failed; 2 wrong usage; 130, 143 stopped.
    """
    from shmbroker.spark.ingest import run
    from shmbroker.spark.ingest.files import local_path, state_directory
    from shmbroker.spark.running import Stopping, only_one

    if given["infer"] and given["schema"]:
        raise click.UsageError("--infer finds out what --schema says: give one of them.")
    if cluster.settings:
        raise click.UsageError("-X is for librdkafka; here -o sets options of Spark's source.")
    trigger = trigger_of(given["trigger"])
    plan, asked = _plan(cluster, given)
    path = local_path(given["path"])
    checkpoint = Path(
        local_path(given["checkpoint"])
        if given["checkpoint"]
        else str(state_directory(path, f"checkpoint-{plan.topic}"))
    )
    more = pairs(given["source_options"], "-o")
    source = {
        "kafka.bootstrap.servers": cluster.servers,
        "subscribe": plan.topic,
        "startingOffsets": given["start"],
        "maxBytesPerTrigger": str(given["batch_size"]),
    } | more
    twice = sorted({name.lower() for name in more} & _OWN_OPTIONS)
    if twice:
        raise click.UsageError(f"-o can't set {twice[0]}: an ingest is of one topic, TOPIC.")
    cluster.check_reachable()
    stopping = Stopping()
    bar = _Bar(plan.topic)
    with only_one(checkpoint), contextlib.closing(bar):
        plan = run.prepare(plan, asked, checkpoint, source, given["infer"])
        totals = run.run(
            run.Run(
                plan,
                checkpoint,
                given["master"],
                trigger,
                source,
                pairs(given["conf"], "--conf"),
                checkpoint / "spark.log",
            ),
            stopping,
            bar.show,
        )
    if as_json:
        print_json({"topic": plan.topic, "path": plan.path, **totals._asdict()})
    else:
        click.echo(summary(plan, totals))
    if stopping.signal is not None:
        raise SystemExit(EXIT_TERMINATED if stopping.signal == 15 else EXIT_INTERRUPTED)


def _plan(cluster: Cluster, given: dict[str, Any]) -> "tuple[Plan, list[str]]":
    """What was asked for, and which fields of it were named."""
    from shmbroker.spark.ingest.files import local_path
    from shmbroker.spark.ingest.plan import Plan

    text = given["schema"] or ""
    kind = given["values"]
    if text.startswith("@") or text.endswith(".avsc"):
        name = text.removeprefix("@")
        try:
            text = Path(name).read_text()
        except UnicodeDecodeError:
            raise CommandFault(f"{name}: no text") from None
        if kind is None and name.endswith(".avsc"):
            kind = "avro"
    if kind is None:
        kind = "json" if text or given["infer"] else "raw"
    if kind != "raw" and not text and not given["infer"]:
        raise click.UsageError(
            f"--values {kind} needs --schema" + " or --infer." * ("avro" not in kind)
        )
    if kind == "raw" and (text or given["infer"]):
        raise click.UsageError("--values raw takes no --schema: values stay as they are.")
    if "avro" in kind and given["infer"]:
        raise click.UsageError("Avro can't be inferred: give its schema, --schema FILE.avsc.")
    delimiter = given["delimiter"]
    if delimiter is not None and len(delimiter.encode()) != 1:
        raise click.UsageError(f"--delimiter takes one character, not {delimiter!r}.")
    letters = given["dead_letter"] or ""
    is_path = "/" in letters or letters.startswith(("~", "."))
    fields = {
        "topic": given["topic"],
        "path": local_path(given["path"]),
        "format": given["file_format"],
        "values": kind if given["values"] or text or given["infer"] else None,
        "schema": text or None,
        "delimiter": delimiter,
        "record_columns": _names(given["record_columns"]),
        "partition_by": _names(given["partition_by"]),
        "compression": given["compression"],
        "target_bytes": given["target_size"],
        "dead_letter_topic": letters if letters and not is_path else None,
        "dead_letter_path": local_path(letters) if is_path else None,
        "bootstrap_servers": cluster.servers,
    }
    asked = {name: value for name, value in fields.items() if value is not None}
    if kind == "raw" and asked.get("record_columns"):
        raise click.UsageError("--record-columns: raw files have all of them.")
    return Plan(ingest_id="", **asked), list(asked)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


class _Bar:
    """Rows, rate and lag on the terminal, if stderr is one."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._bar: Any = None

    def show(self, terminal: TextIO, totals: "Totals") -> None:
        """Where it is."""
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self._topic, unit=" rows", unit_scale=True, file=terminal, disable=None
            )
        bar = self._bar
        if bar.disable:
            return
        if totals.behind is not None:
            bar.total = totals.records + totals.behind
            bar.set_postfix(lag=f"{totals.behind:,}", refresh=False)
        bar.update(totals.records - bar.n)

    def close(self) -> None:
        """Leave it as it is."""
        if self._bar is not None:
            self._bar.close()


def summary(plan: "Plan", totals: "Totals") -> str:
    """One or two lines on what was done."""
    rate = totals.records / totals.seconds if totals.seconds else 0
    text = (
        f"{plan.topic}: {_count(totals.rows, 'row')} into {_count(totals.files, 'file')}"
        f" ({_bytes(totals.bytes_out)}) in {plan.path},"
        f" {_count(totals.micro_batches, 'micro-batch', 'micro-batches')},"
        f" {totals.seconds:.1f} s, {rate:,.0f} rows/s"
    )
    if totals.read:
        text += f", read by {totals.read}"
    if totals.behind:
        text += f"; {totals.behind:,} records are left"
    if totals.dead_letters:
        place = plan.dead_letter_topic or plan.dead_letter_path
        text += f"\n{_count(totals.dead_letters, 'dead letter')} in {place}"
    return text


def _count(count: int, name: str, names: str = "") -> str:
    return f"{count:,} {name if count == 1 else names or name + 's'}"


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"


@command.command("compact")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--target-size", type=Size(), default="128m", show_default=True, help="Of a file.")
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
    from shmbroker.spark.ingest import files

    path = files.local_path(path)
    if Path(path, "_delta_log").is_dir():
        from shmbroker.spark.ingest import delta

        delta.check_installed()
        if dry_run:
            raise click.UsageError("--dry-run is for plain Parquet; a Delta table keeps the old.")
        done = delta.compact(path, target_size)
    else:
        if not dry_run:
            files.finish_merge(path)
        merges = files.plan_merges(files.table_files(path), target_size)
        for merge in [] if dry_run else merges:
            files.merge(path, merge)
        done = {"merged": sum(len(merge.names) for merge in merges), "into": len(merges)}
    if as_json:
        print_json(done)
    else:
        verb = "would become" if dry_run else "became"
        click.echo(f"{done['merged']:,} files {verb} {done['into']:,}")
