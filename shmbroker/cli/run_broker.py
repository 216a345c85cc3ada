"""What `shmbroker serve` does once its flags are read: run the broker family in the foreground."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from shmbroker import clock
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
    handler = output.Handler()
    package_logger = logging.getLogger("shmbroker")
    package_logger.addHandler(handler)
    package_logger.propagate = False
    package_logger.setLevel(logging.INFO)
    from shmbroker.processes import supervisor

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
            print(f"shmbroker: {complaint}", file=sys.stderr)
        status = supervisor.Supervisor(
            config, Path(config["shmbroker.data"] or default_data_directory()), began, read
        ).run()
    except supervisor.InUse as fault:
        output.say(f"shmbroker: {fault}", sys.stderr)
        is_left = isinstance(fault, supervisor.InUseYet)
        status = supervisor.EXIT_IN_USE_YET if is_left else supervisor.EXIT_IN_USE
    except Fault as fault:
        output.say(f"shmbroker: {fault}", sys.stderr)
        status = supervisor.EXIT_CONFIG
    except MemoryError:
        output.say(
            "shmbroker: There is no memory to start with: lift the limit of address space "
            "(ulimit -v unlimited; LimitAS= in a unit), or free memory.",
            sys.stderr,
        )
        status = supervisor.EXIT_CONFIG
    sys.exit(status)
