"""`shmbroker profile`: what clients say to enter a cluster, by names."""

from __future__ import annotations

import click

from shmbroker.cli.client import cluster_of, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_list
from shmbroker.client import profiles
from shmbroker.client.security import security_of
from shmbroker.errors import ConfigFault


@click.group(cls=HintingGroup)
def command() -> None:
    """TLS, users and passwords by a name, for --profile NAME and $SHMBROKER_PROFILE.

    \b
    shmbroker profile list
    shmbroker profile check work
    shmbroker topic list --profile work

    They stand in ~/.config/shmbroker/profiles.toml ($SHMBROKER_PROFILES), by Kafka's names:

    \b
    [work]
    bootstrap.servers = "kafka.example.org:9093"
    security.protocol = "SASL_SSL"
    ssl.ca.location = "/etc/ssl/kafka.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "anna"
    sasl.password = { file = "~/.config/shmbroker/work.password" }

    A secret is named by a file, a variable { env = "NAME" } or a credential of systemd's
    { credential = "NAME" }; where one stands itself, the file is to be of mode 600. No command
    shows a secret.
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Profiles, where they lead and as whom.

    \b
    shmbroker profile list
    shmbroker profile list --json
    """
    rows = [
        {
            "profile": name,
            "bootstrap.servers": profile.servers,
            "security.protocol": shown.get("security.protocol", "PLAINTEXT"),
            "sasl.username": shown.get("sasl.username"),
        }
        for name, profile in sorted(profiles.load_all(profiles.path()).items())
        for shown in [profile.shown()]
    ]
    if as_json:
        print_json(rows)
        return
    shown = [[each or "-" for each in row.values()] for row in rows]
    print_list(list(rows[0]) if rows else [], shown, f"no profile in {profiles.path()}")


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """The settings of a profile; of secrets, where they lie.

    \b
    shmbroker profile show work
    """
    shown = profiles.load(name).shown()
    if as_json:
        print_json(shown)
    else:
        for setting, text in shown.items():
            click.echo(f"{setting}={text}")


@command.command()
@click.argument("name")
@click.option("--offline", is_flag=True, help="Read it and its secrets, ask no cluster.")
def check(name: str, offline: bool) -> None:
    """Whether a profile can be used: its secrets are there, and its cluster lets us in.

    \b
    shmbroker profile check work
    shmbroker profile check work --offline
    """
    from shmbroker.client import admin
    from shmbroker.client.addresses import addresses_text
    from shmbroker.client.cluster import Cluster

    cluster = cluster_of(None, name)
    assert cluster.profile is not None
    security = security_of(cluster.profile.security)
    if security.is_encrypted:
        from shmbroker.client.tls import context_of

        context_of(security)
    who = security.username or security.client_id
    entering = security.protocol
    if security.is_named:
        entering += f" by {security.mechanism}" + (f" as {who}" if who else "")
    if offline:
        click.echo(f"{name}: {entering}; nobody was asked.")
        return
    if cluster.profile.servers is None:
        raise ConfigFault(f"profile {name} has no bootstrap.servers: --offline asks no cluster")
    addresses = cluster.addresses()
    cluster.check_reachable()
    with Cluster(addresses, admin.CLIENT_ID, admin.ANSWER_S) as asked:
        try:
            asked.describe([], creates=False)
        except OSError as error:
            raise CommandFault(f"{addresses_text(addresses)} does not let us in: {error}") from None
        brokers = [address for _, address in sorted(asked.brokers.items())]
    for address in brokers:
        with Cluster(addresses.others([address]), admin.CLIENT_ID, admin.ANSWER_S) as asked:
            try:
                asked.describe([], creates=False)
            except OSError as error:
                where = addresses_text([address])
                raise CommandFault(
                    f"{addresses_text(addresses)} lets us in, its broker {where} does not: {error}"
                ) from None
    click.echo(f"{name}: {entering}, let in by {addresses_text(brokers)}.")
