"""`shmbroker config`: get, set, explain, check."""

from collections.abc import Iterable
from typing import Any

import click

from shmbroker.cli import config_check
from shmbroker.cli.client import (
    ASK_S,
    CHANGE_S,
    TargetCluster,
    cluster_options,
    json_option,
    matching,
    metadata,
    pairs,
    say_idle,
    waited,
)
from shmbroker.cli.hints import HintingGroup, meant
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_list, print_table
from shmbroker.client.addresses import Addresses
from shmbroker.settings.left_out import LEFT_OUT

LOGGER = "logger"
KINDS = click.Choice(["topic", "broker", LOGGER])
ALL_BROKERS = "default"
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file or flag",
    5: "default",
    6: "logger",
    8: "group",
}


@click.group("config", cls=HintingGroup)
def command() -> None:
    """Show and change settings of topics and brokers, explain and check them.

    \b
    shmbroker config get topic flights
    shmbroker config set topic flights retention.ms=-1
    shmbroker config explain retention.ms
    shmbroker config check --config shmbroker.toml
    """


command.add_command(config_check.command)


@command.command()
@click.argument("kind", type=KINDS)
@click.argument("name")
@click.argument("keys", metavar="[KEY…]", nargs=-1)
@click.option("-a", "--all", "shows_all", is_flag=True, help="Show defaults, too.")
@json_option
@cluster_options
def get(
    cluster: TargetCluster,
    kind: str,
    name: str,
    keys: tuple[str, ...],
    shows_all: bool,
    as_json: bool,
) -> None:
    """Show settings: those that were set, all of them, or some KEYs.

    \b
    shmbroker config get topic flights
    shmbroker config get topic flights retention.ms segment.bytes
    shmbroker config get broker 1 --all --json
    shmbroker config get broker default        what was set for all brokers
    shmbroker config get logger 1              at which level the modules of broker 1 log
    """
    rows = _rows(cluster, kind, name)
    if keys:
        known = {row["name"] for row in rows}
        for key in keys:
            if key not in known:
                raise CommandFault(f"{kind} {name} has no setting {key}{_hint(key, known)}")
        rows = [row for row in rows if row["name"] in keys]
    elif not shows_all:
        rows = [row for row in rows if row["source"] != SOURCES[5]]
    if as_json:
        print_json(rows)
        return
    columns = ("SETTING", "VALUE", "FROM")
    nothing = f"no setting of {kind} {name} was set"
    if (kind, name) != ("broker", ALL_BROKERS):
        nothing += "; --all shows the defaults"
    print_list(columns, [tuple(row.values()) for row in rows], nothing)


def _rows(cluster: TargetCluster, kind: str, name: str) -> list[dict[str, Any]]:
    if (kind, name) == ("broker", ALL_BROKERS):
        from shmbroker.client.admin import default_broker_configs

        cluster.check_reachable()
        values = default_broker_configs(cluster.addresses())
        return [
            {"name": key, "value": value, "source": SOURCES[3]}
            for key, value in sorted(values.items())
        ]
    if kind == LOGGER:
        from shmbroker.client.admin import logger_levels

        levels = logger_levels(_address_of(cluster, name), name)
        return [
            {"name": key, "value": value, "source": SOURCES[6]}
            for key, value in sorted(levels.items())
        ]
    admin, resource = _resource(cluster, kind, name, [])
    (future,) = admin.describe_configs([resource], request_timeout=ASK_S).values()
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "source": SOURCES.get(int(entry.source), "unknown"),
        }
        for _, entry in sorted(waited(future, f"{kind} {name}").items())
    ]


def _address_of(cluster: TargetCluster, name: str) -> Addresses:
    """Where a broker is; CommandFault if there is none of that id."""
    there = metadata(cluster.admin(), cluster).brokers
    for broker in there.values():
        if str(broker.id) == name:
            return cluster.addresses().others([(broker.host, broker.port)])
    raise CommandFault(f"there is no broker {name}, only {', '.join(map(str, sorted(there)))}")


def _resource(cluster: TargetCluster, kind: str, name: str, changes: list[Any]) -> tuple[Any, Any]:
    """(admin client, ConfigResource); CommandFault if there is no such topic or broker."""
    from confluent_kafka.admin import ConfigResource

    admin = cluster.admin()
    there = metadata(admin, cluster)
    if kind == "topic":
        matching([name], there.topics, "topic")
        type_ = ConfigResource.Type.TOPIC
    else:
        if name not in map(str, there.brokers):
            brokers = ", ".join(map(str, sorted(there.brokers)))
            raise CommandFault(
                f"there is no broker {name}, only {brokers}; {ALL_BROKERS} means all of them"
            )
        type_ = ConfigResource.Type.BROKER
    return admin, ConfigResource(type_, name, incremental_configs=changes or None)


@command.command("set")
@click.argument("kind", type=KINDS)
@click.argument("name")
@click.argument("assigned", metavar="[KEY=VALUE…]", nargs=-1)
@click.option(
    "--set",
    "values",
    metavar="KEY=VALUE",
    multiple=True,
    help="The same as KEY=VALUE alone; repeatable.",
)
@click.option(
    "--delete",
    "deleted",
    metavar="KEY",
    multiple=True,
    help="Return KEY to its default; repeatable.",
)
@cluster_options
def set_(
    cluster: TargetCluster,
    kind: str,
    name: str,
    assigned: tuple[str, ...],
    values: tuple[str, ...],
    deleted: tuple[str, ...],
) -> None:
    """Change settings of a topic, a broker, or all brokers ("default"), or levels of loggers.

    \b
    shmbroker config set topic flights retention.ms=-1 segment.bytes=67108864
    shmbroker config set topic flights --delete retention.ms
    shmbroker config set broker default log.retention.ms=86400000
    shmbroker config set logger 1 shmbroker.gateway=DEBUG     until it stops
    """
    wanted = pairs(assigned, "config set") | pairs(values, "--set")
    if not wanted and not deleted:
        raise click.UsageError("Say what to change: KEY=VALUE or --delete KEY.")
    if (kind, name) == ("broker", ALL_BROKERS):
        from shmbroker.client.admin import alter_default_broker_configs

        cluster.check_reachable()
        alter_default_broker_configs(cluster.addresses(), wanted, deleted)
        say_idle(cluster, cluster.admin(), wanted, is_for_broker=True)
        return
    if kind == LOGGER:
        from shmbroker.client.admin import alter_logger_levels

        alter_logger_levels(_address_of(cluster, name), name, wanted, deleted)
        return
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in wanted.items()
    ]
    changes += [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in deleted
    ]
    admin, resource = _resource(cluster, kind, name, changes)
    (future,) = admin.incremental_alter_configs([resource], request_timeout=CHANGE_S).values()
    waited(future, f"{kind} {name}")
    say_idle(cluster, admin, wanted, is_for_broker=kind == "broker")


@command.command()
@click.argument("names", metavar="[NAME…]", nargs=-1)
@json_option
def explain(names: tuple[str, ...], as_json: bool) -> None:
    """Say what settings are for, and which have no effect here; needs no broker.

    \b
    shmbroker config explain retention.ms
    shmbroker config explain                   all names and defaults
    shmbroker config explain log.retention.ms --json
    """
    from shmbroker.cli import settings

    known = settings.names()
    for name in names:
        if name not in known and name not in LEFT_OUT:
            hint = _hint(name, known) or "; `shmbroker config explain` lists all"
            raise CommandFault(f"there is no setting {name}{hint}")
    found = [settings.explained(name) for name in names or sorted(known)]
    if as_json:
        print_json(found)
    elif not names:
        print_table(
            ("SETTING", "OF", "TYPE", "DEFAULT", "EFFECT"),
            [
                (
                    row["name"],
                    ", ".join(row["of"]),
                    row["type"],
                    row["default"],
                    "" if row["has_effect"] else "none",
                )
                for row in found
            ],
        )
    else:
        click.echo("\n\n".join(settings.as_text(row) for row in found))


def _hint(name: str, known: Iterable[str]) -> str:
    hint = meant(name, known)
    return f"; {hint}" if hint else ""
