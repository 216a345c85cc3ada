"""What `shmbroker ingest` says: a bar while it runs, and what was done at the end.

The bar is on stderr, and only if that is a terminal. What was done is on stdout: one or two lines
for each topic, or with --json a document.
"""

from __future__ import annotations

from typing import Any, TextIO

import click

from shmbroker.cli.output import print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.ingest.checkpoint import CheckpointDocument
    from shmbroker.spark.ingest.plan import IngestPlan
    from shmbroker.spark.ingest.run import Totals


class Bar:
    """Rows, rate and lag on the terminal, if stderr is one."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._bar: Any = None

    def show(self, terminal: TextIO, each: list[Totals]) -> None:
        """Show where they are."""
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self._topic, unit=" rows", unit_scale=True, file=terminal, disable=None
            )
        bar = self._bar
        if bar.disable:
            return
        records = sum(totals.records for totals in each)
        known = [totals.behind for totals in each if totals.behind is not None]
        if len(known) == len(each):
            bar.total = records + sum(known)
            bar.set_postfix(lag=f"{sum(known):,}", refresh=False)
        bar.update(records - bar.n)

    def close(self) -> None:
        """Leave it as it is."""
        if self._bar is not None:
            self._bar.close()


def tell(
    ingests: list[CheckpointDocument], done: list[Totals], as_json: bool, is_replay: bool
) -> None:
    """Say what was done for each topic."""
    documents = [
        {"topic": kept.plan.topic, "path": kept.plan.path, **totals._asdict()}
        for kept, totals in zip(ingests, done, strict=True)
    ]
    if as_json:
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    for kept, totals in zip(ingests, done, strict=True):
        click.echo((replay_summary if is_replay else summary)(kept.plan, totals))


def summary(plan: IngestPlan, totals: Totals) -> str:
    """One or two lines on what was done."""
    if not totals.micro_batches and not totals.behind:
        return (
            f"{plan.topic}: nothing new (rows are in {plan.path}, progress is in {plan.checkpoint})"
        )
    seconds = totals.seconds + totals.start_seconds
    rate = totals.records / seconds if seconds else 0
    text = (
        f"{plan.topic}: {_count(totals.rows, 'row')} into {_count(totals.files, 'file')}"
        f" ({_bytes(totals.bytes_out)}) in {plan.path},"
        f" {_count(totals.micro_batches, 'micro-batch', 'micro-batches')},"
        f" {seconds:.1f} s ({totals.start_seconds:.1f} s of it Spark's start), {rate:,.0f} rows/s"
    )
    if totals.read:
        text += f", read by {totals.read}"
    if totals.behind:
        text += f"; {totals.behind:,} records are left"
    if totals.dead_letters:
        place = plan.dead_letter_topic or plan.dead_letter_path
        text += f"\n{_count(totals.dead_letters, 'dead letter')} in {place}"
    if totals.skipped:
        text += f"\n{_count(totals.skipped, 'bad record')} left out (--skip-bad)"
    return text


def replay_summary(plan: IngestPlan, totals: Totals) -> str:
    """A line on what has become of dead letters."""
    text = (
        f"{plan.topic}: {_count(totals.rows, 'dead letter')} became rows in {plan.path},"
        f" {totals.skipped:,} still bad"
    )
    return text if totals.records else f"{plan.topic}: no dead letters that were not replayed"


def _count(count: int, name: str, names: str = "") -> str:
    return f"{count:,} {name if count == 1 else names or name + 's'}"


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"
