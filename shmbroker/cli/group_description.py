"""What groups are like: which there are, their members, their offsets and how far behind these are.

found_groups ─┬─ names_of        the names that words and patterns mean
              ├─ described       state, members and what is assigned to them
              └─ _with_offsets   committed, the ends of the partitions, the lag
"""

from __future__ import annotations

from typing import Any

import click

from shmbroker.cli.client import (
    ASK_S,
    TargetCluster,
    is_pattern,
    matching,
    metadata,
    settled,
    waited,
)
from shmbroker.cli.group_offsets import committed_offsets, existing
from shmbroker.cli.offsets import list_offsets
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_table
from shmbroker.cli.words import LATEST
from shmbroker.errors import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum

    from confluent_kafka.admin import AdminClient


def listed_groups(admin: AdminClient, cluster: TargetCluster) -> list[dict[str, str]]:
    """Name, state and type of each group, by name."""
    metadata(admin, cluster)
    listing = waited(admin.list_consumer_groups(request_timeout=ASK_S))
    for error in listing.errors:
        raise error
    return [
        {"group": row.group_id, "state": word(row.state), "type": word(row.type)}
        for row in sorted(listing.valid, key=lambda row: str(row.group_id))
    ]


def word(name: Enum) -> str:
    """A member of one of the library's enums, as it is typed and shown."""
    return str(name.name).lower().replace("_", "-")


def found_groups(
    cluster: TargetCluster, admin: AdminClient, words: tuple[str, ...]
) -> list[dict[str, Any]]:
    """All that is shown of the groups that these words mean, as --json writes it. CommandFault
    where one isn't there."""
    found = []
    for name in names_of(admin, cluster, words):
        group = described(admin, name)
        if group is None:
            raise CommandFault(
                f"there is no group {name}; `shmbroker group list` shows what is there"
            )
        found.append(_with_offsets(cluster, admin, group))
    return found


def names_of(admin: AdminClient, cluster: TargetCluster, words: tuple[str, ...]) -> list[str]:
    """The groups that names and patterns mean; names need not be there."""
    if not any(map(is_pattern, words)):
        metadata(admin, cluster)
        return list(words)
    return matching(words, [row["group"] for row in listed_groups(admin, cluster)], "group")


def described(admin: AdminClient, name: str) -> Any:
    """The library's description; None if the group isn't there."""
    from confluent_kafka import KafkaException

    future = settled(lambda: admin.describe_consumer_groups([name], request_timeout=ASK_S)[name])
    try:
        group = future.result()
    except KafkaException as refusal:
        if refusal.args[0].name() == "GROUP_ID_NOT_FOUND":
            return None
        return waited(future, f"group {name}")
    return None if group.state.name == "DEAD" else group


def _with_offsets(cluster: TargetCluster, admin: AdminClient, group: Any) -> dict[str, Any]:
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
    committed = committed_offsets(admin, group.group_id)
    shown = sorted({*committed, *owned})
    there = existing(cluster, admin, shown)
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
        "state": word(group.state),
        "type": word(group.type),
        "assignor": group.partition_assignor,
        "coordinator": group.coordinator.id if group.coordinator else None,
        "members": members,
        "partitions": partitions,
    }


def print_groups(found: list[dict[str, Any]]) -> None:
    """Write what `found_groups` has found: a line for each group, and a table of its partitions."""
    for number, group in enumerate(found):
        if number:
            click.echo()
        count = len(group["members"])
        click.echo(
            f"{one_line(group['group'])}  {group['state']}, {group['type']}, assignor "
            f"{one_line(group['assignor'] or '-')}, coordinator {group['coordinator']}, "
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
