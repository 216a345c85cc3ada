"""`shmbroker group`: list, describe, reset-offsets, delete, delete-offsets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from shmbroker import clock
from shmbroker.cli.client import (
    ASK_S,
    CHANGE_S,
    Cluster,
    cluster_options,
    is_pattern,
    json_option,
    matching,
    metadata,
    waited,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.offsets import Partition, list_offsets
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_list, print_table
from shmbroker.cli.words import EARLIEST, LATEST, parse_duration, parse_moment

TYPE_CHECKING = False
if TYPE_CHECKING:
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
def list_(cluster: Cluster, states: tuple[str, ...], types: tuple[str, ...], as_json: bool) -> None:
    """List groups with their states and types.

    \b
    shmbroker group list
    shmbroker group list --state empty --json
    """
    rows = [
        row
        for row in _listed(cluster.admin(), cluster)
        if (not states or row["state"] in states) and (not types or row["type"] in types)
    ]
    if as_json:
        print_json(rows)
    else:
        print_list(("GROUP", "STATE", "TYPE"), [tuple(row.values()) for row in rows], "no group")


def _listed(admin: AdminClient, cluster: Cluster) -> list[dict[str, str]]:
    metadata(admin, cluster)
    listing = waited(admin.list_consumer_groups(request_timeout=ASK_S))
    for error in listing.errors:
        raise error
    return [
        {"group": row.group_id, "state": _word(row.state), "type": _word(row.type)}
        for row in sorted(listing.valid, key=lambda row: str(row.group_id))
    ]


def _word(name: Any) -> str:
    return str(name.name).lower().replace("_", "-")


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
@click.argument("groups", metavar="GROUP…", nargs=-1, required=True)
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
    cluster: Cluster, groups: tuple[str, ...], watch_s: float | None, as_json: bool
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
        found = _found(cluster, admin, groups)
        if watch_s is None:
            print_json(found) if as_json else _print_groups(found)
            return
        if as_json:
            click.echo(json.dumps(found, ensure_ascii=False))
        else:
            if sys.stdout.isatty():
                click.echo("\x1b[H\x1b[2J", nl=False)
            click.echo(f"{datetime.now().astimezone():%H:%M:%S}, every {watch_s:g} s")
            _print_groups(found)
            click.echo()
        sys.stdout.flush()
        clock.sleep(watch_s)


def _found(cluster: Cluster, admin: AdminClient, groups: tuple[str, ...]) -> list[dict[str, Any]]:
    found = []
    for name in _names(admin, cluster, groups):
        group = _described(admin, name)
        if group is None:
            raise CommandFault(
                f"there is no group {name}; `shmbroker group list` shows what is there"
            )
        found.append(_with_offsets(cluster, admin, group))
    return found


def _print_groups(found: list[dict[str, Any]]) -> None:
    for number, group in enumerate(found):
        if number:
            click.echo()
        count = len(group["members"])
        click.echo(
            f"{group['group']}  {group['state']}, {group['type']}, assignor "
            f"{group['assignor'] or '-'}, coordinator {group['coordinator']}, "
            f"{count} member{'' if count == 1 else 's'}"
        )
        columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CLIENT", "HOST", "MEMBER")
        rows = [
            [row[column.lower()] for column in columns[:5]]
            + [row[column] for column in ("client", "host", "member")]
            for row in group["partitions"]
        ]
        owners = {row["member"] for row in group["partitions"]}
        rows += [
            [None] * 5 + [member["client"], member["host"], member["member"]]
            for member in group["members"]
            if member["member"] not in owners
        ]
        if rows:
            print_table(columns, rows)


def _names(admin: AdminClient, cluster: Cluster, words: tuple[str, ...]) -> list[str]:
    if not any(map(is_pattern, words)):
        metadata(admin, cluster)
        return list(words)
    return matching(words, [row["group"] for row in _listed(admin, cluster)], "group")


def _described(admin: AdminClient, name: str) -> Any:
    """The library's description; None if the group isn't there."""
    from confluent_kafka import KafkaException

    future = admin.describe_consumer_groups([name], request_timeout=ASK_S)[name]
    try:
        group = future.result()
    except KafkaException as refusal:
        if refusal.args[0].name() == "GROUP_ID_NOT_FOUND":
            return None
        return waited(future, f"group {name}")
    return None if group.state.name == "DEAD" else group


def _with_offsets(cluster: Cluster, admin: AdminClient, group: Any) -> dict[str, Any]:
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "instance": member.group_instance_id,
            "partitions": [
                f"{entry.topic}-{entry.partition}" for entry in member.assignment.topic_partitions
            ]
            if member.assignment
            else [],
        }
        for member in group.members
    ]
    owners = {partition: member for member in members for partition in member["partitions"]}
    owned = [
        (entry.topic, entry.partition)
        for member in group.members
        if member.assignment
        for entry in member.assignment.topic_partitions
    ]
    committed = _committed(admin, group.group_id)
    shown = sorted({*committed, *owned})
    there = _existing(cluster, admin, shown)
    ends = list_offsets(cluster, there, LATEST, admin)
    partitions = []
    for topic, partition in shown:
        offset, end = committed.get((topic, partition)), ends.get((topic, partition))
        owner = owners.get(f"{topic}-{partition}", {})
        partitions.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(end - offset, 0),
                "member": owner.get("member"),
                "client": owner.get("client"),
                "host": owner.get("host"),
            }
        )
    return {
        "group": group.group_id,
        "state": _word(group.state),
        "type": _word(group.type),
        "assignor": group.partition_assignor,
        "coordinator": group.coordinator.id if group.coordinator else None,
        "members": members,
        "partitions": partitions,
    }


def _committed(admin: AdminClient, group: str) -> dict[Partition, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    future = admin.list_consumer_group_offsets(asked, request_timeout=ASK_S)[group]
    found = waited(future, f"group {group}")
    return {
        (entry.topic, entry.partition): entry.offset
        for entry in found.topic_partitions
        if entry.offset >= 0
    }


def _existing(
    cluster: Cluster, admin: AdminClient, partitions: Iterable[Partition]
) -> list[Partition]:
    known = metadata(admin, cluster).topics
    return [
        (topic, partition)
        for topic, partition in partitions
        if topic in known and partition in known[topic].partitions
    ]


def _target_options(function: Any) -> Any:
    for option in (
        click.option(
            "--all-topics", is_flag=True, help="All partitions that have a committed offset."
        ),
        click.option(
            "--topic",
            "topics",
            metavar="TOPIC[:P,P…]",
            multiple=True,
            help="All partitions of this topic, or these; repeatable.",
        ),
    ):
        function = option(function)
    return function


def _targets(
    cluster: Cluster,
    admin: AdminClient,
    committed: dict[Partition, int],
    topics: tuple[str, ...],
    all_topics: bool,
) -> list[Partition]:
    if bool(topics) == all_topics:
        raise click.UsageError("Say which partitions: --topic TOPIC[:P,P…] or --all-topics.")
    if all_topics:
        return sorted(committed)
    known = metadata(admin, cluster).topics
    found = set()
    for word in topics:
        topic, colon, numbers = word.partition(":")
        if topic not in known:
            raise CommandFault(
                f"there is no topic {topic}; `shmbroker topic list` shows what is there"
            )
        there = set(known[topic].partitions)
        try:
            wanted = {int(number) for number in numbers.split(",")} if colon else there
        except ValueError:
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:0,1,2, not {word!r}.") from None
        if missing := wanted - there:
            raise CommandFault(f"{topic} has no partition {min(missing)}")
        found |= {(topic, partition) for partition in wanted}
    return sorted(found)


def _refuse_active(admin: AdminClient, name: str) -> None:
    group = _described(admin, name)
    if group is not None and group.state.name != "EMPTY":
        raise CommandFault(
            f"group {name} is {_word(group.state)}, with {len(group.members)} members: "
            "its offsets can only be changed while nobody reads; stop them first"
        )


@command.command("reset-offsets")
@click.argument("group")
@_target_options
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
    cluster: Cluster,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    by_duration: str | None,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    execute: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group without members.

    \b
    shmbroker group reset-offsets readers --topic flights --to-earliest
    shmbroker group reset-offsets readers --topic flights:0,2 --shift-by -100 --execute
    shmbroker group reset-offsets readers --all-topics --to-datetime 2026-11-21T10:00 --execute

    Shows what it would do; --execute does it. Offsets are kept within what the log holds.
    """
    given = [to_datetime, by_duration, to_offset, shift_by]
    flags = to_earliest + to_latest + to_current
    if flags + sum(value is not None for value in given) != 1:
        raise click.UsageError(
            "Say one of --to-earliest, --to-latest, --to-datetime, --by-duration, --to-current, "
            "--to-offset, --shift-by."
        )
    if execute and dry_run:
        raise click.UsageError("Either --execute or --dry-run.")
    try:
        moment = parse_moment(to_datetime) if to_datetime is not None else None
        if by_duration is not None:
            moment = clock.now_ms() - parse_duration(by_duration)
    except ValueError as refusal:
        raise click.UsageError(f"{refusal}.") from None
    admin = cluster.admin()
    metadata(admin, cluster)
    _refuse_active(admin, group)
    committed = _committed(admin, group)
    targets = _targets(cluster, admin, committed, topics, all_topics)
    targets = _existing(cluster, admin, targets)
    firsts = list_offsets(cluster, targets, EARLIEST, admin)
    lasts = list_offsets(cluster, targets, LATEST, admin)
    since = list_offsets(cluster, targets, moment, admin) if moment is not None else {}
    plan = []
    for key in targets:
        if to_earliest:
            offset = firsts[key]
        elif to_latest:
            offset = lasts[key]
        elif moment is not None:
            offset = since[key] if since[key] >= 0 else lasts[key]
        elif to_current:
            offset = committed.get(key, lasts[key])
        elif to_offset is not None:
            offset = to_offset
        else:
            assert shift_by is not None
            if key not in committed:
                raise CommandFault(
                    f"{key[0]}-{key[1]} has no committed offset to shift; use --to-offset"
                )
            offset = committed[key] + shift_by
        plan.append((*key, committed.get(key), min(max(offset, firsts[key]), lasts[key])))
    if execute and plan:
        _commit(admin, group, {(topic, part): offset for topic, part, _, offset in plan})
    columns = ("TOPIC", "PARTITION", "COMMITTED", "NEW")
    if as_json:
        print_json([dict(zip(map(str.lower, columns), row, strict=True)) for row in plan])
    elif plan:
        print_table(columns, plan)
    else:
        say(f"group {group} has no committed offsets; name topics with --topic")
    if plan and not execute:
        say("nothing was changed; --execute does it")


def _commit(admin: AdminClient, group: str, offsets: dict[Partition, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = ConsumerGroupTopicPartitions(
        group, [TopicPartition(*key, offset) for key, offset in offsets.items()]
    )
    futures = admin.alter_consumer_group_offsets([wanted], request_timeout=CHANGE_S)
    done = waited(futures[group], f"group {group}")
    for entry in done.topic_partitions:
        if entry.error is not None:
            raise CommandFault(f"{entry.topic}-{entry.partition}: {entry.error.str()}")


@command.command()
@click.argument("groups", metavar="GROUP…", nargs=-1, required=True)
@cluster_options
def delete(cluster: Cluster, groups: tuple[str, ...]) -> None:
    """Delete groups without members, and their committed offsets.

    \b
    shmbroker group delete readers
    """
    admin = cluster.admin()
    names = _names(admin, cluster, groups)
    for name, future in admin.delete_consumer_groups(names, request_timeout=CHANGE_S).items():
        waited(future, f"group {name} was not deleted")


@command.command("delete-offsets")
@click.argument("group")
@_target_options
@cluster_options
def delete_offsets(cluster: Cluster, group: str, topics: tuple[str, ...], all_topics: bool) -> None:
    """Delete committed offsets of topics that the group doesn't read any more.

    \b
    shmbroker group delete-offsets readers --topic flights:0,1
    """
    from shmbroker.client.admin import delete_offsets as ask
    from shmbroker.wire import error_codes

    admin = cluster.admin()
    metadata(admin, cluster)
    targets = _targets(cluster, admin, _committed(admin, group), topics, all_topics)
    if not targets:
        raise CommandFault(f"group {group} has no committed offsets")
    for (topic, partition), error in ask(cluster.addresses(), group, targets).items():
        if error:
            raise CommandFault(
                f"offset of {topic}-{partition} was not deleted: {error_codes.name_of(error)}"
            )
