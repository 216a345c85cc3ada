"""`shmbroker embedded`: a broker for tests in other languages, which lives as long as they do.

Whoever starts it reads the address from the first line of stdout, and ends it by closing stdin, or
by ending: the kernel closes a dead process's pipes, and a pidfd tells of a parent whose pipe
somebody else still holds. The family ends with this process, even where that is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys

import click

from shmbroker.errors import ConfigFault
from shmbroker.testing.broker import QUICK, Broker

EXIT_TERMINATED = 143


@click.command("embedded")
@click.option("--print-address", is_flag=True, help="Print HOST:PORT, and nothing else.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def command(print_address: bool, flags: tuple[str, ...]) -> None:
    """Run a broker for a test, on an empty directory and a free port, until stdin is closed.

    \b
    shmbroker embedded --print-address
    shmbroker embedded --print-address -- --io-workers 3 --set num.partitions=3

    The words behind -- are flags of serve. A line on stdout has the address when it serves. The
    broker ends, and its directory goes, when stdin is closed or the process that started it ends.
    """
    parent = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        broker = Broker(*QUICK, *flags)
    except RuntimeError as fault:
        raise ConfigFault(str(fault)) from None
    with broker:
        where = broker.address if print_address else f"shmbroker: ready on {broker.address}"
        click.echo(where)
        _wait(parent)


def _wait(parent: int) -> None:
    """Wait until stdin or the parent ends. What comes through stdin is not looked at."""
    while True:
        ready, _, _ = select.select([0, parent], [], [])
        if parent in ready or not os.read(0, 4096):
            return
