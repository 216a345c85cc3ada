"""What `shmbroker serve` does once its flags are read: run the broker family in the foreground."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from shmbroker import clock, logs
from shmbroker.cli.serve_flags import FLAGS
from shmbroker.errors import Fault
from shmbroker.settings.broker_config import BrokerConfig


def default_data_directory() -> str:
    """`shmbroker` under $XDG_STATE_HOME (~/.local/state where it is not set)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "shmbroker")


def _as_text(value: str | tuple[str, ...]) -> str:
    """A flag's value as a setting has it; of a repeated one, paths become a list."""
    return value if isinstance(value, str) else ",".join(map(os.path.abspath, value))


def run(parameters: Mapping[str, Any]) -> NoReturn:
    """Run a broker until it is told to stop; leaves with its exit status."""
    began = clock.monotonic()
    from shmbroker.processes import output

    output.open_closed()
    is_journal = logs.is_journal(2)
    logs.begin(output.Handler(), is_journal)
    from shmbroker.processes import supervisor

    warning = logs.priority_prefix(logging.WARNING) if is_journal else ""
    error = logs.priority_prefix(logging.ERROR) if is_journal else ""
    flags = [
        (flag, setting, _as_text(parameters[parameter]))
        for flag, parameter, _, setting, _ in FLAGS
        if setting and parameters[parameter] not in (None, ())
    ]

    def read() -> BrokerConfig:
        return BrokerConfig.load(parameters["config_file"], parameters["assignments"], flags)

    try:
        config = read()
        for complaint in config.idle_complaints():
            output.say(f"{warning}shmbroker: {complaint}", sys.stderr)
        status = supervisor.Supervisor(
            config, Path(config["shmbroker.data"] or default_data_directory()), began, read
        ).run()
    except supervisor.InUse as fault:
        output.say(f"{error}shmbroker: {fault}", sys.stderr)
        is_left = isinstance(fault, supervisor.InUseYet)
        status = supervisor.EXIT_IN_USE_YET if is_left else supervisor.EXIT_IN_USE
    except Fault as fault:
        output.say(f"{error}shmbroker: {fault}", sys.stderr)
        status = supervisor.EXIT_CONFIG
    except MemoryError:
        output.say(
            f"{error}shmbroker: There is no memory to start with: lift the limit of address space "
            "(ulimit -v unlimited; LimitAS= in a unit), or free memory.",
            sys.stderr,
        )
        status = supervisor.EXIT_CONFIG
    sys.exit(status)
