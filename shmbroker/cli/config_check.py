"""`shmbroker config check`: what a start with these settings would do, and what is doubtful."""

import socket
from typing import Any

import click

from shmbroker import clock
from shmbroker.cli.client import json_option
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_table
from shmbroker.cli.run_broker import flags_of, secrets_complaint
from shmbroker.cli.serve import with_flags
from shmbroker.errors import ConfigFault
from shmbroker.gateway.tls_context import complaints
from shmbroker.processes.listening import check
from shmbroker.settings import listener_doubts
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listeners import ListenerConfig, address_text

DIALLED = "the address that they dialled"
ANY_PORT = "a free port"


@with_flags
@click.command("check")
@json_option
def command(as_json: bool, **parameters: Any) -> None:
    """Read settings as `serve` would: each listener, what its clients will be told, and what is
    doubtful. Starts nothing, and needs no broker.

    \b
    shmbroker config check --config /etc/shmbroker/shmbroker.toml
    shmbroker config check --set listeners=PLAINTEXT://0.0.0.0:9092

    Exit status: 0 a broker would start with them, be there warnings or not; 1 none would.
    """
    try:
        config = BrokerConfig.load(
            parameters["config_file"], parameters["assignments"], flags_of(parameters)
        )
        tls = [(one.name, check(config, one)) for one in config.listeners]
    except ConfigFault as fault:
        raise CommandFault(str(fault).rstrip(".")) from None
    rows = [row for one in config.listeners for row in _rows(config, one)]
    warnings = [
        *config.idle_complaints(),
        *_doubts(config, parameters["config_file"]),
        *complaints(((name, each) for name, each in tls if each), clock.now_ms()),
    ]
    if as_json:
        print_json({"listeners": rows, "warnings": warnings})
        return
    print_table(
        ("LISTENER", "PROTOCOL", "BROKER", "LISTENS ON", "CLIENTS ARE TOLD"),
        [tuple(map(str, row.values())) for row in rows],
    )
    for warning in warnings:
        click.echo(f"warning: {warning}")


def _rows(config: BrokerConfig, one: ListenerConfig) -> list[dict[str, Any]]:
    rows = []
    for place, number in enumerate(config.broker_ids):
        port = one.port_of(place)
        if one.is_unix:
            where = told = one.path_of(place)
        else:
            where = (
                address_text(one.host or "*", port) if port else f"{one.host or '*'}, {ANY_PORT}"
            )
            told_port = one.told_port_of(place, port)
            told = address_text(one.told_host, told_port) if one.told_host else DIALLED
        rows.append(
            {
                "listener": one.name,
                "protocol": one.protocol,
                "broker": number,
                "listens_on": where,
                "clients_are_told": told,
            }
        )
    return rows


def _doubts(config: BrokerConfig, path: str | None) -> list[str]:
    found = [listener_doubts.nobody_is_super(config)]
    for one in config.listeners:
        found += listener_doubts.doubts(config, one)
        found.append(listener_doubts.unresolved(one, _resolves))
    if path is not None:
        found.append(secrets_complaint(path))
    return [each for each in found if each]


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
