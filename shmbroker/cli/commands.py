"""The root of the command line. Sub-commands live in modules of their own, loaded when named."""

import importlib
from typing import Any

import click

from shmbroker import __version__
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandEnding

COMMANDS = {
    "acl": "shmbroker.cli.acl",
    "backup": "shmbroker.cli.backup",
    "bench": "shmbroker.cli.bench",
    "completion": "shmbroker.cli.completion",
    "config": "shmbroker.cli.config",
    "consume": "shmbroker.cli.consume",
    "doctor": "shmbroker.cli.doctor",
    "embedded": "shmbroker.testing.embedded",
    "group": "shmbroker.cli.group",
    "ingest": "shmbroker.cli.ingest",
    "log": "shmbroker.cli.log",
    "pipeline": "shmbroker.cli.pipeline",
    "produce": "shmbroker.cli.produce",
    "profile": "shmbroker.cli.profile",
    "quota": "shmbroker.cli.quota",
    "quorum": "shmbroker.cli.quorum",
    "restore": "shmbroker.cli.restore",
    "serve": "shmbroker.cli.serve",
    "status": "shmbroker.cli.status",
    "systemd": "shmbroker.cli.systemd",
    "token": "shmbroker.cli.token",
    "top": "shmbroker.cli.top",
    "topic": "shmbroker.cli.topic",
    "transaction": "shmbroker.cli.transaction",
    "tune": "shmbroker.cli.tune",
    "user": "shmbroker.cli.user",
}


class LazyGroup(HintingGroup):
    """A group whose commands are imported by name: `--help` of one doesn't load the others."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        return importlib.import_module(module).command if module else None

    def invoke(self, context: click.Context) -> Any:
        with CommandEnding():
            return super().invoke(context)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shmbroker")
def main() -> None:
    """A Kafka-protocol message broker for one Linux host, and the tools around it.

    \b
    shmbroker serve                                  start a broker on 127.0.0.1:9092
    shmbroker topic create flights -p 3              make a topic
    seq 10 | shmbroker produce flights               a record from each line
    shmbroker consume flights -e                     all of them, then stop
    shmbroker group describe readers                 who reads what, and how far behind
    shmbroker status                                 is all well?
    shmbroker top                                    what does it do right now?
    shmbroker doctor                                 what is wrong on this host?
    shmbroker tune                                   which settings would be better on it?
    shmbroker log verify ~/.local/state/shmbroker    check the files, without a broker

    Commands that ask brokers take any Kafka cluster: --bootstrap-server HOST:PORT, or
    $SHMBROKER_BOOTSTRAP_SERVER, or 127.0.0.1:9092. serve, top, log, backup, restore, systemd,
    embedded, doctor and tune are for this host.

    Exit status: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C. serve has more: see its help.
    """
