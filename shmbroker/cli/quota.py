"""`shmbroker quota`: list, set, remove: how much clients may do, as kafka-configs has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import say
from shmbroker.cli.output import print_json, print_list

KEYS = {
    "producer_byte_rate": "bytes per second into each broker",
    "consumer_byte_rate": "bytes per second out of each broker",
    "request_percentage": "per cent of one process's time, in each broker",
    "controller_mutation_rate": "partitions made or deleted per second",
    "connection_creation_rate": "new connections per second to each broker, of an address",
}
DEFAULT = "<default>"

Entity = list[tuple[str, str | None]]


@click.group("quota", cls=HintingGroup)
def command() -> None:
    """Show and change how much clients may do.

    \b
    shmbroker quota list
    shmbroker quota set --user alice producer_byte_rate=1048576
    shmbroker quota remove --user alice

    Who is over a quota is answered later, not refused.
    """


def _entity_options(of: Callable[..., Any]) -> Callable[..., Any]:
    """--user, --client-id, --ip, and --default-… for those without one of their own."""
    for kind, whom in (("ip", "address"), ("client-id", "client id"), ("user", "user")):
        name = kind.replace("-", "_")
        of = click.option(
            f"--default-{kind}",
            f"default_{name}",
            is_flag=True,
            help=f"For each {whom} without a quota of its own.",
        )(of)
        of = click.option(f"--{kind}", name, metavar="NAME", help=f"For this {whom}.")(of)
    return of


def _entity(given: dict[str, Any]) -> Entity:
    """(type, name) of what the options name."""
    found: Entity = []
    for kind in ("user", "client-id", "ip"):
        name = kind.replace("-", "_")
        if given[name] is not None and given[f"default_{name}"]:
            raise click.UsageError(f"Either --{kind} or --default-{kind}.")
        if given[name] is not None or given[f"default_{name}"]:
            found.append((kind, given[name]))
    return found


def _named(given: dict[str, Any]) -> Entity:
    entity = _entity(given)
    if not entity:
        raise click.UsageError("Name whom it is for: --user, --client-id, --default-user …")
    return entity


@command.command("list")
@_entity_options
@json_option
@cluster_options
def list_quotas(cluster: TargetCluster, as_json: bool, **given: Any) -> None:
    """Show quotas: all, or those of a user, client id or address.

    \b
    shmbroker quota list
    shmbroker quota list --user alice --json
    """
    from shmbroker.client import admin

    cluster.check_reachable()
    rows: list[dict[str, Any]] = [
        {
            "user": entity.get("user", ""),
            "client-id": entity.get("client-id", ""),
            "ip": entity.get("ip", ""),
            "quota": key,
            "value": value,
        }
        for entity, values in admin.client_quotas(cluster.addresses(), _entity(given))
        for key, value in sorted(values.items())
    ]
    if as_json:
        print_json([_json_row(row) for row in rows])
        return
    for row in rows:
        for kind in ("user", "client-id", "ip"):
            row[kind] = DEFAULT if row[kind] is None else row[kind]
    rows.sort(key=lambda row: [str(value) for value in row.values()])
    print_list(
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        [[*list(row.values())[:-1], _text(row["value"])] for row in rows],
        "no quota",
    )


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the kinds that the entity has not; a default's name is null."""
    return {key: value for key, value in row.items() if value != ""}


def _text(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


@command.command("set")
@click.argument("values", metavar="QUOTA=VALUE…", nargs=-1, required=True)
@_entity_options
@cluster_options
def set_quotas(cluster: TargetCluster, values: tuple[str, ...], **given: Any) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    \b
    shmbroker quota set --user alice producer_byte_rate=1048576 request_percentage=50
    shmbroker quota set --default-user --client-id batch consumer_byte_rate=10485760
    shmbroker quota set --default-ip connection_creation_rate=20
    """
    from shmbroker.client import admin

    entity = _named(given)
    changes: dict[str, float | None] = {}
    for text in values:
        key, _, value = text.partition("=")
        if key not in KEYS:
            raise click.UsageError(f"There is no quota {key!r}. There are {', '.join(KEYS)}.")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):  # Kafka takes NaN, and it limits nothing
            raise click.UsageError(f"{key} takes a number, not {value!r}.")
        changes[key] = number
    cluster.check_reachable()
    admin.alter_client_quotas(cluster.addresses(), entity, changes)
    say(f"{len(changes)} quota{'s' * (len(changes) != 1)} set")


@command.command("remove")
@click.argument("keys", metavar="[QUOTA]…", nargs=-1, type=click.Choice(tuple(KEYS)))
@_entity_options
@cluster_options
def remove(cluster: TargetCluster, keys: tuple[str, ...], **given: Any) -> None:
    """Remove quotas of a user, client id or address: those that are named, or all that it has.

    \b
    shmbroker quota remove --user alice producer_byte_rate
    shmbroker quota remove --ip 10.0.0.7
    """
    from shmbroker.client import admin

    entity = _named(given)
    cluster.check_reachable()
    found = admin.client_quotas(cluster.addresses(), entity)
    theirs = next((values for told, values in found if told == dict(entity)), {})
    gone = {key: None for key in theirs if not keys or key in keys}
    if gone:
        admin.alter_client_quotas(cluster.addresses(), entity, gone)
    say(f"{len(gone)} quota{'s' * (len(gone) != 1)} removed")
