"""What a service manager is told, and what it asks for: systemd's protocols by environment.

   $NOTIFY_SOCKET                  where datagrams go (sd_notify(3)): READY=1, STATUS=…, STOPPING=1
   $WATCHDOG_USEC, $WATCHDOG_PID   WATCHDOG=1 is to come so often, else the service is killed

`WATCHDOG=1` is sent while every child gives signs of life, so what the family can't mend by itself
ends it: a supervisor that hangs, a killed process that does not end.
"""

import os
import socket

from shmbroker import clock

WAIT_S = 1.0
"""The time that a service manager has to read: one that does not must not hold up the
supervisor."""
MARGIN_S = 5.0
"""How much longer than until a child is killed the service manager has to wait: its successor is
there by then."""


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


def reloading() -> None:
    """A reload begins; READY=1 ends it. The time is what systemd orders signals and answers by."""
    notify("RELOADING=1", f"MONOTONIC_USEC={int(clock.monotonic() * 1e6)}")


def watchdog_s() -> float:
    """The seconds within which a `WATCHDOG=1` has to follow another; 0 where nobody asks."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0


def watchdog_complaint(watchdog_s: float, kill_ms: int) -> str:
    """What is wrong with the service manager's patience; "" if nothing is."""
    if not watchdog_s or not kill_ms or watchdog_s >= kill_ms / 1000 + MARGIN_S:
        return ""
    return (
        f"WatchdogSec={watchdog_s:g} ends the whole family before shmbroker.watchdog.kill.ms "
        f"({kill_ms}) has one process of it replaced: make it {kill_ms / 1000 + MARGIN_S:g} or more"
    )
