"""systemd's readiness protocol: datagrams to the socket in $NOTIFY_SOCKET (sd_notify(3))."""

import os
import socket

WAIT_S = 1.0
"""For a service manager that does not read: it must not hold up the supervisor."""


def notify(*assignments: str) -> None:
    """Send `READY=1`, `STATUS=…`, `STOPPING=1`, `MAINPID=…`; nothing if systemd is not there."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(WAIT_S)
            sender.sendto("\n".join(assignments).encode(), address)
    except OSError:
        pass  # a service manager that is gone or hangs must not end the broker
