"""`shmbroker doctor`: looks at host, directory, family, cluster and clients, and changes nothing.

facts     what can be known, as plain values
gather    reads them
table     what a check and its result are
host, directory, family, cluster, clients   the checks, each a pure function of the facts
bundle    all of it in one file, for a bug report
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from shmbroker.cli.client import DEFAULT_SERVER, TargetCluster, cluster_options, json_option
from shmbroker.cli.doctor import clients, directory, family, host
from shmbroker.cli.doctor import cluster as answering
from shmbroker.cli.doctor.facts import Facts
from shmbroker.cli.doctor.table import (
    FAULT,
    LEVELS,
    OK,
    UNKNOWN,
    WARNING,
    Check,
    Finding,
    findings,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json
from shmbroker.errors import Fault

CHECKS: Sequence[Check] = (
    *host.CHECKS,
    *directory.CHECKS,
    *family.CHECKS,
    *answering.CHECKS,
    *clients.CHECKS,
)
DEFAULT = "check"


class DoctorGroup(HintingGroup):
    """`doctor` alone, and `doctor DIR`, are `doctor check`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group("doctor", cls=DoctorGroup)
def command() -> None:
    """Look for what is wrong, or will be, on this host and around a broker.

    \b
    shmbroker doctor                            this host, the data directory, the broker that runs
    shmbroker doctor /srv/shmbroker             another data directory
    shmbroker doctor /var/lib/kafka/data        Apache Kafka's: what would not come along
    shmbroker doctor --json | jq '.checks[] | select(.level == "fault")'
    shmbroker doctor bundle                     all of it in one file, for a bug report

    Without a word it is `doctor check`. It reads, asks, and changes nothing.
    """


_all_option = click.option("--all", "shows_all", is_flag=True, help="Show what is well, too.")
_strict_option = click.option("--strict", is_flag=True, help="End with 1 for a warning, too.")


def _directory_options(of: Callable[..., Any]) -> Callable[..., Any]:
    """DIR, or --data DIR as `serve`, `status` and `top` take it."""

    @click.argument("path", metavar="[DIR]", required=False)
    @click.option("--data", metavar="DIR", help="The same as DIR alone.")
    @functools.wraps(of)
    def with_directory(path: str | None, data: str | None, **rest: Any) -> Any:
        if path is not None and data is not None:
            raise click.UsageError("Name the directory once: DIR or --data DIR.")
        return of(path=path or data, **rest)

    return with_directory


@command.command(DEFAULT)
@_directory_options
@_all_option
@_strict_option
@json_option
@cluster_options
def check(
    cluster: TargetCluster, path: str | None, shows_all: bool, strict: bool, as_json: bool
) -> None:
    """Run the checks; each that finds something says how to mend it.

    \b
    shmbroker doctor check
    shmbroker doctor check /srv/shmbroker --all
    shmbroker doctor check --strict --json

    A fault is in the way now; a warning will be one day, or under load; a note could be better.
    Exit status: 0 no fault, 1 at least one; with --strict a warning counts, too.
    """
    found = _looked(cluster, path)[1]
    if as_json:
        print_json(_report(found))
    else:
        _print(found, shows_all)
    wrong = (FAULT, WARNING) if strict else (FAULT,)
    bad = [each for each in found if each.result.level in wrong]
    if bad:
        raise CommandFault(
            "; ".join(f"{each.check.area}/{each.check.name}: {each.result.saw}" for each in bad)
        )


@command.command()
@_directory_options
@click.option("-o", "--output", metavar="FILE", help="Write it there.  [default: named by date]")
@click.option("--config", metavar="FILE", help="Add this file of settings, without its secrets.")
@click.option("--log", metavar="FILE", help="Add the end of this log of a broker.")
@cluster_options
def bundle(
    cluster: TargetCluster,
    path: str | None,
    output: str | None,
    config: str | None,
    log: str | None,
) -> None:
    """Write what the checks say and saw into one file, for a bug report.

    \b
    shmbroker doctor bundle
    shmbroker doctor bundle /srv/shmbroker -o report.tar.gz --config /etc/shmbroker.toml

    No record is read. Passwords, keys and tokens are removed; names of topics and groups are in it.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from shmbroker import clock
    from shmbroker.cli.doctor.bundle import texts, write

    facts, found = _looked(cluster, path)
    moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    target = Path(output or f"shmbroker-doctor-{moment:%Y%m%d-%H%M%S}.tar.gz")
    write(target, texts(facts, _report(found), config, log))
    click.echo(f"{target}: it has names of topics and groups, and no record; look before you send")


def _looked(cluster: TargetCluster, path: str | None) -> tuple[Facts, list[Finding]]:
    """The facts, and what the checks say of them. Where no address was given, the family that works
    on the directory is asked."""
    from shmbroker.cli import local_status
    from shmbroker.cli.doctor.gather import gather

    directory = path or _directory_here(cluster)
    if cluster.servers == DEFAULT_SERVER:
        with suppress(Fault):  # no family works on it, or we may not look
            cluster.servers = local_status.servers_of(directory)
    facts = gather(directory, cluster)
    return facts, findings(CHECKS, facts)


def _directory_here(cluster: TargetCluster) -> str:
    """The data directory of the family that the command was pointed at; of the only one of this
    host; else the one that `serve` takes by default."""
    from shmbroker.cli import local_status
    from shmbroker.cli.run_broker import default_data_directory
    from shmbroker.observe import attach

    seen = local_status.find(cluster.addresses(), None)
    if seen is not None:
        seen.close()
        return seen.about.data_directory
    there = [each.data_directory for each in attach.running()]
    return (there[0] if len(there) == 1 else None) or default_data_directory()


def _report(found: Sequence[Finding]) -> dict[str, Any]:
    counts = {
        level: sum(each.result.level == level for each in found) for level in reversed(LEVELS)
    }
    rows = [
        {
            "area": each.check.area,
            "check": each.check.name,
            "level": each.result.level,
            "saw": each.result.saw,
            "fix": each.result.fix or None,
        }
        for each in found
    ]
    return {"counts": counts, "checks": rows}


def _print(found: Sequence[Finding], shows_all: bool) -> None:
    hidden = () if shows_all else (OK, UNKNOWN)
    for level in LEVELS:
        for each in found:
            if each.result.level == level and level not in hidden:
                where = f"{each.check.area}/{each.check.name}"
                click.echo(f"{level:<8} {where}: {each.result.saw}")
                if each.result.fix:
                    click.echo(f"{'':<8} fix: {each.result.fix}")
    counts = _report(found)["counts"]
    told = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    click.echo(f"{len(found)} checks: {told}{'' if shows_all else '; --all shows each'}")
