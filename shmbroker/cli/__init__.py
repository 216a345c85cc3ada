"""The command `shmbroker`: one entry point, sub-commands that import what they need when called."""

from shmbroker.cli.main import main

__all__ = ["main"]
