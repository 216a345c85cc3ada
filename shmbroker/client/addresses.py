"""Where brokers listen: (host, port), or a Unix socket's path; and how one enters there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from shmbroker.client.security import OPEN, Security
from shmbroker.errors import ConfigFault

Address = tuple[str, int]
"""Host and port. A host that begins with "/" is the path of a Unix socket, whatever the port."""

UNIX = "unix:"


class Addresses(tuple[Address, ...]):
    """Where a cluster is asked, and how one enters there."""

    security: Security

    def __new__(cls, addresses: Iterable[Address], security: Security = OPEN) -> Addresses:
        made = super().__new__(cls, addresses)
        made.security = security
        return made

    def others(self, addresses: Iterable[Address]) -> Addresses:
        """Others of the same cluster."""
        return Addresses(addresses, self.security)


def entered(addresses: Sequence[Address]) -> Addresses:
    """Themselves, or those that nobody has said how to enter: without TLS and SASL."""
    return addresses if isinstance(addresses, Addresses) else Addresses(addresses)


def is_unix(address: Address) -> bool:
    """Whether it is a Unix socket."""
    return address[0].startswith("/")


def parse_addresses(
    bootstrap_servers: str, setting: str = "bootstrap_servers", security: Security = OPEN
) -> Addresses:
    """ "host:port,unix:/path" as pairs; ConfigFault, which names the setting, if there is none or
    one is not that."""
    if not isinstance(bootstrap_servers, str):
        raise ConfigFault(f"{setting} is text, HOST:PORT,…, not {bootstrap_servers!r}")
    found = []
    for text in filter(None, map(str.strip, bootstrap_servers.split(","))):
        if text.startswith(UNIX):
            found.append((parse_unix(text, setting), 0))
            continue
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
            raise ConfigFault(f"{setting}: {text!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigFault(f"{setting} names no broker: give HOST:PORT")
    return Addresses(found, security)


def parse_unix(text: str, setting: str) -> str:
    """The path of "unix:/path" or "unix:///path"; ConfigFault if it isn't absolute."""
    path = text.removeprefix(UNIX)
    if not path.startswith("/"):
        raise ConfigFault(f"{setting}: {text!r} is not unix:/PATH")
    return os.path.normpath("/" + path.lstrip("/"))


def addresses_text(addresses: Sequence[Address]) -> str:
    """host:port,host:port"""
    return ",".join(map(_text, addresses))


def _text(address: Address) -> str:
    return f"{UNIX}{address[0]}" if is_unix(address) else f"{address[0]}:{address[1]}"
