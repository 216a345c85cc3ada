"""`shmbroker restore`, beside `backup`."""

from shmbroker.cli.backup import restore as command

__all__ = ["command"]
