"""`shmbroker token`: create, list, renew, expire delegation tokens, as kafka-delegation-tokens
does.

A token is named by its id. Its secret is asked of the cluster where it is needed: among the
arguments, all who list processes would see it.
"""

from __future__ import annotations

import base64
import os
from contextlib import nullcontext
from typing import Any, TextIO

import click

from shmbroker.cli.client import TargetCluster, cluster_options, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_table
from shmbroker.cli.words import moment_text, parse_span

DEFAULT = -1
"""A time that leaves it to the cluster."""


@click.group("token", cls=HintingGroup)
def command() -> None:
    """Make, show, renew and end delegation tokens.

    \b
    shmbroker token create --renewer User:bob --lifetime 2d
    shmbroker token list
    shmbroker token renew ID --for 12h
    shmbroker token expire ID

    They are for who has shown who he is, by SASL or a certificate, where the broker has the
    setting delegation.token.secret.key.
    """


class Span(click.ParamType[int]):
    """A time such as 90s, 15m, 12h, 7d; milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_span(value)
        except ValueError as refusal:
            self.fail(f"{refusal}.", param, ctx)


class PrincipalName(click.ParamType[tuple[str, str]]):
    """TYPE:NAME, such as User:alice."""

    name = "principal"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        type_, colon, name = value.partition(":")
        if not colon or not type_:
            self.fail(f"a principal is TYPE:NAME, such as User:alice; not {value}.", param, ctx)
        return type_, name


@command.command("create")
@click.option(
    "--owner",
    type=PrincipalName(),
    metavar="TYPE:NAME",
    help="Whom it stands for.  [default: yourself]",
)
@click.option(
    "--renewer",
    "renewers",
    type=PrincipalName(),
    metavar="TYPE:NAME",
    multiple=True,
    help="Who may renew and end it besides the owner; repeatable.",
)
@click.option(
    "--lifetime",
    "lifetime_ms",
    type=Span(),
    metavar="SPAN",
    default=DEFAULT,
    help="How long it may be renewed, as 12h or 7d.  [default: what the broker allows]",
)
@click.option(
    "--secret-to",
    "secret_file",
    metavar="FILE",
    help="Write its secret there, for its owner's eyes only, and do not show it.",
)
@json_option
@cluster_options
def create(
    cluster: TargetCluster,
    owner: tuple[str, str] | None,
    renewers: tuple[tuple[str, str], ...],
    lifetime_ms: int,
    secret_file: str | None,
    as_json: bool,
) -> None:
    """Make a token, and show its id and its secret.

    \b
    shmbroker token create --secret-to ./job.secret
    shmbroker token create --owner User:job --renewer User:bob --lifetime 2d --json
    """
    from shmbroker.client.admin import create_token

    cluster.check_reachable()
    # A file that can't be written is refused before there is a token whose secret is lost.
    with nullcontext() if secret_file is None else _opened(secret_file) as place:
        made = create_token(cluster.addresses(), owner, renewers, lifetime_ms)
        row = _row(made, with_secret=True)
        if place is not None:
            place.truncate()
            place.write(row.pop("secret") + "\n")
    _show([row], as_json)


@command.command("list")
@click.option(
    "--owner",
    "owners",
    type=PrincipalName(),
    metavar="TYPE:NAME",
    multiple=True,
    help="Only those that concern this one, who owns, asked for or may renew them; repeatable.",
)
@click.option("--secrets", "with_secrets", is_flag=True, help="Show what proves them, too.")
@json_option
@cluster_options
def list_tokens(
    cluster: TargetCluster, owners: tuple[tuple[str, str], ...], with_secrets: bool, as_json: bool
) -> None:
    """Show the tokens that you may see.

    \b
    shmbroker token list
    shmbroker token list --owner User:alice --json
    """
    from shmbroker.client.admin import tokens

    cluster.check_reachable()
    found = tokens(cluster.addresses(), owners or None)
    if not found and not as_json:
        say("no token")
        return
    found.sort(key=lambda token: (token["issue_timestamp"], token["token_id"]))
    _show([_row(token, with_secret=with_secrets) for token in found], as_json)


@command.command("renew")
@click.argument("token_id", metavar="ID")
@click.option(
    "--for",
    "period_ms",
    type=Span(),
    metavar="SPAN",
    default=DEFAULT,
    help="How long it is to hold from now, as 12h.  [default: what the broker allows]",
)
@cluster_options
def renew(cluster: TargetCluster, token_id: str, period_ms: int) -> None:
    """Let a token hold for longer.

    \b
    shmbroker token renew FQc1VoYcSo20_ohSnZyXyQ --for 12h
    """
    from shmbroker.client.admin import renew_token

    until_ms = renew_token(cluster.addresses(), _secret(cluster, token_id), period_ms)
    say(f"token {token_id} holds until {moment_text(until_ms)}")


@command.command("expire")
@click.argument("token_id", metavar="ID")
@click.option(
    "--in",
    "period_ms",
    type=Span(),
    metavar="SPAN",
    default=DEFAULT,
    help="When it is to end from now, as 30m.  [default: at once, and for good]",
)
@cluster_options
def expire(cluster: TargetCluster, token_id: str, period_ms: int) -> None:
    """End a token.

    \b
    shmbroker token expire FQc1VoYcSo20_ohSnZyXyQ
    """
    from shmbroker.client.admin import expire_token

    until_ms = expire_token(cluster.addresses(), _secret(cluster, token_id), period_ms)
    if period_ms < 0:
        say(f"token {token_id} is removed")
    else:
        say(f"token {token_id} holds until {moment_text(until_ms)}")


def _secret(cluster: TargetCluster, token_id: str) -> bytes:
    """What proves a token; CommandFault if it is none that one may see."""
    from shmbroker.client.admin import tokens

    cluster.check_reachable()
    for token in tokens(cluster.addresses()):
        if token["token_id"] == token_id:
            return bytes(token["hmac"])
    raise CommandFault(f"there is no token {token_id} that you may see; `token list` shows them")


def _opened(path: str) -> TextIO:
    """A file for a secret; what it holds stays until there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return open(descriptor, "w", encoding="ascii")


def _row(token: dict[str, Any], *, with_secret: bool) -> dict[str, Any]:
    row = {
        "id": token["token_id"],
        "owner": _principal(token, ""),
        "requester": _principal(token, "token_requester_"),
        "renewers": [_principal(renewer, "") for renewer in token["renewers"]],
        "issued": moment_text(token["issue_timestamp"]),
        "expires": moment_text(token["expiry_timestamp"]),
        "renewable_until": moment_text(token["max_timestamp"]),
    }
    if with_secret:
        row["secret"] = base64.b64encode(token["hmac"]).decode()
    return row


def _principal(row: dict[str, Any], prefix: str) -> str:
    return f"{row[prefix + 'principal_type']}:{row[prefix + 'principal_name']}"


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        [name.upper().replace("_", " ") for name in rows[0]],
        [[",".join(row["renewers"]) or None if name == "renewers" else value
          for name, value in row.items()] for row in rows],
    )  # fmt: skip
