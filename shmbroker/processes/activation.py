"""Listening sockets that a service manager has opened and passes on (sd_listen_fds(3)).

They stay open while the service restarts, so connections wait in them and none is refused.

   $LISTEN_PID   whom they are for
   $LISTEN_FDS   how many: 3, 4, …

Which broker gets which (`assign`, pure): where a port was set, the one whose port it is; else they
are the brokers' in their order. A broker without one has its port bound as ever.
"""

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from shmbroker.errors import ConfigFault

FIRST_FD = 3
CHANGE = "change ListenStream= (systemctl edit shmbroker.socket)"


class WantedPorts(NamedTuple):
    """What the settings say of addresses."""

    brokers: int
    host: str
    """"" if it was not set."""
    port: int
    """0 if it was not set."""


def passed() -> list[socket.socket]:
    """The sockets that were passed to this process; to be called once. ConfigFault if one of them
    is not what clients connect to."""
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()):
        return []
    count = int(os.environ.pop("LISTEN_FDS", "0"))
    os.environ.pop("LISTEN_FDNAMES", None)
    found = []
    for fd in range(FIRST_FD, FIRST_FD + count):
        os.set_inheritable(fd, False)
        one = socket.socket(fileno=fd)
        is_ip = one.family in (socket.AF_INET, socket.AF_INET6)
        is_listening = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not is_ip or one.type != socket.SOCK_STREAM or not is_listening:
            raise ConfigFault(
                f"A socket that was passed to the broker (descriptor {fd}) is none that listens on "
                f"a TCP port: {CHANGE}."
            )
        found.append(one)
    return found


def assign(addresses: Sequence[tuple[str, int]], wanted: WantedPorts) -> list[int | None]:
    """Find each broker's own among the passed sockets with these addresses. ConfigFault if they are
    not what the settings say."""
    if len(addresses) > wanted.brokers:
        raise ConfigFault(
            f"{len(addresses)} ports are passed for {wanted.brokers} brokers: {CHANGE}, or raise "
            "--replicas or --io-workers."
        )
    if wanted.host and addresses:
        for host, port in addresses:
            if not _is_on(host, wanted.host):
                raise ConfigFault(
                    f"The port that is passed is {host}:{port}, but shmbroker.host is "
                    f"{wanted.host}: {CHANGE}, or leave out shmbroker.host."
                )
    if not wanted.port:
        return [place if place < len(addresses) else None for place in range(wanted.brokers)]
    places: list[int | None] = [None] * wanted.brokers
    for which, (host, port) in enumerate(addresses):
        place = port - wanted.port
        if not 0 <= place < wanted.brokers:
            raise ConfigFault(
                f"The port that is passed is {host}:{port}, but shmbroker.port is {wanted.port} "
                f"for {wanted.brokers} brokers: {CHANGE}, or leave out shmbroker.port."
            )
        places[place] = which
    return places


def _is_on(address: str, host: str) -> bool:
    """Whether a socket with this address answers at this host; a name is believed."""
    try:
        return ip_address(host) == ip_address(address) or ip_address(address).is_unspecified
    except ValueError:
        return True
