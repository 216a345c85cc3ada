"""`shmbroker acl`: list, add, remove: who may do what, as kafka-acls has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import say
from shmbroker.cli.output import print_json, print_list
from shmbroker.security import acls as numbers

TYPES = {
    "topic": numbers.TOPIC,
    "group": numbers.GROUP,
    "cluster": numbers.CLUSTER,
    "transactional-id": numbers.TRANSACTIONAL_ID,
    "delegation-token": numbers.DELEGATION_TOKEN,
    "user": numbers.USER,
}
PATTERNS = {"literal": numbers.LITERAL, "prefixed": numbers.PREFIXED}
OPERATIONS = {
    "all": numbers.ALL,
    "read": numbers.READ,
    "write": numbers.WRITE,
    "create": numbers.CREATE,
    "delete": numbers.DELETE,
    "alter": numbers.ALTER,
    "describe": numbers.DESCRIBE,
    "cluster-action": numbers.CLUSTER_ACTION,
    "describe-configs": numbers.DESCRIBE_CONFIGS,
    "alter-configs": numbers.ALTER_CONFIGS,
    "idempotent-write": numbers.IDEMPOTENT_WRITE,
    "create-tokens": numbers.CREATE_TOKENS,
    "describe-tokens": numbers.DESCRIBE_TOKENS,
    "two-phase-commit": numbers.TWO_PHASE_COMMIT,
}
PERMISSIONS = {"allow": numbers.ALLOW, "deny": numbers.DENY}


@click.group("acl", cls=HintingGroup)
def command() -> None:
    """Show and change who may do what.

    \b
    shmbroker acl list --topic orders
    shmbroker acl add --allow User:alice --operation read --topic orders
    shmbroker acl add --deny User:bob --operation all --topic pay- --prefixed
    shmbroker acl remove --principal User:bob

    ACLs count where the broker has the setting authorizer.class.name.
    """


def _resource_options(of: Callable[..., Any]) -> Callable[..., Any]:
    """--topic, --group, --transactional-id, --user, --delegation-token, --cluster, --prefixed."""
    for option in reversed(
        (
            click.option(
                "--topic",
                "topics",
                metavar="NAME",
                multiple=True,
                help="Take this topic; repeatable.",
            ),
            click.option(
                "--group",
                "groups",
                metavar="NAME",
                multiple=True,
                help="Take this group; repeatable.",
            ),
            click.option(
                "--transactional-id",
                "transactional_ids",
                metavar="ID",
                multiple=True,
                help="Take this transactional id; repeatable.",
            ),
            click.option(
                "--user",
                "users",
                metavar="TYPE:NAME",
                multiple=True,
                help="Take the delegation tokens of this user; repeatable.",
            ),
            click.option(
                "--delegation-token",
                "tokens",
                metavar="ID",
                multiple=True,
                help="Take this delegation token; repeatable.",
            ),
            click.option("--cluster", "is_cluster", is_flag=True, help="Take the cluster."),
            click.option(
                "--prefixed",
                "is_prefixed",
                is_flag=True,
                help="Take all that begins with the name.",
            ),
        )
    ):
        of = option(of)
    return of


def _resources(given: dict[str, Any]) -> list[tuple[int, str]]:
    """(type, name) of what the options name."""
    found = [(numbers.TOPIC, name) for name in given["topics"]]
    found += [(numbers.GROUP, name) for name in given["groups"]]
    found += [(numbers.TRANSACTIONAL_ID, name) for name in given["transactional_ids"]]
    found += [(numbers.USER, name) for name in given["users"]]
    found += [(numbers.DELEGATION_TOKEN, name) for name in given["tokens"]]
    if not all(name for _, name in found):
        raise click.UsageError(
            "A resource has a name, or is '*' for all of its kind: one is empty."
        )
    for name in given["users"]:
        _check_principal(name)
    if given["is_cluster"]:
        if given["is_prefixed"]:
            raise click.UsageError("--prefixed is not for --cluster, which has one name.")
        found.append((numbers.CLUSTER, numbers.CLUSTER_NAME))
    return found


def _check_host(text: str) -> None:
    """Refuse a host's name: an ACL with one fits nobody, as brokers look no names up."""
    try:
        if text != "*":
            ip_address(text)
    except ValueError:
        raise click.UsageError(
            f"--host takes an address in numbers, such as 10.0.0.7, not {text!r}."
        ) from None


def _check_operations(type_: int, operations: Iterable[str]) -> None:
    """Refuse what nobody asks for of such a resource, as kafka-acls does: the ACL would do nothing,
    and means something else."""
    fitting = [name for name, number in OPERATIONS.items() if number in numbers.OPERATIONS[type_]]
    for operation in operations:
        if operation not in ("all", *fitting):
            kind = _name(TYPES, type_)
            raise click.UsageError(
                f"{operation} is no operation of a {kind}, which has: all, {', '.join(fitting)}."
            )


def _check_principal(text: str) -> None:
    if ":" not in text:
        raise click.UsageError(f"A principal is TYPE:NAME, such as User:alice; not {text}.")


@command.command("list")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal.")
@json_option
@cluster_options
def list_acls(cluster: TargetCluster, as_json: bool, principal: str | None, **given: Any) -> None:
    """Show ACLs: all, or those of a resource or principal.

    \b
    shmbroker acl list
    shmbroker acl list --principal User:alice --json
    """
    from shmbroker.client.admin import acls

    cluster.check_reachable()
    found = acls(cluster.addresses(), _filters(principal, given))
    rows = sorted(map(_row, found), key=lambda row: tuple(row.values()))
    if as_json:
        print_json(rows)
        return
    columns = ("type", "name", "pattern", "principal", "host", "operation", "permission")
    shown = [[row[name] for name in columns] for row in rows]
    print_list([name.upper() for name in columns], shown, "no ACL")


@command.command("add")
@click.option(
    "--allow", "allowed", metavar="TYPE:NAME", multiple=True, help="Allow it to this one."
)
@click.option("--deny", "denied", metavar="TYPE:NAME", multiple=True, help="Deny it to this one.")
@click.option(
    "--operation",
    "operations",
    type=click.Choice(list(OPERATIONS)),
    multiple=True,
    required=True,
    help="Operation that is allowed or denied; repeatable.",
)
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@_resource_options
@cluster_options
def add(
    cluster: TargetCluster,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    operations: tuple[str, ...],
    host: str,
    **given: Any,
) -> None:
    """Allow or deny something.

    \b
    shmbroker acl add --allow User:alice --operation read --operation write --topic orders
    shmbroker acl add --allow 'User:*' --operation describe --cluster
    """
    from shmbroker.client.admin import create_acls

    resources = _resources(given)
    if not resources:
        raise click.UsageError("Name what it is about: --topic, --group, --cluster …")
    if not allowed and not denied:
        raise click.UsageError("Name whom: --allow or --deny TYPE:NAME, such as User:alice.")
    for principal in (*allowed, *denied):
        _check_principal(principal)
    _check_host(host)
    for type_, _ in resources:
        _check_operations(type_, operations)
    creations = [
        {
            "resource_type": type_,
            "resource_name": name,
            "resource_pattern_type": numbers.PREFIXED if given["is_prefixed"] else numbers.LITERAL,
            "principal": principal,
            "host": host,
            "operation": OPERATIONS[operation],
            "permission_type": permission,
        }
        for type_, name in resources
        for principals, permission in ((allowed, numbers.ALLOW), (denied, numbers.DENY))
        for principal in principals
        for operation in operations
    ]
    cluster.check_reachable()
    create_acls(cluster.addresses(), creations)
    say(f"{len(creations)} ACL{'s' * (len(creations) != 1)} added")


@command.command("remove")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal.")
@click.option("--all", "is_all", is_flag=True, help="All of them, where nothing else is named.")
@cluster_options
def remove(cluster: TargetCluster, principal: str | None, is_all: bool, **given: Any) -> None:
    """Remove the ACLs of a resource, of a principal, or of both.

    \b
    shmbroker acl remove --topic orders --principal User:alice
    """
    if not (_resources(given) or principal or is_all):
        raise click.UsageError("Name --topic, --group, --principal …, or --all.")
    from shmbroker.client.admin import delete_acls

    cluster.check_reachable()
    removed = delete_acls(cluster.addresses(), _filters(principal, given))
    say(f"{removed} ACL{'s' * (removed != 1)} removed")


def _filters(principal: str | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    """A filter for each resource; one for all of them where none is named."""
    named: list[tuple[int, str | None]] = [*_resources(given)] or [(numbers.ANY, None)]
    return [
        {
            "resource_type_filter": type_,
            "resource_name_filter": name,
            "pattern_type_filter": numbers.PREFIXED if given["is_prefixed"] else numbers.ANY,
            "principal_filter": principal,
            "host_filter": None,
            "operation": numbers.ANY,
            "permission_type": numbers.ANY,
        }
        for type_, name in named
    ]


def _row(acl: dict[str, Any]) -> dict[str, str]:
    return {
        "type": _name(TYPES, acl["resource_type"]),
        "name": acl["resource_name"],
        "pattern": _name(PATTERNS, acl["pattern_type"]),
        "principal": acl["principal"],
        "host": acl["host"],
        "operation": _name(OPERATIONS, acl["operation"]),
        "permission": _name(PERMISSIONS, acl["permission_type"]),
    }


def _name(names: dict[str, int], number: int) -> str:
    """What a number is called here; the number itself of what is new to this version."""
    return next((name for name, known in names.items() if known == number), str(number))
