"""`shmbroker user`: list, add, set-password, remove: who may authenticate by SCRAM."""

from __future__ import annotations

import functools
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, cluster_options, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_list
from shmbroker.client.users import UserAdmin, over_control, over_network
from shmbroker.security.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

SALT_BYTES = 24
PASSWORD_CHARACTERS_MAX = 1024


@click.group("user", cls=HintingGroup)
def command() -> None:
    """Show and change who may authenticate by SCRAM.

    \b
    shmbroker user add alice --data ~/.local/state/shmbroker
    shmbroker user add bob --password-file /run/secrets/bob
    shmbroker user list
    shmbroker user remove alice

    With --data a broker of this host is asked over its control socket, which asks for no password:
    so the first user comes to be. A password is read from a file, a variable, standard input or the
    terminal, never from the command line.
    """


def _asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --data and the options of a cluster; it is called with a `UserAdmin`."""

    @click.option(
        "--data",
        metavar="DIR",
        help="Ask the broker of this host that works on this directory, over its control socket.",
    )
    @cluster_options
    @functools.wraps(function)
    def with_admin(cluster: TargetCluster, data: str | None, **rest: Any) -> Any:
        with _admin(cluster, data) as admin:
            return function(admin=admin, **rest)

    return with_admin


@contextmanager
def _admin(cluster: TargetCluster, data: str | None) -> Iterator[UserAdmin]:
    if data is not None:
        with over_control(data, "shmbroker-cli") as control:
            yield control
        return
    cluster.check_reachable()
    yield over_network(cluster.addresses())


def _password_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--password-file, --password-env, --iterations."""
    for option in reversed(
        (
            click.option(
                "--password-file",
                metavar="FILE",
                help="Read the password from this file; - is standard input.",
            ),
            click.option(
                "--password-env",
                metavar="NAME",
                help="Read the password from this variable of the environment.",
            ),
            click.option(
                "--iterations",
                type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
                default=ITERATIONS_MAX,
                show_default=True,
                help="Choose how often a password is hashed; more make it dearer to guess.",
            ),
        )
    ):
        function = option(function)
    return function


def _name(_context: click.Context, _argument: click.Parameter, user: str) -> str:
    if not user:
        raise click.UsageError("A user has a name: it is empty.")
    return user


_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(MECHANISMS), case_sensitive=False),
    multiple=True,
    help="Take this mechanism; repeatable.  [default: all]",
)


@command.command("list")
@json_option
@_asked
def list_users(admin: UserAdmin, as_json: bool) -> None:
    """Show users, their mechanisms and iterations.

    \b
    shmbroker user list --json
    """
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, mechanisms in sorted(admin.users().items())
        for mechanism, iterations in sorted(mechanisms.items())
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ("USER", "MECHANISM", "ITERATIONS")
        print_list(columns, [list(row.values()) for row in rows], "no user")


@command.command("add")
@click.argument("user", callback=_name)
@_password_options
@_mechanism_option
@_asked
def add(
    admin: UserAdmin, user: str, mechanisms: tuple[str, ...], iterations: int, **source: str | None
) -> None:
    """Add a user, with a password for SCRAM.

    \b
    shmbroker user add alice
    shmbroker user add alice --mechanism SCRAM-SHA-512 --password-env ALICE
    """
    if user in admin.users():
        raise CommandFault(f"{user} is there already; `shmbroker user set-password {user}`?")
    _set(admin, user, mechanisms or tuple(MECHANISMS), iterations, **source)
    say(f"added {user}")


@command.command("set-password")
@click.argument("user", callback=_name)
@_password_options
@_asked
def set_password(admin: UserAdmin, user: str, iterations: int, **source: str | None) -> None:
    """Give a user another password, for each mechanism that it has one for.

    \b
    shmbroker user set-password alice --password-file -

    Connections that are open stay so.
    """
    _set(admin, user, _mechanisms_of(admin, user), iterations, **source)
    say(f"{user} has another password")


@command.command("remove")
@click.argument("user", callback=_name)
@_mechanism_option
@_asked
def remove(admin: UserAdmin, user: str, mechanisms: tuple[str, ...]) -> None:
    """Remove a user, or its password for some mechanism.

    \b
    shmbroker user remove alice

    Connections that are open stay so.
    """
    there = _mechanisms_of(admin, user)
    for mechanism in mechanisms or there:
        if mechanism not in there:
            raise CommandFault(f"{user} has no password for {mechanism}")
    for mechanism in mechanisms or there:
        admin.remove(user, MECHANISMS[mechanism])
    is_gone = set(mechanisms or there) == set(there)
    say(f"removed {user}" if is_gone else f"{user} has no password for {', '.join(mechanisms)}")


def _mechanisms_of(admin: UserAdmin, user: str) -> tuple[str, ...]:
    there = admin.users().get(user)
    if there is None:
        raise CommandFault(f"there is no user {user}; `shmbroker user list` shows who is there")
    return tuple(sorted(there))


def _set(
    admin: UserAdmin, user: str, mechanisms: tuple[str, ...], iterations: int, **source: str | None
) -> None:
    password = _password(user, **source)
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        admin.set_password(user, MECHANISMS[mechanism], password, salt, iterations)


def _password(user: str, password_file: str | None, password_env: str | None) -> str:
    """The password from where the options say, or from standard input: asked twice on a
    terminal."""
    if password_file is not None and password_env is not None:
        raise click.UsageError("Name --password-file or --password-env, not both.")
    if password_env is not None:
        password = os.environ.get(password_env, "")
        where = f"${password_env}"
    elif password_file not in (None, "-"):
        assert password_file is not None
        try:
            with open(password_file, encoding="utf-8") as file:
                password = file.read(PASSWORD_CHARACTERS_MAX + 2).removesuffix("\n")
        except (OSError, UnicodeDecodeError) as fault:
            reason = (fault.strerror if isinstance(fault, OSError) else None) or fault
            raise CommandFault(f"{password_file} can't be read: {reason}") from None
        where = password_file
    elif sys.stdin.isatty():
        password = click.prompt(
            f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True
        )
        where = "the terminal"
    else:
        password = sys.stdin.readline(PASSWORD_CHARACTERS_MAX + 2).removesuffix("\n")
        where = "standard input"
    if not password:
        raise CommandFault(f"there is no password in {where}")
    if len(password) > PASSWORD_CHARACTERS_MAX:
        raise CommandFault(
            f"the password in {where} is longer than {PASSWORD_CHARACTERS_MAX} characters"
        )
    return password
