"""`shmbroker transaction`: list, describe, find-hanging, abort, as kafka-transactions has them."""

from __future__ import annotations

from typing import Any

import click

from shmbroker import clock
from shmbroker.cli.client import TargetCluster, cluster_options, json_option, matching
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_list
from shmbroker.errors import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.transactions import Open, TransactionsAdmin

STATES = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare-commit": "PrepareCommit",
    "prepare-abort": "PrepareAbort",
    "complete-commit": "CompleteCommit",
    "complete-abort": "CompleteAbort",
    "prepare-epoch-fence": "PrepareEpochFence",
    "dead": "Dead",
}
"""Kafka's names, by ours."""
_WORDS = {name: word for word, name in STATES.items()}
MINUTES = 15.0
"""Kafka's transaction.max.timeout.ms: no transaction that a coordinator knows is open longer."""


@click.group("transaction", cls=HintingGroup)
def command() -> None:
    """Show transactions, find those that hang, and end them.

    \b
    shmbroker transaction list --state ongoing
    shmbroker transaction describe payments-1
    shmbroker transaction find-hanging
    shmbroker transaction abort flights 0 --start-offset 1234
    """


@command.command("list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    type=click.Choice(list(STATES)),
    multiple=True,
    help=f"Only those in this state: {', '.join(STATES)}; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Only those of this producer id; repeatable.",
)
@click.option(
    "--longer-than",
    "duration_ms",
    metavar="MS",
    type=click.IntRange(0),
    default=None,
    help="Only those that were begun longer ago (Kafka 3.8).",
)
@json_option
@cluster_options
def list_(
    cluster: TargetCluster,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_ms: int | None,
    as_json: bool,
) -> None:
    """List transactional ids with their states.

    \b
    shmbroker transaction list
    shmbroker transaction list --state ongoing --longer-than 60000 --json
    """
    with _asking(cluster) as transactions:
        found = transactions.listed(
            [STATES[word] for word in states],
            producer_ids,
            -1 if duration_ms is None else duration_ms,
        )
    rows = [
        {
            "transactional_id": row.transactional_id,
            "coordinator": row.coordinator,
            "producer_id": row.producer_id,
            "state": _WORDS.get(row.state, row.state),
        }
        for row in found
    ]
    _print(rows, as_json, "no transactional id")


@command.command()
@click.argument("names", metavar="TRANSACTIONAL-ID…", nargs=-1, required=True)
@json_option
@cluster_options
def describe(cluster: TargetCluster, names: tuple[str, ...], as_json: bool) -> None:
    """Show transactional ids: producer, state, and the partitions of what is open.

    \b
    shmbroker transaction describe payments-1
    shmbroker transaction describe 'payments-*' --json
    """
    rows = []
    with _asking(cluster) as transactions:
        for name in matching(
            names, (row.transactional_id for row in transactions.listed()), "transaction"
        ):
            found = transactions.described(name)
            if found is None:  # expired meanwhile
                raise CommandFault(
                    f"there is no transaction {name}; `shmbroker transaction list` shows what is "
                    "there"
                )
            age_ms = None if found.start_ms < 0 else max(0, clock.now_ms() - found.start_ms)
            rows.append(
                {
                    "transactional_id": name,
                    "coordinator": found.coordinator,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "state": _WORDS.get(found.state, found.state),
                    "timeout_ms": found.timeout_ms,
                    "start_ms": None if age_ms is None else found.start_ms,
                    "age_ms": age_ms,
                    "partitions": [f"{topic}-{index}" for topic, index in found.partitions],
                }
            )
    if as_json:
        print_json(rows)
        return
    for number, row in enumerate(rows):
        if number:
            click.echo()
        for name, value in row.items():
            shown = ", ".join(value) or "none" if isinstance(value, list) else value
            click.echo(
                f"{name.replace('_', ' '):<17} {'-' if shown is None else one_line(str(shown))}"
            )


@command.command("find-hanging")
@click.argument("topics", metavar="[TOPIC…]", nargs=-1)
@click.option(
    "--max-transaction-timeout",
    "minutes",
    metavar="MINUTES",
    type=click.FloatRange(0),
    default=MINUTES,
    help="Leave out transactions that were written to since; the cluster's "
    f"transaction.max.timeout.ms, and no less.  [default: {MINUTES:g}]",
)
@json_option
@cluster_options
def find_hanging(
    cluster: TargetCluster, topics: tuple[str, ...], minutes: float, as_json: bool
) -> None:
    """Find transactions that are open in a log and that no coordinator will end (KIP-664).

    \b
    shmbroker transaction find-hanging
    shmbroker transaction find-hanging flights --json

    Consumers with read_committed wait before the first record of one. `transaction abort` ends it.
    """
    with _asking(cluster) as transactions:
        names = matching(topics, transactions.topics(), "topic")
        found = transactions.hanging(dict.fromkeys(names), clock.now_ms() - int(minutes * 60_000))
    nothing = "no transaction hangs"
    _print([_row_of(one) for one in found], as_json, nothing)
    if as_json and not found:
        say(nothing)


@command.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option(
    "--start-offset",
    metavar="N",
    type=click.IntRange(0),
    required=True,
    help="Where the transaction begins in this partition; find-hanging shows it.",
)
@cluster_options
def abort(cluster: TargetCluster, topic: str, partition: int, start_offset: int) -> None:
    """End a transaction that hangs in a partition: its records there are aborted.

    \b
    shmbroker transaction abort flights 0 --start-offset 1234

    The leader writes an abort marker, whatever the coordinator thinks: of a transaction that is
    under way only a part would be aborted. Look with find-hanging first.
    """
    with _asking(cluster) as transactions:
        open_ = transactions.open_in({topic: {partition}})
        for one in open_:
            if one.start_offset == start_offset:
                transactions.abort(one)
                say(
                    f"aborted the transaction of producer {one.producer_id} from offset "
                    f"{start_offset} on in {topic}-{partition}"
                )
                return
    others = ", ".join(str(one.start_offset) for one in open_)
    raise CommandFault(
        f"{topic}-{partition} has no open transaction that begins at {start_offset}; "
        + (f"open ones begin at {others}" if others else "none is open there")
    )


def _asking(cluster: TargetCluster) -> TransactionsAdmin:
    """Asks the cluster, which must answer."""
    from shmbroker.client.transactions import TransactionsAdmin

    cluster.check_reachable()
    return TransactionsAdmin(cluster.addresses())


def _row_of(one: Open) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "start_offset": one.start_offset,
        "last_timestamp": one.last_timestamp,
    }


def _print(rows: list[dict[str, Any]], as_json: bool, nothing: str = "") -> None:
    if as_json:
        print_json(rows)
        return
    columns = [name.upper().replace("_", "-") for name in (rows[0] if rows else ())]
    print_list(columns, [tuple(row.values()) for row in rows], nothing)
