"""`shmbroker serve`, as click knows it; what it does is in `run_broker`."""

import click

from shmbroker.cli.run_broker import run
from shmbroker.cli.serve_flags import FLAGS, REPEATED


def with_flags(command: click.Command) -> click.Command:
    """The command, which takes the flags of `serve` too."""
    for flag, parameter, metavar, _, text in FLAGS:
        if metavar:
            option = click.option(
                flag, parameter, metavar=metavar, multiple=parameter in REPEATED, help=text
            )
        else:
            option = click.option(flag, parameter, flag_value="true", help=text)
        option(command)
    return command


@with_flags
@click.command("serve")
def command(**parameters: str | tuple[str, ...] | None) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    \b
    shmbroker serve
    shmbroker serve --data /srv/kafka --port 9092 --set log.retention.hours=24
    shmbroker serve --replicas 3 --log-dir /disk1 --log-dir /disk2 --log-dir /disk3

    Exit status: 0 stopped; 1 stopped, but not cleanly; 2 unusable configuration; 3 data directory
    in use; 4 a process of the family can't boot; 75 what a killed family left still uses the data
    directory.
    """
    run(parameters)
