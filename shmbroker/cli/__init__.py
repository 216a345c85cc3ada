"""The command `shmbroker`: one entry point, sub-commands that import what they need when called."""

import sys
from typing import Any


def main(**options: Any) -> None:
    """Run the command line that `sys.argv` holds; `options` are click's."""
    if sys.argv[1:2] == ["serve"]:
        from shmbroker.cli.serve_flags import parse_plain

        parameters = parse_plain(sys.argv[2:])
        if parameters is not None:
            from shmbroker.cli.run_broker import run

            run(parameters)
    if sys.argv[1:] == ["--version"]:  # without click, which would be most of it
        from shmbroker import __version__

        print(f"shmbroker, version {__version__}")
        return
    from shmbroker.cli.commands import main as command_line

    command_line(**{"prog_name": "shmbroker"} | options)


__all__ = ["main"]
