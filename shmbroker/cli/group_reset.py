"""`shmbroker group reset-offsets`: a group's committed offsets go somewhere else.

options ──► goal_of ──► Goal ──► planned: (topic, partition, committed, new) ──► commit_offsets
                                 └ for each partition: Goal.offset, kept within the log
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from shmbroker import clock
from shmbroker.cli.client import TargetCluster, cluster_options, json_option, metadata
from shmbroker.cli.group_description import described, word
from shmbroker.cli.group_offsets import (
    commit_offsets,
    committed_offsets,
    existing,
    target_options,
    targets_of,
)
from shmbroker.cli.offsets import Partition, list_offsets
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_table
from shmbroker.cli.words import EARLIEST, LATEST, parse_duration, parse_moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

COLUMNS = ("TOPIC", "PARTITION", "COMMITTED", "NEW")


class Goal(NamedTuple):
    """Where offsets are to go: what was asked for by one option."""

    option: str
    """Its name, as click passes it: `to_earliest`."""
    number: int = 0
    """The offset, the records to shift by, or the moment in ms since 1970."""

    @property
    def is_moment(self) -> bool:
        """Whether it is about time."""
        return self.option in ("to_datetime", "by_duration")

    def offset(self, committed: int | None, first: int, last: int, since: int) -> int | None:
        """Where a partition with these offsets goes, within [first, last]; None: it can't be
        shifted, as nothing is committed. since: that of the first record from the moment on, -1 if
        there is none."""
        if self.option == "shift_by":
            if committed is None:
                return None
            asked = committed + self.number
        elif self.option == "to_offset":
            asked = self.number
        elif self.option == "to_earliest":
            asked = first
        elif self.is_moment and since >= 0:
            asked = since
        elif self.option == "to_current" and committed is not None:
            asked = committed
        else:
            asked = last
        return min(max(asked, first), last)


def goal_of(options: Mapping[str, Any], now_ms: int) -> Goal:
    """What was asked for by exactly one of the options. click.UsageError where it wasn't, or where
    its words mean nothing."""
    given = [
        (name, value) for name, value in options.items() if value is not None and value is not False
    ]
    if len(given) != 1:
        raise click.UsageError(
            "Say one of --to-earliest, --to-latest, --to-datetime, --by-duration, --to-current, "
            "--to-offset, --shift-by."
        )
    ((option, value),) = given
    try:
        if option == "to_datetime":
            return Goal(option, parse_moment(value))
        if option == "by_duration":
            return Goal(option, max(0, now_ms - parse_duration(value)))
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    return Goal(option, int(value))


@click.command("reset-offsets")
@click.argument("group")
@target_options
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end: only what comes.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record from TIME on: 2026-11-21T10:00, UTC, or ms since 1970.",
)
@click.option(
    "--by-duration",
    metavar="SPAN",
    help="To the first record of the last SPAN: P1DT12H as in ISO 8601, or 36h.",
)
@click.option(
    "--to-current",
    is_flag=True,
    help="Where they are, within what the log holds; without a committed offset, to the end.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward; back if negative.")
@click.option("--execute", is_flag=True, help="Do it; otherwise it is only shown.")
@click.option("--dry-run", is_flag=True, help="Only show it, as without --execute.")
@json_option
@cluster_options
def reset_offsets(
    cluster: TargetCluster,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Move the committed offsets of a group without members.

    \b
    shmbroker group reset-offsets readers --topic flights --to-earliest
    shmbroker group reset-offsets readers --topic flights:0,2 --shift-by -100 --execute
    shmbroker group reset-offsets readers --all-topics --to-datetime 2026-11-21T10:00 --execute

    Shows what it would do; --execute does it. Offsets are kept within what the log holds.
    """
    goal = goal_of(options, clock.now_ms())
    if execute and dry_run:
        raise click.UsageError("Either --execute or --dry-run.")
    admin = cluster.admin()
    metadata(admin, cluster)
    _refuse_active(admin, group)
    committed = committed_offsets(admin, group)
    targets = targets_of(cluster, admin, committed, topics, all_topics)
    plan = _planned(cluster, admin, existing(cluster, admin, targets), committed, goal)
    if execute and plan:
        new = {(topic, partition): offset for topic, partition, _, offset in plan}
        commit_offsets(admin, group, new)
    if as_json:
        print_json([dict(zip(map(str.lower, COLUMNS), row, strict=True)) for row in plan])
    elif plan:
        print_table(COLUMNS, plan)
    else:
        say(f"group {group} has no committed offsets; name topics with --topic")
    if plan and not execute:
        say("nothing was changed; --execute does it")


def _planned(
    cluster: TargetCluster,
    admin: AdminClient,
    targets: Iterable[Partition],
    committed: Mapping[Partition, int],
    goal: Goal,
) -> list[tuple[str, int, int | None, int]]:
    """(topic, partition, committed, new offset) of each target."""
    firsts = list_offsets(cluster, targets, EARLIEST, admin)
    lasts = list_offsets(cluster, targets, LATEST, admin)
    since = list_offsets(cluster, targets, goal.number, admin) if goal.is_moment else {}
    plan = []
    for key in targets:
        now = committed.get(key)
        new = goal.offset(now, firsts[key], lasts[key], since.get(key, -1))
        if new is None:
            raise CommandFault(
                f"{key[0]}-{key[1]} has no committed offset to shift; use --to-offset"
            )
        plan.append((*key, now, new))
    return plan


def _refuse_active(admin: AdminClient, name: str) -> None:
    group = described(admin, name)
    if group is not None and group.state.name != "EMPTY":
        raise CommandFault(
            f"group {name} is {word(group.state)}, with {len(group.members)} members: "
            "its offsets can only be changed while nobody reads; stop them first"
        )
