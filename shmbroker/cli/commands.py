"""The root of the command line. Sub-commands live in modules of their own, loaded when named."""

import importlib

import click

from shmbroker import __version__

COMMANDS = {"serve": "shmbroker.cli.serve"}


class LazyGroup(click.Group):
    """A group whose commands are imported by name: `--help` of one doesn't load the others."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        return importlib.import_module(module).command if module else None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shmbroker")
def main() -> None:
    """A Kafka-protocol message broker for one Linux host.

    \b
    shmbroker serve                       start a broker on 127.0.0.1:9092
    shmbroker serve --port 0 --data DIR   on a free port, in a directory of your own
    """
