"""`shmbroker pipeline run`: a stream job from topics to topics, in SQL or Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, pairs
from shmbroker.cli.ingest import session_options, trigger_of
from shmbroker.cli.outcome import EXIT_INTERRUPTED, EXIT_TERMINATED, CommandFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.pipeline import Job


@click.group("pipeline")
def command() -> None:
    """Run stream jobs that read topics and write topics.

    \b
    shmbroker pipeline run examples/flights.sql
    """


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Directory that stores progress.  [default: FILE.checkpoint beside the file]",
)
@click.option(
    "--trigger",
    default="0s",
    metavar="available-now|10s",
    help="Make a micro-batch every so often, or write what is there now and end.  [default: as"
    " fast as they go]",
)
@click.option(
    "--set",
    "variables",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a variable, ${NAME} in SQL.",
)
@session_options
@cluster_options
def run(
    cluster: TargetCluster,
    file: str,
    checkpoint: str | None,
    trigger: str,
    variables: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Run FILE.sql or FILE.py until it is stopped; SIGTERM and Ctrl-C let micro-batches end.

    \b
    shmbroker pipeline run examples/flights.sql
    shmbroker pipeline run examples/flights.py --trigger available-now
    shmbroker pipeline run job.sql --set topic=flights --master spark://host:7077

    A terminal shows progress, a log gets a line a minute. A summary ends the run.
    What SQL and Python may say is in docs/pipeline.md.

    Exit status: 0 with available-now all that was there is done; 1 failed; 2 wrong usage; 130, 143
    stopped.
    """
    from shmbroker.spark import pipeline, progress, running

    path = Path(file).absolute()
    if path.suffix not in (".sql", ".py"):
        raise click.UsageError(f"FILE ends in .sql or .py: {file}.")
    if cluster.settings:
        raise click.UsageError("-X is for librdkafka; WITH (…) and Job take options of Spark's.")
    spark_trigger = trigger_of(trigger)
    named = {"here": str(path.parent)} | pairs(variables, "--set")
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise CommandFault(f"{file}: no text") from None
    if path.suffix == ".sql":
        pipeline.parse(text, named)  # before Spark starts, which takes seconds
    cluster.check_reachable()
    directory = (
        Path(checkpoint).absolute() if checkpoint else path.with_name(f"{path.name}.checkpoint")
    )
    how: dict[str, Any] = (
        {"availableNow": True}
        if spark_trigger == "available-now"
        else {"processingTime": spark_trigger}
    )
    stopping = running.Stopping()
    summary = ""
    name, log = f"shmbroker pipeline {path.name}", directory / "spark.log"
    with (
        running.only_one(directory),
        running.session(master, name, log, pairs(conf, "--conf")) as (spark, terminal),
    ):
        stopping.install()
        job = pipeline.Job(spark, cluster.spark_options(), directory, how, named)
        if stopping.signal is None:
            _start(job, path, text)
            for query in job.queries:
                terminal.write(f"shmbroker: {query.name} runs (Spark's log: {log})\n")
            terminal.flush()
            reporter = progress.Reporter(job.queries, terminal)
            running.follow(job.queries, stopping, reporter.look)
            summary = reporter.summary()
    if summary:
        click.echo(summary)
    if stopping.signal is not None:
        raise SystemExit(EXIT_TERMINATED if stopping.signal == 15 else EXIT_INTERRUPTED)


def _start(job: Job, path: Path, text: str) -> None:
    """Start a job's queries (`spark.pipeline.start`): all of them, or none."""
    from shmbroker.spark import pipeline

    try:
        pipeline.start(job, path, text)
    except BaseException:
        for query in job.queries:
            query.stop()
        raise
