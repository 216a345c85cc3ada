"""`shmbroker tune`: settings for this host, by measuring it; shown first, written where asked.

facts          what is known, as plain values
measuring      finds it out, with brokers on trial
advice         what follows from it, pure
settings_file  puts settings into a file that is there
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import click

from shmbroker.cli.client import json_option
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_json, print_table
from shmbroker.cli.run_broker import default_data_directory
from shmbroker.cli.tune.advice import Advice, advise, notes
from shmbroker.cli.tune.facts import TuneFacts
from shmbroker.cli.tune.settings_file import apply
from shmbroker.errors import ConfigFault
from shmbroker.settings.broker_config import BrokerConfig

UNITS = (
    ("wake_us", "a sleeping process wakes after", "us", 1.0),
    ("copy_rate", "memory is copied at", "MB/s", 1e6),
    ("crc_rate", "checksums are computed at", "MB/s", 1e6),
    ("write_rate", "the disk writes", "MB/s", 1e6),
    ("flush_us", "4 KiB are on the disk after", "us", 1.0),
    ("cold_read_rate", "a cold file is read at", "MB/s", 1e6),
)


@click.command("tune")
@click.option(
    "--seconds",
    type=click.FloatRange(2, 60),
    default=20.0,
    show_default=True,
    help="Measure for about so long.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Start from the settings in this file, TOML or properties; --apply changes it.",
)
@click.option("--data", metavar="DIR", help="Measure the disk there.  [default: as serve]")
@click.option("--apply", "applies", is_flag=True, help="Write the advised settings into --config.")
@json_option
def command(
    seconds: float, config_file: str | None, data: str | None, applies: bool, as_json: bool
) -> None:
    """Measure this host, and show which settings would be better on it.

    \b
    shmbroker tune                                            look, and change nothing
    shmbroker tune --config /etc/shmbroker.properties         beside the settings there
    shmbroker tune --config /etc/shmbroker.properties --apply --seconds 60
    shmbroker tune --json | jq '.advice[] | select(.command != "").command'

    It starts brokers with other settings in a temporary directory, on free loopback ports, and lets
    them take turns. What the kernel should be told is printed as commands, and never run. A broker
    that runs meanwhile, or anything else that is busy, makes the measurement worse.
    """
    if applies and config_file is None:
        raise CommandFault("--apply needs --config FILE: the file of settings that it changes")
    try:
        is_there = config_file is not None and os.path.exists(config_file)
        if config_file is not None and not is_there and not applies:
            raise CommandFault(f"{config_file} is not there; leave out --config for the defaults")
        config = BrokerConfig.load(config_file if is_there else None)
    except ConfigFault as fault:
        raise CommandFault(str(fault).rstrip(".")) from None
    from shmbroker.cli.tune.measuring import measure

    where = data or config["shmbroker.data"] or default_data_directory()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    facts = measure(_existing(Path(where)), config, seconds, _say if not as_json else _quiet)
    if load > cores / 2 and not as_json:
        say(
            f"the load was {load:.1f} on {cores} cores before: what was measured may be chance; "
            "run it again when nothing else does much"
        )
    rows = advise(facts)
    chosen = {each.name: each.advised for each in rows if each.is_setting}
    backup = None
    if applies and chosen:
        assert config_file is not None
        backup = apply(config_file, chosen)
    if as_json:
        print_json(_report(facts, rows, config_file if applies and chosen else None, backup))
        return
    _print(facts, rows)
    if applies and chosen:
        kept = f", what it was is in {backup}" if backup else ""
        click.echo(f"\n{config_file} is written{kept}; it holds from the next start on")
    elif applies:
        click.echo(f"\n{config_file} stays as it is")
    elif chosen:
        file = shlex.quote(config_file) if config_file else "FILE"
        click.echo(f"\nNothing was changed: --config {file} --apply writes the settings there")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there: the same disk, as a rule."""
    while not directory.is_dir():
        directory = directory.parent
    return directory


def _say(text: str) -> None:
    click.echo(f"measuring: {text}", err=True)


def _quiet(_text: str) -> None:
    """Tell nobody."""


def _print(facts: TuneFacts, rows: list[Advice]) -> None:
    for name, told, unit, factor in UNITS:
        value = getattr(facts.costs, name)
        if value is not None:
            click.echo(f"{told:<32} {value / factor:>9,.1f} {unit}")
    for note in notes(facts):
        click.echo(note)
    click.echo()
    if not rows:
        click.echo("Nothing would be better by a tenth: leave it as it is")
        return
    print_table(
        ("SETTING", "NOW", "ADVISED", "GAIN", "WHY"),
        [
            (row.name, row.now, row.advised, f"{row.gain:.2f}" if row.gain else None, row.why)
            for row in rows
        ],
    )
    commands = [row.command for row in rows if row.command]
    if commands:
        click.echo("\nFor the host, as root; sysctl.d or a udev rule keeps them:")
        for each in commands:
            click.echo(f"  {each}")


def _report(
    facts: TuneFacts, rows: list[Advice], written: str | None, backup: str | None
) -> dict[str, object]:
    return {
        "advice": [dataclasses.asdict(row) for row in rows],
        "host": dataclasses.asdict(facts.system),
        "measured": dataclasses.asdict(facts.costs),
        "settings": facts.settings,
        "cpu_us_by_role": facts.cpu_us,
        "trials": [
            {
                "candidate": trial.candidate.name,
                "settings": trial.candidate.settings,
                "requests_per_s": trial.rates,
            }
            for trial in (facts.baseline, *facts.trials)
            if trial is not None
        ],
        "written": written,
        "backup": backup,
    }
