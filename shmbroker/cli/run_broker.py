"""What `shmbroker serve` does once its flags are read: run the broker family in the foreground."""

import errno
import logging
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from shmbroker import clock, logs
from shmbroker.cli.serve_flags import FLAGS
from shmbroker.errors import ConfigFault, Fault, plain
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.files import read_settings
from shmbroker.settings.listener_doubts import READABLE_BY_OTHERS, readable_secrets


def default_data_directory() -> str:
    """`shmbroker` under $XDG_STATE_HOME (~/.local/state where it is not set)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "shmbroker")


def _as_text(value: str | tuple[str, ...]) -> str:
    """A flag's value as a setting has it; of a repeated one, paths become a list."""
    return value if isinstance(value, str) else ",".join(map(os.path.abspath, value))


def flags_of(parameters: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the flags of `serve` say, as `BrokerConfig.load` takes it. ConfigFault for a directory
    without a name, as of a variable that is not set: it would be another one than was meant."""
    for flag, parameter in (("--data", "data"), ("--log-dir", "log_dirs")):
        given = parameters[parameter] or ()
        if parameters[parameter] == "" or "" in tuple(given):
            raise ConfigFault(f"{flag} is empty: name a directory, or leave it out.")
    return [
        (flag, setting, _as_text(parameters[parameter]))
        for flag, parameter, _, setting, _ in FLAGS
        if setting and parameters[parameter] not in (None, ())
    ]


def secrets_complaint(path: str) -> str:
    """A sentence where a file of settings shows passwords to everybody; else ""."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if not mode & READABLE_BY_OTHERS:
        return ""
    return readable_secrets(path, mode, read_settings(path))


def run(parameters: Mapping[str, Any]) -> NoReturn:
    """Run a broker until it is told to stop; leaves with its exit status."""
    began = clock.monotonic()
    from shmbroker.processes import output

    output.open_closed()
    formatter = logs.begin(output.StderrHandler(), logs.is_journal(2))
    if parameters["log_format"] == logs.JSON:
        logs.set_format(logs.JSON)
    from shmbroker.processes import held_directory, supervisor

    def say(level: int, text: str) -> None:
        output.say(formatter.sentence(level, plain(text)), sys.stderr)

    path = parameters["config_file"]

    def read() -> BrokerConfig:
        return BrokerConfig.load(path, parameters["assignments"], flags_of(parameters))

    try:
        config = read()
        logs.set_format(config["shmbroker.logger.format"])
        complaints = config.idle_complaints()
        if path is not None:
            complaints.append(secrets_complaint(path))
        for complaint in filter(None, complaints):
            say(logging.WARNING, complaint)
        status = supervisor.Supervisor(
            config, Path(config["shmbroker.data"] or default_data_directory()), began, read
        ).run()
    except held_directory.InUse as fault:
        say(logging.ERROR, str(fault))
        is_left = isinstance(fault, held_directory.InUseYet)
        status = supervisor.EXIT_IN_USE_YET if is_left else supervisor.EXIT_IN_USE
    except Fault as fault:
        say(logging.ERROR, str(fault))
        status = supervisor.EXIT_CONFIG
    except (MemoryError, OSError) as fault:
        if isinstance(fault, OSError) and fault.errno != errno.ENOMEM:
            raise
        say(
            logging.ERROR,
            "There is no memory to start with: lift the limit of address space "
            "(ulimit -v unlimited; LimitAS= in a unit), or free memory.",
        )
        status = supervisor.EXIT_CONFIG
    sys.exit(status)
