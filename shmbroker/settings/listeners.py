"""Listeners: where clients come in, what is spoken there, and what they are told. Pure.

   listeners                       PLAINTEXT://127.0.0.1:9092,PUBLIC://:9093,UNIX:///run/x.sock
   listener.security.protocol.map  PLAINTEXT:PLAINTEXT,PUBLIC:SASL_SSL,UNIX:UNIX
   advertised.listeners            PUBLIC://kafka.example.org:19093

* The family's brokers listen each on a port of its own: the i-th on the i-th from the one named,
  and at the i-th from the one that clients are told. A Unix socket of the i-th ends in "-<i>".
* Without `listeners` there is one, PLAINTEXT, on shmbroker.host and shmbroker.port.

Source: `SocketServerConfigs` and `AbstractKafkaConfig` of Apache Kafka; KIP-103, KIP-797.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple

from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
UNIX = "UNIX"
PROTOCOLS = {PLAINTEXT: 0, SSL: 1, SASL_PLAINTEXT: 2, SASL_SSL: 3, UNIX: 0}
"""Kafka's number of a protocol, by its name. A Unix socket has none there."""

UNIX_PATH_BYTES_MAX = 100
"""What a Unix address holds is 107 bytes; the number of a broker may follow."""

_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9a-fA-F:.%]*\]|[^:/\[\]]*):(\d{1,5})")
_UNIX = re.compile(r"([A-Za-z0-9_.-]+)://(/.*[^/])")


class ListenerConfig(NamedTuple):
    """One listener, as the settings have it."""

    name: str
    """The listener's name in upper case, as it is shown."""
    protocol: str
    host: str
    """Address to listen on; "" is every interface. The path of a Unix socket."""
    port: int
    """The port of the first broker; 0: free ones."""
    told_host: str = ""
    """What clients are told; "": the address that they dialled."""
    told_port: int = 0
    """The port of the first broker; 0: the one on which it listens."""

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self.protocol == UNIX

    @property
    def has_tls(self) -> bool:
        """Whether its bytes are encrypted."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether its clients authenticate by SASL."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def is_local(self) -> bool:
        """Whether only this host reaches it."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def port_of(self, place: int) -> int:
        """Where the broker in this place, from 0, listens."""
        return self.port + place if self.port else 0

    def path_of(self, place: int) -> str:
        """The Unix socket of the broker in this place."""
        return f"{self.host}-{place + 1}" if place else self.host

    def told_port_of(self, place: int, bound: int) -> int:
        """The port that clients are told of the broker in this place, which listens at `bound`."""
        return self.told_port + place if self.told_port else bound

    def __str__(self) -> str:
        if self.is_unix:
            return f"{self.name}://{self.host}"
        return f"{self.name}://{address_text(self.host, self.port)}"


def address_text(host: str, port: int) -> str:
    """Host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(
    listeners: Sequence[str], advertised: Sequence[str], protocols: Sequence[str], brokers: int
) -> list[ListenerConfig]:
    """The listeners of these settings, for so many brokers. ConfigFault, in one sentence with the
    fix, for what doesn't go together."""
    protocol_of = _protocols(protocols)
    found: dict[str, ListenerConfig] = {}
    for text in listeners:
        name, host, port = _parsed("listeners", text)
        protocol = protocol_of.get(name)
        if protocol is None:
            raise ConfigFault(
                f"listeners names {name}, but listener.security.protocol.map doesn't: add "
                f"{name}:PLAINTEXT, or another protocol, to it."
            )
        if name in found:
            raise ConfigFault(f"listeners names {name} twice: each needs a name of its own.")
        one = ListenerConfig(name, protocol, host, port)
        if (port < 0) != one.is_unix:
            form = "UNIX:///path" if one.is_unix else "NAME://HOST:PORT"
            raise ConfigFault(f"listeners: {text} speaks {protocol}, so it must be {form}.")
        if not one.is_unix and port + brokers - 1 > 65535:
            raise ConfigFault(f"listeners: {text} leaves no room for {brokers} ports.")
        _check_apart(one, found.values(), brokers)
        found[name] = one
    if not found:
        raise ConfigFault("listeners is empty: name one, such as PLAINTEXT://127.0.0.1:9092.")
    told = set()
    for text in advertised:
        name, host, port = _parsed("advertised.listeners", text)
        if name not in found:
            raise ConfigFault(f"advertised.listeners names {name}, but listeners doesn't: add it.")
        if name in told:
            raise ConfigFault(f"advertised.listeners names {name} twice: once is enough.")
        told.add(name)
        if found[name].is_unix or port < 0:
            raise ConfigFault(
                f"advertised.listeners: clients of a Unix socket are told its path: leave out "
                f"{text}."
            )
        if host in ("0.0.0.0", "::", ""):
            raise ConfigFault(
                f"advertised.listeners: no client reaches {text}: name a host that they reach."
            )
        if port + brokers - 1 > 65535:
            raise ConfigFault(f"advertised.listeners: {text} leaves no room for {brokers} ports.")
        found[name] = found[name]._replace(told_host=host, told_port=port)
    return list(found.values())


def _protocols(texts: Sequence[str]) -> dict[str, str]:
    protocol_of = {}
    for text in texts:
        name, colon, protocol = text.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or protocol not in PROTOCOLS:
            raise ConfigFault(
                f"listener.security.protocol.map takes NAME:PROTOCOL with one of "
                f"{', '.join(PROTOCOLS)}, not {text!r}."
            )
        protocol_of[name] = protocol
    return protocol_of


def _parsed(setting: str, text: str) -> tuple[str, str, int]:
    """Name, host and port of a listener; port -1 for a path."""
    if match := _LISTENER.fullmatch(text):
        name, host, port = match.groups()
        if int(port) <= 65535:
            return name.upper(), host.strip("[]"), int(port)
    elif match := _UNIX.fullmatch(text):
        name, path = match.groups()
        if len(path.encode()) > UNIX_PATH_BYTES_MAX:
            raise ConfigFault(
                f"{setting}: {path} is too long for a Unix socket: take at most "
                f"{UNIX_PATH_BYTES_MAX} bytes."
            )
        return name.upper(), path, -1
    raise ConfigFault(
        f"{setting} takes NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092, not {text!r}."
    )


def _check_apart(one: ListenerConfig, others: Iterable[ListenerConfig], brokers: int) -> None:
    for other in others:
        if one.is_unix or other.is_unix:
            if one.is_unix and other.is_unix and one.host == other.host:
                raise ConfigFault(f"{one} and {other} have the same path: change one.")
        elif one.port and other.port and abs(one.port - other.port) < brokers:
            if (":" in one.host) != (":" in other.host):
                continue  # IPv4 and IPv6 may have the same port (KIP-797)
            raise ConfigFault(
                f"{one} and {other} have ports in common, as there are {brokers} brokers: each has "
                "a port of its own on each listener."
            )
