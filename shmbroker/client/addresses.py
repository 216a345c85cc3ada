"""Where brokers listen: (host, port), and its text."""

from collections.abc import Sequence

from shmbroker.errors import ConfigFault

Address = tuple[str, int]


def parse_addresses(bootstrap_servers: str, setting: str = "bootstrap_servers") -> list[Address]:
    """ "host:port,host:port" as pairs; ConfigFault, which names the setting, if there is none or
    one is not that."""
    if not isinstance(bootstrap_servers, str):
        raise ConfigFault(f"{setting} is text, HOST:PORT,…, not {bootstrap_servers!r}")
    found = []
    for text in filter(None, map(str.strip, bootstrap_servers.split(","))):
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
            raise ConfigFault(f"{setting}: {text!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigFault(f"{setting} names no broker: give HOST:PORT")
    return found


def addresses_text(addresses: Sequence[Address]) -> str:
    """host:port,host:port"""
    return ",".join(f"{host}:{port}" for host, port in addresses)
