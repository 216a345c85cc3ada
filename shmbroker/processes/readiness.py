"""Readiness: what a service manager hears of the family, and a person who reads its stdout.

   starting; without io-worker-2: …      STATUS before it serves, if one can't boot
   ready on 127.0.0.1:9092 (broker 0)    READY=1 and a line on stdout, once; STATUS from then on
   restarting io-worker-1                STATUS until all run again that can boot
   WATCHDOG=1, EXTEND_TIMEOUT_USEC=…     `feed`, while every process gives signs of life

A stop says the rest: `ending`.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime

from shmbroker import clock
from shmbroker.ipc.slots import IO_WORKER
from shmbroker.processes import output, sd_notify
from shmbroker.processes.sd_notify import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from shmbroker.processes.children import Children
    from shmbroker.processes.open_sockets import OpenSockets

START_EXTENSION_S = 60
"""How much more time for a start that takes half of that the service manager is asked for, again
and again."""


class Readiness:
    """The readiness of a family that `began` to start then, in monotonic seconds."""

    def __init__(
        self, children: Children, sockets: OpenSockets, directory: Path, began: float
    ) -> None:
        self._children = children
        self._sockets = sockets
        self._directory = directory
        self._began = began
        self.is_ready = False
        """Whether it has served."""
        self._watchdog_s = sd_notify.watchdog_s()
        """How often the service manager wants to hear that all is well; 0 is never."""
        self._status = ""

    def maybe_say_ready(self) -> None:
        """The family serves when all run that can boot."""
        if not self._children.are_all_up():
            return
        if not self.is_ready:
            self.is_ready = True
            self._say_ready()
        self._say_serving()

    def say_unable(self) -> None:
        """One can't boot: the others may be ready without it."""
        if self.is_ready:
            self._say_serving()
        else:
            self._say_status(f"starting{self._children.lacking()}")
            self.maybe_say_ready()

    def say_restarting(self, title: str) -> None:
        self._say_status(f"restarting {title}")

    def feed(self, is_stopping: bool) -> None:
        """Tell the service manager that all give signs of life; what takes long at a start is no
        fault then, either."""
        began_s = clock.monotonic() - self._began
        if not self.is_ready and not is_stopping and began_s > START_EXTENSION_S / 2:
            notify(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}")
        if self._watchdog_s:
            notify("WATCHDOG=1")

    def _addresses(self) -> str:
        """Where clients are served: by all brokers but those that can't boot."""
        unable = self._children.unable()
        return self._sockets.addresses(
            [each.slot.number for each in unable if each.slot.role == IO_WORKER]
        )

    def _say_serving(self) -> None:
        self._say_status(f"ready on {self._addresses()}{self._children.lacking()}")

    def _say_status(self, status: str) -> None:
        """Tell systemd what is new."""
        if status != self._status:
            self._status = status
            notify(f"STATUS={status}")

    def _say_ready(self) -> None:
        took = clock.monotonic() - self._began
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        output.say(
            f"shmbroker: ready on {self._addresses()} pid {os.getpid()}, "
            f"started {started} in {took:.2f} s, data in {self._directory}"
            f"{self._children.lacking()}",
            sys.stdout,
        )
        notify("READY=1", f"MAINPID={os.getpid()}")
