"""`shmbroker serve`: run the broker family in the foreground."""

import logging
import os
import sys
from pathlib import Path

import click

from shmbroker import clock
from shmbroker.config import BrokerConfig
from shmbroker.errors import ConfigFault, Fault


def default_data_directory() -> str:
    """`shmbroker` under $XDG_STATE_HOME (~/.local/state where it is not set)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "shmbroker")


@click.command("serve")
@click.option("--config", "config_file", metavar="FILE", help="Settings: TOML or properties.")
@click.option("--data", metavar="DIR", help="Data directory.  [default: XDG state directory]")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", metavar="N", help="Port of broker 1; 0 takes free ones.  [default: 9092]")
@click.option("--io-workers", metavar="M", help="Brokers, each with its log directory and port.")
@click.option("--network-workers", metavar="N", help="Processes that own client connections.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting.")
def command(
    config_file: str | None,
    data: str | None,
    host: str | None,
    port: str | None,
    io_workers: str | None,
    network_workers: str | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    \b
    shmbroker serve
    shmbroker serve --data /srv/kafka --port 9092 --set log.retention.hours=24

    Exit status: 0 stopped; 2 unusable configuration; 3 data directory in use; 4 a process of the
    family can't boot.
    """
    began = clock.monotonic()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler()
    package_logger = logging.getLogger("shmbroker")
    package_logger.addHandler(handler)
    package_logger.propagate = False
    package_logger.setLevel(logging.INFO)
    flags = [
        ("--data", "shmbroker.data", data),
        ("--host", "shmbroker.host", host),
        ("--port", "shmbroker.port", port),
        ("--io-workers", "shmbroker.io.workers", io_workers),
        ("--network-workers", "shmbroker.network.workers", network_workers),
    ]
    from shmbroker.processes import supervisor

    try:
        config = BrokerConfig.load(
            config_file,
            assignments,
            [(flag, name, text) for flag, name, text in flags if text is not None],
        )
        status = supervisor.Supervisor(
            config, Path(config["shmbroker.data"] or default_data_directory()), began
        ).run()
    except supervisor.InUse as fault:
        print(f"shmbroker: {fault}", file=sys.stderr)
        status = supervisor.EXIT_IN_USE
    except (ConfigFault, Fault) as fault:
        print(f"shmbroker: {fault}", file=sys.stderr)
        status = supervisor.EXIT_CONFIG
    sys.exit(status)
