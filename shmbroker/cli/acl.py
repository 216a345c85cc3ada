"""`shmbroker acl`: list, add, remove: who may do what, as kafka-acls has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shmbroker.cli.client import (
    ASK_S,
    CHANGE_S,
    Cluster,
    cluster_options,
    json_option,
    metadata,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_table

OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
)
CLUSTER_NAME = "kafka-cluster"


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
    """--topic, --group, --transactional-id, --cluster, --prefixed."""
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


def _resources(given: dict[str, Any]) -> list[tuple[str, str]]:
    """(type, name) of what the options name."""
    found = [("TOPIC", name) for name in given["topics"]]
    found += [("GROUP", name) for name in given["groups"]]
    found += [("TRANSACTIONAL_ID", name) for name in given["transactional_ids"]]
    if given["is_cluster"]:
        if given["is_prefixed"]:
            raise click.UsageError("--prefixed is not for --cluster, which has one name.")
        found.append(("BROKER", CLUSTER_NAME))
    return found


@command.command("list")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal.")
@json_option
@cluster_options
def list_acls(cluster: Cluster, as_json: bool, principal: str | None, **given: Any) -> None:
    """Show ACLs: all, or those of a resource or principal.

    \b
    shmbroker acl list
    shmbroker acl list --principal User:alice --json
    """
    rows = [_row(acl) for acl in _found(cluster, principal, **given)]
    if as_json:
        print_json(rows)
        return
    columns = ("type", "name", "pattern", "principal", "host", "operation", "permission")
    if not rows:
        say("no ACL")
        return
    print_table(
        [name.upper() for name in columns], [[row[name] for name in columns] for row in rows]
    )


@command.command("add")
@click.option(
    "--allow", "allowed", metavar="TYPE:NAME", multiple=True, help="Allow it to this one."
)
@click.option("--deny", "denied", metavar="TYPE:NAME", multiple=True, help="Deny it to this one.")
@click.option(
    "--operation",
    "operations",
    type=click.Choice(OPERATIONS),
    multiple=True,
    required=True,
    help="Operation that is allowed or denied; repeatable.",
)
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@_resource_options
@cluster_options
def add(
    cluster: Cluster,
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
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    resources = _resources(given)
    if not resources:
        raise click.UsageError("Name what it is about: --topic, --group, --cluster …")
    if not allowed and not denied:
        raise click.UsageError("Name whom: --allow or --deny TYPE:NAME, such as User:alice.")
    for principal in (*allowed, *denied):
        if ":" not in principal:
            raise click.UsageError(
                f"A principal is TYPE:NAME, such as User:alice; not {principal}."
            )
    pattern = ResourcePatternType.PREFIXED if given["is_prefixed"] else ResourcePatternType.LITERAL
    bindings = [
        AclBinding(
            ResourceType[type_],
            name,
            pattern,
            principal,
            host,
            AclOperation[operation.upper().replace("-", "_")],
            permission,
        )
        for type_, name in resources
        for principals, permission in (
            (allowed, AclPermissionType.ALLOW),
            (denied, AclPermissionType.DENY),
        )
        for principal in principals
        for operation in operations
    ]
    admin = cluster.admin()
    metadata(admin, cluster)
    for made in admin.create_acls(bindings, request_timeout=CHANGE_S).values():
        _wait(made)
    say(f"{len(bindings)} ACL{'s' * (len(bindings) != 1)} added")


@command.command("remove")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal.")
@click.option("--all", "is_all", is_flag=True, help="All of them, where nothing else is named.")
@cluster_options
def remove(cluster: Cluster, principal: str | None, is_all: bool, **given: Any) -> None:
    """Remove the ACLs of a resource, of a principal, or of both.

    \b
    shmbroker acl remove --topic orders --principal User:alice
    """
    if not (_resources(given) or principal or is_all):
        raise click.UsageError("Name --topic, --group, --principal …, or --all.")
    admin = cluster.admin()
    metadata(admin, cluster)
    removed = 0
    for made in admin.delete_acls(_filters(principal, given), request_timeout=CHANGE_S).values():
        removed += len(_wait(made))
    say(f"{removed} ACL{'s' * (removed != 1)} removed")


def _filters(principal: str | None, given: dict[str, Any]) -> list[Any]:
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    pattern = ResourcePatternType.PREFIXED if given["is_prefixed"] else ResourcePatternType.ANY
    named: list[tuple[str, Any]] = [*_resources(given)] or [("ANY", None)]
    anybody: Any = None
    return [
        AclBindingFilter(
            ResourceType[type_],
            name,
            pattern,
            principal or anybody,
            anybody,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for type_, name in named
    ]


def _found(cluster: Cluster, principal: str | None, **given: Any) -> list[Any]:
    admin = cluster.admin()
    metadata(admin, cluster)
    found = [
        acl
        for wanted in _filters(principal, given)
        for acl in _wait(admin.describe_acls(wanted, request_timeout=CHANGE_S))
    ]
    if not found:
        # The client library gives none, too, where the cluster refuses to tell them.
        from shmbroker.client.admin import are_acls_told

        if not are_acls_told(cluster.addresses()):
            raise _no_authorizer()
    return sorted(found, key=lambda acl: tuple(_row(acl).values()))


def _row(acl: Any) -> dict[str, str]:
    kind = "cluster" if acl.restype.name == "BROKER" else acl.restype.name.lower()
    return {
        "type": kind.replace("_", "-"),
        "name": acl.name,
        "pattern": acl.resource_pattern_type.name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name.lower().replace("_", "-"),
        "permission": acl.permission_type.name.lower(),
    }


def _wait(made: Any) -> Any:
    """What the cluster has answered; CommandFault if it refuses."""
    from confluent_kafka import KafkaException

    try:
        return made.result(CHANGE_S + ASK_S)
    except KafkaException as refusal:
        error = refusal.args[0]
        if error.name() == "SECURITY_DISABLED":
            raise _no_authorizer() from None
        raise


def _no_authorizer() -> CommandFault:
    return CommandFault(
        "the cluster has no ACLs, as it has no authorizer: start it with --set "
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    )
