"""`shmbroker group`: list, describe, reset-offsets, delete, delete-offsets.

What groups are like is asked in `group_description`; `group_reset` has the largest command, and
`group_offsets` what is done to committed offsets.
"""

from __future__ import annotations

import json
import sys

import click

from shmbroker import clock
from shmbroker.cli.client import (
    CHANGE_S,
    Pending,
    TargetCluster,
    cluster_options,
    json_option,
    metadata,
    settled,
    waited,
)
from shmbroker.cli.group_description import (
    found_groups,
    listed_groups,
    names_of,
    print_groups,
)
from shmbroker.cli.group_offsets import committed_offsets, target_options, targets_of
from shmbroker.cli.group_reset import reset_offsets
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from confluent_kafka.admin import AdminClient

STATES = [
    "stable",
    "empty",
    "preparing-rebalancing",
    "completing-rebalancing",
    "assigning",
    "reconciling",
]


@click.group("group", cls=HintingGroup)
def command() -> None:
    """List, describe, rewind and delete consumer groups.

    \b
    shmbroker group list
    shmbroker group describe readers
    shmbroker group reset-offsets readers --all-topics --to-earliest --execute
    """


@command.command("list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    type=click.Choice(STATES),
    multiple=True,
    help=f"Only groups in this state: {', '.join(STATES)}; repeatable.",
)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    type=click.Choice(["classic", "consumer"]),
    multiple=True,
    help="Only classic groups, or only those of the consumer protocol (KIP-848).",
)
@json_option
@cluster_options
def list_(
    cluster: TargetCluster, states: tuple[str, ...], types: tuple[str, ...], as_json: bool
) -> None:
    """List groups with their states and types.

    \b
    shmbroker group list
    shmbroker group list --state empty --json
    """
    rows = [
        row
        for row in listed_groups(cluster.admin(), cluster)
        if (not states or row["state"] in states) and (not types or row["type"] in types)
    ]
    if as_json:
        print_json(rows)
    else:
        print_list(("GROUP", "STATE", "TYPE"), [tuple(row.values()) for row in rows], "no group")


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    """The value of --watch, which may be left out: a GROUP behind it is no mistake to guess at."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds; put GROUP before --watch.", param, ctx)
        if not 0.1 <= seconds <= 86_400:
            self.fail("0.1 to 86400 seconds.", param, ctx)
        return seconds


@command.command()
@click.argument("words", metavar="GROUP…", nargs=-1, required=True)
@click.option(
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    type=_Seconds(),
    is_flag=False,
    flag_value=2.0,
    help="Show them every SECONDS, or every 2, until Ctrl-C.",
)
@json_option
@cluster_options
def describe(
    cluster: TargetCluster, words: tuple[str, ...], watch_s: float | None, as_json: bool
) -> None:
    """Show groups: members, committed offsets, and how far these are behind.

    \b
    shmbroker group describe readers
    shmbroker group describe readers --watch
    shmbroker group describe 'app-*' --json

    With --watch, --json prints one line each time.
    """
    from datetime import datetime

    admin = cluster.admin()
    while True:
        groups = found_groups(cluster, admin, words)
        if watch_s is None:
            print_json(groups) if as_json else print_groups(groups)
            return
        if as_json:
            click.echo(json.dumps(groups, ensure_ascii=False))
        else:
            if sys.stdout.isatty():
                click.echo("\x1b[H\x1b[2J", nl=False)
            click.echo(f"{datetime.now().astimezone():%H:%M:%S}, every {watch_s:g} s")
            print_groups(groups)
            click.echo()
        sys.stdout.flush()
        clock.sleep(watch_s)


@command.command()
@click.argument("groups", metavar="GROUP…", nargs=-1, required=True)
@cluster_options
def delete(cluster: TargetCluster, groups: tuple[str, ...]) -> None:
    """Delete groups without members, and their committed offsets.

    \b
    shmbroker group delete readers
    """
    admin = cluster.admin()
    names = names_of(admin, cluster, groups)
    asked = admin.delete_consumer_groups(names, request_timeout=CHANGE_S)
    for name, future in asked.items():
        _wait_for_deletion(admin, name, future)


def _wait_for_deletion(admin: AdminClient, name: str, asked: Pending) -> None:
    def again() -> Pending:
        future: Pending = admin.delete_consumer_groups([name], request_timeout=CHANGE_S)[name]
        return future

    waited(settled(again, asked), f"group {name} was not deleted")


@command.command("delete-offsets")
@click.argument("group")
@target_options
@cluster_options
def delete_offsets(
    cluster: TargetCluster, group: str, topics: tuple[str, ...], all_topics: bool
) -> None:
    """Delete committed offsets of topics that the group doesn't read any more.

    \b
    shmbroker group delete-offsets readers --topic flights:0,1
    """
    from shmbroker.client.admin import delete_offsets as ask
    from shmbroker.wire import error_codes

    admin = cluster.admin()
    metadata(admin, cluster)
    targets = targets_of(cluster, admin, committed_offsets(admin, group), topics, all_topics)
    if not targets:
        raise CommandFault(f"group {group} has no committed offsets")
    for (topic, partition), error in ask(cluster.addresses(), group, targets).items():
        if error:
            raise CommandFault(
                f"offset of {topic}-{partition} was not deleted: {error_codes.name_of(error)}"
            )


command.add_command(reset_offsets)
